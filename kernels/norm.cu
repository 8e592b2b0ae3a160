// RMSNorm and LayerNorm: after a residual addition, in place, or per attention head.
//
// rms: x / sqrt(mean(x^2) + eps) * weight; layer: (x - mean) / sqrt(var + eps) * weight + bias.
// Sums go over a thread's elements, then over the lanes of a warp as a butterfly, then over warps.
// Who holds which element follows from the width alone, so the order of a sum does too.
#include "common.cuh"

// Pieces of a row that a thread holds in registers: with 1024 threads, 8192 elements.
constexpr u32 NUM_PARTS = 2;
// Widest head that neighbouring lanes of one warp normalize without a barrier.
constexpr u32 MAX_WARP_WIDTH = WARP_SIZE * CHUNK;

struct Norm {
  const float* weight;  // (width)
  const float* bias;    // (width) or null
  float eps;
  u32 is_layer;
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

// What a thread holds of a row: PARTS times N consecutive elements.
template <u32 PARTS, u32 N>
struct Parts {
  float x[PARTS][N];
  u32 first, step, width;

  __device__ __forceinline__ u32 start(u32 part) const { return (first + part * step) * N; }

  template <class E>
  __device__ __forceinline__ void load(const E* row, bool wide) {
#pragma unroll
    for (u32 j = 0; j < PARTS; ++j) load_part(row, start(j), width, wide, x[j]);
  }

