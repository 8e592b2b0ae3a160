// Linear layers of experts: each row is multiplied by the weights of its expert, on the matrix
// units (16-bit types).
#include "experts.cuh"
#include "weight_tiles.cuh"

template <class Tile>
__device__ __forceinline__ void multiply(const SortedRows& of, const ExpertLayer& layer,
                                         const ExpertRows& rows, T* out) {
  DYN_SMEM(u8, stages);
  const u64* const addresses = addresses_of<Tile::ROWS>(of, rows);
  const auto row_at = [&](u32 row) { return reinterpret_cast<const T*>(addresses[row]); };
  const T* weights = layer.weights + u64(rows.expert) * layer.n * layer.k;
  T* const first = out + u64(rows.first) * layer.n;
  const u32 num_rows = rows.end - rows.first;
  const Outputs outputs{first, layer.bias_of(rows.expert), num_rows, layer.n, layer.n, false};
  multiply_rows<Tile>(stages, of.x, row_at, weights, layer.k, outputs);
}

// out (sorted rows, n) = each row of `rows` times its expert's weights, plus its bias. k is a
// multiple of 8. A block has 128 threads and (stages under way) * STAGE_BYTES of dynamic shared
// memory; grid (at least as many tiles as there are, ceil(n / outputs of the tile)).
#define LINEAR_EXPERTS(name, min_blocks, ...)                                                    \
  KERNEL(NUM_THREADS, min_blocks)                                                                \
  name(SortedRows rows, ExpertLayer layer, const u32* starts, u32 num_experts, T* out) {         \
    using Tiled = Tile<__VA_ARGS__>;                                                             \
    ExpertRows of_tile;                                                                          \
    if (!find_tile(starts, num_experts, Tiled::ROWS, blockIdx.x, of_tile)) return;               \
    multiply<Tiled>(rows, layer, of_tile, out);                                                  \
  }

// Rows, outputs: named for both.
LINEAR_EXPERTS(linear_experts_16x64, 2, 1, 2, 1, 64, 6)
EXPORT(linear_experts_16x64)
LINEAR_EXPERTS(linear_experts_64x128, 2, 4, 4, 1, 64, 3)
EXPORT(linear_experts_64x128)
LINEAR_EXPERTS(linear_experts_128x128, 2, 8, 4, 1, 64, 3)
EXPORT(linear_experts_128x128)
