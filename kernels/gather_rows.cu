// Rows of one tensor, in the order of a list; and copies of blocks of the KV cache.
#include "common.cuh"

template <class Piece>
__device__ __forceinline__ void copy_row(const void* from, void* to, u32 row_bytes) {
  const Piece* source = static_cast<const Piece*>(from);
  Piece* target = static_cast<Piece*>(to);
  const u32 n = row_bytes / sizeof(Piece), step = blockDim.x;
  // Several loads are under way before the first store.
  constexpr u32 NUM_PARTS = 4;
  for (u32 first = threadIdx.x; first < n; first += NUM_PARTS * step) {
    Piece pieces[NUM_PARTS];
#pragma unroll
    for (u32 j = 0; j < NUM_PARTS; ++j) {
      if (first + j * step < n) pieces[j] = source[first + j * step];
    }
#pragma unroll
    for (u32 j = 0; j < NUM_PARTS; ++j) {
      if (first + j * step < n) target[first + j * step] = pieces[j];
    }
  }
}

// out (num_out, row_bytes) = x (num_rows, row_bytes)[indices (num_out)]; row_bytes is even.
// One block per row of `out`.
KERNEL(1024) gather_rows(const u32* indices, const void* x, void* out, u32 row_bytes) {
  const u8* from = static_cast<const u8*>(x) + u64(indices[blockIdx.x]) * row_bytes;
  u8* to = static_cast<u8*>(out) + u64(blockIdx.x) * row_bytes;
  if (row_bytes % 16 == 0 && is_aligned(from, 16) && is_aligned(to, 16)) {
    copy_row<Words<4>>(from, to, row_bytes);
  } else {
    copy_row<u16>(from, to, row_bytes);
  }
}
EXPORT(gather_rows)

// For each (from, to) of copies (num_copies, 2): block `to` = block `from`. They are of blocks
// (num_blocks, block_bytes), and from num_blocks on of of_host (.., block_bytes), which lies in the
// host's memory. block_bytes is a multiple of 4, and no block is both a `from` and a `to`. Grid
// (num_copies).
KERNEL(1024)
copy_blocks(const u32* copies, u8* blocks, u8* of_host, u32 num_blocks, u32 block_bytes) {
  const auto find = [&](u32 block) {
    const bool is_here = block < num_blocks;
    return (is_here ? blocks : of_host) + u64(is_here ? block : block - num_blocks) * block_bytes;
  };
  const u8* source = find(copies[2 * blockIdx.x]);
  u8* target = find(copies[2 * blockIdx.x + 1]);
  if (block_bytes % 16 == 0) {
    copy_row<Words<4>>(source, target, block_bytes);
  } else {
    copy_row<u32>(source, target, block_bytes);
  }
}
EXPORT(copy_blocks)
