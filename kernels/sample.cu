// On-device sampling: masks, bias, penalties, then the most likely token, or temperature, min-p,
// top-k, top-p and a draw. The semantics are those of src/engine/core/sampler.
#include "logits.cuh"

struct SampleRow {
  float temperature;  // 0: greedy
  float top_p;        // 1: off
  float min_p;        // 0: off
  u32 top_k;          // 0: off
  u32 counter[4];
  u32 key[2];
  u32 edit_start, edit_end;
  u32 flags;
  float repetition_penalty, frequency_penalty, presence_penalty;
  u32 logits_row;
  u32 list;  // of a row with PENALIZED: where its list of tokens begins
  u32 draft_start, draft_end;
};

// `SampleRow::flags`
constexpr u32 ONLY_ALLOWED = 1;
constexpr u32 SKIPPED = 2;
constexpr u32 PENALIZED = 4;

// What a row's parameters do to one token's logit; at most one per token and row.
struct Edit {
  u32 token;
  u32 flags;
  float bias;
};

// `Edit::flags`
constexpr u32 FORBIDDEN = 1;
constexpr u32 ALLOWED = 2;

// A token that penalties look at: one of the output, or of the prompt where repetition counts. A
// list of them begins with one whose token is the number of those that follow, each another token.
struct CountedToken {
  u32 token;
  u32 num_output;  // occurrences in the output
};

// What is to be counted in a list: tokens[token_start, token_end), then what the step before
// sampled in a row.
struct CountTask {
  u32 list;
  u32 token_start, token_end;
  u32 sampled_row;  // NO_ROW: nothing
};
constexpr u32 NO_ROW = 0xFFFFFFFFu;

struct SampleResult {
  u32 token;
  u32 status;
};

constexpr u32 OK = 0;
constexpr u32 NON_FINITE = 1;
constexpr u32 NO_TOKEN_ALLOWED = 2;

// Beside `Scratch`, what must outlive passes over the row.
struct SampleScratch : Scratch {
  u64 random_bits;
  u32 top_k;    // 0: off
  float top_p;  // 1: off
};

// What was seen of the untouched logits.
struct Untouched {
  bool is_bad;   // a NaN or +inf
  bool has_any;  // something above -inf

  __device__ __forceinline__ void add(float logit) {
    is_bad |= !(logit < infinity());
    has_any |= logit > -infinity();
  }
};

