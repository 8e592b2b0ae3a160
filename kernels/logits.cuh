// What sampling and logprobs share: one block looks at one row of logits.
//
// A row is cut into segments of 512 tokens. One pass over the row leaves each segment's maximum and
// its share of the probability; later passes read only the segments that matter. Weights, exp(logit
// - maximum), are integers, so that sums are exact and do not depend on who adds first.
#pragma once

#include "common.cuh"

constexpr u32 SEGMENT = 512;
// Tokens of a segment that one lane takes: four groups of four consecutive ones.
constexpr u32 PER_LANE = SEGMENT / WARP_SIZE;
// Bounds the vocabulary to less than 524288 (`MAX_GPU_VOCAB_SIZE`, which is checked at load).
constexpr u32 MAX_SEGMENTS = 1024;
// Likely tokens that are sorted in shared memory.
constexpr u32 MAX_CANDIDATES = 4096;
// Weight of the most likely token, 2^45: fewer than 2^19 of them fit in 64 bits.
constexpr float UNIT = 0x1p45f;
constexpr u32 ANY_TOKEN = 0xFFFFFFFFu;

// A row of logits, divided by a temperature as it is read.
struct Row {
  const float* logits;  // (size)
  u32 size;
  float temperature;

  __device__ __forceinline__ u32 num_segments() const { return (size + SEGMENT - 1) / SEGMENT; }

  __device__ __forceinline__ float scaled(float logit) const {
    return temperature == 1.0f ? logit : logit / temperature;
  }
};

// How many tokens a cut keeps, and their weight.
struct Kept {
  u32 count;
  u64 mass;
};

// What the block knows of its row. Here rather than in registers, which passes over the row need.
struct Scratch {
  Row row;
  float max;  // of the row, scaled
  u64 candidates[MAX_CANDIDATES];
  u64 segment_masses[MAX_SEGMENTS];
  u32 segment_keys[MAX_SEGMENTS];
  u64 sums[WARP_SIZE];
  u64 found[2];
  u32 num_candidates;
  Kept kept;
};

