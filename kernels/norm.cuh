// Norms of rows that several threads share.
//
// Sums go over a thread's elements, then over the lanes of a warp as a butterfly, then over warps.
// Who holds which element follows from the width alone, so the order of a sum does too.
#pragma once
#include "common.cuh"

// Widest head that neighbouring lanes of one warp normalize without a barrier.
constexpr u32 MAX_WARP_WIDTH = WARP_SIZE * CHUNK;

struct Norm {
  const float* weight;  // (width)
  const float* bias;    // (width) or null
  float eps;
  u32 is_layer;

  // Of a head whose weights are `step` values after those of the head before.
  __device__ __forceinline__ Norm of_head(u32 head, u32 step) const {
    const u32 column = head * step;
    return Norm{weight + column, bias ? bias + column : nullptr, eps, is_layer};
  }

  template <u32 N>
  __device__ __forceinline__ bool is_wide_too(u32 width) const {
    return is_wide<N>(weight, width) && is_wide<N>(bias, width);
  }
};

// Threads that share a row, and how they add up: a block, or neighbouring lanes.
struct Block {
  float (*scratch)[WARP_SIZE];  // (2, 32), shared: one per reduction
  u32 first, step;

  __device__ __forceinline__ float sum(float value, u32 reduction) const {
    return block_reduce<Sum>(value, scratch[reduction]);
  }
};

struct Lanes {
  u32 first, step;

  __device__ __forceinline__ float sum(float value, u32) const {
    return warp_reduce<Sum>(value, step);
  }
};

// One thread's share of a row: PARTS chunks of N elements in every span. The row is one span if it
// fits in the group's registers; else its spans are read again for every step.
template <bool WIDE, u32 PARTS, u32 N, class Group>
struct NormRow {
  const Norm& norm;
  const u32 width;
  const Group group;
  float x[PARTS][N];
  Chunk<float, N> weight[PARTS];
  float mean = 0.0f, scale;

  __device__ __forceinline__ NormRow(const Norm& norm, u32 width, Group group)
      : norm(norm), width(width), group(group) {}

  __device__ __forceinline__ u32 span() const { return PARTS * N * group.step; }
  __device__ __forceinline__ u32 start(u32 base, u32 part) const {
    return base + (group.first + part * group.step) * N;
  }

  template <class E>
  __device__ __forceinline__ void load(const E* row, u32 base, Chunk<E, N> (&chunks)[PARTS]) const {
#pragma unroll
    for (u32 j = 0; j < PARTS; ++j) chunks[j] = load_raw<WIDE, N>(row, start(base, j), width);
  }

  template <class E>
  __device__ __forceinline__ void unpack_all(const Chunk<E, N> (&chunks)[PARTS]) {
#pragma unroll
    for (u32 j = 0; j < PARTS; ++j) unpack(chunks[j], x[j]);
  }

  // Adds `delta` and stores the sums in `row`.
  template <class E>
  __device__ __forceinline__ void add(E* row, u32 base, const Chunk<T, N> (&delta)[PARTS]) {
#pragma unroll
    for (u32 j = 0; j < PARTS; ++j) {
      float y[N];
      unpack(delta[j], y);
#pragma unroll
      for (u32 i = 0; i < N; ++i) x[j][i] += y[i];
      store_rounded<WIDE>(row, start(base, j), width, x[j]);
    }
  }

  __device__ __forceinline__ float sum(float before) const {
#pragma unroll
    for (u32 j = 0; j < PARTS; ++j) {
#pragma unroll
      for (u32 i = 0; i < N; ++i) before += x[j][i];
    }
    return before;
  }

  __device__ __forceinline__ float sum_of_squares(float before) const {
#pragma unroll
    for (u32 j = 0; j < PARTS; ++j) {
#pragma unroll
      for (u32 i = 0; i < N; ++i) before = fmaf(x[j][i], x[j][i], before);
    }
    return before;
  }

  // What is past the end of the row stays 0.
  __device__ __forceinline__ void subtract_mean(u32 base) {
#pragma unroll
    for (u32 j = 0; j < PARTS; ++j) {
#pragma unroll
      for (u32 i = 0; i < N; ++i) x[j][i] = start(base, j) + i < width ? x[j][i] - mean : 0.0f;
    }
  }

  // The sums so far, with the span that is loaded.
  __device__ __forceinline__ void add_up(float& total, float& squares) const {
    if (norm.is_layer) {
      total = sum(total);
    } else {
      squares = sum_of_squares(squares);
    }
  }

