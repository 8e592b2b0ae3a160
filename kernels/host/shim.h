// What g++ needs to compile a kernel of this folder for the CPU: CUDA's keywords, built-in
// variables, vector types and intrinsics. Force-included before the kernel, linked with shim.cpp.
// A module runs one block at a time, each of its threads a fiber, so plain loads and stores are
// atomic; what goes wrong on a GPU by a missing barrier goes wrong here by the order of fibers.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
// Not `__noinline__`: g++ 13's own headers write that as the name of an attribute.
#define NOINLINE __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __shared__ static
#define DYN_SMEM(type, name) type* name = reinterpret_cast<type*>(shim::dynamic_smem())

#define SHIM_VECTORS(base, type, align2, align4) \
  struct alignas(align2) base##2 { type x, y; }; \
  struct base##3 { type x, y, z; }; \
  struct alignas(align4) base##4 { type x, y, z, w; }; \
  inline base##2 make_##base##2(type x, type y) { return {x, y}; } \
  inline base##3 make_##base##3(type x, type y, type z) { return {x, y, z}; } \
  inline base##4 make_##base##4(type x, type y, type z, type w) { return {x, y, z, w}; }
SHIM_VECTORS(float, float, 8, 16)
SHIM_VECTORS(int, int, 8, 16)
SHIM_VECTORS(uint, unsigned, 8, 16)
SHIM_VECTORS(short, short, 4, 8)
SHIM_VECTORS(ushort, unsigned short, 4, 8)
SHIM_VECTORS(char, signed char, 2, 4)
SHIM_VECTORS(uchar, unsigned char, 2, 4)
SHIM_VECTORS(double, double, 16, 16)
SHIM_VECTORS(longlong, long long, 16, 16)
SHIM_VECTORS(ulonglong, unsigned long long, 16, 16)
#undef SHIM_VECTORS

struct dim3 { unsigned x = 1, y = 1, z = 1; };
extern uint3 threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

namespace shim {

using CollectiveFn = void (*)(void** payloads, uint32_t mask);
using CallFn = void (*)(void (*entry)(), void** args);

void* dynamic_smem();
void register_entry(const char* name, void (*entry)(), CallFn call, const uint8_t* param_sizes,
                    size_t num_params);
// Lets other fibers run: for loops that wait for a value in memory.
void yield();
// Lets other threads of the host run, each of which may be another rank's device.
void let_others_run();
// Stops the launch with an error; does not return to the kernel.
[[noreturn]] void fail(const char* what);
// Returns how many threads passed a nonzero `predicate`.
uint32_t block_barrier(uint32_t predicate);
// Waits for the lanes of `mask`; the last one runs `fn` on the payloads of all.
void warp_collective(uint32_t mask, void* payload, CollectiveFn fn);
// A queue of asynchronous copies per thread, applied when waited for.
void copy_async(void* to, const void* from, uint32_t bytes, uint32_t bytes_read);
void commit_copies();
void wait_copies(uint32_t groups_left);
// What this thread has copied may be read by products of warpgroups from then on.
void fence_async_proxy();
// 16 bytes of shared memory, by the low 18 bits of their address: in this block's part, and nothing
// of theirs is a copy under way, or one whose thread has not fenced it.
const void* read_by_async_proxy(uint32_t address);
// Calls `check` after each block: what it says is wrong, or null.
void check_after_blocks(const char* (*check)());

template <class... Args, size_t... I>
void call_unpacked(void (*entry)(Args...), void** args, std::index_sequence<I...>) {
  entry(*static_cast<std::remove_cv_t<std::remove_reference_t<Args>>*>(args[I])...);
}

template <class... Args>
struct Register {
  static void call(void (*entry)(), void** args) {
    call_unpacked(reinterpret_cast<void (*)(Args...)>(entry), args,
                  std::index_sequence_for<Args...>{});
  }
};

template <class... Args>
int register_typed(const char* name, void (*entry)(Args...)) {
  // Not empty, where there are no parameters.
  static constexpr uint8_t sizes[] = {sizeof(Args)..., 0};
  register_entry(name, reinterpret_cast<void (*)()>(entry), &Register<Args...>::call, sizes,
                 sizeof...(Args));
  return 0;
}

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

enum class Shuffle { Index, Up, Down, Xor };
struct ShuffleArgs {
  uint64_t in, out;
  int arg, width;
};

template <Shuffle kind>
void shuffle_lanes(void** payloads, uint32_t mask) {
  for (int lane = 0; lane < 32; ++lane) {
    if (!(mask >> lane & 1)) continue;
    auto* own = static_cast<ShuffleArgs*>(payloads[lane]);
    int first = lane & ~(own->width - 1), in_group = lane - first, from = 0;
    if (kind == Shuffle::Index) from = own->arg & (own->width - 1);
    if (kind == Shuffle::Up) from = in_group - own->arg;
    if (kind == Shuffle::Down) from = in_group + own->arg;
    if (kind == Shuffle::Xor) from = in_group ^ own->arg;
    if (from < 0 || from >= own->width) from = in_group;
    if (!(mask >> (first + from) & 1)) fail("a shuffle reads a lane outside its mask");
    own->out = static_cast<ShuffleArgs*>(payloads[first + from])->in;
  }
}

template <Shuffle kind, class V>
V shuffle(uint32_t mask, V value, int arg, int width) {
  static_assert(sizeof(V) <= 8, "");
  ShuffleArgs args{0, 0, arg, width};
  memcpy(&args.in, &value, sizeof(V));
  warp_collective(mask, &args, shuffle_lanes<kind>);
  memcpy(&value, &args.out, sizeof(V));
  return value;
}

struct ReduceArgs {
  uint64_t in, out;
};

// `Op` folds the values of the lanes in ascending order of lanes.
template <class Op>
void reduce_lanes(void** payloads, uint32_t mask) {
  uint64_t sum = Op::start;
  for (int lane = 0; lane < 32; ++lane)
    if (mask >> lane & 1)
      sum = Op::fold(sum, static_cast<ReduceArgs*>(payloads[lane])->in, lane);
  for (int lane = 0; lane < 32; ++lane)
    if (mask >> lane & 1) static_cast<ReduceArgs*>(payloads[lane])->out = sum;
}

template <class Op>
uint64_t reduce(uint32_t mask, uint64_t value) {
  ReduceArgs args{value, 0};
  warp_collective(mask, &args, reduce_lanes<Op>);
  return args.out;
}

#define SHIM_REDUCTION(name, start_value, expression) \
  struct name { \
    static constexpr uint64_t start = start_value; \
    static uint64_t fold(uint64_t a, uint64_t b, int lane) { (void)lane; return expression; } \
  };
SHIM_REDUCTION(Ballot, 0, a | (uint64_t)(b != 0) << lane)
SHIM_REDUCTION(Add, 0, (uint32_t)(a + b))
SHIM_REDUCTION(MaxU, 0, a > b ? a : b)
SHIM_REDUCTION(MinU, ~0ull, a < b ? a : b)
SHIM_REDUCTION(And, ~0ull, a & b)
SHIM_REDUCTION(Or, 0, a | b)
SHIM_REDUCTION(Xor, 0, a ^ b)
#undef SHIM_REDUCTION

inline void match_lanes(void** payloads, uint32_t mask) {
  for (int lane = 0; lane < 32; ++lane) {
    if (!(mask >> lane & 1)) continue;
    auto* own = static_cast<ReduceArgs*>(payloads[lane]);
    own->out = 0;
    for (int other = 0; other < 32; ++other)
      if (mask >> other & 1 && static_cast<ReduceArgs*>(payloads[other])->in == own->in)
        own->out |= 1u << other;
  }
}

}  // namespace shim

