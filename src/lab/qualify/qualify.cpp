#include "lab/qualify/qualify.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "base/log.h"
#include "base/option_error.h"
#include "base/text_file.h"
#include "base/utc_time.h"
#include "engine/engine.h"
#include "files/gguf.h"
#include "kernels/cpu_features.h"
#include "lab/qualify/journal.h"
#include "lab/qualify/model_digest.h"
#include "lab/qualify/plan.h"
#include "lab/qualify/production.h"
#include "lab/qualify/production_faults.h"
#include "lab/qualify/record.h"
#include "lab/quality/cached_decode.h"
#include "lab/stats.h"

namespace keel {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kGates[] = {"production", "nll", "retrieval", "questions"};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::unique_ptr<Tokenizer> open_tokenizer(const ModelPath& path) {
  if (path.kind == ModelFiles::gguf) return load_tokenizer(GgufFile(path.path));
  if (path.kind == ModelFiles::hf_folder) return load_tokenizer(path.path);
  fail("{}: no tokenizer beside the config, so no text can be scored", path.path.string());
}

nlohmann::json number_or_null(double x) { return std::isfinite(x) ? nlohmann::json(x) : nlohmann::json(); }

// Everything that a run holds: made once, gates one after another.
class Run {
 public:
  explicit Run(const QualifyOptions& options);
  Qualification go();

 private:
  fs::path beside(const char* ending) const { return fs::path(output_).replace_extension(ending); }
  LoadedModel load() const { return load_model(options_.model, options_.load); }
  std::int64_t longest_context() const;
  void freeze();
  std::optional<Qualification> earlier() const;
  bool has_all(const std::string& gate, const std::string& arm, std::int64_t first, std::int64_t last) const;
  std::vector<nlohmann::json> all_of(const std::string& gate, const std::string& arm, std::int64_t items) const;
  void add_seconds(const std::string& gate, Clock::time_point since);

  DecodeArm decode_arm(const ArmPlan& arm) const;
  GateResult production();
  GateResult nll();
  GateResult ask(const std::string& gate);
  void ask_arm(const std::string& gate, const ArmPlan& arm, ProgressBar& progress);
  std::vector<nlohmann::json> answers(Engine& engine, std::span<const PanelItem> items, std::int64_t max_tokens, Judge judge);
  Qualification write(std::vector<GateResult> gates);

