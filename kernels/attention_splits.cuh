// What the kernels of heads that one warp holds share: the product with values, and what becomes of
// the splits of rows. They are merged upward in shared memory, or kept in global memory and merged
// upward there. Both give the same bits.
#pragma once

#include "attention.cuh"

// The softmax of 16 rows over one split.
using Partial = PartialOf<HEAD_DIM>;

static_assert(HEAD_DIM <= 256 && !IS_LATENT, "such heads are wide_attention.cu's");

// The fragments of a warp's queries, which are in shared memory where registers do not hold them.
constexpr u32 QUERY_BYTES = ROWS * PADDED_DIM * 2;

// partial.values += probabilities (16, 32) * values (32, HEAD_DIM), for several groups of rows.
template <u32 groups>
__device__ __forceinline__ void add_values(const float (&scores)[groups][4][4], SmemAddress values,
                                           Partial (&partial)[groups]) {
  const u32 lane = hide(threadIdx.x) % 32;
  const SmemAddress at = values + chunk_offset(lane % 16, lane / 16);
  for (u32 half = 0; half < 2; ++half) {
    u32 p[groups][4];
#pragma unroll
    for (u32 g = 0; g < groups; ++g) load_probabilities(scores[g], half, p[g]);
#pragma unroll
    for (u32 step = 0; step < DEPTH_STEPS; ++step) {
      u32 b[4];
      ldmatrix_transposed(step_address(at, step) + half * 16 * ROW_BYTES, b);
#pragma unroll
      for (u32 g = 0; g < groups; ++g) {
        mma<Operand>(partial[g].values[2 * step], p[g], b[0], b[1]);
        if (2 * step + 1 < HEAD_DIM / 8) {
          mma<Operand>(partial[g].values[2 * step + 1], p[g], b[2], b[3]);
        }
      }
    }
  }
}

// The n-th pair of neighbouring columns that a lane has of the i-th of its rows: the first of them,
// counted from LANE_COLUMNS for each lane before it of four, and where both are in the
// accumulators. With E4M3 an even accumulator has even columns, and the next one those beside them
// (attention_e4m3.cuh).
struct ColumnPair {
  u32 column, low[2], high[2];

  static __device__ __forceinline__ ColumnPair of(u32 n, u32 i) {
    if (!IS_FP8) return {n * 8, {n, 2 * i}, {n, 2 * i + 1}};
    const u32 even = n / 2 * 2, at = 2 * i + n % 2;
    return {even * 8 + n % 2 * 2, {even, at}, {even + 1, at}};
  }
};

// The merged splits of 16 rows, in the order of the fragments: float4 i * 32 + lane has the four
// elements of accumulator i of that lane.
struct State {
  float4 values[HEAD_DIM / 8 * 32];
  float max[ROWS], sum[ROWS];

  // Of this lane: an accumulator, and which of its four elements.
  __device__ __forceinline__ float value(const u32 (&at)[2]) const {
    return reinterpret_cast<const float*>(&values[at[0] * 32 + threadIdx.x % 32])[at[1]];
  }
};

// Ends a split: each of the four lanes that share a row gets the sum of all, the same bits.
__device__ __forceinline__ void end_split(Partial& partial) {
  for (u32 i = 0; i < 2; ++i) {
    partial.sum[i] += __shfl_xor_sync(FULL_WARP, partial.sum[i], 1);
    partial.sum[i] += __shfl_xor_sync(FULL_WARP, partial.sum[i], 2);
  }
}

