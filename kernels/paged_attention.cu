// Attention of query tokens over a paged KV cache on tensor cores, for bf16 and f16.
//
// Decode and prefill give the same bits for the same row, because both run the same functions in
// one order: KV in splits of 256 absolute positions; in a split, tiles of 32 positions, each one
// step of an online softmax; splits merged upward. A tile or split that a row does not see leaves
// that row's bits alone, so skipping it, or not, for the sake of other rows changes nothing.
//
// A warp has 16 rows, each a query token with one of the query heads of a KV head (row r of a work
// item: token r / G, head r % G of the G = num_heads / num_kv_heads heads).
//
// Launch, in bytes: TILE = 32 (2 HEAD_DIM + 16), STATE = 64 HEAD_DIM + 128, QUERY = 32 HEAD_DIM if
// HEAD_DIM > 128, else 0, MAX_SMEM_BYTES = 1024 MAX_SMEM_KB (-DMAX_SMEM_KB: what a block may opt in to; 227
// on sm_90 and sm_100, 163 on sm_80, 99 on sm_86, sm_89 and sm_120).
// - paged_attention_decode: 32 DECODE_WARPS threads; dynamic shared memory DECODE_WARPS
//   (DECODE_STAGES TILE + QUERY) + STATE + 16. Grid: the blocks that are resident at a time
//   (occupancy * SMs), or one per unit (num_work num_kv_heads) where those are fewer.
//     DECODE_WARPS = 4 if 4 (2 TILE + QUERY) + STATE + 16 <= MAX_SMEM_BYTES, else 2.
//     DECODE_STAGES = clamp(((MAX_SMEM_BYTES / 2 - 1024 if MAX_SMEM_KB >= 160, else MAX_SMEM_BYTES) - STATE - 16)
//     / (DECODE_WARPS TILE), 2, 4).
// - paged_attention_prefill: 32 PREFILL_WARPS threads; dynamic shared memory PREFILL_WARPS (STATE +
//   QUERY) + 2 PREFILL_STAGES TILE; PREFILL_STAGES = 2. Grid: one block per unit; work items of
//   16 PREFILL_WARPS / G tokens, those that see most positions first.
//     PREFILL_WARPS = the largest of 8, 4, 2, 1 that fits into MAX_SMEM_BYTES.
#include "common.cuh"
#include "ptx.cuh"

struct AttentionWork {
  u32 token;       // flat index of the first query token
  u32 num_tokens;  // query tokens
  u32 seq;         // row of the block tables
  u32 position;    // absolute position of the first query token
};

struct AttentionParams {
  u32 num_heads, num_kv_heads, block_size, max_blocks_per_seq, qkv_stride;
  u32 window;  // 0: none
  float scale;
  float soft_cap;  // 0: none
};

constexpr u32 SPLIT = 256;
constexpr u32 TILE = 32;
constexpr u32 ROWS = 16;
// Eight rows of an ldmatrix fall on eight different groups of banks because the row is an odd
// number of 16-byte chunks.
constexpr u32 ROW_BYTES = HEAD_DIM * 2 + 16;
constexpr u32 TILE_BYTES = TILE * ROW_BYTES;
constexpr u32 CHUNKS = HEAD_DIM / 8;
constexpr u32 DEPTH_STEPS = HEAD_DIM / 16;
// Wide heads keep the fragments of the queries in shared memory, 16 rows per warp, for want of
// registers.
constexpr bool ARE_QUERIES_SHARED = HEAD_DIM > 128;
constexpr u32 QUERY_BYTES = ARE_QUERIES_SHARED ? ROWS * HEAD_DIM * 2 : 0;
constexpr float LOG2_E = 1.44269504088896340736f;
__device__ __forceinline__ float neg_inf() { return bit_cast<float>(0xFF800000u); }
static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM <= 256, "no such head_dim");

// The merged splits of 16 rows, in the order of the fragments: float4 i * 32 + lane has the four
// elements of accumulator i of that lane.
struct State {
  float4 values[HEAD_DIM / 8 * 32];
  float max[ROWS], sum[ROWS];
};

