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
// sm_100, 163 on sm_80, 99 on sm_86, sm_89 and sm_120; -DKV_FP8=1 where the caches are E4M3;
// -DALIBI=1 and -DBIAS=1 for biases, -DSINKS=1 for sinks, -DTEXTS=1 for whole texts, which go
// through prefill alone):
// - paged_attention_decode: 32 DECODE_WARPS threads, DECODE_BYTES of dynamic shared memory. Grid:
//   DECODE_BLOCKS per multiprocessor, or one per unit (num_work num_kv_heads) if those are fewer.
// - paged_attention_prefill: 32 PREFILL_WARPS threads, PREFILL_BYTES of dynamic shared memory.
//   Grid: one block per unit; work items of 16 PREFILL_WARPS PREFILL_GROUPS / G tokens, those that
//   see most positions first.
// - paged_attention_shared: as prefill. Work of 16 PREFILL_WARPS / G tokens. Any grid.
#include "attention_splits.cuh"

static_assert(HEAD_DIM <= 256 && !IS_LATENT, "such heads are wide_attention.cu's");

// partial.values += probabilities (16, 32) * values (32, HEAD_DIM), for several groups of rows.
template <u32 groups>
__device__ __forceinline__ void add_values(const float (&scores)[groups][4][4], SmemAddress values,
                                           Partial (&partial)[groups]) {
  const u32 lane = hide(threadIdx.x) % 32;
  const SmemAddress at = values + chunk_offset(lane % 16, lane / 16);
  for (u32 half = 0; half < 2; ++half) {
    u32 p[groups][4];
#pragma unroll
    for (u32 g = 0; g < groups; ++g) load_probabilities(scores[g], half, p[g]);
#pragma unroll
    for (u32 step = 0; step < DEPTH_STEPS; ++step) {
      u32 b[4];
      ldmatrix_transposed(step_address(at, step) + half * 16 * ROW_BYTES, b);
#pragma unroll
      for (u32 g = 0; g < groups; ++g) {
        mma<T>(partial[g].values[2 * step], p[g], b[0], b[1]);
        if (2 * step + 1 < HEAD_DIM / 8) mma<T>(partial[g].values[2 * step + 1], p[g], b[2], b[3]);
      }
    }
  }
}

constexpr u32 MAX_SMEM_BYTES = MAX_SMEM_KB * 1024;
// The fragments of a warp's queries are in shared memory where registers do not hold them.
constexpr u32 QUERY_BYTES = ROWS * PADDED_DIM * 2;

// A warp of a decode block has a ring of tiles, with E4M3 also the tile that is in use, as T.
constexpr bool DECODE_SHARES_QUERIES = PADDED_DIM > 128;
constexpr u32 DECODE_QUERY_BYTES = DECODE_SHARES_QUERIES ? QUERY_BYTES : 0;
constexpr u32 DECODE_SLOT_BYTES = IS_FP8 ? NARROW_BYTES : TILE_BYTES;
constexpr u32 DECODE_WIDE_BYTES = IS_FP8 ? TILE_BYTES : 0;
constexpr u32 DECODE_FIXED_BYTES = DECODE_WIDE_BYTES + DECODE_QUERY_BYTES;
constexpr u32 DECODE_BLOCK_BYTES = sizeof(State) + 16;
constexpr u32 DECODE_WARPS =
    4 * (2 * DECODE_SLOT_BYTES + DECODE_FIXED_BYTES) + DECODE_BLOCK_BYTES <= MAX_SMEM_BYTES ? 4 : 2;
// Two blocks on a multiprocessor where it has the memory.
constexpr u32 DECODE_SHARE = MAX_SMEM_KB >= 160 ? MAX_SMEM_BYTES / 2 - 1024 : MAX_SMEM_BYTES;
constexpr u32 DECODE_WARP_SHARE = (DECODE_SHARE - DECODE_BLOCK_BYTES) / DECODE_WARPS;
constexpr u32 RING_STAGES = DECODE_WARP_SHARE < DECODE_FIXED_BYTES
                                ? 0
                                : (DECODE_WARP_SHARE - DECODE_FIXED_BYTES) / DECODE_SLOT_BYTES;
