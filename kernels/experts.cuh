// Rows that are sorted by experts, and the tiles that they are multiplied in.
#pragma once

#include "common.cuh"

// A row that goes to no expert.
constexpr u32 NO_PLACE = 0xFFFFFFFFu;

// Rows first .. end of the sorted ones, all of one expert.
struct ExpertRows {
  u32 expert, first, end;
};

// The tile with this number, of up to `tile_rows` rows each; false: there are fewer. starts
// (num_experts + 1): the first sorted row of each expert. The lanes of a warp look together, and
// find the same.
__device__ __forceinline__ bool find_tile(const u32* starts, u32 num_experts, u32 tile_rows,
                                          u32 tile, ExpertRows& found) {
  const u32 lane = threadIdx.x % WARP_SIZE;
  for (u32 base = 0; base < num_experts; base += WARP_SIZE) {
    const u32 expert = base + lane;
    u32 first = 0, end = 0;
    if (expert < num_experts) {
      first = starts[expert];
      end = starts[expert + 1];
    }
    const u32 num_tiles = (end - first + tile_rows - 1) / tile_rows;
    const u32 before_next = warp_prefix_sum(num_tiles);
    const u32 is_behind = __ballot_sync(FULL_WARP, before_next > tile);
    if (is_behind != 0) {
      const u32 owner = __ffs(is_behind) - 1;
      const u32 before = __shfl_sync(FULL_WARP, before_next - num_tiles, owner);
      first = __shfl_sync(FULL_WARP, first, owner) + (tile - before) * tile_rows;
      end = __shfl_sync(FULL_WARP, end, owner);
      found = ExpertRows{base + owner, first, Min()(first + tile_rows, end)};
      return true;
    }
    tile -= __shfl_sync(FULL_WARP, before_next, WARP_SIZE - 1);
  }
  return false;
}

// A layer of all experts, whose weights lie one after the other.
struct ExpertLayer {
  const T* weights;  // (num_experts, n, k)
  const T* biases;   // (num_experts, n), or null
  u32 n, k;

  __device__ __forceinline__ const T* bias_of(u32 expert) const {
    return biases == nullptr ? nullptr : biases + u64(expert) * n;
  }
};

// The rows that are multiplied: sorted row r is row order[r] / num_chosen of x, or row r.
struct SortedRows {
  const T* x;
  const u32* order;  // Or null.
  u32 num_chosen, k;

  __device__ __forceinline__ const T* row(u32 sorted) const {
    const u32 row = order == nullptr ? sorted : order[sorted] / num_chosen;
    return x + u64(row) * k;
  }
};

// Where the rows of a tile are, 0 past the last: looked up once, by all threads of a block.
template <u32 NUM_ROWS>
__device__ __forceinline__ const u64* addresses_of(const SortedRows& of, const ExpertRows& rows) {
  __shared__ u64 addresses[NUM_ROWS];
  for (u32 row = threadIdx.x; row < NUM_ROWS; row += blockDim.x) {
    const u32 sorted = rows.first + row;
    addresses[row] = sorted < rows.end ? reinterpret_cast<u64>(of.row(sorted)) : 0;
  }
  __syncthreads();
  return addresses;
}
