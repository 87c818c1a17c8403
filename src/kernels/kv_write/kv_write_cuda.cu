#include <cuda_fp8.h>

#include <cmath>

#include "device/launch.cuh"
#include "kernels/kv_write/kv_write_cuda.h"
#include "kernels/vector_cuda.h"
#include "kv/cuda_page.h"

namespace keel::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarp = 32;
constexpr int kMostHeadDim = kWarp * kVector;

// What the kernel needs of RopeWriteArgs. A row is one token's head: the q heads first, then k's, then v's.
struct Job {
  void *q, *k, *v;
  std::int64_t stride;
  int heads, kv_heads, head_dim;
  int group, group_shift;  // lanes a row, the power of two from head_dim / kVector, and its logarithm
  const float *q_norm, *k_norm;
  float epsilon, inverse_head_dim;
  int rotary_dim;
  bool interleaved;
  const float2* rope_table;
  const std::int32_t* positions;
  const std::int64_t* slots;
  std::byte *keys, *values;
  std::int64_t key_page_bytes, value_page_bytes;
  const float *key_scales, *value_scales;
  DType key_type, value_type;
  int key_bits, value_bits;
  bool round;
};

__device__ float group_sum(float x, int group) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    if (offset < group) x += __shfl_xor_sync(~0u, x, offset);
  }
  return x;
}
__device__ float group_min(float x, int group) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    if (offset < group) x = fminf(x, __shfl_xor_sync(~0u, x, offset));
  }
  return x;
}
__device__ float group_max(float x, int group) { return -group_min(-x, group); }

// Where one lane's part of its token's row lies in the pages: at + head · head_bytes. at is null for a token without a slot.
struct Target {
  std::byte* at;
  int head_bytes;
};
__device__ Target target(std::byte* pages, std::int64_t page_bytes, std::int64_t slot, int row_bytes, int offset) {
  const int head_bytes = kCudaPageSize * row_bytes;
  if (slot < 0) return {nullptr, head_bytes};
  const int place = static_cast<int>(static_cast<std::uint64_t>(slot) % kCudaPageSize);
  const int chunk = swizzled_chunk(row_bytes, place, offset / kCudaChunkBytes);
  const int within = place * row_bytes + chunk * kCudaChunkBytes + offset % kCudaChunkBytes;
  return {pages + static_cast<std::int64_t>(static_cast<std::uint64_t>(slot) / kCudaPageSize) * page_bytes + within, head_bytes};
}

// NaNs become quiet, as they do on their way through f32 on the CPU.
template <class T>
__device__ uint4 quiet(uint4 packed) {
  constexpr std::uint32_t kInfinity = std::is_same_v<T, __half> ? 0x7c00 : 0x7f80;
  constexpr std::uint32_t kQuiet = std::is_same_v<T, __half> ? 0x0200 : 0x0040;
  std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (std::uint32_t& word : words) {
    if ((word & 0x7fff) > kInfinity) word |= kQuiet;
    if ((word >> 16 & 0x7fff) > kInfinity) word |= kQuiet << 16;
  }
  return {words[0], words[1], words[2], words[3]};
}

// E4M3 of packed / scale. The sign is the input's, of a NaN too: the hardware's conversion drops that one.
template <class T>
__device__ uint2 encode_e4m3(const uint4& packed, float scale) {
  float x[kVector];
  unpack<T>(packed, x);
  const std::uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
  std::uint32_t codes[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = {__fdiv_rn(x[2 * i], scale), __fdiv_rn(x[2 * i + 1], scale)};
    const std::uint32_t magnitudes = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3) & 0x7f7fu;
    codes[i] = magnitudes | (words[i] >> 8 & 0x80u) | (words[i] >> 16 & 0x8000u);
  }
  return {codes[0] | codes[1] << 16, codes[2] | codes[3] << 16};
}

__device__ void decode_e4m3(const uint2& codes, float scale, float (&x)[kVector]) {
  const std::uint32_t words[2] = {codes.x, codes.y};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto pair = static_cast<__nv_fp8x2_storage_t>(words[i / 2] >> (i % 2 * 16));
    const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
    x[2 * i] = __fmul_rn(values.x, scale);
    x[2 * i + 1] = __fmul_rn(values.y, scale);
  }
}

struct U4Parameters {
  __half scale, zero;
};

// Of a row's extremes; infinite extremes stand for a row with an infinity or NaN. Operation by operation the CPU's.
__device__ U4Parameters u4_parameters(float low, float high) {
  low = __fadd_rn(low, 0.0f);  // -0 and 0 are one
  high = __fadd_rn(high, 0.0f);
  const U4Parameters found{__float2half_rn(__fdiv_rn(__fsub_rn(high, low), 15.0f)), __float2half_rn(low)};
  if (isfinite(__half2float(found.scale)) && isfinite(__half2float(found.zero))) return found;
  return {__ushort_as_half(0), __ushort_as_half(0x7e00)};  // zero = NaN: the row reads back as NaN
}