// The 53 random bits of Philox4x32-10 (Salmon et al., 2011).
__device__ __forceinline__ u64 random_bits(const SampleRow& task) {
  u32 c0 = task.counter[0], c1 = task.counter[1], c2 = task.counter[2], c3 = task.counter[3];
  u32 k0 = task.key[0], k1 = task.key[1];
#pragma unroll 1
  for (u32 round = 0; round < 10; ++round) {
    const u64 first = u64(0xD2511F53u) * c0, second = u64(0xCD9E8D57u) * c2;
    c0 = u32(second >> 32) ^ c1 ^ k0;
    c1 = u32(second);
    c2 = u32(first >> 32) ^ c3 ^ k1;
    c3 = u32(first);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return (u64(c1) << 32 | c0) >> 11;
}

// Sets the logits of all tokens to -inf that no edit allows. A bitmap of a window of the vocabulary
// tells them; it borrows the memory of the candidates.
__device__ NOINLINE Untouched mask_all_but_allowed(float* logits, u32 size, const Edit* edits,
                                                  const Edit* edits_end, Scratch& scratch) {
  Untouched untouched{false, false};
  constexpr u32 WINDOW = MAX_CANDIDATES * 64;
  u32* bitmap = reinterpret_cast<u32*>(scratch.candidates);
  for (u32 start = 0; start < size; start += WINDOW) {
    for (u32 i = threadIdx.x; i < WINDOW / 32; i += blockDim.x) bitmap[i] = 0;
    __syncthreads();
    for (const Edit* edit = edits + threadIdx.x; edit < edits_end; edit += blockDim.x) {
      const u32 offset = edit->token - start;
      if (edit->token >= start && offset < WINDOW && (edit->flags & ALLOWED)) {
        atomicOr(&bitmap[offset / 32], 1u << offset % 32);
      }
    }
    __syncthreads();
    const u32 end = size - start < WINDOW ? size - start : WINDOW;
    for (u32 offset = threadIdx.x; offset < end; offset += blockDim.x) {
      if (bitmap[offset / 32] >> offset % 32 & 1) continue;
      untouched.add(logits[start + offset]);
      logits[start + offset] = -infinity();
    }
    __syncthreads();
  }
  return untouched;
}

// One token's logit after the penalties of the row, in vLLM's order.
__device__ __forceinline__ float penalized(float logit, u32 num_output, const SampleRow& task) {
  const float repetition = task.repetition_penalty;
  if (repetition != 1.0f) logit = logit > 0.0f ? logit / repetition : logit * repetition;
  if (num_output > 0) {
    logit -= task.frequency_penalty * float(num_output);
    logit -= task.presence_penalty;
  }
  return logit;
}

// Applies the penalties of the row: to the tokens of its list, and to its drafts, which the list
// does not count. Each token once.
__device__ __forceinline__ void apply_penalties(float* logits, const CountedToken* list,
                                                const u32* drafts, const SampleRow& task,
                                                Untouched& untouched) {
  const u32 num_tokens = list->token, num_drafts = task.draft_end - task.draft_start;
  const CountedToken* counted = list + 1;
  drafts += task.draft_start;
  const auto apply = [&](u32 token, u32 num_output) {
    for (u32 i = 0; i < num_drafts; ++i) num_output += drafts[i] == token;
    untouched.add(logits[token]);
    logits[token] = penalized(logits[token], num_output, task);
  };
  for (u32 i = threadIdx.x; i < num_tokens; i += blockDim.x) {
    apply(counted[i].token, counted[i].num_output);
  }
  for (u32 draft = 0; draft < num_drafts; ++draft) {
    const u32 token = drafts[draft];
    bool is_done = false;
    for (u32 i = 0; i < draft; ++i) is_done |= drafts[i] == token;
    for (u32 i = threadIdx.x; i < num_tokens; i += blockDim.x) is_done |= counted[i].token == token;
    if (!__syncthreads_or(is_done) && threadIdx.x == 0) apply(token, 0);
  }
}

// Applies masks and bias, then the penalties of the row. What it overwrites, it looks at before.
__device__ __forceinline__ Untouched apply_edits(float* logits, u32 size, const Edit* edits,
                                                 const CountedToken* lists, const u32* drafts,
                                                 const SampleRow& task, Scratch& scratch) {
  Untouched untouched{false, false};
  if (task.flags & ONLY_ALLOWED) {
    untouched = mask_all_but_allowed(logits, size, edits + task.edit_start, edits + task.edit_end,
                                     scratch);
  }
  for (u32 i = task.edit_start + threadIdx.x; i < task.edit_end; i += blockDim.x) {
    const Edit edit = edits[i];
    // Tokenizers may have more ids than the model.
    if (edit.token >= size) continue;
    untouched.add(logits[edit.token]);
    const float logit = edit.flags & FORBIDDEN ? -infinity() : logits[edit.token];
    logits[edit.token] = logit + edit.bias;
  }
  if (task.flags & PENALIZED) {
    __syncthreads();
    apply_penalties(logits, lists + task.list, drafts, task, untouched);
  }
  untouched.is_bad = __syncthreads_or(untouched.is_bad);
  untouched.has_any = __syncthreads_or(untouched.has_any);
  return untouched;
}

// Lowest token that has the largest logit. After a survey.
__device__ NOINLINE u32 most_likely(Scratch& scratch) {
  const Row row = scratch.row;
  const u32 key = ordered(scratch.max);
  u64 first = 0;
  for (u32 segment = threadIdx.x; segment < row.num_segments(); segment += blockDim.x) {
    if (scratch.segment_keys[segment] == key) first = Max()(first, ~u64(segment));
  }
  const u32 segment = u32(~block_max(first, scratch));
  first = 0;
  for (u32 offset = threadIdx.x; offset < SEGMENT; offset += blockDim.x) {
    const u32 token = segment * SEGMENT + offset;
    if (token < row.size && ordered(row.logits[token]) == key) first = Max()(first, ~u64(token));
  }
  return u32(~block_max(first, scratch));
}

// A place in a list of masses.
struct Place {
  u32 index;
  u64 residual;  // of the target, above the masses before `index`
};

// Where `target` falls among `n` masses that follow each other: the first index up to whose end
// there is more than the target. The target is less than the sum of the masses.
template <class MassOf>
__device__ __forceinline__ Place locate(u32 n, u64 target, MassOf mass_of, Scratch& scratch) {
  const u32 each = (n + blockDim.x - 1) / blockDim.x;
  const u32 start = threadIdx.x * each, end = start + each < n ? start + each : n;
  u64 own = 0;
  for (u32 i = start; i < end; ++i) own += mass_of(i);
  u64 upto = warp_prefix_sum(own);
  __syncthreads();
  if (lane_index() == WARP_SIZE - 1) scratch.sums[warp_index()] = upto;
  __syncthreads();
  for (u32 warp = 0; warp < warp_index(); ++warp) upto += scratch.sums[warp];
  u64 before = upto - own;
  if (before <= target && target < upto) {
    u32 i = start;
    for (u64 mass = mass_of(i); before + mass <= target; mass = mass_of(i)) {
      before += mass;
      ++i;
    }
    scratch.found[0] = i;
    scratch.found[1] = target - before;
  }
  __syncthreads();
  return Place{u32(scratch.found[0]), scratch.found[1]};
}

// A uniform number in [0, total) from 53 random bits.
__device__ __forceinline__ u64 scaled_target(u64 bits, u64 total) {
  return __umul64hi(bits << 11, total);
}

// Draws among the tokens that the cut keeps, by the masses of segments.
__device__ NOINLINE u32 draw_from_segments(Cut cut, SampleScratch& scratch) {
  const Row row = scratch.row;
  const u64* masses = scratch.segment_masses;
  const u64 target = scaled_target(scratch.random_bits, total_mass(scratch));
  const auto mass_of_segment = [&](u32 i) { return masses[i]; };
  const Place place = locate(row.num_segments(), target, mass_of_segment, scratch);
  const u32 start = place.index * SEGMENT;
  const float max = from_ordered(scratch.segment_keys[place.index]);
  const auto mass_of_token = [&](u32 i) -> u64 {
    if (start + i >= row.size) return 0;
    const float value = row.scaled(row.logits[start + i]);
    return cut.keeps(ordered(value), start + i) ? weight(value, max) : 0;
  };
  u64 sum = 0;
  for (u32 i = threadIdx.x; i < SEGMENT; i += blockDim.x) sum += mass_of_token(i);
  sum = block_sum(sum, scratch);
  // The segment's mass is in units of the row's maximum, the tokens' in units of the segment's.
  const double share = double(place.residual) / double(masses[place.index]);
  const u64 in_segment = u64(share * double(sum));
  const u64 last = sum - 1;
  return start + locate(SEGMENT, Min()(in_segment, last), mass_of_token, scratch).index;
}

// Least mass of the most likely tokens that top-p keeps.
__device__ __forceinline__ u64 nucleus_of(float top_p, u64 total) {
  const u64 nucleus = u64(ceil(double(top_p) * double(total)));
  return nucleus > 0 ? nucleus : 1;
}

// Least key whose probability is at least `min_p` times that of the maximum.
__device__ __forceinline__ u32 min_p_floor(float max, float min_p) {
  if (min_p <= 0.0f) return MINUS_INFINITY_KEY + 1;
  const double floor = double(max) + log(double(min_p));
  const float rounded = float(floor);
  return ordered(rounded) + (double(rounded) < floor);
}

// Cuts and draws where the candidates are in shared memory.
__device__ NOINLINE u32 draw_from_candidates(u32 n, SampleScratch& scratch) {
  const float max = scratch.max;
  u64* candidates = scratch.candidates;
  sort_candidates(n, scratch);
  if (scratch.top_k > 0 && scratch.top_k < n) {
    // Ties of the k-th stay.
    const u32 kth = key_of(candidates[scratch.top_k - 1]);
    u64 count = 0;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) count += key_of(candidates[i]) >= kth;
    n = u32(block_sum(count, scratch));
  }
  const auto mass_of = [&](u32 i) { return weight(from_ordered(key_of(candidates[i])), max); };
  u64 sum = 0;
  for (u32 i = threadIdx.x; i < n; i += blockDim.x) sum += mass_of(i);
  sum = block_sum(sum, scratch);
  if (scratch.top_p < 1.0f) {
    const u64 nucleus = nucleus_of(scratch.top_p, sum);
    if (nucleus < sum) n = locate(n, nucleus - 1, mass_of, scratch).index + 1;
  }
  // From here on by ascending token, the key below it.
  for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
    candidates[i] = candidates[i] << 32 | candidates[i] >> 32;
  }
  sort_candidates(n, scratch);
  const auto mass_by_token = [&](u32 i) {
    return weight(from_ordered(~u32(candidates[i])), max);
  };
  sum = 0;
  for (u32 i = threadIdx.x; i < n; i += blockDim.x) sum += mass_by_token(i);
  sum = block_sum(sum, scratch);
  const Place place = locate(n, scaled_target(scratch.random_bits, sum), mass_by_token, scratch);
  return u32(candidates[place.index] >> 32);
}

