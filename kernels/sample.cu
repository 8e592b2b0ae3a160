// On-device sampling: masks, bias, penalties, then the most likely token, or temperature, min-p,
// top-k, top-p and a draw. The semantics are those of src/engine/sampler.
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
  u32 unused;
};

// `SampleRow::flags`
constexpr u32 ONLY_ALLOWED = 1;
constexpr u32 SKIPPED = 2;

// What changes one token's logit; at most one per token and row.
struct Edit {
  u32 token;
  u32 num_output;  // occurrences in the output
  u32 flags;
  float bias;
};

// `Edit::flags`
constexpr u32 IN_PROMPT = 1;
constexpr u32 FORBIDDEN = 2;
constexpr u32 ALLOWED = 4;

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
  u64 nucleus;           // mass that top-p asks for
  u32 floor;             // least key that min-p keeps
  u32 top_k;             // 0: off
  float top_p;           // 1: off
  bool is_share_of_row;  // top-p is a share of the whole row
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

// Masks, bias and penalties of one token, in vLLM's order.
__device__ __forceinline__ float edited(float logit, const Edit& edit, const SampleRow& task) {
  if ((task.flags & ONLY_ALLOWED) && !(edit.flags & ALLOWED)) logit = -infinity();
  if (edit.flags & FORBIDDEN) logit = -infinity();
  logit += edit.bias;
  const float repetition = task.repetition_penalty;
  if (repetition != 1.0f && ((edit.flags & IN_PROMPT) || edit.num_output > 0)) {
    logit = logit > 0.0f ? logit / repetition : logit * repetition;
  }
  if (edit.num_output > 0) {
    logit -= task.frequency_penalty * float(edit.num_output);
    logit -= task.presence_penalty;
  }
  return logit;
}

