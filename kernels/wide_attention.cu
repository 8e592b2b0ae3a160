// Attention of query tokens over a paged cache on tensor cores, for bf16 and f16: of heads whose
// values one warp cannot hold, and over latents (-DLATENT_DIM=..), which all heads share. Decode,
// chunk and prefill are the same code.
//
// Rows come in groups of 16, as in paged_attention.cu. SHARES warps share a group: each has the
// scores of some positions of a tile, and then of all of them by shared memory; each goes through
// the same softmax, and has some columns of the values. A row's order: tiles of 32 positions
// upward, at multiples of 32, each one step of an online softmax. A tile that a row does not see
// leaves its bits alone, if its V is finite (unseen_values.cu). Neither the groups of a block nor
// the shares change a bit.
//
// Launch: 32 GROUPS SHARES threads, `BlockOf::BYTES` of dynamic shared memory. Grid (num_work
// num_kv_heads at least, ceil(rows of the longest work item / (16 GROUPS))).
#include "attention.cuh"

static_assert(!IS_FP8 && !SEES_BEHIND && !HAS_ALIBI && !HAS_BIAS && !HAS_SINKS, "no such heads");
static_assert(V_DIM % 8 == 0, "rows are copied in pieces of 16 bytes");
static_assert(!IS_CHOSEN || IS_LATENT, "latents alone are chosen");

// Of a row of K.
constexpr u32 V_START = HEAD_DIM - V_DIM;
// Columns of values that are multiplied at once.
constexpr u32 PAIR = 16;
constexpr u32 VALUE_PAIRS = (V_DIM + PAIR - 1) / PAIR;

template <u32 GROUPS_, u32 SHARES_>
struct BlockOf {
  static constexpr u32 GROUPS = GROUPS_, SHARES = SHARES_;
  static constexpr u32 THREADS = 32 * GROUPS * SHARES;
  static constexpr u32 NUM_ROWS = ROWS * GROUPS;
  // Of a warp: strips of 8 positions, columns of values.
  static constexpr u32 STRIPS = TILE / 8 / SHARES;
  static constexpr u32 PAIRS = (VALUE_PAIRS + SHARES - 1) / SHARES;
  static constexpr u32 COLUMNS = PAIRS * PAIR;
  // Queries, then two tiles, then scores.
  static constexpr u32 QUERY_BYTES = NUM_ROWS * ROW_BYTES;
  static constexpr u32 TILES_AT = (QUERY_BYTES + 127) / 128 * 128;
  static constexpr u32 SCORES_AT = TILES_AT + 2 * TILE_BYTES;
  static constexpr u32 BYTES = SCORES_AT + NUM_ROWS * TILE * sizeof(float);
};

// The tiles that the warps of a block share: keys and values in turn, or latents, which are both.
// One is in use, one to come.
template <class Block>
struct Tiles {
  const u32* block_table;
  u32 kv_head, start, end;
  SmemAddress base;
  u32 next, fetched, used;
  bool is_value;
  u32 block_heads[2];  // of the next tile, looked up one tile ahead of its use

