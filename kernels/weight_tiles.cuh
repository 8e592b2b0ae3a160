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