  const QualifyOptions& options_;
  WorkerPool workers_;
  Device device_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  LoadedModel model_;
  Subject subject_;
  KvScales control_scales_;  // 1 where the control has 16 bits
  Panel panel_;
  nlohmann::json plan_;
  std::string hash_;
  fs::path output_;
  std::optional<Journal> journal_;
  std::string description_;
};

Run::Run(const QualifyOptions& options) : options_(options), workers_(options.threads), device_(choose_device(options.device)) {
  tokenizer_ = open_tokenizer(options.model);
  model_ = load();
  const ModelConfig& config = model_.config;
  const KvGeometry geometry{config.layers, config.kv_heads, config.head_dim};
  const KvFormat control = parse_kv_format(options.control, config.dtype), candidate = parse_kv_format(options.candidate, config.dtype);
  if (bits(control.key) < 16 || bits(control.value) < 16) refuse_option("--control {}: what others are compared with has 16 bits or more on both sides", options.control);
  subject_ = {.model_name = options.model.name,
              .model_digest = model_digest(options.model, options.load, workers_),
              .tokenizer_digest = tokenizer_digest(options.model, workers_),
              .weights = model_.weights.format,
              .control = control,
              .candidate = candidate,
              .scales = options.kv_scales.empty() ? KvScales::unit(geometry) : read_calibration(options.kv_scales, geometry, candidate),
              .device = device_};
  control_scales_ = options.kv_scales.empty() ? KvScales::unit(geometry) : read_calibration(options.kv_scales, geometry, control);
  std::optional<ChatTemplate> chat_template;
  if (!tokenizer_->chat_template().empty()) chat_template.emplace(tokenizer_->chat_template());
  panel_ = make_panel(options.panel, *tokenizer_, chat_template ? &*chat_template : nullptr, longest_context());
  if (static_cast<std::int64_t>(panel_.text.size()) < kProductionTokens) {
    refuse_option("{}: {} tokens of text, and the production gate reads {}", panel_.text_name, panel_.text.size(), kProductionTokens);
  }
  for (const auto* items : {&panel_.needles, &panel_.questions}) {
    for (const PanelItem& item : *items) {
      for (const TokenId token : item.prompt) {
        if (token < 0 || token >= config.vocabulary) fail("the tokenizer gives token {}, and the model has {}: they do not belong together", token, config.vocabulary);
      }
    }
  }
  plan_ = make_plan(subject_, panel_, options.panel, options.version, config.vocabulary);
  if (!options.broken.empty()) plan_["broken_on_purpose"] = options.broken;
  hash_ = plan_hash(plan_);
  output_ = options.output;
  if (output_.empty()) {
    std::string model = subject_.model_name;
    for (char& c : model) {
      if (c == '/' || c == ' ') c = '-';
    }
    const fs::path folder = qualification_folder();
    if (folder.empty()) refuse_option("--output: neither XDG_DATA_HOME nor HOME is set, so the record needs a place of its own");
    output_ = folder / fmt::format("{}.{}.{}.{}.json", model, short_name(candidate), device_ == Device::cuda ? "cuda" : "cpu", hash_.substr(0, 12));
  }
  if (output_.extension() != ".json") refuse_option("--output {}: wanted a file name that ends with .json", output_.string());
  std::error_code failed;
  if (output_.has_parent_path()) fs::create_directories(output_.parent_path(), failed);
  if (failed) fail("{}: cannot be made: {}", output_.parent_path().string(), failed.message());
}

std::int64_t Run::longest_context() const {
  const ModelConfig& config = model_.config;
  return std::min(config.max_positions, config.context_limit.value_or(config.max_positions));
}

// A record that is there already: of this plan it is the answer; of another one it is not touched.
std::optional<Qualification> Run::earlier() const {
  if (!fs::exists(output_)) return std::nullopt;
  const nlohmann::json record = read_record(output_);
  if (record["plan_sha256"] != hash_) fail("{}: the record of another plan; give another --output ({})", output_.string(), plan_difference(record["plan"], plan_));
  Qualification found{.plan_sha256 = hash_, .record = output_, .report = beside(".html"), .plan = beside(".plan.json"), .was_there = true};
  for (const auto& gate : record.at("gates")) {
    const std::string verdict = gate.at("verdict");
    found.gates.push_back({.gate = gate.at("gate"), .verdict = verdict == "pass" ? Verdict::pass : verdict == "fail" ? Verdict::fail : Verdict::not_reached, .why = gate.at("why")});
  }
  found.verdict = overall(found.gates);
  if (record["verdict"] != name(found.verdict)) fail("{}: its verdict does not follow from its gates: edited", output_.string());
  return found;
}

void Run::freeze() {
  const fs::path file = beside(".plan.json");
  if (fs::exists(file)) {
    const nlohmann::json frozen = read_plan(file);
    if (frozen != plan_) fail("{}: this run is not the frozen plan ({}); give another --output", file.string(), plan_difference(frozen, plan_));
    log_info("goes by the frozen plan {}", hash_.substr(0, 12));
  } else {
    freeze_plan(file, plan_);
    log_info("plan {} is frozen in {}", hash_.substr(0, 12), file.string());
  }
}

bool Run::has_all(const std::string& gate, const std::string& arm, std::int64_t first, std::int64_t last) const {
  for (std::int64_t i = first; i < last; ++i) {
    if (journal_->find(gate, arm, i) == nullptr) return false;
  }
  return true;
}

std::vector<nlohmann::json> Run::all_of(const std::string& gate, const std::string& arm, std::int64_t items) const {
  std::vector<nlohmann::json> all;
  for (std::int64_t i = 0; i < items; ++i) {
    const nlohmann::json* item = journal_->find(gate, arm, i);
    check(item != nullptr, "a gate is judged when all its items are there");
    all.push_back(*item);
  }
  return all;
}

void Run::add_seconds(const std::string& gate, Clock::time_point since) {
  std::int64_t next = 0;
  while (journal_->find("seconds", gate, next) != nullptr) ++next;
  const Journal::Entry entry{.gate = "seconds", .arm = gate, .item = next, .found = seconds_since(since)};
  journal_->add({&entry, 1});
}

DecodeArm Run::decode_arm(const ArmPlan& arm) const {
  return {.format = arm.candidate ? subject_.candidate : subject_.control,
          .scales = arm.candidate ? subject_.scales : control_scales_,
          .prompt_chunk = arm.prompt_chunk,
          .step_rows = arm.step_rows,
          .page_size = subject_.page_size};
}

GateResult Run::production() {
  const auto start = Clock::now();
  const DecodeArm arm = decode_arm(kArms[2]);
  ProductionGate gate(device_, model_, arm, subject_.control, panel_.text, workers_, options_.broken);
  const auto count = static_cast<std::int64_t>(gate.items().size());
  ProgressBar progress("production", count);
  for (std::int64_t i = 0; i < count; ++i) {
    if (!has_all("production", "", i, i + 1)) {
      const ProductionItem item = gate.run(gate.items()[static_cast<std::size_t>(i)]);
      const Journal::Entry entry{.gate = "production", .arm = "", .item = i, .found = {{"name", item.name}, {"applies", item.applies}, {"passed", item.passed}, {"detail", item.detail}}};
      journal_->add({&entry, 1});
    }
    progress.advance(1);
  }
  add_seconds("production", start);
  return judge_production(all_of("production", "", count), kLeastFaults);
}

GateResult Run::nll() {
  const auto count = static_cast<std::int64_t>(panel_.documents.size());
  const NllRule rule{.limit = most_nll_rise(), .floor = kNllFloorShare * std::log(static_cast<double>(model_.config.vocabulary))};
  if (has_all("nll", "", 0, count)) return judge_nll(all_of("nll", "", count), rule);

  std::vector<std::unique_ptr<CachedDecode>> owned;
  std::vector<CachedDecode*> arms;
  for (const ArmPlan& arm : kArms) {
    owned.push_back(std::make_unique<CachedDecode>(device_, model_, decode_arm(arm), DecodeLimits{.documents = kDocumentsAtOnce, .tokens = panel_.prompt_tokens + panel_.targets}, workers_));
    arms.push_back(owned.back().get());
  }
  ProgressBar progress("nll", count);
  for (std::int64_t begin = 0; begin < count; begin += kDocumentsAtOnce) {
    const std::int64_t end = std::min(begin + kDocumentsAtOnce, count);
    if (!has_all("nll", "", begin, end)) {  // the whole batch again: which documents share a step is part of the plan
      const auto start = Clock::now();
      std::vector<DecodeDocument> documents;
      for (std::int64_t i = begin; i < end; ++i) documents.push_back({.tokens = panel_.documents[static_cast<std::size_t>(i)], .first_target = panel_.prompt_tokens});
      struct Sums {
        double control = 0, rerun = 0, candidate = 0, kl_rerun = 0, kl_candidate = 0;
        std::int64_t same_rerun = 0, same_candidate = 0;
      };
      std::vector<Sums> sums(documents.size());
      decode_side_by_side(arms, documents, kDocumentsAtOnce, workers_, [&](std::int64_t document, std::int64_t target, auto rows) {
        Sums& sum = sums[static_cast<std::size_t>(document)];
        const TokenId token = documents[static_cast<std::size_t>(document)].tokens[static_cast<std::size_t>(panel_.prompt_tokens + target)];
        sum.control += nll_of(rows[0], token);
        sum.rerun += nll_of(rows[1], token);
        sum.candidate += nll_of(rows[2], token);
        sum.kl_rerun += kl_of(rows[0], rows[1]);
        sum.kl_candidate += kl_of(rows[0], rows[2]);
        sum.same_rerun += top_of(rows[0]) == top_of(rows[1]);
        sum.same_candidate += top_of(rows[0]) == top_of(rows[2]);
      });
      std::vector<Journal::Entry> entries;
      const auto targets = static_cast<double>(panel_.targets);
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const Sums& sum = sums[i];
        entries.push_back({.gate = "nll", .arm = "", .item = begin + static_cast<std::int64_t>(i),
                           .found = {{"control", number_or_null(sum.control / targets)}, {"rerun", number_or_null(sum.rerun / targets)}, {"candidate", number_or_null(sum.candidate / targets)},
                                     {"kl_rerun", number_or_null(sum.kl_rerun / targets)}, {"kl_candidate", number_or_null(sum.kl_candidate / targets)},
                                     {"same_top_rerun", sum.same_rerun}, {"same_top_candidate", sum.same_candidate}, {"targets", panel_.targets}}});
      }
      journal_->add(entries);
      add_seconds("nll", start);
    }
    progress.advance(end - begin);
  }
  return judge_nll(all_of("nll", "", count), rule);
}

