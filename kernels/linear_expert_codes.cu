// Linear layers of experts whose weights stay codes in memory: each row is multiplied by the
// weights of its expert. The bits are those of kernels/linear_experts.cu over the same values in T.
#include "code_tiles.cuh"
#include "experts.cuh"

// A layer of all experts, as strips of one after those of the other: n is a multiple of STRIP.
struct ExpertCodes {
  const u8* codes;
  const u8* scales;
  const u8* offsets;
  const float* table;  // 16 floats.
  ExpertLayer layer;   // Without weights.
  float zero;
};

template <class Tile>
__device__ __forceinline__ void multiply(const SortedRows& of, const ExpertCodes& experts,
                                         const ExpertRows& rows, const float* levels, T* out) {
  DYN_SMEM(u8, stages);
  const u64* const addresses = addresses_of<Tile::ROWS>(of, rows);
  const auto row_at = [&](u32 row) { return reinterpret_cast<const T*>(addresses[row]); };
  const u32 n = experts.layer.n, num_strips = n / STRIP;
  const u32 first_strip = blockIdx.y * Tile::BLOCK_STRIPS, before = rows.expert * num_strips;
  const CodedStrips strips{experts.codes,        experts.scales,      experts.offsets,
                           before + first_strip, before + num_strips, inputs_of_strip(of.k)};
  Sums<Tile> sums{};
  multiply_codes<Tile>(stages, of.x, row_at, of.k, strips, experts.zero, levels, sums);
  T* const first = out + u64(rows.first) * n;
  const T* bias = experts.layer.bias_of(rows.expert);
  store_sums<Tile>(sums, Outputs{first, bias, rows.end - rows.first, n, n, false}, 0, first_strip);
}

// out (sorted rows, n) = each row of `rows` times its expert's weights, plus its bias. The codes
// are those of kernels/linear_codes.cu, for (num_experts * n) outputs. A block has 128 threads and
// (stages under way) * STAGE_BYTES of dynamic shared memory; grid (at least as many tiles as there
// are, ceil(n / outputs of the tile)).
#define LINEAR_EXPERT_CODES(name, min_blocks, ...)                                               \
  KERNEL(NUM_THREADS, min_blocks)                                                                \
  name(SortedRows rows, ExpertCodes experts, const u32* starts, u32 num_experts, T* out) {       \
    using Tiled = Tile<__VA_ARGS__>;                                                             \
    __shared__ float levels[16];                                                                 \
    ExpertRows of_tile;                                                                          \
    if (!find_tile(starts, num_experts, Tiled::ROWS, blockIdx.x, of_tile)) return;               \
    if (LEVELS == TABLE && threadIdx.x < 16) levels[threadIdx.x] = experts.table[threadIdx.x];   \
    multiply<Tiled>(rows, experts, of_tile, levels, out);                                        \
  }

// Rows, outputs: named for both. The tiles of kernels/linear_codes.cu.
LINEAR_EXPERT_CODES(linear_expert_codes_16x32, 2, 1, 1, 1, 128, 8)
EXPORT(linear_expert_codes_16x32)
LINEAR_EXPERT_CODES(linear_expert_codes_16x128, 2, 1, 4, 1, 128, 4)
EXPORT(linear_expert_codes_16x128)
LINEAR_EXPERT_CODES(linear_expert_codes_64x128, 2, 4, 4, 1, 64, 4)
EXPORT(linear_expert_codes_64x128)
LINEAR_EXPERT_CODES(linear_expert_codes_128x128, 2, 8, 4, 1, 64, 3)
EXPORT(linear_expert_codes_128x128)