#define EXPORT(name) static const int exported_##name = shim::register_typed(#name, &name);

// Barriers and warp-wide functions.
inline void __syncthreads() { shim::block_barrier(0); }
inline int __syncthreads_count(int p) { return (int)shim::block_barrier(p != 0); }
inline int __syncthreads_or(int p) { return shim::block_barrier(p != 0) != 0; }
inline int __syncthreads_and(int p) { return shim::block_barrier(p == 0) == 0; }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  shim::warp_collective(mask, nullptr, nullptr);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) { shim::yield(); }
[[noreturn]] inline void __trap() { shim::fail("__trap"); }

template <class V> V __shfl_sync(unsigned mask, V value, int lane, int width = 32) {
  return shim::shuffle<shim::Shuffle::Index>(mask, value, lane, width);
}
template <class V> V __shfl_up_sync(unsigned mask, V value, unsigned by, int width = 32) {
  return shim::shuffle<shim::Shuffle::Up>(mask, value, (int)by, width);
}
template <class V> V __shfl_down_sync(unsigned mask, V value, unsigned by, int width = 32) {
  return shim::shuffle<shim::Shuffle::Down>(mask, value, (int)by, width);
}
template <class V> V __shfl_xor_sync(unsigned mask, V value, int by, int width = 32) {
  return shim::shuffle<shim::Shuffle::Xor>(mask, value, by, width);
}
inline unsigned __ballot_sync(unsigned mask, int p) {
  return (unsigned)shim::reduce<shim::Ballot>(mask, p != 0);
}
inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
inline int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, p) == mask; }
inline unsigned __reduce_add_sync(unsigned mask, unsigned v) {
  return (unsigned)shim::reduce<shim::Add>(mask, v);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned v) {
  return (unsigned)shim::reduce<shim::MaxU>(mask, v);
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned v) {
  return (unsigned)shim::reduce<shim::MinU>(mask, v);
}
inline unsigned __reduce_and_sync(unsigned mask, unsigned v) {
  return (unsigned)shim::reduce<shim::And>(mask, v);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned v) {
  return (unsigned)shim::reduce<shim::Or>(mask, v);
}
inline unsigned __reduce_xor_sync(unsigned mask, unsigned v) {
  return (unsigned)shim::reduce<shim::Xor>(mask, v);
}
template <class V> unsigned __match_any_sync(unsigned mask, V value) {
  shim::ReduceArgs args{0, 0};
  memcpy(&args.in, &value, sizeof(V));
  shim::warp_collective(mask, &args, shim::match_lanes);
  return (unsigned)args.out;
}

