// Heads of a token's q, k and v, and where K and V of a token go in the paged cache.
#pragma once
#include "common.cuh"

// An element of the cache: the activations' type, or E4M3.
#ifdef KV_FP8
using KV = u8;
#else
using KV = T;
#endif

// Slot of a row that pads the batch of a CUDA graph.
constexpr u32 NO_SLOT = 0xFFFFFFFFu;

struct Shape {
  u32 num_heads, num_kv_heads, head_dim, rotary_dim, block_size, cache_heads;

  __device__ __forceinline__ u32 k_end() const { return num_heads + num_kv_heads; }
  __device__ __forceinline__ u32 v_end() const { return num_heads + 2 * num_kv_heads; }
  __device__ __forceinline__ bool is_k(u32 head) const {
    return head >= num_heads && head < k_end();
  }
};

// Where the K and V of one token go, from head to head.
struct Slot {
  KV *k, *v;   // of the first head
  u32 stride;  // from a head to the next

  __device__ __forceinline__ Slot(const Shape& shape, u32 slot, KV* k_cache, KV* v_cache)
      : stride(shape.block_size * shape.head_dim) {
    const u32 block = slot / shape.block_size, offset = slot % shape.block_size;
    const u64 start = u64(block) * shape.cache_heads * stride + offset * shape.head_dim;
    k = k_cache + start;
    v = v_cache + start;
  }

  // Where the key or value head goes that is number `head` of the row.
  __device__ __forceinline__ KV* of_head(const Shape& shape, u32 head) const {
    const u64 kv_head = head - (shape.is_k(head) ? shape.num_heads : shape.k_end());
    return (shape.is_k(head) ? k : v) + kv_head * stride;
  }
};

// Chunk `start` of `width` elements of a head, in the cache.
template <bool WIDE>
__device__ __forceinline__ void store_kv(T* to, u32 start, u32 width,
                                         const Chunk<T, CHUNK>& values) {
  store_raw<WIDE>(to, start, width, values);
}

#ifdef KV_FP8
// As above, narrowed.
template <bool WIDE>
__device__ __forceinline__ void store_kv(u8* to, u32 start, u32 width,
                                         const Chunk<T, CHUNK>& values) {
  float x[CHUNK];
  unpack(values, x);
#pragma unroll
  for (u32 i = 0; i < CHUNK; i += 4) {
    const u32 word =
        narrow_e4m3x2(x[i + 2], x[i + 3]) << 16 | narrow_e4m3x2(x[i], x[i + 1]);
    if (WIDE) {
      if (start < width) *reinterpret_cast<u32*>(to + start + i) = word;
    } else {
#pragma unroll
      for (u32 j = 0; j < 4; ++j) {
        if (start + i + j < width) to[start + i + j] = u8(word >> 8 * j);
      }
    }
  }
}
#endif
