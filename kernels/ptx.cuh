// Every PTX instruction that the kernels write by hand, one wrapper each, with its emulation for
// the CPU shim beside it (conversions are in common.cuh).
#pragma once

#include "common.cuh"

#ifdef HOST_SHIM
using SmemAddress = uintptr_t;
#else
using SmemAddress = u32;
#endif

// The address of a place in shared memory, as ldmatrix and cp.async take it.
__device__ __forceinline__ SmemAddress smem_address(const void* p) {
#ifdef HOST_SHIM
  return reinterpret_cast<uintptr_t>(p);
#else
  u32 address;
  asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }"
      : "=r"(address)
      : "l"(p));
  return address;
#endif
}

__device__ __forceinline__ Words<4> load_shared_16(SmemAddress from) {
#ifdef HOST_SHIM
  return *reinterpret_cast<const Words<4>*>(from);
#else
  Words<4> words;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.word[0]), "=r"(words.word[1]), "=r"(words.word[2]), "=r"(words.word[3])
               : "r"(from)
               : "memory");
  return words;
#endif
}

__device__ __forceinline__ void store_shared_16(SmemAddress to, const Words<4>& words) {
#ifdef HOST_SHIM
  *reinterpret_cast<Words<4>*>(to) = words;
#else
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words.word[0]),
               "r"(words.word[1]), "r"(words.word[2]), "r"(words.word[3])
               : "memory");
#endif
}

// Starts copying 16 bytes to shared memory; writes zeros and reads nothing unless `is_valid`.
__device__ __forceinline__ void copy_async_16(SmemAddress to, const void* from, bool is_valid) {
#ifdef HOST_SHIM
  shim::copy_async(reinterpret_cast<void*>(to), from, 16, is_valid ? 16 : 0);
#else
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(is_valid ? 16 : 0)
               : "memory");
#endif
}

// Closes this thread's group of copies; an empty group is one too.
__device__ __forceinline__ void commit_async() {
#ifdef HOST_SHIM
  shim::commit_copies();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `groups_left` of this thread's newest groups are under way. Other threads see
// the copies after a barrier.
template <u32 groups_left>
__device__ __forceinline__ void wait_async() {
#ifdef HOST_SHIM
  shim::wait_copies(groups_left);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(groups_left) : "memory");
#endif
}

#ifdef HOST_SHIM
struct LdmatrixArgs {
  SmemAddress row;
  u32* words;
};

template <bool is_transposed>
void ldmatrix_lanes(void** payloads, u32 mask) {
  if (mask != FULL_WARP) shim::fail("ldmatrix in a part of a warp");
  for (u32 lane = 0; lane < 32; ++lane) {
    for (u32 matrix = 0; matrix < 4; ++matrix) {
      u32 word = 0;
      for (u32 half = 0; half < 2; ++half) {
        const u32 pair = lane % 4 * 2 + half;
        const u32 row = is_transposed ? pair : lane / 4, column = is_transposed ? lane / 4 : pair;
        const SmemAddress at = static_cast<LdmatrixArgs*>(payloads[matrix * 8 + row])->row;
        if (at % 16 != 0) shim::fail("ldmatrix with an unaligned address");
        word |= u32(reinterpret_cast<const u16*>(at)[column]) << 16 * half;
      }
      static_cast<LdmatrixArgs*>(payloads[lane])->words[matrix] = word;
    }
  }
}
#endif

// Four 8x8 matrices of 16-bit elements; lane 8 i + j gives the address of row j of matrix i. Lane l
// gets elements (l / 4, 2 (l % 4)) and the next in the row.
__device__ __forceinline__ void ldmatrix(SmemAddress row, u32 (&words)[4]) {
#ifdef HOST_SHIM
  LdmatrixArgs args{row, words};
  shim::warp_collective(FULL_WARP, &args, ldmatrix_lanes<false>);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
#endif
}