constexpr u32 DECODE_STAGES = RING_STAGES < 2 ? 2 : RING_STAGES > 4 ? 4 : RING_STAGES;
constexpr u32 DECODE_WARP_BYTES = DECODE_STAGES * DECODE_SLOT_BYTES + DECODE_FIXED_BYTES;
constexpr u32 DECODE_BYTES = DECODE_WARPS * DECODE_WARP_BYTES + DECODE_BLOCK_BYTES;
// Blocks that a multiprocessor has the memory for, as far as the registers go.
constexpr u32 DECODE_FIT = (MAX_SMEM_BYTES + 1024) / (DECODE_BYTES + 1024);
constexpr u32 MOST_DECODE_BLOCKS = PADDED_DIM <= 32 ? 4 : 3;
constexpr u32 DECODE_BLOCKS = DECODE_FIT < MOST_DECODE_BLOCKS ? DECODE_FIT : MOST_DECODE_BLOCKS;

// A prefill block has two pairs of tiles of keys and values: one in use, one to come. With E4M3,
// one pair in use as T and one to come as it is in the cache.
constexpr u32 PREFILL_TILES_BYTES = IS_FP8 ? 2 * (TILE_BYTES + NARROW_BYTES) : 4 * TILE_BYTES;
// The last groups of a warp have their queries in shared memory: this many of `groups`.
constexpr u32 shared_groups(u32 groups) {
  return PADDED_DIM > 128 || PADDED_DIM == 64 ? groups : PADDED_DIM > 32 ? groups - 1 : 0;
}
constexpr u32 prefill_warp_bytes(u32 groups) {
  return groups * sizeof(State) + shared_groups(groups) * QUERY_BYTES;
}
constexpr u32 prefill_bytes(u32 warps, u32 groups) {
  return PREFILL_TILES_BYTES + warps * prefill_warp_bytes(groups);
}
// Whether a multiprocessor has shared memory for so many blocks.
constexpr bool do_fit(u32 blocks, u32 warps, u32 groups) {
  return blocks * (prefill_bytes(warps, groups) + 1024) <= MAX_SMEM_BYTES + 1024;
}
// Groups of 16 rows per warp: with two, each fragment of a tile that is read serves twice.
constexpr u32 PREFILL_GROUPS = PADDED_DIM <= 128 && do_fit(2, 4, 2) ? 2 : 1;
constexpr u32 PREFILL_WARPS = do_fit(2, 4, PREFILL_GROUPS)   ? 4
                              : do_fit(1, 8, PREFILL_GROUPS) ? 8
                              : do_fit(1, 4, PREFILL_GROUPS) ? 4
                              : do_fit(1, 2, PREFILL_GROUPS) ? 2
                                                             : 1;
constexpr u32 PREFILL_BYTES = prefill_bytes(PREFILL_WARPS, PREFILL_GROUPS);
// Blocks at once that the registers have to allow.
constexpr u32 PREFILL_BLOCKS = PADDED_DIM <= 64 && do_fit(3, PREFILL_WARPS, PREFILL_GROUPS) ? 3 : 1;

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
    rows.start = max(rows.start, item.start), rows.end = min(rows.end, item.end);
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
  SmemAddress base;  // the tile in use, as T, with E4M3; then the ring

  // Lane i keeps the place of the i-th block of the split: of 17 at most, as blocks have 16 slots.
  __device__ __forceinline__ void begin_task(const Inputs& in) {
    if (task.unit >= in.num_units) return;
    tile = task.first_tile();
    const u32 last = (task.rows.end - 1) / in.block_size;
    const u32 block = min(task.split * SPLIT / in.block_size + threadIdx.x % 32, last);
    block_head = in.block_tables[u64(task.item.seq) * in.max_blocks_per_seq + block] *
                     in.cache_kv_heads + task.unit % in.num_kv_heads;
  }
  __device__ __forceinline__ SmemAddress slot(u32 stage) const {
    return base + DECODE_WIDE_BYTES + stage * DECODE_SLOT_BYTES;
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
                    threadIdx.x % 32, slot(fetched_stage));
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
    const SmemAddress at = slot(used_stage);
    used_stage = used_stage + 1 == DECODE_STAGES ? 0 : used_stage + 1;
    if (!IS_FP8) return at;
    widen_tile<32>(at, threadIdx.x % 32, base);
    __syncwarp();
    return base;
  }
};

