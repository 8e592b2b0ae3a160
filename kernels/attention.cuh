// What the kernels of attention on tensor cores share: rows, tiles of keys and values in shared
// memory, and the steps of a row's computation, in an order that no grid or tile changes.
#pragma once

#include "attention_params.cuh"
#include "ptx.cuh"

// What the caches hold: T, or E4M3 without a scale. What is multiplied: T, or f16, which every
// number of E4M3 is one of.
#if KV_FP8
constexpr bool IS_FP8 = true;
using Kv = u8;
using Operand = f16;
#else
constexpr bool IS_FP8 = false;
using Kv = T;
using Operand = T;
#endif
// Whether rows of queries take a power of two to fit into f16.
constexpr bool ARE_FITTED = IS_FP8 && IS_SAME<T, bf16>;
// Neighbouring elements of a row that a lane of four has: in queries, keys and values alike.
constexpr u32 LANE_COLUMNS = IS_FP8 ? 4 : 2;

constexpr u32 SPLIT = 256;
constexpr u32 TILE = 32;
constexpr u32 ROWS = 16;
// A head as the tensor cores take it, in whole steps; what is past HEAD_DIM is zero.
constexpr u32 PADDED_DIM = (HEAD_DIM + 15) / 16 * 16;
// The eight rows of a matrix fall on eight different groups of banks: chunks of 16 bytes are
// permuted by row, or the row has an odd number of them.
constexpr bool IS_SWIZZLED = PADDED_DIM % 64 == 0;
constexpr u32 ROW_BYTES = PADDED_DIM * 2 + (IS_SWIZZLED ? 0 : 16);
constexpr u32 TILE_BYTES = TILE * ROW_BYTES;
// A tile as it comes from an E4M3 cache.
constexpr u32 NARROW_BYTES = TILE * HEAD_DIM;
constexpr u32 DEPTH_STEPS = PADDED_DIM / 16;
static_assert(!IS_SWIZZLED || TILE_BYTES % 128 == 0, "the permutation is of address bits");
constexpr float LOG2_E = 1.44269504088896340736f;
static_assert(HEAD_DIM % (IS_FP8 ? 16 : 8) == 0, "no such head_dim");

// The parameters of the kernels. qkv (num_tokens, qkv_stride): the first num_heads * HEAD_DIM
// elements of a row are the queries. Caches (num_blocks, cache_kv_heads, block_size, HEAD_DIM),
// work (num_work), block_tables (num_seqs, max_blocks_per_seq), out (num_tokens, num_heads *
// V_DIM).
struct Inputs : AttentionParams {
  const T* qkv;
  const Kv *k_cache, *v_cache;
  const AttentionWork* work;
  const u32* block_tables;
  T* out;
  u32 group_size;
  u32 num_units;  // not of prefill
  float* slots;   // where splits are kept that are merged later
  const SharedToken* shared_tokens;

  // Whether the soft cap or biases apply `scale`, which all tiles need then.
  __device__ __forceinline__ bool are_scaled_first() const {
    return HAS_ALIBI || HAS_BIAS || soft_cap > 0.0f;
  }
  // Turns scores into exponents of 2.
  __device__ __forceinline__ float exponent_factor() const {
    return are_scaled_first() ? LOG2_E : scale * LOG2_E;
  }
  // Where the 16 rows from `position` on begin in a cache: blocks are multiples of 16, so that such
  // rows are one piece. `block_head`: block * cache_kv_heads + kv_head.
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
    start = in.first_seen(first_position);
    end = num_rows > 0 ? in.last_seen(item, last_position(in, item)) + 1 : start;
  }
  // Of the last row, of which there is one.
  __device__ __forceinline__ u32 last_position(const Inputs& in, const AttentionWork& item) const {
    return item.position + (first_row + num_rows - 1) / in.group_size;
  }
  // Where the query head of a row begins in an array of tokens.
  __device__ __forceinline__ u64 offset(const Inputs& in, const AttentionWork& item, u32 kv_head,
                                        u32 in_rows, u32 token_stride) const {
    const u32 row = first_row + in_rows, head = kv_head * in.group_size + row % in.group_size;
    return u64(item.token + row / in.group_size) * token_stride + head * HEAD_DIM;
  }
  __device__ __forceinline__ bool do_all_see(const Inputs& in, const AttentionWork& item,
                                             u32 tile) const {
    // Else a row sees up to itself.
    const u32 last = SEES_BEHIND ? last_position(in, item) : end - 1;
    return tile + TILE - 1 <= in.last_seen(item, first_position) && tile >= in.first_seen(last);
  }
};

