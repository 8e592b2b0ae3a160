// Linear layers of experts without matrix units: in float32, for exactness, and for widths that
// those do not take. An output is the sum over k upward, in one accumulator.
#include "experts.cuh"

constexpr u32 TILE = 16;

// As kernels/linear_experts.cu, for any k. A block of 16 by 16 threads takes 16 rows and 16
// outputs; grid (at least as many tiles of 16 rows as there are, ceil(n / 16)).
KERNEL(TILE * TILE)
linear_experts_plain(SortedRows rows, ExpertLayer layer, const u32* starts, u32 num_experts,
                     T* out) {
  __shared__ float x[TILE][TILE + 1], w[TILE][TILE + 1];
  ExpertRows of_tile;
  if (!find_tile(starts, num_experts, TILE, blockIdx.x, of_tile)) return;
  const u32 column = threadIdx.x % TILE, row = threadIdx.x / TILE;
  const u32 sorted = of_tile.first + row, first_output = blockIdx.y * TILE;
  const bool has_row = sorted < of_tile.end, has_weights = first_output + row < layer.n;
  const T* of_row = has_row ? rows.row(sorted) : nullptr;
  const T* weights = reinterpret_cast<const T*>(layer.weights[of_tile.expert]);
  const T* of_output = weights + u64(first_output + row) * layer.k;
  float sum = 0.0f;
  for (u32 start = 0; start < layer.k; start += TILE) {
    const bool is_input = start + column < layer.k;
    x[row][column] = has_row && is_input ? to_float(of_row[start + column]) : 0.0f;
    w[row][column] = has_weights && is_input ? to_float(of_output[start + column]) : 0.0f;
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < TILE; ++i) sum = fmaf(x[row][i], w[column][i], sum);
    __syncthreads();
  }
  const u32 output = first_output + column;
  if (!has_row || output >= layer.n) return;
  if (layer.biases != nullptr) {
    sum += to_float(reinterpret_cast<const T*>(layer.biases[of_tile.expert])[output]);
  }
  out[u64(sorted) * layer.n + output] = from_float<T>(sum);
}
EXPORT(linear_experts_plain)
