// Shares of each row, as Ovis 2 makes words of patches.
#include "common.cuh"

// x (num_rows, width) = e^x over the sum of these in its row, in place. One block per row.
KERNEL(256) softmax_rows(T* x, u32 width) {
  __shared__ float tops[WARP_SIZE], sums[WARP_SIZE];
  x += u64(blockIdx.x) * width;
  // Maxima are of what is not negative: distances from the row's first value, above it and below.
  const float first = to_float(x[0]);
  float above = 0.0f;
  for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
    above = fmaxf(above, to_float(x[i]) - first);
  }
  const float top = block_reduce<Max>(above, tops) + first;
  float sum = 0.0f;
  for (u32 i = threadIdx.x; i < width; i += blockDim.x) sum += expf(to_float(x[i]) - top);
  sum = block_reduce<Sum>(sum, sums);
  for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
    x[i] = from_float<T>(expf(to_float(x[i]) - top) / sum);
  }
}
EXPORT(softmax_rows)
