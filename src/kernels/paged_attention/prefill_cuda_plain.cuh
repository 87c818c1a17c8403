// The plain prefill kernel: FlashAttention-2's order of work on mma.sync, straight from the pages.
//
// A block serves kPlainRows packed rows of one KV head: row r is query row r / group, query head r % group of that KV head.
// Tiles of tokens come by cp.async: while one is computed, the next is widened and the one after is on its way, with one barrier
// a tile. Stored 16-bit blocks are used as they lie (the page's swizzle is what ldmatrix wants); narrower ones are widened into
// a tile of the same order. Slots past the context are filled with zeros, so that what lies there does not matter.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "device/cuda.h"
#include "kernels/paged_attention/prefill_cuda_plain.h"
#include "kv/cuda_page.h"

namespace keel::cuda {

inline constexpr int kPlainThreads = kPlainWarps * 32;

template <int D>
struct PlainShape {
  static constexpr int kTokens = D > 128 ? 32 : 64;  // a tile
  static constexpr int kPages = kTokens / kCudaPageSize;
  static constexpr int kRowBytes = 2 * D;            // of a token in a 16-bit tile
  static constexpr int kTileBytes = kTokens * kRowBytes;
  // Keys and values each: three 16-bit tiles, or two narrow ones in the first's place and two widened ones.
  static constexpr int kSharedBytes = 6 * kTileBytes;
  static constexpr int kBlocksPerSm = D > 64 ? 1 : 2;  // as registers allow

  __device__ static int tile_at(int bits, int tile) { return bits == 16 ? tile % 3 * kTileBytes : (1 + tile % 2) * kTileBytes; }
  __device__ static int narrow_at(int tile) { return tile % 2 * (kTileBytes / 2); }
  __device__ static int staged_at(int bits, int tile) { return bits == 16 ? tile_at(bits, tile) : narrow_at(tile); }
};

namespace plain {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// Zeros where !wanted; `from` must be a valid address all the same.
template <int kBytes>
__device__ inline void copy_async(std::uint32_t to, const void* from, bool wanted) {
  const int bytes = wanted ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  }
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

__device__ inline void load_matrices(std::uint32_t (&to)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_transposed(std::uint32_t (&to)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

template <class T>
__device__ inline void multiply_add(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <class T>
__device__ inline std::uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  }
}

// Two E4M3 in the low 16 bits; exact in both types.
template <class T>
__device__ inline std::uint32_t widen_e4m3x2(std::uint32_t two) {
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two), __NV_E4M3);
  if constexpr (std::is_same_v<T, __half>) {
    return static_cast<std::uint32_t>(halves.x) | static_cast<std::uint32_t>(halves.y) << 16;
  } else {
    const float2 floats = __half22float2(__half2(halves));
    return pack<T>(floats.x, floats.y);
  }
}

// Starts the copies of one tile of keys or values, kBits an element, in the page's order.
template <int D, int kBits>
__device__ inline void stage(std::uint32_t to, const std::byte* storage, std::int64_t page_bytes, int head, const int (&pages)[PlainShape<D>::kPages],
                             int first_token, int context) {
  constexpr int kRow = D * kBits / 8, kChunks = kRow / kCudaChunkBytes, kPageChunks = kCudaPageSize * kChunks;
  if constexpr (kRow % kCudaChunkBytes == 0) {
#pragma unroll
    for (int page = 0; page < PlainShape<D>::kPages; ++page) {
      const std::byte* from = storage + pages[page] * page_bytes + static_cast<std::int64_t>(head) * (kPageChunks * 16);
#pragma unroll
      for (int first = 0; first < kPageChunks; first += kPlainThreads) {
        const int chunk = first + static_cast<int>(threadIdx.x);
        if (kPageChunks % kPlainThreads == 0 || chunk < kPageChunks) {
          const int token = first_token + page * kCudaPageSize + chunk / kChunks;
          copy_async<16>(to + (page * kPageChunks + chunk) * 16, from + chunk * 16, token < context);
        }
      }
    }
  }
}

// A u4 tile's {f16 scale, f16 zero}, behind its codes.
template <int D>
__device__ inline void stage_parameters(std::uint32_t to, const std::byte* storage, const PlainParameters& p, int head,
                                        const int (&pages)[PlainShape<D>::kPages], int first_token, int context) {
#pragma unroll
  for (int page = 0; page < PlainShape<D>::kPages; ++page) {
    if (threadIdx.x / kCudaPageSize == page) {
      const int slot = threadIdx.x % kCudaPageSize;
      const std::byte* from = storage + pages[page] * p.value_page_bytes + p.parameters_offset + (head * kCudaPageSize + slot) * 4;
      copy_async<4>(to + threadIdx.x * 4, from, first_token + static_cast<int>(threadIdx.x) < context);
    }
  }
}

// Chunk `index` of a narrow tile, in the order it lies, to 16-bit chunks of the widened tile.
template <int D, class T, int kBits>
__device__ inline void widen(std::byte* tile, const std::byte* narrow, const std::byte* parameters) {
  constexpr int kRow = D * kBits / 8, kChunks = kRow / kCudaChunkBytes, kWide = 16 / kBits;
  if constexpr (kRow % kCudaChunkBytes == 0) {
    for (int index = threadIdx.x; index < PlainShape<D>::kTokens * kChunks; index += kPlainThreads) {
      const int token = index / kChunks, slot = token % kCudaPageSize;
      const int chunk = swizzled_chunk(kRow, slot, index % kChunks);
      const uint4 stored = reinterpret_cast<const uint4*>(narrow)[index];
      const std::uint32_t words[4] = {stored.x, stored.y, stored.z, stored.w};
      std::uint32_t wide[4 * kWide];
      if constexpr (kBits == 8) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          wide[2 * i] = widen_e4m3x2<T>(words[i] & 0xffff);
          wide[2 * i + 1] = widen_e4m3x2<T>(words[i] >> 16);
        }
      } else {
        const __half2 scale_zero = reinterpret_cast<const __half2*>(parameters)[token];
        const __half2 scale = __low2half2(scale_zero), zero = __high2half2(scale_zero);
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          const std::uint32_t byte = words[i / 4] >> (i % 4 * 8);
          const std::uint32_t biased = (byte & 0xf) | (byte & 0xf0) << 12 | 0x64006400;  // 1024 + code
          const __half2 code = __hsub2(*reinterpret_cast<const __half2*>(&biased), __float2half2_rn(1024.0f));
          const __half2 value = __hfma2(code, scale, zero);
          wide[i] = *reinterpret_cast<const std::uint32_t*>(&value);
        }
      }
#pragma unroll
      for (int i = 0; i < kWide; ++i) {
        const int to = token * (2 * D / 16) + swizzled_chunk(2 * D, slot, kWide * chunk + i);
        reinterpret_cast<uint4*>(tile)[to] = make_uint4(wide[4 * i], wide[4 * i + 1], wide[4 * i + 2], wide[4 * i + 3]);
      }
    }
  }
}