  // Leaves what normalizes the row, of the group's sums.
  template <class E>
  __device__ __forceinline__ void finish(const E* row, float total, float squares) {
    const float inverse_width = 1.0f / float(width);
    if (norm.is_layer) {
      mean = group.sum(total, 0) * inverse_width;
      for (u32 base = 0; base < width; base += span()) {
        if (width > span()) reload(row, base);
        subtract_mean(base);
        squares = sum_of_squares(squares);
      }
    }
    scale = rsqrtf(group.sum(squares, 1) * inverse_width + norm.eps);
  }

  // row (width) += delta (width), if there is one; leaves what normalizes it.
  template <class E>
  __device__ __forceinline__ void prepare(E* row, const T* delta) {
    float total = 0.0f, squares = 0.0f;
    for (u32 base = 0; base < width; base += span()) {
      Chunk<E, N> own[PARTS];
      Chunk<T, N> added[PARTS];
      load(row, base, own);
      if (delta) load(delta, base, added);
      load(norm.weight, base, weight);
      unpack_all(own);
      if (delta) add(row, base, added);
      add_up(total, squares);
    }
    finish(row, total, squares);
  }

  // As `prepare`, of a row of one span that is in registers.
  template <class E>
  __device__ __forceinline__ void prepare(const Chunk<E, N> (&own)[PARTS]) {
    float total = 0.0f, squares = 0.0f;
    const E* no_row = nullptr;
    load(norm.weight, 0, weight);
    unpack_all(own);
    add_up(total, squares);
    finish(no_row, total, squares);
  }

  template <class E>
  __device__ __forceinline__ void reload(const E* row, u32 base) {
    Chunk<E, N> own[PARTS];
    load(row, base, own);
    unpack_all(own);
  }

  // Leaves the normalized span in `x`. After `prepare`.
  template <class E>
  __device__ __forceinline__ void normalize(const E* row, u32 base) {
    if (width > span()) {
      reload(row, base);
      if (norm.is_layer) subtract_mean(base);
      load(norm.weight, base, weight);
    }
#pragma unroll
    for (u32 j = 0; j < PARTS; ++j) {
      float y[N];
      unpack(weight[j], y);
#pragma unroll
      for (u32 i = 0; i < N; ++i) x[j][i] = x[j][i] * scale * y[i];
      if (!norm.bias) continue;
      unpack(load_raw<WIDE, N>(norm.bias, start(base, j), width), y);
#pragma unroll
      for (u32 i = 0; i < N; ++i) x[j][i] += y[i];
    }
  }

  // out (width) = norm(row). `row` may be `out`.
  template <class E, class Out>
  __device__ __forceinline__ void write(E* row, const T* delta, Out* out) {
    prepare(row, delta);
    for (u32 base = 0; base < width; base += span()) {
      normalize(row, base);
#pragma unroll
      for (u32 j = 0; j < PARTS; ++j) store_rounded<WIDE>(out, start(base, j), width, x[j]);
    }
  }

  // As `normalize`, rounded to T.
  template <class E>
  __device__ __forceinline__ void normalize_as_stored(const E* row, u32 base) {
    normalize(row, base);
#pragma unroll
    for (u32 j = 0; j < PARTS; ++j) {
      Chunk<T, N> chunk;
      pack(x[j], chunk);
      unpack(chunk, x[j]);
    }
  }

  // out (width) = norm(row) as E4M3 over the row's scale.
  __device__ __forceinline__ void write_e4m3(float* row, const T* delta, u8* out, float* row_scale,
                                             u32 (&scratch)[WARP_SIZE]) {
    prepare(row, delta);
    u32 largest = 0;
    for (u32 base = 0; base < width; base += span()) {
      normalize_as_stored(row, base);
#pragma unroll
      for (u32 j = 0; j < PARTS; ++j) largest = largest_size(largest, x[j]);
    }
    const RowQuantizer quantized(block_reduce<Max>(largest, scratch));
    if (threadIdx.x == 0) *row_scale = quantized.scale;
    for (u32 base = 0; base < width; base += span()) {
      if (width > span()) normalize_as_stored(row, base);
#pragma unroll
      for (u32 j = 0; j < PARTS; ++j) {
        store_raw<WIDE>(out, start(base, j), width, quantized(x[j]));
      }
    }
  }
};
