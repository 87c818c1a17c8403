#include "kernels/matmul/matmul.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu_features.h"
#include "kernels/matmul/product.h"

namespace keel {
namespace {

// A task's rows: enough tasks that unequal threads finish together, each worth more than taking it costs.
std::int64_t rows_a_task(std::int64_t all_rows, int threads) {
  constexpr std::int64_t kTasksAThread = 8;
  const std::int64_t rows = all_rows / (threads * kTasksAThread) / kRowGranule * kRowGranule;
  return std::clamp<std::int64_t>(rows, 2 * kRowGranule, 1024);
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
  std::int64_t all_rows = 0;
  for (const MatmulOutput& output : args.outputs) {
    check_output(args, output);
    all_rows += output.weights.rows;
  }
  const std::int64_t step = rows_a_task(all_rows, stream.workers->threads());
  std::int64_t tasks = 0;
  for (const MatmulOutput& output : args.outputs) tasks += (output.weights.rows + step - 1) / step;

  stream.workers->parallel_for(tasks, [&](std::int64_t task, int) {
    for (const MatmulOutput& output : args.outputs) {
      const std::int64_t tasks_here = (output.weights.rows + step - 1) / step;
      if (task >= tasks_here) {
        task -= tasks_here;
        continue;
      }
      const std::int64_t first = task * step;
      multiply_rows({.weights = output.weights,
                     .bias = output.bias,
                     .x = args.x,
                     .x_stride = args.x_stride,
                     .tokens = args.tokens,
                     .out = output.out,
                     .out_stride = output.out_stride,
                     .accumulate = output.accumulate},
                    first,
                    std::min(step, output.weights.rows - first));
      return;
    }
  });
}

}  // namespace keel