// As `ldmatrix`, of the transposed matrices.
__device__ __forceinline__ void ldmatrix_transposed(SmemAddress row, u32 (&words)[4]) {
#ifdef HOST_SHIM
  LdmatrixArgs args{row, words};
  shim::warp_collective(FULL_WARP, &args, ldmatrix_lanes<true>);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
#endif
}

#ifdef HOST_SHIM
struct MmaArgs {
  float* c;
  const u32* a;
  u32 b[2];
};

template <class E>
inline float half_of(u32 word, u32 half) {
  return to_float(E{u16(word >> 16 * half)});
}

template <class E>
void mma_lanes(void** payloads, u32 mask) {
  if (mask != FULL_WARP) shim::fail("mma in a part of a warp");
  float a[16][16], b[16][8];
  for (u32 lane = 0; lane < 32; ++lane) {
    const auto* args = static_cast<MmaArgs*>(payloads[lane]);
    const u32 group = lane / 4, pair = lane % 4 * 2;
    for (u32 half = 0; half < 2; ++half) {
      for (u32 i = 0; i < 4; ++i)
        a[group + i % 2 * 8][pair + half + i / 2 * 8] = half_of<E>(args->a[i], half);
      for (u32 i = 0; i < 2; ++i) b[pair + half + i * 8][group] = half_of<E>(args->b[i], half);
    }
  }
  for (u32 lane = 0; lane < 32; ++lane) {
    const auto* args = static_cast<MmaArgs*>(payloads[lane]);
    for (u32 i = 0; i < 4; ++i) {
      const u32 row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      float sum = args->c[i];
      for (u32 k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      args->c[i] = sum;
    }
  }
}
#endif

// c (16, 8) += a (16, 16) * b (16, 8), in the fragments of mma.m16n8k16. E: bf16 or f16.
template <class E>
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1);

#ifdef HOST_SHIM
#define DEFINE_MMA(type, name)                                                           \
  template <>                                                                            \
  __forceinline__ void mma<type>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {     \
    MmaArgs args{c, a, {b0, b1}};                                                        \
    shim::warp_collective(FULL_WARP, &args, mma_lanes<type>);                            \
  }
