// Mixtures of experts: which experts a row goes to, rows by expert, and the sum of what a row's
// experts give. In f32; a row's results depend on the row alone.
#include "experts.cuh"

// Values of `TopK`, in the order of the engine's enums.
constexpr u32 SCORE_SOFTMAX = 1, SCORE_SIGMOID = 2;
constexpr u32 WEIGHT_SHARE = 1, WEIGHT_SOFTMAX = 2, WEIGHT_SIGMOID = 3;
constexpr u32 GROUP_BEST_TWO = 1;

// The engine's `TopK`; or its sparse mixer, which chooses two.
struct TopK {
  u32 num, score, weight;
  u32 num_groups, num_kept, group_score;  // num_groups is 0 where there are none.
  float added, at_least, scale;
  u32 is_sparse_mixer;
  float jitter;
};

constexpr u32 MAX_GROUPS = 64;
constexpr u32 NUM_THREADS = 256;
constexpr u32 NUM_WARPS = NUM_THREADS / WARP_SIZE;

// What a warp chooses in, of one row.
struct Choice {
  float* scores;    // (num_experts)
  float* keys;      // (num_experts) what is compared
  float* groups;    // (MAX_GROUPS)
  u32* experts;     // (num_chosen)
  float* weights;   // (num_chosen)
  u32 num_experts;
  u32 lane;
};

// From the router's numbers to scores, in place.
__device__ __forceinline__ void score(const Choice& of, u32 kind) {
  if (kind == SCORE_SIGMOID) {
    for (u32 i = of.lane; i < of.num_experts; i += WARP_SIZE) {
      of.scores[i] = 1.0f / (1.0f + expf(-of.scores[i]));
    }
  }
  if (kind == SCORE_SOFTMAX) {
    float largest = -infinity(), sum = 0.0f;
    for (u32 i = of.lane; i < of.num_experts; i += WARP_SIZE) {
      largest = Max()(largest, of.scores[i]);
    }
    largest = warp_reduce<Max>(largest);
    for (u32 i = of.lane; i < of.num_experts; i += WARP_SIZE) {
      const float value = expf(of.scores[i] - largest);
      of.scores[i] = value;
      sum += value;
    }
    sum = warp_reduce<Sum>(sum);
    for (u32 i = of.lane; i < of.num_experts; i += WARP_SIZE) of.scores[i] /= sum;
  }
  __syncwarp();
}

// Rules out the experts of all groups but the best.
__device__ __forceinline__ void keep_best_groups(const Choice& of, const TopK& best) {
  const u32 width = of.num_experts / best.num_groups;
  for (u32 group = of.lane; group < best.num_groups; group += WARP_SIZE) {
    float first = -infinity(), second = -infinity();
    for (u32 i = 0; i < width; ++i) {
      const float key = of.keys[group * width + i];
      if (key > first) {
        second = first;
        first = key;
      } else if (key > second) {
        second = key;
      }
    }
    of.groups[group] = best.group_score == GROUP_BEST_TWO ? first + second : first;
  }
  __syncwarp();
  for (u32 i = of.lane; i < of.num_experts; i += WARP_SIZE) {
    const u32 group = i / width;
    u32 num_better = 0;
    for (u32 other = 0; other < best.num_groups; ++other) {
      const bool is_tie = of.groups[other] == of.groups[group] && other < group;
      num_better += of.groups[other] > of.groups[group] || is_tie;
    }
    if (num_better >= best.num_kept) of.keys[i] = -infinity();
  }
  __syncwarp();
}

// The expert with the largest key, the first of equal ones, which has none from then on. Where no
// key is a number: the first that is not taken.
__device__ __forceinline__ u32 take_best(const Choice& of, u32 num_taken) {
  float best = -infinity();
  u32 at = NO_PLACE;
  for (u32 i = of.lane; i < of.num_experts; i += WARP_SIZE) {
    if (of.keys[i] > best) {
      best = of.keys[i];
      at = i;
    }
  }
  for (u32 step = WARP_SIZE / 2; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(FULL_WARP, best, step);
    const u32 other_at = __shfl_xor_sync(FULL_WARP, at, step);
    if (other > best || (other == best && other_at < at)) {
      best = other;
      at = other_at;
    }
  }
  if (at == NO_PLACE) {
    bool is_taken = true;
    while (is_taken) {
      ++at;
      is_taken = false;
      for (u32 i = 0; i < num_taken; ++i) is_taken = is_taken || of.experts[i] == at;
    }
  }
  __syncwarp();
  if (of.lane == 0) {
    of.keys[at] = -infinity();
    of.experts[num_taken] = at;
  }
  __syncwarp();
  return at;
}

