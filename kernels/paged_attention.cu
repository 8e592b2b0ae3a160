// Attention of query tokens over a paged KV cache on tensor cores, for bf16 and f16.
//
// Decode and prefill give the same bits for the same row, because both run the same functions in
// one order: KV in splits of 256 absolute positions; in a split, tiles of 32 positions, each one
// step of an online softmax; splits merged upward. A tile or split that a row does not see leaves
// that row's bits alone, so skipping it, or not, for the sake of other rows changes nothing; unless
// its V is not finite, for which decode takes such rows again (unseen_values.cu).
//
// Rows come in groups of 16, a row being a query token with one of the query heads of a KV head
// (row r of a work item: token r / G, head r % G of the G = num_heads / num_kv_heads heads).
//
// Launch: 32 PREFILL_WARPS threads, PREFILL_BYTES of dynamic shared memory. The host chooses these
// by the shared memory of the GPU and the head (ops/paged_attention/cuda/launch.rs), with
// PREFILL_GROUPS of 16 rows of a warp, and PREFILL_BLOCKS that the registers have to allow at once,
// and compiles the kernels for them. Switches: -DKV_FP8=1 where the caches are E4M3, -DALIBI=1 and
// -DBIAS=1 for biases, -DSINKS=1 for sinks, -DTEXTS=1 for whole texts, -DIMAGES=1 for images that
// are seen whole, -DREACH_CHUNKS=1 where tokens see their chunk, -DPREFILL_STATES_APART=1 where
// shared memory has no room for the states of as many warps as there should be.
// - paged_attention_prefill: one block per unit; work items of 16 PREFILL_WARPS PREFILL_GROUPS / G
//   tokens, those that see most positions first.
// - paged_attention_shared: work of 16 PREFILL_WARPS / G tokens. Any grid.
// With states apart no grid has more blocks than these have room for.
// Tokens that decode are paged_attention_decode.cu's; whole texts go through prefill alone.
#include "attention_e4m3.cuh"
#include "attention_tiles.cuh"

// A block has two pairs of tiles of keys and values: one in use, one to come. With E4M3, one pair
// in use as f16 and one to come as it is in the cache.
constexpr u32 PREFILL_TILES_BYTES = IS_FP8 ? 2 * (TILE_BYTES + NARROW_BYTES) : 4 * TILE_BYTES;
// The last groups of a warp have their queries in shared memory: this many of `groups`.
constexpr u32 shared_groups(u32 groups) {
  return PADDED_DIM > 128 || PADDED_DIM == 64 ? groups : PADDED_DIM > 32 ? groups - 1 : 0;
}
#if PREFILL_STATES_APART
constexpr bool STATES_ARE_APART = true;
#else
constexpr bool STATES_ARE_APART = false;
#endif
constexpr u32 states_bytes(u32 groups) { return STATES_ARE_APART ? 0 : groups * sizeof(State); }
constexpr u32 prefill_warp_bytes(u32 groups) {
  return states_bytes(groups) + shared_groups(groups) * QUERY_BYTES;
}
static_assert(PREFILL_BYTES ==
                  PREFILL_TILES_BYTES + PREFILL_WARPS * prefill_warp_bytes(PREFILL_GROUPS),
              "the host launches with as much shared memory as is laid out here");

// The tiles of keys and values that the warps of a prefill block share.
struct SharedTiles : TileRows {
  SmemAddress base;

  // Where the copies of the tile at position `tile` go: its keys, COPIED_BYTES later its values.
  static constexpr u32 COPIED_BYTES = IS_FP8 ? NARROW_BYTES : TILE_BYTES;
  __device__ __forceinline__ SmemAddress copies(u32 tile) const {
    return base + 2 * TILE_BYTES * (IS_FP8 ? 1 : tile / TILE % 2);
  }
  __device__ __forceinline__ void open(const Inputs& in) { open_at(in, TILE); }
  // Starts copying the next tile, if there is one.
  __device__ __forceinline__ void fetch(const Inputs& in) {
    if (next < end) {
      u64 offsets[2];
      find(in, offsets);
      const SmemAddress to = copies(next);
      copy_tile<32 * PREFILL_WARPS>(in.k_cache, offsets, next, start, end, threadIdx.x, to);
      copy_tile<32 * PREFILL_WARPS>(in.v_cache, offsets, next, start, end, threadIdx.x,
                                    to + COPIED_BYTES);
      go_on(in);
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
      // No register is left for addresses meanwhile.
      const u32 thread = hide(threadIdx.x);
      widen_tile<32 * PREFILL_WARPS, false>(from, thread, base);
      widen_tile<32 * PREFILL_WARPS, true>(from + NARROW_BYTES, thread, base + TILE_BYTES);
    }
    fetch(in);
    if (IS_FP8) __syncthreads();
    return IS_FP8 ? base : copies(tile);
  }
};

