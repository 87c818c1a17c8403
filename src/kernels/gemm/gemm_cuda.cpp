#include "kernels/gemm/gemm_cuda.h"

#include <algorithm>
#include <array>
#include <functional>

#include "base/error.h"
#include "base/log.h"
#include "device/cuda.h"
#include "kernels/gemm/gemm_choice.h"
#include "kernels/gemm/gemm_kernels.h"
#include "kernels/gemm/library_gemm.h"
#include "kernels/gemm/skinny_gemm.h"
#include "kernels/gemm/together.h"
#include "kernels/rms_norm/rms_norm_cuda.h"
#include "kernels/silu_mul/silu_mul_cuda.h"

namespace keel::cuda {
namespace {

constexpr int kAlgorithms = 12;                            // of cuBLASLt that are timed
constexpr std::ptrdiff_t kTogether = 10;                   // of the fastest alone that are timed among other products
constexpr std::int64_t kSmallBytes = 2 << 20;              // weights that are read in less time than a launch takes: of their products
constexpr std::size_t kOfSmall = 6;                        // the likely best alone are timed
constexpr std::int64_t kMostSkinnyTokens = 256;            // past which AWQ is surely expanded
constexpr std::int64_t kRotationBytes = 200 << 20;         // of weights between two uses of the same: more than the L2 holds
constexpr std::int64_t kMostRandomBytes = 512 << 20;       // of x
constexpr std::int64_t kMostNormedColumns = 32768;         // add_rms_norm's; wider products are timed in a row of their own

bool is_awq(const GemmArgs& args) { return args.weights.packed != nullptr; }

// Without what cuBLASLt cannot do.
GemmArgs ungated(GemmArgs args) {
  if (args.gate_up != nullptr) args.out = args.gate_up;
  args.gate_up = nullptr;
  return args;
}

GemmArgs first_tokens(GemmArgs args, std::int64_t tokens) {
  args.tokens = std::min(args.tokens, tokens);
  return args;
}

// Launches of `launch_tokens` rows of x each.
void run_skinny(cudaStream_t stream, const GemmArgs& args, const GemmChoice& choice) {
  for (std::int64_t first = 0; first < args.tokens; first += choice.launch_tokens) {
    GemmArgs part = args;
    part.tokens = std::min(choice.launch_tokens, args.tokens - first);
    part.x = static_cast<const std::byte*>(args.x) + first * args.weights.columns * 2;
    const std::int64_t width = args.gate_up != nullptr ? args.weights.rows / 2 : args.weights.rows;
    part.out = static_cast<std::byte*>(args.out) + first * width * bits(args.out_type) / 8;
    skinny_gemm(stream, part, choice.skinny);
  }
}

// Milliseconds: the median of a few replays.
double time_of_run(cudaStream_t stream, const std::function<void()>& run) {
  const StepGraph graph(stream, run);
  graph.launch(stream);
  std::array<double, 3> times;
  for (double& time : times) {
    Event begin, end;
    begin.record(stream);
    graph.launch(stream);
    end.record(stream);
    time = end.milliseconds_since(begin);
  }
  std::sort(times.begin(), times.end());
  return times[1];
}

// Every way that keel's own kernel can do it, the likely best first.
std::vector<GemmChoice> skinny_choices(const GemmArgs& args) {
  std::vector<GemmChoice> choices;
  if (args.tokens > (is_awq(args) ? kMostSkinnyTokens : kSkinnyTokens)) return choices;
  for (std::int64_t launch = kSkinnyTokens; launch >= 8; launch /= 2) {
    if (launch < kSkinnyTokens && launch >= args.tokens) continue;  // the same as one launch of 64
    for (const SkinnyPlan& plan : skinny_plans(first_tokens(args, launch))) choices.push_back({.skinny = plan, .launch_tokens = launch});
    if (!choices.empty()) break;
  }
  return choices;
}

}  // namespace

std::int64_t GemmWeights::bytes() const {
  const std::int64_t bias_bytes = bias != nullptr ? rows * 2 : 0;
  if (packed == nullptr) return rows * columns * 2 + bias_bytes;
  const std::int64_t padded = (rows + kAwqTileRows - 1) / kAwqTileRows * kAwqTileRows;
  return padded * columns / 2 + padded * (columns / kAwqGroup) * 4 + bias_bytes;
}

struct Gemm::State {
  DType dtype;
  std::int64_t max_tokens;
  LibraryGemm library;
  DeviceBuffer<std::uint16_t> scratch;
  GemmChoices choices;