// Integers in the order of the floats; equal floats (0 and -0) have equal keys.
__device__ __forceinline__ u32 ordered(float x) {
  const u32 bits = bit_cast<u32>(x + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000;
}

__device__ __forceinline__ float from_ordered(u32 key) {
  return bit_cast<float>(key >> 31 ? key & 0x7FFFFFFF : ~key);
}

constexpr u32 MINUS_INFINITY_KEY = 0x007FFFFF;

// Such that ascending order is most likely first, ties by lower token.
__device__ __forceinline__ u64 rank_key(u32 key, u32 token) { return u64(~key) << 32 | token; }
__device__ __forceinline__ u32 key_of(u64 rank_key) { return ~u32(rank_key >> 32); }

__device__ __forceinline__ u64 weight(float x, float max) { return u64(expf(x - max) * UNIT); }

__device__ __forceinline__ u32 warp_index() { return threadIdx.x / WARP_SIZE; }
__device__ __forceinline__ u32 num_warps() { return blockDim.x / WARP_SIZE; }
__device__ __forceinline__ u32 lane_index() { return threadIdx.x % WARP_SIZE; }

// Token of a lane's i-th logit in a segment.
__device__ __forceinline__ u32 token_of(u32 segment, u32 i) {
  return segment * SEGMENT + i / 4 * (SEGMENT / 4) + lane_index() * 4 + i % 4;
}

// One warp reads a segment; -inf past the end of the row.
__device__ __forceinline__ void load_segment(Row row, u32 segment, float (&x)[PER_LANE]) {
  const bool wide = is_wide<4>(row.logits, row.size);
#pragma unroll
  for (u32 i = 0; i < PER_LANE; i += 4) {
    float four[4];
    load_part(row.logits, token_of(segment, i), row.size, wide, four);
#pragma unroll
    for (u32 j = 0; j < 4; ++j) {
      x[i + j] = token_of(segment, i + j) < row.size ? four[j] : -infinity();
    }
  }
}

// Sum over the block, in any order: exact.
__device__ __forceinline__ u64 block_sum(u64 value, Scratch& scratch) {
  __syncthreads();
  return block_reduce<Sum>(value, scratch.sums);
}

__device__ __forceinline__ u64 block_max(u64 value, Scratch& scratch) {
  __syncthreads();
  return block_reduce<Max>(value, scratch.sums);
}

struct Survey {
  bool is_bad;         // the row has a NaN or +inf
  bool is_all_masked;  // the row has nothing but -inf
};

// One pass over the row: leaves its maximum in `max`, the segments' maxima in `segment_keys` and,
// if wanted, their weights in `segment_masses`. NaN and infinities are looked for before the
// division.
__device__ NOINLINE Survey survey(bool wants_masses, Scratch& scratch) {
  const Row row = scratch.row;
  bool is_bad = false, has_any = false;
  u32 largest = 0;
  for (u32 segment = warp_index(); segment < row.num_segments(); segment += num_warps()) {
    float x[PER_LANE];
    load_segment(row, segment, x);
    float lane_max = -infinity();
#pragma unroll
    for (u32 i = 0; i < PER_LANE; ++i) {
      is_bad |= !(x[i] < infinity());
      lane_max = x[i] > lane_max ? x[i] : lane_max;
    }
    has_any |= lane_max > -infinity();
    // Division rounds monotonically: the maximum stays the maximum.
    const u32 key = __reduce_max_sync(FULL_WARP, ordered(row.scaled(lane_max)));
    largest = Max()(largest, key);
    const float max = from_ordered(key);
    float sum = 0.0f;
    if (wants_masses && max > -infinity()) {
#pragma unroll
      for (u32 i = 0; i < PER_LANE; ++i) sum += expf(row.scaled(x[i]) - max);
      sum = warp_reduce<Sum>(sum);
    }
    if (lane_index() == 0) {
      scratch.segment_keys[segment] = key;
      scratch.segment_masses[segment] = bit_cast<u32>(sum);
    }
  }
  is_bad = __syncthreads_or(is_bad);
  const bool is_all_masked = !__syncthreads_or(has_any);
  const float max = from_ordered(u32(block_max(largest, scratch)));
  if (wants_masses) {
    for (u32 i = threadIdx.x; i < row.num_segments(); i += blockDim.x) {
      const float share = expf(from_ordered(scratch.segment_keys[i]) - max);
      const float sum = bit_cast<float>(u32(scratch.segment_masses[i]));
      scratch.segment_masses[i] = u64(sum * share * UNIT);
    }
  }
  scratch.max = max;
  __syncthreads();
  return Survey{is_bad, is_all_masked};
}

// Weight of the row, after a survey with masses.
__device__ __forceinline__ u64 total_mass(Scratch& scratch) {
  u64 sum = 0;
  for (u32 i = threadIdx.x; i < scratch.row.num_segments(); i += blockDim.x) {
    sum += scratch.segment_masses[i];
  }
  return block_sum(sum, scratch);
}

// Largest key that `wanted` or more of the segments' maxima reach: no more than the key of the
// token of that rank. 0 when there are fewer segments.
__device__ __forceinline__ u32 lower_bound_of_rank(u32 wanted, Scratch& scratch) {
  const u32 num_segments = scratch.row.num_segments();
  u32 bound = 0;
  for (u32 bit = 0x80000000; bit > 0; bit /= 2) {
    u32 reaching = 0;
    for (u32 first = 0; first < num_segments; first += blockDim.x) {
      const u32 i = first + threadIdx.x;
      const bool reaches = i < num_segments && scratch.segment_keys[i] >= (bound | bit);
      reaching += __syncthreads_count(reaches);
    }
    if (reaching >= wanted) bound |= bit;
  }
  return bound;
}

// A set of the most likely tokens: those above `key`, and those at `key` up to `token`.
struct Cut {
  u32 key, token;

  __device__ __forceinline__ bool keeps(u32 other_key, u32 other_token) const {
    return other_key > key || (other_key == key && other_token <= token);
  }
};

// Counts and weighs what the cut keeps, into `kept`. If `gathers`, also writes the rank keys of as
// much of it as fits to `candidates`, in no order.
__device__ NOINLINE void measure(Cut cut, bool gathers, Scratch& scratch) {
  const Row row = scratch.row;
  const float max = scratch.max;
  if (threadIdx.x == 0) scratch.num_candidates = 0;
  __syncthreads();
  u32 count = 0;
  u64 mass = 0;
  for (u32 segment = warp_index(); segment < row.num_segments(); segment += num_warps()) {
    if (scratch.segment_keys[segment] < cut.key) continue;
    float x[PER_LANE];
    load_segment(row, segment, x);
#pragma unroll
    for (u32 i = 0; i < PER_LANE; ++i) {
      const float value = row.scaled(x[i]);
      const u32 key = ordered(value), token = token_of(segment, i);
      const bool is_kept = token < row.size && cut.keeps(key, token);
      if (is_kept) {
        ++count;
        mass += weight(value, max);
      }
      if (!gathers) continue;
      const u32 lanes = __ballot_sync(FULL_WARP, is_kept);
      if (lanes == 0) continue;
      u32 place = lane_index() == 0 ? atomicAdd(&scratch.num_candidates, __popc(lanes)) : 0;
      place = __shfl_sync(FULL_WARP, place, 0) + __popc(lanes & ((1u << lane_index()) - 1));
      if (is_kept && place < MAX_CANDIDATES) scratch.candidates[place] = rank_key(key, token);
    }
  }
  count = u32(block_sum(count, scratch));
  scratch.kept = Kept{count, block_sum(mass, scratch)};
  __syncthreads();
}

// Sorts `n` candidates ascending (Batcher's bitonic network).
__device__ __forceinline__ void sort_candidates(u32 n, Scratch& scratch) {
  u32 size = 2;
  while (size < n) size *= 2;
  for (u32 i = n + threadIdx.x; i < size; i += blockDim.x) scratch.candidates[i] = ~0ull;
  for (u32 run = 2; run <= size; run *= 2) {
    for (u32 distance = run / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (u32 pair = threadIdx.x; pair < size / 2; pair += blockDim.x) {
        const u32 low = 2 * pair - pair % distance, high = low + distance;
        const u64 a = scratch.candidates[low], b = scratch.candidates[high];
        if ((a > b) == ((low & run) == 0)) {
          scratch.candidates[low] = b;
          scratch.candidates[high] = a;
        }
      }
    }
  }
  __syncthreads();
}
