// Products of rows and weights on the matrix units: what a block computes, and how it goes along k.
//
// An output is the sum over k upward, 16 inputs a step, in one accumulator. A tile decides which
// outputs a block computes, never how: all tiles give the same bits.
#pragma once

#include "ptx.cuh"

constexpr u32 NUM_WARPS = 4;
constexpr u32 NUM_THREADS = NUM_WARPS * WARP_SIZE;
constexpr u32 STEP = 16;
// Outputs that a warp multiplies at once.
constexpr u32 STRIP = 8;
constexpr u32 COPY_BYTES = 16;

__device__ __forceinline__ u32 lane_of_thread() { return threadIdx.x % WARP_SIZE; }
__device__ __forceinline__ u32 warp_of_thread() { return threadIdx.x / WARP_SIZE; }

// What a warp computes, 16 * ROW_TILES rows by STRIPS strips, how many warps share a strip, and how
// a block goes along k: in stages of `INPUTS`, `NUM_STAGES` under way.
template <u32 ROW_TILES_, u32 STRIPS_, u32 ROW_WARPS_, u32 INPUTS_, u32 NUM_STAGES_>
struct RowTile {
  static constexpr u32 ROW_TILES = ROW_TILES_, STRIPS = STRIPS_, INPUTS = INPUTS_;
  static constexpr u32 ROW_WARPS = ROW_WARPS_, NUM_STAGES = NUM_STAGES_;
  static constexpr u32 ROWS = 16 * ROW_TILES * ROW_WARPS;
  static constexpr u32 BLOCK_STRIPS = STRIPS * (NUM_WARPS / ROW_WARPS);
  static constexpr u32 ROW_BYTES = INPUTS * sizeof(T);
  static constexpr u32 X_BYTES = ROWS * ROW_BYTES;

  // The first row and strip of a warp, of those of its block.
  static __device__ __forceinline__ u32 row_of_warp() {
    return warp_of_thread() % ROW_WARPS * ROW_TILES * 16;
  }
  static __device__ __forceinline__ u32 strip_of_warp() {
    return warp_of_thread() / ROW_WARPS * STRIPS;
  }
};

// Where 8 inputs of a row are in shared memory: 8 rows of one column lie in different banks.
template <class Tile>
__device__ __forceinline__ u32 x_place(u32 row, u32 chunk) {
  return row * Tile::ROW_BYTES + (chunk ^ row % 8) * COPY_BYTES;
}

// Inputs from `first_input` on, of NUM_ROWS rows of k; zeros past the end of a row, and where
// `row_at(row)` is null.
template <class Tile, u32 NUM_ROWS, class RowAt>
__device__ __forceinline__ void copy_rows(u8* to, u32 first_input, u32 k, const T* any,
                                          const RowAt& row_at) {
  constexpr u32 CHUNKS = Tile::INPUTS / CHUNK;
  static_assert(NUM_ROWS * CHUNKS % NUM_THREADS == 0, "every thread copies as many");
#pragma unroll
  for (u32 i = 0; i < NUM_ROWS * CHUNKS / NUM_THREADS; ++i) {
    const u32 index = i * NUM_THREADS + threadIdx.x, row = index / CHUNKS, chunk = index % CHUNKS;
    const u32 input = first_input + chunk * CHUNK;
    const T* from = row_at(row);
    const bool is_valid = from != nullptr && input < k;
    copy_async_16(smem_address(to + x_place<Tile>(row, chunk)), is_valid ? from + input : any,
                  is_valid);
  }
}

// Operand a of one step: the rows of this warp, from where `copy_rows` has put them.
template <class Tile>
__device__ __forceinline__ void load_rows(const u8* rows, u32 step, u32 (&x)[Tile::ROW_TILES][4]) {
  const u32 lane = lane_of_thread();
#pragma unroll
  for (u32 r = 0; r < Tile::ROW_TILES; ++r) {
    const u32 at = x_place<Tile>(Tile::row_of_warp() + r * 16 + lane % 16, step * 2 + lane / 16);
    ldmatrix(smem_address(rows + at), x[r]);
  }
}

template <class Tile>
struct Sums {
  float values[Tile::ROW_TILES][Tile::STRIPS][4];
};

// Where the outputs of a block go: rows of `stride` elements, T or f32.
struct Outputs {
  void* first;
  const T* bias;
  u32 num_rows, n, stride;
  bool is_f32;

  __device__ __forceinline__ void store(u32 row, u32 column, float sum) const {
    if (row >= num_rows || column >= n) return;
    const float value = bias == nullptr ? sum : sum + to_float(bias[column]);
    const u64 at = u64(row) * stride + column;
    if (is_f32) {
      static_cast<float*>(first)[at] = value;
    } else {
      static_cast<T*>(first)[at] = from_float<T>(value);
    }
  }
};

template <class Tile>
__device__ __forceinline__ void store_sums(const Sums<Tile>& sums, const Outputs& out,
                                           u32 first_row, u32 first_strip) {
  const u32 lane = lane_of_thread();
  first_row += Tile::row_of_warp();
  first_strip += Tile::strip_of_warp();
#pragma unroll
  for (u32 r = 0; r < Tile::ROW_TILES; ++r) {
#pragma unroll
    for (u32 s = 0; s < Tile::STRIPS; ++s) {
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        const u32 row = first_row + r * 16 + lane / 4 + i / 2 * 8;
        const u32 column = (first_strip + s) * STRIP + lane % 4 * 2 + i % 2;
        out.store(row, column, sums.values[r][s][i]);
      }
    }
  }
}

// Goes along k: `copy(stage, to)` starts to bring a stage to shared memory, `add(from)` multiplies
// it.
template <class Tile, u32 STAGE_BYTES, class Copy, class Add>
__device__ __forceinline__ void for_each_stage(u8* stages, u32 num_stages, const Copy& copy,
                                               const Add& add) {
#pragma unroll
  for (u32 stage = 0; stage < Tile::NUM_STAGES - 1; ++stage) {
    if (stage < num_stages) copy(stage, stages + stage * STAGE_BYTES);
    commit_async();
  }
  u32 slot = 0;
  for (u32 stage = 0; stage < num_stages; ++stage) {
    wait_async<Tile::NUM_STAGES - 2>();
    // All have what this stage needs, and none is at the stage before, whose place is filled.
    __syncthreads();
    const u32 next = stage + Tile::NUM_STAGES - 1;
    const u32 free = slot == 0 ? Tile::NUM_STAGES - 1 : slot - 1;
    if (next < num_stages) copy(next, stages + free * STAGE_BYTES);
    commit_async();
    add(stages + slot * STAGE_BYTES);
    slot = slot + 1 == Tile::NUM_STAGES ? 0 : slot + 1;
  }
}
