// A matrix of its own for each attention head, without matrix units: in float32, for exactness, and
// for widths that those do not take.
#include "by_head.cuh"
#include "plain_tiles.cuh"

// Any k. A block of 16 by 16 threads takes 16 rows and 16 outputs; grid (num_heads *
// ceil(num_rows / 16), ceil(n / 16)).
KERNEL(TILE * TILE) linear_by_head_plain(ByHead of) {
  const HeadRows rows(of, TILE);
  const u32 in_tile = threadIdx.x / TILE, first_output = blockIdx.y * TILE;
  const u32 row = rows.first_row + in_tile, output = first_output + threadIdx.x % TILE;
  const T* const weights = of.matrix(rows.head) + u64(first_output + in_tile) * of.k;
  const float sum = plain_sum(row < of.num_rows ? of.inputs(rows.head, row) : nullptr,
                              first_output + in_tile < of.n ? weights : nullptr, of.k);
  if (row >= of.num_rows || output >= of.n) return;
  of.outputs(rows.head, row)[output] = from_float<T>(sum);
}
EXPORT(linear_by_head_plain)