#if !TEXTS
// Keeps a split of a unit that is a part of its row, of one token.
__device__ __forceinline__ void keep_split(const Inputs& in, const TaskCursor& task, u32 kv_head,
                                           const Partial& partial) {
  const u32 first = in.work[task.unit / in.num_kv_heads].slot;
  const u32 slot = first + task.split - task.rows.start / SPLIT;
  for (u32 i = 0; i < 2; ++i) {
    const float sum = row_sum(partial, i);
    const u32 row = threadIdx.x % 32 / 4 + 8 * i;
    const u32 head = kv_head * in.group_size + task.rows.first_row + row;
    if (row < task.rows.num_rows) {
      store_slot(partial, i, sum, slot_at(in.slots, slot, head, in.num_heads));
    }
  }
}

// Attention of few query tokens per sequence (one, in decoding). Each warp of a block takes whole
// splits; the results are merged in the order of `serial` through one State in shared memory.
// Of units that are parts of rows they are kept in `slots`, each by itself.
KERNEL(32 * DECODE_WARPS, DECODE_BLOCKS)
paged_attention_decode(const T* qkv, const Kv* k_cache, const Kv* v_cache,
                       const AttentionWork* work, const u32* num_work, const u32* block_tables,
                       T* out, float* slots, AttentionParams params) {
  DYN_SMEM(u8, smem);
  const Inputs in = {params, qkv, k_cache, v_cache, work, block_tables, out,
                     params.num_heads / params.num_kv_heads, num_work[0] * params.num_kv_heads,
                     slots};
  State& state = *reinterpret_cast<State*>(smem + DECODE_WARPS * DECODE_WARP_BYTES);
  u32* turn = reinterpret_cast<u32*>(&state + 1);
  if (threadIdx.x == 0) *turn = 0;
  __syncthreads();
  TaskCursor task;
  task.unit = blockIdx.x, task.group = 0, task.serial = 0;
  task.open(in);
  task.advance(threadIdx.x / 32, in);
  u8* own = smem + threadIdx.x / 32 * DECODE_WARP_BYTES;
  Queries<1, DECODE_SHARES_QUERIES ? 1 : 0> queries;
  queries.shared = reinterpret_cast<uint4*>(own + DECODE_WARP_BYTES - DECODE_QUERY_BYTES);
  Ring ring;
  ring.task = task, ring.base = smem_address(own), ring.is_value = false;
  ring.fetched_stage = ring.used_stage = 0;
  ring.begin_task(in);
  for (u32 i = 0; i + 1 < DECODE_STAGES; ++i) ring.fetch(in);
  while (task.unit < in.num_units) {
    const u32 kv_head = task.unit % in.num_kv_heads;
    load_queries(in, task.item, task.rows, kv_head, 0, queries);
    Partial partial[1] = {Partial::empty()};
    for (u32 tile = task.first_tile(); tile < task.end(); tile += TILE) {
      float scores[1][4][4] = {};
      score_tile(queries, ring.next(in), scores);
      bound_and_mask(in, task.item, task.rows, kv_head, tile, scores[0]);
      softmax_step<1, false>(in.exponent_factor(), scores, partial);
      add_values(scores, ring.next(in), partial);
    }
    const bool is_kept = MAY_BE_PARTS && in.work[task.unit / in.num_kv_heads].slot != NO_SLOT;
    if (is_kept) keep_split(in, task, kv_head, partial[0]);
    wait_for_turn(turn, task.serial);
    bool is_last = false;
    if (!is_kept) {
      if (task.split == task.rows.start / SPLIT) store_state(Partial::empty(), state);
      merge(state, partial[0]);
      is_last = task.end() == task.rows.end;
      if (!is_last) store_state(partial[0], state);
    }
    // All lanes have read and written the state before the next split's warp may.
    __syncwarp();
    if (threadIdx.x % 32 == 0) set_turn(turn, task.serial + 1);
    if (is_last) store_output(in, task.item, task.rows, kv_head, partial[0]);
    task.advance(DECODE_WARPS, in);
  }
  wait_async<0>();
}
EXPORT(paged_attention_decode)
#endif

// The tiles of keys and values that the warps of a prefill block share.
struct SharedTiles {
  const u32* block_table;
  u32 kv_head, start, end;
  SmemAddress base;
  // The next tile to fetch: its position and the slot of its first row in its block. Lane i has
  // the block of 16 rows i, of LANE_ROWS, around it; looked up one tile ahead of its use.
  u32 next, slot, lane_block;
  static constexpr u32 LANE_ROWS = 32 * 16;

