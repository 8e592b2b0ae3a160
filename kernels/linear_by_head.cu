// A matrix of its own for each attention head, on the matrix units (16-bit types).
#include "by_head.cuh"
#include "weight_tiles.cuh"

template <class Tile>
__device__ __forceinline__ void multiply(const ByHead& of) {
  DYN_SMEM(u8, stages);
  const HeadRows rows(of, Tile::ROWS);
  const u32 num_rows = min(of.num_rows - rows.first_row, Tile::ROWS);
  const T* const x = of.inputs(rows.head, rows.first_row);
  const auto row_at = [&](u32 row) {
    return row < num_rows ? x + u64(row) * of.x_width : nullptr;
  };
  T* const first = of.outputs(rows.head, rows.first_row);
  const Outputs outputs{first, nullptr, num_rows, of.n, of.out_width, false};
  multiply_rows<Tile>(stages, of.x, row_at, of.matrix(rows.head), of.k, outputs);
}

// k, and the width, start and stride of x, are multiples of 8. A block has 128 threads and (stages
// under way) * STAGE_BYTES of dynamic shared memory; grid (num_heads * ceil(num_rows / rows of the
// tile), ceil(n / outputs of the tile)).
#define LINEAR_BY_HEAD(name, min_blocks, ...) \
  KERNEL(NUM_THREADS, min_blocks) name(ByHead of) { multiply<Tile<__VA_ARGS__>>(of); }

// Rows, outputs: named for both.
LINEAR_BY_HEAD(linear_by_head_16x64, 2, 1, 2, 1, 64, 6)
EXPORT(linear_by_head_16x64)
LINEAR_BY_HEAD(linear_by_head_64x128, 2, 4, 4, 1, 64, 3)
EXPORT(linear_by_head_64x128)
LINEAR_BY_HEAD(linear_by_head_128x128, 2, 8, 4, 1, 64, 3)
EXPORT(linear_by_head_128x128)
