// A prefill step of a whole model against the library calls that it cannot do without: the same products by cuBLASLt and the same
// attention by cuDNN, on the same weights and shapes, in turn and for seconds, so that both meet the same power limit.
//
//   prefill_step_bench MODEL [PROMPTS TOKENS [ROUNDS [FORMAT [PROMPTS_A_STEP]]]]     dummy weights, f16; default 8 × 8,192, 4 rounds, k16v8
//
// A step holds at most 65,536 tokens unless told otherwise; more prompts make several steps, each followed by its bare calls. The bare arm leaves out what the model leaves out (past the last layer's attention only the rows whose logits are wanted).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/random.h"
#include "device/cuda.h"
#include "files/model_path.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/gemm/gemm_kernels.h"
#include "kernels/paged_attention/cudnn_sdpa.h"
#include "model/executor.h"

namespace keel::cuda {
namespace {

struct Matrix {
  std::int64_t rows, columns;
  DeviceBuffer<std::uint16_t> weights;
  GemmWeights view() const { return {.dtype = DType::f16, .rows = rows, .columns = columns, .dense = weights.data()}; }
};

Matrix upload(std::initializer_list<WeightMatrix> parts) {
  Matrix m{.rows = 0, .columns = parts.begin()->columns, .weights = {}};
  for (const WeightMatrix& part : parts) m.rows += part.rows;
  m.weights = DeviceBuffer<std::uint16_t>(static_cast<std::size_t>(m.rows * m.columns), "weights");
  std::uint16_t* to = m.weights.data();
  for (const WeightMatrix& part : parts) {
    check(cudaMemcpy(to, part.data, static_cast<std::size_t>(part.rows * part.columns * 2), cudaMemcpyHostToDevice), "weights");
    to += part.rows * part.columns;
  }
  return m;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The model's products and attention alone, one layer's weights from two layers in turn.
class Bare {
 public:
  Bare(const LoadedModel& model, std::int64_t prompts, std::int64_t tokens)
      : config_(model.config),
        rows_(prompts * tokens),
        gemm_(DType::f16, rows_, 0, default_gemm_cache()),
        x_(rows_ * config_.hidden, "x"),
        qkv_(rows_ * (config_.heads + 2 * config_.kv_heads) * config_.head_dim, "queries, keys and values"),
        attended_(rows_ * config_.heads * config_.head_dim, "attention"),
        gate_up_(rows_ * 2 * config_.intermediate, "gate and up"),
        y_(rows_ * config_.hidden, "y") {
    for (std::size_t i = 0; i < 2; ++i) {
      const LayerWeights& w = model.weights.layers[i];
      layers_.push_back({upload({w.q, w.k, w.v}), upload({w.o}), upload({w.gate, w.up}), upload({w.down})});
    }
    fill_random(stream_, x_.data(), DType::f16, rows_ * config_.hidden, 1);
    const std::int64_t width = config_.heads * config_.head_dim, stride = width + 2 * config_.kv_heads * config_.head_dim;
    shape_ = {.dtype = DType::f16, .heads = config_.heads, .kv_heads = config_.kv_heads, .head_dim = config_.head_dim,
              .softmax_scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)), .square = true, .batch = prompts, .q_tokens = tokens,
              .kv_tokens = tokens, .q_stride = stride, .kv_stride = stride, .out_stride = width, .q_sequence = tokens * stride,
              .kv_sequence = tokens * stride, .out_sequence = tokens * width};
    fill_random(stream_, qkv_.data(), DType::f16, static_cast<std::int64_t>(qkv_.size()), 2);
    shape_ = sdpa_.in_faster_form(stream_, shape_, attention());
    for (const Product& p : products()) gemm_.prepare(stream_, args(p, 0));
    stream_.synchronize();
  }

  // Milliseconds: of all, of the products, of attention.
  struct Times {
    double all, products, attention;
  };
  Times step() {
    Event begin, end;
    begin.record(stream_);
    run(true, true);
    end.record(stream_);
    return {end.milliseconds_since(begin), 0, 0};
  }
  Times parts() {
    Event begin, middle, end;
    begin.record(stream_);
    run(true, false);
    middle.record(stream_);
    run(false, true);
    end.record(stream_);
    const double attention = end.milliseconds_since(middle);
    return {0, middle.milliseconds_since(begin), attention};
  }

 private:
  struct Layer {
    Matrix qkv, o, gate_up, down;
  };
  struct Product {
    Matrix Layer::*matrix;
    const void* x;
    void* out;
  };
  std::vector<Product> products() {
    return {{&Layer::qkv, x_.data(), qkv_.data()}, {&Layer::o, attended_.data(), y_.data()}, {&Layer::gate_up, x_.data(), gate_up_.data()}, {&Layer::down, gate_up_.data(), y_.data()}};
  }
  GemmArgs args(const Product& p, std::int64_t layer) {
    return {.weights = (layers_[static_cast<std::size_t>(layer % 2)].*p.matrix).view(), .x = p.x, .tokens = rows_, .out = p.out, .out_type = DType::f16};
  }
  SdpaArgs attention() {
    const std::int64_t width = config_.heads * config_.head_dim;
    return {.q = qkv_.data(), .k = qkv_.data() + width, .v = qkv_.data() + width + config_.kv_heads * config_.head_dim, .out = attended_.data()};
  }
  void run(bool with_products, bool with_attention) {
    const auto all = products();
    for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
      if (with_products) gemm_.run(stream_, args(all[0], layer));
      if (with_attention) sdpa_.run(stream_, shape_, attention());
      if (layer + 1 == config_.layers || !with_products) continue;
      for (std::size_t i = 1; i < all.size(); ++i) gemm_.run(stream_, args(all[i], layer));
    }
  }