  // Adds `delta` and stores the sums in `row`.
  template <class E>
  __device__ __forceinline__ void add(E* row, const T* delta, bool wide) {
    float y[PARTS][N];
#pragma unroll
    for (u32 j = 0; j < PARTS; ++j) load_part(delta, start(j), width, wide, y[j]);
#pragma unroll
    for (u32 j = 0; j < PARTS; ++j) {
#pragma unroll
      for (u32 i = 0; i < N; ++i) x[j][i] += y[j][i];
      store_part(row, start(j), width, wide, x[j]);
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
  __device__ __forceinline__ void subtract(float mean) {
#pragma unroll
    for (u32 j = 0; j < PARTS; ++j) {
#pragma unroll
      for (u32 i = 0; i < N; ++i) x[j][i] = start(j) + i < width ? x[j][i] - mean : 0.0f;
    }
  }

  template <class E>
  __device__ __forceinline__ void store_scaled(float scale, const Norm& norm, E* out, bool wide) {
    const bool weight_is_wide = is_wide<N>(norm.weight, width);
    const bool bias_is_wide = is_wide<N>(norm.bias, width);
#pragma unroll
    for (u32 j = 0; j < PARTS; ++j) {
      if (start(j) >= width) break;
      float y[N];
      load_part(norm.weight, start(j), width, weight_is_wide, y);
#pragma unroll
      for (u32 i = 0; i < N; ++i) x[j][i] = x[j][i] * scale * y[i];
      if (norm.bias) {
        load_part(norm.bias, start(j), width, bias_is_wide, y);
#pragma unroll
        for (u32 i = 0; i < N; ++i) x[j][i] += y[i];
      }
      store_part(out, start(j), width, wide, x[j]);
    }
  }
};

// row (width) += delta (width), if there is one; out (width) = norm(row). `row` may be `out`.
// A row that does not fit in the group's registers is read again for every step.
template <u32 PARTS, u32 N, class Group, class E, class Out>
__device__ __forceinline__ void norm_row(E* row, const T* delta, const Norm& norm, Out* out,
                                         u32 width, bool wide, Group group) {
  const u32 capacity = PARTS * group.step;
  Parts<PARTS, N> parts;
  parts.step = group.step;
  parts.width = width;
  const u32 last = group.first + (width - 1) / (capacity * N) * capacity;
  const bool fits = last == group.first;
  float sum = 0.0f, mean = 0.0f, squares = 0.0f;
  for (parts.first = group.first; parts.first <= last; parts.first += capacity) {
    parts.load(row, wide);
    if (delta) parts.add(row, delta, wide);
    if (norm.is_layer) {
      sum = parts.sum(sum);
    } else {
      squares = parts.sum_of_squares(squares);
    }
  }
  if (norm.is_layer) {
    mean = group.sum(sum, 0) / float(width);
  for (parts.first = group.first; parts.first <= last; parts.first += capacity) {
      if (!fits) parts.load(row, wide);
      parts.subtract(mean);
      squares = parts.sum_of_squares(squares);
    }
  }
  const float scale = 1.0f / sqrtf(group.sum(squares, 1) / float(width) + norm.eps);
  for (parts.first = group.first; parts.first <= last; parts.first += capacity) {
    if (!fits) {
      parts.load(row, wide);
      if (norm.is_layer) parts.subtract(mean);
    }
    parts.store_scaled(scale, norm, out, wide);
  }
}

// residual (num_rows, width) += delta (num_rows, width) if there is one; out (num_rows, width) =
// norm(residual). One block per row;
// block size: ceil(width / 8), at most 1024, rounded up to a multiple of 32.
KERNEL(1024)
add_norm(float* residual, const T* delta, const float* weight, const float* bias, float eps,
         u32 layer_norm, T* out, u32 width) {
  __shared__ float scratch[2][WARP_SIZE];
  const u64 row = u64(blockIdx.x) * width;
  const bool wide = is_wide<F32_CHUNK>(residual, width) && is_wide<F32_CHUNK>(out, width) &&
                    is_wide<F32_CHUNK>(delta, width);
  const Block block{scratch, threadIdx.x, blockDim.x};
  const Norm norm{weight, bias, eps, layer_norm};
  norm_row<NUM_PARTS, F32_CHUNK>(residual + row, delta ? delta + row : nullptr, norm, out + row,
                                 width, wide, block);
}
EXPORT(add_norm)

// x (num_rows, width) = norm(x). Launched as `add_norm`.
KERNEL(1024)
norm_in_place(float* x, const float* weight, const float* bias, float eps, u32 layer_norm,
              u32 width) {
  __shared__ float scratch[2][WARP_SIZE];
  x += u64(blockIdx.x) * width;
  const Block block{scratch, threadIdx.x, blockDim.x};
  const Norm norm{weight, bias, eps, layer_norm};
  const T* no_delta = nullptr;
  norm_row<NUM_PARTS, F32_CHUNK>(x, no_delta, norm, x, width, is_wide<F32_CHUNK>(x, width), block);
}
EXPORT(norm_in_place)

// Normalizes `num_heads` heads of `head_dim` by themselves, in place, from column `start` of each
// row of x (num_rows, row_stride). One block per row.
// head_dim <= 256: any multiple of 32 threads; else as `add_norm` of that width.
KERNEL(1024)
norm_heads(T* x, u32 row_stride, u32 start, u32 num_heads, u32 head_dim, const float* weight,
           const float* bias, float eps, u32 layer_norm) {
  __shared__ float scratch[2][WARP_SIZE];
  T* row = x + u64(blockIdx.x) * row_stride + start;
  const Norm norm{weight, bias, eps, layer_norm};
  const T* no_delta = nullptr;
  if (head_dim > MAX_WARP_WIDTH) {
    const bool wide = is_wide<F32_CHUNK>(row, head_dim);
    const Block block{scratch, threadIdx.x, blockDim.x};
    for (u32 head = 0; head < num_heads; ++head) {
      T* values = row + head * head_dim;
      norm_row<NUM_PARTS, F32_CHUNK>(values, no_delta, norm, values, head_dim, wide, block);
      __syncthreads();
    }
    return;
  }
  u32 lanes = 1;
  while (lanes * CHUNK < head_dim) lanes *= 2;
  const bool wide = is_wide<CHUNK>(row, head_dim);
  const u32 heads_at_once = blockDim.x / lanes;
  // All lanes of a warp stay in the loop for the butterfly; past the last head they hold nothing.
  for (u32 turn = 0; turn < num_heads; turn += heads_at_once) {
    const u32 head = turn + threadIdx.x / lanes;
    const bool exists = head < num_heads;
    T* values = row + (exists ? head : 0) * head_dim;
    const Lanes group{exists ? threadIdx.x % lanes : lanes, lanes};
    norm_row<1, CHUNK>(values, no_delta, norm, values, head_dim, wide, group);
  }
}
EXPORT(norm_heads)
