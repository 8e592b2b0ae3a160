// Attention of query tokens over a paged KV cache on tensor cores, for bf16 and f16.
//
// Decode and prefill give the same bits for the same row, because both run the same functions in
// one order: KV in splits of 256 absolute positions; in a split, tiles of 32 positions, each one
// step of an online softmax; splits merged upward. A tile or split that a row does not see leaves
// that row's bits alone, so skipping it, or not, for the sake of other rows changes nothing.
//
// Rows come in groups of 16, a row being a query token with one of the query heads of a KV head
// (row r of a work item: token r / G, head r % G of the G = num_heads / num_kv_heads heads).
//
// Launch, with the constants below (-DMAX_SMEM_KB is what a block may opt in to: 227 on sm_90 and
// sm_100, 163 on sm_80, 99 on sm_86, sm_89 and sm_120):
// - paged_attention_decode: 32 DECODE_WARPS threads; dynamic shared memory DECODE_WARPS
//   (DECODE_STAGES TILE_BYTES + DECODE_QUERY_BYTES) + sizeof(State) + 16. Grid: the blocks that are
//   resident at a time, or one per unit (num_work num_kv_heads) if those are fewer.
// - paged_attention_prefill: 32 PREFILL_WARPS threads; dynamic shared memory PREFILL_WARPS
//   PREFILL_GROUPS (sizeof(State) + PREFILL_QUERY_BYTES) + 2 PREFILL_STAGES TILE_BYTES. Grid: one
//   block per unit; work items of 16 PREFILL_WARPS PREFILL_GROUPS / G tokens, those that see most
//   positions first.
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
  float scale, soft_cap;  // soft_cap 0: none
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
constexpr float LOG2_E = 1.44269504088896340736f;
static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM <= 256, "no such head_dim");

__device__ __forceinline__ float neg_inf() { return bit_cast<float>(0xFF800000u); }

// The merged splits of 16 rows, in the order of the fragments: float4 i * 32 + lane has the four
// elements of accumulator i of that lane.
struct State {
  float4 values[HEAD_DIM / 8 * 32];
  float max[ROWS], sum[ROWS];
};

constexpr u32 MAX_SMEM_BYTES = MAX_SMEM_KB * 1024;
// The fragments of a warp's queries are in shared memory where registers do not hold them.
constexpr u32 QUERY_BYTES = ROWS * HEAD_DIM * 2;
constexpr bool DECODE_SHARES_QUERIES = HEAD_DIM > 128;
constexpr u32 DECODE_QUERY_BYTES = DECODE_SHARES_QUERIES ? QUERY_BYTES : 0;
#ifndef DECODE_WARPS
constexpr u32 DECODE_WARPS =
    4 * (2 * TILE_BYTES + DECODE_QUERY_BYTES) + sizeof(State) + 16 <= MAX_SMEM_BYTES ? 4 : 2;
#endif
#ifndef DECODE_STAGES
constexpr u32 BLOCK_BYTES = MAX_SMEM_KB >= 160 ? MAX_SMEM_BYTES / 2 - 1024 : MAX_SMEM_BYTES;
constexpr u32 RING_STAGES = (BLOCK_BYTES - sizeof(State) - 16) / (DECODE_WARPS * TILE_BYTES);
constexpr u32 DECODE_STAGES = RING_STAGES < 2 ? 2 : RING_STAGES > 4 ? 4 : RING_STAGES;
#endif
#ifndef PREFILL_STAGES
constexpr u32 PREFILL_STAGES = 2;
#endif
#ifndef PREFILL_GROUPS
constexpr u32 PREFILL_GROUPS = 1;
#endif
constexpr bool PREFILL_SHARES_QUERIES = HEAD_DIM * PREFILL_GROUPS > 128;
constexpr u32 PREFILL_QUERY_BYTES = PREFILL_SHARES_QUERIES ? QUERY_BYTES : 0;
constexpr u32 PREFILL_GROUP_BYTES = sizeof(State) + PREFILL_QUERY_BYTES;
#ifndef PREFILL_WARPS
constexpr u32 MOST_WARPS =
    (MAX_SMEM_BYTES - 2 * PREFILL_STAGES * TILE_BYTES) / (PREFILL_GROUPS * PREFILL_GROUP_BYTES);
