// Prefill attention by the warpgroups of Hopper (sm_90a): what paged_attention_prefill of
// paged_attention.cu computes, with wgmma in place of mma.sync. Off unless it is asked for, and
// then only where a trial on the GPU has given the same bits.
//
// The order is that of paged_attention.cu: splits of 256 absolute positions, tiles of 32, each one
// step of an online softmax; scores and values sum in steps of 16. Lanes hold rows as they do there
// (wgmma.cuh), so softmax, mask, merge and output are the same functions. A row's scores are
// computed a stage at a time, of two tiles.
//
// A block has two warpgroups of 64 rows, and its threads share stages of keys and values. While one
// warpgroup is at its softmax the other multiplies; and a warpgroup's values of one tile are added
// while it is at the softmax of the next.
//
// Launch: 256 threads, PREFILL_BYTES of dynamic shared memory, one block per unit; work as for
// paged_attention_prefill. Heads of 64 and 128, -DALIBI=1 and -DSINKS=1 as there; neither texts nor
// caches of E4M3.
#include "attention_splits.cuh"
#include "attention_tiles.cuh"
#include "wgmma.cuh"

static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "heads are whole pieces of 64 columns");
static_assert(!IS_FP8 && !SEES_BEHIND, "such caches and rows are paged_attention.cu's");
static_assert(PREFILL_WARPS == 8 && PREFILL_GROUPS == 1, "two warpgroups, 16 rows of each warp");

// Positions that are fetched and scored at once.
constexpr u32 STAGE = 2 * TILE;
// Stages in shared memory: the one before, since its values may be read still, the one in use, and
// those to come.
constexpr u32 NUM_STAGES = 4, STAGES_AHEAD = NUM_STAGES - 2;
// A matrix of a stage is in pieces of 64 columns.
constexpr u32 NUM_PIECES = HEAD_DIM / WGMMA_COLUMNS;
constexpr u32 PIECE_BYTES = STAGE * WGMMA_ROW_BYTES;
constexpr u32 MATRIX_BYTES = NUM_PIECES * PIECE_BYTES;
constexpr u32 STAGE_BYTES = 2 * MATRIX_BYTES;
static_assert(PREFILL_BYTES ==
                  WGMMA_ALIGNMENT + NUM_STAGES * STAGE_BYTES + PREFILL_WARPS * sizeof(State),
              "the host launches with as much shared memory as is laid out here");

// Where 16 bytes of a row are in a matrix of a stage.
struct PiecePlace {
  static __device__ __forceinline__ u32 offset(u32 row, u32 chunk) {
    return chunk / 8 * PIECE_BYTES + row * WGMMA_ROW_BYTES + (chunk % 8 ^ row % 8) * 16;
  }
};

// The stages of keys and values that the warps of a block share.
struct StagedTiles : TileRows {
  SmemAddress base;
  u32 place;  // of the stage in use

  __device__ __forceinline__ void open(const Inputs& in) {
    open_at(in, STAGE);
    place = NUM_STAGES - 1;
    for (u32 i = 0; i < STAGES_AHEAD; ++i) fetch(in, i);
  }
  // Starts copying the next stage, if there is one.
  __device__ __forceinline__ void fetch(const Inputs& in, u32 to_place) {
    if (next < end) {
      const SmemAddress keys = base + to_place * STAGE_BYTES;
#pragma unroll
      for (u32 row = 0; row < STAGE; row += TILE) {
        u64 offsets[2];
        find(in, offsets);
        const SmemAddress to = keys + row * WGMMA_ROW_BYTES;
        copy_tile<32 * PREFILL_WARPS, PiecePlace>(in.k_cache, offsets, next, start, end,
                                                  threadIdx.x, to);
        copy_tile<32 * PREFILL_WARPS, PiecePlace>(in.v_cache, offsets, next, start, end,
                                                  threadIdx.x, to + MATRIX_BYTES);
        go_on(in);
      }
    }
    commit_async();
  }
  // Waits for the next stage; the place of the one before the last is free then, and filled again.
  // Gives where the keys are; the values are MATRIX_BYTES later.
  __device__ __forceinline__ SmemAddress take(const Inputs& in) {
    wait_async<STAGES_AHEAD - 1>();
    fence_async_proxy();
    __syncthreads();
    place = (place + 1) % NUM_STAGES;
    fetch(in, (place + STAGES_AHEAD) % NUM_STAGES);
    return base + place * STAGE_BYTES;
  }
};

