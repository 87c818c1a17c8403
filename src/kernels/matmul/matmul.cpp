#include "kernels/matmul/matmul.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "kernels/cpu_features.h"
#include "kernels/matmul/product.h"

namespace keel {
namespace {

std::int64_t granules(const MatmulOutput& output) { return (output.weights.rows + kRowGranule - 1) / kRowGranule; }

// Where tasks end, in granules of all outputs one after another. Each task takes an equal part of what is left, so that the
// first ones read long runs of memory and unequal threads still finish together.
std::vector<std::int64_t> task_ends(std::int64_t all, std::int64_t tokens, int threads) {
  const std::int64_t shortest = tokens <= 8 ? 1 : 4;  // each task reads all of x
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

}  // namespace

void matmul(const Stream& stream, const MatmulArgs& args) {
  if (args.tokens == 0 || args.outputs.empty()) return;
  choose_target_once();
  std::int64_t all = 0;
  for (const MatmulOutput& output : args.outputs) {
    check_output(args, output);
    all += granules(output);
  }
  const std::vector<std::int64_t> ends = task_ends(all, args.tokens, stream.workers->threads());

  stream.workers->parallel_for(static_cast<std::int64_t>(ends.size()), [&](std::int64_t task, int) {
    const std::int64_t begin = task == 0 ? 0 : ends[task - 1];
    std::int64_t offset = 0;  // of this output's first granule
    for (const MatmulOutput& output : args.outputs) {
      const std::int64_t first = std::max<std::int64_t>(begin - offset, 0) * kRowGranule;
      const std::int64_t last = std::min((ends[task] - offset) * kRowGranule, output.weights.rows);
      offset += granules(output);
      if (first >= last) continue;
      multiply_rows({.weights = output.weights,
                     .bias = output.bias,
                     .x = args.x,
                     .x_stride = args.x_stride,
                     .tokens = args.tokens,
                     .out = output.out,
                     .out_stride = output.out_stride,
                     .accumulate = output.accumulate},
                    first,
                    last - first);
    }
  });
}

}  // namespace keel