constexpr u32 PREFILL_WARPS = MOST_WARPS >= 8 ? 8 : MOST_WARPS >= 4 ? 4 : MOST_WARPS >= 2 ? 2 : 1;
#endif

// The parameters of the kernels. qkv (num_tokens, qkv_stride): the first num_heads * HEAD_DIM
// elements of a row are the queries. Caches (num_blocks, num_kv_heads, block_size, HEAD_DIM), work
// (num_work), block_tables (num_seqs, max_blocks_per_seq), out (num_tokens, num_heads * HEAD_DIM).
struct Inputs : AttentionParams {
  const T *qkv, *k_cache, *v_cache;
  const AttentionWork* work;
  const u32* block_tables;
  T* out;
  u32 num_units, group_size;

  __device__ __forceinline__ u32 window_start(u32 position) const {
    return window > 0 && position + 1 > window ? position + 1 - window : 0;
  }
  // Turns scores into exponents of 2.
  __device__ __forceinline__ float exponent_factor() const {
    return soft_cap > 0.0f ? LOG2_E : scale * LOG2_E;
  }
  // Where the 16 rows from `position` on begin in a cache: blocks are multiples of 16, so that such
  // rows are one piece. `block_head`: block * num_kv_heads + kv_head.
  __device__ __forceinline__ u64 rows_offset(u32 block_head, u32 position) const {
    return (u64(block_head) * block_size + position % block_size) * HEAD_DIM;
  }
};

// Rows 16 index .. 16 index + 15 of a work item.
struct RowGroup {
  u32 first_row, num_rows;  // num_rows 0: the item has no such rows
  u32 first_position;       // of the first row
  u32 start, end;           // positions that any of the rows sees

  __device__ __forceinline__ void open(const Inputs& in, const AttentionWork& item, u32 index) {
    const u32 all = item.num_tokens * in.group_size;
    first_row = index * ROWS;
    num_rows = first_row < all ? min(ROWS, all - first_row) : 0;
    first_position = item.position + first_row / in.group_size;
    start = in.window_start(first_position);
    end = num_rows > 0 ? item.position + (first_row + num_rows - 1) / in.group_size + 1 : start;
  }
  // Where the query head of a row begins in an array of tokens.
  __device__ __forceinline__ u64 offset(const Inputs& in, const AttentionWork& item, u32 kv_head,
                                        u32 in_rows, u32 token_stride) const {
    const u32 row = first_row + in_rows, head = kv_head * in.group_size + row % in.group_size;
    return u64(item.token + row / in.group_size) * token_stride + head * HEAD_DIM;
  }
  __device__ __forceinline__ bool do_all_see(const Inputs& in, u32 tile) const {
    return tile + TILE - 1 <= first_position && tile >= in.window_start(end - 1);
  }
};

// The online softmax of 16 rows over one split, in the fragments of mma: this lane has a part of
// rows lane / 4 and lane / 4 + 8.
struct Partial {
  float max[2], sum[2];
  float values[HEAD_DIM / 8][4];

  static __device__ __forceinline__ Partial empty() { return {{neg_inf(), neg_inf()}, {}, {}}; }
};

// Queries of 16 rows as fragments; rows past the last one are zero.
template <bool is_shared>
struct Queries {
  u32 words[is_shared ? 1 : DEPTH_STEPS][4];
  uint4* shared;  // step * 32 + lane: each lane reads what it wrote

  __device__ __forceinline__ void load(const Inputs& in, const AttentionWork& item,
                                       const RowGroup& rows, u32 kv_head) {
    const u32 lane = threadIdx.x % 32;
    const T* from[2];
    bool is_row[2];
    for (u32 i = 0; i < 2; ++i) {
      const u32 row = lane / 4 + 8 * i;
      from[i] = in.qkv + rows.offset(in, item, kv_head, row, in.qkv_stride) + lane % 4 * 2;
      is_row[i] = row < rows.num_rows;
    }
#pragma unroll
    for (u32 step = 0; step < DEPTH_STEPS; ++step) {
      u32(&to)[4] = words[is_shared ? 0 : step];
      for (u32 i = 0; i < 4; ++i) {
        const T* pair = from[i % 2] + step * 16 + i / 2 * 8;
        to[i] = is_row[i % 2] ? *reinterpret_cast<const u32*>(pair) : 0;
      }
      if (is_shared) shared[step * 32 + lane] = make_uint4(to[0], to[1], to[2], to[3]);
    }
  }
  __device__ __forceinline__ void fragment(u32 step, u32 (&a)[4]) const {
    if (is_shared) {
      const uint4 four = shared[step * 32 + threadIdx.x % 32];
      a[0] = four.x, a[1] = four.y, a[2] = four.z, a[3] = four.w;
    } else {
      for (u32 i = 0; i < 4; ++i) a[i] = words[is_shared ? 0 : step][i];
    }
  }
};