// partial = the merged splits before it, then itself, which has ended. `in_pieces`: fewer reads of
// the state are under way at once, and take fewer registers.
template <bool in_pieces = false>
__device__ __forceinline__ void merge(const State& state, Partial& partial) {
  const u32 lane = threadIdx.x % 32;
  float old_weight[2], new_weight[2];
  for (u32 i = 0; i < 2; ++i) {
    const float old_max = state.max[lane / 4 + 8 * i], old_sum = state.sum[lane / 4 + 8 * i];
    const float top = fmaxf(old_max, partial.max[i]);
    const float shift = shift_of(top);
    old_weight[i] = exp2_approx(old_max - shift);
    new_weight[i] = exp2_approx(partial.max[i] - shift);
    partial.max[i] = top;
    partial.sum[i] = fmaf(old_sum, old_weight[i], partial.sum[i] * new_weight[i]);
  }
#pragma unroll
  for (u32 n = 0; n < HEAD_DIM / 8; ++n) {
    const float4 four = state.values[n * 32 + lane];
    const float old[4] = {four.x, four.y, four.z, four.w};
    float(&values)[4] = partial.values[n];
    if (in_pieces && n % 4 == 3) __syncwarp();
    for (u32 i = 0; i < 4; ++i) {
      values[i] = fmaf(old[i], old_weight[i / 2], values[i] * new_weight[i / 2]);
    }
  }
}

__device__ __forceinline__ void store_state(const Partial& partial, State& state) {
  const u32 lane = threadIdx.x % 32;
#pragma unroll
  for (u32 n = 0; n < HEAD_DIM / 8; ++n) {
    const float(&values)[4] = partial.values[n];
    state.values[n * 32 + lane] = make_float4(values[0], values[1], values[2], values[3]);
  }
  // The four lanes of a row share these; they agree on the values.
  __syncwarp();
  for (u32 i = 0; i < 2; ++i) {
    state.max[lane / 4 + 8 * i] = partial.max[i];
    state.sum[lane / 4 + 8 * i] = partial.sum[i];
  }
  __syncwarp();
}

// 1 / the sum of a row's weights. All splits are merged, so that no split and no tile changes where
// the sink enters.
__device__ __forceinline__ float inverse_sum(const AttentionParams& params, u32 head, float max,
                                             float sum) {
  if (HAS_SINKS) sum += exp2_approx(fmaf(params.sinks[head], LOG2_E, -max));
  return 1.0f / sum;
}

__device__ __forceinline__ void store_output(const Inputs& in, const AttentionWork& item,
                                             const RowGroup& rows, u32 kv_head,
                                             const Partial& partial) {
  // Over E4M3 what the loads of queries know of a row is worked out again: registers spill else.
  const u32 lane = (IS_FP8 ? hide(threadIdx.x) : threadIdx.x) % 32;
  for (u32 i = 0; i < 2; ++i) {
    const u32 row = lane / 4 + 8 * i;
    if (row >= rows.num_rows) continue;
    const u32 stride = in.num_heads * HEAD_DIM;
    T* to = in.out + rows.offset(in, item, kv_head, row, stride) + lane % 4 * LANE_COLUMNS;
    const u32 head = kv_head * in.group_size + (rows.first_row + row) % in.group_size;
    const float inverse = inverse_sum(in, head, partial.max[i], partial.sum[i]);
#pragma unroll
    for (u32 n = 0; n < HEAD_DIM / 8; ++n) {
      const ColumnPair pair = ColumnPair::of(n, i);
      *reinterpret_cast<u32*>(to + pair.column) =
          narrow_x2<T>(partial.values[pair.low[0]][pair.low[1]] * inverse,
                       partial.values[pair.high[0]][pair.high[1]] * inverse);
    }
  }
}

// Slots (num_slots, num_heads, SLOT_FLOATS): what is kept of a query head over one split, or over
// all from the first one on, which is as good as one: merging it into nothing changes no bit. The
// values, the maximum, the sum.
constexpr u32 SLOT_FLOATS = HEAD_DIM + 4;

__device__ __forceinline__ float* slot_at(float* slots, u32 slot, u32 head, u32 num_heads) {
  return slots + (u64(slot) * num_heads + head) * SLOT_FLOATS;
}

// A row of a SharedWork.
struct SharedRow {
  const T* query;
  float* slot;  // where the first split goes
  bool is_there;

