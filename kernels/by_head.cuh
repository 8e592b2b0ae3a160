// A matrix of its own for each attention head, over columns of each row.
#pragma once

#include "common.cuh"

// For each head h: n columns of a row of out (num_rows, out_width), from out_start + h * out_stride
// on, are k columns of that row of x (num_rows, x_width), from x_start + h * x_stride on, times the
// transpose of weights (num_heads, n, k)[h].
struct ByHead {
  const T *x, *weights;
  T* out;
  u32 num_rows, n, k;
  u32 x_width, x_start, x_stride;
  u32 out_width, out_start, out_stride;

  __device__ __forceinline__ const T* inputs(u32 head, u32 row) const {
    return x + u64(row) * x_width + x_start + head * x_stride;
  }
  __device__ __forceinline__ const T* matrix(u32 head) const { return weights + u64(head) * n * k; }
  __device__ __forceinline__ T* outputs(u32 head, u32 row) const {
    return out + u64(row) * out_width + out_start + head * out_stride;
  }
};

// Which rows of which head a block has: those of a head lie beside each other.
struct HeadRows {
  u32 head, first_row;

  __device__ __forceinline__ HeadRows(const ByHead& of, u32 tile_rows) {
    const u32 num_tiles = (of.num_rows + tile_rows - 1) / tile_rows;
    head = blockIdx.x / num_tiles;
    first_row = blockIdx.x % num_tiles * tile_rows;
  }
};
