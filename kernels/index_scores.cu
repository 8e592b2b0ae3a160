// Scores of an indexer: of tokens for the positions up to their own. choose_positions.cu takes the
// best.
//
// A score is the sum over heads of factor * relu(q k * scale) * factor_scale. bf16 and f16 go
// through tensor cores, 16 heads by 8 positions at a time: a product is a sum over the head in
// steps of 16 upward, and a score the sum over heads 16 apart, upward, and then over 16 of them in
// one order. f32 is summed upward, over the head and over heads.
#include "ptx.cuh"

struct IndexParams {
  u32 num_heads, num_chosen;
  u32 block_size;  // of the keys
  u32 query_stride, factor_stride, factor_column;
  u32 first_row, score_stride;  // rows of scores begin with this row of the step
  float scale, factor_scale;
};

constexpr u32 WARPS = 4;
constexpr u32 STEPS = (HEAD_DIM + 15) / 16;
constexpr u32 STRIPS = 4;
// Positions of a warp at a time.
constexpr u32 SPAN = 8 * STRIPS;

// The row that a block scores for.
struct IndexRow {
  const T *queries, *factors, *keys;
  const u32* block_table;
  float* scores;
  u32 num_positions;

  __device__ __forceinline__ const T* key(const IndexParams& params, u32 position) const {
    const u64 block = block_table[position / params.block_size];
    return keys + (block * params.block_size + position % params.block_size) * HEAD_DIM;
  }
};

// Elements `column` and the next one of a row of HEAD_DIM, zeros behind its end and of no row.
template <class E>
__device__ __forceinline__ u32 load_pair(const E* row, bool is_row, u32 column) {
  if constexpr (HEAD_DIM % 2 == 0) {
    const bool is_read = is_row && column < HEAD_DIM;
    return is_read ? *reinterpret_cast<const u32*>(row + column) : 0;
  } else {
    const u32 low = is_row && column < HEAD_DIM ? bits_of(row[column]) : 0;
    const u32 high = is_row && column + 1 < HEAD_DIM ? bits_of(row[column + 1]) : 0;
    return high << 16 | low;
  }
}

// Queries as fragments (groups, STEPS, 32 lanes, 4 words), and factors (16 groups) behind them.
template <class E>
__device__ __forceinline__ void load_queries(const IndexRow& row, const IndexParams& params,
                                             u32 groups, u32* fragments, float* factors) {
  for (u32 index = threadIdx.x; index < groups * STEPS * 128; index += blockDim.x) {
    const u32 word = index % 4, lane = index / 4 % 32, step = index / 128 % STEPS;
    const u32 head = index / 128 / STEPS * 16 + lane / 4 + word % 2 * 8;
    const u32 column = step * 16 + word / 2 * 8 + lane % 4 * 2;
    const bool is_head = head < params.num_heads;
    const T* query = row.queries + u64(is_head ? head : 0) * HEAD_DIM;
    fragments[index] = load_pair<E>(query, is_head, column);
  }
  for (u32 head = threadIdx.x; head < 16 * groups; head += blockDim.x) {
    const float factor = head < params.num_heads ? to_float(row.factors[head]) : 0.0f;
    factors[head] = factor * params.factor_scale;
  }
  __syncthreads();
}