// T: the type of q, out and widened keys; PV: of P and widened values.
template <class T, class PV, int D>
__global__ __launch_bounds__(kPlainThreads, PlainShape<D>::kBlocksPerSm) void plain_kernel(const __grid_constant__ PlainParameters p) {
  using Shape = PlainShape<D>;
  constexpr int kTokens = Shape::kTokens;
  extern __shared__ __align__(128) std::byte shared[];
  std::byte* const key_tiles = shared;
  std::byte* const value_tiles = shared + 3 * Shape::kTileBytes;

  const int head = blockIdx.x % p.kv_heads;
  const int launch_tile = p.tiles - 1 - static_cast<int>(blockIdx.x / p.kv_heads);  // a sequence's longest first
  int at = 0;
  while (at + 1 < p.sequences && p.sequence[at + 1].first_tile <= launch_tile) ++at;
  const PlainSequence sequence = p.sequence[at];
  const int packed_rows = sequence.rows * p.group;
  const int first_row = (launch_tile - sequence.first_tile) * kPlainRows;

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int quad = lane / 4, pair = lane % 4;
  const int warp_row = first_row + warp * 16;
  const bool warp_works = warp_row < packed_rows;
  const int cached = sequence.context - sequence.rows;  // before the first row

  // This thread's rows, and how many tokens each sees. Rows past the end see what the last one does.
  const auto row_of = [&](int i) { return min(warp_row + quad + 8 * i, packed_rows - 1) / p.group; };
  const auto exists = [&](int i) { return warp_row + quad + 8 * i < packed_rows; };
  const auto element = [&](int i, std::int64_t stride) {
    const int packed = min(warp_row + quad + 8 * i, packed_rows - 1);
    return (sequence.first_row + packed / p.group) * stride + (head * p.group + packed % p.group) * D + pair * 2;
  };
  const int seen[2] = {cached + row_of(0) + 1, cached + row_of(1) + 1};
  const int warp_least = cached + min(warp_row, packed_rows - 1) / p.group + 1;
  const int warp_most = cached + min(warp_row + 15, packed_rows - 1) / p.group + 1;
  const int block_most = cached + min(first_row + kPlainRows - 1, packed_rows - 1) / p.group + 1;

  std::uint32_t q[D / 16][4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const T* from = static_cast<const T*>(p.q) + element(i, p.q_stride);
#pragma unroll
    for (int k = 0; k < D / 8; ++k) {
      q[k / 2][i + k % 2 * 2] = exists(i) ? *reinterpret_cast<const std::uint32_t*>(from + k * 8) : 0;
    }
  }

  const std::int32_t* const table = p.page_table + sequence.table_row * p.page_table_stride;
  const auto load_pages = [&](int (&pages)[Shape::kPages], int tile) {
#pragma unroll
    for (int i = 0; i < Shape::kPages; ++i) {
      const int page = tile * Shape::kPages + i;
      pages[i] = page * kCudaPageSize < sequence.context ? table[page] : 0;
    }
  };
  const auto stage_tile = [&](const int (&pages)[Shape::kPages], int tile) {
    const std::uint32_t keys = shared_address(key_tiles) + Shape::staged_at(p.key_bits, tile);
    const std::uint32_t values = shared_address(value_tiles) + Shape::staged_at(p.value_bits, tile);
    const int first = tile * kTokens;
    if (p.key_bits == 16) {
      stage<D, 16>(keys, p.keys, p.key_page_bytes, head, pages, first, sequence.context);
    } else {
      stage<D, 8>(keys, p.keys, p.key_page_bytes, head, pages, first, sequence.context);
    }
    if (p.value_bits == 16) {
      stage<D, 16>(values, p.values, p.value_page_bytes, head, pages, first, sequence.context);
    } else if (p.value_bits == 8) {
      stage<D, 8>(values, p.values, p.value_page_bytes, head, pages, first, sequence.context);
    } else {
      stage<D, 4>(values, p.values, p.value_page_bytes, head, pages, first, sequence.context);
      stage_parameters<D>(values + Shape::kTileBytes / 4, p.values, p, head, pages, first, sequence.context);
    }
    commit_copies();
  };
  const auto widen_tile = [&](int tile) {
    if (p.key_bits == 8) widen<D, T, 8>(key_tiles + Shape::tile_at(8, tile), key_tiles + Shape::narrow_at(tile), nullptr);
    const std::byte* narrow = value_tiles + Shape::narrow_at(tile);
    if (p.value_bits == 8) widen<D, PV, 8>(value_tiles + Shape::tile_at(8, tile), narrow, nullptr);
    if constexpr (std::is_same_v<PV, __half>) {
      if (p.value_bits == 4) widen<D, PV, 4>(value_tiles + Shape::tile_at(4, tile), narrow, narrow + Shape::kTileBytes / 4);
    }
  };

  const int tiles = (block_most + kTokens - 1) / kTokens;
  int pages[Shape::kPages];
  load_pages(pages, 0);
  stage_tile(pages, 0);
  load_pages(pages, 1);
  wait_for_copies();
  __syncthreads();
  if (tiles > 1) stage_tile(pages, 1);
  load_pages(pages, 2);
  widen_tile(0);

  float sum[D / 8][4] = {};
  float most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
  const float scale = p.softmax_scale * p.key_scales[head] * 1.4426950408889634f;

  // Where this lane's row of a matrix lies: keys by (token, chunk) = (row + 8 · (m / 2), m % 2), values by (row + 8 · (m % 2), m / 2).
  const int m = lane / 8, key_slot = lane % 8 + m / 2 * 8, value_slot = lane % 8 + m % 2 * 8;

  for (int tile = 0; tile < tiles; ++tile) {
    wait_for_copies();
    __syncthreads();
    if (tile + 2 < tiles) {
      stage_tile(pages, tile + 2);
      load_pages(pages, tile + 3);
    }
    if (tile + 1 < tiles) widen_tile(tile + 1);
    const std::byte* key_tile = key_tiles + Shape::tile_at(p.key_bits, tile);
    const std::byte* value_tile = value_tiles + Shape::tile_at(p.value_bits, tile);
    const int first_token = tile * kTokens;
    if (!warp_works || first_token >= warp_most) continue;

    float score[kTokens / 8][4] = {};
    const std::uint32_t key_row = shared_address(key_tile) + key_slot * Shape::kRowBytes;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const std::uint32_t chunk = swizzled_chunk(Shape::kRowBytes, key_slot, 2 * k + m % 2) * 16;
#pragma unroll
      for (int n = 0; n < kTokens / 16; ++n) {
        std::uint32_t keys[4];
        load_matrices(keys, key_row + n * 16 * Shape::kRowBytes + chunk);
        multiply_add<T>(score[2 * n], q[k], keys[0], keys[1]);
        multiply_add<T>(score[2 * n + 1], q[k], keys[2], keys[3]);
      }
    }

    if (first_token + kTokens > warp_least) {
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (first_token + n * 8 + pair * 2 + i % 2 >= seen[i / 2]) score[n][i] = -INFINITY;
        }
      }
    }

    float offset[2], fade[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = most[i];
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) largest = fmaxf(largest, fmaxf(score[n][2 * i], score[n][2 * i + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      fade[i] = exp2_fast((most[i] - largest) * scale);
      most[i] = largest;
      offset[i] = largest * scale;
      total[i] *= fade[i];
    }
    std::uint32_t weight[kTokens / 16][4];
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) score[n][i] = exp2_fast(fmaf(score[n][i], scale, -offset[i / 2]));
      total[0] += score[n][0] + score[n][1];
      total[1] += score[n][2] + score[n][3];
      weight[n / 2][n % 2 * 2] = pack<PV>(score[n][0], score[n][1]);
      weight[n / 2][n % 2 * 2 + 1] = pack<PV>(score[n][2], score[n][3]);
    }
    if (__any_sync(~0u, fade[0] != 1 || fade[1] != 1)) {
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[n][i] *= fade[i / 2];
      }
    }

    const std::uint32_t value_row = shared_address(value_tile) + value_slot * Shape::kRowBytes;
