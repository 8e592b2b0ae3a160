// Activations to E4M3, one scale per row.
#include "common.cuh"

constexpr float E4M3_MAX = 448.0f;

// Bits of the E4M3 number nearest to x >= 0, ties to even; at most 448.
__device__ __forceinline__ u32 to_e4m3(float x) {
  const u32 bits = bit_cast<u32>(x);
  u32 rounded = (bits + 0x7FFFF + (bits >> 20 & 1)) >> 20;
  // 15 exponents lie between the smallest normal E4M3 number, 2^-6, and 2^8; f32 has 120 below.
  rounded = rounded > 120 * 8 + 0x7E ? 0x7E : rounded - 120 * 8;
  // Subnormal: one unit is 2^-9, which is the last place of 2^14.
  if (bits < 0x3C800000) rounded = bit_cast<u32>(x + 16384.0f) - 0x46800000;
  return bits > 0x7F800000 ? 0x7F : rounded;
}

// Quotients by one divisor, each rounded to nearest as `/` would.
struct Divider {
  float divisor, inverse;
  bool is_safe;

  __device__ __forceinline__ explicit Divider(float by) : divisor(by), inverse(1.0f / by) {
    // Outside of this range, intermediate results could be subnormal.
    is_safe = by > 0x1p-60f && by < 0x1p60f;
  }

  // 0 <= x <= 448 * divisor. An estimate and two corrections (Markstein, 1990), without the special
  // cases of a general division.
  __device__ __forceinline__ float operator()(float x) const {
    if (!is_safe) return x / divisor;
    float quotient = x * inverse;
    quotient = fmaf(fmaf(-quotient, divisor, x), inverse, quotient);
    return fmaf(fmaf(-quotient, divisor, x), inverse, quotient);
  }
};

__device__ __forceinline__ void store_bytes(u8* row, u32 start, u32 width, bool wide,
                                            const u32 (&bytes)[CHUNK]) {
  if (wide && start + CHUNK <= width) {
    Words<2> words;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      const u32* four = bytes + 4 * i;
      words.word[i] = four[3] << 24 | four[2] << 16 | four[1] << 8 | four[0];
    }
    *reinterpret_cast<Words<2>*>(row + start) = words;
    return;
  }
#pragma unroll
  for (u32 i = 0; i < CHUNK; ++i) {
    if (start + i < width) row[start + i] = u8(bytes[i]);
  }
}

// scales (num_rows) = absmax / 448 of each row of x (num_rows, width), 1 for a row of zeros;
// out (num_rows, width) = x / scale as E4M3. One block per row, of any size.
KERNEL(1024) quantize_rows(const T* x, u8* out, float* scales, u32 width) {
  __shared__ u32 scratch[WARP_SIZE];
  x += u64(blockIdx.x) * width;
  out += u64(blockIdx.x) * width;
  const bool wide = is_wide<CHUNK>(x, width) && is_aligned(out, CHUNK);
  const u32 step = blockDim.x * CHUNK, first = threadIdx.x * CHUNK;
  // Sizes of floats are ordered as their bits, with NaN on top: it ends up in the scale.
  u32 largest = 0;
  for (u32 start = first; start < width; start += step) {
    float values[CHUNK];
    load_part(x, start, width, wide, values);
#pragma unroll
    for (u32 i = 0; i < CHUNK; ++i) {
      largest = Max()(largest, bit_cast<u32>(values[i]) & 0x7FFFFFFF);
    }
  }
  const float absmax = bit_cast<float>(block_reduce<Max>(largest, scratch));
  const float scale = absmax == 0.0f ? 1.0f : absmax / E4M3_MAX;
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
  const Divider divided(scale);
  for (u32 start = first; start < width; start += step) {
    float values[CHUNK];
    u32 bytes[CHUNK];
    // The second look finds the row in the cache.
    load_part(x, start, width, wide, values);
#pragma unroll
    for (u32 i = 0; i < CHUNK; ++i) {
      const u32 sign = bit_cast<u32>(values[i]) >> 24 & 0x80;
      bytes[i] = sign | to_e4m3(divided(fabsf(values[i])));
    }
    store_bytes(out, start, width, wide, bytes);
  }
}
EXPORT(quantize_rows)
