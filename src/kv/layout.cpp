#include "kv/layout.h"

#include "base/option_error.h"
#include "kv/cuda_page.h"

namespace keel {

KvLayout::KvLayout(KvFormat format, KvGeometry geometry, PageOrder order)
    : format_(format), geometry_(geometry), order_(order) {
  const auto& [layers, kv_heads, head_dim, page_size] = geometry_;
  if (layers < 1 || layers > 100'000 || kv_heads < 1 || kv_heads > 100'000 || head_dim < 1 || head_dim > 100'000) {
    fail("KV geometry {} layers x {} KV heads x {} head dim: each must be between 1 and 100,000", layers, kv_heads, head_dim);
  }
  if (page_size < kPageSizeStep || page_size > kMaxPageSize || page_size % kPageSizeStep != 0) {
    refuse_option("block size {} is not supported: wanted a multiple of {} up to {}", page_size, kPageSizeStep, kMaxPageSize);
  }
  if (format.value == DType::u4 && head_dim % 2 != 0) fail("u4 values want an even head dim, found {}", head_dim);
  if (order == PageOrder::cuda) {
    if (page_size != kCudaPageSize) refuse_option("block size {} is not supported on CUDA: wanted {}", page_size, kCudaPageSize);
    for (const DType type : {format.key, format.value}) {
      if (head_dim * bits(type) % 128 != 0) {
        fail("head dim {} in {} is not supported on CUDA: a token's row of a head must be a multiple of 16 bytes", head_dim, name(type));
      }
    }
  }
  const std::int64_t elements = kv_heads * page_size * head_dim;
  key_page_bytes_ = elements * bits(format.key) / 8;
  value_page_bytes_ = elements * bits(format.value) / 8;
  if (format.value == DType::u4) value_page_bytes_ += kv_heads * page_size * 4;
}

std::int64_t KvLayout::swizzled_element(int element_bits, std::int64_t head, std::int64_t slot, std::int64_t dim) const {
  const int row_bytes = static_cast<int>(geometry_.head_dim * element_bits / 8);
  const int elements_a_chunk = kCudaChunkBytes * 8 / element_bits;
  const std::int64_t chunk = swizzled_chunk(row_bytes, static_cast<int>(slot), static_cast<int>(dim / elements_a_chunk));
  return (head * geometry_.page_size + slot) * geometry_.head_dim + chunk * elements_a_chunk + dim % elements_a_chunk;
}

std::int64_t KvLayout::bytes_per_token() const { return page_bytes() / geometry_.page_size; }

}  // namespace keel
