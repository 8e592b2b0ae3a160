// Scores of an indexer for blocks of positions: of each head the largest product of a token's query
// with a key of the block. choose_positions.cu takes the best.
//
// A product is summed upward over the head in f32, whatever the elements are.
#include "common.cuh"

struct MaximaParams {
  u32 num_chosen;
  u32 block_size;  // of the keys
  u32 unit;        // positions of a block that is scored
  u32 query_stride;
  u32 first_row, score_stride;  // rows of scores begin with this row of the step
};

constexpr u32 WARPS = 4;

// queries (num_tokens, query_stride): first NUM_HEADS * HEAD_DIM elements. keys (num_blocks,
// block_size, HEAD_DIM). row_tables (num_tokens): where in block_tables a row's blocks are. scores
// (rows, NUM_HEADS, score_stride): of rows that see more than num_chosen positions, for the blocks
// before their own.
// Launch: 128 threads, no dynamic shared memory. Grid: rows, any number of blocks for each. A warp
// has a block of positions at a time.
KERNEL(32 * WARPS)
index_maxima(const T* queries, const T* keys, const u32* row_tables, const u32* block_tables,
             const u32* positions, float* scores, MaximaParams params) {
  const u64 token = params.first_row + blockIdx.x;
  const u32 position = positions[token];
  if (position < params.num_chosen) return;
  const T* query = queries + token * params.query_stride;
  const u32* block_table = block_tables + row_tables[token];
  float* const of_row = scores + u64(blockIdx.x) * NUM_HEADS * params.score_stride;
  const u32 own = position / params.unit, lane = threadIdx.x % WARP_SIZE;
  for (u32 block = blockIdx.y * WARPS + threadIdx.x / WARP_SIZE; block < own;
       block += gridDim.y * WARPS) {
    float largest[NUM_HEADS];
#pragma unroll
    for (u32 head = 0; head < NUM_HEADS; ++head) largest[head] = -infinity();
    for (u32 i = lane; i < params.unit; i += WARP_SIZE) {
      const u32 at = block * params.unit + i;
      const u64 slot = u64(block_table[at / params.block_size]) * params.block_size +
                       at % params.block_size;
      const T* key = keys + slot * HEAD_DIM;
      float products[NUM_HEADS] = {};
#pragma unroll 4
      for (u32 column = 0; column < HEAD_DIM; ++column) {
        const float value = to_float(key[column]);
#pragma unroll
        for (u32 head = 0; head < NUM_HEADS; ++head) {
          products[head] = fmaf(to_float(query[head * HEAD_DIM + column]), value, products[head]);
        }
      }
      // What is no number is never larger.
#pragma unroll
      for (u32 head = 0; head < NUM_HEADS; ++head) {
        largest[head] = fmaxf(largest[head], products[head]);
      }
    }
#pragma unroll
    for (u32 head = 0; head < NUM_HEADS; ++head) {
      const float all = warp_reduce<Max>(largest[head]);
      if (lane == 0) of_row[u64(head) * params.score_stride + block] = all;
    }
  }
}
EXPORT(index_maxima)
