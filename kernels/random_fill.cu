// Made-up weights, equal to the ones that the CPU makes up.
#include "common.cuh"

// Uniform in [-1, 1): SplitMix64 (Steele et al., 2014) of seed and index.
__device__ __forceinline__ float uniform(u64 seed, u64 index) {
  u64 z = seed + (index + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  return float(u32(z >> 40)) * 0x1p-23f - 1.0f;
}

// out (n) = uniform in [-scale, scale), a function of seed and index. Any grid.
KERNEL(256) random_fill(T* out, u64 n, u64 seed, float scale) {
  const bool wide = is_wide<CHUNK>(out, 0);
  const u64 step = u64(gridDim.x) * blockDim.x * CHUNK;
  u64 start = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * CHUNK;
  for (; start < n; start += step) {
    float x[CHUNK];
#pragma unroll
    for (u32 i = 0; i < CHUNK; ++i) x[i] = scale * uniform(seed, start + i);
    store_part(out, start, n, wide, x);
  }
}
EXPORT(random_fill)