__device__ std::uint32_t encode_u4(const float (&x)[kVector], U4Parameters parameters) {
  const float scale = __half2float(parameters.scale);
  const float zero = __half2float(parameters.zero);
  if (scale == 0) return 0;
  std::uint32_t codes = 0;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const float code = rintf(__fdiv_rn(__fsub_rn(x[j], zero), scale));
    codes |= static_cast<std::uint32_t>(fminf(fmaxf(code, 0.0f), 15.0f)) << (4 * j);
  }
  return codes;
}

__device__ void decode_u4(std::uint32_t codes, U4Parameters parameters, float (&x)[kVector]) {
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    x[j] = __fmaf_rn(__half2float(parameters.scale), static_cast<float>(codes >> (4 * j) & 15u), __half2float(parameters.zero));
  }
}

// Stores one lane's part of a row of K or V as its type has it; returns what the stored bytes read back as, rounded to T.
template <class T>
__device__ uint4 store(DType type, const Target& target, const float* scales, const uint4& packed, int head) {
  std::byte* to = target.at + head * target.head_bytes;
  if (type != DType::e4m3) {
    const uint4 same = quiet<T>(packed);
    if (target.at != nullptr) *reinterpret_cast<uint4*>(to) = same;
    return same;
  }
  const float scale = scales[head];
  const uint2 codes = encode_e4m3<T>(packed, scale);
  if (target.at != nullptr) *reinterpret_cast<uint2*>(to) = codes;
  float x[kVector];
  decode_e4m3(codes, scale, x);
  return pack<T>(x);
}

// The same for V as u4. `parameters`: the token's for head 0, heads kCudaPageSize apart.
// All lanes of the warp call it, `active` those that hold a part of a row of V.
template <class T>
__device__ uint4 store_u4(const Job& job, const Target& values, U4Parameters* parameters, const uint4& packed, int head, bool active) {
  float x[kVector];
  unpack<T>(packed, x);
  float low = INFINITY, high = -INFINITY;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    low = fminf(low, isfinite(x[j]) ? x[j] : -INFINITY);
    high = fmaxf(high, isfinite(x[j]) ? x[j] : INFINITY);
  }
  low = group_min(active ? low : INFINITY, job.group);
  high = group_max(active ? high : -INFINITY, job.group);
  if (!active) return packed;
  const U4Parameters found = u4_parameters(low, high);
  const std::uint32_t codes = encode_u4(x, found);
  if (values.at != nullptr) {
    *reinterpret_cast<std::uint32_t*>(values.at + head * values.head_bytes) = codes;
    if ((threadIdx.x & (job.group - 1)) == 0) parameters[head * kCudaPageSize] = found;
  }
  decode_u4(codes, found, x);
  return pack<T>(x);
}

// Cosine and sine for each of a lane's dimensions, the sine with the sign that this member of its pair wants.
// kAligned: half pairs whose halves are whole vectors, so that a lane's partners are all one other lane's.
template <bool kAligned>
__device__ void load_turns(const Job& job, std::int64_t token, int dim, float2 (&turns)[kVector]) {
  const int pairs = job.rotary_dim / 2;
  const float2* table = job.rope_table + static_cast<std::int64_t>(job.positions[token]) * pairs;
  if constexpr (kAligned) {
    if (dim >= job.rotary_dim) return;
    const bool second = dim >= pairs;
    const auto* four_floats = reinterpret_cast<const float4*>(table + (second ? dim - pairs : dim));
#pragma unroll
    for (int j = 0; j < kVector; j += 2) {
      const float4 two = four_floats[j / 2];
      turns[j] = {two.x, second ? two.y : -two.y};
      turns[j + 1] = {two.z, second ? two.w : -two.w};
    }
  } else {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      if (dim + j >= job.rotary_dim) continue;
      const bool second = job.interleaved ? j % 2 == 1 : dim + j >= pairs;
      turns[j] = table[job.interleaved ? (dim + j) / 2 : second ? dim + j - pairs : dim + j];
      if (!second) turns[j].y = -turns[j].y;
    }
  }
}

template <bool kAligned>
__device__ void rotate(const Job& job, int dim, const float2 (&turns)[kVector], float (&x)[kVector]) {
  const int pairs = job.rotary_dim / 2;
  float partner[kVector];
  if constexpr (kAligned) {
    const int source = (dim < pairs ? dim + pairs : dim - pairs) / kVector;
#pragma unroll
    for (int j = 0; j < kVector; ++j) partner[j] = __shfl_sync(~0u, x[j], source, job.group);
  } else {
    // Half pairs: the partner is `pairs` dimensions away, a multiple of 4, so in place j or j ^ 4 of another lane.
    const bool swap = pairs % kVector != 0;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const int other = dim + j < pairs ? dim + j + pairs : dim + j - pairs;
      partner[j] = job.interleaved ? x[j ^ 1] : __shfl_sync(~0u, swap ? x[j ^ 4] : x[j], other / kVector, job.group);
    }
  }
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    if (dim + (kAligned ? 0 : j) < job.rotary_dim) x[j] = x[j] * turns[j].x + partner[j] * turns[j].y;
  }
}