// A wave of requests through an engine, to their ends.
std::vector<nlohmann::json> Run::answers(Engine& engine, std::span<const PanelItem> items, std::int64_t max_tokens, Judge judge) {
  struct Answer {
    std::string text, error;
    FinishReason finish = FinishReason::none;
  };
  std::vector<Answer> wave(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    Request request{.prompt = items[i].prompt};
    request.sampling = {.temperature = 0, .max_tokens = max_tokens};
    const Submitted submitted = engine.submit(std::move(request), [&wave, i](const Output& output) {
      wave[i].text += output.text;
      wave[i].finish = output.finish;
      wave[i].error = output.error;
    });
    if (submitted.status != SubmitStatus::accepted) fail("{}: {}", items[i].label, submitted.message);
  }
  while (engine.has_work()) engine.step();
  std::vector<nlohmann::json> found;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Answer& answer = wave[i];
    const bool ended = answer.finish == FinishReason::stop || answer.finish == FinishReason::length;
    const bool right = ended && is_right(judge, answer.text, items[i].wanted, panel_.mark, answer.finish == FinishReason::length);
    nlohmann::json item{{"right", right}, {"finish", name(answer.finish)}, {"answer", answer.text}};
    if (!answer.error.empty()) item["error"] = answer.error;
    found.push_back(std::move(item));
  }
  return found;
}

