// Products of rows and weights that lie in rows of T, on the matrix units.
#pragma once

#include "tiles.cuh"

// The stages of a tile: rows of x, then those of the weights.
template <u32... TILE>
struct Tile : RowTile<TILE...> {
  using Rows = RowTile<TILE...>;
  static constexpr u32 OUTPUTS = Rows::BLOCK_STRIPS * STRIP;
  static constexpr u32 STAGE_BYTES = Rows::X_BYTES + OUTPUTS * Rows::ROW_BYTES;
  static_assert(Rows::STRIPS % 2 == 0, "two strips are loaded at once");
};

template <class Tile>
__device__ __forceinline__ void add_stage(const u8* stage, Sums<Tile>& sums) {
  const u32 lane = lane_of_thread();
  const u8* weights = stage + Tile::X_BYTES;
#pragma unroll
  for (u32 step = 0; step < Tile::INPUTS / STEP; ++step) {
    u32 x[Tile::ROW_TILES][4];
    load_rows<Tile>(stage, step, x);
#pragma unroll
    for (u32 s = 0; s < Tile::STRIPS; s += 2) {
      // Both halves of a step of one strip, then of the next.
      const u32 row = (Tile::strip_of_warp() + s + lane / 16) * STRIP + lane % 8;
      u32 b[4];
      ldmatrix(smem_address(weights + x_place<Tile>(row, step * 2 + lane / 8 % 2)), b);
#pragma unroll
      for (u32 r = 0; r < Tile::ROW_TILES; ++r) {
        mma<T>(sums.values[r][s], x[r], b[0], b[1]);
        mma<T>(sums.values[r][s + 1], x[r], b[2], b[3]);
      }
    }
  }
}

// A block's outputs, from strip blockIdx.y * BLOCK_STRIPS on: rows of x times weights (n, k).
// `row_at(row)`: a row of the block, null where there is none; `any`: what may be read instead.
template <class Tile, class RowAt>
__device__ __forceinline__ void multiply_rows(u8* stages, const T* any, const RowAt& row_at,
                                              const T* weights, u32 k, const Outputs& outputs) {
  const u32 first_strip = blockIdx.y * Tile::BLOCK_STRIPS, first_output = first_strip * STRIP;
  const auto copy = [&](u32 stage, u8* to) {
    const u32 input = stage * Tile::INPUTS;
    copy_rows<Tile, Tile::ROWS>(to, input, k, any, row_at);
    copy_rows<Tile, Tile::OUTPUTS>(to + Tile::X_BYTES, input, k, any, [&](u32 row) {
      const u32 output = first_output + row;
      return output < outputs.n ? weights + u64(output) * k : nullptr;
    });
  };
  Sums<Tile> sums{};
  const u32 num_stages = (k + Tile::INPUTS - 1) / Tile::INPUTS;
  for_each_stage<Tile, Tile::STAGE_BYTES>(stages, num_stages, copy, [&](const u8* stage) {
    add_stage<Tile>(stage, sums);
  });
  store_sums<Tile>(sums, outputs, 0, first_strip);
}
