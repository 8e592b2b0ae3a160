// Linear layers of experts without matrix units: in float32, for exactness, and for widths that
// those do not take.
#include "experts.cuh"
#include "plain_tiles.cuh"

// As kernels/linear_experts.cu, for any k. A block of 16 by 16 threads takes 16 rows and 16
// outputs; grid (at least as many tiles of 16 rows as there are, ceil(n / 16)).
KERNEL(TILE * TILE)
linear_experts_plain(SortedRows rows, ExpertLayer layer, const u32* starts, u32 num_experts,
                     T* out) {
  ExpertRows of_tile;
  if (!find_tile(starts, num_experts, TILE, blockIdx.x, of_tile)) return;
  const u32 in_tile = threadIdx.x / TILE, first_output = blockIdx.y * TILE;
  const u32 sorted = of_tile.first + in_tile, output = first_output + threadIdx.x % TILE;
  const bool has_row = sorted < of_tile.end;
  const T* weights =
      layer.weights + (u64(of_tile.expert) * layer.n + first_output + in_tile) * layer.k;
  float sum = plain_sum(has_row ? rows.row(sorted) : nullptr,
                        first_output + in_tile < layer.n ? weights : nullptr, layer.k);
  if (!has_row || output >= layer.n) return;
  const T* bias = layer.bias_of(of_tile.expert);
  if (bias != nullptr) sum += to_float(bias[output]);
  out[u64(sorted) * layer.n + output] = from_float<T>(sum);
}
EXPORT(linear_experts_plain)
