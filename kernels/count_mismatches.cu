// How many elements of a matrix differ from the rows it should repeat, by their bits.
#include "common.cuh"

// count (1) += the words of x (rows, width) that are not those of reference (period, width) at row
// (row % period). Grid (rows).
KERNEL(256)
count_mismatches(const u16* x, const u16* reference, u32 width, u32 period, u32* count) {
  const u64 row = blockIdx.x;
  const u16* found = x + row * width;
  const u16* wanted = reference + row % period * width;
  u32 mismatches = 0;
  for (u32 i = threadIdx.x; i < width; i += blockDim.x) mismatches += found[i] != wanted[i];
  if (mismatches > 0) atomicAdd(count, mismatches);
}
EXPORT(count_mismatches)