constexpr u32 MAX_SMEM_BYTES = MAX_SMEM_KB * 1024;
#ifndef DECODE_WARPS
constexpr u32 DECODE_WARPS =
    4 * (2 * TILE_BYTES + QUERY_BYTES) + sizeof(State) + 16 <= MAX_SMEM_BYTES ? 4 : 2;
#endif
#ifndef DECODE_STAGES
constexpr u32 RING_BYTES = (MAX_SMEM_KB >= 160 ? MAX_SMEM_BYTES / 2 - 1024 : MAX_SMEM_BYTES) - sizeof(State) - 16;
constexpr u32 RING_STAGES = RING_BYTES / (DECODE_WARPS * TILE_BYTES);
constexpr u32 DECODE_STAGES = RING_STAGES < 2 ? 2 : RING_STAGES > 4 ? 4 : RING_STAGES;
#endif
#ifndef PREFILL_STAGES
constexpr u32 PREFILL_STAGES = 2;
#endif
#ifndef PREFILL_WARPS
constexpr u32 MOST_WARPS =
    (MAX_SMEM_BYTES - 2 * PREFILL_STAGES * TILE_BYTES) / (sizeof(State) + QUERY_BYTES);
constexpr u32 PREFILL_WARPS = MOST_WARPS >= 8 ? 8 : MOST_WARPS >= 4 ? 4 : MOST_WARPS >= 2 ? 2 : 1;
#endif

// Rows 16 index .. 16 index + 15 of a work item.
struct RowGroup {
  u32 first_row, num_rows;  // num_rows 0: the item has no such rows
  u32 first_position, last_position;  // of the first and last row
  u32 start, end;  // positions that any of the rows sees

  __device__ __forceinline__ RowGroup() {}
  __device__ __forceinline__ RowGroup(const AttentionWork& item, u32 index, u32 group_size,
                                      u32 window) {
    const u32 all = item.num_tokens * group_size;
    first_row = index * ROWS;
    num_rows = first_row < all ? min(ROWS, all - first_row) : 0;
    first_position = item.position + first_row / group_size;
    last_position = num_rows > 0 ? item.position + (first_row + num_rows - 1) / group_size : 0;
    start = window_start(first_position, window);
    end = num_rows > 0 ? last_position + 1 : start;
  }
  static __device__ __forceinline__ u32 window_start(u32 position, u32 window) {
    return window > 0 && position + 1 > window ? position + 1 - window : 0;
  }
};

// What one lane knows of its two rows (lane / 4 and lane / 4 + 8 of the group).
struct LaneRows {
  u32 start[2], position[2];
  u32 all_start, all_position;  // every row of the warp sees the positions between these

  __device__ __forceinline__ LaneRows(const AttentionWork& item, const RowGroup& rows,
                                      u32 group_size, u32 window) {
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      // Rows past the last one repeat it, and are not written.
      const u32 in_group = min(threadIdx.x % 32 / 4 + 8 * i, max(rows.num_rows, 1u) - 1);
      position[i] = item.position + (rows.first_row + in_group) / group_size;
      start[i] = RowGroup::window_start(position[i], window);
    }
    all_position = rows.first_position;
    all_start = RowGroup::window_start(rows.last_position, window);
  }
};

// The online softmax of 16 rows over one split, in the fragments of mma.
struct Partial {
  float max[2], sum[2];
  float values[HEAD_DIM / 8][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (u32 i = 0; i < 2; ++i) max[i] = neg_inf(), sum[i] = 0.0f;
#pragma unroll
    for (u32 n = 0; n < HEAD_DIM / 8; ++n) {
#pragma unroll
      for (u32 i = 0; i < 4; ++i) values[n][i] = 0.0f;
    }
  }
};

// Queries of 16 rows as fragments; rows past the last one are zero.
struct Queries {
  u32 words[ARE_QUERIES_SHARED ? 1 : DEPTH_STEPS][4];
  uint4* shared;  // step * 32 + lane: each lane reads what it wrote