  // Where the copies of the tile at position `tile` go: its keys, COPIED_BYTES later its values.
  static constexpr u32 COPIED_BYTES = IS_FP8 ? NARROW_BYTES : TILE_BYTES;
  __device__ __forceinline__ SmemAddress copies(u32 tile) const {
    return base + 2 * TILE_BYTES * (IS_FP8 ? 1 : tile / TILE % 2);
  }
  __device__ __forceinline__ void open(const Inputs& in) {
    next = start / TILE * TILE, slot = next % in.block_size;
    look_up(in);
  }
  __device__ __forceinline__ void look_up(const Inputs& in) {
    const u32 position = next / LANE_ROWS * LANE_ROWS + threadIdx.x % 32 * 16;
    lane_block = block_table[min(position, end - 1) / in.block_size];
  }
  // Starts copying the next tile, if there is one.
  __device__ __forceinline__ void fetch(const Inputs& in) {
    if (next < end) {
      u64 offsets[2];
      for (u32 half = 0; half < 2; ++half) {
        const u32 block = __shfl_sync(FULL_WARP, lane_block, next % LANE_ROWS / 16 + half);
        const u32 block_head = block * in.cache_kv_heads + kv_head;
        offsets[half] = (u64(block_head) * in.block_size + slot) * HEAD_DIM;
        slot += 16;
        slot = slot == in.block_size ? 0 : slot;
      }
      const SmemAddress to = copies(next);
      copy_tile<32 * PREFILL_WARPS>(in.k_cache, offsets, next, start, end, threadIdx.x, to);
      copy_tile<32 * PREFILL_WARPS>(in.v_cache, offsets, next, start, end, threadIdx.x,
                                    to + COPIED_BYTES);
      next += TILE;
      if (next % LANE_ROWS == 0 && next < end) look_up(in);
    }
    commit_async();
  }
  // Waits for the tile at position `tile`; the place of the one before it is free then, and filled
  // again. Gives where the keys are; the values are TILE_BYTES later.
  __device__ __forceinline__ SmemAddress take(u32 tile, const Inputs& in) {
    wait_async<0>();
    __syncthreads();
    if (IS_FP8) {
      const SmemAddress from = copies(tile);
      widen_tile<32 * PREFILL_WARPS>(from, threadIdx.x, base);
      widen_tile<32 * PREFILL_WARPS>(from + NARROW_BYTES, threadIdx.x, base + TILE_BYTES);
    }
    fetch(in);
    if (IS_FP8) __syncthreads();
    return IS_FP8 ? base : copies(tile);
  }
};

using PrefillQueries = Queries<PREFILL_GROUPS, shared_groups(PREFILL_GROUPS)>;

// Opens the warp's group `g` of those of a block from `first_group` on. Few tiles need it: it is
// worked out there, since registers are what limits the warps.
__device__ __forceinline__ void open_own(const Inputs& in, const AttentionWork& item,
                                         u32 first_group, u32 g, RowGroup& rows) {
  rows.open(in, item, hide(first_group) + threadIdx.x / 32 * PREFILL_GROUPS + g);
}

