#include "kernels/kv_write/kv_write.h"

#include "kernels/cpu_features.h"
#include "kernels/cpu_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kv_write/kv_write.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

#ifndef KEEL_KV_WRITE_ONCE
#define KEEL_KV_WRITE_ONCE
namespace keel {
namespace {

constexpr std::int64_t kMaxHeadDim = 256;

}  // namespace
}  // namespace keel
#endif

HWY_BEFORE_NAMESPACE();
namespace keel {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using F = HWY_CAPPED(float, 16);
using V = hn::Vec<F>;
using U = hn::RebindToUnsigned<F>;
using VU = hn::Vec<U>;
constexpr std::int64_t kLanes = MaxLanes(F());

// Each encoder returns the stored bits of value / scale in 32-bit lanes; bit for bit those of base/dtype.h.

struct EncodeF32 {
  using T = std::uint32_t;
  static HWY_INLINE VU Bits(V x) { return hn::BitCast(U(), x); }
};

// Bits of |x| rounded to a float of `kMantissa` bits and exponent bias `kBias`, ties to even, for |x| below overflow.
// Normals: add half a unit less one, plus the last kept bit, then cut. Subnormals: adding a power of two whose last
// bit is the smallest subnormal lets the addition round; no f32 subnormal enters it as such that could matter.
template <int kMantissa, int kBias>
HWY_INLINE VU RoundBits(VU magnitude) {
  const F d;
  const U du;
  constexpr int kDrop = 23 - kMantissa;
  const VU odd = hn::And(hn::ShiftRight<kDrop>(magnitude), hn::Set(du, 1u));
  const VU rounded = hn::Add(magnitude, hn::Add(odd, hn::Set(du, (1u << (kDrop - 1)) - 1)));
  const VU normal =
      hn::Sub(hn::ShiftRight<kDrop>(rounded), hn::Set(du, static_cast<std::uint32_t>(127 - kBias) << kMantissa));
  // Smallest subnormal = 2^(1 - kBias - kMantissa): 23 bits above it.
  constexpr std::uint32_t kMagicBits = static_cast<std::uint32_t>(127 + 1 - kBias - kMantissa + 23) << 23;
  const VU magic = hn::Set(du, kMagicBits);
  const V sum = hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, magic));
  const VU subnormal = hn::Sub(hn::BitCast(du, sum), magic);
  const VU least_normal = hn::Set(du, static_cast<std::uint32_t>(127 + 1 - kBias) << 23);
  return hn::IfThenElse(hn::Lt(magnitude, least_normal), subnormal, normal);
}

struct EncodeF16 {
  using T = std::uint16_t;
  static HWY_INLINE VU Bits(V x) {
    const U du;
    const VU raw = hn::BitCast(du, x);
    const VU magnitude = hn::And(raw, hn::Set(du, 0x7fffffffu));
    const VU sign = hn::And(hn::ShiftRight<16>(raw), hn::Set(du, 0x8000u));
    VU bits = RoundBits<10, 15>(magnitude);
    bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x477fefffu)), hn::Set(du, 0x7c00u), bits);
    const VU payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3ffu));
    bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7f800000u)),
                          hn::Or(payload, hn::Set(du, 0x7e00u)),
                          bits);
    return hn::Or(bits, sign);
  }
};

struct EncodeBf16 {
  using T = std::uint16_t;
  static HWY_INLINE VU Bits(V x) {
    const U du;
    const VU raw = hn::BitCast(du, x);
    const VU magnitude = hn::And(raw, hn::Set(du, 0x7fffffffu));
    const VU top = hn::ShiftRight<16>(raw);
    const VU odd = hn::And(top, hn::Set(du, 1u));
    const VU rounded = hn::ShiftRight<16>(hn::Add(raw, hn::Add(odd, hn::Set(du, 0x7fffu))));
    return hn::IfThenElse(
        hn::Gt(magnitude, hn::Set(du, 0x7f800000u)), hn::Or(top, hn::Set(du, 0x40u)), rounded);
  }
};

struct EncodeE4m3 {
  using T = std::uint8_t;
  static HWY_INLINE VU Bits(V x) {
    const U du;
    const VU raw = hn::BitCast(du, x);
    const VU magnitude = hn::And(raw, hn::Set(du, 0x7fffffffu));
    const VU sign = hn::And(hn::ShiftRight<24>(raw), hn::Set(du, 0x80u));
    VU bits = RoundBits<3, 7>(magnitude);
    bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x43dfffffu)), hn::Set(du, 0x7eu), bits);
    bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7f800000u)), hn::Set(du, 0x7fu), bits);
    return hn::Or(bits, sign);
  }
};