  // qkv (num_tokens, qkv_stride): its first num_heads * HEAD_DIM elements are the queries.
  __device__ __forceinline__ void load(const T* qkv, const AttentionWork& item,
                                       const RowGroup& rows, u32 kv_head,
                                       const AttentionParams& params) {
    const u32 lane = threadIdx.x % 32, group_size = params.num_heads / params.num_kv_heads;
    const T* from[2];
    bool is_row[2];
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      const u32 in_group = lane / 4 + 8 * i, row = rows.first_row + in_group;
      const u64 token = item.token + row / group_size;
      const u32 head = kv_head * group_size + row % group_size;
      from[i] = qkv + token * params.qkv_stride + head * HEAD_DIM + lane % 4 * 2;
      is_row[i] = in_group < rows.num_rows;
    }
#pragma unroll
    for (u32 step = 0; step < DEPTH_STEPS; ++step) {
      u32(&to)[4] = words[ARE_QUERIES_SHARED ? 0 : step];
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        const T* pair = from[i % 2] + step * 16 + i / 2 * 8;
        to[i] = is_row[i % 2] ? *reinterpret_cast<const u32*>(pair) : 0;
      }
      if (ARE_QUERIES_SHARED) {
        shared[step * 32 + lane] = make_uint4(to[0], to[1], to[2], to[3]);
      }
    }
  }
  __device__ __forceinline__ void fragment(u32 step, u32 (&a)[4]) const {
    if (ARE_QUERIES_SHARED) {
      const uint4 four = shared[step * 32 + threadIdx.x % 32];
      a[0] = four.x, a[1] = four.y, a[2] = four.z, a[3] = four.w;
    } else {
#pragma unroll
      for (u32 i = 0; i < 4; ++i) a[i] = words[ARE_QUERIES_SHARED ? 0 : step][i];
    }
  }
};

// scores (16, 32) = queries (16, HEAD_DIM) * keys (32, HEAD_DIM)^T.
__device__ __forceinline__ void score_tile(const Queries& queries, SmemAddress keys,
                                           float (&scores)[4][4]) {
  const u32 lane = threadIdx.x % 32;
  const SmemAddress at = keys + (lane / 16 * 8 + lane % 8) * ROW_BYTES + lane / 8 % 2 * 16;
#pragma unroll
  for (u32 n = 0; n < 4; ++n) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) scores[n][i] = 0.0f;
  }
#pragma unroll(ARE_QUERIES_SHARED ? 4 : DEPTH_STEPS)
  for (u32 step = 0; step < DEPTH_STEPS; ++step) {
    u32 a[4];
    queries.fragment(step, a);
#pragma unroll
    for (u32 pair = 0; pair < 2; ++pair) {
      u32 b[4];
      ldmatrix(at + pair * 16 * ROW_BYTES + step * 32, b);
      mma<T>(scores[2 * pair], a, b[0], b[1]);
      mma<T>(scores[2 * pair + 1], a, b[2], b[3]);
    }
  }
}

// Soft cap and mask. `tile`: the position of the tile's first key.
__device__ __forceinline__ void cap_and_mask(const LaneRows& rows, u32 tile,
                                             const AttentionParams& params,
                                             float (&scores)[4][4]) {
  if (params.soft_cap > 0.0f) {
    const float inner = params.scale / params.soft_cap;
#pragma unroll
    for (u32 n = 0; n < 4; ++n) {
#pragma unroll
      for (u32 i = 0; i < 4; ++i) scores[n][i] = params.soft_cap * tanhf(scores[n][i] * inner);
    }
  }
  if (tile >= rows.all_start && tile + TILE - 1 <= rows.all_position) return;
#pragma unroll
  for (u32 n = 0; n < 4; ++n) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const u32 position = tile + n * 8 + threadIdx.x % 4 * 2 + i % 2;
      const bool is_seen = position >= rows.start[i / 2] && position <= rows.position[i / 2];
      scores[n][i] = is_seen ? scores[n][i] : neg_inf();
    }
  }
}

