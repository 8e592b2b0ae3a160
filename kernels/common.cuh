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
#define NOINLINE __noinline__
#define DYN_SMEM(type, name)                               \
  extern __shared__ __align__(128) u8 dynamic_shared_memory[]; \
  type* name = reinterpret_cast<type*>(dynamic_shared_memory)
#endif

// Opens a kernel's definition: most threads of a block and, if given, least blocks at once on a
// multiprocessor bound its registers.
#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)

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

template <class A, class B>
constexpr bool IS_SAME = false;
template <class A>
constexpr bool IS_SAME<A, A> = true;

template <class To, class From>
__device__ __forceinline__ To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

__device__ __forceinline__ float infinity() { return bit_cast<float>(0x7F800000u); }

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

// N consecutive elements as they lie in memory. Threads load all that they need as such before they
// look at any of it: a conversion waits for its load, and the loads after it would wait too.
template <class E, u32 N>
struct Chunk {
  static constexpr u32 NUM_WORDS = N * sizeof(E) / 4;
  static constexpr u32 PER_ACCESS = NUM_WORDS < 4 ? NUM_WORDS : 4;
  static constexpr u32 PER_WORD = 4 / sizeof(E);
  static constexpr u32 BITS = 8 * sizeof(E);

  u32 word[NUM_WORDS];

  __device__ __forceinline__ u32 bits(u32 i) const {
    return word[i / PER_WORD] >> i % PER_WORD * BITS;
  }
};

__device__ __forceinline__ u32 bits_of(float x) { return bit_cast<u32>(x); }
__device__ __forceinline__ u32 bits_of(bf16 x) { return x.bits; }
__device__ __forceinline__ u32 bits_of(f16 x) { return x.bits; }

template <class E>
__device__ __forceinline__ E of_bits(u32 bits);
template <>
__device__ __forceinline__ float of_bits<float>(u32 bits) {
  return bit_cast<float>(bits);
}
template <>
__device__ __forceinline__ bf16 of_bits<bf16>(u32 bits) {
  return bf16{u16(bits)};
}
template <>
__device__ __forceinline__ f16 of_bits<f16>(u32 bits) {
  return f16{u16(bits)};
}
template <>
__device__ __forceinline__ u8 of_bits<u8>(u32 bits) {
  return u8(bits);
}

template <class E, u32 N>
__device__ __forceinline__ Chunk<E, N> load_whole(const E* p) {
  constexpr u32 EACH = Chunk<E, N>::PER_ACCESS;
  Chunk<E, N> chunk;
#pragma unroll
  for (u32 i = 0; i < Chunk<E, N>::NUM_WORDS; i += EACH) {
    const Words<EACH> words = reinterpret_cast<const Words<EACH>*>(p)[i / EACH];
#pragma unroll
    for (u32 j = 0; j < EACH; ++j) chunk.word[i + j] = words.word[j];
  }
  return chunk;
}

template <class E, u32 N>
__device__ __forceinline__ void store_whole(E* p, const Chunk<E, N>& chunk) {
  constexpr u32 EACH = Chunk<E, N>::PER_ACCESS;
#pragma unroll
  for (u32 i = 0; i < Chunk<E, N>::NUM_WORDS; i += EACH) {
    Words<EACH> words;
#pragma unroll
    for (u32 j = 0; j < EACH; ++j) words.word[j] = chunk.word[i + j];
    reinterpret_cast<Words<EACH>*>(p)[i / EACH] = words;
  }
}

template <class E, u32 N>
__device__ __forceinline__ void unpack(const Chunk<E, N>& chunk, float (&x)[N]) {
#pragma unroll
  for (u32 i = 0; i < N; ++i) x[i] = to_float(of_bits<E>(chunk.bits(i)));
}

__device__ __forceinline__ u32 narrow_pair(bf16, float low, float high) {
  return narrow_bf16x2(low, high);
}
__device__ __forceinline__ u32 narrow_pair(f16, float low, float high) {
  return narrow_f16x2(low, high);
}

