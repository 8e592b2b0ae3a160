// RMSNorm and LayerNorm: after a residual addition, in place, or per attention head.
//
// rms: x / sqrt(mean(x^2) + eps) * weight; layer: (x - mean) / sqrt(var + eps) * weight + bias.
// Sums go over a thread's elements, then over the lanes of a warp as a butterfly, then over warps.
// Who holds which element follows from the width alone, so the order of a sum does too.
#include "common.cuh"

// Chunks of a row that a thread holds in registers: with 512 threads, 8192 elements. Changes no
// sum's order.
constexpr u32 NUM_PARTS = sizeof(T) == 4 ? 2 : 4;
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

  // row (width) += delta (width), if there is one; leaves what normalizes it.
  template <class E>
  __device__ __forceinline__ void prepare(E* row, const T* delta) {
    const float inverse_width = 1.0f / float(width);
    float total = 0.0f, squares = 0.0f;
    for (u32 base = 0; base < width; base += span()) {
      Chunk<E, N> own[PARTS];
      Chunk<T, N> added[PARTS];
      load(row, base, own);
      if (delta) load(delta, base, added);
      load(norm.weight, base, weight);
      unpack_all(own);
      if (delta) add(row, base, added);
      if (norm.is_layer) {
        total = sum(total);
      } else {
        squares = sum_of_squares(squares);
      }
    }
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

// A row that cannot be read in whole chunks takes one part at a time: the same order of sums.
template <u32 PARTS, u32 N, class Group, class E, class Out>
__device__ __forceinline__ void norm_row(E* row, const T* delta, const Norm& norm, Out* out,
                                         u32 width, bool wide, Group group) {
  if (wide) {
    NormRow<true, PARTS, N, Group>(norm, width, group).write(row, delta, out);
  } else {
    NormRow<false, 1, N, Group>(norm, width, group).write(row, delta, out);
  }
}

// residual (num_rows, width) += delta (num_rows, width) if there is one; out (num_rows, width) =
// norm(residual). One block per row;
// block size: ceil(width / 16), at most 512, rounded up to a multiple of 32.
KERNEL(512)
add_norm(float* residual, const T* delta, const float* weight, const float* bias, float eps,
         u32 layer_norm, T* out, u32 width) {
  __shared__ float scratch[2][WARP_SIZE];
  const u64 row = u64(blockIdx.x) * width;
  const Norm norm{weight, bias, eps, layer_norm};
  const bool wide = is_wide<F32_CHUNK>(residual, width) && is_wide<F32_CHUNK>(out, width) &&
                    is_wide<F32_CHUNK>(delta, width) && norm.is_wide_too<F32_CHUNK>(width);
  const Block block{scratch, threadIdx.x, blockDim.x};
  norm_row<NUM_PARTS, F32_CHUNK>(residual + row, delta ? delta + row : nullptr, norm, out + row,
                                 width, wide, block);
}
EXPORT(add_norm)

// As `add_norm` followed by `quantize_rows`: out (num_rows, width) is E4M3, to be multiplied by
// scales (num_rows). Launched as `add_norm`.
KERNEL(512)
add_norm_fp8(float* residual, const T* delta, const float* weight, const float* bias, float eps,
             u32 layer_norm, u8* out, float* scales, u32 width) {
  __shared__ float scratch[2][WARP_SIZE];
  __shared__ u32 max_scratch[WARP_SIZE];
  const u64 row = u64(blockIdx.x) * width;
  const Norm norm{weight, bias, eps, layer_norm};
  const bool wide = is_wide<F32_CHUNK>(residual, width) && is_wide<F32_CHUNK>(out, width) &&
                    is_wide<F32_CHUNK>(delta, width) && norm.is_wide_too<F32_CHUNK>(width);
  const Block block{scratch, threadIdx.x, blockDim.x};
  residual += row;
  delta = delta ? delta + row : nullptr;
  out += row;
  scales += blockIdx.x;
  if (wide) {
    NormRow<true, NUM_PARTS, F32_CHUNK, Block>(norm, width, block)
        .write_e4m3(residual, delta, out, scales, max_scratch);
  } else {
    NormRow<false, 1, F32_CHUNK, Block>(norm, width, block)
        .write_e4m3(residual, delta, out, scales, max_scratch);
  }
}
EXPORT(add_norm_fp8)

// x (num_rows, width) = norm(x). Launched as `add_norm`.
KERNEL(512)
norm_in_place(float* x, const float* weight, const float* bias, float eps, u32 layer_norm,
              u32 width) {
  __shared__ float scratch[2][WARP_SIZE];
  x += u64(blockIdx.x) * width;
  const Block block{scratch, threadIdx.x, blockDim.x};
  const Norm norm{weight, bias, eps, layer_norm};
  const T* no_delta = nullptr;
  const bool wide = is_wide<F32_CHUNK>(x, width) && norm.is_wide_too<F32_CHUNK>(width);
  norm_row<NUM_PARTS, F32_CHUNK>(x, no_delta, norm, x, width, wide, block);
}
EXPORT(norm_in_place)

// Normalizes `num_heads` heads of `head_dim` by themselves, in place, from column `start` of each
// row of x (num_rows, row_stride). weight and bias (head_dim) with weight_step 0, or (num_heads,
// head_dim) with weight_step head_dim. One block per row.
// head_dim <= 256: any multiple of 32 threads; else as `add_norm` of that width.
KERNEL(512)
norm_heads(T* x, u32 row_stride, u32 start, u32 num_heads, u32 head_dim, u32 weight_step,
           const float* weight, const float* bias, float eps, u32 layer_norm) {
  __shared__ float scratch[2][WARP_SIZE];
  T* row = x + u64(blockIdx.x) * row_stride + start;
  const Norm norm{weight, bias, eps, layer_norm};
  const T* no_delta = nullptr;
  if (head_dim > MAX_WARP_WIDTH) {
    const bool wide = is_wide<F32_CHUNK>(row, head_dim) && norm.is_wide_too<F32_CHUNK>(head_dim);
    const Block block{scratch, threadIdx.x, blockDim.x};
    for (u32 head = 0; head < num_heads; ++head) {
      T* values = row + head * head_dim;
      const Norm own = norm.of_head(head, weight_step);
      norm_row<NUM_PARTS, F32_CHUNK>(values, no_delta, own, values, head_dim, wide, block);
      __syncthreads();
    }
    return;
  }
  u32 lanes = 1;
  while (lanes * CHUNK < head_dim) lanes *= 2;
  const bool wide = is_wide<CHUNK>(row, head_dim) && norm.is_wide_too<CHUNK>(head_dim);
  const u32 heads_at_once = blockDim.x / lanes;
  // All lanes of a warp stay in the loop for the butterfly; past the last head they hold nothing.
  for (u32 turn = 0; turn < num_heads; turn += heads_at_once) {
    const u32 head = turn + threadIdx.x / lanes;
    const bool exists = head < num_heads;
    T* values = row + (exists ? head : 0) * head_dim;
    const Norm own = norm.of_head(exists ? head : 0, weight_step);
    const Lanes group{exists ? threadIdx.x % lanes : lanes, lanes};
    norm_row<1, CHUNK>(values, no_delta, own, values, head_dim, wide, group);
  }
}
EXPORT(norm_heads)
