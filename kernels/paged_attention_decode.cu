// Attention of few query tokens per sequence over a paged KV cache on tensor cores, for bf16 and
// f16: of one, in decoding. The order of a row's computation is that of paged_attention.cu.
//
// Launch: 32 DECODE_WARPS threads, DECODE_BYTES of dynamic shared memory. Grid: DECODE_BLOCKS per
// multiprocessor, or one per unit (num_work num_kv_heads) if those are fewer. The host chooses
// these by the shared memory of the GPU and the head (ops/paged_attention/cuda/launch.rs), with
// DECODE_STAGES, the tiles of a warp's ring, and compiles the kernel for them.
// It is compiled for a kind of layer too: NUM_KV_HEADS, GROUP_SIZE query heads for each,
// BLOCK_SIZE, WINDOW (0: none), -DSOFT_CAP=1 where there is one. The launch says the same.
// Switches: -DKV_FP8=1 where the caches are E4M3, -DALIBI=1 for biases, -DSINKS=1 for sinks.
#include "attention_e4m3.cuh"

// A warp of a block has a ring of tiles; also the tile in use as f16, if E4M3 is widened there.
struct RingPlace {
  static __device__ __forceinline__ u32 offset(u32 row, u32 chunk) {
    return WIDENS_OPERANDS ? NarrowPlace::offset(row, chunk) : TilePlace::offset(row, chunk);
  }
};
constexpr bool DECODE_SHARES_QUERIES = PADDED_DIM > 128;
constexpr u32 DECODE_QUERY_BYTES = DECODE_SHARES_QUERIES ? QUERY_BYTES : 0;
constexpr u32 DECODE_SLOT_BYTES = IS_FP8 ? NARROW_BYTES : TILE_BYTES;
constexpr u32 DECODE_WIDE_BYTES = IS_FP8 && !WIDENS_OPERANDS ? TILE_BYTES : 0;
constexpr u32 DECODE_WARP_BYTES =
    DECODE_STAGES * DECODE_SLOT_BYTES + DECODE_WIDE_BYTES + DECODE_QUERY_BYTES;
static_assert(DECODE_BYTES == DECODE_WARPS * DECODE_WARP_BYTES + sizeof(State) + 16,
              "the host launches with as much shared memory as is laid out here");

// Divisions by constants are multiplications, and what a layer has not is not in the code. No bit
// changes.
#if SOFT_CAP
constexpr bool HAS_SOFT_CAP = true;
#else
constexpr bool HAS_SOFT_CAP = false;
#endif
static_assert(BLOCK_SIZE % 16 == 0, "rows of 16 are one piece");

__device__ __forceinline__ AttentionParams with_constants(AttentionParams params) {
  params.num_heads = NUM_KV_HEADS * GROUP_SIZE, params.num_kv_heads = NUM_KV_HEADS;
  params.block_size = BLOCK_SIZE, params.window = WINDOW;
  if (!HAS_SOFT_CAP) params.soft_cap = 0.0f;
  return params;
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
  SmemAddress base;  // the tile in use, where it is widened there; then the ring

  // Lane i keeps the place of the i-th block of the split: of 17 at most, as blocks have 16 slots.
  __device__ __forceinline__ void begin_task(const Inputs& in) {
    if (task.unit >= in.num_units) return;
    tile = task.first_tile();
    const u32 last = (task.rows.end - 1) / in.block_size;
    const u32 block = min(task.split * SPLIT / in.block_size + threadIdx.x % 32, last);
    const u32 kv_head = task.unit % in.num_kv_heads;
    block_head = in.block_tables[in.table_of(task.item, kv_head) + block] * in.cache_kv_heads +
                 kv_head;
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
      copy_tile<32, RingPlace>(is_value ? in.v_cache : in.k_cache, offsets, tile, task.rows.start,
                               task.end(), threadIdx.x % 32, slot(fetched_stage));
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
  template <bool are_values>
  __device__ __forceinline__ SmemAddress next(const Inputs& in) {
    wait_async<DECODE_STAGES - 2>();
    __syncwarp();
    fetch(in);
    const SmemAddress at = slot(used_stage);
    used_stage = used_stage + 1 == DECODE_STAGES ? 0 : used_stage + 1;
    if (DECODE_WIDE_BYTES == 0) return at;
    widen_tile<32, are_values>(at, threadIdx.x % 32, base);
    __syncwarp();
    return base;
  }
};

// The KV head of a task. Worked out where it is needed: with heads of 256 no register is left.
__device__ __forceinline__ u32 kv_head_of(const Inputs& in, const TaskCursor& task) {
  return hide(task.unit) % in.num_kv_heads;
}

// Keeps a split of a unit that is a part of its row, of one token.
__device__ __forceinline__ void keep_split(const Inputs& in, const TaskCursor& task,
                                           const State& state) {
  const u32 slot = task.item.slot + task.split - task.rows.start / SPLIT;
#pragma unroll
  for (u32 i = 0; i < 2; ++i) {
    const u32 row = threadIdx.x % 32 / 4 + 8 * i;
    const u32 head = kv_head_of(in, task) * in.group_size + task.rows.first_row + row;
    if (row < task.rows.num_rows) store_slot(state, i, slot_at(in.slots, slot, head, in.num_heads));
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
  const Inputs in = {with_constants(params), qkv, k_cache, v_cache, work, block_tables, out,
                     GROUP_SIZE, num_work[0] * NUM_KV_HEADS, slots};
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
    load_queries(in, task.item, task.rows, kv_head_of(in, task), 0, queries);
    Partial partial[1] = {Partial::empty()};
    for (u32 tile = task.first_tile(); tile < task.end(); tile += TILE) {
      float scores[1][4][4] = {};
      const SmemAddress keys = ring.next<false>(in);
      if (WIDENS_OPERANDS) score_narrow_tile(queries, keys, scores[0]);
      if (!WIDENS_OPERANDS) score_tile(queries, keys, scores);
      queries.unfit(in, 0, scores[0]);
      bound_and_mask(in, task.item, task.rows, kv_head_of(in, task), tile, scores[0]);
      softmax_step(queries.exponent_factors(in), scores, partial);
      const SmemAddress values = ring.next<true>(in);
      if (WIDENS_OPERANDS) add_narrow_values(scores[0], values, partial[0]);
      if (!WIDENS_OPERANDS) add_values(scores, values, partial);
    }
    end_split(partial[0]);
    const bool is_kept = task.item.slot != NO_SLOT;
    wait_for_turn(turn, task.serial);
    if (!is_kept) {
      if (task.split == task.rows.start / SPLIT) store_state(Partial::empty(), state);
      // In pieces with the widest heads over E4M3, which spill else.
      merge<(DECODE_WIDE_BYTES > 0)>(state, partial[0]);
    }
    const bool is_last = !is_kept && task.end() == task.rows.end;
    if (!is_last) store_state(partial[0], state);
    if (is_kept) keep_split(in, task, state);
    // All lanes have read and written the state before the next split's warp may.
    __syncwarp();
    if (threadIdx.x % 32 == 0) set_turn(turn, task.serial + 1);
    if (is_last) store_output(in, task.item, task.rows, kv_head_of(in, task), partial[0]);
    task.advance(DECODE_WARPS, in);
  }
  wait_async<0>();
}
EXPORT(paged_attention_decode)