// x / rms(x) · weight. All lanes of the warp call it; rows without a weight stay.
__device__ void norm(const Job& job, const float* weight, int dim, float (&x)[kVector]) {
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kVector; ++j) squares += x[j] * x[j];
  squares = group_sum(squares, job.group);
  if (weight == nullptr || dim >= job.head_dim) return;
  const float inverse = rsqrtf(squares * job.inverse_head_dim + job.epsilon);
  const auto* four = reinterpret_cast<const float4*>(weight + dim);
  const float4 low = four[0], high = four[1];
  const float weights[kVector] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int j = 0; j < kVector; ++j) x[j] *= inverse * weights[j];
}

// blockIdx.x is the token. A group of lanes takes `rows_a_group` rows in turn, loading kAhead before it needs them.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads, 7) rope_write_kernel(const __grid_constant__ Job job, int rows_a_group) {
  const std::int64_t token = blockIdx.x;
  const int groups = kThreads >> job.group_shift;
  const int q_rows = job.heads, qk_rows = q_rows + job.kv_heads;
  const int begin = blockIdx.y * groups * rows_a_group;
  const int end = min(begin + groups * rows_a_group, qk_rows + job.kv_heads);
  const int dim = (threadIdx.x & (job.group - 1)) * kVector;
  const bool active = dim < job.head_dim;
  const auto row_data = [&](int row) {
    void* start = row < q_rows ? job.q : row < qk_rows ? job.k : job.v;
    const int head = row < q_rows ? row : row < qk_rows ? row - q_rows : row - qk_rows;
    return reinterpret_cast<uint4*>(static_cast<T*>(start) + token * job.stride + head * job.head_dim + dim);
  };
  const auto load = [&](int row) { return active && row < end ? *row_data(row) : uint4{}; };

  constexpr int kAhead = 3;
  int row = begin + (threadIdx.x >> job.group_shift);
  uint4 ahead[kAhead];
  float2 turns[kVector];
  const bool few = rows_a_group == 1;  // then nothing else hides the turns' loads; no kernel of a step writes what they read
  if (few && job.rotary_dim > 0) load_turns<kAligned>(job, token, dim, turns);
  wait_for_previous_kernel();
  allow_next_kernel();  // decode attention relies on its place: behind the wait
#pragma unroll
  for (int i = 0; i < kAhead; ++i) ahead[i] = load(row + i * groups);
  const std::int64_t slot = job.slots[token];
  if (!few && job.rotary_dim > 0) load_turns<kAligned>(job, token, dim, turns);
  const Target keys = target(job.keys, job.key_page_bytes, slot, (job.head_dim * job.key_bits) >> 3, (dim * job.key_bits) >> 3);
  const Target values = target(job.values, job.value_page_bytes, slot, (job.head_dim * job.value_bits) >> 3, (dim * job.value_bits) >> 3);

#pragma unroll 1  // unrolled, the code outgrows the instruction cache
  for (int i = 0; i < rows_a_group; ++i, row += groups) {
    const uint4 loaded = ahead[0];
#pragma unroll
    for (int k = 1; k < kAhead; ++k) ahead[k - 1] = ahead[k];
    ahead[kAhead - 1] = load(row + kAhead * groups);
    const bool is_v = row >= qk_rows;
    if (__any_sync(~0u, !is_v && row < end)) {
      float x[kVector];
      unpack<T>(loaded, x);
      if (job.q_norm != nullptr || job.k_norm != nullptr) norm(job, row < q_rows ? job.q_norm : is_v ? nullptr : job.k_norm, dim, x);
      if (job.rotary_dim > 0) rotate<kAligned>(job, dim, turns, x);
      if (active && !is_v && row < end) {
        const uint4 rotated = pack<T>(x);
        uint4 rounded = rotated;
        if (row >= q_rows) rounded = store<T>(job.key_type, keys, job.key_scales, rotated, row - q_rows);
        *row_data(row) = job.round ? rounded : rotated;
      }
    }
    if (__any_sync(~0u, is_v && row < end)) {
      const bool writes = active && is_v && row < end;
      uint4 rounded = loaded;
      if (job.value_type == DType::u4) {
        const std::int64_t codes_bytes = static_cast<std::int64_t>(job.kv_heads) * kCudaPageSize * job.head_dim / 2;
        std::byte* page = job.values + slot / kCudaPageSize * job.value_page_bytes;
        auto* parameters = reinterpret_cast<U4Parameters*>(page + codes_bytes) + slot % kCudaPageSize;
        rounded = store_u4<T>(job, values, parameters, loaded, row - qk_rows, writes);
      } else if (writes) {
        rounded = store<T>(job.value_type, values, job.value_scales, loaded, row - qk_rows);
      }
      if (writes && job.round) *row_data(row) = rounded;
    }
  }
}

