// Tiles of E4M3 become operands of f16, in registers or on a way through shared memory. Both give
// the products of a row the same order, and so the same bits.
//
// A lane of ldmatrix has two elements of 16 bits, which are four of E4M3: lane j of four has
// elements 4 j to 4 j + 3 of the 16 of a step. Those of keys are two pairs in turn, so that a
// step's sum takes its depth in that order, of queries as well. Those of values are columns: the
// first product of a step has the even ones, the second the odd ones.
#pragma once

#include "attention_splits.cuh"

// Four elements as the pairs of a step's first and second eight.
template <bool are_values>
__device__ __forceinline__ void widen_four(u32 four, u32 (&pairs)[2]) {
  if (are_values) four = __byte_perm(four, 0, 0x3120);
  widen_e4m3x4(four, pairs);
}

// Makes a tile of f16 of one that `copy_tile` has copied. Each thread takes what it copied.
template <u32 num_threads, bool are_values>
__device__ __forceinline__ void widen_tile(SmemAddress from, u32 thread, SmemAddress to) {
  constexpr u32 CHUNKS = HEAD_DIM / 16;
  // Unrolled it is no faster, since loads stay behind the stores before them, and registers spill.
#pragma unroll 1
  for (u32 index = thread; index < TILE * CHUNKS; index += num_threads) {
    const Words<4> narrow = load_shared_16(from + index * 16);
    Words<4> wide[2];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      u32 pairs[2];
      widen_four<are_values>(narrow.word[i], pairs);
      wide[0].word[i] = pairs[0], wide[1].word[i] = pairs[1];
    }
    for (u32 half = 0; half < 2; ++half) {
      store_shared_16(to + chunk_offset(index / CHUNKS, index % CHUNKS * 2 + half), wide[half]);
    }
  }
}

// Where its registers hold what that takes, decode widens as it multiplies.
constexpr bool WIDENS_OPERANDS = IS_FP8 && HEAD_DIM <= 192;
// Then so many neighbouring chunks of a row are permuted: the eight rows of a matrix fall on eight
// different groups of banks.
constexpr u32 PERMUTED = HEAD_DIM % 128 == 0  ? 8
                         : HEAD_DIM % 64 == 0 ? 4
                         : HEAD_DIM % 32 == 0 ? 2
                                              : 1;

struct NarrowPlace {
  static __device__ __forceinline__ u32 offset(u32 row, u32 chunk) {
    return row * HEAD_DIM + (chunk ^ row / (8 / PERMUTED) % PERMUTED) * 16;
  }
  // `offset` at step i of `at`, the address at step 0; a step is one chunk.
  static __device__ __forceinline__ SmemAddress at_step(SmemAddress at, u32 step) {
    return (at ^ SmemAddress(step % PERMUTED * 16)) + step / PERMUTED * PERMUTED * 16;
  }
};

// As `score_tile`, of a tile of E4M3 and one group of rows.
template <class Queries>
__device__ __forceinline__ void score_narrow_tile(const Queries& queries, SmemAddress keys,
                                                  float (&scores)[4][4]) {
  const SmemAddress at = keys + NarrowPlace::offset(hide(threadIdx.x) % 32, 0);
#pragma unroll
  for (u32 step = 0; step < DEPTH_STEPS; ++step) {
    u32 a[4], fours[4];
    queries.fragment(0, step, a);
    ldmatrix(NarrowPlace::at_step(at, step), fours);
#pragma unroll
    for (u32 n = 0; n < 4; ++n) {
      u32 b[2];
      widen_four<false>(fours[n], b);
      mma<f16>(scores[n], a, b[0], b[1]);
    }
  }
}

// As `add_values`, of a tile of E4M3 and one group of rows.
__device__ __forceinline__ void add_narrow_values(const float (&scores)[4][4], SmemAddress values,
                                                  Partial& partial) {
  const SmemAddress at = values + NarrowPlace::offset(hide(threadIdx.x) % 32, 0);
  u32 p[2][4];
  for (u32 half = 0; half < 2; ++half) load_probabilities(scores, half, p[half]);
#pragma unroll
  for (u32 step = 0; step < DEPTH_STEPS; ++step) {
    u32 fours[4];
    ldmatrix_transposed(NarrowPlace::at_step(at, step), fours);
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      u32 low[2], high[2];
      widen_four<true>(fours[2 * half], low);
      widen_four<true>(fours[2 * half + 1], high);
      mma<f16>(partial.values[2 * step], p[half], low[0], high[0]);
      mma<f16>(partial.values[2 * step + 1], p[half], low[1], high[1]);
    }
  }
}