// scores (16, 32) += queries (16, HEAD_DIM) * keys (32, HEAD_DIM)^T, for several groups of rows.
template <u32 groups, bool is_shared>
__device__ __forceinline__ void score_tile(const Queries<is_shared> (&queries)[groups],
                                           SmemAddress keys, float (&scores)[groups][4][4]) {
  const u32 lane = threadIdx.x % 32;
  const SmemAddress at = keys + (lane / 16 * 8 + lane % 8) * ROW_BYTES + lane / 8 % 2 * 16;
#pragma unroll(is_shared ? 4 : DEPTH_STEPS)
  for (u32 step = 0; step < DEPTH_STEPS; ++step) {
    u32 a[groups][4];
#pragma unroll
    for (u32 g = 0; g < groups; ++g) queries[g].fragment(step, a[g]);
#pragma unroll
    for (u32 pair = 0; pair < 2; ++pair) {
      u32 b[4];
      ldmatrix(at + pair * 16 * ROW_BYTES + step * 32, b);
#pragma unroll
      for (u32 g = 0; g < groups; ++g) {
        mma<T>(scores[g][2 * pair], a[g], b[0], b[1]);
        mma<T>(scores[g][2 * pair + 1], a[g], b[2], b[3]);
      }
    }
  }
}

// Soft cap and mask. `tile`: the position of the tile's first key.
__device__ __forceinline__ void cap_and_mask(const Inputs& in, const AttentionWork& item,
                                             const RowGroup& rows, u32 tile,
                                             float (&scores)[4][4]) {
  if (in.soft_cap > 0.0f) {
    const float inner = in.scale / in.soft_cap;
#pragma unroll
    for (u32 i = 0; i < 16; ++i) {
      scores[i / 4][i % 4] = in.soft_cap * tanhf(scores[i / 4][i % 4] * inner);
    }
  }
  if (rows.do_all_see(in, tile)) return;
  for (u32 half = 0; half < 2; ++half) {
    // Rows past the last one see what some row sees; they are not written.
    const u32 in_rows = min(threadIdx.x % 32 / 4 + 8 * half, max(rows.num_rows, 1u) - 1);
    const u32 last = item.position + (rows.first_row + in_rows) / in.group_size;
    const u32 first = in.window_start(last);
    for (u32 i = 0; i < 8; ++i) {
      const u32 position = tile + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
      float& score = scores[i / 2][2 * half + i % 2];
      score = position >= first && position <= last ? score : neg_inf();
    }
  }
}

// Scores become probabilities relative to the rows' new maxima; what was summed is rescaled.
__device__ __forceinline__ void softmax_step(float factor, float (&scores)[4][4],
                                             Partial& partial) {
  float new_max[2], shift[2];
  for (u32 i = 0; i < 2; ++i) {
    float top = neg_inf();
    for (u32 n = 0; n < 8; ++n) top = fmaxf(top, scores[n / 2][2 * i + n % 2]);
    top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 1));
    top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 2));
    new_max[i] = fmaxf(partial.max[i], top * factor);
    // A row that has seen nothing yet: every exponent is -inf - 0.
    shift[i] = new_max[i] == neg_inf() ? 0.0f : new_max[i];
  }
  // Most tiles move no maximum. Rescaling by 1 is exact, so that a row may or may not be rescaled
  // for the sake of another.
  if (__any_sync(FULL_WARP, new_max[0] != partial.max[0] || new_max[1] != partial.max[1])) {
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
  for (u32 i = 0; i < 16; ++i) {
    float& score = scores[i / 4][i % 4];
    score = exp2_approx(fmaf(score, factor, -shift[i % 4 / 2]));
    partial.sum[i % 4 / 2] += score;
  }
}

