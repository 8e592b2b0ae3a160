// Rotary position embedding (Su et al., 2021) in the half-split ("neox") form of Hugging Face, and
// the step's K and V into their slots of the paged cache.
#include "rotary.cuh"

// Heads whose values a thread has under way at once.
constexpr u32 NUM_HEADS_AT_ONCE = 3;

// One thread's share of a token: of every step-th head, chunk `start` of `width` values from the
// head's start in `row` on, and its partner in the `width` values after these.
template <bool WIDE, u32 HEADS>
struct RotaryItems {
  const Shape& shape;
  T* row;
  u32 start, width, step;
  Chunk<T, CHUNK> low[HEADS], high[HEADS];

  __device__ __forceinline__ RotaryItems(const Shape& shape, T* row, u32 start, u32 width,
                                         u32 step)
      : shape(shape), row(row), start(start), width(width), step(step) {}

  __device__ __forceinline__ void load(u32 first_head, u32 end) {
#pragma unroll
    for (u32 j = 0; j < HEADS; ++j) {
      const u32 head = first_head + j * step;
      const T* values = row + head * shape.head_dim;
      const u32 existing = head < end ? width : 0;
      low[j] = load_raw<WIDE, CHUNK>(values, start, existing);
      high[j] = load_raw<WIDE, CHUNK>(values + width, start, existing);
    }
  }

  // `angles`: (cos, sin) of each pair.
  __device__ __forceinline__ void rotate(u32 j, const Chunk<float, 2 * CHUNK>& angles) {
    float x[CHUNK], y[CHUNK], turn[2 * CHUNK];
    unpack(low[j], x);
    unpack(high[j], y);
    unpack(angles, turn);
#pragma unroll
    for (u32 i = 0; i < CHUNK; ++i) {
      const float before = x[i], cos = turn[2 * i], sin = turn[2 * i + 1];
      x[i] = before * cos - y[i] * sin;
      y[i] = y[i] * cos + before * sin;
    }
    pack(x, low[j]);
    pack(y, high[j]);
  }

  // E: the activations' type, or that of the cache.
  template <class E>
  __device__ __forceinline__ void store(u32 j, E* head) const {
    store_kv<WIDE>(head, start, width, low[j]);
    store_kv<WIDE>(head + width, start, width, high[j]);
  }
};

template <bool WIDE, u32 HEADS>
__device__ __forceinline__ void rotate_and_cache(T* row, const Angles& all_angles,
                                                 const u32* slot_of_row, KV* k_cache, KV* v_cache,
                                                 const Shape& shape) {
  // The values that are rotated and those that are not are two halves each, in parts by themselves.
  const u32 half = shape.rotary_dim / 2, half_of_rest = (shape.head_dim - shape.rotary_dim) / 2;
  const u32 num_rotated = (half + CHUNK - 1) / CHUNK;
  const u32 parts = num_rotated + (half_of_rest + CHUNK - 1) / CHUNK;
  const u32 heads_at_once = blockDim.x / parts, own_head = threadIdx.x / parts;
  if (own_head >= heads_at_once) return;
  // Without a cache nobody reads V; latents have none.
  const u32 end = v_cache ? shape.v_end() : shape.k_end();
  // The head's values, its angles and its slot do not wait for each other.
  const TokenAngles of_token(all_angles, blockIdx.x, shape.rotary_dim);
  const u32 slot_index = *slot_of_row;
  const u32 part = threadIdx.x % parts, step = heads_at_once * gridDim.y;
  const bool rotates = part < num_rotated;
  const u32 first = rotates ? 0 : shape.rotary_dim, width = rotates ? half : half_of_rest;
  const u32 start = (rotates ? part : part - num_rotated) * CHUNK;
  u32 head = (rotates ? 0 : shape.num_heads) + blockIdx.y * heads_at_once + own_head;
  row += first;
  RotaryItems<WIDE, HEADS> items(shape, row, start, width, step);
  items.load(head, end);
  Chunk<float, 2 * CHUNK> angles;
  if (rotates) angles = of_token.load<WIDE, 2 * CHUNK>(start, half);
  const bool has_slot = k_cache && slot_index != NO_SLOT;
  const Slot slot(shape, slot_index, k_cache + first, v_cache + first);
  for (; head < end; head += HEADS * step) {
#pragma unroll
    for (u32 j = 0; j < HEADS; ++j) {
      const u32 own = head + j * step;
      if (own >= end) break;
      if (rotates && own < shape.k_end()) {
        items.rotate(j, angles);
        items.store(j, row + own * shape.head_dim);
      }
      if (has_slot && own >= shape.num_heads) items.store(j, slot.of_head(shape, own));
    }
    items.load(head + HEADS * step, end);
  }
}

// Row t of qkv (num_tokens, row_stride), which begins with (num_heads + 2 * num_kv_heads) *
// head_dim values: its q heads and k heads are rotated in place by the angles of its token: the
// first rotary_dim values of each, which may be none; k and v go to slot_mapping (num_tokens) of
// k_cache and v_cache (num_blocks, cache_heads, block_size, head_dim). head_dim and rotary_dim are
// even; null caches are not written, and without that of v a row may lack v. Grid (num_tokens,
// any): the blocks of y share a token; head_dim / 8 + 2 to 128 threads.
KERNEL(128)
rotary_and_cache(T* qkv, Angles angles, const u32* slot_mapping, KV* k_cache, KV* v_cache,
                 u32 row_stride, Shape shape) {
  T* row = qkv + u64(blockIdx.x) * row_stride;
  const u32* slot = slot_mapping + blockIdx.x;
  const bool wide = shape.head_dim % (2 * CHUNK) == 0 && shape.rotary_dim % (2 * CHUNK) == 0 &&
                    is_wide<CHUNK>(qkv, row_stride) && is_aligned(angles.cos_sin, 16) &&
                    is_aligned(k_cache, 16) && is_aligned(v_cache, 16);
  if (wide) {
    rotate_and_cache<true, NUM_HEADS_AT_ONCE>(row, angles, slot, k_cache, v_cache, shape);
  } else {
    rotate_and_cache<false, 1>(row, angles, slot, k_cache, v_cache, shape);
  }
}
EXPORT(rotary_and_cache)