  static __device__ __forceinline__ SharedRow find(const Inputs& in, const SharedWork& work,
                                                   u32 kv_head, u32 row) {
    const bool is_there = row < work.num_tokens * in.group_size;
    const u32 of_work = is_there ? row / in.group_size : 0;
    const SharedToken token = in.shared_tokens[work.first + of_work];
    const u32 head = kv_head * in.group_size + row % in.group_size;
    const T* query = in.qkv + u64(token.token) * in.qkv_stride + head * HEAD_DIM;
    return {query, slot_at(in.slots, token.slot + work.place, head, in.num_heads), is_there};
  }
};

// Keeps the i-th of this lane's rows. From shared memory, since registers are what limits the
// warps.
__device__ __forceinline__ void store_slot(const State& state, u32 i, float* to) {
  const u32 lane = threadIdx.x % 32;
  if (lane % 4 == 0) {
    to[HEAD_DIM] = state.max[lane / 4 + 8 * i], to[HEAD_DIM + 1] = state.sum[lane / 4 + 8 * i];
  }
#pragma unroll 4
  for (u32 n = 0; n < HEAD_DIM / 8; ++n) {
    const ColumnPair pair = ColumnPair::of(n, i);
    Words<2> words;
    words.word[0] = bit_cast<u32>(state.value(pair.low));
    words.word[1] = bit_cast<u32>(state.value(pair.high));
    *reinterpret_cast<Words<2>*>(to + lane % 4 * LANE_COLUMNS + pair.column) = words;
  }
}

// The splits of one token, to be merged.
struct MergeWork {
  u32 token, slot, num_slots;
};

// out (HEAD_DIM) of a query head: its slots merged upward, as `merge` does. One warp; a lane has
// every 32nd column, and works out the weights of every 32nd slot.
__device__ __forceinline__ void merge_slots(const float* first, u32 num_slots, u32 slot_stride,
                                            u32 head, const AttentionParams& params, T* out) {
  constexpr u32 COLUMNS = (HEAD_DIM + 31) / 32;
  const u32 lane = threadIdx.x % 32;
  float max = -infinity(), sum = 0.0f, values[COLUMNS] = {};
  for (u32 base = 0; base < num_slots; base += 32) {
    const float* own = first + u64(min(base + lane, num_slots - 1)) * slot_stride;
    const float own_max = own[HEAD_DIM], own_sum = own[HEAD_DIM + 1];
    // The maximum of this slot and of all before it: exact in any order.
    float top = fmaxf(max, own_max);
    for (u32 step = 1; step < 32; step *= 2) {
      const float before = __shfl_up_sync(FULL_WARP, top, step);
      if (lane >= step) top = fmaxf(before, top);
    }
    const float before = __shfl_up_sync(FULL_WARP, top, 1);
    const float shift = shift_of(top);
    const float old_weight = exp2_approx((lane == 0 ? max : before) - shift);
    const float new_weight = exp2_approx(own_max - shift);
    const u32 count = min(num_slots - base, 32u);
#pragma unroll 4
    for (u32 i = 0; i < count; ++i) {
      const float old_part = __shfl_sync(FULL_WARP, old_weight, i);
      const float new_part = __shfl_sync(FULL_WARP, new_weight, i);
      sum = fmaf(sum, old_part, __shfl_sync(FULL_WARP, own_sum, i) * new_part);
      const float* slot = first + u64(base + i) * slot_stride;
#pragma unroll
      for (u32 c = 0; c < COLUMNS; ++c) {
        const u32 column = lane + 32 * c;
        if (column < HEAD_DIM) values[c] = fmaf(values[c], old_part, slot[column] * new_part);
      }
    }
    max = __shfl_sync(FULL_WARP, top, 31);
  }
  const float inverse = inverse_sum(params, head, max, sum);
#pragma unroll
  for (u32 c = 0; c < COLUMNS; ++c) {
    const u32 column = lane + 32 * c;
    if (column < HEAD_DIM) out[column] = from_float<T>(values[c] * inverse);
  }
}