// By their numbers; one lane sorts.
__device__ __forceinline__ void sort_chosen(const Choice& of, u32 num) {
  for (u32 i = 1; i < num; ++i) {
    for (u32 j = i; j > 0 && of.experts[j] < of.experts[j - 1]; --j) {
      const u32 expert = of.experts[j];
      const float weight = of.weights[j];
      of.experts[j] = of.experts[j - 1];
      of.weights[j] = of.weights[j - 1];
      of.experts[j - 1] = expert;
      of.weights[j - 1] = weight;
    }
  }
}

// From scores to weights, upward by the experts; one lane adds.
__device__ __forceinline__ void weigh(const Choice& of, const TopK& best, const float* factors) {
  float sum = 0.0f, largest = -infinity();
  for (u32 i = 0; i < best.num; ++i) largest = Max()(largest, of.weights[i]);
  for (u32 i = 0; i < best.num; ++i) {
    if (best.weight == WEIGHT_SOFTMAX) of.weights[i] = expf(of.weights[i] - largest);
    if (best.weight == WEIGHT_SIGMOID) of.weights[i] = 1.0f / (1.0f + expf(-of.weights[i]));
    sum += of.weights[i];
  }
  if (best.weight == WEIGHT_SHARE) sum = Max()(sum + best.added, best.at_least);
  const bool is_divided = best.weight == WEIGHT_SHARE || best.weight == WEIGHT_SOFTMAX;
  for (u32 i = 0; i < best.num; ++i) {
    const float weight = is_divided ? of.weights[i] / sum : of.weights[i];
    of.weights[i] = weight * best.scale;
    if (factors != nullptr) of.weights[i] *= factors[of.experts[i]];
  }
}

__device__ __forceinline__ void choose_best(const Choice& of, const TopK& best,
                                            const float* bias, const float* factors) {
  score(of, best.score);
  for (u32 i = of.lane; i < of.num_experts; i += WARP_SIZE) {
    of.keys[i] = bias == nullptr ? of.scores[i] : of.scores[i] + bias[i];
  }
  __syncwarp();
  if (best.num_groups > 0) keep_best_groups(of, best);
  for (u32 i = 0; i < best.num; ++i) {
    const u32 expert = take_best(of, i);
    if (of.lane == 0) of.weights[i] = of.scores[expert];
  }
  __syncwarp();
  if (of.lane == 0) {
    sort_chosen(of, best.num);
    weigh(of, best, factors);
  }
}

// Two experts, each with its share of those that are nearly as good; the second one without the
// first.
__device__ __forceinline__ void choose_sparsely(const Choice& of, const TopK& best) {
  for (u32 i = 0; i < 2; ++i) {
    const u32 first = i == 0 ? NO_PLACE : of.experts[0];
    for (u32 j = of.lane; j < of.num_experts; j += WARP_SIZE) {
      of.keys[j] = j == first ? -infinity() : of.scores[j];
    }
    __syncwarp();
    const u32 expert = take_best(of, i);
    const float own = of.scores[expert];
    if (of.lane == 0) {
      // Of the experts upward, after its own.
      float sum = 1.0f;
      for (u32 j = 0; j < of.num_experts; ++j) {
        const float other = of.scores[j];
        const float size = other < 0.0f ? -other : other;
        const bool is_behind = (own - other) / Max()(size, own) > 2.0f * best.jitter;
        if (j != expert && j != first && !is_behind) sum += expf(other - own);
      }
      of.weights[i] = 1.0f / sum;
    }
    __syncwarp();
  }
  if (of.lane == 0) sort_chosen(of, 2);
}

