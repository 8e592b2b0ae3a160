// A matrix of its own for each attention head, without matrix units: in float32, for exactness, and
// for widths that those do not take. An output is the sum over k upward, in one accumulator.
#include "by_head.cuh"

constexpr u32 TILE = 16;

// Any k. A block of 16 by 16 threads takes 16 rows and 16 outputs; grid (num_heads *
// ceil(num_rows / 16), ceil(n / 16)).
KERNEL(TILE * TILE) linear_by_head_plain(ByHead of) {
  __shared__ float x[TILE][TILE + 1], w[TILE][TILE + 1];
  const HeadRows rows(of, TILE);
  const u32 column = threadIdx.x % TILE, in_tile = threadIdx.x / TILE;
  const u32 row = rows.first_row + in_tile, first_output = blockIdx.y * TILE;
  const bool has_row = row < of.num_rows, has_weights = first_output + in_tile < of.n;
  const T* const inputs = of.inputs(rows.head, row);
  const T* const weights = of.matrix(rows.head) + u64(first_output + in_tile) * of.k;
  float sum = 0.0f;
  for (u32 start = 0; start < of.k; start += TILE) {
    const bool is_input = start + column < of.k;
    x[in_tile][column] = has_row && is_input ? to_float(inputs[start + column]) : 0.0f;
    w[in_tile][column] = has_weights && is_input ? to_float(weights[start + column]) : 0.0f;
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < TILE; ++i) sum = fmaf(x[in_tile][i], w[column][i], sum);
    __syncthreads();
  }
  const u32 output = first_output + column;
  if (has_row && output < of.n) of.outputs(rows.head, row)[output] = from_float<T>(sum);
}
EXPORT(linear_by_head_plain)