#else
#define DEFINE_MMA(type, name)                                                                   \
  template <>                                                                                    \
  __device__ __forceinline__ void mma<type>(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {  \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name                                   \
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                   \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                         \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                         \
  }
#endif
DEFINE_MMA(bf16, "bf16")
DEFINE_MMA(f16, "f16")
#undef DEFINE_MMA

// a * b + c of two numbers of E each, with one rounding; on the shim, where f32 holds the result.
template <class E>
__device__ __forceinline__ u32 fma_x2(u32 a, u32 b, u32 c);

#ifdef HOST_SHIM
#define DEFINE_FMA_X2(type, name)                                                        \
  template <>                                                                            \
  __forceinline__ u32 fma_x2<type>(u32 a, u32 b, u32 c) {                                \
    u32 pair = 0;                                                                        \
    for (u32 half = 0; half < 2; ++half) {                                               \
      const float x = half_of<type>(a, half), y = half_of<type>(b, half);                \
      const type sum = from_float<type>(fmaf(x, y, half_of<type>(c, half)));             \
      pair |= u32(sum.bits) << 16 * half;                                                \
    }                                                                                    \
    return pair;                                                                         \
  }
#else
#define DEFINE_FMA_X2(type, name)                                                         \
  template <>                                                                             \
  __device__ __forceinline__ u32 fma_x2<type>(u32 a, u32 b, u32 c) {                      \
    u32 pair;                                                                             \
    asm("fma.rn." name "x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(a), "r"(b), "r"(c));       \
    return pair;                                                                          \
  }
#endif
DEFINE_FMA_X2(bf16, "bf16")
DEFINE_FMA_X2(f16, "f16")
#undef DEFINE_FMA_X2

// Two values narrowed into one word, `low` in the low half.
template <class E>
__device__ __forceinline__ u32 narrow_x2(float low, float high);
template <>
__device__ __forceinline__ u32 narrow_x2<bf16>(float low, float high) {
  return narrow_bf16x2(low, high);
}
template <>
__device__ __forceinline__ u32 narrow_x2<f16>(float low, float high) {
  return narrow_f16x2(low, high);
}

// Four E4M3 numbers, the lowest byte first, as f16 in two words; exact.
__device__ __forceinline__ void widen_e4m3x4(u32 four, u32 (&pairs)[2]) {
#if defined(HOST_SHIM) || __CUDA_ARCH__ < 890
  for (u32 i = 0; i < 2; ++i) {
    // The bits are those of f16 numbers that are 2^8 times smaller; 2^8 is 0x5C00.
    const u32 high = __byte_perm(four, 0, i == 0 ? 0x1404 : 0x3424), size = high >> 1 & 0x3F803F80;
    // NaN has all places of a size, so that a carry goes out of them: it makes this a NaN too.
    const u32 carry = (size + 0x00800080) & 0x40004000;
    pairs[i] = fma_x2<f16>((high & 0x80008000) | size | carry, 0x5C005C00, 0x80008000);
  }
#else
  asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.rn.f16x2.e4m3x2 %0, low; "
      "cvt.rn.f16x2.e4m3x2 %1, high; }"
      : "=r"(pairs[0]), "=r"(pairs[1])
      : "r"(four));
#endif
}

// The same value, of which the compiler knows nothing: what follows from it is computed where it is
// used, instead of being kept in registers from an earlier use on.
__device__ __forceinline__ u32 hide(u32 x) {
#ifndef HOST_SHIM
  asm volatile("" : "+r"(x));
#endif
  return x;
}

// 2^x; exactly 1 for 0 and 0 for -inf.
__device__ __forceinline__ float exp2_approx(float x) {
#ifdef HOST_SHIM
  return exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// Waits until `*turn` (shared memory) is `value`; sees all that was written before it became so.
__device__ __forceinline__ void wait_for_turn(const u32* turn, u32 value) {
#ifdef HOST_SHIM
  while (*const_cast<const volatile u32*>(turn) != value) shim::yield();
#else
  const SmemAddress address = smem_address(turn);
  u32 current;
  do {
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(current) : "r"(address) : "memory");
  } while (current != value);
#endif
}

// Sets `*turn` (shared memory) after all that this thread has written or seen.
__device__ __forceinline__ void set_turn(u32* turn, u32 value) {
#ifdef HOST_SHIM
  *turn = value;
#else
  asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(smem_address(turn)), "r"(value)
               : "memory");
#endif
}

// Sets `*arrived`, which may be in the memory of another rank's device, after all that this thread
// has written or seen.
__device__ __forceinline__ void set_for_ranks(u32* arrived, u32 epoch) {
#ifdef HOST_SHIM
  __atomic_store_n(arrived, epoch, __ATOMIC_RELEASE);
#else
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(arrived), "r"(epoch) : "memory");
#endif
}

__device__ __forceinline__ u32 load_of_ranks(const u32* at) {
#ifdef HOST_SHIM
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
#else
  u32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
#endif
}

// Waits until another rank has set `*arrived` to `epoch` or to what comes after it, and sees all
// that was written before; or until `*stop` is not 0. On the shim each rank is a thread of the
// host, and other fibers have nothing to do meanwhile.
__device__ __forceinline__ void wait_for_rank(const u32* arrived, u32 epoch, const u32* stop) {
  for (u32 turn = 1; int(load_of_ranks(arrived) - epoch) < 0; ++turn) {
    // Seldom looked at: it is in the host's memory, which is far.
    if (turn % 1024 == 0 && load_of_ranks(stop) != 0) return;
#ifdef HOST_SHIM
    shim::let_others_run();
#endif
  }
}