// The scores of a warp's positions from `first` on.
template <class E>
__device__ __forceinline__ void score_span(const IndexRow& row, const IndexParams& params,
                                           u32 groups, const u32* fragments,
                                           const float* factors, u32 first) {
  const u32 lane = threadIdx.x % 32;
  u32 b[STRIPS][STEPS][2];
#pragma unroll
  for (u32 strip = 0; strip < STRIPS; ++strip) {
    const u32 position = first + strip * 8 + lane / 4;
    const bool is_row = position < row.num_positions;
    const T* key = row.key(params, is_row ? position : 0);
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
      const u32 column = step * 16 + lane % 4 * 2;
      b[strip][step][0] = load_pair<E>(key, is_row, column);
      b[strip][step][1] = load_pair<E>(key, is_row, column + 8);
    }
  }
  float sums[STRIPS][2] = {};
  for (u32 group = 0; group < groups; ++group) {
    float products[STRIPS][4] = {};
#pragma unroll
    for (u32 step = 0; step < STEPS; ++step) {
      const uint4 four =
          reinterpret_cast<const uint4*>(fragments)[(group * STEPS + step) * 32 + lane];
      const u32 a[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (u32 strip = 0; strip < STRIPS; ++strip) {
        mma<E>(products[strip], a, b[strip][step][0], b[strip][step][1]);
      }
    }
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
      const float factor = factors[group * 16 + lane / 4 + 8 * half];
#pragma unroll
      for (u32 strip = 0; strip < STRIPS; ++strip) {
        for (u32 i = 0; i < 2; ++i) {
          const float product = fmaxf(products[strip][2 * half + i] * params.scale, 0.0f);
          sums[strip][i] = fmaf(product, factor, sums[strip][i]);
        }
      }
    }
  }
#pragma unroll
  for (u32 strip = 0; strip < STRIPS; ++strip) {
    for (u32 i = 0; i < 2; ++i) {
      float sum = sums[strip][i];
      for (u32 step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(FULL_WARP, sum, step);
      const u32 position = first + strip * 8 + lane % 4 * 2 + i;
      if (lane < 4 && position < row.num_positions) row.scores[position] = sum;
    }
  }
}

__device__ __forceinline__ float exact_score(const IndexRow& row, const IndexParams& params,
                                             u32 position) {
  const T* key = row.key(params, position);
  float score = 0.0f;
  for (u32 head = 0; head < params.num_heads; ++head) {
    const T* query = row.queries + u64(head) * HEAD_DIM;
    float product = 0.0f;
#pragma unroll 4
    for (u32 i = 0; i < HEAD_DIM; ++i) {
      product = fmaf(to_float(query[i]), to_float(key[i]), product);
    }
    const float factor = to_float(row.factors[head]) * params.factor_scale;
    score = fmaf(fmaxf(product * params.scale, 0.0f), factor, score);
  }
  return score;
}

// queries (num_tokens, query_stride): first num_heads * HEAD_DIM elements. factors (num_tokens,
// factor_stride), from factor_column on. keys (num_blocks, block_size, HEAD_DIM). row_tables
// (num_tokens): where in block_tables a row's blocks are. scores (rows, score_stride): of rows that
// see more than num_chosen positions.
// Launch: 128 threads, dynamic shared memory for fragments and factors (none of f32). Grid: rows,
// any number of blocks for each.
KERNEL(32 * WARPS)
index_scores(const T* queries, const T* factors, const T* keys, const u32* row_tables,
             const u32* block_tables, const u32* positions, float* scores, IndexParams params) {
  DYN_SMEM(u32, fragments);
  const u64 token = params.first_row + blockIdx.x;
  IndexRow row;
  row.num_positions = positions[token] + 1;
  if (row.num_positions <= params.num_chosen) return;
  row.queries = queries + token * params.query_stride;
  row.factors = factors + token * params.factor_stride + params.factor_column;
  row.keys = keys;
  row.block_table = block_tables + row_tables[token];
  row.scores = scores + u64(blockIdx.x) * params.score_stride;
  if constexpr (sizeof(T) == 4) {
    const u32 step = gridDim.y * blockDim.x;
    u32 position = blockIdx.y * blockDim.x + threadIdx.x;
    for (; position < row.num_positions; position += step) {
      row.scores[position] = exact_score(row, params, position);
    }
  } else {
    const u32 groups = (params.num_heads + 15) / 16;
    float* const of_heads = reinterpret_cast<float*>(fragments + groups * STEPS * 128);
    load_queries<T>(row, params, groups, fragments, of_heads);
    u32 first = (blockIdx.y * WARPS + threadIdx.x / 32) * SPAN;
    for (; first < row.num_positions; first += gridDim.y * WARPS * SPAN) {
      score_span<T>(row, params, groups, fragments, of_heads, first);
    }
  }
}
EXPORT(index_scores)