#pragma unroll
    for (int n = 0; n < D / 16; ++n) {
      const std::uint32_t chunk = swizzled_chunk(Shape::kRowBytes, value_slot, 2 * n + m / 2) * 16;
#pragma unroll
      for (int k = 0; k < kTokens / 16; ++k) {
        std::uint32_t values[4];
        load_matrices_transposed(values, value_row + k * 16 * Shape::kRowBytes + chunk);
        multiply_add<PV>(sum[2 * n], weight[k], values[0], values[1]);
        multiply_add<PV>(sum[2 * n + 1], weight[k], values[2], values[3]);
      }
    }
  }

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float all = total[i];
    all += __shfl_xor_sync(~0u, all, 1);
    all += __shfl_xor_sync(~0u, all, 2);
    if (!exists(i)) continue;
    const float factor = p.value_scales[head] / all;
    T* to = static_cast<T*>(p.out) + element(i, p.out_stride);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      *reinterpret_cast<std::uint32_t*>(to + n * 8) = pack<T>(sum[n][2 * i] * factor, sum[n][2 * i + 1] * factor);
    }
  }
}

template <class T, class PV, int D>
void launch(cudaStream_t stream, const PlainParameters& p) {
  static const bool prepared = [] {
    check(cudaFuncSetAttribute(plain_kernel<T, PV, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, PlainShape<D>::kSharedBytes),
          "shared memory of plain prefill attention");
    return true;
  }();
  (void)prepared;
  plain_kernel<T, PV, D><<<static_cast<unsigned>(p.tiles * p.kv_heads), kPlainThreads, PlainShape<D>::kSharedBytes, stream>>>(p);
  check_launch("plain prefill attention");
}

template <class T, class PV>
void launch(cudaStream_t stream, const PlainParameters& p, std::int64_t head_dim) {
  switch (head_dim) {
    case 64: return launch<T, PV, 64>(stream, p);
    case 80: return launch<T, PV, 80>(stream, p);
    case 96: return launch<T, PV, 96>(stream, p);
    case 128: return launch<T, PV, 128>(stream, p);
    case 256: return launch<T, PV, 256>(stream, p);
    default: keel::check(false, "plain prefill attention's head dim is one that plain_prefill_refusal() accepts");
  }
}

}  // namespace plain
}  // namespace keel::cuda