// Scores become probabilities relative to the rows' new maxima; what was summed is rescaled.
// `factor` (positive) turns scores into exponents of 2.
__device__ __forceinline__ void softmax_step(float factor, float (&scores)[4][4],
                                             Partial& partial) {
  float new_max[2], shift[2];
#pragma unroll
  for (u32 i = 0; i < 2; ++i) {
    float top = fmaxf(scores[0][2 * i], scores[0][2 * i + 1]);
#pragma unroll
    for (u32 n = 1; n < 4; ++n) {
      top = fmaxf(top, fmaxf(scores[n][2 * i], scores[n][2 * i + 1]));
    }
    top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 1));
    top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 2));
    new_max[i] = fmaxf(partial.max[i], top * factor);
    // A row that has seen nothing yet: every exponent is -inf - 0.
    shift[i] = new_max[i] == neg_inf() ? 0.0f : new_max[i];
  }
  // Most tiles move no maximum. Rescaling by 1 is exact, so that a row may or may not be rescaled
  // for the sake of another.
  if (__any_sync(FULL_WARP, new_max[0] != partial.max[0] || new_max[1] != partial.max[1])) {
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      const float rescale = exp2_approx(partial.max[i] - shift[i]);
      partial.max[i] = new_max[i];
      partial.sum[i] *= rescale;
#pragma unroll
      for (u32 n = 0; n < HEAD_DIM / 8; ++n) {
        partial.values[n][2 * i] *= rescale;
        partial.values[n][2 * i + 1] *= rescale;
      }
    }
  }
#pragma unroll
  for (u32 n = 0; n < 4; ++n) {
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      scores[n][i] = exp2_approx(fmaf(scores[n][i], factor, -shift[i / 2]));
      partial.sum[i / 2] += scores[n][i];
    }
  }
}

// partial.values += probabilities (16, 32) * values (32, HEAD_DIM).
__device__ __forceinline__ void add_values(const float (&scores)[4][4], SmemAddress values,
                                           Partial& partial) {
  const u32 lane = threadIdx.x % 32;
  const SmemAddress at = values + lane % 16 * ROW_BYTES + lane / 16 * 16;
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    const u32 p[4] = {narrow_x2<T>(scores[2 * half][0], scores[2 * half][1]),
                      narrow_x2<T>(scores[2 * half][2], scores[2 * half][3]),
                      narrow_x2<T>(scores[2 * half + 1][0], scores[2 * half + 1][1]),
                      narrow_x2<T>(scores[2 * half + 1][2], scores[2 * half + 1][3])};
#pragma unroll
    for (u32 step = 0; step < DEPTH_STEPS; ++step) {
      u32 b[4];
      ldmatrix_transposed(at + half * 16 * ROW_BYTES + step * 32, b);
      mma<T>(partial.values[2 * step], p, b[0], b[1]);
      mma<T>(partial.values[2 * step + 1], p, b[2], b[3]);
    }
  }
}

__device__ __forceinline__ float exponent_factor(const AttentionParams& params) {
  return params.soft_cap > 0.0f ? LOG2_E : params.scale * LOG2_E;
}

// Ends a split: adds up the sums of the four lanes of a row.
__device__ __forceinline__ void finish_split(Partial& partial) {
#pragma unroll
  for (u32 i = 0; i < 2; ++i) {
    partial.sum[i] += __shfl_xor_sync(FULL_WARP, partial.sum[i], 1);
    partial.sum[i] += __shfl_xor_sync(FULL_WARP, partial.sum[i], 2);
  }
}

// partial = the merged splits before it, then itself. `is_first`: there are none before it.
__device__ __forceinline__ void merge(const State& state, bool is_first, Partial& partial) {
  const u32 lane = threadIdx.x % 32;
  float old_weight[2], new_weight[2];
#pragma unroll
  for (u32 i = 0; i < 2; ++i) {
    const float old_max = is_first ? neg_inf() : state.max[lane / 4 + 8 * i];
    const float old_sum = is_first ? 0.0f : state.sum[lane / 4 + 8 * i];
    const float top = fmaxf(old_max, partial.max[i]);
    const float shift = top == neg_inf() ? 0.0f : top;
    old_weight[i] = exp2_approx(old_max - shift);
    new_weight[i] = exp2_approx(partial.max[i] - shift);
    partial.max[i] = top;
    partial.sum[i] = fmaf(old_sum, old_weight[i], partial.sum[i] * new_weight[i]);
  }
#pragma unroll
  for (u32 n = 0; n < HEAD_DIM / 8; ++n) {
    float4 old = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (!is_first) old = state.values[n * 32 + lane];
    float(&values)[4] = partial.values[n];
    values[0] = fmaf(old.x, old_weight[0], values[0] * new_weight[0]);
    values[1] = fmaf(old.y, old_weight[0], values[1] * new_weight[0]);
    values[2] = fmaf(old.z, old_weight[1], values[2] * new_weight[1]);
    values[3] = fmaf(old.w, old_weight[1], values[3] * new_weight[1]);
  }
}

