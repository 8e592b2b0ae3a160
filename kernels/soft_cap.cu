// Gemma 2's bound on logits.
#include "common.cuh"

// x (n) = cap * tanh(x / cap), in place. Any grid.
KERNEL(256) soft_cap(float* x, float cap, u64 n) {
  const bool wide = is_wide<F32_CHUNK>(x, 0);
  const u64 step = u64(gridDim.x) * blockDim.x * F32_CHUNK;
  u64 start = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * F32_CHUNK;
  for (; start < n; start += step) {
    float values[F32_CHUNK];
    load_part(x, start, n, wide, values);
#pragma unroll
    for (u32 i = 0; i < F32_CHUNK; ++i) values[i] = tanhf(values[i] / cap) * cap;
    store_part(x, start, n, wide, values);
  }
}
EXPORT(soft_cap)