constexpr u32 NUM_BUCKETS = 2048;
// At first, buckets are equal distances from the maximum; what is 32 nats below weighs nothing.
constexpr float BUCKETS_PER_NAT = NUM_BUCKETS / 32;

// A range of keys cut into buckets, the most likely tokens in bucket 0.
struct Buckets {
  u32 low, high;  // least and largest key
  u32 shift;
  bool is_by_distance;

  __device__ __forceinline__ u32 operator()(u32 key, float max) const {
    if (!is_by_distance) return (high - key) >> shift;
    return u32(fminf((max - from_ordered(key)) * BUCKETS_PER_NAT, float(NUM_BUCKETS)));
  }

  // Least key of a bucket or of those before it.
  __device__ __forceinline__ u32 least_key(u32 bucket, float max) const {
    u32 below = low, reaching = high;
    if ((*this)(below, max) <= bucket) return below;
    while (reaching - below > 1) {
      const u32 middle = below + (reaching - below) / 2;
      ((*this)(middle, max) <= bucket ? reaching : below) = middle;
    }
    return reaching;
  }

  // The keys of one bucket, to be cut in their turn.
  __device__ __forceinline__ Buckets inside(u32 bucket, float max) const {
    const u32 least = least_key(bucket, max);
    const u32 largest = bucket > 0 ? least_key(bucket - 1, max) - 1 : high;
    u32 bits = 0;
    while ((largest - least) >> bits >= NUM_BUCKETS) ++bits;
    return Buckets{least, largest, bits, false};
  }
};