  void check_args(const GemmArgs& args) const {
    const GemmWeights& w = args.weights;
    keel::check(w.dtype == dtype && (args.out_type == dtype || args.out_type == DType::f32), "gemm: f16 or bf16 as constructed; out the same or f32");
    keel::check(args.tokens >= 0 && args.tokens <= max_tokens, "gemm: tokens within max_tokens");
    keel::check(w.rows > 0 && w.columns > 0 && (w.dense != nullptr) != (w.packed != nullptr), "gemm: weights are dense or AWQ");
    keel::check(args.gate_up == nullptr || (w.rows % 16 == 0 && args.out_type == dtype && !args.accumulate), "gemm: eight gates and eight gated in turn");
    if (!is_awq(args)) return;
    keel::check(w.columns % kAwqGroup == 0 && w.group_scales != nullptr, "gemm: AWQ has groups of 128 columns and their scales");
    keel::check(w.rows * w.columns <= static_cast<std::int64_t>(scratch.size()), "gemm: scratch_elements covers the AWQ matrix");
  }

  bool run_library(cudaStream_t stream, const GemmArgs& given, const cublasLtMatmulAlgo_t& algorithm) {
    GemmArgs args = ungated(given);
    if (is_awq(args)) {
      expand_awq(stream, args.weights, scratch.data());
      args.weights.dense = scratch.data();
    }
    if (!library.run(stream, args, algorithm)) return false;
    if (given.gate_up != nullptr) {
      silu_mul(stream, {.dtype = dtype, .gate_up = given.gate_up, .out = given.out, .rows = given.tokens, .width = given.weights.rows / 2});
    }
    return true;
  }
  std::vector<cublasLtMatmulAlgo_t> algorithms(GemmArgs args, int count) {
    args = ungated(args);
    if (is_awq(args)) args.weights.dense = scratch.data();
    return library.algorithms(args, count);
  }

  bool run(cudaStream_t stream, const GemmArgs& args, const GemmChoice& choice) {
    if (choice.skinny.warpgroups == 0) return run_library(stream, args, choice.algorithm);
    keel::check(!args.accumulate, "gemm: few tokens do not accumulate");
    run_skinny(stream, args, choice);
    return true;
  }

  // Whether a choice is there. What a file says may be of another product, so it is looked at and tried once.
  bool is_known(cudaStream_t stream, const GemmArgs& args) {
    const std::string key = choice_key(args);
    const GemmChoice* known = choices.find(key);
    if (known == nullptr || !known->unchecked) return known != nullptr;
    const auto is_same = [&](const GemmChoice& other) { return other.skinny == known->skinny && other.launch_tokens == known->launch_tokens; };
    const bool is_one = known->skinny.warpgroups == 0 || std::ranges::any_of(skinny_choices(args), is_same);
    if (!is_one || !run(stream, args, *known)) {
      log_warning("{}: the file's choice cannot do this product, measured again", key);
      return false;
    }
    choices.confirm(key);
    return true;
  }

  // Without a measurement.
  GemmChoice guess(const GemmArgs& args) {
    if (const auto skinny = skinny_choices(args); !skinny.empty() && args.tokens <= 2 * kSkinnyTokens) return skinny.front();
    return {.algorithm = algorithms(args, 1).front()};
  }

  std::vector<GemmChoice> measure(cudaStream_t stream, const GemmArgs& args);  // the fastest first
};

// One way to do a product, as it is timed.
struct Timed {
  StepGraph graph;  // of `launches`; none where the product cannot be done this way
  int launches = 0;
  std::vector<double> times = {};  // of a launch, milliseconds