// codes[i] = stored bits of x[i] / scale; `count` a multiple of 16.
template <class Encode>
HWY_INLINE void EncodeRow(const float* HWY_RESTRICT x,
                          std::int64_t count,
                          float scale,
                          typename Encode::T* HWY_RESTRICT codes) {
  const F d;
  const U du;
  const V divisor = hn::Set(d, scale);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    V value = hn::LoadU(d, x + i);
    if (scale != 1.0f) value = hn::Div(value, divisor);
    const VU bits = Encode::Bits(value);
    if constexpr (sizeof(typename Encode::T) == 4) {
      hn::StoreU(bits, du, codes + i);
    } else {
      const hn::Rebind<typename Encode::T, F> narrow;
      // Demotion saturates from signed lanes; every code is below 2^16 or 2^8.
      hn::StoreU(hn::DemoteTo(narrow, hn::BitCast(hn::RebindToSigned<U>(), bits)), narrow, codes + i);
    }
  }
}

// A token's values of one head at 4 bits. `codes`: head_dim / 2 bytes.
void EncodeU4Row(const float* HWY_RESTRICT x,
                 std::int64_t count,
                 std::uint8_t* HWY_RESTRICT codes,
                 Half* parameters) {
  const F d;
  V low = hn::LoadU(d, x);
  V high = low;
  V taint = hn::Sub(low, low);  // becomes NaN where x is infinite or NaN
  for (std::int64_t i = kLanes; i < count; i += kLanes) {
    const V value = hn::LoadU(d, x + i);
    low = hn::Min(low, value);
    high = hn::Max(high, value);
    taint = hn::Add(taint, hn::Sub(value, value));
  }
  const float min = hn::GetLane(hn::MinOfLanes(d, low)) + 0.0f;  // + 0: -0 and 0 are one
  const float max = hn::GetLane(hn::MaxOfLanes(d, high)) + 0.0f;
  const Half scale = to_half((max - min) / 15.0f);
  const Half zero = to_half(min);
  const float step = to_float(scale);
  const bool finite = hn::GetLane(hn::SumOfLanes(d, taint)) == 0.0f && std::isfinite(step) &&
                      std::isfinite(to_float(zero));
  parameters[0] = finite ? scale : Half(0);
  parameters[1] = finite ? zero : Half(0x7e00);  // NaN: the head reads back as NaN
  if (!finite || step == 0.0f) {
    std::fill_n(codes, count / 2, std::uint8_t{0});
    return;
  }
  const V base = hn::Set(d, to_float(zero));
  const V divisor = hn::Set(d, step);
  HWY_ALIGN std::int32_t whole[kMaxHeadDim];
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const V code = hn::Round(hn::Div(hn::Sub(hn::LoadU(d, x + i), base), divisor));
    const V clamped = hn::Min(hn::Max(code, hn::Zero(d)), hn::Set(d, 15.0f));
    hn::StoreU(hn::ConvertTo(hn::RebindToSigned<F>(), clamped), hn::RebindToSigned<F>(), whole + i);
  }
  for (std::int64_t i = 0; i < count / 2; ++i) {
    codes[i] = static_cast<std::uint8_t>(whole[2 * i] | whole[2 * i + 1] << 4);
  }
}

template <class Use>
void WithEncoder(DType type, const Use& use) {
  switch (type) {
    case DType::f32: return use(EncodeF32());
    case DType::f16: return use(EncodeF16());
    case DType::bf16: return use(EncodeBf16());
    case DType::e4m3: return use(EncodeE4m3());
    case DType::u4: break;
  }
  check(false, "a cache type with an element encoder");
}