// The online softmax of 16 rows over some positions, in the fragments of mma: this lane has a part
// of rows lane / 4 and lane / 4 + 8, and of `columns` columns of their values.
template <u32 columns>
struct PartialOf {
  float max[2], sum[2];
  float values[columns / 8][4];

  static __device__ __forceinline__ PartialOf empty() {
    return {{-infinity(), -infinity()}, {}, {}};
  }
};

// What turns scores into exponents of 2: of all rows, or of each of this lane's rows its own.
template <u32 groups>
struct RowFactors {
  float of[2 * groups];
};
__device__ __forceinline__ float of_row(float factor, u32) { return factor; }
template <u32 groups>
__device__ __forceinline__ float of_row(const RowFactors<groups>& factors, u32 row) {
  return factors.of[row];
}

// Queries of `groups` times 16 rows as fragments; rows past the last one are zero. The last
// `shared_groups` are in shared memory. With E4M3 lane j of four has elements 4 j to 4 j + 3 of a
// step, as it has of a key.
template <u32 groups, u32 shared_groups>
struct Queries {
  static constexpr u32 OWN = groups - shared_groups;
  u32 words[OWN > 0 ? OWN : 1][DEPTH_STEPS][4];
  uint4* shared;  // (group * DEPTH_STEPS + step) * 32 + lane: each lane reads what it wrote
  // Of fitted rows: what their scores are multiplied by.
  float powers[ARE_FITTED ? groups : 1][2];

  // `find(row, from, is_row)`: where a row of the group begins, and whether there is one.
  template <class Find>
  __device__ __forceinline__ void load(u32 group, const Find& find) {
    // What the stores of texts know of a row is worked out again there: heads of 256 spill else.
    const u32 lane = (SEES_BEHIND ? hide(threadIdx.x) : threadIdx.x) % 32;
    const T* from[2];
    bool is_row[2];
    for (u32 i = 0; i < 2; ++i) {
      find(lane / 4 + 8 * i, from[i], is_row[i]);
      from[i] += lane % 4 * LANE_COLUMNS;
    }
#pragma unroll
    for (u32 step = 0; step < DEPTH_STEPS; ++step) {
      u32 to[4];
      for (u32 i = 0; i < 4; ++i) {
        const T* pair = from[i % 2] + step * 16 + i / 2 * (IS_FP8 ? 2 : 8);
        const bool is_read = is_row[i % 2] && step * 16 + i / 2 * 8 < HEAD_DIM;
        to[i] = is_read ? *reinterpret_cast<const u32*>(pair) : 0;
      }
      put(group, step, lane, to);
    }
    if (ARE_FITTED) fit(group);
  }
  // Turns a group of bf16 into f16. A row's largest number comes to 2^15 at least and below 2^16,
  // which loses nothing of those that are up to 2^32 times smaller. Infinities and NaN stay.
  __device__ __forceinline__ void fit(u32 group) {
    u32 largest[2] = {}, a[4];
#pragma unroll
    for (u32 step = 0; step < DEPTH_STEPS; ++step) {
      fragment(group, step, a);
      for (u32 i = 0; i < 4; ++i) {
        const float pair[2] = {bit_cast<float>(a[i] << 16), bit_cast<float>(a[i] & 0xFFFF0000)};
        largest[i % 2] = largest_size(largest[i % 2], pair);
      }
    }
    float inverse[2];
    for (u32 i = 0; i < 2; ++i) {
      // Smaller ones would take a power that is none of f32; they lose nothing without.
      const u32 exponent = Max()(warp_reduce<Max>(largest[i], 4) >> 23, 16u);
      powers[group][i] = bit_cast<float>((exponent - 15) << 23);
      inverse[i] = bit_cast<float>((269 - exponent) << 23);
    }
#pragma unroll
    for (u32 step = 0; step < DEPTH_STEPS; ++step) {
      fragment(group, step, a);
      for (u32 i = 0; i < 4; ++i) {
        a[i] = narrow_f16x2(bit_cast<float>(a[i] << 16) * inverse[i % 2],
                            bit_cast<float>(a[i] & 0xFFFF0000) * inverse[i % 2]);
      }
      put(group, step, threadIdx.x % 32, a);
    }
  }
  // What turns scores of this lane's rows into exponents of 2.
  __device__ __forceinline__ RowFactors<groups> exponent_factors(const Inputs& in) const {
    RowFactors<groups> factors;
    for (u32 i = 0; i < 2 * groups; ++i) {
      const bool is_fitted = ARE_FITTED && !in.are_scaled_first();
      const float power = is_fitted ? powers[ARE_FITTED ? i / 2 : 0][i % 2] : 1.0f;
      factors.of[i] = in.exponent_factor() * power;
    }
    return factors;
  }
  // Before the soft cap or biases apply `scale`.
  __device__ __forceinline__ void unfit(const Inputs& in, u32 group, float (&scores)[4][4]) const {
    if (ARE_FITTED && in.are_scaled_first()) {
      for (u32 i = 0; i < 16; ++i) {
        scores[i / 4][i % 4] *= powers[ARE_FITTED ? group : 0][i % 4 / 2];
      }
    }
  }
  __device__ __forceinline__ void put(u32 group, u32 step, u32 lane, const u32 (&a)[4]) {
    for (u32 i = 0; i < 4; ++i) {
      if (group < OWN) words[group < OWN ? group : 0][step][i] = a[i];
    }
    if (group >= OWN) {
      shared[((group - OWN) * DEPTH_STEPS + step) * 32 + lane] =
          make_uint4(a[0], a[1], a[2], a[3]);
    }
  }
  __device__ __forceinline__ void fragment(u32 group, u32 step, u32 (&a)[4]) const {
    if (group >= OWN) {
      const uint4 four = shared[((group - OWN) * DEPTH_STEPS + step) * 32 + threadIdx.x % 32];
      a[0] = four.x, a[1] = four.y, a[2] = four.z, a[3] = four.w;
    } else {
      for (u32 i = 0; i < 4; ++i) a[i] = words[group < OWN ? group : 0][step][i];
    }
  }
};