void Run::ask_arm(const std::string& gate, const ArmPlan& arm, ProgressBar& progress) {
  const bool needles = gate == "retrieval";
  const std::vector<PanelItem>& items = needles ? panel_.needles : panel_.questions;
  const auto count = static_cast<std::int64_t>(items.size());
  std::unique_ptr<Engine> engine;
  for (std::int64_t begin = 0; begin < count; begin += arm.requests_at_once) {
    const std::int64_t end = std::min(begin + arm.requests_at_once, count);
    if (!has_all(gate, arm.name, begin, end)) {  // the whole wave again: who shares a batch is part of the plan
      const auto start = Clock::now();
      if (!engine) {
        const std::int64_t longest = needles ? panel_.longest_needle() : panel_.longest_question();
        const KvFormat format = arm.candidate ? subject_.candidate : subject_.control;
        const KvLayout layout(format, {model_.config.layers, model_.config.kv_heads, model_.config.head_dim, subject_.page_size}, page_order(device_));
        EngineOptions engine_options{.device = device_ == Device::cuda ? "cuda" : "cpu", .kv_cache_dtype = to_string(format)};
        engine_options.kv_cache_memory_bytes = arm.requests_at_once * ((longest + subject_.page_size - 1) / subject_.page_size + 1) * layout.page_bytes();
        engine_options.max_model_len = longest;
        engine_options.max_num_seqs = arm.requests_at_once;
        engine_options.max_num_batched_tokens = arm.batched_tokens;
        engine_options.block_size = subject_.page_size;
        engine_options.enable_prefix_caching = false;
        engine_options.threads = options_.threads;
        if (arm.candidate) engine_options.kv_scales = options_.kv_scales;
        engine = std::make_unique<Engine>(load(), tokenizer_, options_.model.name, engine_options);
        const Attestation& ran = engine->attestation();
        if (ran.format != format) fail("the {} arm runs {}, and the plan says {}", arm.name, to_string(ran.format), to_string(format));
        const Journal::Entry entry{.gate = "effective", .arm = arm.name, .item = needles ? 0 : 1,
                                   .found = {{"gate", gate}, {"format", to_string(ran.format)}, {"bytes_per_token", ran.bytes_per_token}, {"pool_bytes", ran.pool_bytes}, {"slots", ran.slots},
                                             {"scales", ran.scales}, {"device", ran.device}, {"weights", ran.weights_format}}};
        journal_->add({&entry, 1});
      }
      const std::vector<nlohmann::json> found = answers(*engine, std::span(items).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
                                                        needles ? panel_.needle_answer_tokens : panel_.answer_tokens, needles ? Judge::first_digits : Judge::marked_number);
      std::vector<Journal::Entry> entries;
      for (std::int64_t i = begin; i < end; ++i) entries.push_back({.gate = gate, .arm = arm.name, .item = i, .found = found[static_cast<std::size_t>(i - begin)]});
      journal_->add(entries);
      add_seconds(gate, start);
    }
    progress.advance(end - begin);
  }
}