  __device__ __forceinline__ void open(const Inputs& in) {
    next = start / TILE * TILE, fetched = used = 0, is_value = false;
    look_up(in);
  }
  __device__ __forceinline__ void look_up(const Inputs& in) {
    if constexpr (!IS_CHOSEN) {
#pragma unroll
      for (u32 half = 0; half < 2; ++half) {
        const u32 block = min(next + 16 * half, end - 1) / in.block_size;
        block_heads[half] = block_table[block] * in.cache_kv_heads + kv_head;
      }
    }
  }
  // Starts copying the latents of the next tile, each from where it is. Rows behind the end become
  // zero, as in `copy_tile`.
  __device__ __forceinline__ void copy_chosen(const Inputs& in) {
    constexpr u32 CHUNKS = PADDED_DIM / CHUNK;
    for (u32 index = threadIdx.x; index < TILE * CHUNKS; index += Block::THREADS) {
      const u32 row = index / CHUNKS, chunk = index % CHUNKS;
      const bool is_valid = next + row < end && chunk * CHUNK < HEAD_DIM;
      const u64 slot = block_table[is_valid ? next + row : 0];
      const T* from = in.k_cache + (is_valid ? slot * HEAD_DIM + chunk * CHUNK : 0);
      copy_async_16(base + fetched * TILE_BYTES + chunk_offset(row, chunk), from, is_valid);
    }
  }
  // Starts copying the next tile, if there is one.
  __device__ __forceinline__ void fetch(const Inputs& in) {
    if (IS_CHOSEN && next < end) {
      copy_chosen(in);
      next += TILE;
    } else if (next < end) {
      const u64 offsets[2] = {in.rows_offset(block_heads[0], next),
                              in.rows_offset(block_heads[1], next + 16)};
      copy_tile<Block::THREADS>(is_value ? in.v_cache : in.k_cache, offsets, next, start, end,
                                threadIdx.x, base + fetched * TILE_BYTES);
      if (IS_LATENT || is_value) {
        next += TILE;
        if (next < end) look_up(in);
      }
      is_value = !IS_LATENT && !is_value;
    }
    fetched = 1 - fetched;
    commit_async();
  }
  // Waits for the oldest tile; the place of the one before it is free then, and filled again.
  __device__ __forceinline__ SmemAddress take(const Inputs& in) {
    wait_async<0>();
    __syncthreads();
    fetch(in);
    const SmemAddress at = base + used * TILE_BYTES;
    used = 1 - used;
    return at;
  }
};

// Starts copying the queries of a block's rows, the first of which is `first_row` of the work item;
// rows past its last one become zero.
template <class Block>
__device__ __forceinline__ void copy_queries(const Inputs& in, const AttentionWork& item,
                                             u32 first_row, u32 kv_head, SmemAddress to) {
  constexpr u32 CHUNKS = PADDED_DIM / CHUNK;
  const u32 num_rows = item.num_tokens * in.group_size;
  for (u32 index = threadIdx.x; index < Block::NUM_ROWS * CHUNKS; index += Block::THREADS) {
    const u32 row = index / CHUNKS, chunk = index % CHUNKS, in_item = first_row + row;
    const u32 head = kv_head * in.group_size + in_item % in.group_size;
    const bool is_valid = in_item < num_rows && chunk * CHUNK < HEAD_DIM;
    const u64 at = u64(item.token + in_item / in.group_size) * in.qkv_stride + head * HEAD_DIM;
    const T* from = is_valid ? in.qkv + at + chunk * CHUNK : in.qkv;
    copy_async_16(to + chunk_offset(row, chunk), from, is_valid);
  }
}

// scores += queries (16, HEAD_DIM) * keys^T, of STRIPS * 8 positions of the tile. `queries` and
// `keys` are where their first rows are; both begin at a multiple of 8 rows.
template <u32 STRIPS>
__device__ __forceinline__ void score_strips(SmemAddress queries, SmemAddress keys,
                                             float (&scores)[STRIPS][4]) {
  const u32 lane = hide(threadIdx.x) % 32;
  const SmemAddress query = queries + chunk_offset(lane % 16, lane / 16);
  // Two steps at a time.
  const SmemAddress key = keys + chunk_offset(lane % 8, lane / 8);
#pragma unroll 4
  for (u32 step = 0; step < DEPTH_STEPS; step += 2) {
    const bool has_second = DEPTH_STEPS % 2 == 0 || step + 1 < DEPTH_STEPS;
    u32 a[2][4];
    ldmatrix(step_address(query, step), a[0]);
    if (has_second) ldmatrix(step_address(query, step + 1), a[1]);
#pragma unroll
    for (u32 strip = 0; strip < STRIPS; ++strip) {
      u32 b[4];
      ldmatrix(step_address(key, step) + strip * 8 * ROW_BYTES, b);
      mma<T>(scores[strip], a[0], b[0], b[1]);
      if (has_second) mma<T>(scores[strip], a[1], b[2], b[3]);
    }
  }
}