  Timed(cudaStream_t stream, int copies, const std::function<bool(int)>& run) {
    Event begin, end;
    begin.record(stream);
    if (!run(0)) return;
    end.record(stream);
    launches = std::clamp(static_cast<int>(0.4 / end.milliseconds_since(begin)), 1, 24);
    graph = StepGraph(stream, [&] {
      for (int i = 0; i < launches; ++i) run(i % copies);
    });
  }
  void time(cudaStream_t stream) {
    Event begin, end;
    begin.record(stream);
    graph.launch(stream);
    end.record(stream);
    times.push_back(end.milliseconds_since(begin) / launches);
  }
  double median() {
    std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
    return times[times.size() / 2];
  }
};

std::vector<GemmChoice> Gemm::State::measure(cudaStream_t stream, const GemmArgs& given) {
  GemmArgs args = given;
  const GemmWeights& w = given.weights;
  // Random x, and for few tokens copies of the weights in turn, as far as memory goes; there a norm makes x before each product, as in a
  // step: what a kernel can do before its x is there counts.
  DeviceBuffer<std::uint16_t> x, residual;
  DeviceBuffer<float> ones;
  DeviceBuffer<std::byte> pool;
  const std::int64_t x_elements = args.tokens * w.columns;
  const std::int64_t code_bytes = is_awq(args) ? (w.rows + 63) / 64 * 64 * w.columns / 2 : w.rows * w.columns * 2;
  const std::int64_t stride = (code_bytes + 255) / 256 * 256;
  std::int64_t copies = args.tokens > 512 ? 1 : std::clamp<std::int64_t>(kRotationBytes / code_bytes + 1, 1, 24);
  if (x_elements * 2 <= kMostRandomBytes && free_device_bytes() > x_elements * 2 + kRotationBytes / 4) {
    x = DeviceBuffer<std::uint16_t>(static_cast<std::size_t>(x_elements), "x of a measurement");
    fill_random(stream, x.data(), dtype, x_elements, 1);
    args.x = x.data();
  }
  if (copies > 1 && free_device_bytes() > copies * stride + kRotationBytes / 4) {
    pool = DeviceBuffer<std::byte>(static_cast<std::size_t>(copies * stride), "weights of a measurement");
    for (std::int64_t i = 0; i < copies; ++i) {
      cuda::check(cudaMemcpyAsync(pool.data() + i * stride, is_awq(args) ? w.packed : w.dense, static_cast<std::size_t>(code_bytes),
                                  cudaMemcpyDeviceToDevice, stream),
                  "copy of the weights");
    }
  } else {
    copies = 1;
  }
  if (copies > 1 && x.size() != 0 && args.tokens <= kSkinnyTokens && w.columns % 8 == 0 && w.columns <= kMostNormedColumns) {
    residual = DeviceBuffer<std::uint16_t>(x.size(), "x of a measurement, before its norm");
    fill_random(stream, residual.data(), dtype, x_elements, 2);
    ones = DeviceBuffer<float>(static_cast<std::size_t>(w.columns), "a measurement's norm");
    const std::vector<float> host(ones.size(), 1.0f);
    copy_to_device(stream, ones.data(), host.data(), host.size());
  }
  cuda::check(cudaStreamSynchronize(stream), "wait before a measurement");

  std::vector<GemmChoice> candidates = skinny_choices(args);
  const bool is_small = code_bytes <= kSmallBytes && args.tokens <= kSkinnyTokens;
  if (is_small) candidates.resize(std::min(candidates.size(), kOfSmall));
  for (const auto& algorithm : algorithms(args, is_small ? 2 : kAlgorithms)) candidates.push_back({.algorithm = algorithm});
  std::vector<Timed> timed;
  for (const GemmChoice& candidate : candidates) {
    timed.emplace_back(stream, static_cast<int>(copies), [&](int copy) {
      GemmArgs turned = args;
      if (pool.size() != 0) (is_awq(args) ? turned.weights.packed : turned.weights.dense) = pool.data() + copy * stride;
      if (ones.size() != 0) {
        add_rms_norm(stream, {.dtype = dtype, .residual = residual.data(), .weight = ones.data(), .out = x.data(), .rows = args.tokens, .width = w.columns, .epsilon = 1e-6f});
      }
      return run(stream, turned, candidate);
    });
  }
  // In turn, for products whose limit is power slow down as the GPU warms. The first round does not count.
  for (int round = 0; round < 6; ++round) {
    for (Timed& one : timed) {
      if (one.graph) one.time(stream);
      if (round == 0) one.times.clear();
    }
  }
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (timed[i].graph) order.push_back({timed[i].median(), i});
  }
  keel::check(!order.empty(), "gemm: some kernel can do the product");
  std::sort(order.begin(), order.end());
  cuda::check(cudaStreamSynchronize(stream), "wait after a measurement");
  std::vector<GemmChoice> fastest;
  for (const auto& [time, i] : order) fastest.push_back(candidates[i]);
  return fastest;
}

