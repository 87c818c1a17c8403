#include "lab/qualify/production.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>

#include "base/option_error.h"
#include "lab/qualify/attention_check.h"
#include "lab/qualify/production_faults.h"
#include "model/attention_router.h"

namespace keel {

using Json = nlohmann::json;

// One format's cache and executor with some sequences of text in it.
struct ProductionGate::Scene {
  static constexpr std::int64_t kSequences = 4, kLongest = 192;

  Scene(const ProductionGate& gate, const DecodeArm& arm)
      : gate(gate), decode(gate.device_, gate.model_, arm, {.documents = kSequences, .tokens = kLongest}, gate.workers_) {
    for (std::int64_t i = 0; i < decode.pool().pages(); ++i) tables[static_cast<std::size_t>(i % kSequences)].push_back(static_cast<PageId>(i));
    reset(false);
  }

  // Nothing is cached any more, and whatever is read past what was written is no number.
  void reset(bool watched) {
    const KvLayout& layout = decode.pool().layout();
    std::fill(std::begin(lengths), std::end(lengths), 0);
    check.emplace(gate.model_.config, decode.pool(), gate.device_ == Device::cuda ? AttentionArithmetic::cuda : AttentionArithmetic::cpu, gate.decode_is_plain_, gate.workers_);
    const std::vector<std::byte> keys(static_cast<std::size_t>(layout.key_page_bytes()), std::byte{0xff}),
        values(static_cast<std::size_t>(layout.value_page_bytes()), std::byte{0xff});
    for (std::int64_t layer = 0; layer < layout.geometry().layers; ++layer) {
      for (std::int64_t page = 0; page < decode.pool().pages(); ++page) decode.pool().write_page(layer, static_cast<PageId>(page), keys, values);
    }
    decode.executor().probe_attention(watched ? &*check : nullptr);
  }

  // The next `count` tokens of a sequence, as part of a step.
  struct Part {
    std::int64_t sequence, count;
  };
  StepRows rows_of(const std::vector<Part>& parts) {
    const std::int64_t page_size = decode.pool().layout().geometry().page_size;
    StepRows rows;
    for (const Part& part : parts) {
      std::int64_t& length = lengths[static_cast<std::size_t>(part.sequence)];
      const std::vector<PageId>& table = tables[static_cast<std::size_t>(part.sequence)];
      rows.sequences.push_back({.first_row = static_cast<std::int64_t>(rows.tokens.size()), .rows = part.count, .context = length + part.count, .pages = table.data()});
      for (std::int64_t i = 0; i < part.count; ++i, ++length) {
        rows.tokens.push_back(gate.tokens_[static_cast<std::size_t>((part.sequence * 140 + length) % kProductionTokens)]);
        rows.positions.push_back(static_cast<std::int32_t>(length));
        rows.slots.push_back(table[static_cast<std::size_t>(length / page_size)] * page_size + length % page_size);
      }
      rows.logit_rows.push_back(static_cast<std::int64_t>(rows.tokens.size()) - 1);
    }
    return rows;
  }
  // `given` is what the executor gets where that is not the truth.
  std::vector<float> step(const std::vector<Part>& parts, const std::function<void(StepRows&)>& falsify = {}) {
    const StepRows truth = rows_of(parts);
    std::vector<std::int64_t> names;
    for (const Part& part : parts) names.push_back(part.sequence);
    check->expect(truth, names);
    StepRows given = truth;
    if (falsify) falsify(given);
    const std::span<const float> logits = decode.executor().forward(given, {}).logits;
    return {logits.begin(), logits.end()};
  }

  // Every kind of attention call there is: whole prompts, a chunk that is worth gathering and one that is not beside decode rows,
  // decode rows alone.
  static std::vector<std::vector<Part>> steps() {
    const std::vector<Part> decode{{0, 1}, {1, 1}, {2, 1}, {3, 1}};
    return {{{0, 100}, {1, 37}, {2, 16}, {3, 5}}, {{2, 1}, {3, 1}, {0, kLongChunk}, {1, kShortChunk}}, decode, decode, decode};
  }
  static constexpr std::int64_t kPromptRows = 100 + 37 + 16 + 5, kDecodeRows = 2 + 3 * 4;
  static constexpr std::int64_t kLongChunk = 70, kShortChunk = kLeastGatherRows - 4;

