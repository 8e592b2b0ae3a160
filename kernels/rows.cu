// Sums and means of rows of f32.
#include "mixed_rows.cuh"

// out (num_out, width)[i] = the mean of rows i * num .. (i + 1) * num of x, added upward. One block
// per row of `out`.
KERNEL(256) mean_rows(const float* x, float* out, u32 num, u32 width) {
  x += u64(blockIdx.x) * num * width;
  out += u64(blockIdx.x) * width;
  for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
    float sum = x[i];
    for (u32 row = 1; row < num; ++row) sum += x[u64(row) * width + i];
    out[i] = sum / float(num);
  }
}
EXPORT(mean_rows)

// out (num_rows, width) += the sum of rows of table (any, width): of row i those of
// shares[ends[i - 1]..ends[i]], in their order. One block per row.
KERNEL(256) add_mixed_rows(const u32* ends, const Share* shares, const float* table, float* out,
                           u32 width) {
  const u32 first = first_share(ends, blockIdx.x);
  const u32 end = ends[blockIdx.x];
  out += u64(blockIdx.x) * width;
  for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
    float sum = 0.0f;
    for (u32 at = first; at < end; ++at) {
      sum += table[u64(shares[at].id) * width + i] * shares[at].share;
    }
    out[i] += sum;
  }
}
EXPORT(add_mixed_rows)
