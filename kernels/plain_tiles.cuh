// Products of rows and weights that lie in rows of T, without matrix units.
#pragma once

#include "common.cuh"

// Rows and outputs of a block of 16 by 16 threads.
constexpr u32 TILE = 16;

// The sum over k upward, in one accumulator, for row threadIdx.x / TILE and output threadIdx.x %
// TILE of a block. `inputs`: of the thread's row; `weights`: of output threadIdx.x / TILE; null
// where there is none. For all threads of a block.
__device__ __forceinline__ float plain_sum(const T* inputs, const T* weights, u32 k) {
  __shared__ float x[TILE][TILE + 1], w[TILE][TILE + 1];
  const u32 column = threadIdx.x % TILE, row = threadIdx.x / TILE;
  float sum = 0.0f;
  for (u32 start = 0; start < k; start += TILE) {
    const bool is_input = start + column < k;
    x[row][column] = inputs != nullptr && is_input ? to_float(inputs[start + column]) : 0.0f;
    w[row][column] = weights != nullptr && is_input ? to_float(weights[start + column]) : 0.0f;
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < TILE; ++i) sum = fmaf(x[row][i], w[column][i], sum);
    __syncthreads();
  }
  return sum;
}
