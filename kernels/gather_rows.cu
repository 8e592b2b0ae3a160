// Rows of one tensor, in the order of a list.
#include "common.cuh"

template <class Piece>
__device__ __forceinline__ void copy_row(const void* from, void* to, u32 row_bytes) {
  const Piece* source = static_cast<const Piece*>(from);
  Piece* target = static_cast<Piece*>(to);
  for (u32 i = threadIdx.x; i < row_bytes / sizeof(Piece); i += blockDim.x) target[i] = source[i];
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