__device__ __forceinline__ void store_state(const Partial& partial, State& state) {
  const u32 lane = threadIdx.x % 32;
#pragma unroll
  for (u32 n = 0; n < HEAD_DIM / 8; ++n) {
    const float(&values)[4] = partial.values[n];
    state.values[n * 32 + lane] = make_float4(values[0], values[1], values[2], values[3]);
  }
  // The other lanes of the row read these only after a barrier.
  __syncwarp();
  if (lane % 4 == 0) {
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      state.max[lane / 4 + 8 * i] = partial.max[i];
      state.sum[lane / 4 + 8 * i] = partial.sum[i];
    }
  }
  __syncwarp();
}

// out (num_tokens, num_heads * HEAD_DIM).
__device__ __forceinline__ void store_output(const Partial& partial, const AttentionWork& item,
                                             const RowGroup& rows, u32 kv_head,
                                             const AttentionParams& params, T* out) {
  const u32 lane = threadIdx.x % 32, group_size = params.num_heads / params.num_kv_heads;
#pragma unroll
  for (u32 i = 0; i < 2; ++i) {
    const u32 in_group = lane / 4 + 8 * i, row = rows.first_row + in_group;
    if (in_group >= rows.num_rows) continue;
    const u64 token = item.token + row / group_size;
    const u32 head = kv_head * group_size + row % group_size;
    T* to = out + (token * params.num_heads + head) * HEAD_DIM + lane % 4 * 2;
    const float inverse = 1.0f / partial.sum[i];
#pragma unroll
    for (u32 n = 0; n < HEAD_DIM / 8; ++n) {
      *reinterpret_cast<u32*>(to + n * 8) = narrow_x2<T>(partial.values[n][2 * i] * inverse,
                                                         partial.values[n][2 * i + 1] * inverse);
    }
  }
}

// Where the 16 rows of a KV cache from `position` on begin (num_blocks, num_kv_heads, block_size,
// HEAD_DIM): blocks are multiples of 16, so that such rows are one piece.
__device__ __forceinline__ u64 rows_offset(u32 block, u32 kv_head, u32 position,
                                           const AttentionParams& params) {
  const u64 head = u64(block) * params.num_kv_heads + kv_head;
  return (head * params.block_size + position % params.block_size) * HEAD_DIM;
}

// Copies rows of keys or values, those between `start` and `end`, into a tile in shared memory; the
// others become zero, since what lies in unused slots (NaN perhaps) would survive a product with 0.
// `offsets`: of the first and the second 16 rows in `cache`. `thread` is one of `num_threads`.
template <u32 num_threads>
__device__ __forceinline__ void copy_tile(const T* cache, const u64 (&offsets)[2], u32 tile,
                                          u32 start, u32 end, u32 thread, SmemAddress to) {
  constexpr u32 STEPS = (TILE * CHUNKS + num_threads - 1) / num_threads;
  const T* first = cache + offsets[0];
  const T* second = cache + offsets[1] - 16 * HEAD_DIM;
#pragma unroll
  for (u32 step = 0; step < STEPS; ++step) {
    u32 row, chunk;
    if (num_threads % CHUNKS == 0) {
      row = thread / CHUNKS + step * (num_threads / CHUNKS);
      chunk = thread % CHUNKS;
    } else {
      row = (thread + step * num_threads) / CHUNKS;
      chunk = (thread + step * num_threads) % CHUNKS;
    }
    if (TILE * CHUNKS % num_threads != 0 && row >= TILE) break;
    const T* from = (row < 16 ? first : second) + row * HEAD_DIM + chunk * 8;
    const bool is_valid = tile + row >= start && tile + row < end;
    copy_async_16(to + row * ROW_BYTES + chunk * 16, from, is_valid);
  }
}

// Walks over the tasks of a block, a task being one split of one group of rows: a warp takes every
// DECODE_WARPS-th. A split's `serial` number is its place among all of the block.
struct TaskCursor {
  u32 unit, group, split, serial;
  AttentionWork item;
  RowGroup rows;

