#include "server/openai/sampling_params.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <mutex>

#include "base/log.h"

namespace keel {
namespace {

constexpr std::size_t kMaxStops = 64;
constexpr std::size_t kMaxStopIds = 1024;  // looked through for every token
constexpr std::size_t kMaxIgnoredNames = 256;  // remembered; a client that invents names may not fill memory or the log

std::vector<std::string> read_stop(JsonFields& fields) {
  const Json* stop = fields.find("stop");
  if (stop == nullptr) return {};
  std::vector<std::string> stops;
  if (stop->is_string()) {
    stops.push_back(stop->get<std::string>());
  } else if (stop->is_array() && stop->size() <= kMaxStops) {
    for (const Json& one : *stop) {
      if (!one.is_string()) refuse("stop", "stop: wanted strings, found " + describe(one));
      stops.push_back(one.get<std::string>());
    }
  } else {
    refuse("stop", fmt::format("stop: wanted a string or at most {} strings, found {}", kMaxStops, describe(*stop)));
  }
  if (std::ranges::any_of(stops, &std::string::empty)) refuse("stop", "stop: wanted text, found an empty string");
  return stops;
}

std::vector<TokenId> read_stop_ids(JsonFields& fields) {
  std::vector<TokenId> ids;
  if (const Json* array = fields.array("stop_token_ids")) {
    if (array->size() > kMaxStopIds) {
      refuse("stop_token_ids", fmt::format("stop_token_ids: wanted at most {} ids, found {}", kMaxStopIds, array->size()));
    }
    for (const Json& id : *array) {
      ids.push_back(static_cast<TokenId>(integer_value(id, "stop_token_ids", 0, INT32_MAX)));
    }
  }
  return ids;
}

std::map<TokenId, float> read_bias(JsonFields& fields) {
  std::map<TokenId, float> biases;
  const Json* object = fields.object("logit_bias");
  if (object == nullptr) return biases;
  for (const auto& [key, value] : object->items()) {
    TokenId id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0) {
      refuse("logit_bias", "logit_bias: wanted token ids as keys, found " + describe(Json(key)));
    }
    biases[id] = static_cast<float>(number_value(value, "logit_bias." + key));
  }
  return biases;
}

bool changes_nothing(std::string_view name, const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_array() || value.is_object() || value.is_string()) {
    if (value.empty() || (value.is_string() && value.get_ref<const std::string&>().empty())) return true;
  }
  if (name == "modalities") return value == Json::array({"text"});
  if (name == "response_format") return value.is_object() && value.value("type", Json()) == "text";
  if (name == "function_call") return value == "none";
  return false;
}

}  // namespace

SamplingParams model_defaults(const ModelConfig& config) {
  SamplingParams defaults;
  defaults.temperature = config.default_temperature.value_or(defaults.temperature);
  defaults.top_p = config.default_top_p.value_or(defaults.top_p);
  defaults.top_k = config.default_top_k.value_or(defaults.top_k);
  defaults.min_p = config.default_min_p.value_or(defaults.min_p);
  defaults.repetition_penalty = config.default_repetition_penalty.value_or(defaults.repetition_penalty);
  return defaults;
}

SamplingParams read_sampling(JsonFields& fields, const SamplingParams& defaults) {
  SamplingParams sampling = defaults;
  const auto number = [&](std::string_view name, double& value) { value = fields.number(name).value_or(value); };
  const auto flag = [&](std::string_view name, bool& value) { value = fields.boolean(name).value_or(value); };
  number("temperature", sampling.temperature);
  number("top_p", sampling.top_p);
  number("min_p", sampling.min_p);
  number("repetition_penalty", sampling.repetition_penalty);
  number("presence_penalty", sampling.presence_penalty);
  number("frequency_penalty", sampling.frequency_penalty);
  sampling.top_k = fields.integer("top_k").value_or(sampling.top_k);
  sampling.min_tokens = fields.integer("min_tokens", 0).value_or(sampling.min_tokens);
  flag("ignore_eos", sampling.ignore_eos);
  flag("include_stop_str_in_output", sampling.include_stop_str_in_output);
  flag("skip_special_tokens", sampling.skip_special_tokens);
  if (const auto seed = fields.integer("seed")) sampling.seed = static_cast<std::uint64_t>(*seed);
  sampling.stop = read_stop(fields);
  sampling.stop_token_ids = read_stop_ids(fields);
  sampling.logit_bias = read_bias(fields);
  return sampling;
}

void check_sampling(const SamplingParams& sampling, std::int64_t vocabulary) {
  const std::string problem = sampling.problem(vocabulary);
  if (problem.empty()) return;
  // The message begins with the parameter's name.
  const auto end = problem.find_first_not_of("abcdefghijklmnopqrstuvwxyz_");
  refuse(problem.substr(0, end), problem);
}

void refuse_unsupported(JsonFields& fields) {
  constexpr std::array kUnsupported = {
      "suffix",        "use_beam_search",   "bad_words",      "allowed_token_ids", "logits_processors",
      "guided_json",   "guided_regex",      "guided_choice",  "guided_grammar",    "structured_outputs",
      "functions",     "function_call",     "modalities",     "audio",             "response_format",
      "prompt_embeds", "structural_tag",    "web_search_options", "prediction",    "thinking_token_budget"};
  for (const std::string_view name : kUnsupported) {
    const Json* value = fields.find(name);
    if (value == nullptr || changes_nothing(name, *value)) continue;
    refuse(std::string(name), fmt::format("{}: not supported, found {}", name, describe(*value)));
  }
}

void log_ignored(const JsonFields& fields) {
  // Says nothing about how the answer is made, so nothing is missed.
  constexpr std::array kHarmless = {"user", "metadata", "store", "service_tier", "parallel_tool_calls",
                                    "safety_identifier", "prompt_cache_key"};
  static std::mutex mutex;
  static std::set<std::string> said;
  for (std::string name : fields.unread()) {
    if (std::ranges::find(kHarmless, name) != kHarmless.end()) continue;
    if (name.size() > 64) name.resize(64);
    std::ranges::replace_if(name, [](unsigned char c) { return c < 0x20 || c >= 0x7F; }, '?');
    const std::lock_guard lock(mutex);
    if (said.size() < kMaxIgnoredNames && said.insert(name).second) {
      log_info("request field '{}' is not known and is ignored", name);
    }
  }
}

}  // namespace keel