using StageQueries = Queries<1, 0>;
using StageScores = float[STAGE / 8][4];
// Probabilities of a tile, as operands a: of 16 positions each.
using Probabilities = u32[2][4];

// Starts scores (64, STAGE) = queries (64, HEAD_DIM) * keys (STAGE, HEAD_DIM)^T of a warpgroup.
__device__ __forceinline__ void start_scores(const StageQueries& queries, SmemAddress keys,
                                             StageScores& scores) {
  wgmma_fence();
#pragma unroll
  for (u32 step = 0; step < DEPTH_STEPS; ++step) {
    u32 a[4];
    queries.fragment(0, step, a);
    const u64 operand = describe_operand(keys + step / 4 * PIECE_BYTES + step % 4 * 32);
    if (step == 0) {
      wgmma<T, false, false>(scores, a, operand);
    } else {
      wgmma<T, false, true>(scores, a, operand);
    }
  }
  wgmma_commit();
}

// Starts partial.values += probabilities (64, TILE) * values (TILE, HEAD_DIM) of a warpgroup.
__device__ __forceinline__ void start_values(Probabilities& probabilities, SmemAddress values,
                                             Partial& partial) {
  hold(partial.values);
  hold(probabilities);
  wgmma_fence();
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
#pragma unroll
    for (u32 piece = 0; piece < NUM_PIECES; ++piece) {
      auto& sums = reinterpret_cast<float(&)[8][4]>(partial.values[piece * 8]);
      const u32 offset = piece * PIECE_BYTES + half * 16 * WGMMA_ROW_BYTES;
      wgmma<T, true, true>(sums, probabilities[half], describe_operand(values + offset));
    }
  }
  wgmma_commit();
}

// Waits for all products of a warpgroup.
__device__ __forceinline__ void wait_for_values(Probabilities (&probabilities)[2],
                                                Partial& partial) {
  wgmma_wait<0>();
  hold(partial.values);
  hold(probabilities[0]);
  hold(probabilities[1]);
}

// Opens the 16 rows of a warp, of those of a block from `first_group` on.
__device__ __forceinline__ void open_own(const Inputs& in, const AttentionWork& item,
                                         u32 first_group, RowGroup& rows) {
  rows.open(in, item, hide(first_group) + threadIdx.x / 32);
}

// The end of what the rows of a warpgroup see, whose products are of all its warps; 0: it has none.
__device__ __forceinline__ u32 end_of_warpgroup(const Inputs& in, const AttentionWork& item,
                                                u32 first_group) {
  const u32 first = first_group + threadIdx.x / 128 * 4;
  const u32 last = (item.num_tokens * in.group_size - 1) / ROWS;
  RowGroup rows;
  rows.open(in, item, min(first + 3, last));
  return first <= last ? rows.end : 0;
}

// One step of the softmax of a tile's scores; gives whether the values of the tiles before are to
// be rescaled. That is done apart, since they may be on their way still: `rows` has ones in their
// place, and by what these become.
__device__ __forceinline__ bool weigh(float factor, float (&scores)[1][4][4],
                                      PartialOf<8> (&rows)[1]) {
  for (u32 i = 0; i < 4; ++i) rows[0].values[0][i] = 1.0f;
  return softmax_step(factor, scores, rows);
}

__device__ __forceinline__ void rescale(const PartialOf<8>& rows, Partial& partial) {
#pragma unroll
  for (u32 i = 0; i < HEAD_DIM / 2; ++i) {
    partial.values[i / 4][i % 4] *= rows.values[0][i % 4 / 2 * 2];
  }
}

// Ends a split: partial = the merged splits before it, then itself.
__device__ __forceinline__ void merge_split(const PartialOf<8>& rows, const State& state,
                                            Partial& partial) {
  for (u32 i = 0; i < 2; ++i) partial.max[i] = rows.max[i], partial.sum[i] = rows.sum[i];
  end_split(partial);
  merge(state, partial);
}