// Where 16 values from column `pair` * 16 on are: rows 0 .. 15 of a tile, as `ldmatrix` takes them.
__device__ __forceinline__ u32 values_offset(u32 lane, u32 pair) {
  return chunk_offset(lane % 16, V_START / CHUNK + 2 * pair + lane / 16);
}

// partial.values += probabilities (16, 32) * columns of values (32, V_DIM), from pair `first` on.
template <class Block>
__device__ __forceinline__ void add_values(const float (&scores)[4][4], SmemAddress values,
                                           u32 first, PartialOf<Block::COLUMNS>& partial) {
  const u32 lane = hide(threadIdx.x) % 32;
  // Else a step is no permutation of the first one's address.
  constexpr bool IS_EVEN = !IS_SWIZZLED || (V_START % 64 == 0 && Block::COLUMNS % 64 == 0);
  const SmemAddress at = values + values_offset(lane, first);
  for (u32 half = 0; half < 2; ++half) {
    u32 p[4];
    load_probabilities(scores, half, p);
#pragma unroll
    for (u32 pair = 0; pair < Block::PAIRS; ++pair) {
      if (VALUE_PAIRS % Block::SHARES != 0 && first + pair >= VALUE_PAIRS) break;
      const SmemAddress from =
          IS_EVEN ? step_address(at, pair) : values + values_offset(lane, first + pair);
      u32 b[4];
      ldmatrix_transposed(from + half * 16 * ROW_BYTES, b);
      mma<T>(partial.values[2 * pair], p, b[0], b[1]);
      // Where V ends in the middle of a pair, what was loaded behind it is not used.
      mma<T>(partial.values[2 * pair + 1], p, b[2], b[3]);
    }
  }
}

// Writes a warp's columns of its group's rows, from pair `first` on.
template <class Block>
__device__ __forceinline__ void store_columns(const Inputs& in, const AttentionWork& item,
                                              const RowGroup& rows, u32 kv_head, u32 first,
                                              const PartialOf<Block::COLUMNS>& partial) {
  const u32 lane = threadIdx.x % 32;
#pragma unroll
  for (u32 i = 0; i < 2; ++i) {
    float sum = partial.sum[i] + __shfl_xor_sync(FULL_WARP, partial.sum[i], 1);
    sum += __shfl_xor_sync(FULL_WARP, sum, 2);
    const float inverse = 1.0f / sum;
    const u32 row = lane / 4 + 8 * i;
    if (row >= rows.num_rows) continue;
    const u32 in_item = rows.first_row + row;
    const u32 head = kv_head * in.group_size + in_item % in.group_size;
    const u64 token = item.token + in_item / in.group_size;
    T* const to = in.out + (token * in.num_heads + head) * V_DIM;
#pragma unroll
    for (u32 n = 0; n < Block::COLUMNS / 8; ++n) {
      const u32 column = first * PAIR + n * 8 + lane % 4 * 2;
      if (column >= V_DIM) break;
      const u32 pair = narrow_x2<T>(partial.values[n][2 * i] * inverse,
                                    partial.values[n][2 * i + 1] * inverse);
      *reinterpret_cast<u32*>(to + column) = pair;
    }
  }
}

