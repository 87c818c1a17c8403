#include "sampling_flags.h"

#include "base/option_error.h"
#include "options.h"

namespace keel {

void SamplingFlags::add_to(CLI::App& command) {
  command.add_option("-n,--max-tokens", max_tokens, "Tokens to generate at most")->capture_default_str();
  command.add_option("--temperature,--temp", temperature, "0 = greedy");
  command.add_option("--top-k", top_k, "Only the K likeliest tokens");
  command.add_option("--top-p", top_p, "Only the likeliest tokens that together have this probability");
  command.add_option("--min-p", min_p, "Only tokens at least this likely relative to the likeliest");
  command.add_option("--repetition-penalty", repetition_penalty, "Above 1 makes repeats less likely");
  command.add_option("--sampling-seed", seed, "Same seed, same text")->check(whole_number());
  command.add_option("--stop", stop, "Text that ends the answer; may be given more than once")->allow_extra_args(false);
  command.add_flag("--ignore-eos", ignore_eos, "Go on past the model's end token");
}

SamplingParams SamplingFlags::params(const ModelConfig& config) const {
  SamplingParams params;
  const auto pick = [](auto& target, const auto& flag, const auto& model_default) {
    if (flag) target = *flag;
    else if (model_default) target = *model_default;
  };
  pick(params.temperature, temperature, config.default_temperature);
  pick(params.top_k, top_k, config.default_top_k);
  pick(params.top_p, top_p, config.default_top_p);
  pick(params.min_p, min_p, config.default_min_p);
  pick(params.repetition_penalty, repetition_penalty, config.default_repetition_penalty);
  params.seed = seed;
  params.max_tokens = max_tokens;
  params.stop = stop;
  params.ignore_eos = ignore_eos;
  if (const std::string problem = params.problem(config.vocabulary); !problem.empty()) refuse_option("{}", problem);
  return params;
}

}  // namespace keel