GateResult Run::ask(const std::string& gate) {
  const bool needles = gate == "retrieval";
  const std::vector<PanelItem>& items = needles ? panel_.needles : panel_.questions;
  const auto count = static_cast<std::int64_t>(items.size());
  ProgressBar progress(gate, 3 * count);
  for (const ArmPlan& arm : kArms) ask_arm(gate, arm, progress);
  std::vector<std::string> labels;
  for (const PanelItem& item : items) labels.push_back(item.label);
  const bool sums = options_.panel.questions_file.empty();
  const AnswerRule rule{.limit = needles ? kRetrievalLimit : kAnswersLimit, .floor = needles ? kRetrievalFloor : sums ? kSumsFloor : kQuestionsFloor};
  return judge_answers(gate, labels, all_of(gate, kArms[0].name, count), all_of(gate, kArms[1].name, count), all_of(gate, kArms[2].name, count), rule);
}

Qualification Run::write(std::vector<GateResult> gates) {
  nlohmann::ordered_json effective = nlohmann::ordered_json::object();
  for (const ArmPlan& arm : kArms) {
    for (std::int64_t i = 0; i < 2; ++i) {
      if (const nlohmann::json* found = journal_->find("effective", arm.name, i)) effective[arm.name].push_back(nlohmann::ordered_json(*found));
    }
  }
  nlohmann::ordered_json times{{"begun", *journal_->find("begun", "", 0)}, {"ended", utc_time()}, {"seconds", nlohmann::ordered_json::object()}};
  for (const char* gate : kGates) {
    double seconds = 0;
    for (std::int64_t i = 0; const nlohmann::json* some = journal_->find("seconds", gate, i); ++i) seconds += some->get<double>();
    times["seconds"][gate] = seconds;
  }
  std::int64_t longest = panel_.prompt_tokens + panel_.targets;
  longest = std::max({longest, panel_.longest_needle(), panel_.longest_question()});
  RecordParts parts{.plan = plan_,
                    .version = options_.version,
                    .commit = options_.commit,
                    .device = description_,
                    .cpu_target = chosen_target(),
                    .threads = workers_.threads(),
                    .effective = std::move(effective),
                    .gates = gates,
                    .does_not_cover = {"other weights, tokenizers, cache formats or scales than those named here, other device classes and other build lines",
                                       fmt::format("contexts longer than {} tokens", longest),
                                       "text, tasks and languages unlike the panel's, and sampling other than greedy",
                                       "speed: nothing here was timed for comparison",
                                       "a gate that fails shows that preservation was not established, not that harm was; a native floor that fails says nothing about the cache"},
                    .times = std::move(times)};
  const nlohmann::ordered_json record = make_record(parts);
  write_text_file(beside(".html"), record_report(record));
  write_text_file(output_, record.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  Qualification result{.verdict = overall(gates), .gates = std::move(gates), .plan_sha256 = hash_, .record = output_, .report = beside(".html"), .plan = beside(".plan.json")};
  return result;
}

Qualification Run::go() {
  if (auto found = earlier()) return std::move(*found);
  freeze();
  if (options_.freeze_only) return {.plan_sha256 = hash_, .plan = beside(".plan.json")};
  {
    // The executor says what it is; the smallest one will do.
    DecodeArm arm = decode_arm(kArms[0]);
    arm.graphs = false;
    CachedDecode probe(device_, model_, arm, {.documents = 1, .tokens = 16}, workers_);
    description_ = probe.executor().description();
  }
  journal_.emplace(beside(".journal.jsonl"), nlohmann::json{{"journal", "keel-qualification"}, {"version", 1}, {"plan_sha256", hash_}, {"keel_version", options_.version}, {"keel_commit", options_.commit}, {"device", description_}, {"cpu_target", chosen_target()}});
  if (journal_->find("begun", "", 0) == nullptr) {
    const Journal::Entry entry{.gate = "begun", .arm = "", .item = 0, .found = utc_time()};
    journal_->add({&entry, 1});
  }
  if (journal_->resumed() > 1) log_info("goes on with {} entries of an earlier run", journal_->resumed());

  std::vector<GateResult> gates;
  bool stopped = false, failed = false;
  for (const char* gate : kGates) {
    if (stopped || failed) {
      gates.push_back({.gate = gate, .why = failed ? "an earlier gate failed" : "left for a later run"});
      continue;
    }
    const std::string name = gate;
    gates.push_back(name == "production" ? production() : name == "nll" ? nll() : ask(name));
    log_info("{}: {}: {}", gate, keel::name(gates.back().verdict), gates.back().why);
    failed = gates.back().verdict != Verdict::pass;
    stopped = options_.stop_after == name;
  }
  if (!failed && stopped && gates.back().verdict == Verdict::not_reached) {
    return {.verdict = Verdict::not_reached, .gates = std::move(gates), .plan_sha256 = hash_, .plan = beside(".plan.json")};
  }
  return write(std::move(gates));
}

}  // namespace

std::filesystem::path qualification_folder() {
  const char* data = std::getenv("XDG_DATA_HOME");
  if (data != nullptr && *data != '\0') return fs::path(data) / "keel/qualifications";
  const char* home = std::getenv("HOME");
  return home != nullptr && *home != '\0' ? fs::path(home) / ".local/share/keel/qualifications" : fs::path();
}

Qualification qualify(const QualifyOptions& options) {
  if (!options.stop_after.empty() && std::find(std::begin(kGates), std::end(kGates), options.stop_after) == std::end(kGates)) {
    refuse_option("--stop-after {}: wanted {}", options.stop_after, fmt::join(kGates, ", "));
  }
  if (!options.broken.empty()) find_fault(options.broken);
  Run run(options);
  return run.go();
}

}  // namespace keel