// partial.values += probabilities (16, 32) * values (32, HEAD_DIM), for several groups of rows.
template <u32 groups>
__device__ __forceinline__ void add_values(const float (&scores)[groups][4][4], SmemAddress values,
                                           Partial (&partial)[groups]) {
  const u32 lane = threadIdx.x % 32;
  const SmemAddress at = values + lane % 16 * ROW_BYTES + lane / 16 * 16;
  for (u32 half = 0; half < 2; ++half) {
    u32 p[groups][4];
#pragma unroll
    for (u32 i = 0; i < 4 * groups; ++i) {
      const float* pair = &scores[i / 4][2 * half + i % 4 / 2][i % 2 * 2];
      p[i / 4][i % 4] = narrow_x2<T>(pair[0], pair[1]);
    }
#pragma unroll
    for (u32 step = 0; step < DEPTH_STEPS; ++step) {
      u32 b[4];
      ldmatrix_transposed(at + half * 16 * ROW_BYTES + step * 32, b);
#pragma unroll
      for (u32 g = 0; g < groups; ++g) {
        mma<T>(partial[g].values[2 * step], p[g], b[0], b[1]);
        mma<T>(partial[g].values[2 * step + 1], p[g], b[2], b[3]);
      }
    }
  }
}

// Ends a split: partial = the merged splits before it, then itself.
__device__ __forceinline__ void merge(const State& state, Partial& partial) {
  const u32 lane = threadIdx.x % 32;
  float old_weight[2], new_weight[2];
  for (u32 i = 0; i < 2; ++i) {
    float sum = partial.sum[i] + __shfl_xor_sync(FULL_WARP, partial.sum[i], 1);
    sum += __shfl_xor_sync(FULL_WARP, sum, 2);
    const float old_max = state.max[lane / 4 + 8 * i], old_sum = state.sum[lane / 4 + 8 * i];
    const float top = fmaxf(old_max, partial.max[i]);
    const float shift = top == neg_inf() ? 0.0f : top;
    old_weight[i] = exp2_approx(old_max - shift);
    new_weight[i] = exp2_approx(partial.max[i] - shift);
    partial.max[i] = top;
    partial.sum[i] = fmaf(old_sum, old_weight[i], sum * new_weight[i]);
  }
#pragma unroll
  for (u32 n = 0; n < HEAD_DIM / 8; ++n) {
    const float4 four = state.values[n * 32 + lane];
    const float old[4] = {four.x, four.y, four.z, four.w};
    float(&values)[4] = partial.values[n];
    for (u32 i = 0; i < 4; ++i) {
      values[i] = fmaf(old[i], old_weight[i / 2], values[i] * new_weight[i / 2]);
    }
  }
}

__device__ __forceinline__ void store_state(const Partial& partial, State& state) {
  const u32 lane = threadIdx.x % 32;
#pragma unroll
  for (u32 n = 0; n < HEAD_DIM / 8; ++n) {
    const float(&values)[4] = partial.values[n];
    state.values[n * 32 + lane] = make_float4(values[0], values[1], values[2], values[3]);
  }
  // The four lanes of a row share these; they agree on the values.
  __syncwarp();
  for (u32 i = 0; i < 2; ++i) {
    state.max[lane / 4 + 8 * i] = partial.max[i];
    state.sum[lane / 4 + 8 * i] = partial.sum[i];
  }
  __syncwarp();
}

__device__ __forceinline__ void store_output(const Inputs& in, const AttentionWork& item,
                                             const RowGroup& rows, u32 kv_head,
                                             const Partial& partial) {
  const u32 lane = threadIdx.x % 32;
  for (u32 i = 0; i < 2; ++i) {
    const u32 row = lane / 4 + 8 * i;
    if (row >= rows.num_rows) continue;
    const u32 stride = in.num_heads * HEAD_DIM;
    T* to = in.out + rows.offset(in, item, kv_head, row, stride) + lane % 4 * 2;
    const float inverse = 1.0f / partial.sum[i];
#pragma unroll
    for (u32 n = 0; n < HEAD_DIM / 8; ++n) {
      *reinterpret_cast<u32*>(to + n * 8) = narrow_x2<T>(partial.values[n][2 * i] * inverse,
                                                         partial.values[n][2 * i + 1] * inverse);
    }
  }
}