// The router's numbers of ROWS rows: each a sum over the row, in lanes that its columns decide.
template <u32 ROWS>
__device__ __forceinline__ void route(const T* x, const float* router, const float* router_bias,
                                      u32 num_rows, u32 width, u32 num_experts, float* scores) {
  const u32 lane = threadIdx.x % WARP_SIZE;
  const bool x_is_wide = is_wide<F32_CHUNK>(x, width);
  const bool router_is_wide = is_wide<F32_CHUNK>(router, width);
  for (u32 expert = threadIdx.x / WARP_SIZE; expert < num_experts; expert += NUM_WARPS) {
    const float* of_expert = router + u64(expert) * width;
    float sums[ROWS] = {};
    for (u32 start = lane * F32_CHUNK; start < width; start += WARP_SIZE * F32_CHUNK) {
      float weights[F32_CHUNK];
      load_part(of_expert, start, width, router_is_wide, weights);
#pragma unroll
      for (u32 r = 0; r < ROWS; ++r) {
        float values[F32_CHUNK];
        const T* row = x + u64(Min()(r, num_rows - 1)) * width;
        load_part(row, start, width, x_is_wide, values);
#pragma unroll
        for (u32 i = 0; i < F32_CHUNK; ++i) sums[r] = fmaf(values[i], weights[i], sums[r]);
      }
    }
#pragma unroll
    for (u32 r = 0; r < ROWS; ++r) {
      const float sum = warp_reduce<Sum>(sums[r]);
      const float bias = router_bias == nullptr ? 0.0f : router_bias[expert];
      if (lane == 0) scores[r * num_experts + expert] = sum + bias;
    }
  }
}

// For each row of x (num_rows, width): the numbers of `num_chosen` experts upward, and their
// weights; none for a row without a slot. router (num_experts, width); router_bias, choice_bias,
// factors of weights (num_experts) or null; slots (num_rows) or null. A block takes ROWS rows and
// has ROWS * (2 * num_experts + 64 + 2 * num_chosen) words of dynamic shared memory.
#define CHOOSE_EXPERTS(name, ROWS)                                                              \
  KERNEL(NUM_THREADS)                                                                           \
  name(const T* x, const float* router, const float* router_bias, const float* choice_bias,     \
       const float* factors, const u32* slots, u32 num_rows, u32 width, u32 num_experts,        \
       TopK best, u32* chosen, float* weights) {                                                \
    DYN_SMEM(float, shared);                                                                    \
    const u32 first_row = blockIdx.x * ROWS, num_here = Min()(num_rows - first_row, u32(ROWS)); \
    route<ROWS>(x + u64(first_row) * width, router, router_bias, num_here, width, num_experts,  \
                shared);                                                                        \
    __syncthreads();                                                                            \
    choose(first_row, num_here, slots, num_experts, best, choice_bias, factors, shared, ROWS,   \
           chosen, weights);                                                                    \
  }

__device__ __forceinline__ void choose(u32 first_row, u32 num_rows, const u32* slots,
                                       u32 num_experts, const TopK& best,
                                       const float* choice_bias, const float* factors,
                                       float* shared, u32 rows_of_block, u32* chosen,
                                       float* weights) {
  const u32 lane = threadIdx.x % WARP_SIZE;
  float* const rest = shared + rows_of_block * num_experts;
  const u32 words_of_row = num_experts + MAX_GROUPS + 2 * best.num;
  for (u32 row = threadIdx.x / WARP_SIZE; row < num_rows; row += NUM_WARPS) {
    float* const own = rest + row * words_of_row;
    u32* const experts = reinterpret_cast<u32*>(own + num_experts + MAX_GROUPS);
    const Choice of{shared + row * num_experts,
                    own,
                    own + num_experts,
                    experts,
                    own + num_experts + MAX_GROUPS + best.num,
                    num_experts,
                    lane};
    if (best.is_sparse_mixer) {
      choose_sparsely(of, best);
    } else {
      choose_best(of, best, choice_bias, factors);
    }
    __syncwarp();
    const bool is_padding = slots != nullptr && slots[first_row + row] == NO_PLACE;
    for (u32 i = lane; i < best.num; i += WARP_SIZE) {
      const u64 at = u64(first_row + row) * best.num + i;
      chosen[at] = is_padding ? NO_PLACE : of.experts[i];
      weights[at] = of.weights[i];
    }
  }
}

CHOOSE_EXPERTS(choose_experts_1, 1)
EXPORT(choose_experts_1)
CHOOSE_EXPERTS(choose_experts_4, 4)
EXPORT(choose_experts_4)

// Pairs of a row and one of its experts, in the order of experts and then of rows: order[r] is the
// pair at place r, places[pair] its place, or none. starts (num_experts + 1): where the pairs of
// each expert begin. A block for each expert, and one for the end. Experts behind these, which give
// what they read, have no pairs.
constexpr u32 PAIRS_PER_THREAD = 8;