void WriteToken(const KvWriteArgs& args, std::int64_t token) {
  const std::int64_t slot_index = args.slots[token];
  if (slot_index < 0) return;
  const KvLayout& layout = *args.kv.layout;
  const KvGeometry& geometry = layout.geometry();
  const std::int64_t head_dim = geometry.head_dim;
  const auto page = static_cast<PageId>(slot_index / geometry.page_size);
  const std::int64_t slot = slot_index % geometry.page_size;
  for (std::int64_t head = 0; head < geometry.kv_heads; ++head) {
    const std::int64_t row = (token * geometry.kv_heads + head) * head_dim;
    WithEncoder(layout.format().key, [&](auto encode) {
      using Encode = decltype(encode);
      typename Encode::T codes[kMaxHeadDim];
      EncodeRow<Encode>(args.k + row, head_dim, args.kv.key_scales[head], codes);
      auto* to = reinterpret_cast<typename Encode::T*>(args.kv.key_page(page)) +
                 layout.key_element(head, slot, 0);
      for (std::int64_t dim = 0; dim < head_dim; ++dim) to[dim * geometry.page_size] = codes[dim];
    });
    std::byte* values = args.kv.value_page(page);
    const std::int64_t element = layout.value_element(head, slot, 0);
    if (layout.format().value == DType::u4) {
      EncodeU4Row(args.v + row,
                  head_dim,
                  reinterpret_cast<std::uint8_t*>(values) + element / 2,
                  reinterpret_cast<Half*>(values + layout.value_parameters_offset(head, slot)));
    } else {
      WithEncoder(layout.format().value, [&](auto encode) {
        using Encode = decltype(encode);
        EncodeRow<Encode>(args.v + row,
                          head_dim,
                          args.kv.value_scales[head],
                          reinterpret_cast<typename Encode::T*>(values) + element);
      });
    }
  }
}

}  // namespace

void WriteTokens(const KvWriteArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t token = begin; token < end; ++token) WriteToken(args, token);
}

}  // namespace HWY_NAMESPACE
}  // namespace keel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keel {
namespace {

HWY_EXPORT(WriteTokens);

float read_element(DType type, const std::byte* base, std::int64_t element) {
  switch (type) {
    case DType::f32: return reinterpret_cast<const float*>(base)[element];
    case DType::f16: return to_float(reinterpret_cast<const Half*>(base)[element]);
    case DType::bf16: return to_float(reinterpret_cast<const Bf16*>(base)[element]);
    case DType::e4m3: return to_float(reinterpret_cast<const E4m3*>(base)[element]);
    case DType::u4: break;
  }
  check(false, "an element type of whole bytes");
  return 0.0f;
}

}  // namespace

void kv_write(const Stream& stream, const KvWriteArgs& args) {
  const KvLayout& layout = *args.kv.layout;
  if (layout.format().key == DType::u4) fail("keys cannot be stored as {}", name(DType::u4));
  const std::int64_t head_dim = layout.geometry().head_dim;
  if (head_dim % 16 != 0 || head_dim > kMaxHeadDim) {
    fail("kv_write wants head_dim a multiple of 16 up to {}, found {}", kMaxHeadDim, head_dim);
  }
  choose_target_once();
  const auto tokens = static_cast<std::int64_t>(args.slots.size());
  constexpr std::int64_t kTokensPerTask = 16;
  const std::int64_t tasks = (tokens + kTokensPerTask - 1) / kTokensPerTask;
  stream.workers->parallel_for(tasks, [&](std::int64_t task, int) {
    const std::int64_t begin = task * kTokensPerTask;
    HWY_DYNAMIC_DISPATCH(WriteTokens)(args, begin, std::min(begin + kTokensPerTask, tokens));
  });
}

float read_key(const KvLayerView& kv, std::int64_t slot, std::int64_t head, std::int64_t dim) {
  const KvLayout& layout = *kv.layout;
  const std::int64_t page_size = layout.geometry().page_size;
  return read_element(layout.format().key,
                      kv.key_page(static_cast<PageId>(slot / page_size)),
                      layout.key_element(head, slot % page_size, dim)) *
         kv.key_scales[head];
}

float read_value(const KvLayerView& kv, std::int64_t slot, std::int64_t head, std::int64_t dim) {
  const KvLayout& layout = *kv.layout;
  const std::int64_t page_size = layout.geometry().page_size;
  const std::byte* page = kv.value_page(static_cast<PageId>(slot / page_size));
  const std::int64_t element = layout.value_element(head, slot % page_size, dim);
  if (layout.format().value != DType::u4) {
    return read_element(layout.format().value, page, element) * kv.value_scales[head];
  }
  const auto pair = static_cast<std::uint32_t>(page[element / 2]);
  const auto code = static_cast<float>(element % 2 == 0 ? pair & 15u : pair >> 4);
  const auto* parameters = reinterpret_cast<const Half*>(
      page + layout.value_parameters_offset(head, slot % page_size));
  return std::fma(to_float(parameters[0]), code, to_float(parameters[1]));
}

}  // namespace keel
#endif