  __device__ __forceinline__ u32 num_splits() const {
    return rows.num_rows > 0 ? (rows.end - 1) / SPLIT + 1 - rows.start / SPLIT : 0;
  }
  __device__ __forceinline__ void open(const AttentionWork* work, u32 num_units,
                                       const AttentionParams& params) {
    if (unit >= num_units) return;
    item = work[unit / params.num_kv_heads];
    rows = RowGroup(item, group, params.num_heads / params.num_kv_heads, params.window);
    split = rows.start / SPLIT;
  }
  __device__ __forceinline__ void advance(u32 by, const AttentionWork* work, u32 num_units,
                                          const AttentionParams& params) {
    serial += by;
    while (unit < num_units) {
      const u32 left = num_splits() - (split - rows.start / SPLIT);
      if (by < left) break;
      by -= left;
      const u32 group_size = params.num_heads / params.num_kv_heads;
      if ((group + 1) * ROWS < item.num_tokens * group_size) {
        ++group;
      } else {
        group = 0;
        unit += gridDim.x;
      }
      open(work, num_units, params);
    }
    split += by;
  }
  __device__ __forceinline__ u32 first_tile() const {
    return max(split * SPLIT, rows.start / TILE * TILE);
  }
  __device__ __forceinline__ u32 end() const { return min((split + 1) * SPLIT, rows.end); }
};

// One warp's ring of tiles, keys and values in turn, always DECODE_STAGES - 1 copies ahead of their
// use, across the ends of tasks.
struct Ring {
  TaskCursor task;
  u32 tile, block_id, stage;
  bool is_value;
  SmemAddress base;

  // Lane i keeps the id of the i-th block of the split: at most 17, since blocks have 16 slots.
  __device__ __forceinline__ void begin_task(const u32* block_tables, u32 num_units,
                                             const AttentionParams& params) {
    if (task.unit >= num_units) return;
    tile = task.first_tile();
    const u32 last = (task.rows.end - 1) / params.block_size;
    const u32 block = task.split * SPLIT / params.block_size + threadIdx.x % 32;
    block_id = block_tables[u64(task.item.seq) * params.max_blocks_per_seq + min(block, last)];
  }
  __device__ __forceinline__ u64 offset(u32 position, const AttentionParams& params) const {
    const u32 first_block = task.split * SPLIT / params.block_size;
    const u32 at = min(position / params.block_size - first_block, 31u);
    const u32 block = __shfl_sync(FULL_WARP, block_id, at);
    return rows_offset(block, task.unit % params.num_kv_heads, position, params);
  }
  // Starts the copy of the next tile, if there is one.
  __device__ __forceinline__ void fetch(const T* k_cache, const T* v_cache,
                                        const AttentionWork* work, u32 num_units,
                                        const u32* block_tables, const AttentionParams& params) {
    if (task.unit < num_units) {
      const u64 offsets[2] = {offset(tile, params), offset(tile + 16, params)};
      copy_tile<32>(is_value ? v_cache : k_cache, offsets, tile, task.rows.start, task.end(),
                    threadIdx.x % 32, base + stage * TILE_BYTES);
      if (is_value) tile += TILE;
      is_value = !is_value;
      if (!is_value && tile >= task.end()) {
        task.advance(DECODE_WARPS, work, num_units, params);
        begin_task(block_tables, num_units, params);
      }
    }
    stage = stage + 1 == DECODE_STAGES ? 0 : stage + 1;
    commit_async();
  }
  // Waits for the oldest tile; the place of the one before it is free then, and filled again.
  template <class... Args>
  __device__ __forceinline__ SmemAddress next(u32& used_stage, const Args&... args) {
    wait_async<DECODE_STAGES - 2>();
    __syncwarp();
    const SmemAddress at = base + used_stage * TILE_BYTES;
    used_stage = used_stage + 1 == DECODE_STAGES ? 0 : used_stage + 1;
    fetch(args...);
    return at;
  }
};

