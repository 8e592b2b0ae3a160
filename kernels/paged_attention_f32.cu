// Attention of query tokens over a paged KV cache in f32: exact rather than fast. One warp has one
// row (a query token with one query head) at a time; decode and prefill are the same entry, and so
// are whole texts.
//
// Launch: 128 threads, no dynamic shared memory. Grid: one block per unit (num_work num_kv_heads),
// or any fixed number.
#include "attention_params.cuh"

constexpr u32 TILE = 32;
constexpr u32 WARPS = 4;
constexpr u32 LANE_VALUES = (V_DIM + 31) / 32;
static_assert(HEAD_DIM % 4 == 0, "rows are read by float4");

// The online softmax of one row; lane l holds elements l, l + 32, ... of the values.
struct Partial {
  float max, sum;
  float values[LANE_VALUES];
};

// Where the row of `position` begins in a cache (num_blocks, cache_kv_heads, block_size, HEAD_DIM).
__device__ __forceinline__ u64 row_offset(const u32* block_table, u32 kv_head, u32 position,
                                          const AttentionParams& params) {
  const u64 block = block_table[position / params.block_size];
  return ((block * params.cache_kv_heads + kv_head) * params.block_size +
          position % params.block_size) * HEAD_DIM;
}

// q (HEAD_DIM) * key (HEAD_DIM), summed upward.
__device__ __forceinline__ float dot(const float* q, const float* key) {
  float sum = 0.0f;
#pragma unroll 4
  for (u32 i = 0; i < HEAD_DIM; i += 4) {
    const float4 a = *reinterpret_cast<const float4*>(q + i);
    const float4 b = *reinterpret_cast<const float4*>(key + i);
    sum = fmaf(a.x, b.x, sum);
    sum = fmaf(a.y, b.y, sum);
    sum = fmaf(a.z, b.z, sum);
    sum = fmaf(a.w, b.w, sum);
  }
  return sum;
}

// One step of the softmax: this lane's score (-inf where there is none), and the positions
// `first` to `last` of the tile.
__device__ __forceinline__ void softmax_step(float score, const float* v_cache,
                                             const u32* block_table, u32 kv_head, u32 tile,
                                             u32 first, u32 last, const AttentionParams& params,
                                             Partial& partial) {
  const u32 lane = threadIdx.x % WARP_SIZE;
  const float max = fmaxf(partial.max, warp_reduce<Max>(score));
  const float rescale = expf(partial.max - max), weight = expf(score - max);
  partial.max = max;
  partial.sum = fmaf(partial.sum, rescale, warp_reduce<Sum>(weight));
#pragma unroll
  for (u32 i = 0; i < LANE_VALUES; ++i) partial.values[i] *= rescale;
  for (u32 position = first; position <= last; ++position) {
    const float p = __shfl_sync(FULL_WARP, weight, position - tile);
    const float* value = v_cache + row_offset(block_table, kv_head, position, params);
#pragma unroll
    for (u32 i = 0; i < LANE_VALUES; ++i) {
      const u32 column = lane + i * WARP_SIZE;
      if (column < V_DIM) partial.values[i] = fmaf(p, value[column], partial.values[i]);
    }
  }
}

// Attention of the query q (HEAD_DIM) of `head` at `position`, which sees the positions up to
// `last_seen`, written to out (V_DIM).
__device__ __forceinline__ void attend(const float* q, const float* k_cache, const float* v_cache,
                                       const u32* block_table, u32 head, u32 position,
                                       u32 last_seen, const AttentionParams& params, float* out) {
  const u32 kv_head = head / (params.num_heads / params.num_kv_heads);
  const u32 lane = threadIdx.x % WARP_SIZE;
  const u32 start = params.first_seen(position);
  Partial partial = {-infinity(), 0.0f, {}};
  for (u32 tile = start / TILE * TILE; tile <= last_seen; tile += TILE) {
    const u32 first = max(tile, start), last = min(tile + TILE - 1, last_seen);
    const u32 own = tile + lane;
    float score = -infinity();
    if (own >= first && own <= last) {
      score = dot(q, k_cache + row_offset(block_table, kv_head, own, params)) * params.scale;
      if (params.soft_cap > 0.0f) score = params.soft_cap * tanhf(score / params.soft_cap);
      if (HAS_ALIBI) score = fmaf(params.biases[head], float(int(own - position)), score);
      if (HAS_BIAS) score += *params.bias_of(head, position, own);
    }
    softmax_step(score, v_cache, block_table, kv_head, tile, first, last, params, partial);
  }
  if (HAS_SINKS) partial.sum += expf(params.sinks[head] - partial.max);
#pragma unroll
  for (u32 i = 0; i < LANE_VALUES; ++i) {
    const u32 column = lane + i * WARP_SIZE;
    if (column < V_DIM) out[column] = partial.values[i] / partial.sum;
  }
}

// qkv (num_tokens, qkv_stride): first num_heads * HEAD_DIM query elements. Caches (num_blocks,
// cache_kv_heads, block_size, HEAD_DIM), work (num_work[0]), block_tables (num_seqs,
// max_blocks_per_seq), out (num_tokens, num_heads * V_DIM). Of latents v_cache is where the first
// position's V is in k_cache.
// The second bound keeps ptxas from spilling for the sake of more warps.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 2)
paged_attention_f32(const T* qkv, const T* k_cache, const T* v_cache, const AttentionWork* work,
                    const u32* num_work, const u32* block_tables, T* out,
                    AttentionParams params) {
  const u32 group_size = params.num_heads / params.num_kv_heads;
  const u32 num_units = num_work[0] * params.num_kv_heads;
  for (u32 unit = blockIdx.x; unit < num_units; unit += gridDim.x) {
    const AttentionWork item = work[unit / params.num_kv_heads];
    const u32 kv_head = unit % params.num_kv_heads;
    const u32* block_table = block_tables + params.table_of(item, kv_head);
    for (u32 row = threadIdx.x / WARP_SIZE; row < item.num_tokens * group_size; row += WARPS) {
      const u32 in_item = row / group_size, head = kv_head * group_size + row % group_size;
      const u64 token = item.token + in_item;
      const u32 position = item.position + in_item;
      attend(qkv + token * params.qkv_stride + head * HEAD_DIM, k_cache, v_cache, block_table,
             head, position, params.last_seen(item, position), params,
             out + (token * params.num_heads + head) * V_DIM);
    }
  }
}
EXPORT(paged_attention_f32)