  const ProductionGate& gate;
  CachedDecode decode;
  std::optional<AttentionCheck> check;
  std::vector<PageId> tables[kSequences];
  std::int64_t lengths[kSequences] = {};
};

ProductionGate::ProductionGate(Device device, const LoadedModel& model, const DecodeArm& candidate, KvFormat control,
                               std::span<const std::int32_t> tokens, WorkerPool& workers, const std::string& broken)
    : device_(device), model_(model), candidate_(candidate), control_(control), tokens_(tokens), workers_(workers) {
  check(static_cast<std::int64_t>(tokens.size()) >= kProductionTokens, "text enough for the scenario");
  if (model.config.max_positions < Scene::kLongest) {
    fail("the production gate's scenario takes {} positions, and the model has {}", Scene::kLongest, model.config.max_positions);
  }
  if (!broken.empty()) broken_ = &find_fault(broken);
  const auto sixteen = [](DType type) { return bits(type) == 16 ? DType::f16 : type; };
  for (const CudaCell& cell : cuda_cells()) {
    if (device != Device::cuda || cell.head_dim != model.config.head_dim) continue;
    if (cell.format != KvFormat{sixteen(candidate.format.key), sixteen(candidate.format.value)}) continue;
    decode_is_plain_ = !cell.decode.empty();
    native_prefill_ = cell.native_prefill.empty();
  }
  const bool cuda = device == Device::cuda;
  const auto add = [&](std::string name, std::function<ProductionFinding()> run) { checks_.push_back({std::move(name), std::move(run)}); };
  // A fault that one of the checks must notice.
  const auto add_fault = [&](const char* name, std::function<ProductionFinding()> run) {
    add(std::string("fault: ") + name, [run = std::move(run)] {
      ProductionFinding finding = run();
      finding.passed = finding.applies && !finding.passed;
      return finding;
    });
  };
  add("effective types and bytes", [this] { return effective(); });
  add("storage without aliases", [this] { return storage(false); });
  add("writer, every 16-bit input", [this] { return writer(true); });
  add("attention calls against raw pages", [this] { return attention(); });
  add("routes as planned", [this] { return routes(); });
  if (cuda) add("graph inputs change between replays", [this] { return graphs(false); });
  for (const FaultPlan& plan : fault_plans()) add("fault: " + plan.name, [this, &plan] { return fault(plan); });
  add_fault("requested format is not effective", [this] { return other_format(); });
  add_fault("keys and values share storage", [this] { return storage(true); });
  add_fault("no saturation", [this] { return writer(false); });
  if (cuda) add_fault("stale graph inputs", [this] { return graphs(true); });
}

ProductionGate::~ProductionGate() = default;

// A GPU's weights are uploaded once for all items.
ProductionGate::Scene& ProductionGate::scene(bool graphs, bool watched) {
  std::unique_ptr<Scene>& one = graphs ? replayed_ : eager_;
  if (!one) {
    DecodeArm arm = candidate_;
    arm.graphs = graphs;
    one = std::make_unique<Scene>(*this, arm);
  }
  one->reset(watched);
  return *one;
}

// What the cache really is, from the pool that the executor was bound to.
ProductionFinding ProductionGate::effective() {
  Scene& scene = this->scene(false, false);
  KvPool& pool = scene.decode.pool();
  const KvLayout& layout = pool.layout();
  const std::int64_t owed = formula_bytes(candidate_.format, layout.geometry());
  const bool bytes_agree = layout.bytes_per_token() == owed && pool.physical_bytes() == owed * pool.slots();
  const bool scales_agree = pool.scales().keys == candidate_.scales.keys && pool.scales().values == candidate_.scales.values;
  return {.passed = layout.format() == candidate_.format && bytes_agree && scales_agree,
          .detail = {{"requested", to_string(candidate_.format)},
                     {"effective", to_string(layout.format())},
                     {"bytes_per_token", layout.bytes_per_token()},
                     {"bytes_per_token_by_formula", owed},
                     {"physical_bytes", pool.physical_bytes()},
                     {"slots", pool.slots()},
                     {"scales", pool.scales().description()},
                     {"executor", scene.decode.executor().description()}}};
}

// A pool of the control's format where the candidate's was asked for: whether its type and bytes could be taken for the candidate's.
ProductionFinding ProductionGate::other_format() {
  if (control_ == candidate_.format) return {.applies = false, .detail = {{"why", "control and candidate are one format"}}};
  DecodeArm arm = candidate_;
  arm.format = control_;
  arm.graphs = false;
  Scene other(*this, arm);
  const KvLayout& layout = other.decode.pool().layout();
  return {.passed = layout.format() == candidate_.format || layout.bytes_per_token() == formula_bytes(candidate_.format, layout.geometry()),
          .detail = {{"effective", to_string(layout.format())}, {"bytes_per_token", layout.bytes_per_token()}}};
}

// Address ranges of all layers' keys and values do not meet, and a stamp written to each page is still there when all have been.
ProductionFinding ProductionGate::storage(bool aliased) {
  Scene& scene = this->scene(false, false);
  KvPool& pool = scene.decode.pool();
  const KvLayout& layout = pool.layout();
  std::vector<std::pair<const std::byte*, const std::byte*>> ranges;
  for (std::int64_t layer = 0; layer < layout.geometry().layers; ++layer) {
    KvLayerView view = pool.layer(layer);
    if (aliased) view.values = view.keys;
    ranges.emplace_back(view.keys, view.keys + pool.pages() * layout.key_page_bytes());
    ranges.emplace_back(view.values, view.values + pool.pages() * layout.value_page_bytes());
  }
  std::sort(ranges.begin(), ranges.end());
  std::int64_t bytes = 0, meeting = 0;  // each byte once
  const std::byte* end = nullptr;
  for (const auto& [first, last] : ranges) {
    meeting += end != nullptr && first < end;
    const std::byte* from = end == nullptr ? first : std::max(first, end);
    if (last > from) bytes += last - from;
    end = end == nullptr ? last : std::max(end, last);
  }
  std::int64_t lost = 0;
  std::vector<std::byte> keys(static_cast<std::size_t>(layout.key_page_bytes())), values(static_cast<std::size_t>(layout.value_page_bytes()));
  const auto stamp = [&](std::int64_t layer, std::int64_t page, int side) { return static_cast<std::byte>((layer * 131 + page * 29 + side * 17) % 251); };
  for (const bool write : {true, false}) {
    for (std::int64_t layer = 0; layer < layout.geometry().layers; ++layer) {
      for (std::int64_t page = 0; page < pool.pages(); ++page) {
        if (write) {
          std::fill(keys.begin(), keys.end(), stamp(layer, page, 0));
          std::fill(values.begin(), values.end(), stamp(layer, page, 1));
          pool.write_page(layer, static_cast<PageId>(page), keys, values);
        } else {
          pool.read_page(layer, static_cast<PageId>(page), keys, values);
          lost += std::count_if(keys.begin(), keys.end(), [&](std::byte b) { return b != stamp(layer, page, 0); });
          lost += std::count_if(values.begin(), values.end(), [&](std::byte b) { return b != stamp(layer, page, 1); });
        }
      }
    }
  }
  return {.passed = meeting == 0 && lost == 0 && bytes == pool.physical_bytes(),
          .detail = {{"ranges", ranges.size()}, {"ranges_that_meet", meeting}, {"bytes_aliases_once", bytes}, {"physical_bytes", pool.physical_bytes()}, {"stamped_bytes_lost", lost}}};
}

namespace {

// `count` numbers whose codes count up from `first`, or down from the last code there is.
std::vector<float> numbers_of(DType type, std::int64_t first, std::int64_t count, bool down) {
  std::vector<float> numbers;
  for (std::int64_t i = first; i < first + count; ++i) {
    const auto code = static_cast<std::uint32_t>(i & 0xffff);
    numbers.push_back(static_cast<float>(decode_stored(type, down ? 0xffff - code : code)));
  }
  return numbers;
}

// What a conversion that does not saturate would have left.
void unsaturate(DType type, std::vector<std::uint32_t>& codes, std::span<const float> x, const float* scales, std::int64_t head_dim) {
  if (type != DType::e4m3) return;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    if (std::abs(x[i] / scales[i / static_cast<std::size_t>(head_dim)]) > 464) codes[i] |= 0x7f;
  }
}

}  // namespace