// The states of a warp, whose shared memory is `own`. Where they are apart they are found where
// they are needed, which takes no register meanwhile.
__device__ __forceinline__ State* states_of_warp(const AttentionParams& params, u8* own) {
  if (!STATES_ARE_APART) return reinterpret_cast<State*>(own);
  const u32 warp = blockIdx.x * PREFILL_WARPS + hide(threadIdx.x) / 32;
  return static_cast<State*>(params.states) + warp * PREFILL_GROUPS;
}

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
    if (SEES_BEHIND && rows.num_rows > 0) last_position = rows.last_position(in, item);
  }
  const u32 all_see_start = in.first_seen(SEES_BEHIND ? last_position : end - 1);
  if (in.are_scaled_first()) all_see_end = 0;
  const RowFactors<PREFILL_GROUPS> factors = queries.exponent_factors(in);
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
        queries.unfit(in, g, scores[g]);
        bound_and_mask(in, item, rows, tiles.kv_head, tile, scores[g]);
      }
    }
    softmax_step(factors, scores, partial);
    add_values(scores, keys + TILE_BYTES, partial);
    if ((tile + TILE) % SPLIT != 0 || tile + TILE >= end) continue;
#pragma unroll
    for (u32 g = 0; g < PREFILL_GROUPS; ++g) {
      end_split(partial[g]);
      merge(states[g], partial[g]);
      store_state(partial[g], states[g]);
      partial[g] = Partial::empty();
    }
  }
#pragma unroll
  for (u32 g = 0; g < PREFILL_GROUPS; ++g) {
    RowGroup rows;
    open_own(in, item, first_group, g, rows);
    end_split(partial[g]);
    // In pieces over E4M3, since heads of 128 spill on sm_90a else.
    merge<ARE_FITTED>(states[g], partial[g]);
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
  State* states = states_of_warp(params, own);
  PrefillQueries queries;
  queries.shared = reinterpret_cast<uint4*>(own + states_bytes(PREFILL_GROUPS));
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

#if !TEXTS && !IMAGES
// One group of rows per warp: with two, some sets of kernels spill.
using SharedQueries = Queries<1, shared_groups(1)>;

// Splits of K and V that many tokens begin with, for 16 rows of each warp, its `group`: no row
// masks any.
__device__ __forceinline__ void attend_shared(const Inputs& in, const SharedWork& work, u32 group,
                                              SharedTiles& tiles, SharedQueries& queries,
                                              u8* own) {
  queries.load(0, [&](u32 row, const T*& from, bool& is_row) {
    const SharedRow at = SharedRow::find(in, work, tiles.kv_head, group * ROWS + row);
    from = at.query, is_row = at.is_there;
  });
  Partial partial[1] = {Partial::empty()};
  store_state(Partial::empty(), *states_of_warp(in, own));
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
    queries.unfit(in, 0, scores[0]);
    bound(in, scores[0]);
    softmax_step(queries.exponent_factors(in), scores, partial);
    add_values(scores, keys + TILE_BYTES, partial);
    if ((tile + TILE) % SPLIT != 0) continue;
    end_split(partial[0]);
    State& state = *states_of_warp(in, own);
    if (is_merged) merge<STATES_ARE_APART>(state, partial[0]);
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
  SharedQueries queries;
  queries.shared = reinterpret_cast<uint4*>(own + states_bytes(1));
  SharedTiles tiles;
  tiles.base = smem_address(smem);
  for (u32 unit = blockIdx.x; unit < num_work[0] * in.num_kv_heads; unit += gridDim.x) {
    const SharedWork& part = work[unit / in.num_kv_heads];
    tiles.kv_head = unit % in.num_kv_heads, tiles.start = part.start, tiles.end = part.end;
    tiles.block_table = block_tables + u64(part.seq) * in.max_blocks_per_seq;
    for (u32 group = 0; group * ROWS < part.num_tokens * in.group_size; group += PREFILL_WARPS) {
      attend_shared(in, part, group + threadIdx.x / 32, tiles, queries, own);
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
