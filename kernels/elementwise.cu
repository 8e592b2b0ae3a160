// Element by element: adding to the residual stream, narrowing.
#include "common.cuh"

// residual (n) += delta (n). Any grid.
KERNEL(256) add(float* residual, const T* delta, u64 n) {
  const bool wide = is_wide<F32_CHUNK>(residual, 0) && is_wide<F32_CHUNK>(delta, 0);
  const u64 stride = u64(gridDim.x) * blockDim.x * F32_CHUNK;
  u64 start = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * F32_CHUNK;
  for (; start < n; start += stride) {
    float x[F32_CHUNK], y[F32_CHUNK];
    load_part(residual, start, n, wide, x);
    load_part(delta, start, n, wide, y);
#pragma unroll
    for (u32 i = 0; i < F32_CHUNK; ++i) x[i] += y[i];
    store_part(residual, start, n, wide, x);
  }
}
EXPORT(add)

// out (n) = x (n), rounded. Any grid.
KERNEL(256) convert(const float* x, T* out, u64 n) {
  const bool wide = is_wide<F32_CHUNK>(x, 0) && is_wide<F32_CHUNK>(out, 0);
  const u64 stride = u64(gridDim.x) * blockDim.x * F32_CHUNK;
  u64 start = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * F32_CHUNK;
  for (; start < n; start += stride) {
    float values[F32_CHUNK];
    load_part(x, start, n, wide, values);
    store_part(out, start, n, wide, values);
  }
}
EXPORT(convert)
