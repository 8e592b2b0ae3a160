// The positions that tokens attend to: the best by their scores (index_scores.cu), upward; of equal
// ones the lowest. Or blocks of positions (index_maxima.cu), of each K and V head its own, and the
// one that the token is in. A token that sees no more than there are to choose takes all.
//
// The least of the scores that are chosen is found by digits of 8 bits, from the highest on: counts
// of integers, which are exact in any order.
#include "attention_work.cuh"

struct ChoiceParams {
  u32 num_chosen;
  u32 block_size;
  u32 first_row, score_stride;  // rows of scores begin with this row of the step
  u32 num_rows;                 // of the step
  u32 unit;                     // positions that are chosen together; num_chosen are whole ones
};

constexpr u32 THREADS = 256;
constexpr u32 NUM_DIGITS = 256;

// Bits in the order of scores: what is no number is the least, both zeros are one.
__device__ __forceinline__ u32 rank_of(float score) {
  const u32 bits = bit_cast<u32>((score != score ? -infinity() : score) + 0.0f);
  return bits >> 31 == 1 ? ~bits : bits | 1u << 31;
}

// What is chosen: all ranks above `rank`, and the first `num_equal` of those that are it.
struct Least {
  u32 rank, num_equal;
};

// The `num_chosen` best of some scores, of which there are more. All threads of the block.
__device__ __forceinline__ Least find_least(const float* scores, u32 num_positions,
                                            u32 num_chosen) {
  __shared__ u32 counts[NUM_DIGITS];
  __shared__ u32 found[2];
  u32 rank = 0, known = 0, wanted = num_chosen;
  for (u32 shift = 32; shift > 0;) {
    shift -= 8;
    for (u32 i = threadIdx.x; i < NUM_DIGITS; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < num_positions; i += blockDim.x) {
      const u32 own = rank_of(scores[i]);
      if ((own & known) == rank) atomicAdd(&counts[own >> shift & 0xFF], 1u);
    }
    __syncthreads();
    if (threadIdx.x < WARP_SIZE) {
      // This lane has eight digits, the first lane the highest ones.
      const u32 highest = NUM_DIGITS - 1 - 8 * threadIdx.x;
      u32 own = 0;
      for (u32 i = 0; i < 8; ++i) own += counts[highest - i];
      u32 above = warp_prefix_sum(own) - own;
      if (above < wanted && wanted <= above + own) {
        u32 digit = highest;
        for (; above + counts[digit] < wanted; --digit) above += counts[digit];
        found[0] = digit, found[1] = wanted - above;
      }
    }
    __syncthreads();
    rank |= found[0] << shift, known |= 0xFFu << shift, wanted = found[1];
    __syncthreads();
  }
  return {rank, wanted};
}

// The sum of `value` over the threads before this one, and over all; `scratch` is free again after
// the next barrier.
__device__ __forceinline__ u32 prefix_of_block(u32 value, u32 (&scratch)[WARP_SIZE], u32& total) {
  const u32 upto = warp_prefix_sum(value), warp = threadIdx.x / WARP_SIZE;
  if (threadIdx.x % WARP_SIZE == WARP_SIZE - 1) scratch[warp] = upto;
  __syncthreads();
  u32 before = upto - value;
  total = 0;
  for (u32 i = 0; i < THREADS / WARP_SIZE; ++i) {
    before += i < warp ? scratch[i] : 0;
    total += scratch[i];
  }
  return before;
}

// Calls put(place, index) for the `num_chosen` best of some scores, of which there are more, upward
// by their indices. All threads of the block.
template <class Put>
__device__ __forceinline__ void take_best(const float* scores, u32 num, u32 num_chosen,
                                          const Put& put) {
  __shared__ u32 scratch[WARP_SIZE];
  const Least least = find_least(scores, num, num_chosen);
  u32 num_above = 0, num_equal = 0;
  for (u32 first = 0; first < num; first += THREADS) {
    const u32 index = first + threadIdx.x;
    const u32 rank = index < num ? rank_of(scores[index]) : 0;
    const bool is_above = index < num && rank > least.rank;
    const bool is_equal = index < num && rank == least.rank;
    u32 total;
    // Both counts in one number: there are fewer than 2^16 threads.
    const u32 own = (is_equal ? 1u << 16 : 0) | (is_above ? 1u : 0);
    const u32 before = prefix_of_block(own, scratch, total);
    const u32 above = num_above + (before & 0xFFFF), equal = num_equal + (before >> 16);
    const u32 place = above + (equal < least.num_equal ? equal : least.num_equal);
    if (is_above || (is_equal && equal < least.num_equal)) put(place, index);
    num_above += total & 0xFFFF, num_equal += total >> 16;
    __syncthreads();
  }
}