// Those of a work item.
template <class Queries>
__device__ __forceinline__ void load_queries(const Inputs& in, const AttentionWork& item,
                                             const RowGroup& rows, u32 kv_head, u32 group,
                                             Queries& queries) {
  queries.load(group, [&](u32 row, const T*& from, bool& is_row) {
    from = in.qkv + rows.offset(in, item, kv_head, row, in.qkv_stride);
    is_row = row < rows.num_rows;
  });
}

// Where 16 bytes of a row are in a tile.
__device__ __forceinline__ u32 chunk_offset(u32 row, u32 chunk) {
  return row * ROW_BYTES + (IS_SWIZZLED ? chunk ^ row % 8 : chunk) * 16;
}
// `chunk_offset` at step i of `at`, the address at step 0; a step is two chunks.
__device__ __forceinline__ SmemAddress step_address(SmemAddress at, u32 step) {
  return IS_SWIZZLED ? (at ^ SmemAddress(step % 4 * 32)) + step / 4 * 128 : at + step * 32;
}

// scores (16, 32) += queries (16, HEAD_DIM) * keys (32, HEAD_DIM)^T, for several groups of rows.
template <u32 groups, u32 shared_groups>
__device__ __forceinline__ void score_tile(const Queries<groups, shared_groups>& queries,
                                           SmemAddress keys, float (&scores)[groups][4][4]) {
  const u32 lane = hide(threadIdx.x) % 32;
  const SmemAddress at = keys + chunk_offset(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll(DEPTH_STEPS > 8 ? 4 : DEPTH_STEPS)
  for (u32 step = 0; step < DEPTH_STEPS; ++step) {
    u32 a[groups][4];
#pragma unroll
    for (u32 g = 0; g < groups; ++g) queries.fragment(g, step, a[g]);
#pragma unroll
    for (u32 pair = 0; pair < 2; ++pair) {
      u32 b[4];
      ldmatrix(step_address(at, step) + pair * 16 * ROW_BYTES, b);
#pragma unroll
      for (u32 g = 0; g < groups; ++g) {
        mma<Operand>(scores[g][2 * pair], a[g], b[0], b[1]);
        mma<Operand>(scores[g][2 * pair + 1], a[g], b[2], b[3]);
      }
    }
  }
}

// Scales scores, if the soft cap has not, and adds their biases.
__device__ __forceinline__ void add_biases(const Inputs& in, const AttentionWork& item,
                                           const RowGroup& rows, u32 kv_head, u32 tile,
                                           float (&scores)[4][4]) {
  const float factor = in.soft_cap > 0.0f ? 1.0f : in.scale;
  for (u32 half = 0; half < 2; ++half) {
    // Rows past the last one are biased as that is; they are not written.
    const u32 in_rows = min(threadIdx.x % 32 / 4 + 8 * half, max(rows.num_rows, 1u) - 1);
    const u32 row = rows.first_row + in_rows;
    const u32 head = kv_head * in.group_size + row % in.group_size;
    const u32 position = item.position + row / in.group_size;
    if (HAS_BIAS) {
      // The table goes on behind the last position, to the end of its tile.
      const float* biases = in.bias_of(head, position, tile + threadIdx.x % 4 * 2);
      for (u32 i = 0; i < 8; ++i) {
        float& score = scores[i / 2][2 * half + i % 2];
        score = fmaf(score, factor, biases[i / 2 * 8 + i % 2]);
      }
      continue;
    }
    const float slope = in.biases[head];
    // Integers, so exact.
    const float first = float(int(tile + threadIdx.x % 4 * 2 - position));
    for (u32 i = 0; i < 8; ++i) {
      float& score = scores[i / 2][2 * half + i % 2];
      score = fmaf(slope, first + float(i / 2 * 8 + i % 2), score * factor);
    }
  }
}

__device__ __forceinline__ void bound(const Inputs& in, float (&scores)[4][4]) {
  if (in.soft_cap > 0.0f) {
    const float inner = in.scale / in.soft_cap;
#pragma unroll
    for (u32 i = 0; i < 16; ++i) {
      scores[i / 4][i % 4] = in.soft_cap * tanhf(scores[i / 4][i % 4] * inner);
    }
  }
}

// Soft cap, biases and mask. `tile`: the position of the tile's first key.
__device__ __forceinline__ void bound_and_mask(const Inputs& in, const AttentionWork& item,
                                               const RowGroup& rows, u32 kv_head, u32 tile,
                                               float (&scores)[4][4]) {
  bound(in, scores);
  if (HAS_ALIBI || HAS_BIAS) add_biases(in, item, rows, kv_head, tile, scores);
  if (rows.do_all_see(in, item, tile)) return;
  for (u32 half = 0; half < 2; ++half) {
    // Rows past the last one see what some row sees; they are not written.
    const u32 in_rows = min(threadIdx.x % 32 / 4 + 8 * half, max(rows.num_rows, 1u) - 1);
    const u32 own = item.position + (rows.first_row + in_rows) / in.group_size;
    const u32 first = in.first_seen(own), last = in.last_seen(item, own);
    for (u32 i = 0; i < 8; ++i) {
      const u32 position = tile + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
      float& score = scores[i / 2][2 * half + i % 2];
      score = position >= first && position <= last ? score : -infinity();
    }
  }
}

// What is taken from the exponents of a row whose weights are relative to `max`. Of one that has
// seen nothing yet every exponent is -inf - 0.
__device__ __forceinline__ float shift_of(float max) { return max == -infinity() ? 0.0f : max; }

// How far a score may exceed what its row's weights are relative to, in exponents of 2. A power of
// 2 loses no bit of a weight, and weights up to 256 are far from the end of f16, as are their sums
// from that of f32.
constexpr float MAX_EXCESS = 8.0f;

// With a branch around it two groups of heads of 120, and of 128 over E4M3, spill on sm_90a.
template <u32 groups>
constexpr bool ALWAYS_RESCALES =
    groups > 1 && (HEAD_DIM < PADDED_DIM || (ARE_FITTED && HEAD_DIM > 96));

// Scores become weights relative to the rows' `max`. Where a row's largest score exceeds that by
// more than MAX_EXCESS, its `max` becomes that score, and what was summed is rescaled. Gives
// whether something was.
template <u32 groups, u32 columns, class Factor>
__device__ __forceinline__ bool softmax_step(const Factor& factor, float (&scores)[groups][4][4],
                                             PartialOf<columns> (&partial)[groups]) {
  bool is_any_moved = false;
#pragma unroll
  for (u32 g = 0; g < groups; ++g) {
    PartialOf<columns>& rows = partial[g];
    float max[2];
    bool is_moved = false;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      float top = scores[g][0][2 * i];
      for (u32 n = 1; n < 8; ++n) top = fmaxf(top, scores[g][n / 2][2 * i + n % 2]);
      top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 1));
      top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 2));
      top *= of_row(factor, 2 * g + i);
      const bool exceeds = top > rows.max[i] + MAX_EXCESS;
      max[i] = exceeds ? top : rows.max[i];
      is_moved = is_moved || exceeds;
    }
    // Rescaling by 1 is exact, so that a row may or may not be rescaled for the sake of another.
    if (!ALWAYS_RESCALES<groups> && !__any_sync(FULL_WARP, is_moved)) continue;
    is_any_moved = true;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      const float rescale = exp2_approx(rows.max[i] - shift_of(max[i]));
      rows.max[i] = max[i];
      rows.sum[i] *= rescale;