// Sets the logits of all tokens to -inf that no edit allows. A bitmap of a window of the vocabulary
// tells them; it borrows the memory of the candidates.
__device__ __noinline__ Untouched mask_all_but_allowed(float* logits, u32 size, const Edit* edits,
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

// Applies the edits of the row. Whatever it overwrites, it looks at before.
__device__ __forceinline__ Untouched apply_edits(float* logits, u32 size, const Edit* edits,
                                                 const SampleRow& task, Scratch& scratch) {
  Untouched untouched{false, false};
  for (u32 i = task.edit_start + threadIdx.x; i < task.edit_end; i += blockDim.x) {
    const Edit edit = edits[i];
    // Tokenizers may have more ids than the model.
    if (edit.token >= size) continue;
    untouched.add(logits[edit.token]);
    logits[edit.token] = edited(logits[edit.token], edit, task);
  }
  if (task.flags & ONLY_ALLOWED) {
    const Untouched others = mask_all_but_allowed(logits, size, edits + task.edit_start,
                                                  edits + task.edit_end, scratch);
    untouched.is_bad |= others.is_bad;
    untouched.has_any |= others.has_any;
  }
  untouched.is_bad = __syncthreads_or(untouched.is_bad);
  untouched.has_any = __syncthreads_or(untouched.has_any);
  return untouched;
}

// Lowest token that has the largest logit. After a survey.
__device__ __noinline__ u32 most_likely(Scratch& scratch) {
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
  u64 upto = own;
  for (u32 step = 1; step < WARP_SIZE; step *= 2) {
    const u64 other = __shfl_up_sync(FULL_WARP, upto, step);
    if (lane_index() >= step) upto += other;
  }
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
__device__ __noinline__ u32 draw_from_segments(Cut cut, SampleScratch& scratch) {
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
__device__ __noinline__ u32 draw_from_candidates(u32 n, SampleScratch& scratch) {
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
    const u64 nucleus = scratch.is_share_of_row ? scratch.nucleus : nucleus_of(scratch.top_p, sum);
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

// Largest key such that the tokens that reach it have at least this count and mass. Those that
// reach `low` do.
__device__ __forceinline__ u32 bisect_key(u32 low, u32 count, u64 mass, Scratch& scratch) {
  u32 high = ordered(scratch.max) + 1;
  while (high - low > 1) {
    const u32 middle = low + (high - low) / 2;
    measure(Cut{middle, ANY_TOKEN}, false, scratch);
    if (scratch.kept.count >= count && scratch.kept.mass >= mass) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Least token such that the ties at `key` up to it are `wanted` in number.
__device__ __forceinline__ u32 bisect_ties(u32 key, u32 wanted, Scratch& scratch) {
  measure(Cut{key + 1, ANY_TOKEN}, false, scratch);
  const u32 above = scratch.kept.count;
  u32 low = 0, high = scratch.row.size - 1;
  while (low < high) {
    const u32 middle = low + (high - low) / 2;
    measure(Cut{key, middle}, false, scratch);
    if (scratch.kept.count - above >= wanted) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Leaves what the cut keeps of each segment in `segment_masses`.
__device__ __noinline__ void weigh_segments(Cut cut, Scratch& scratch) {
  const Row row = scratch.row;
  const float max = scratch.max;
  for (u32 segment = warp_index(); segment < row.num_segments(); segment += num_warps()) {
    float x[PER_LANE];
    load_segment(row, segment, x);
    u64 mass = 0;
#pragma unroll
    for (u32 i = 0; i < PER_LANE; ++i) {
      const float value = row.scaled(x[i]);
      if (cut.keeps(ordered(value), token_of(segment, i))) mass += weight(value, max);
    }
    mass = warp_reduce<Sum>(mass);
    if (lane_index() == 0) scratch.segment_masses[segment] = mass;
  }
  __syncthreads();
}

// Finds the cut by bisection, a pass over the row per step: for flat distributions, of which more
// survives than fits in shared memory.
__device__ __forceinline__ u32 draw_slowly(SampleScratch& scratch) {
  measure(Cut{scratch.floor, ANY_TOKEN}, false, scratch);
  u32 key = scratch.floor, last_token = ANY_TOKEN;
  if (scratch.top_k > 0 && scratch.top_k < scratch.kept.count) {
    key = bisect_key(key, scratch.top_k, 0, scratch);
    measure(Cut{key, ANY_TOKEN}, false, scratch);
  }
  if (scratch.top_p < 1.0f) {
    if (!scratch.is_share_of_row) scratch.nucleus = nucleus_of(scratch.top_p, scratch.kept.mass);
    __syncthreads();
    if (scratch.nucleus < scratch.kept.mass) {
      key = bisect_key(key, 0, scratch.nucleus, scratch);
      measure(Cut{key + 1, ANY_TOKEN}, false, scratch);
      const double missing = double(scratch.nucleus - scratch.kept.mass);
      const double each = double(weight(from_ordered(key), scratch.max));
      last_token = bisect_ties(key, u32(ceil(missing / each)), scratch);
    }
  }
  const Cut cut{key, last_token};
  weigh_segments(cut, scratch);
  return draw_from_segments(cut, scratch);
}

// Gathers likely tokens, further and further below the maximum, until all that survive are among
// them.
__device__ __forceinline__ u32 draw_truncated(const SampleRow& task, SampleScratch& scratch) {
  const float max = scratch.max;
  const bool is_top_k = task.top_k > 0 && task.top_k < scratch.row.size;
  const bool is_min_p = task.min_p > 0.0f;
  if (!is_top_k && !is_min_p && task.top_p >= 1.0f) {
    return draw_from_segments(Cut{0, ANY_TOKEN}, scratch);
  }
  scratch.floor = min_p_floor(max, task.min_p);
  scratch.top_k = is_top_k ? task.top_k : 0;
  scratch.top_p = task.top_p;
  scratch.is_share_of_row = !is_top_k && !is_min_p;
  scratch.nucleus = nucleus_of(task.top_p, total_mass(scratch));
  float depth = 4.0f;
  u32 low = is_min_p ? 0 : ordered(max - depth);
  if (is_top_k) {
    const u32 bound = lower_bound_of_rank(scratch.top_k, scratch);
    low = bound > 0 ? bound : ordered(max - depth);
  }
  while (true) {
    low = Max()(low, scratch.floor);
    measure(Cut{low, ANY_TOKEN}, true, scratch);
    const Kept kept = scratch.kept;
    if (kept.count > MAX_CANDIDATES) return draw_slowly(scratch);
    const bool is_enough =
        scratch.top_k > 0 ? kept.count >= scratch.top_k : kept.mass >= scratch.nucleus;
    if (low == scratch.floor || is_enough) return draw_from_candidates(kept.count, scratch);
    depth *= 2.0f;
    low = depth > 64.0f ? 0 : ordered(scratch.max - depth);
  }
}

__device__ __forceinline__ SampleResult sample_row(float* logits, u32 size, const SampleRow& task,
                                                   const Edit* edits, SampleScratch& scratch) {
  Untouched untouched{false, false};
  if (task.edit_start < task.edit_end || (task.flags & ONLY_ALLOWED)) {
    untouched = apply_edits(logits, size, edits, task, scratch);
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

// The next token of each of rows (grid), which names a row of logits (any, vocab_size) and its
// edits. Destroys the row of logits where it has edits or the flag ONLY_ALLOWED, and only there:
// logprobs counts on that. One block per row, of any size up to 768 that is a multiple of 32;
// vocab_size < 524288.
KERNEL(768)
sample(float* logits, u32 vocab_size, const SampleRow* rows, const Edit* edits,
       SampleResult* results) {
  __shared__ SampleScratch scratch;
  const SampleRow& task = rows[blockIdx.x];
  if (task.flags & SKIPPED) return;
  float* row = logits + u64(task.logits_row) * vocab_size;
  const SampleResult result = sample_row(row, vocab_size, task, edits, scratch);
  if (threadIdx.x == 0) results[blockIdx.x] = result;
}
EXPORT(sample)
