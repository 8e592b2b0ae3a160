// Rotary position embedding (Su et al., 2021) in the half-split ("neox") form of Hugging Face, and
// the step's K and V into their slots of the paged cache.
#include "common.cuh"

// Slot of a row that pads the batch of a CUDA graph.
constexpr u32 NO_SLOT = 0xFFFFFFFFu;

struct Shape {
  u32 num_heads, num_kv_heads, head_dim, block_size;
};

// Where head `head` of the token of `slot` starts in a cache of one layer,
// (num_blocks, num_kv_heads, block_size, head_dim).
__device__ __forceinline__ u64 cache_start(const Shape& shape, u32 slot, u32 head) {
  const u32 block = slot / shape.block_size, offset = slot % shape.block_size;
  return ((u64(block) * shape.num_kv_heads + head) * shape.block_size + offset) * shape.head_dim;
}

__device__ __forceinline__ void rotate_pair(float& low, float& high, float cos, float sin) {
  const float before = low;
  low = before * cos - high * sin;
  high = high * cos + before * sin;
}

// Rotates q and k in place; rotated k also goes to `k_cache`. Without angles, k is only copied.
// Each thread takes N elements of the low half of a head and their partners in the high half.
template <u32 N>
__device__ __forceinline__ void rotate(T* row, const float* angles, const Shape& shape, u32 slot,
                                       T* k_cache, bool wide) {
  const u32 half = shape.head_dim / 2, parts = (half + N - 1) / N;
  const u32 num_items = (shape.num_heads + shape.num_kv_heads) * parts;
  const u32 first_item = angles ? 0 : shape.num_heads * parts;
  for (u32 item = first_item + threadIdx.x; item < num_items; item += blockDim.x) {
    const u32 head = item / parts, start = item % parts * N;
    T* low = row + head * shape.head_dim;
    T* high = low + half;
    float x[N], y[N];
    load_part(low, start, half, wide, x);
    load_part(high, start, half, wide, y);
    if (angles) {
#pragma unroll
      for (u32 i = 0; i < N; i += 2) {
        float angle[4];
        load_part(angles, 2 * (start + i), 2 * half, wide, angle);
        rotate_pair(x[i], y[i], angle[0], angle[1]);
        rotate_pair(x[i + 1], y[i + 1], angle[2], angle[3]);
      }
      store_part(low, start, half, wide, x);
      store_part(high, start, half, wide, y);
    }
    if (head >= shape.num_heads && slot != NO_SLOT) {
      T* cached = k_cache + cache_start(shape, slot, head - shape.num_heads);
      store_part(cached, start, half, wide, x);
      store_part(cached + half, start, half, wide, y);
    }
  }
}

// One row of qkv (num_tokens, (num_heads + 2 * num_kv_heads) * head_dim) per block: its q heads and
// k heads are rotated in place by the angles of positions (num_tokens), cos_sin (num_positions,
// head_dim / 2) of (cos, sin) or null for none; k and v go to slot_mapping (num_tokens) of
// k_cache and v_cache (num_blocks, num_kv_heads, block_size, head_dim). Any block size.
KERNEL(512)
rotary_and_cache(T* qkv, const u32* positions, const float* cos_sin, const u32* slot_mapping,
                 T* k_cache, T* v_cache, u32 num_heads, u32 num_kv_heads, u32 head_dim,
                 u32 block_size) {
  const Shape shape{num_heads, num_kv_heads, head_dim, block_size};
  const u32 k_end = (num_heads + num_kv_heads) * head_dim, v_width = num_kv_heads * head_dim;
  T* row = qkv + u64(blockIdx.x) * (k_end + v_width);
  const u32 slot = slot_mapping[blockIdx.x];
  const float* angles = cos_sin ? cos_sin + u64(positions[blockIdx.x]) * head_dim : nullptr;
  const bool wide = head_dim % (2 * CHUNK) == 0 && is_aligned(qkv, 16) && is_aligned(cos_sin, 16) &&
                    is_aligned(k_cache, 16) && is_aligned(v_cache, 16);
  if (angles || slot != NO_SLOT) rotate<CHUNK>(row, angles, shape, slot, k_cache, wide);
  if (slot == NO_SLOT) return;
  const u32 parts = (head_dim + CHUNK - 1) / CHUNK;
  for (u32 item = threadIdx.x; item < num_kv_heads * parts; item += blockDim.x) {
    const u32 head = item / parts, start = item % parts * CHUNK;
    float values[CHUNK];
    load_part(row + k_end + head * head_dim, start, head_dim, wide, values);
    store_part(v_cache + cache_start(shape, slot, head), start, head_dim, wide, values);
  }
}
EXPORT(rotary_and_cache)
