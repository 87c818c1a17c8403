#include "kernels/paged_attention/prefill_cuda_plain.h"

#include "base/error.h"

namespace keel::cuda {

void prefill_plain(cudaStream_t stream, const PrefillAttentionArgs& args) {
  const KvLayout& layout = *args.kv.layout;
  const KvGeometry& geometry = layout.geometry();
  const DType value = layout.format().value;
  keel::check(args.softmax_scale > 0, "the softmax scale is positive");
  keel::check(args.q_stride % 2 == 0 && args.out_stride % 2 == 0, "rows of q and out begin at whole words");
  PlainParameters p{.q = args.q,
                    .out = args.out,
                    .q_stride = args.q_stride,
                    .out_stride = args.out_stride,
                    .keys = args.kv.keys,
                    .values = args.kv.values,
                    .key_scales = args.kv.key_scales,
                    .value_scales = args.kv.value_scales,
                    .page_table = args.page_table,
                    .page_table_stride = args.page_table_stride,
                    .key_page_bytes = layout.key_page_bytes(),
                    .value_page_bytes = layout.value_page_bytes(),
                    .parameters_offset = layout.value_parameters_offset(0, 0),
                    .softmax_scale = args.softmax_scale,
                    .group = static_cast<std::int32_t>(args.heads / geometry.kv_heads),
                    .kv_heads = static_cast<std::int32_t>(geometry.kv_heads),
                    .key_bits = bits(layout.format().key),
                    .value_bits = bits(value)};
  const auto launch = [&] {
    if (p.sequences == 0) return;
    if (args.dtype == DType::f16) {
      plain::launch_f16(stream, p, geometry.head_dim);
    } else if (value == DType::bf16) {
      plain::launch_bf16(stream, p, geometry.head_dim);
    } else {
      plain::launch_bf16_f16(stream, p, geometry.head_dim);
    }
    p.sequences = p.tiles = 0;
  };
  for (const PrefillSequence& s : args.sequences) {
    keel::check(s.rows >= 1 && s.context >= s.rows && s.context < (std::int64_t{1} << 30), "a sequence has rows, and a context that holds them");
    if (p.sequences == kPlainSequences) launch();
    p.sequence[p.sequences++] = {s.first_row, s.table_row, static_cast<std::int32_t>(s.rows), static_cast<std::int32_t>(s.context), p.tiles};
    p.tiles += static_cast<std::int32_t>((s.rows * p.group + kPlainRows - 1) / kPlainRows);
  }
  launch();
}

}  // namespace keel::cuda
