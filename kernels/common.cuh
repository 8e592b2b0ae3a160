// Types, conversions, vector accesses and reductions that every kernel shares.
//
// Everything here keeps a row's result a function of that row: orders of operations depend on
// widths only.
#pragma once

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;

// The shim defines these for the CPU; a CUDA compiler needs nothing registered.
#ifndef HOST_SHIM
#define EXPORT(name)
#define DYN_SMEM(type, name)                               \
  extern __shared__ __align__(16) u8 dynamic_shared_memory[]; \
  type* name = reinterpret_cast<type*>(dynamic_shared_memory)
#endif

// Opens a kernel's definition; `max_threads` bounds its registers.
#define KERNEL(max_threads) extern "C" __global__ void __launch_bounds__(max_threads)

constexpr u32 FULL_WARP = 0xFFFFFFFFu;
constexpr u32 WARP_SIZE = 32;

struct bf16 {
  u16 bits;
};

struct f16 {
  u16 bits;
};

#ifdef DTYPE
using T = DTYPE;
#endif

template <class To, class From>
__device__ __forceinline__ To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

// Conversion instructions: two values at once, `low` in the low half of the word. bf16 and f16 both
// round to nearest, ties to even; NaN becomes 0x7FFF.
#ifdef HOST_SHIM
inline u16 narrow_bf16(float x) {
  const u32 bits = bit_cast<u32>(x);
  if (x != x) return 0x7FFF;
  return u16((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline u16 narrow_f16(float x) {
  const u32 bits = bit_cast<u32>(x);
  const u32 sign = bits >> 16 & 0x8000;
  const u32 size = bits & 0x7FFFFFFF;
  if (size > 0x7F800000) return 0x7FFF;
  if (size >= 0x477FF000) return u16(sign | 0x7C00);
  if (size < 0x38800000) {
    // Subnormal: one unit is 2^-24, which is the last place of 0.5.
    return u16(sign | (bit_cast<u32>(bit_cast<float>(size) + 0.5f) - 0x3F000000));
  }
  return u16(sign | ((size - 0x38000000 + 0xFFF + (size >> 13 & 1)) >> 13));
}

inline u32 narrow_bf16x2(float low, float high) {
  return u32(narrow_bf16(high)) << 16 | narrow_bf16(low);
}

inline u32 narrow_f16x2(float low, float high) {
  return u32(narrow_f16(high)) << 16 | narrow_f16(low);
}

inline float widen_f16(u16 bits) {
  const u32 sign = u32(bits & 0x8000) << 16;
  const u32 size = u32(bits & 0x7FFF) << 13;
  // Infinities and NaN have all exponent bits set; everything else is rescaled by 2^112.
  if (size >= 0x0F800000) return bit_cast<float>(sign | 0x70000000 | size);
  return bit_cast<float>(sign | bit_cast<u32>(bit_cast<float>(size) * 0x1p112f));
}
#else
__device__ __forceinline__ u32 narrow_bf16x2(float low, float high) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ u32 narrow_f16x2(float low, float high) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ __forceinline__ float widen_f16(u16 bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
#endif

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return bit_cast<float>(u32(x.bits) << 16); }
__device__ __forceinline__ float to_float(f16 x) { return widen_f16(x.bits); }

// Rounds to nearest, ties to even.
template <class To>
__device__ __forceinline__ To from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
  return bf16{u16(narrow_bf16x2(x, 0.0f))};
}
template <>
__device__ __forceinline__ f16 from_float<f16>(float x) {
  return f16{u16(narrow_f16x2(x, 0.0f))};
}

// What one memory access moves: 4, 8 or 16 bytes.
template <u32 NUM_WORDS>
struct alignas(4 * NUM_WORDS) Words {
  u32 word[NUM_WORDS];
};

__device__ __forceinline__ bool is_aligned(const void* p, u32 bytes) {
  return reinterpret_cast<u64>(p) % bytes == 0;
}

// Consecutive elements that a thread takes at a time. Where all are T: 16 bytes of bf16 or f16.
// Where f32 takes part: 16 bytes of that, so that the lanes of a warp leave no gaps.
constexpr u32 CHUNK = 8;
constexpr u32 F32_CHUNK = 4;

template <u32 N>
__device__ __forceinline__ void load_chunk(const float* p, float (&x)[N]) {
#pragma unroll
  for (u32 i = 0; i < N; i += 4) {
    const Words<4> words = *reinterpret_cast<const Words<4>*>(p + i);
#pragma unroll
    for (u32 j = 0; j < 4; ++j) x[i + j] = bit_cast<float>(words.word[j]);
  }
}

template <class Narrow, u32 N>
__device__ __forceinline__ void load_chunk(const Narrow* p, float (&x)[N]) {
  const Words<N / 2> words = *reinterpret_cast<const Words<N / 2>*>(p);
#pragma unroll
  for (u32 i = 0; i < N / 2; ++i) {
    x[2 * i] = to_float(Narrow{u16(words.word[i])});
    x[2 * i + 1] = to_float(Narrow{u16(words.word[i] >> 16)});
  }
}

template <u32 N>
__device__ __forceinline__ void store_chunk(float* p, const float (&x)[N]) {
#pragma unroll
  for (u32 i = 0; i < N; i += 4) {
    Words<4> words;
#pragma unroll
    for (u32 j = 0; j < 4; ++j) words.word[j] = bit_cast<u32>(x[i + j]);
    *reinterpret_cast<Words<4>*>(p + i) = words;
  }
}

template <u32 N>
__device__ __forceinline__ void store_chunk(bf16* p, const float (&x)[N]) {
  Words<N / 2> words;
#pragma unroll
  for (u32 i = 0; i < N / 2; ++i) words.word[i] = narrow_bf16x2(x[2 * i], x[2 * i + 1]);
  *reinterpret_cast<Words<N / 2>*>(p) = words;
}

template <u32 N>
__device__ __forceinline__ void store_chunk(f16* p, const float (&x)[N]) {
  Words<N / 2> words;
#pragma unroll
  for (u32 i = 0; i < N / 2; ++i) words.word[i] = narrow_f16x2(x[2 * i], x[2 * i + 1]);
  *reinterpret_cast<Words<N / 2>*>(p) = words;
}

// Whether chunks of N may be accessed as a whole: a row starts at `p`, and rows of `stride`
// elements follow each other.
template <u32 N, class E>
__device__ __forceinline__ bool is_wide(const E* p, u64 stride) {
  constexpr u32 bytes = N * sizeof(E) < 16 ? u32(N * sizeof(E)) : 16;
  return is_aligned(p, bytes) && stride % N == 0;
}

// Elements start .. start + N of a row of `width`; zeros past its end. `wide`: the row's `is_wide`.
template <class E, class Index, u32 N>
__device__ __forceinline__ void load_part(const E* row, Index start, Index width, bool wide,
                                          float (&x)[N]) {
  if (wide && start + N <= width) {
    load_chunk(row + start, x);
    return;
  }
#pragma unroll
  for (u32 i = 0; i < N; ++i) x[i] = start + i < width ? to_float(row[start + i]) : 0.0f;
}

// As `load_part`; elements past the end of the row are not written.
template <class E, class Index, u32 N>
__device__ __forceinline__ void store_part(E* row, Index start, Index width, bool wide,
                                           const float (&x)[N]) {
  if (wide && start + N <= width) {
    store_chunk(row + start, x);
    return;
  }
#pragma unroll
  for (u32 i = 0; i < N; ++i) {
    if (start + i < width) row[start + i] = from_float<E>(x[i]);
  }
}

struct Sum {
  template <class E>
  __device__ __forceinline__ E operator()(E a, E b) const {
    return a + b;
  }
};

struct Min {
  template <class E>
  __device__ __forceinline__ E operator()(E a, E b) const {
    return b < a ? b : a;
  }
};

struct Max {
  template <class E>
  __device__ __forceinline__ E operator()(E a, E b) const {
    return a < b ? b : a;
  }
};

// Combines the values of `lanes` neighbouring lanes (a power of two) as a butterfly: every lane
// gets the same bits. All lanes of the warp take part.
template <class Op, class E>
__device__ __forceinline__ E warp_reduce(E value, u32 lanes = WARP_SIZE) {
  for (u32 step = lanes / 2; step > 0; step /= 2) {
    value = Op()(value, __shfl_xor_sync(FULL_WARP, value, step));
  }
  return value;
}

// Combines the values of all threads of a one-dimensional block, whose size is a multiple of 32.
// Each of a kernel's reductions has its own `scratch`, or a barrier between two uses of one.
template <class Op, class E>
__device__ __forceinline__ E block_reduce(E value, E (&scratch)[WARP_SIZE]) {
  const u32 num_warps = blockDim.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  value = warp_reduce<Op>(value);
  if (lane == 0) scratch[threadIdx.x / WARP_SIZE] = value;
  __syncthreads();
  // Every warp does the second step for itself, which saves a barrier.
  E result = scratch[0];
  for (u32 warp = 1; warp < num_warps; ++warp) result = Op()(result, scratch[warp]);
  return result;
}