// From this many tokens on, a group takes several rows: the token's turns are then read once for them.
constexpr std::int64_t kManyTokens = 512;
constexpr int kRowsOfMany = 6;

}  // namespace

void rope_write(cudaStream_t stream, const RopeWriteArgs& args) {
  if (args.tokens == 0) return;
  const KvLayout& layout = *args.kv.layout;
  const auto [key, value] = layout.format();
  const std::int64_t head_dim = layout.geometry().head_dim;
  const std::int64_t kv_heads = layout.geometry().kv_heads;
  keel::check(layout.order() == PageOrder::cuda, "pages in CUDA's order");
  keel::check(args.stride % kVector == 0, "rows of q, k and v are 16-byte aligned");
  if (head_dim % kVector != 0 || head_dim > kMostHeadDim) {
    throw Error("rope_write on CUDA wants a head dim that is a multiple of " + std::to_string(kVector) + " up to " +
                std::to_string(kMostHeadDim) + ", found " + std::to_string(head_dim));
  }
  if (args.rotary_dim % kVector != 0 || args.rotary_dim > head_dim) {
    throw Error("rope_write on CUDA wants a rotary dim that is a multiple of " + std::to_string(kVector) + " up to the head dim " +
                std::to_string(head_dim) + ", found " + std::to_string(args.rotary_dim));
  }
  if ((key != args.dtype && key != DType::e4m3) || (value != args.dtype && value != DType::e4m3 && value != DType::u4)) {
    throw Error("rope_write on CUDA stores keys as the model's type or fp8_e4m3, and values as those or u4; the model is " +
                std::string(name(args.dtype)) + ", the cache " + to_string(layout.format()));
  }
  int group_shift = 0;
  while ((kVector << group_shift) < head_dim) ++group_shift;
  const int group = 1 << group_shift;
  const Job job{.q = args.q,
                .k = args.k,
                .v = args.v,
                .stride = args.stride,
                .heads = static_cast<int>(args.heads),
                .kv_heads = static_cast<int>(kv_heads),
                .head_dim = static_cast<int>(head_dim),
                .group = group,
                .group_shift = group_shift,
                .q_norm = args.q_norm,
                .k_norm = args.k_norm,
                .epsilon = args.norm_epsilon,
                .inverse_head_dim = 1.0f / static_cast<float>(head_dim),
                .rotary_dim = static_cast<int>(args.rotary_dim),
                .interleaved = args.pairs == RopePairs::interleaved,
                .rope_table = reinterpret_cast<const float2*>(args.rope_table),
                .positions = args.positions,
                .slots = args.slots,
                .keys = args.kv.keys,
                .values = args.kv.values,
                .key_page_bytes = layout.key_page_bytes(),
                .value_page_bytes = layout.value_page_bytes(),
                .key_scales = args.kv.key_scales,
                .value_scales = args.kv.value_scales,
                .key_type = key,
                .value_type = value,
                .key_bits = bits(key),
                .value_bits = bits(value),
                .round = args.round};
  const std::int64_t rows = args.heads + 2 * kv_heads;
  with_model_type(args.dtype, "rope_write", [&]<class T>(T) {
    const bool aligned = args.pairs == RopePairs::half && args.rotary_dim % (2 * kVector) == 0;
    const auto kernel = aligned ? rope_write_kernel<T, true> : rope_write_kernel<T, false>;
    const int rows_a_group = args.tokens < kManyTokens ? 1 : kRowsOfMany;
    const std::int64_t rows_a_block = kThreads / group * rows_a_group;
    const dim3 grid(static_cast<unsigned>(args.tokens), static_cast<unsigned>((rows + rows_a_block - 1) / rows_a_block));
    launch("rope_write", kernel, stream, grid, kThreads, 0, Start::early, job, rows_a_group);
  });
}

void fill_rope_table(float* table, std::int64_t positions, std::int64_t rotary_dim, const double* inverse_frequencies, float magnitude) {
  const std::int64_t pairs = rotary_dim / 2;
  for (std::int64_t position = 0; position < positions; ++position) {
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      const double angle = static_cast<double>(position) * inverse_frequencies[pair];
      float* turn = table + (position * pairs + pair) * 2;
      turn[0] = static_cast<float>(std::cos(angle) * magnitude);
      turn[1] = static_cast<float>(std::sin(angle) * magnitude);
    }
  }
}

}  // namespace keel::cuda