template <class Block>
__device__ __forceinline__ void attend(const Inputs& in) {
  DYN_SMEM(u8, smem);
  const u32 unit = blockIdx.x;
  if (unit >= in.num_units) return;
  const AttentionWork item = in.work[unit / in.num_kv_heads];
  const u32 kv_head = unit % in.num_kv_heads, first_row = blockIdx.y * Block::NUM_ROWS;
  const u32 num_rows = item.num_tokens * in.group_size;
  if (first_row >= num_rows) return;
  const u32 warp = threadIdx.x / 32, group = warp / Block::SHARES, share = warp % Block::SHARES;
  RowGroup rows, last;
  Tiles<Block> tiles;
  tiles.kv_head = kv_head;
  tiles.block_table = in.block_tables + in.table_of(item, kv_head);
  tiles.base = smem_address(smem) + Block::TILES_AT;
  rows.open(in, item, blockIdx.y * Block::GROUPS);
  tiles.start = rows.start;
  last.open(in, item, (min(first_row + Block::NUM_ROWS, num_rows) - 1) / ROWS);
  tiles.end = last.end;
  rows.open(in, item, blockIdx.y * Block::GROUPS + group);
  tiles.open(in);
  copy_queries<Block>(in, item, first_row, kv_head, smem_address(smem));
  tiles.fetch(in);
  const SmemAddress queries = smem_address(smem) + group * ROWS * ROW_BYTES;
  float4* const of_group = reinterpret_cast<float4*>(smem + Block::SCORES_AT) + group * 4 * 32;
  float4* const of_lane = of_group + threadIdx.x % 32;
  PartialOf<Block::COLUMNS> partial[1] = {PartialOf<Block::COLUMNS>::empty()};
  for (u32 tile = tiles.start / TILE * TILE; tile < tiles.end; tile += TILE) {
    const SmemAddress keys = tiles.take(in);
    const bool is_seen = rows.num_rows > 0 && tile < rows.end && tile + TILE > rows.start;
    if (is_seen) {
      float own[Block::STRIPS][4] = {};
      const u32 first_strip = share * Block::STRIPS;
      score_strips<Block::STRIPS>(queries, keys + first_strip * 8 * ROW_BYTES, own);
#pragma unroll
      for (u32 strip = 0; strip < Block::STRIPS; ++strip) {
        const float(&four)[4] = own[strip];
        of_lane[(first_strip + strip) * 32] = make_float4(four[0], four[1], four[2], four[3]);
      }
    }
    // Both ways to the values are a barrier: then the scores are there.
    SmemAddress values = keys;
    if (IS_LATENT) {
      __syncthreads();
    } else {
      values = tiles.take(in);
    }
    if (!is_seen) continue;
    float scores[1][4][4];
#pragma unroll
    for (u32 strip = 0; strip < 4; ++strip) {
      const float4 four = of_lane[strip * 32];
      scores[0][strip][0] = four.x, scores[0][strip][1] = four.y;
      scores[0][strip][2] = four.z, scores[0][strip][3] = four.w;
    }
    bound_and_mask(in, item, rows, kv_head, tile, scores[0]);
    softmax_step(in.exponent_factor(), scores, partial);
    add_values<Block>(scores[0], values, share * Block::PAIRS, partial[0]);
  }
  wait_async<0>();
  store_columns<Block>(in, item, rows, kv_head, share * Block::PAIRS, partial[0]);
}

// The second bound keeps ptxas from spilling for the sake of more warps.
#define WIDE_ATTENTION(name, ...)                                                           \
  KERNEL(BlockOf<__VA_ARGS__>::THREADS, 256 / BlockOf<__VA_ARGS__>::THREADS)                \
  name(const T* qkv, const Kv* k_cache, const Kv* v_cache, const AttentionWork* work,       \
       const u32* num_work, const u32* block_tables, T* out, AttentionParams params) {      \
    const u32 group_size = params.num_heads / params.num_kv_heads;                          \
    const u32 num_units = num_work[0] * params.num_kv_heads;                                \
    const Inputs in = {params, qkv, k_cache, v_cache, work, block_tables, out, group_size,  \
                       num_units};                                                          \
    attend<BlockOf<__VA_ARGS__>>(in);                                                       \
  }

// Rows of a block: named for them.
WIDE_ATTENTION(wide_attention_16, 1, 4)
EXPORT(wide_attention_16)
WIDE_ATTENTION(wide_attention_32, 2, 4)
EXPORT(wide_attention_32)
WIDE_ATTENTION(wide_attention_64, 4, 2)
EXPORT(wide_attention_64)