// Every 16-bit number there is, as a key and (in reverse order) as a value, through the writer that steps use, in every layer.
ProductionFinding ProductionGate::writer(bool saturates) {
  Scene& scene = this->scene(false, false);
  KvPool& pool = scene.decode.pool();
  const KvLayout& layout = pool.layout();
  const KvGeometry& geometry = layout.geometry();
  const KvFormat format = layout.format();
  if (!saturates && format.key != DType::e4m3 && format.value != DType::e4m3) return {.applies = false, .detail = {{"why", "no side saturates"}}};
  const std::int64_t width = geometry.kv_heads * geometry.head_dim, tokens = (65536 + width - 1) / width, at_once = std::min<std::int64_t>(pool.slots(), 256);
  std::vector<DType> inputs{DType::f16, DType::bf16};
  if (device_ == Device::cuda) inputs = {model_.config.dtype == DType::bf16 ? DType::bf16 : DType::f16};  // all that its writer is given
  const std::int64_t layers = saturates ? geometry.layers : 1;
  std::int64_t compared = 0, wrong = 0;
  std::string first;
  std::vector<std::byte> keys(static_cast<std::size_t>(layout.key_page_bytes())), values(static_cast<std::size_t>(layout.value_page_bytes()));
  const auto write = [&](DType input, std::int64_t layer, std::int64_t begin, std::int64_t count) {
    const KvLayerView view = pool.layer(layer);
    const std::vector<float> k = numbers_of(input, begin * width, count * width, false), v = numbers_of(input, begin * width, count * width, true);
    std::vector<std::int64_t> slots;
    for (std::int64_t i = 0; i < count; ++i) slots.push_back(pool.slots() - 1 - i);
    scene.decode.executor().store(layer, k, v, slots);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t page = slots[static_cast<std::size_t>(i)] / geometry.page_size, slot = slots[static_cast<std::size_t>(i)] % geometry.page_size;
      if (i == 0 || slot == geometry.page_size - 1) pool.read_page(layer, static_cast<PageId>(page), keys, values);
      const auto row = [&](const std::vector<float>& all) { return std::span(all).subspan(static_cast<std::size_t>(i * width), static_cast<std::size_t>(width)); };
      const StoredToken owed = encode_token(layout, row(k), row(v), view.key_scales, view.value_scales);
      StoredToken found = read_token(layout, keys, values, slot);
      if (!saturates) {
        unsaturate(format.key, found.keys, row(k), view.key_scales, geometry.head_dim);
        unsaturate(format.value, found.values, row(v), view.value_scales, geometry.head_dim);
      }
      const std::string what = difference(layout, found, owed, row(v));
      wrong += !what.empty();
      if (!what.empty() && first.empty()) first = fmt::format("{} inputs, layer {}: {}", name(input), layer, what);
    }
    compared += 2 * width * count;
  };
  for (const DType input : inputs) {
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      for (std::int64_t begin = 0; begin < tokens; begin += at_once) write(input, layer, begin, std::min(at_once, tokens - begin));
    }
  }
  Json types = Json::array();
  for (const DType input : inputs) types.push_back(name(input));
  Json detail{{"inputs", types}, {"layers", layers}, {"elements_compared", compared}, {"tokens_wrong", wrong}};
  if (!first.empty()) detail["first"] = first;
  return {.passed = wrong == 0, .detail = detail};
}

