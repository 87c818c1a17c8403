#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "device/cuda.h"
#include "kernels/paged_attention/prefill_cuda_gather.h"
#include "kv/cuda_page.h"

namespace keel::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__device__ T rounded(float value) {
  if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else {
    return __float2bfloat16_rn(value);
  }
}

template <class T>
__device__ float number(T value) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half2float(value);
  } else {
    return __bfloat162float(value);
  }
}

// Eight stored elements, kBits each, to 16-bit ones.
template <class T, int kBits>
__device__ uint4 expand(const std::uint32_t (&stored)[kBits / 4], float scale, float zero) {
  if constexpr (kBits == 16) {
    return make_uint4(stored[0], stored[1], stored[2], stored[3]);
  } else {
    alignas(16) T wide[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t element = stored[i * kBits / 32] >> (i * kBits % 32);
      if constexpr (kBits == 8) {
        const __half_raw half = __nv_cvt_fp8_to_halfraw(static_cast<__nv_fp8_storage_t>(element & 0xff), __NV_E4M3);
        wide[i] = rounded<T>(__half2float(__half(half)) * scale);
      } else {
        wide[i] = rounded<T>(fmaf(scale, static_cast<float>(element & 15), zero));
      }
    }
    return *reinterpret_cast<const uint4*>(wide);
  }
}

struct GatherParameters {
  GatherArgs args;
  std::int64_t key_page_bytes, value_page_bytes, parameters_offset;
  int kv_heads;
};

// All heads of one page. A thread writes 16 bytes a turn: eight elements of one token's row of a head.
template <class T, int kBits, int D>
__device__ void gather_page(const std::byte* page, const std::byte* parameters, const float* scales, T* to, int tokens, int kv_heads) {
  constexpr int kRow = D * kBits / 8, kPieces = D / 8, kPieceBytes = kBits, kPiecesAChunk = kCudaChunkBytes / kPieceBytes;
  if constexpr (kRow % kCudaChunkBytes == 0) {
#pragma unroll 4
    for (int item = threadIdx.x; item < kv_heads * kCudaPageSize * kPieces; item += kThreads) {
      const int head = item / (kCudaPageSize * kPieces), slot = item / kPieces % kCudaPageSize, piece = item % kPieces;
      std::uint32_t stored[kBits / 4] = {};
      float scale = 0, zero = 0;
      if (slot < tokens) {
        const int chunk = swizzled_chunk(kRow, slot, piece / kPiecesAChunk);
        const std::byte* from = page + (head * kCudaPageSize + slot) * kRow + chunk * kCudaChunkBytes + piece % kPiecesAChunk * kPieceBytes;
        if constexpr (kBits == 16) {
          *reinterpret_cast<uint4*>(stored) = __ldcs(reinterpret_cast<const uint4*>(from));
        } else if constexpr (kBits == 8) {
          *reinterpret_cast<uint2*>(stored) = __ldcs(reinterpret_cast<const uint2*>(from));
          scale = scales[head];
        } else {
          stored[0] = __ldcs(reinterpret_cast<const std::uint32_t*>(from));
          const __half2 scale_zero = reinterpret_cast<const __half2*>(parameters)[head * kCudaPageSize + slot];
          scale = __low2float(scale_zero), zero = __high2float(scale_zero);
        }
      }
      uint4* const row = reinterpret_cast<uint4*>(to + (static_cast<std::int64_t>(slot) * kv_heads + head) * D);
      row[piece] = expand<T, kBits>(stored, scale, zero);
    }
  }
}

// blockIdx: x page of a sequence, y sequence, z keys or values.
template <class T, int D>
__global__ __launch_bounds__(kThreads) void gather_kernel(const __grid_constant__ GatherParameters p) {
  const GatheredSequence& sequence = p.args.sequence[blockIdx.y];
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kCudaPageSize;
  if (first >= sequence.tokens + (blockIdx.y + 1 == p.args.count ? p.args.zero_rows : 0)) return;
  const int tokens = static_cast<int>(max(std::int64_t{0}, min(static_cast<std::int64_t>(kCudaPageSize), sequence.tokens - first)));
  const std::int64_t page = tokens == 0 ? 0 : p.args.page_table[sequence.table_row * p.args.page_table_stride + sequence.first_page + blockIdx.x];
  const std::int64_t to = (sequence.to + first) * p.kv_heads * D;
  if (blockIdx.z == 0) {
    const std::byte* keys = p.args.kv.keys + page * p.key_page_bytes;
    T* rows = static_cast<T*>(p.args.keys) + to;
    if (p.key_page_bytes == p.kv_heads * (kCudaPageSize * D * 2)) {
      gather_page<T, 16, D>(keys, nullptr, nullptr, rows, tokens, p.kv_heads);
    } else {
      gather_page<T, 8, D>(keys, nullptr, p.args.kv.key_scales, rows, tokens, p.kv_heads);
    }
  } else {
    const std::byte* values = p.args.kv.values + page * p.value_page_bytes;
    T* rows = static_cast<T*>(p.args.values) + to;
    if (p.value_page_bytes == p.kv_heads * (kCudaPageSize * D * 2)) {
      gather_page<T, 16, D>(values, nullptr, nullptr, rows, tokens, p.kv_heads);
    } else if (p.value_page_bytes == p.kv_heads * (kCudaPageSize * D)) {
      gather_page<T, 8, D>(values, nullptr, p.args.kv.value_scales, rows, tokens, p.kv_heads);
    } else {
      gather_page<T, 4, D>(values, values + p.parameters_offset, nullptr, rows, tokens, p.kv_heads);
    }
  }
}