// Rounds to nearest, ties to even.
template <u32 N>
__device__ __forceinline__ void pack(const float (&x)[N], Chunk<float, N>& chunk) {
#pragma unroll
  for (u32 i = 0; i < N; ++i) chunk.word[i] = bit_cast<u32>(x[i]);
}

template <class Narrow, u32 N>
__device__ __forceinline__ void pack(const float (&x)[N], Chunk<Narrow, N>& chunk) {
#pragma unroll
  for (u32 i = 0; i < N / 2; ++i) chunk.word[i] = narrow_pair(Narrow{}, x[2 * i], x[2 * i + 1]);
}

// Elements start .. start + N of a row of `width`; zeros past its end. WIDE: the row's `is_wide`.
template <bool WIDE, u32 N, class E>
__device__ __forceinline__ Chunk<E, N> load_raw(const E* row, u32 start, u32 width) {
  Chunk<E, N> chunk{};
  if constexpr (WIDE) {
    if (start < width) chunk = load_whole<E, N>(row + start);
  } else {
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
      if (start + i < width) {
        const u32 shift = i % chunk.PER_WORD * chunk.BITS;
        chunk.word[i / chunk.PER_WORD] |= bits_of(row[start + i]) << shift;
      }
    }
  }
  return chunk;
}

// As `load_raw`; elements past the end of the row are not written.
template <bool WIDE, class E, u32 N>
__device__ __forceinline__ void store_raw(E* row, u32 start, u32 width, const Chunk<E, N>& chunk) {
  if constexpr (WIDE) {
    if (start < width) store_whole(row + start, chunk);
  } else {
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
      if (start + i < width) row[start + i] = of_bits<E>(chunk.bits(i));
    }
  }
}

template <bool WIDE, class E, u32 N>
__device__ __forceinline__ void store_rounded(E* row, u32 start, u32 width, const float (&x)[N]) {
  Chunk<E, N> chunk;
  pack(x, chunk);
  store_raw<WIDE>(row, start, width, chunk);
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
    unpack(load_whole<E, N>(row + start), x);
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
    Chunk<E, N> chunk;
    pack(x, chunk);
    store_whole(row + start, chunk);
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

// The sum of the values of this lane and of all before it. All lanes of the warp take part.
template <class E>
__device__ __forceinline__ E warp_prefix_sum(E value) {
  const u32 lane = threadIdx.x % WARP_SIZE;
  for (u32 step = 1; step < WARP_SIZE; step *= 2) {
    const E before = __shfl_up_sync(FULL_WARP, value, step);
    if (lane >= step) value += before;
  }
  return value;
}

// Combines the values of all threads of a one-dimensional block, whose size is a multiple of 32.
// 0 is neutral: a sum, or a maximum of what is not negative. Each of a kernel's reductions has its
// own `scratch`, or a barrier between two uses of one.
template <class Op, class E>
__device__ __forceinline__ E block_reduce(E value, E (&scratch)[WARP_SIZE]) {
  const u32 num_warps = blockDim.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
  value = warp_reduce<Op>(value);
  if (lane == 0) scratch[threadIdx.x / WARP_SIZE] = value;
  __syncthreads();
  // Every warp does the second step for itself, which saves a barrier.
  E result = E(0);
  for (u32 first = 0; first < num_warps; first += 8) {
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
      result = Op()(result, first + i < num_warps ? scratch[first + i] : E(0));
    }
  }
  return result;
}