#pragma unroll
      for (u32 n = 0; n < columns / 8; ++n) {
        rows.values[n][2 * i] *= rescale;
        rows.values[n][2 * i + 1] *= rescale;
      }
    }
  }
#pragma unroll
  for (u32 i = 0; i < 16 * groups; ++i) {
    float& score = scores[i / 16][i / 4 % 4][i % 4];
    const float of_score = of_row(factor, i / 16 * 2 + i % 4 / 2);
    score = exp2_approx(fmaf(score, of_score, -shift_of(partial[i / 16].max[i % 4 / 2])));
    partial[i / 16].sum[i % 4 / 2] += score;
  }
  return is_any_moved;
}

// Probabilities of 16 of a tile's positions, as the operand a of their product with values.
__device__ __forceinline__ void load_probabilities(const float (&scores)[4][4], u32 half,
                                                   u32 (&p)[4]) {
  for (u32 i = 0; i < 4; ++i) {
    const float* pair = &scores[2 * half + i / 2][i % 2 * 2];
    p[i] = narrow_x2<Operand>(pair[0], pair[1]);
  }
}

// Where `copy_tile` puts 16 bytes of a row: for kernels that read a tile with `chunk_offset`, or
// widen it (attention_e4m3.cuh).
struct TilePlace {
  static __device__ __forceinline__ u32 offset(u32 row, u32 chunk) {
    return IS_FP8 ? row * HEAD_DIM + chunk * 16 : chunk_offset(row, chunk);
  }
};