ProductionFinding ProductionGate::attention() {
  Scene& scene = this->scene(false, true);
  const auto steps = Scene::steps();
  std::optional<FaultScene> target;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (broken_ != nullptr && i == 2) {  // the first step of nothing but decode rows
      target.emplace(FaultScene{.config = model_.config, .pool = scene.decode.pool(), .check = *scene.check, .table = scene.tables[0], .other_table = scene.tables[1],
                                .position = scene.lengths[0], .layer = model_.config.layers / 2});
      if (const std::string why = broken_->refusal(*target); !why.empty()) refuse_option("the fault '{}' cannot be made here: {}", broken_->name, why);
      if (broken_->at_layer) scene.check->inject(target->layer, [&](AttentionCall& call) { broken_->at_layer(*target, call); });
    }
    scene.step(steps[i], [&](StepRows& rows) {
      if (target && i == 2 && broken_->in_step) broken_->in_step(*target, rows);
    });
    scene.check->inject(-1, {});
  }
  const AttentionFindings& found = scene.check->findings();
  const auto calls = static_cast<std::int64_t>(Scene::steps().size()) * model_.config.layers;
  Json detail{{"calls", found.calls},
              {"calls_planned", calls},
              {"rows", found.rows},
              {"elements_compared", found.elements},
              {"elements_wrong", found.wrong_elements},
              {"largest_error_of_bound", std::isfinite(found.worst) ? Json(found.worst) : Json()},
              {"tokens_compared", found.tokens},
              {"tokens_wrong", found.wrong_tokens},
              {"tokens_changed", found.changed_tokens}};
  if (!found.first.empty()) detail["first"] = found.first;
  return {.passed = found.clean() && found.calls == calls, .detail = detail};
}