// 1 / x within one unit in the last place; 0 where that would be subnormal.
__device__ __forceinline__ float fast_reciprocal(float x) {
#ifdef HOST_SHIM
  return 1.0f / x;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// exp(x) to more places than 16-bit numbers have.
__device__ __forceinline__ float fast_exp(float x) {
#ifdef HOST_SHIM
  return expf(x);
#else
  return __expf(x);
#endif
}

// ln(1 + e^x)
__device__ __forceinline__ float softplus(float x) {
  return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

#ifdef DTYPE
// 1 / (1 + e^-x), to the places that T has.
__device__ __forceinline__ float logistic(float x) {
  return fast_reciprocal(1.0f + (sizeof(T) == 4 ? expf(-x) : fast_exp(-x)));
}
#endif

constexpr float E4M3_MAX = 448.0f;

// The two E4M3 numbers nearest to `low` and `high`, ties to even, at most 448 in size; NaN becomes
// 0x7F. `low` is the low byte.
#if defined(HOST_SHIM) || __CUDA_ARCH__ < 890
__device__ __forceinline__ u32 narrow_e4m3(float x) {
  const u32 bits = bit_cast<u32>(x) & 0x7FFFFFFF;
  if (bits > 0x7F800000) return 0x7F;
  const u32 sign = bit_cast<u32>(x) >> 24 & 0x80;
  u32 rounded = (bits + 0x7FFFF + (bits >> 20 & 1)) >> 20;
  // 15 exponents lie between the smallest normal E4M3 number, 2^-6, and 2^8; f32 has 120 below.
  rounded = rounded > 120 * 8 + 0x7E ? 0x7E : rounded - 120 * 8;
  // Subnormal: one unit is 2^-9, which is the last place of 2^14.
  if (bits < 0x3C800000) rounded = bit_cast<u32>(bit_cast<float>(bits) + 16384.0f) - 0x46800000;
  return sign | rounded;
}

__device__ __forceinline__ u32 narrow_e4m3x2(float low, float high) {
  return narrow_e4m3(high) << 8 | narrow_e4m3(low);
}
#else
__device__ __forceinline__ u32 narrow_e4m3x2(float low, float high) {
  u16 pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}
#endif

// Bits of the largest size so far: sizes of floats are ordered as their bits, with NaN on top.
template <u32 N>
__device__ __forceinline__ u32 largest_size(u32 before, const float (&x)[N]) {
#pragma unroll
  for (u32 i = 0; i < N; ++i) before = Max()(before, bit_cast<u32>(x[i]) & 0x7FFFFFFF);
  return before;
}

// A row's values over its scale, absmax / 448 (1 for a row of zeros, at least 2^-126), as E4M3.
// Infinities make the row NaN.
struct RowQuantizer {
  float scale, inverse;

  __device__ __forceinline__ explicit RowQuantizer(u32 absmax_bits) {
    const float absmax = bit_cast<float>(absmax_bits);
    scale = absmax < E4M3_MAX * 0x1p-126f ? 0x1p-126f : absmax / E4M3_MAX;
    if (absmax == 0.0f) scale = 1.0f;
    inverse = 1.0f / scale;
  }

  // x / scale: an estimate and a correction (Markstein, 1990), without the special cases of a
  // general division.
  __device__ __forceinline__ float quotient(float x) const {
    const float estimate = x * inverse;
    const float corrected = fmaf(fmaf(-estimate, scale, x), inverse, estimate);
    // A correction by 0 takes the sign of -0.
    return bit_cast<float>((bit_cast<u32>(corrected) & 0x7FFFFFFF) |
                           (bit_cast<u32>(x) & 0x80000000));
  }

  template <u32 N>
  __device__ __forceinline__ Chunk<u8, N> operator()(const float (&x)[N]) const {
    float y[N];
#pragma unroll
    for (u32 i = 0; i < N; ++i) y[i] = quotient(x[i]);
    Chunk<u8, N> chunk;
#pragma unroll
    for (u32 i = 0; i < N; i += 4) {
      chunk.word[i / 4] =
          narrow_e4m3x2(y[i + 2], y[i + 3]) << 16 | narrow_e4m3x2(y[i], y[i + 1]);
    }
    return chunk;
  }
};