// Copies rows of keys or values, those between `start` and `end`, into a tile in shared memory; the
// others become zero, since what lies in unused slots (NaN perhaps) would survive a product with 0.
// So does what is past HEAD_DIM, which is another row's.
// `offsets`: of the first and the second 16 rows in `cache`. `thread` is one of `num_threads`.
template <u32 num_threads, class Place = TilePlace>
__device__ __forceinline__ void copy_tile(const Kv* cache, const u64 (&offsets)[2], u32 tile,
                                          u32 start, u32 end, u32 thread, SmemAddress to) {
  constexpr u32 NUM_ELEMENTS = 16 / sizeof(Kv), CHUNKS = PADDED_DIM / NUM_ELEMENTS;
  // Where a step is a number of whole rows, a thread's chunk and half are known per step.
  constexpr u32 STEP_ROWS = num_threads / CHUNKS;
  constexpr bool IS_EVEN = num_threads % CHUNKS == 0 && STEP_ROWS > 0 && 16 % STEP_ROWS == 0;
  const u32 first_row = thread / CHUNKS, first_chunk = thread % CHUNKS;
  const u32 own = IS_EVEN ? first_row * HEAD_DIM + first_chunk * NUM_ELEMENTS : 0;
  const Kv* halves[2] = {cache + offsets[0] + own, cache + offsets[1] + own};
#pragma unroll(HEAD_DIM > 128 ? 4 : 16)
  for (u32 step = 0; step * num_threads < TILE * CHUNKS; ++step) {
    const u32 index = thread + step * num_threads;
    const u32 row = IS_EVEN ? first_row + step * STEP_ROWS : index / CHUNKS;
    const u32 chunk = IS_EVEN ? first_chunk : index % CHUNKS;
    if (TILE * CHUNKS % num_threads != 0 && row >= TILE) break;
    const bool is_second = IS_EVEN ? step * STEP_ROWS >= 16 : row >= 16;
    const u32 in_half = IS_EVEN ? step * STEP_ROWS % 16 * HEAD_DIM
                                : row % 16 * HEAD_DIM + chunk * NUM_ELEMENTS;
    const Kv* from = (is_second ? halves[1] : halves[0]) + in_half;
    const bool is_padding = HEAD_DIM < PADDED_DIM && chunk * NUM_ELEMENTS >= HEAD_DIM;
    const bool is_valid = tile + row - start < (is_padding ? 0 : end - start);
    copy_async_16(to + Place::offset(row, chunk), from, is_valid);
  }
}