// Attention of the rows of a block, 16 of each warp, from group `first_group` on.
__device__ __forceinline__ void attend_rows(const Inputs& in, const AttentionWork& item,
                                            u32 first_group, StagedTiles& tiles, State& state) {
  StageQueries queries;
  RowGroup own;
  open_own(in, item, first_group, own);
  load_queries(in, item, own, tiles.kv_head, 0, queries);
  Partial partial = Partial::empty();
  PartialOf<8> rows[1] = {PartialOf<8>::empty()};
  store_state(partial, state);
  const u32 end = end_of_warpgroup(in, item, first_group);
  // All rows of the warp see the positions between these.
  const u32 all_see_start = in.first_seen(own.end - 1);
  const u32 all_see_end = in.are_scaled_first() ? 0 : in.last_seen(item, own.first_position) + 1;
  const float factor = in.exponent_factor();
  Probabilities probabilities[2] = {};
  tiles.open(in);
  for (u32 stage = tiles.start / STAGE * STAGE; stage < tiles.end; stage += STAGE) {
    const SmemAddress keys = tiles.take(in);
    // Past what this warpgroup's rows see.
    if (stage >= end) {
      wait_for_values(probabilities, partial);
      continue;
    }
    StageScores scores;
    start_scores(queries, keys, scores);
    wait_for_values(probabilities, partial);
    hold(scores);
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      const u32 tile = stage + half * TILE;
      if (half > 0 && tile >= end) break;
      auto& of_tile = reinterpret_cast<float(&)[1][4][4]>(scores[half * 4]);
      if (tile < all_see_start || tile + TILE > all_see_end) {
        open_own(in, item, first_group, own);
        bound_and_mask(in, item, own, tiles.kv_head, tile, of_tile[0]);
      }
      const bool is_moved = weigh(factor, of_tile, rows);
      if (half > 0) wait_for_values(probabilities, partial);
      if (is_moved) rescale(rows[0], partial);
      for (u32 i = 0; i < 2; ++i) load_probabilities(of_tile[0], i, probabilities[half][i]);
      start_values(probabilities[half], keys + MATRIX_BYTES + half * TILE * WGMMA_ROW_BYTES,
                   partial);
    }
    if ((stage + STAGE) % SPLIT != 0 || stage + STAGE >= end) continue;
    wait_for_values(probabilities, partial);
    merge_split(rows[0], state, partial);
    store_state(partial, state);
    partial = Partial::empty(), rows[0] = PartialOf<8>::empty();
  }
  wait_for_values(probabilities, partial);
  merge_split(rows[0], state, partial);
  open_own(in, item, first_group, own);
  store_output(in, item, own, tiles.kv_head, partial);
}

// Attention of many query tokens per sequence: a block's warps share stages of keys and values.
KERNEL(32 * PREFILL_WARPS, PREFILL_BLOCKS)
paged_attention_prefill_wgmma(const T* qkv, const Kv* k_cache, const Kv* v_cache,
                              const AttentionWork* work, const u32* num_work,
                              const u32* block_tables, T* out, AttentionParams params) {
  DYN_SMEM(u8, smem);
  const Inputs in = {params, qkv, k_cache, v_cache, work, block_tables, out,
                     params.num_heads / params.num_kv_heads};
  StagedTiles tiles;
  const SmemAddress first = smem_address(smem);
  tiles.base = (first + WGMMA_ALIGNMENT - 1) / WGMMA_ALIGNMENT * WGMMA_ALIGNMENT;
  State* states = reinterpret_cast<State*>(smem + (tiles.base - first) + NUM_STAGES * STAGE_BYTES);
  State& state = states[threadIdx.x / 32];
  // The loops of paged_attention_prefill: as a function of both, that kernel spills on sm_100a.
  for (u32 unit = blockIdx.x; unit < num_work[0] * in.num_kv_heads; unit += gridDim.x) {
    const AttentionWork& item = work[unit / in.num_kv_heads];
    tiles.kv_head = unit % in.num_kv_heads;
    tiles.block_table = block_tables + u64(item.seq) * in.max_blocks_per_seq;
    for (u32 group = 0; group * ROWS < item.num_tokens * in.group_size; group += PREFILL_WARPS) {
      RowGroup opening, closing;
      opening.open(in, item, group);
      const u32 last_group = (item.num_tokens * in.group_size - 1) / ROWS;
      closing.open(in, item, min(group + PREFILL_WARPS - 1, last_group));
      tiles.start = opening.start, tiles.end = closing.end;
      attend_rows(in, item, group, tiles, state);
      // The next rows' stages go where these were.
      wait_async<0>();
      __syncthreads();
    }
  }
}
EXPORT(paged_attention_prefill_wgmma)
