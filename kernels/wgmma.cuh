// Products of the warpgroups of Hopper (sm_90a): wgmma and what is around it, with its emulation
// for the CPU shim in host/wgmma.h.
//
// Four warps compute 64 rows, warp w of them rows 16 w to 16 w + 15. What a lane holds of its
// warp's rows is what it holds for mma.sync: operand a is the fragment of m16n8k16, and d[n] the
// accumulators of columns 8 n to 8 n + 7. So what is done to rows between products is the same
// code.
//
// A product is only started. Until it is waited for, nobody touches its accumulators, its operand a
// and what it reads of shared memory:
//   hold(registers), wgmma_fence(), wgmma..., wgmma_commit(), ..., wgmma_wait(), hold(registers)
#pragma once

#include "ptx.cuh"
#ifdef HOST_SHIM
#include "host/wgmma.h"
#endif

// Operand b is in rows of 128 bytes, whose chunks of 16 are at their number ^ row % 8 (the 128-byte
// swizzle); 8 such rows begin where addresses are multiples of WGMMA_ALIGNMENT.
constexpr u32 WGMMA_ALIGNMENT = 1024;
constexpr u32 WGMMA_ROW_BYTES = 128;
// Columns of a product.
constexpr u32 WGMMA_COLUMNS = 64;

// Operand b of one step, whose groups of 8 rows follow each other. Not transposed, a row is a
// column of b, and `at` is where 16 of its elements begin in the first one. Transposed, a row is
// one of the 16 rows of b. The offset between pieces of 64 columns is not used: a product has one.
__device__ __forceinline__ u64 describe_operand(SmemAddress at) {
  const u64 start = (at & 0x3FFFF) >> 4, swizzle_128 = 1;
  return start | u64(1) << 16 | u64(WGMMA_ALIGNMENT >> 4) << 32 | swizzle_128 << 62;
}

// What follows is not moved before this by the compiler, and neither is what these registers hold.
template <u32 n, u32 m>
__device__ __forceinline__ void hold(float (&registers)[n][m]) {
#ifndef HOST_SHIM
#pragma unroll
  for (u32 i = 0; i < n * m; ++i) asm volatile("" : "+f"(registers[i / m][i % m]));
#endif
}

template <u32 n, u32 m>
__device__ __forceinline__ void hold(u32 (&registers)[n][m]) {
#ifndef HOST_SHIM
#pragma unroll
  for (u32 i = 0; i < n * m; ++i) asm volatile("" : "+r"(registers[i / m][i % m]));
#endif
}

// Before products that read registers which were written otherwise.
__device__ __forceinline__ void wgmma_fence() {
#ifdef HOST_SHIM
  shim::fence_products();
#else
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Closes the group of products that were started.
__device__ __forceinline__ void wgmma_commit() {
#ifdef HOST_SHIM
  shim::commit_products();
#else
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits until at most `groups_left` of the newest groups are under way.
template <u32 groups_left>
__device__ __forceinline__ void wgmma_wait() {
#ifdef HOST_SHIM
  shim::wait_products(groups_left);
#else
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups_left) : "memory");
#endif
}

// Lets products read what this thread has written to shared memory, cp.async included. Others see
// that after a barrier.
__device__ __forceinline__ void fence_async_proxy() {
#ifdef HOST_SHIM
  shim::fence_async_proxy();
#else
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#ifndef HOST_SHIM
#define WGMMA_EIGHT(access, n)                                                            \
  access(d[n][0]), access(d[n][1]), access(d[n][2]), access(d[n][3]), access(d[n + 1][0]), \
      access(d[n + 1][1]), access(d[n + 1][2]), access(d[n + 1][3])
// `access`: of accumulators, "+f" or "=f"; `adds`: whether they are added to, 1 or 0.
#define WGMMA(name, access, adds)                                                               \
  asm volatile(                                                                                 \
      "{ .reg .pred adds; setp.ne.b32 adds, %37, 0;\n"                                          \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name                               \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18,"  \
      " %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},"                      \
      " {%32, %33, %34, %35}, %36, adds, 1, 1, %38; }"                                          \
      : WGMMA_EIGHT(access, 0), WGMMA_EIGHT(access, 2), WGMMA_EIGHT(access, 4),                 \
        WGMMA_EIGHT(access, 6)                                                                  \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds), "n"(u32(is_transposed)))
#endif

// Starts d (64, 64) += a (64, 16) * b (16, 64) of four warps, or = where it does not add. That
// reads no accumulators: ptxas would wait before whatever has written them. E: bf16 or f16.
template <class E, bool is_transposed, bool adds>
__device__ __forceinline__ void wgmma(float (&d)[WGMMA_COLUMNS / 8][4], const u32 (&a)[4], u64 b) {
#ifdef HOST_SHIM
  shim::start_product<E, is_transposed, adds>(&d[0][0], a, b);
#else
  if constexpr (IS_SAME<E, bf16> && adds) WGMMA("bf16", "+f", 1);
  if constexpr (IS_SAME<E, bf16> && !adds) WGMMA("bf16", "=f", 0);
  if constexpr (!IS_SAME<E, bf16> && adds) WGMMA("f16", "+f", 1);
  if constexpr (!IS_SAME<E, bf16> && !adds) WGMMA("f16", "=f", 0);
#endif
}
#ifndef HOST_SHIM
#undef WGMMA
#undef WGMMA_EIGHT
#endif