// Calls visit(value, key, token) for the tokens of all segments that reach `low`; all lanes of a
// warp at once.
template <class Visit>
__device__ __forceinline__ void for_each_token(u32 low, const Scratch& scratch, Visit visit) {
  const Row row = scratch.row;
  for (u32 segment = warp_index(); segment < row.num_segments(); segment += num_warps()) {
    if (scratch.segment_keys[segment] < low) continue;
    float x[PER_LANE];
    load_segment(row, segment, x);
#pragma unroll
    for (u32 i = 0; i < PER_LANE; ++i) {
      const float value = row.scaled(x[i]);
      visit(value, ordered(value), token_of(segment, i));
    }
  }
}

// What the tokens of each bucket are in number or weigh, as two halves.
struct Histogram {
  u32* low;  // (2, NUM_BUCKETS)

  __device__ __forceinline__ u64 operator[](u32 bucket) const {
    return u64(low[NUM_BUCKETS + bucket]) << 32 | low[bucket];
  }

  // There are no fast additions to 64 bits of shared memory.
  __device__ __forceinline__ void add(u32 bucket, u64 amount) {
    const u32 added = u32(amount);
    const u32 before = atomicAdd(&low[bucket], added);
    const u32 above = u32(amount >> 32) + (before + added < before);
    if (above > 0) atomicAdd(&low[NUM_BUCKETS + bucket], above);
  }
};

// Borrows the memory of the candidates.
__device__ NOINLINE Histogram fill_histogram(Buckets buckets, bool counts, Scratch& scratch) {
  Histogram histogram{reinterpret_cast<u32*>(scratch.candidates)};
  const float max = scratch.max;
  __syncthreads();
  for (u32 i = threadIdx.x; i < 2 * NUM_BUCKETS; i += blockDim.x) histogram.low[i] = 0;
  __syncthreads();
  for_each_token(buckets.low, scratch, [&](float value, u32 key, u32) {
    if (key < buckets.low || key > buckets.high) return;
    const u32 bucket = buckets(key, max);
    if (bucket < NUM_BUCKETS) histogram.add(bucket, counts ? 1 : weight(value, max));
  });
  __syncthreads();
  return histogram;
}

// Writes the rank keys of the tokens with keys low .. high to `candidates`, as many as fit, in no
// order. Returns their number.
__device__ NOINLINE u32 gather(u32 low, u32 high, Scratch& scratch) {
  __syncthreads();
  if (threadIdx.x == 0) scratch.num_candidates = 0;
  __syncthreads();
  for_each_token(low, scratch, [&](float, u32 key, u32 token) {
    if (key < low || key > high) return;
    const u32 place = atomicAdd(&scratch.num_candidates, 1);
    if (place < MAX_CANDIDATES) scratch.candidates[place] = rank_key(key, token);
  });
  __syncthreads();
  return scratch.num_candidates;
}