// Atomics: fibers are switched at barriers only.
#define SHIM_ATOMIC(name, expression) \
  template <class V, class W> V name(V* address, W w) { \
    V old = *address, value = (V)w; \
    (void)value; \
    *address = (V)(expression); \
    return old; \
  }
SHIM_ATOMIC(atomicAdd, old + value)
SHIM_ATOMIC(atomicSub, old - value)
SHIM_ATOMIC(atomicMax, old > value ? old : value)
SHIM_ATOMIC(atomicMin, old < value ? old : value)
SHIM_ATOMIC(atomicAnd, old & value)
SHIM_ATOMIC(atomicOr, old | value)
SHIM_ATOMIC(atomicXor, old ^ value)
SHIM_ATOMIC(atomicExch, value)
SHIM_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
#undef SHIM_ATOMIC
template <class V, class C, class W> V atomicCAS(V* address, C compare, W value) {
  V old = *address;
  if (old == (V)compare) *address = (V)value;
  return old;
}

// Bits.
inline float __uint_as_float(unsigned v) { return shim::bits<float>(v); }
inline unsigned __float_as_uint(float v) { return shim::bits<unsigned>(v); }
inline float __int_as_float(int v) { return shim::bits<float>(v); }
inline int __float_as_int(float v) { return shim::bits<int>(v); }
inline long long __double_as_longlong(double v) { return shim::bits<long long>(v); }
inline double __longlong_as_double(long long v) { return shim::bits<double>(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz((unsigned)v); }
inline int __clzll(long long v) { return v == 0 ? 64 : __builtin_clzll((unsigned long long)v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __ffsll(long long v) { return __builtin_ffsll(v); }
inline unsigned __brev(unsigned v) {
  unsigned out = 0;
  for (int i = 0; i < 32; ++i) out |= (v >> i & 1u) << (31 - i);
  return out;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return (unsigned)((((uint64_t)high << 32 | low) << (by & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return (unsigned)(((uint64_t)high << 32 | low) >> (by & 31));
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  uint64_t both = (uint64_t)b << 32 | a;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i)
    out |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return out;
}

// Arithmetic.
inline float rsqrtf(float v) { return (float)(1.0 / sqrt((double)v)); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __saturatef(float v) { return v > 0.0f ? (v < 1.0f ? v : 1.0f) : 0.0f; }
inline int __float2int_rn(float v) { return (int)rintf(v); }
inline int __float2int_rz(float v) { return (int)v; }
inline int __float2int_rd(float v) { return (int)floorf(v); }
inline unsigned __float2uint_rn(float v) { return v > 0.0f ? (unsigned)rintf(v) : 0; }
inline unsigned __float2uint_rz(float v) { return v > 0.0f ? (unsigned)v : 0; }
inline unsigned long long __float2ull_rn(float v) {
  return v > 0.0f ? (unsigned long long)rintf(v) : 0;
}
inline unsigned long long __float2ull_rz(float v) { return v > 0.0f ? (unsigned long long)v : 0; }
inline unsigned long long __double2ull_rn(double v) {
  return v > 0.0 ? (unsigned long long)rint(v) : 0;
}
inline unsigned long long __double2ull_rz(double v) {
  return v > 0.0 ? (unsigned long long)v : 0;
}
inline float __uint2float_rn(unsigned v) { return (float)v; }
inline float __int2float_rn(int v) { return (float)v; }
inline float __ull2float_rn(unsigned long long v) { return (float)v; }
inline double __ull2double_rn(unsigned long long v) { return (double)v; }
inline double __uint2double_rn(unsigned v) { return (double)v; }

#define SHIM_MIN_MAX(a_type, b_type, type) \
  inline type min(a_type a, b_type b) { return (type)a < (type)b ? (type)a : (type)b; } \
  inline type max(a_type a, b_type b) { return (type)a > (type)b ? (type)a : (type)b; }
SHIM_MIN_MAX(int, int, int)
SHIM_MIN_MAX(unsigned, unsigned, unsigned)
SHIM_MIN_MAX(int, unsigned, unsigned)
SHIM_MIN_MAX(unsigned, int, unsigned)
SHIM_MIN_MAX(long, long, long)
SHIM_MIN_MAX(unsigned long, unsigned long, unsigned long)
SHIM_MIN_MAX(long long, long long, long long)
SHIM_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
#undef SHIM_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

// Cache hints.
template <class V> V __ldg(const V* from) { return *from; }
template <class V> V __ldcg(const V* from) { return *from; }
template <class V> V __ldcs(const V* from) { return *from; }
template <class V> void __stcs(V* to, V value) { *to = value; }
template <class V> void __stcg(V* to, V value) { *to = value; }