ProductionFinding ProductionGate::routes() {
  const bool cuda = device_ == Device::cuda;
  Scene& scene = this->scene(cuda, !cuda);
  const RouteCounts before = scene.decode.executor().routes();
  for (const auto& parts : Scene::steps()) scene.step(parts);
  std::map<std::string, std::int64_t> planned, counted;
  if (cuda) {  // a fallback's reason is told, not planned
    planned[decode_is_plain_ ? "plain" : "decode"] += Scene::kDecodeRows;
    planned[native_prefill_ ? "fresh" : "plain"] += Scene::kPromptRows;
    planned[native_prefill_ ? "gather" : "plain"] += Scene::kLongChunk;
    planned["plain"] += Scene::kShortChunk;
  } else {  // one route, whose rows are counted where attention was called
    planned["paged"] = (Scene::kDecodeRows + Scene::kPromptRows + Scene::kLongChunk + Scene::kShortChunk) * model_.config.layers;
    counted["paged"] = scene.check->findings().rows;
  }
  Json told = counted;
  for (const auto& [route, rows] : scene.decode.executor().routes()) {
    const auto old = before.find(route);
    const std::int64_t added = rows - (old == before.end() ? 0 : old->second);
    if (added == 0) continue;
    counted[route.substr(0, route.find(':'))] += added;
    told[route] = added;
  }
  return {.passed = counted == planned, .detail = {{"rows_planned", planned}, {"rows_counted", told}}};
}

// The same steps with and without graphs. A replay that reads what an earlier one was given answers that one's question.
ProductionFinding ProductionGate::graphs(bool stale) {
  Scene &eager = scene(false, false), &replayed = scene(true, false);
  std::vector<std::int32_t> last;
  double furthest = 0, range = 0, moved = INFINITY;
  std::vector<float> before;
  for (const auto& parts : Scene::steps()) {
    const std::vector<float> owed = eager.step(parts);
    const std::vector<float> found = replayed.step(parts, [&](StepRows& rows) {
      const std::vector<std::int32_t> now = rows.tokens;
      if (stale && last.size() == now.size()) rows.tokens = last;
      last = now;
    });
    if (parts.size() != owed.size() / static_cast<std::size_t>(model_.config.vocabulary) || parts.front().count != 1 || parts.back().count != 1) continue;
    const auto [least, most] = std::minmax_element(owed.begin(), owed.end());
    range = std::max(range, static_cast<double>(*most - *least));
    const auto distance = [](const std::vector<float>& a, const std::vector<float>& b) {
      double largest = 0;
      for (std::size_t i = 0; i < a.size(); ++i) {
        const double apart = std::abs(static_cast<double>(a[i]) - b[i]);
        if (!std::isfinite(apart)) return static_cast<double>(INFINITY);  // std::max would drop what is no number
        largest = std::max(largest, apart);
      }
      return largest;
    };
    furthest = std::max(furthest, distance(found, owed));
    if (!before.empty()) moved = std::min(moved, distance(found, before));
    before = found;
  }
  // Replays and launches run the same kernels; products may be cut differently for a padded batch.
  const double bound = 0.02 * range;
  return {.passed = furthest <= bound && moved > bound,
          .detail = {{"largest_difference_from_eager", furthest}, {"bound", bound}, {"least_difference_between_replays", moved}}};
}

ProductionFinding ProductionGate::fault(const FaultPlan& plan) {
  Scene& scene = this->scene(false, true);
  scene.step({{0, 40}, {1, 23}});
  check(scene.check->findings().calls > 0, "the prompts' attention is watched");
  const AttentionFindings clean = scene.check->findings();
  if (!clean.clean()) return {.passed = false, .detail = {{"why", "the scenario is wrong before the fault: " + clean.first}}};
  FaultScene target{.config = model_.config, .pool = scene.decode.pool(), .check = *scene.check, .table = scene.tables[0], .other_table = scene.tables[1],
                    .position = 40, .layer = model_.config.layers / 2};
  if (const std::string why = plan.refusal(target); !why.empty()) return {.applies = false, .detail = {{"why", why}}};
  if (plan.at_layer) scene.check->inject(target.layer, [&](AttentionCall& call) { plan.at_layer(target, call); });
  scene.step({{0, 1}, {1, 1}}, [&](StepRows& rows) {
    if (plan.in_step) plan.in_step(target, rows);
  });
  const AttentionFindings& found = scene.check->findings();
  return {.passed = !found.clean(), .detail = {{"detected_by", found.by()}, {"first", found.first}}};
}

}  // namespace keel