Gemm::Gemm(DType dtype, std::int64_t max_tokens, std::int64_t scratch_elements, std::string cache_path) {
  keel::check(dtype == DType::f16 || dtype == DType::bf16, "gemm multiplies f16 or bf16");
  state_.reset(new State{.dtype = dtype,
                                         .max_tokens = max_tokens,
                                         .library = {},
                                         .scratch = DeviceBuffer<std::uint16_t>(static_cast<std::size_t>(scratch_elements), "expanded AWQ weights"),
                                         .choices = GemmChoices(std::move(cache_path))});
}
Gemm::~Gemm() = default;

bool Gemm::prepared(const GemmArgs& args) const {
  const GemmChoice* choice = state_->choices.find(choice_key(args));
  return choice != nullptr && !choice->unchecked;
}

std::int64_t Gemm::workspace_bytes() const { return state_->library.workspace_bytes() + state_->scratch.bytes(); }

void Gemm::prepare(cudaStream_t stream, const GemmArgs& args) {
  state_->check_args(args);
  if (args.tokens == 0) return;
  if (!state_->is_known(stream, args)) state_->choices.add(choice_key(args), state_->measure(stream, args).front());
  run(stream, args);  // loads its kernels
}

void Gemm::prepare_together(cudaStream_t stream, std::span<const GemmArgs> products, const std::function<void()>& run) {
  if (std::all_of(products.begin(), products.end(), [&](const GemmArgs& args) { return state_->is_known(stream, args); })) return;
  std::vector<std::vector<GemmChoice>> candidates;
  std::vector<std::size_t> counts;
  Picks fastest, own, library;  // starts: of all candidates, of keel's, of cuBLASLt's
  for (const GemmArgs& args : products) {
    state_->check_args(args);
    const std::vector<GemmChoice> all = state_->measure(stream, args);
    std::vector<GemmChoice> kept(all.begin(), all.begin() + std::min(std::ssize(all), kTogether));
    const auto number_of_first = [&](bool of_library) {  // which is kept though it may be slow alone
      const auto is_it = [&](const GemmChoice& choice) { return (choice.skinny.warpgroups == 0) == of_library; };
      const auto first = std::find_if(all.begin(), all.end(), is_it);
      if (first == all.end()) return std::size_t{0};
      if (const auto number = static_cast<std::size_t>(first - all.begin()); number < kept.size()) return number;
      kept.push_back(*first);
      return kept.size() - 1;
    };
    fastest.push_back(0);
    own.push_back(number_of_first(false));
    if (!is_awq(args)) library.push_back(number_of_first(true));  // else much slower
    counts.push_back(kept.size());
    candidates.push_back(std::move(kept));
  }
  const auto pick = [&](const Picks& picks) {
    for (std::size_t i = 0; i < picks.size(); ++i) state_->choices.set(choice_key(products[i]), candidates[i][picks[i]]);
  };
  std::vector<Picks> starts = {fastest, own};
  if (library.size() == products.size()) starts.push_back(library);
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  pick(fastest);
  run();  // loads the kernels in between
  const Picks best = shortest_together(counts, starts, [&](const Picks& picks) {
    pick(picks);
    return time_of_run(stream, run);
  });
  for (std::size_t i = 0; i < best.size(); ++i) state_->choices.add(choice_key(products[i]), candidates[i][best[i]]);
}

void Gemm::run(cudaStream_t stream, const GemmArgs& args) {
  state_->check_args(args);
  if (args.tokens == 0) return;
  const std::string key = choice_key(args);
  const GemmChoice* choice = state_->choices.find(key);
  const bool is_measured = choice != nullptr && !choice->unchecked;
  if (is_measured && state_->run(stream, args, *choice)) return;
  log_warning("{}: {}; a guess serves it from now on", key, is_measured ? "the measured choice does not run" : "this product was not measured");
  const GemmChoice guess = state_->guess(args);
  keel::check(state_->run(stream, args, guess), "gemm: the first algorithm that cuBLASLt names runs");
  state_->choices.set(key, guess);
}

}  // namespace keel::cuda
