// Heads of a token's q, k and v, and where K and V of a token go in the paged cache.
#pragma once
#include "common.cuh"

// An element of the cache: the activations' type, or E4M3.
#ifdef KV_FP8
using KV = u8;
#else
using KV = T;
#endif

// Which angles turn a token: of its position, or of its position on the axis of each pair.
struct Angles {
  const float* cos_sin;  // (num_positions, rotary_dim / 2) of (cos, sin)
  const u32* positions;  // (num_tokens)
  const u32* axes;       // (num_tokens, 3) positions on axes; null: there is one position
  const u8* of_pairs;    // (rotary_dim / 2) axes
};

// Those of one token.
struct TokenAngles {
  const float* cos_sin;
  u32 rotary_dim;
  u32 place[3];
  const u8* of_pairs;
  bool differ;  // its positions on axes do

  __device__ __forceinline__ TokenAngles(const Angles& angles, u32 token, u32 rotary_dim)
      : cos_sin(angles.cos_sin), rotary_dim(rotary_dim), of_pairs(angles.of_pairs) {
    const u32* own = angles.axes ? angles.axes + 3 * u64(token) : nullptr;
    place[0] = own ? own[0] : angles.positions[token];
    place[1] = own ? own[1] : place[0];
    place[2] = own ? own[2] : place[0];
    differ = place[1] != place[0] || place[2] != place[0];
  }

  // The pairs (cos, sin) from pair `start` on, of N values in all; zeros past `num_pairs`.
  template <bool WIDE, u32 N>
  __device__ __forceinline__ Chunk<float, N> load(u32 start, u32 num_pairs) const {
    if (!differ) {
      const float* of_token = cos_sin + u64(place[0]) * rotary_dim;
      return load_raw<WIDE, N>(of_token, 2 * start, 2 * num_pairs);
    }
    float values[N];
#pragma unroll
    for (u32 i = 0; i < N / 2; ++i) {
      const u32 pair = start + i;
      const u32 axis = pair < num_pairs ? of_pairs[pair] : 0;
      const u32 own = axis == 0 ? place[0] : axis == 1 ? place[1] : place[2];
      const float* from = cos_sin + u64(own) * rotary_dim + 2 * pair;
      values[2 * i] = pair < num_pairs ? from[0] : 0.0f;
      values[2 * i + 1] = pair < num_pairs ? from[1] : 0.0f;
    }
    Chunk<float, N> packed;
    pack(values, packed);
    return packed;
  }
};

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