KERNEL(NUM_THREADS)
sort_by_expert(const u32* chosen, u32 num_pairs, u32* order, u32* places, u32* starts) {
  __shared__ u32 scratch[WARP_SIZE], of_warps[NUM_WARPS];
  const u32 expert = blockIdx.x, lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
  u32 num_before = 0;
  for (u32 i = threadIdx.x; i < num_pairs; i += NUM_THREADS) num_before += chosen[i] < expert;
  u32 start = block_reduce<Sum>(num_before, scratch);
  if (threadIdx.x == 0) starts[expert] = start;
  if (expert + 1 == gridDim.x) return;
  for (u32 base = 0; base < num_pairs; base += NUM_THREADS * PAIRS_PER_THREAD) {
    const u32 first = base + threadIdx.x * PAIRS_PER_THREAD;
    u32 own = 0;
#pragma unroll
    for (u32 i = 0; i < PAIRS_PER_THREAD; ++i) {
      if (first + i < num_pairs && chosen[first + i] == expert) own |= 1u << i;
    }
    const u32 num_own = __popc(own);
    const u32 until = warp_prefix_sum(num_own);
    if (lane == WARP_SIZE - 1) of_warps[warp] = until;
    __syncthreads();
    u32 place = start + until - num_own;
    for (u32 i = 0; i < NUM_WARPS; ++i) {
      place += i < warp ? of_warps[i] : 0;
      start += of_warps[i];
    }
#pragma unroll
    for (u32 i = 0; i < PAIRS_PER_THREAD; ++i) {
      if (own >> i & 1) {
        order[place] = first + i;
        places[first + i] = place;
        ++place;
      }
    }
    __syncthreads();
  }
}
EXPORT(sort_by_expert)

// out (num_rows, width) += the rows at the places of each row's experts, times their weights,
// upward by the experts; of those from num_experts on the row of x (num_rows, width). A pair of no
// expert has no place. Grid (num_rows, parts of a row).
KERNEL(NUM_THREADS)
add_experts(const T* of_pairs, const T* x, const u32* chosen, const u32* places,
            const float* weights, T* out, u32 num_chosen, u32 width, u32 num_experts) {
  const u64 first_pair = u64(blockIdx.x) * num_chosen;
  T* const row = out + u64(blockIdx.x) * width;
  if (chosen[first_pair] == NO_PLACE) return;
  const bool wide = is_wide<CHUNK>(row, width) && is_wide<CHUNK>(of_pairs, width) &&
                    is_wide<CHUNK>(x, width);
  const u32 step = gridDim.y * NUM_THREADS * CHUNK;
  for (u32 start = (blockIdx.y * NUM_THREADS + threadIdx.x) * CHUNK; start < width;
       start += step) {
    float sums[CHUNK], values[CHUNK];
    load_part(row, start, width, wide, sums);
    for (u32 i = 0; i < num_chosen; ++i) {
      const bool is_expert = chosen[first_pair + i] < num_experts;
      const T* from = is_expert ? of_pairs + u64(places[first_pair + i]) * width
                                : x + u64(blockIdx.x) * width;
      load_part(from, start, width, wide, values);
      const float weight = weights[first_pair + i];
#pragma unroll
      for (u32 j = 0; j < CHUNK; ++j) sums[j] = fmaf(weight, values[j], sums[j]);
    }
    store_part(row, start, width, wide, sums);
  }
}
EXPORT(add_experts)

// Each row of out (num_rows, out_width) times the sigmoid of that row of x (num_rows, width) times
// the gate (width). A block for each row.
KERNEL(NUM_THREADS)
gate_rows(const T* x, const float* gate, T* out, u32 width, u32 out_width) {
  __shared__ float scratch[WARP_SIZE];
  const T* of_row = x + u64(blockIdx.x) * width;
  T* const row = out + u64(blockIdx.x) * out_width;
  float sum = 0.0f;
  for (u32 i = threadIdx.x; i < width; i += NUM_THREADS) {
    sum = fmaf(to_float(of_row[i]), gate[i], sum);
  }
  const float factor = 1.0f / (1.0f + expf(-block_reduce<Sum>(sum, scratch)));
  for (u32 i = threadIdx.x; i < out_width; i += NUM_THREADS) {
    row[i] = from_float<T>(to_float(row[i]) * factor);
  }
}
EXPORT(gate_rows)

// Each row of x (num_rows, width) times the weight of its one expert (num_rows), which is 1 then.
// A block for each row.
KERNEL(NUM_THREADS) weigh_inputs(T* x, float* weights, u32 width) {
  T* const row = x + u64(blockIdx.x) * width;
  const float weight = weights[blockIdx.x];
  __syncthreads();
  for (u32 i = threadIdx.x; i < width; i += NUM_THREADS) {
    row[i] = from_float<T>(to_float(row[i]) * weight);
  }
  if (threadIdx.x == 0) weights[blockIdx.x] = 1.0f;
}
EXPORT(weigh_inputs)