// Attention of few query tokens per sequence (one, in decoding). Each warp of a block takes whole
// splits; the results are merged in the order of `serial` through one State in shared memory.
// qkv (num_tokens, qkv_stride), caches (num_blocks, num_kv_heads, block_size, HEAD_DIM), work
// (num_work[0]), block_tables (num_seqs, max_blocks_per_seq), out (num_tokens, num_heads *
// HEAD_DIM).
KERNEL(32 * DECODE_WARPS)
paged_attention_decode(const T* qkv, const T* k_cache, const T* v_cache,
                       const AttentionWork* work, const u32* num_work, const u32* block_tables,
                       T* out, AttentionParams params) {
  DYN_SMEM(u8, smem);
  State& state = *reinterpret_cast<State*>(
      smem + DECODE_WARPS * (DECODE_STAGES * TILE_BYTES + QUERY_BYTES));
  u32* turn = reinterpret_cast<u32*>(&state + 1);
  const u32 warp = threadIdx.x / 32, group_size = params.num_heads / params.num_kv_heads;
  const u32 num_units = num_work[0] * params.num_kv_heads;
  const float factor = exponent_factor(params);
  if (threadIdx.x == 0) *turn = 0;
  __syncthreads();

  TaskCursor task;
  task.unit = blockIdx.x, task.group = 0, task.serial = 0;
  task.open(work, num_units, params);
  task.advance(warp, work, num_units, params);
  Ring ring;
  ring.task = task, ring.stage = 0, ring.is_value = false;
  ring.base = smem_address(smem) + warp * DECODE_STAGES * TILE_BYTES;
  ring.begin_task(block_tables, num_units, params);
  for (u32 i = 0; i + 1 < DECODE_STAGES; ++i) {
    ring.fetch(k_cache, v_cache, work, num_units, block_tables, params);
  }
  u32 stage = 0;
  Queries queries;
  queries.shared = reinterpret_cast<uint4*>(smem + DECODE_WARPS * DECODE_STAGES * TILE_BYTES +
                                            warp * QUERY_BYTES);
  while (task.unit < num_units) {
    const u32 kv_head = task.unit % params.num_kv_heads;
    const LaneRows lane_rows(task.item, task.rows, group_size, params.window);
    queries.load(qkv, task.item, task.rows, kv_head, params);
    Partial partial;
    partial.clear();
    for (u32 tile = task.first_tile(); tile < task.end(); tile += TILE) {
      float scores[4][4];
      score_tile(queries, ring.next(stage, k_cache, v_cache, work, num_units, block_tables, params),
                 scores);
      cap_and_mask(lane_rows, tile, params, scores);
      softmax_step(factor, scores, partial);
      add_values(scores, ring.next(stage, k_cache, v_cache, work, num_units, block_tables, params),
                 partial);
    }
    finish_split(partial);
    wait_for_turn(turn, task.serial);
    merge(state, task.split == task.rows.start / SPLIT, partial);
    const bool is_last = task.end() == task.rows.end;
    if (!is_last) store_state(partial, state);
    // All lanes have read and written the state before the next split's warp may.
    __syncwarp();
    if (threadIdx.x % 32 == 0) set_turn(turn, task.serial + 1);
    if (is_last) store_output(partial, task.item, task.rows, kv_head, params, out);
    task.advance(DECODE_WARPS, work, num_units, params);
  }
  wait_async<0>();
}
EXPORT(paged_attention_decode)

// The tiles of keys and values that the warps of a prefill block share.
struct SharedTiles {
  const T* k_cache;
  const T* v_cache;
  const u32* block_table;
  u32 kv_head, start, end;
  SmemAddress base;

  // Starts copying the tile at position `tile`, if it is one, into place tile / 32 modulo stages.
  __device__ __forceinline__ void fetch(u32 tile, const AttentionParams& params) const {
    if (tile < end) {
      u64 offsets[2];
#pragma unroll
      for (u32 half = 0; half < 2; ++half) {
        const u32 position = tile + 16 * half;
        const u32 block = block_table[min(position, end - 1) / params.block_size];
        offsets[half] = rows_offset(block, kv_head, position, params);
      }
      const SmemAddress to = at(tile);
      copy_tile<32 * PREFILL_WARPS>(k_cache, offsets, tile, start, end, threadIdx.x, to);
      copy_tile<32 * PREFILL_WARPS>(v_cache, offsets, tile, start, end, threadIdx.x,
                                    to + TILE_BYTES);
    }
    commit_async();
  }
  __device__ __forceinline__ SmemAddress at(u32 tile) const {
    return base + tile / TILE % PREFILL_STAGES * (2 * TILE_BYTES);
  }
};

