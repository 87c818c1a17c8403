// Order of the 16-byte chunks in a token's row of a CUDA page (see kv/layout.h); for host and device code.
#pragma once

#ifdef __CUDACC__
#define KEEL_HOST_DEVICE __host__ __device__
#else
#define KEEL_HOST_DEVICE
#endif

namespace keel {

inline constexpr int kCudaPageSize = 16;   // token slots
inline constexpr int kCudaChunkBytes = 16;

// Largest power of two, at most 8, that divides the chunks of a row.
KEEL_HOST_DEVICE constexpr int swizzle_group(int row_bytes) {
  const int chunks = row_bytes / kCudaChunkBytes;
  return chunks % 8 == 0 ? 8 : chunks % 4 == 0 ? 4 : chunks % 2 == 0 ? 2 : 1;
}

// Where chunk `chunk` of slot `slot`'s row stands in that row. Eight consecutive slots' chunks of one index fall on
// different banks: ldmatrix of 8 rows reads them in one pass, whatever the row's length. Its own inverse.
struct Swizzle {
  int shift, mask;
  KEEL_HOST_DEVICE constexpr int operator()(int slot, int chunk) const { return chunk ^ (slot >> shift & mask); }
};
KEEL_HOST_DEVICE constexpr Swizzle swizzle_of(int row_bytes) {
  const int group = swizzle_group(row_bytes);
  return {group == 8 ? 0 : group == 4 ? 1 : group == 2 ? 2 : 3, group - 1};
}
KEEL_HOST_DEVICE constexpr int swizzled_chunk(int row_bytes, int slot, int chunk) { return swizzle_of(row_bytes)(slot, chunk); }

}  // namespace keel