// scores (rows, score_stride), row_tables, positions and slot_mapping (num_tokens), block_tables as
// index_scores.cu has them. chosen (num_tokens, num_chosen): slots of the cache, as a block table
// of blocks of one position. work (num_work[0]): a unit of attention for each token, none for rows
// that pad.
// Launch: a block of 256 threads for each row, no dynamic shared memory.
KERNEL(THREADS)
choose_positions(const float* scores, const u32* row_tables, const u32* block_tables,
                 const u32* positions, const u32* slot_mapping, u32* chosen, AttentionWork* work,
                 u32* num_work, ChoiceParams params) {
  const u32 token = params.first_row + blockIdx.x;
  const u32 num_positions = positions[token] + 1;
  const u32 num_chosen = params.num_chosen;
  const bool is_token = slot_mapping[token] != NO_SLOT;
  if (threadIdx.x == 0) {
    const u32 num = num_positions < num_chosen ? num_positions : num_chosen;
    work[token] = {token, is_token ? 1u : 0u, token * num_chosen, num - 1, 0, num, NO_SLOT};
    if (token == 0) num_work[0] = params.num_rows;
  }
  if (!is_token) return;
  const u32* block_table = block_tables + row_tables[token];
  u32* const to = chosen + u64(token) * num_chosen;
  const auto slot_of = [&](u32 position) {
    return block_table[position / params.block_size] * params.block_size +
           position % params.block_size;
  };
  if (num_positions <= num_chosen) {
    for (u32 i = threadIdx.x; i < num_positions; i += blockDim.x) to[i] = slot_of(i);
    return;
  }
  take_best(scores + u64(blockIdx.x) * params.score_stride, num_positions, num_chosen,
            [&](u32 place, u32 position) { to[place] = slot_of(position); });
}
EXPORT(choose_positions)

// The same of blocks: scores (rows, num_heads, score_stride) of those before the token's own.
// chosen (num_tokens, num_heads, num_chosen / block_size): blocks of the cache, a table for each
// head. A token attends to as many positions with each head, the last of which is its own.
// Launch: a block of 256 threads for each row and head (grid.y), no dynamic shared memory.
KERNEL(THREADS)
choose_blocks(const float* scores, const u32* row_tables, const u32* block_tables,
              const u32* positions, const u32* slot_mapping, u32* chosen, AttentionWork* work,
              u32* num_work, ChoiceParams params) {
  const u32 token = params.first_row + blockIdx.x, head = blockIdx.y, num_heads = gridDim.y;
  const u32 position = positions[token], unit = params.unit;
  const u32 own = position / unit, num_before = params.num_chosen / unit - 1;
  const u32 table_len = params.num_chosen / params.block_size;
  const bool is_token = slot_mapping[token] != NO_SLOT;
  const bool sees_all = own <= num_before;
  if (threadIdx.x == 0 && head == 0) {
    const u32 last = sees_all ? position : num_before * unit + position % unit;
    const u32 table = token * num_heads * table_len;
    work[token] = {token, is_token ? 1u : 0u, table, last, 0, last + 1, NO_SLOT};
    if (token == 0) num_work[0] = params.num_rows;
  }
  if (!is_token) return;
  const u32* block_table = block_tables + row_tables[token];
  u32* const to = chosen + (u64(token) * num_heads + head) * table_len;
  const u32 last_block = position / params.block_size, per_unit = unit / params.block_size;
  if (sees_all) {
    for (u32 i = threadIdx.x; i <= last_block; i += blockDim.x) to[i] = block_table[i];
    return;
  }
  const u32 first = own * per_unit;
  for (u32 i = threadIdx.x; i < per_unit && first + i <= last_block; i += blockDim.x) {
    to[num_before * per_unit + i] = block_table[first + i];
  }
  if (num_before == 0) return;
  take_best(scores + (u64(blockIdx.x) * num_heads + head) * params.score_stride, own, num_before,
            [&](u32 place, u32 index) {
              for (u32 i = 0; i < per_unit; ++i) {
                to[place * per_unit + i] = block_table[index * per_unit + i];
              }
            });
}
EXPORT(choose_blocks)