// Attention of 16 PREFILL_WARPS rows of one unit, from row group `first_group` on.
__device__ __forceinline__ void attend_rows(const T* qkv, const AttentionWork& item,
                                            u32 first_group, SharedTiles& tiles, Queries& queries,
                                            State& state, T* out,
                                            const AttentionParams& params) {
  const u32 group_size = params.num_heads / params.num_kv_heads;
  const float factor = exponent_factor(params);
  const RowGroup rows(item, first_group + threadIdx.x / 32, group_size, params.window);
  const LaneRows lane_rows(item, rows, group_size, params.window);
  queries.load(qkv, item, rows, tiles.kv_head, params);
  Partial partial;
  partial.clear();
  bool is_first = true;
  const u32 first_tile = tiles.start / TILE * TILE;
  for (u32 i = 0; i + 1 < PREFILL_STAGES; ++i) tiles.fetch(first_tile + i * TILE, params);
  for (u32 tile = first_tile; tile < tiles.end; tile += TILE) {
    wait_async<PREFILL_STAGES - 2>();
    __syncthreads();
    tiles.fetch(tile + (PREFILL_STAGES - 1) * TILE, params);
    // Tiles that none of this warp's rows sees; a warp without rows sees none.
    if (tile + TILE <= rows.start || tile >= rows.end) continue;
    float scores[4][4];
    score_tile(queries, tiles.at(tile), scores);
    cap_and_mask(lane_rows, tile, params, scores);
    softmax_step(factor, scores, partial);
    add_values(scores, tiles.at(tile) + TILE_BYTES, partial);
    const bool is_last = tile + TILE >= rows.end;
    if (!is_last && (tile + TILE) % SPLIT != 0) continue;
    finish_split(partial);
    merge(state, is_first, partial);
    is_first = false;
    if (is_last) {
      store_output(partial, item, rows, tiles.kv_head, params, out);
    } else {
      store_state(partial, state);
      partial.clear();
    }
  }
}

// Attention of many query tokens per sequence: the warps of a block have 16 rows each and share
// tiles of keys and values. Parameters as of paged_attention_decode.
KERNEL(32 * PREFILL_WARPS)
paged_attention_prefill(const T* qkv, const T* k_cache, const T* v_cache,
                        const AttentionWork* work, const u32* num_work, const u32* block_tables,
                        T* out, AttentionParams params) {
  DYN_SMEM(u8, smem);
  State& state = reinterpret_cast<State*>(smem)[threadIdx.x / 32];
  const u32 group_size = params.num_heads / params.num_kv_heads;
  const u32 num_units = num_work[0] * params.num_kv_heads;
  SharedTiles tiles;
  tiles.k_cache = k_cache, tiles.v_cache = v_cache;
  tiles.base = smem_address(smem + PREFILL_WARPS * (sizeof(State) + QUERY_BYTES));
  Queries queries;
  queries.shared = reinterpret_cast<uint4*>(smem + PREFILL_WARPS * sizeof(State) +
                                            threadIdx.x / 32 * QUERY_BYTES);
  for (u32 unit = blockIdx.x; unit < num_units; unit += gridDim.x) {
    const AttentionWork item = work[unit / params.num_kv_heads];
    const u32 num_groups = (item.num_tokens * group_size + ROWS - 1) / ROWS;
    tiles.kv_head = unit % params.num_kv_heads;
    tiles.block_table = block_tables + u64(item.seq) * params.max_blocks_per_seq;
    for (u32 group = 0; group < num_groups; group += PREFILL_WARPS) {
      const u32 last = min(group + PREFILL_WARPS, num_groups) - 1;
      tiles.start = RowGroup(item, group, group_size, params.window).start;
      tiles.end = RowGroup(item, last, group_size, params.window).end;
      attend_rows(qkv, item, group, tiles, queries, state, out, params);
      // The next rows' tiles go where these were.
      wait_async<0>();
      __syncthreads();
    }
  }
}
EXPORT(paged_attention_prefill)