// Copies rows of keys or values, those between `start` and `end`, into a tile in shared memory; the
// others become zero, since what lies in unused slots (NaN perhaps) would survive a product with 0.
// `offsets`: of the first and the second 16 rows in `cache`. `thread` is one of `num_threads`.
template <u32 num_threads>
__device__ __forceinline__ void copy_tile(const T* cache, const u64 (&offsets)[2], u32 tile,
                                          u32 start, u32 end, u32 thread, SmemAddress to) {
  const T* first = cache + offsets[0];
  const T* second = cache + offsets[1] - 16 * HEAD_DIM;
#pragma unroll(HEAD_DIM > 128 ? 4 : 16)
  for (u32 step = 0; step * num_threads < TILE * CHUNKS; ++step) {
    const u32 index = thread + step * num_threads, row = index / CHUNKS, chunk = index % CHUNKS;
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

  __device__ __forceinline__ void open(const Inputs& in) {
    if (unit >= in.num_units) return;
    item = in.work[unit / in.num_kv_heads];
    rows.open(in, item, group);
    split = rows.start / SPLIT;
  }
  __device__ __forceinline__ void advance(u32 by, const Inputs& in) {
    serial += by;
    while (unit < in.num_units) {
      const u32 left = rows.num_rows > 0 ? (rows.end - 1) / SPLIT + 1 - split : 0;
      if (by < left) break;
      by -= left;
      const bool is_last = (group + 1) * ROWS >= item.num_tokens * in.group_size;
      group = is_last ? 0 : group + 1;
      unit = is_last ? unit + gridDim.x : unit;
      open(in);
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
  u32 tile, block_head, fetched_stage, used_stage;
  bool is_value;
  SmemAddress base;

  // Lane i keeps the place of the i-th block of the split: of 17 at most, as blocks have 16 slots.
  __device__ __forceinline__ void begin_task(const Inputs& in) {
    if (task.unit >= in.num_units) return;
    tile = task.first_tile();
    const u32 last = (task.rows.end - 1) / in.block_size;
    const u32 block = min(task.split * SPLIT / in.block_size + threadIdx.x % 32, last);
    block_head = in.block_tables[u64(task.item.seq) * in.max_blocks_per_seq + block] *
                     in.num_kv_heads + task.unit % in.num_kv_heads;
  }
  __device__ __forceinline__ u64 offset(u32 position, const Inputs& in) const {
    const u32 first_block = task.split * SPLIT / in.block_size;
    const u32 at = min(position / in.block_size - first_block, 31u);
    return in.rows_offset(__shfl_sync(FULL_WARP, block_head, at), position);
  }
  // Starts the copy of the next tile, if there is one.
  __device__ __forceinline__ void fetch(const Inputs& in) {
    if (task.unit < in.num_units) {
      const u64 offsets[2] = {offset(tile, in), offset(tile + 16, in)};
      copy_tile<32>(is_value ? in.v_cache : in.k_cache, offsets, tile, task.rows.start, task.end(),
                    threadIdx.x % 32, base + fetched_stage * TILE_BYTES);
      if (is_value) tile += TILE;
      is_value = !is_value;
      if (!is_value && tile >= task.end()) {
        task.advance(DECODE_WARPS, in);
        begin_task(in);
      }
    }
    fetched_stage = fetched_stage + 1 == DECODE_STAGES ? 0 : fetched_stage + 1;
    commit_async();
  }
  // Waits for the oldest tile; the place of the one before it is free then, and filled again.
  __device__ __forceinline__ SmemAddress next(const Inputs& in) {
    wait_async<DECODE_STAGES - 2>();
    __syncwarp();
    fetch(in);
    const SmemAddress at = base + used_stage * TILE_BYTES;
    used_stage = used_stage + 1 == DECODE_STAGES ? 0 : used_stage + 1;
    return at;
  }
};

// Attention of few query tokens per sequence (one, in decoding). Each warp of a block takes whole
// splits; the results are merged in the order of `serial` through one State in shared memory.
KERNEL(32 * DECODE_WARPS)
paged_attention_decode(const T* qkv, const T* k_cache, const T* v_cache,
                       const AttentionWork* work, const u32* num_work, const u32* block_tables,
                       T* out, AttentionParams params) {
  constexpr u32 WARP_BYTES = DECODE_STAGES * TILE_BYTES + DECODE_QUERY_BYTES;
  DYN_SMEM(u8, smem);
  const Inputs in = {params, qkv, k_cache, v_cache, work, block_tables, out,
                     num_work[0] * params.num_kv_heads, params.num_heads / params.num_kv_heads};
  State& state = *reinterpret_cast<State*>(smem + DECODE_WARPS * WARP_BYTES);
  u32* turn = reinterpret_cast<u32*>(&state + 1);
  if (threadIdx.x == 0) *turn = 0;
  __syncthreads();
  TaskCursor task;
  task.unit = blockIdx.x, task.group = 0, task.serial = 0;
  task.open(in);
  task.advance(threadIdx.x / 32, in);
  u8* own = smem + threadIdx.x / 32 * WARP_BYTES;
  Queries<DECODE_SHARES_QUERIES> queries[1];
  queries[0].shared = reinterpret_cast<uint4*>(own + DECODE_STAGES * TILE_BYTES);
  Ring ring;
  ring.task = task, ring.base = smem_address(own), ring.is_value = false;
  ring.fetched_stage = ring.used_stage = 0;
  ring.begin_task(in);
  for (u32 i = 0; i + 1 < DECODE_STAGES; ++i) ring.fetch(in);
  while (task.unit < in.num_units) {
    const u32 kv_head = task.unit % in.num_kv_heads;
    queries[0].load(in, task.item, task.rows, kv_head);
    Partial partial[1] = {Partial::empty()};
    for (u32 tile = task.first_tile(); tile < task.end(); tile += TILE) {
      float scores[1][4][4] = {};
      score_tile(queries, ring.next(in), scores);
      cap_and_mask(in, task.item, task.rows, tile, scores[0]);
      softmax_step(in.exponent_factor(), scores[0], partial[0]);
      add_values(scores, ring.next(in), partial);
    }
    wait_for_turn(turn, task.serial);
    if (task.split == task.rows.start / SPLIT) store_state(Partial::empty(), state);
    merge(state, partial[0]);
    const bool is_last = task.end() == task.rows.end;
    if (!is_last) store_state(partial[0], state);
    // All lanes have read and written the state before the next split's warp may.
    __syncwarp();
    if (threadIdx.x % 32 == 0) set_turn(turn, task.serial + 1);
    if (is_last) store_output(in, task.item, task.rows, kv_head, partial[0]);
    task.advance(DECODE_WARPS, in);
  }
  wait_async<0>();
}
EXPORT(paged_attention_decode)

// The tiles of keys and values that the warps of a prefill block share.
struct SharedTiles {
  const u32* block_table;
  u32 kv_head, start, end;
  SmemAddress base;

  __device__ __forceinline__ SmemAddress at(u32 tile) const {
    return base + tile / TILE % PREFILL_STAGES * (2 * TILE_BYTES);
  }
  // Starts copying the tile at position `tile`, if it is one.
  __device__ __forceinline__ void fetch(u32 tile, const Inputs& in) const {
    if (tile < end) {
      u64 offsets[2];
      for (u32 half = 0; half < 2; ++half) {
        const u32 position = tile + 16 * half;
        const u32 block = block_table[min(position, end - 1) / in.block_size];
        offsets[half] = in.rows_offset(block * in.num_kv_heads + kv_head, position);
      }
      const SmemAddress to = at(tile);
      copy_tile<32 * PREFILL_WARPS>(in.k_cache, offsets, tile, start, end, threadIdx.x, to);
      copy_tile<32 * PREFILL_WARPS>(in.v_cache, offsets, tile, start, end, threadIdx.x,
                                    to + TILE_BYTES);
    }
    commit_async();
  }
};

using PrefillQueries = Queries<PREFILL_SHARES_QUERIES>;

// Attention of the rows of a block: PREFILL_GROUPS groups per warp, from `first_group` on.
__device__ __forceinline__ void attend_rows(const Inputs& in, const AttentionWork& item,
                                            u32 first_group, const SharedTiles& tiles,
                                            PrefillQueries (&queries)[PREFILL_GROUPS],
                                            State* states) {
  RowGroup rows[PREFILL_GROUPS];
  Partial partial[PREFILL_GROUPS];
  // The warp sees from the start of its first group to the end of its last one with rows.
  u32 end = 0;
#pragma unroll
  for (u32 g = 0; g < PREFILL_GROUPS; ++g) {
    rows[g].open(in, item, first_group + threadIdx.x / 32 * PREFILL_GROUPS + g);
    queries[g].load(in, item, rows[g], tiles.kv_head);
    partial[g] = Partial::empty();
    store_state(Partial::empty(), states[g]);
    end = rows[g].num_rows > 0 ? rows[g].end : end;
  }
  const u32 first_tile = tiles.start / TILE * TILE;
  for (u32 i = 0; i + 1 < PREFILL_STAGES; ++i) tiles.fetch(first_tile + i * TILE, in);
  for (u32 tile = first_tile; tile < tiles.end; tile += TILE) {
    wait_async<PREFILL_STAGES - 2>();
    __syncthreads();
    tiles.fetch(tile + (PREFILL_STAGES - 1) * TILE, in);
    // Tiles that none of this warp's rows sees; a warp without rows sees none.
    if (tile + TILE <= rows[0].start || tile >= end) continue;
    float scores[PREFILL_GROUPS][4][4] = {};
    score_tile(queries, tiles.at(tile), scores);
#pragma unroll
    for (u32 g = 0; g < PREFILL_GROUPS; ++g) {
      cap_and_mask(in, item, rows[g], tile, scores[g]);
      softmax_step(in.exponent_factor(), scores[g], partial[g]);
    }
    add_values(scores, tiles.at(tile) + TILE_BYTES, partial);
    const bool is_last = tile + TILE >= end;
    if (!is_last && (tile + TILE) % SPLIT != 0) continue;
#pragma unroll
    for (u32 g = 0; g < PREFILL_GROUPS; ++g) {
      merge(states[g], partial[g]);
      if (is_last) {
        store_output(in, item, rows[g], tiles.kv_head, partial[g]);
      } else {
        store_state(partial[g], states[g]);
        partial[g] = Partial::empty();
      }
    }
  }
}

// Attention of many query tokens per sequence: the warps of a block share tiles of keys and values.
KERNEL(32 * PREFILL_WARPS)
paged_attention_prefill(const T* qkv, const T* k_cache, const T* v_cache,
                        const AttentionWork* work, const u32* num_work, const u32* block_tables,
                        T* out, AttentionParams params) {
  constexpr u32 BLOCK_GROUPS = PREFILL_WARPS * PREFILL_GROUPS;
  DYN_SMEM(u8, smem);
  const Inputs in = {params, qkv, k_cache, v_cache, work, block_tables, out,
                     num_work[0] * params.num_kv_heads, params.num_heads / params.num_kv_heads};
  const u32 own_group = threadIdx.x / 32 * PREFILL_GROUPS;
  State* states = reinterpret_cast<State*>(smem) + own_group;
  PrefillQueries queries[PREFILL_GROUPS];
  for (u32 g = 0; g < PREFILL_GROUPS; ++g) {
    queries[g].shared = reinterpret_cast<uint4*>(smem + BLOCK_GROUPS * sizeof(State) +
                                                 (own_group + g) * PREFILL_QUERY_BYTES);
  }
  SharedTiles tiles;
  tiles.base = smem_address(smem + BLOCK_GROUPS * PREFILL_GROUP_BYTES);
  for (u32 unit = blockIdx.x; unit < in.num_units; unit += gridDim.x) {
    const AttentionWork item = work[unit / in.num_kv_heads];
    const u32 num_groups = (item.num_tokens * in.group_size + ROWS - 1) / ROWS;
    tiles.kv_head = unit % in.num_kv_heads;
    tiles.block_table = block_tables + u64(item.seq) * in.max_blocks_per_seq;
    for (u32 group = 0; group < num_groups; group += BLOCK_GROUPS) {
      RowGroup first, last;
      first.open(in, item, group);
      last.open(in, item, min(group + BLOCK_GROUPS, num_groups) - 1);
      tiles.start = first.start, tiles.end = last.end;
      attend_rows(in, item, group, tiles, queries, states);
      // The next rows' tiles go where these were.
      wait_async<0>();
      __syncthreads();
    }
  }
}
EXPORT(paged_attention_prefill)