// Token of the tie at `key` with this index. Overwrites `segment_masses`.
__device__ NOINLINE u32 find_tie(u32 key, u64 index, Scratch& scratch) {
  const Row row = scratch.row;
  for (u32 segment = warp_index(); segment < row.num_segments(); segment += num_warps()) {
    u32 count = 0;
    if (scratch.segment_keys[segment] >= key) {
      float x[PER_LANE];
      load_segment(row, segment, x);
#pragma unroll
      for (u32 i = 0; i < PER_LANE; ++i) count += ordered(row.scaled(x[i])) == key;
      count = __reduce_add_sync(FULL_WARP, count);
    }
    if (lane_index() == 0) scratch.segment_masses[segment] = count;
  }
  __syncthreads();
  const auto count_of_segment = [&](u32 i) { return scratch.segment_masses[i]; };
  const Place place = locate(row.num_segments(), index, count_of_segment, scratch);
  const u32 start = place.index * SEGMENT;
  const auto is_tie = [&](u32 i) -> u64 {
    return start + i < row.size && ordered(row.scaled(row.logits[start + i])) == key;
  };
  return start + locate(SEGMENT, place.residual, is_tie, scratch).index;
}

// The shortest cut of what reaches `floor` that has top_k tokens, with all ties of the last
// (`counts`), or top_p of its mass. Narrows down the key of the last token by histograms.
__device__ NOINLINE Cut select(u32 floor, bool counts, SampleScratch& scratch) {
  const float max = scratch.max;
  Buckets buckets{floor, ordered(max), 0, true};
  Histogram histogram = fill_histogram(buckets, counts, scratch);
  const auto amount_of = [&](u32 i) { return histogram[i]; };
  u64 total = 0;
  for (u32 i = threadIdx.x; i < NUM_BUCKETS; i += blockDim.x) total += amount_of(i);
  total = block_sum(total, scratch);
  const u64 wanted = counts ? scratch.top_k : nucleus_of(scratch.top_p, total);
  if (wanted >= total) return Cut{floor, ANY_TOKEN};
  u64 target = wanted - 1;
  while (true) {
    const Place place = locate(NUM_BUCKETS, target, amount_of, scratch);
    target = place.residual;
    buckets = buckets.inside(place.index, max);
    if (buckets.low == buckets.high) break;
    const u32 n = gather(buckets.low, buckets.high, scratch);
    if (n <= MAX_CANDIDATES) {
      sort_candidates(n, scratch);
      const auto amount_of_candidate = [&](u32 i) -> u64 {
        return counts ? 1 : weight(from_ordered(key_of(scratch.candidates[i])), max);
      };
      const u64 last = scratch.candidates[locate(n, target, amount_of_candidate, scratch).index];
      return Cut{key_of(last), counts ? ANY_TOKEN : u32(last)};
    }
    fill_histogram(buckets, counts, scratch);
  }
  if (counts) return Cut{buckets.low, ANY_TOKEN};
  const u64 each = weight(from_ordered(buckets.low), max);
  return Cut{buckets.low, find_tie(buckets.low, target / each, scratch)};
}

// Leaves what the cut keeps of each segment in `segment_masses`.
__device__ NOINLINE void weigh_segments(Cut cut, Scratch& scratch) {
  const Row row = scratch.row;
  const float max = scratch.max;
  __syncthreads();
  for (u32 segment = warp_index(); segment < row.num_segments(); segment += num_warps()) {
    u64 mass = 0;
    if (scratch.segment_keys[segment] >= cut.key) {
      float x[PER_LANE];
      load_segment(row, segment, x);
#pragma unroll
      for (u32 i = 0; i < PER_LANE; ++i) {
        const float value = row.scaled(x[i]);
        if (cut.keeps(ordered(value), token_of(segment, i))) mass += weight(value, max);
      }
      mass = warp_reduce<Sum>(mass);
    }
    if (lane_index() == 0) scratch.segment_masses[segment] = mass;
  }
  __syncthreads();
}