// Attention of the rows of a block: PREFILL_GROUPS groups per warp, from `first_group` on.
__device__ __forceinline__ void attend_rows(const Inputs& in, const AttentionWork& item,
                                            u32 first_group, SharedTiles& tiles,
                                            PrefillQueries& queries, State* states) {
  Partial partial[PREFILL_GROUPS];
  // The end of what the warp's rows see; all of them see the positions between the others.
  u32 end = 0, all_see_end = 0, last_position = 0;
#pragma unroll
  for (u32 g = 0; g < PREFILL_GROUPS; ++g) {
    RowGroup rows;
    open_own(in, item, first_group, g, rows);
    load_queries(in, item, rows, tiles.kv_head, g, queries);
    partial[g] = Partial::empty();
    store_state(Partial::empty(), states[g]);
    if (g == 0) all_see_end = in.last_seen(item, rows.first_position) + 1;
    end = rows.num_rows > 0 ? rows.end : end;
    if (IS_TEXTS && rows.num_rows > 0) last_position = rows.last_position(in, item);
  }
  const u32 all_see_start = in.first_seen(IS_TEXTS ? last_position : end - 1);
  if (HAS_ALIBI || HAS_BIAS || in.soft_cap > 0.0f) all_see_end = 0;
  const float factor = in.exponent_factor();
  tiles.open(in);
  tiles.fetch(in);
  for (u32 tile = tiles.start / TILE * TILE; tile < tiles.end; tile += TILE) {
    const SmemAddress keys = tiles.take(tile, in);
    // Past what this warp's rows see; a warp without rows sees nothing.
    if (tile >= end) continue;
    float scores[PREFILL_GROUPS][4][4] = {};
    score_tile(queries, keys, scores);
    if (tile < all_see_start || tile + TILE > all_see_end) {
#pragma unroll
      for (u32 g = 0; g < PREFILL_GROUPS; ++g) {
        RowGroup rows;
        open_own(in, item, first_group, g, rows);
        bound_and_mask(in, item, rows, tiles.kv_head, tile, scores[g]);
      }
    }
    softmax_step<PREFILL_GROUPS, true>(factor, scores, partial);
    add_values(scores, keys + TILE_BYTES, partial);
    if ((tile + TILE) % SPLIT != 0 || tile + TILE >= end) continue;
#pragma unroll
    for (u32 g = 0; g < PREFILL_GROUPS; ++g) {
      merge(states[g], partial[g]);
      store_state(partial[g], states[g]);
      partial[g] = Partial::empty();
    }
  }
#pragma unroll
  for (u32 g = 0; g < PREFILL_GROUPS; ++g) {
    RowGroup rows;
    open_own(in, item, first_group, g, rows);
    merge(states[g], partial[g]);
    store_output(in, item, rows, tiles.kv_head, partial[g]);
  }
}

// Attention of many query tokens per sequence: the warps of a block share tiles of keys and values.
KERNEL(32 * PREFILL_WARPS, PREFILL_BLOCKS)
paged_attention_prefill(const T* qkv, const Kv* k_cache, const Kv* v_cache,
                        const AttentionWork* work, const u32* num_work, const u32* block_tables,
                        T* out, AttentionParams params) {
  constexpr u32 BLOCK_GROUPS = PREFILL_WARPS * PREFILL_GROUPS;
  DYN_SMEM(u8, smem);
  const Inputs in = {params, qkv, k_cache, v_cache, work, block_tables, out,
                     params.num_heads / params.num_kv_heads};
  constexpr u32 WARP_BYTES = prefill_warp_bytes(PREFILL_GROUPS);
  u8* own = smem + PREFILL_TILES_BYTES + threadIdx.x / 32 * WARP_BYTES;
  State* states = reinterpret_cast<State*>(own);
  PrefillQueries queries;
  queries.shared = reinterpret_cast<uint4*>(states + PREFILL_GROUPS);
  SharedTiles tiles;
  tiles.base = smem_address(smem);
  // What the loops over units and groups need is read anew, which takes no register meanwhile.
  for (u32 unit = blockIdx.x; unit < num_work[0] * in.num_kv_heads; unit += gridDim.x) {
    const AttentionWork& item = work[unit / in.num_kv_heads];
    tiles.kv_head = unit % in.num_kv_heads;
    tiles.block_table = block_tables + u64(item.seq) * in.max_blocks_per_seq;
    for (u32 group = 0; group * ROWS < item.num_tokens * in.group_size; group += BLOCK_GROUPS) {
      RowGroup first, last;
      first.open(in, item, group);
      const u32 last_group = (item.num_tokens * in.group_size - 1) / ROWS;
      last.open(in, item, min(group + BLOCK_GROUPS - 1, last_group));
      tiles.start = first.start, tiles.end = last.end;
      attend_rows(in, item, group, tiles, queries, states);
      // The next rows' tiles go where these were.
      wait_async<0>();
      __syncthreads();
    }
  }
}
EXPORT(paged_attention_prefill)

#if !TEXTS
// One group of rows per warp: with two, some sets of kernels spill.
using SharedQueries = Queries<1, shared_groups(1)>;

