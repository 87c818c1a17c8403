// The one home of the byte formula and of the address of every cached element.
//
// Keys and values live in separate storage. A page holds `page_size` token slots of one layer:
//   keys    [kv_heads][head_dim][page_size]     dimension-major: a vector register holds one dimension of many tokens, so
//                                               q·k needs no horizontal sum and one load serves every query head
//   values  [kv_heads][page_size][head_dim]     token-major: o += p·v runs along the head dimension
// For u4 values the same order at half a byte an element (even dimension in the low nibble), followed by
//   [kv_heads][page_size]{scale, zero}          two f16: value = zero + scale · code
//
// On CUDA (PageOrder::cuda) both are token-major, [kv_heads][page_size][head_dim] with u4's parameters as above, so that one
// bulk copy fetches a head's share of a page, and the 16-byte chunks of a token's row are exchanged by
// kv/cuda_page.h's swizzle, so that the copy lies in shared memory as ldmatrix reads it without bank conflicts.
//
// Bytes per token and layer = kv_heads · (head_dim · (key bits + value bits) / 8 + (u4 ? 4 : 0)).
#pragma once

#include <cstdint>

#include "kv/format.h"

namespace keel {

struct KvGeometry {
  std::int64_t layers;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  std::int64_t page_size = 16;  // token slots
};

enum class PageOrder : std::uint8_t { cpu, cuda };

// Page size the kernels take: a multiple of 16 up to 256.
constexpr std::int64_t kPageSizeStep = 16;
constexpr std::int64_t kMaxPageSize = 256;

// Plain values; throws Error from its constructor for impossible geometry.
class KvLayout {
 public:
  KvLayout(KvFormat format, KvGeometry geometry, PageOrder order = PageOrder::cpu);

  const KvFormat& format() const { return format_; }
  const KvGeometry& geometry() const { return geometry_; }
  PageOrder order() const { return order_; }

  // Of one page of one layer.
  std::int64_t key_page_bytes() const { return key_page_bytes_; }
  std::int64_t value_page_bytes() const { return value_page_bytes_; }
  // Of one token slot over all layers, and of one page over all layers.
  std::int64_t bytes_per_token() const;
  std::int64_t page_bytes() const { return (key_page_bytes_ + value_page_bytes_) * geometry_.layers; }
  std::int64_t pages_in(std::int64_t pool_bytes) const { return pool_bytes / page_bytes(); }

  // Element index within a page (bytes = index · bits / 8).
  std::int64_t key_element(std::int64_t head, std::int64_t slot, std::int64_t dim) const {
    if (order_ == PageOrder::cuda) return swizzled_element(bits(format_.key), head, slot, dim);
    return (head * geometry_.head_dim + dim) * geometry_.page_size + slot;
  }
  std::int64_t value_element(std::int64_t head, std::int64_t slot, std::int64_t dim) const {
    if (order_ == PageOrder::cuda) return swizzled_element(bits(format_.value), head, slot, dim);
    return (head * geometry_.page_size + slot) * geometry_.head_dim + dim;
  }
  // Byte offset, within a value page, of a u4 token's {f16 scale, f16 zero}.
  std::int64_t value_parameters_offset(std::int64_t head, std::int64_t slot) const {
    return geometry_.kv_heads * geometry_.page_size * geometry_.head_dim / 2 +
           (head * geometry_.page_size + slot) * 4;
  }

 private:
  std::int64_t swizzled_element(int element_bits, std::int64_t head, std::int64_t slot, std::int64_t dim) const;

  KvFormat format_;
  KvGeometry geometry_;
  PageOrder order_;
  std::int64_t key_page_bytes_;
  std::int64_t value_page_bytes_;
};

}  // namespace keel
