// Log-probabilities from the untouched logits (vLLM's `raw_logprobs`).
#include "logits.cuh"

struct LogprobRow {
  u32 logits_row;
  u32 token;
  u32 num_top;  // at most max_top
  u32 unused;
};

struct Logprobs {
  float max;
  double log_sum;
  float* values;  // (1 + num_top), as the two below
  u32* token_ids;
  u32* ranks;

  __device__ __forceinline__ void write(u32 place, u32 token, float logit, u32 rank) const {
    values[place] = float(double(logit) - double(max) - log_sum);
    token_ids[place] = token;
    ranks[place] = rank;
  }
};

__device__ __forceinline__ u32 count_of(Cut cut, Scratch& scratch) {
  measure(cut, false, scratch);
  return scratch.kept.count;
}

// The most likely tokens, sorted in shared memory. All ties of the last one are there.
__device__ __forceinline__ void write_top(const Logprobs& out, u32 num_top, u32 num_candidates,
                                          Scratch& scratch) {
  sort_candidates(num_candidates, scratch);
  for (u32 place = threadIdx.x; place < num_top; place += blockDim.x) {
    const u64 candidate = scratch.candidates[place];
    const u32 key = key_of(candidate);
    u32 rank = place + 1;
    while (rank < num_candidates && key_of(scratch.candidates[rank]) == key) ++rank;
    out.write(1 + place, u32(candidate), from_ordered(key), rank);
  }
}

// The most likely tokens one by one: for rows with more ties than shared memory holds.
__device__ __forceinline__ void write_top_slowly(const Logprobs& out, u32 num_top,
                                                 Scratch& scratch) {
  u64 last = 0;
  for (u32 place = 0; place < num_top; ++place) {
    u64 best = ~0ull;
    for (u32 i = threadIdx.x; i < scratch.row.size; i += blockDim.x) {
      const u64 candidate = rank_key(ordered(scratch.row.logits[i]), i);
      if ((place == 0 || candidate > last) && candidate < best) best = candidate;
    }
    last = ~block_max(~best, scratch);
    const u32 key = key_of(last);
    const u32 rank = count_of(Cut{key, ANY_TOKEN}, scratch);
    if (threadIdx.x == 0) out.write(1 + place, u32(last), from_ordered(key), rank);
  }
}

__device__ __forceinline__ void write_all_top(const Logprobs& out, u32 num_top, Scratch& scratch) {
  Cut cut{lower_bound_of_rank(num_top, scratch), ANY_TOKEN};
  measure(cut, true, scratch);
  u32 count = scratch.kept.count;
  if (count <= MAX_CANDIDATES) {
    write_top(out, num_top, count, scratch);
    return;
  }
  // Segments whose best tokens are far apart, or too few of them: the bound was too low.
  for (float depth = 1.0f; depth <= 64.0f; depth *= 2.0f) {
    cut.key = ordered(out.max - depth);
    measure(cut, true, scratch);
    count = scratch.kept.count;
    if (count > MAX_CANDIDATES) break;
    if (count >= num_top) {
      write_top(out, num_top, count, scratch);
      return;
    }
  }
  write_top_slowly(out, num_top, scratch);
}

// For each of rows (grid), which names a row of logits (any, vocab_size): 1 + num_top entries of
// the outputs (grid, 1 + max_top). First the row's token; its rank is the number of logits that are
// at least its own. Then the num_top most likely tokens, ties by lower id. One block per row, of
// any size up to 768 that is a multiple of 32; vocab_size < 524288.
KERNEL(768)
logprobs(const float* logits, u32 vocab_size, const LogprobRow* rows, float* logprob_values,
         u32* token_ids, u32* ranks, u32 max_top) {
  __shared__ Scratch scratch;
  const LogprobRow task = rows[blockIdx.x];
  scratch.row = Row{logits + u64(task.logits_row) * vocab_size, vocab_size, 1.0f};
  __syncthreads();
  const Survey seen = survey(true, scratch);
  const double sum = double(total_mass(scratch)) / double(UNIT);
  const u64 start = u64(blockIdx.x) * (1 + max_top);
  const Logprobs out{scratch.max, log(sum), logprob_values + start, token_ids + start,
                     ranks + start};
  const float own = scratch.row.logits[task.token];
  const u32 rank = count_of(Cut{ordered(own), ANY_TOKEN}, scratch);
  if (threadIdx.x == 0) out.write(0, task.token, own, rank);
  const u32 num_top = task.num_top < vocab_size ? task.num_top : vocab_size;
  // Without a maximum there is nothing to rank; such a row ends as an error.
  if (num_top > 0 && !seen.is_bad && !seen.is_all_masked) write_all_top(out, num_top, scratch);
}
EXPORT(logprobs)