template <class T>
void launch_gather(cudaStream_t stream, const GatherParameters& p, dim3 grid, std::int64_t head_dim) {
  switch (head_dim) {
    case 64: gather_kernel<T, 64><<<grid, kThreads, 0, stream>>>(p); break;
    case 80: gather_kernel<T, 80><<<grid, kThreads, 0, stream>>>(p); break;
    case 96: gather_kernel<T, 96><<<grid, kThreads, 0, stream>>>(p); break;
    case 128: gather_kernel<T, 128><<<grid, kThreads, 0, stream>>>(p); break;
    case 256: gather_kernel<T, 256><<<grid, kThreads, 0, stream>>>(p); break;
    default: keel::check(false, "the gather's head dim is one that native_prefill_refusal() accepts");
  }
  check_launch("gather of pages");
}

// A warp a (row, head).
template <class T>
__global__ __launch_bounds__(kThreads) void merge_kernel(const __grid_constant__ MergeArgs p) {
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (item >= p.rows * p.heads) return;
  const std::int64_t row = item / p.heads, head = item % p.heads;
  const float added = p.tile_stats[head * p.stats_stride + row];
  const float before = p.first ? -INFINITY : p.stats[item];
  const float most = fmaxf(before, added);
  const float old_part = expf(before - most), new_part = expf(added - most), total = old_part + new_part;
  const float old_weight = old_part / total, new_weight = new_part / total;
  const T* tile = static_cast<const T*>(p.tile) + item * p.head_dim;
  float* sum = p.sum + item * p.head_dim;
  T* out = static_cast<T*>(p.out) + row * p.out_stride + head * p.head_dim;
  for (std::int64_t d = threadIdx.x % 32; d < p.head_dim; d += 32) {
    float value = number(tile[d]) * new_weight;
    if (!p.first) value += sum[d] * old_weight;
    if (p.last) {
      out[d] = rounded<T>(value);
    } else {
      sum[d] = value;
    }
  }
  if (threadIdx.x % 32 == 0 && !p.last) p.stats[item] = most + logf(total);
}

__global__ void write_integers_kernel(const __grid_constant__ Integers integers, std::int32_t* to) { to[threadIdx.x] = integers.value[threadIdx.x]; }

}  // namespace

void gather_pages(cudaStream_t stream, const GatherArgs& args) {
  const KvLayout& layout = *args.kv.layout;
  const GatherParameters p{.args = args,
                           .key_page_bytes = layout.key_page_bytes(),
                           .value_page_bytes = layout.value_page_bytes(),
                           .parameters_offset = layout.value_parameters_offset(0, 0),
                           .kv_heads = static_cast<int>(layout.geometry().kv_heads)};
  std::int64_t pages = 0;
  for (int i = 0; i < args.count; ++i) {
    const std::int64_t rows = args.sequence[i].tokens + (i + 1 == args.count ? args.zero_rows : 0);
    pages = max(pages, (rows + kCudaPageSize - 1) / kCudaPageSize);
  }
  if (pages == 0) return;
  const dim3 grid(static_cast<unsigned>(pages), static_cast<unsigned>(args.count), 2);
  if (args.dtype == DType::f16) {
    launch_gather<__half>(stream, p, grid, layout.geometry().head_dim);
  } else {
    launch_gather<__nv_bfloat16>(stream, p, grid, layout.geometry().head_dim);
  }
}

void merge_tile(cudaStream_t stream, const MergeArgs& args) {
  const unsigned blocks = static_cast<unsigned>((args.rows * args.heads + kThreads / 32 - 1) / (kThreads / 32));
  if (args.dtype == DType::f16) {
    merge_kernel<__half><<<blocks, kThreads, 0, stream>>>(args);
  } else {
    merge_kernel<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(args);
  }
  check_launch("merge of tiles");
}

void write_integers(cudaStream_t stream, const Integers& integers, std::int32_t* to) {
  write_integers_kernel<<<1, sizeof(integers.value) / sizeof(std::int32_t), 0, stream>>>(integers, to);
  check_launch("sequence lengths");
}

}  // namespace keel::cuda