  const ModelConfig& config_;
  std::int64_t rows_;
  Stream stream_;
  Gemm gemm_;
  CudnnSdpa sdpa_;
  SdpaShape shape_;
  DeviceBuffer<std::uint16_t> x_, qkv_, attended_, gate_up_, y_;
  std::vector<Layer> layers_;
};

constexpr std::int64_t kStepTokens = 65536;

void run(int argc, char** argv) {
  const auto number = [&](int i, std::int64_t otherwise) { return argc > i ? std::atoll(argv[i]) : otherwise; };
  const std::int64_t prompts = number(2, 8), tokens = number(3, 8192), rounds = number(4, 4);
  const std::int64_t at_once = number(6, std::clamp<std::int64_t>(kStepTokens / tokens, 1, prompts)), rows = at_once * tokens, steps = prompts / at_once;
  if (prompts % at_once != 0) fail("{} prompts are not whole steps of {}: give PROMPTS_A_STEP", prompts, at_once);
  const LoadedModel model = load_model(find_model(argv[1]), {.format = LoadFormat::dummy, .dtype = DType::f16});
  const ModelConfig& config = model.config;
  WorkerPool workers(0);
  const KvGeometry geometry{config.layers, config.kv_heads, config.head_dim, 16};
  const KvLayout layout(parse_kv_format(argc > 5 ? argv[5] : "k16v8", DType::f16), geometry, page_order(keel::Device::cuda));
  const auto executor = make_executor(keel::Device::cuda, model, layout,
                                      {.max_tokens = rows, .max_sequences = at_once, .max_logit_rows = at_once, .max_context = tokens, .graphs = false, .attention_plans = true}, workers);
  const std::int64_t pages_each = (tokens + 15) / 16;
  KvPool pool(layout, KvScales::unit(geometry), prompts * pages_each * layout.page_bytes(), page_memory(keel::Device::cuda));
  executor->bind(pool);

  std::vector<PageId> pages(static_cast<std::size_t>(prompts * pages_each));
  for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<PageId>(i);
  std::vector<StepRows> prompts_of(static_cast<std::size_t>(steps));
  for (std::int64_t prompt = 0; prompt < prompts; ++prompt) {
    StepRows& step = prompts_of[static_cast<std::size_t>(prompt / at_once)];
    const std::int64_t first = prompt % at_once * tokens;
    for (std::int64_t i = 0; i < tokens; ++i) {
      step.tokens.push_back(static_cast<std::int32_t>(random_u64(9, prompt * tokens + i) % static_cast<std::uint64_t>(config.vocabulary)));
      step.positions.push_back(static_cast<std::int32_t>(i));
      step.slots.push_back((prompt * pages_each + i / 16) * 16 + i % 16);
    }
    step.sequences.push_back({.first_row = first, .rows = tokens, .context = tokens, .pages = pages.data() + prompt * pages_each});
    step.logit_rows.push_back(first + tokens - 1);
  }
  const std::vector<std::optional<DeviceSampling>> greedy(static_cast<std::size_t>(at_once), DeviceSampling{.top_p = 1});

  Bare bare(model, at_once, tokens);
  Stream stream;
  std::vector<double> ours, calls;
  for (std::int64_t round = 0; round <= rounds; ++round) {
    double steps_ms = 0, bare_ms = 0;
    for (const StepRows& step : prompts_of) {
      Event begin, end;
      check(cudaDeviceSynchronize(), "a step");
      begin.record(stream);
      executor->forward(step, greedy);  // ends with the sampled tokens on the host
      end.record(stream);
      steps_ms += end.milliseconds_since(begin);
      bare_ms += bare.step().all;
      if (round == 0) break;  // a warm-up
    }
    if (round == 0) continue;
    const Bare::Times parts = bare.parts();
    ours.push_back(steps_ms);
    calls.push_back(bare_ms);
    fmt::print("round {}: {} steps {:.1f} ms, bare calls {:.1f} ms, {:.4f}; of one step products alone {:.1f}, attention alone {:.1f}\n", round, steps, steps_ms, bare_ms,
               steps_ms / bare_ms, parts.products, parts.attention);
    std::fflush(stdout);
  }
  fmt::print("{} prompts of {} tokens in {} steps, {}, {}: {:.1f} ms, {:.0f} tokens/s; bare calls {:.1f} ms; median ratio {:.4f}\n", prompts, tokens, steps,
             to_string(layout.format()), executor->description(), median(ours), static_cast<double>(prompts * tokens) / median(ours) * 1e3, median(calls), median(ours) / median(calls));
}

}  // namespace
}  // namespace keel::cuda

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "prefill_step_bench MODEL [PROMPTS TOKENS [ROUNDS [FORMAT [PROMPTS_A_STEP]]]]\n");
    return 2;
  }
  try {
    keel::cuda::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
