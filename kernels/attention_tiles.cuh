// Where the K and V of consecutive tiles are, for the warps of a block that share them.
#pragma once

#include "attention.cuh"

// The positions `start` to `end` of a sequence, tile after tile.
struct TileRows {
  const u32* block_table;
  u32 kv_head, start, end;
  // The next tile: its position and the slot of its first row in its block. Lane i has the block of
  // 16 rows i, of LANE_ROWS, around it; looked up one tile ahead of its use.
  u32 next, slot, lane_block;
  static constexpr u32 LANE_ROWS = 32 * 16;

  // Begins at the first of `unit` positions, a number of tiles, of which `start` is one.
  __device__ __forceinline__ void open_at(const Inputs& in, u32 unit) {
    next = start / unit * unit, slot = next % in.block_size;
    look_up(in);
  }
  __device__ __forceinline__ void look_up(const Inputs& in) {
    const u32 position = next / LANE_ROWS * LANE_ROWS + threadIdx.x % 32 * 16;
    lane_block = block_table[min(position, end - 1) / in.block_size];
  }
  // Where the halves of the next tile begin in a cache.
  __device__ __forceinline__ void find(const Inputs& in, u64 (&offsets)[2]) {
    for (u32 half = 0; half < 2; ++half) {
      const u32 block = __shfl_sync(FULL_WARP, lane_block, next % LANE_ROWS / 16 + half);
      const u32 block_head = block * in.cache_kv_heads + kv_head;
      offsets[half] = (u64(block_head) * in.block_size + slot) * HEAD_DIM;
      slot += 16;
      slot = slot == in.block_size ? 0 : slot;
    }
  }
  __device__ __forceinline__ void go_on(const Inputs& in) {
    next += TILE;
    if (next % LANE_ROWS == 0 && next < end) look_up(in);
  }
};
