// RMSNorm and LayerNorm: after a residual addition, in place, or per attention head.
//
// rms: x / sqrt(mean(x^2) + eps) * weight; layer: (x - mean) / sqrt(var + eps) * weight + bias.
// The order of a sum follows from the width alone: see norm.cuh.
#include "norm.cuh"

// Chunks of a row that a thread holds in registers: with 512 threads, 8192 elements. Changes no
// sum's order.
constexpr u32 NUM_PARTS = sizeof(T) == 4 ? 2 : 4;

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
