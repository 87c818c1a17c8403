#include "kernels/matmul/matmul.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "kernels/cpu_features.h"
#include "kernels/matmul/product.h"
#include "kernels/matmul/quantized.h"

namespace keel {
namespace {

std::int64_t granules(const MatmulOutput& output) { return (output.weights.rows + kRowGranule - 1) / kRowGranule; }

// Where tasks end, in granules of all outputs one after another. Each task takes an equal part of what is left, so that the
// first ones read long runs of memory and unequal threads still finish together.
std::vector<std::int64_t> task_ends(std::int64_t all, std::int64_t tokens, int threads) {
  const std::int64_t shortest = tokens <= 8 ? 1 : 2;  // each task reads all of x
  constexpr std::int64_t kLongest = 128;
  std::vector<std::int64_t> ends;
  for (std::int64_t done = 0; done < all;) {
    done += std::clamp<std::int64_t>((all - done) / (2 * threads), shortest, kLongest);
    ends.push_back(std::min(done, all));
  }
  return ends;
}

void check_output(const MatmulArgs& args, const MatmulOutput& output) {
  const WeightMatrix& w = output.weights;
  check(w.columns == args.outputs[0].weights.columns, "matmul: all weights take the same x");
  check(w.columns <= args.x_stride && w.columns % block_elements(w.type) == 0,
        "matmul: columns fit x and are whole blocks");
  check(w.rows <= output.out_stride || args.tokens == 1, "matmul: rows fit out");
  check(w.type != WeightType::awq4 || w.rows % 8 == 0, "matmul: awq4 rows are whole words");
}

// x as integers in the workspace; null where no weights want them.
const QuantizedRun* quantize(const Stream& stream, const MatmulArgs& args) {
  const auto wants = [](const MatmulOutput& output) { return is_quantized(output.weights.type); };
  const auto first = std::find_if(args.outputs.begin(), args.outputs.end(), wants);
  if (first == args.outputs.end()) return nullptr;
  check(static_cast<std::int64_t>(args.workspace.size()) >= matmul_workspace(first->weights, args.tokens),
        "matmul: x as integers fits the workspace");
  auto* const quantized = reinterpret_cast<QuantizedRun*>(args.workspace.data());
  const std::int64_t columns = first->weights.columns, runs = columns / kRunColumns;
  constexpr std::int64_t kTaskRuns = 32;  // of eight tokens about a microsecond
  const std::int64_t parts = (runs + kTaskRuns - 1) / kTaskRuns;
  const std::int64_t groups = (args.tokens + kGroupTokens - 1) / kGroupTokens;
  const auto quantize_part = [&](std::int64_t task, int) {
    const std::int64_t token = task / parts * kGroupTokens, run = task % parts * kTaskRuns;
    quantize_group({.x = args.x + token * args.x_stride,
                    .x_stride = args.x_stride,
                    .tokens = std::min(kGroupTokens, args.tokens - token),
                    .columns = columns,
                    .out = quantized + token * runs},
                   run,
                   std::min(runs, run + kTaskRuns));
  };
  if (groups * parts > 4) {
    stream.workers->parallel_for(groups * parts, quantize_part);
  } else {
    for (std::int64_t task = 0; task < groups * parts; ++task) quantize_part(task, 0);
  }
  return quantized;
}

}  // namespace

bool is_quantized(WeightType type) {
  switch (type) {
    case WeightType::q8_0:
    case WeightType::q4_0:
    case WeightType::q4_1:
    case WeightType::q4_k:
    case WeightType::q5_k:
    case WeightType::q6_k:
      return true;
    case WeightType::f32:
    case WeightType::f16:
    case WeightType::bf16:
    case WeightType::awq4:
      return false;
  }
  check(false, "is_quantized of an unknown weight type");
  return false;
}

std::int64_t matmul_workspace(const WeightMatrix& weights, std::int64_t tokens) {
  if (!is_quantized(weights.type)) return 0;
  return slots(tokens) * (weights.columns / kRunColumns) * static_cast<std::int64_t>(sizeof(QuantizedRun));
}

void matmul(const Stream& stream, const MatmulArgs& args) {
  if (args.tokens == 0 || args.outputs.empty()) return;
  choose_target_once();
  std::int64_t all = 0;
  for (const MatmulOutput& output : args.outputs) {
    check_output(args, output);
    all += granules(output);
  }
  const QuantizedRun* const quantized = quantize(stream, args);
  const std::vector<std::int64_t> ends = task_ends(all, args.tokens, stream.workers->threads());

  stream.workers->parallel_for(static_cast<std::int64_t>(ends.size()), [&](std::int64_t task, int) {
    const std::int64_t begin = task == 0 ? 0 : ends[task - 1];
    std::int64_t offset = 0;  // of this output's first granule
    for (const MatmulOutput& output : args.outputs) {
      const std::int64_t first = std::max<std::int64_t>(begin - offset, 0) * kRowGranule;
      const std::int64_t last = std::min((ends[task] - offset) * kRowGranule, output.weights.rows);
      offset += granules(output);
      if (first >= last) continue;
      const Product product{.weights = output.weights,
                            .bias = output.bias,
                            .x = args.x,
                            .x_stride = args.x_stride,
                            .tokens = args.tokens,
                            .out = output.out,
                            .out_stride = output.out_stride,
                            .accumulate = output.accumulate,
                            .quantized = quantized};
      const auto multiply = is_quantized(output.weights.type) ? multiply_rows_quantized : multiply_rows;
      multiply(product, first, last - first);
    }
  });
}

}  // namespace keel