// Splits of K and V that many tokens begin with, for 16 rows of each warp, its `group`: no row
// masks any.
__device__ __forceinline__ void attend_shared(const Inputs& in, const SharedWork& work, u32 group,
                                              SharedTiles& tiles, SharedQueries& queries,
                                              State& state) {
  queries.load(0, [&](u32 row, const T*& from, bool& is_row) {
    const SharedRow at = SharedRow::find(in, work, tiles.kv_head, group * ROWS + row);
    from = at.query, is_row = at.is_there;
  });
  Partial partial[1] = {Partial::empty()};
  store_state(Partial::empty(), state);
  const bool has_rows = group * ROWS < work.num_tokens * in.group_size;
  // From the first split on they are merged, and only the last result is kept.
  const bool is_merged = work.start == 0;
  tiles.open(in);
  tiles.fetch(in);
  for (u32 tile = tiles.start; tile < tiles.end; tile += TILE) {
    const SmemAddress keys = tiles.take(tile, in);
    if (!has_rows) continue;
    float scores[1][4][4] = {};
    score_tile(queries, keys, scores);
    bound(in, scores[0]);
    softmax_step<1, true>(in.exponent_factor(), scores, partial);
    add_values(scores, keys + TILE_BYTES, partial);
    if ((tile + TILE) % SPLIT != 0) continue;
    if (is_merged) {
      merge(state, partial[0]);
    } else {
      for (u32 i = 0; i < 2; ++i) partial[0].sum[i] = row_sum(partial[0], i);
    }
    store_state(partial[0], state);
    partial[0] = Partial::empty();
    if (is_merged && tile + TILE < tiles.end) continue;
    const u32 split = is_merged ? 0 : (tile - work.start) / SPLIT;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      const u32 row = hide(group) * ROWS + threadIdx.x % 32 / 4 + 8 * i;
      const SharedRow at = SharedRow::find(in, work, tiles.kv_head, row);
      if (at.is_there) store_slot(state, i, at.slot + u64(split) * in.num_heads * SLOT_FLOATS);
    }
  }
}

// Attention of tokens of different sequences to K and V that all of them begin with: what
// paged_attention_prefill does with tokens of one. The results are kept in `slots`.
KERNEL(32 * PREFILL_WARPS, PREFILL_BLOCKS)
paged_attention_shared(const T* qkv, const Kv* k_cache, const Kv* v_cache, const SharedWork* work,
                       const u32* num_work, const u32* block_tables, const SharedToken* tokens,
                       float* slots, AttentionParams params) {
  DYN_SMEM(u8, smem);
  const Inputs in = {params, qkv, k_cache, v_cache, nullptr, block_tables, nullptr,
                     params.num_heads / params.num_kv_heads, 0, slots, tokens};
  u8* own = smem + PREFILL_TILES_BYTES + threadIdx.x / 32 * prefill_warp_bytes(1);
  State& state = *reinterpret_cast<State*>(own);
  SharedQueries queries;
  queries.shared = reinterpret_cast<uint4*>(&state + 1);
  SharedTiles tiles;
  tiles.base = smem_address(smem);
  for (u32 unit = blockIdx.x; unit < num_work[0] * in.num_kv_heads; unit += gridDim.x) {
    const SharedWork& part = work[unit / in.num_kv_heads];
    tiles.kv_head = unit % in.num_kv_heads, tiles.start = part.start, tiles.end = part.end;
    tiles.block_table = block_tables + u64(part.seq) * in.max_blocks_per_seq;
    for (u32 group = 0; group * ROWS < part.num_tokens * in.group_size; group += PREFILL_WARPS) {
      attend_shared(in, part, group + threadIdx.x / 32, tiles, queries, state);
      wait_async<0>();
      __syncthreads();
    }
  }
}
EXPORT(paged_attention_shared)

// Merges the slots of tokens and writes their outputs. Launch: 128 threads, no shared memory, any
// grid. The second bound keeps ptxas from spilling for the sake of more warps.
KERNEL(128, 8)
paged_attention_merge(const MergeWork* work, const u32* num_work, float* slots, T* out,
                      AttentionParams params) {
  constexpr u32 WARPS = 4;
  const u32 num_units = num_work[0] * params.num_heads;
  for (u32 unit = blockIdx.x * WARPS + threadIdx.x / 32; unit < num_units;
       unit += gridDim.x * WARPS) {
    const MergeWork item = work[unit / params.num_heads];
    const u32 head = unit % params.num_heads;
    merge_slots(slot_at(slots, item.slot, head, params.num_heads), item.num_slots,
                params.num_heads * SLOT_FLOATS, head, params,
                out + (u64(item.token) * params.num_heads + head) * HEAD_DIM);
  }
}
EXPORT(paged_attention_merge)
#endif
