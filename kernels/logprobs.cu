// Log-probabilities from the untouched logits (vLLM's `raw_logprobs`).
#include "logits.cuh"

struct LogprobRow {
  u32 logits_row;
  u32 token;  // SAMPLED: what the result says
  u32 num_top;
  u32 result_row;
  u32 first_entry;
  u32 is_kept;  // 1: a row of `kept`, which sampling has not changed
};

// `LogprobRow::token`
constexpr u32 SAMPLED = 0xFFFFFFFFu;

struct SampleResult {
  u32 token;
  u32 status;
};

constexpr u32 OK = 0;
constexpr u32 NON_FINITE = 1;

struct LogprobEntry {
  u32 token;
  float logprob;
  u32 rank;
};

// Beside `Scratch`, what must outlive passes over the row.
struct LogprobScratch : Scratch {
  double log_sum;
  LogprobEntry* entries;  // (1 + num_top)

  __device__ __forceinline__ void write(u32 place, u32 token, float logit, u32 rank) const {
    const float logprob = float(double(logit) - double(max) - log_sum);
    entries[place] = LogprobEntry{token, logprob, rank};
  }
};

__device__ __forceinline__ u32 count_of(Cut cut, Scratch& scratch) {
  measure(cut, false, scratch);
  return scratch.kept.count;
}

// The most likely tokens, sorted in shared memory. All ties of the last one are there.
__device__ __forceinline__ void write_top(u32 num_top, u32 num_candidates,
                                          LogprobScratch& scratch) {
  sort_candidates(num_candidates, scratch);
  for (u32 place = threadIdx.x; place < num_top; place += blockDim.x) {
    const u64 candidate = scratch.candidates[place];
    const u32 key = key_of(candidate);
    u32 rank = place + 1;
    while (rank < num_candidates && key_of(scratch.candidates[rank]) == key) ++rank;
    scratch.write(1 + place, u32(candidate), from_ordered(key), rank);
  }
}

// The most likely tokens one by one: for rows with more ties than shared memory holds.
__device__ __forceinline__ void write_top_slowly(u32 num_top, LogprobScratch& scratch) {
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
    if (threadIdx.x == 0) scratch.write(1 + place, u32(last), from_ordered(key), rank);
  }
}

__device__ __forceinline__ void write_all_top(u32 num_top, LogprobScratch& scratch) {
  Cut cut{lower_bound_of_rank(num_top, scratch), ANY_TOKEN};
  measure(cut, true, scratch);
  u32 count = scratch.kept.count;
  // Segments whose best tokens are far apart, or too few of them: the bound was too low.
  for (float depth = 1.0f; count > MAX_CANDIDATES && depth <= 64.0f; depth *= 2.0f) {
    cut.key = ordered(scratch.max - depth);
    measure(cut, true, scratch);
    count = scratch.kept.count;
    if (count > MAX_CANDIDATES) break;
    if (count < num_top) count = ~0u;
  }
  if (count <= MAX_CANDIDATES) {
    write_top(num_top, count, scratch);
  } else {
    write_top_slowly(num_top, scratch);
  }
}

// For each of rows (grid), which names a row of logits (any, vocab_size) or of kept (any,
// vocab_size): 1 + num_top of entries, from `first_entry` on. First the row's token; its rank is
// the number of logits that are at least its own. Then the num_top most likely tokens, ties by
// lower id. A row whose token is given gets a result (any) that says whether its logits are finite;
// one that was sampled has such a result. Rows that are not OK get no entries. num_top is at most
// vocab_size. One block per row, of any size up to 768 that is a multiple of 32;
// vocab_size < 524288.
KERNEL(768)
logprobs(const float* logits, const float* kept, u32 vocab_size, const LogprobRow* rows,
         SampleResult* results, LogprobEntry* entries) {
  __shared__ LogprobScratch scratch;
  const LogprobRow task = rows[blockIdx.x];
  SampleResult* result = results + task.result_row;
  u32 token = task.token;
  if (token == SAMPLED) {
    if (result->status != OK) return;
    token = result->token;
  }
  const float* source = task.is_kept ? kept : logits;
  scratch.row = Row{source + u64(task.logits_row) * vocab_size, vocab_size, 1.0f};
  __syncthreads();
  const Survey seen = survey(true, scratch);
  const bool is_finite = !seen.is_bad && !seen.is_all_masked;
  if (task.token != SAMPLED && threadIdx.x == 0) {
    *result = SampleResult{token, is_finite ? OK : NON_FINITE};
  }
  if (!is_finite) return;
  const double sum = double(total_mass(scratch)) / double(UNIT);
  if (threadIdx.x == 0) {
    scratch.log_sum = log(sum);
    scratch.entries = entries + task.first_entry;
  }
  const float own = scratch.row.logits[token];
  const u32 rank = count_of(Cut{ordered(own), ANY_TOKEN}, scratch);
  if (threadIdx.x == 0) scratch.write(0, token, own, rank);
  if (task.num_top > 0) write_all_top(task.num_top, scratch);
}
EXPORT(logprobs)
