// Sums and means of rows of f32.
#include "common.cuh"

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

// Four rows of a table, each with its share in a sum.
struct MixedRow {
  u32 ids[4];
  float shares[4];
};

// out (num_rows, width) += the sum of rows of table (any, width). One block per row.
KERNEL(256) add_mixed_rows(const MixedRow* rows, const float* table, float* out, u32 width) {
  const MixedRow row = rows[blockIdx.x];
  out += u64(blockIdx.x) * width;
  for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
    float sum = 0.0f;
#pragma unroll
    for (u32 part = 0; part < 4; ++part) {
      sum += table[u64(row.ids[part]) * width + i] * row.shares[part];
    }
    out[i] += sum;
  }
}
EXPORT(add_mixed_rows)