__device__ __forceinline__ u32 draw_truncated(const SampleRow& task, SampleScratch& scratch) {
  const bool is_top_k = task.top_k > 0 && task.top_k < scratch.row.size;
  if (!is_top_k && task.min_p <= 0.0f && task.top_p >= 1.0f) {
    return draw_from_segments(Cut{0, ANY_TOKEN}, scratch);
  }
  scratch.top_k = is_top_k ? task.top_k : 0;
  scratch.top_p = task.top_p;
  Cut cut{min_p_floor(scratch.max, task.min_p), ANY_TOKEN};
  if (is_top_k) {
    // The segments' maxima tell a bound where there are more segments than tokens wanted.
    const u32 bound = lower_bound_of_rank(scratch.top_k, scratch);
    cut.key = bound > 0 ? Max()(bound, cut.key) : select(cut.key, true, scratch).key;
    measure(cut, true, scratch);
    if (scratch.kept.count <= MAX_CANDIDATES) {
      return draw_from_candidates(scratch.kept.count, scratch);
    }
    if (bound > 0) cut = select(cut.key, true, scratch);
  }
  if (scratch.top_p < 1.0f) cut = select(cut.key, false, scratch);
  weigh_segments(cut, scratch);
  return draw_from_segments(cut, scratch);
}

__device__ __forceinline__ SampleResult sample_row(float* logits, u32 size, const SampleRow& task,
                                                   const Edit* edits, const CountedToken* lists,
                                                   const u32* drafts, SampleScratch& scratch) {
  Untouched untouched{false, false};
  if (task.edit_start < task.edit_end || (task.flags & (ONLY_ALLOWED | PENALIZED))) {
    untouched = apply_edits(logits, size, edits, lists, drafts, task, scratch);
  }
  const bool is_greedy = task.temperature == 0.0f;
  scratch.row = Row{logits, size, is_greedy ? 1.0f : task.temperature};
  scratch.random_bits = random_bits(task);
  __syncthreads();
  const Survey seen = survey(!is_greedy, scratch);
  if (seen.is_bad || untouched.is_bad) return SampleResult{0, NON_FINITE};
  if (seen.is_all_masked) {
    return SampleResult{0, untouched.has_any ? NO_TOKEN_ALLOWED : NON_FINITE};
  }
  if (is_greedy) return SampleResult{most_likely(scratch), OK};
  // The temperature took the logits out of range.
  if (!(fabsf(scratch.max) < infinity())) return SampleResult{0, NON_FINITE};
  return SampleResult{draw_truncated(task, scratch), OK};
}

// The next token of each of rows (grid), which names a row of logits (any, vocab_size), its edits,
// its list of counted tokens and its drafts. Destroys the row of logits where it has edits or one
// of the flags ONLY_ALLOWED and PENALIZED, and only there: logprobs counts on that. One block per
// row, of any size up to 640 that is a multiple of 32; vocab_size < 524288.
KERNEL(640)
sample(float* logits, u32 vocab_size, const SampleRow* rows, const Edit* edits,
       const CountedToken* lists, const u32* drafts, SampleResult* results) {
  __shared__ SampleScratch scratch;
  const SampleRow& task = rows[blockIdx.x];
  if (task.flags & SKIPPED) return;
  float* row = logits + u64(task.logits_row) * vocab_size;
  const SampleResult result = sample_row(row, vocab_size, task, edits, lists, drafts, scratch);
  if (threadIdx.x == 0) results[blockIdx.x] = result;
}
EXPORT(sample)

// Counts a token in a list, at whose end there is room. By the whole block.
__device__ __forceinline__ void count_token(CountedToken* list, u32 token) {
  const u32 num_tokens = list->token;
  CountedToken* counted = list + 1;
  bool is_known = false;
  for (u32 i = threadIdx.x; i < num_tokens; i += blockDim.x) {
    if (counted[i].token != token) continue;
    counted[i].num_output += 1;
    is_known = true;
  }
  if (!__syncthreads_or(is_known) && threadIdx.x == 0) {
    counted[num_tokens] = CountedToken{token, 1};
    list->token = num_tokens + 1;
  }
  __syncthreads();
}

// Counts what tasks (grid), each of another list of `lists`, say of `tokens` and of the results of
// the step before. One block per task, of any size.
KERNEL(256)
count_tokens(CountedToken* lists, const CountTask* tasks, const u32* tokens,
             const SampleResult* results) {
  const CountTask task = tasks[blockIdx.x];
  CountedToken* list = lists + task.list;
  for (u32 i = task.token_start; i < task.token_end; ++i) count_token(list, tokens[i]);
  if (task.sampled_row == NO_ROW) return;
  // What comes of a row without a token is not used.
  const SampleResult sampled = results[task.sampled_row];
  if (sampled.status == OK) count_token(list, sampled.token);
}
EXPORT(count_tokens)
