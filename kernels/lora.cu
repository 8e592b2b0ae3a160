// Adapters of low rank beside linear layers: out += B (scale A x), by the adapter of each row.
//
// t = A x is a sum that k alone orders: warp w takes the chunks w, w + 8, ... of 32 inputs upward,
// and the warps are added upward. B (scale t) is a sum over the ranks upward. Both are in f32. The
// delta is rounded once, when it is added: out = round(out + B (scale t)), with out as the layer
// rounded it. What has no adapter is not touched.
//
// A layer may have several parts (q, k and v; gate and up): A of all of them is one matrix.
#include "ptx.cuh"

// The slot of a row without an adapter.
constexpr u32 NO_SLOT = 0xFFFFFFFFu;
constexpr u32 MAX_PARTS = 4;

// What an adapter adds to some outputs of a layer.
struct LoraPart {
  const T* b;  // (num_outputs, num_ranks)
  float scale;
  u32 first_rank, num_ranks;  // Of those of A.
  u32 first_output, num_outputs;
};

// The adapter in a slot of a layer.
struct LoraSlot {
  const T* a;  // (num_ranks, k)
  u32 num_ranks, num_parts;  // 0: it adds nothing here.
  LoraPart parts[MAX_PARTS];
};

// Calls `run(slot, first, end)` for the rows first .. end of a block that follow each other and
// have one adapter. All threads of the block are called alike.
template <u32 ROWS, class Run>
__device__ __forceinline__ void for_each_run(const u32* slots, u32 num_rows, u32 (&own)[ROWS],
                                             const Run& run) {
  if (threadIdx.x < num_rows) own[threadIdx.x] = slots[threadIdx.x];
  __syncthreads();
  for (u32 first = 0, end; first < num_rows; first = end) {
    const u32 slot = own[first];
    end = first + 1;
    while (end < num_rows && own[end] == slot) ++end;
    if (slot != NO_SLOT) run(slot, first, end);
  }
}

constexpr u32 SHRINK_WARPS = 8;
constexpr u32 SHRINK_THREADS = SHRINK_WARPS * WARP_SIZE;
// Ranks of a block: two strips, as the matrix units take them.
constexpr u32 STRIP = 8, STRIPS = 2;
constexpr u32 SHRINK_RANKS = STRIPS * STRIP;
// Inputs that a warp takes at a time.
constexpr u32 CHUNK_INPUTS = 32;

// `num` rows of `width`.
struct Operand {
  const T* first;
  u32 num, width;

  // N elements of a row; zeros where there are none.
  template <bool WIDE, u32 N>
  __device__ __forceinline__ Chunk<T, N> load(u32 row, u32 start) const {
    if (row >= num) return Chunk<T, N>{};
    return load_raw<WIDE, N>(first + u64(row) * width, start, width);
  }
};

// A lane has the rows lane / 4 and that + 8 of each tile of 16, and of each strip the ranks
// 2 (lane % 4) and the next.
template <u32 ROW_TILES>
struct Sums {
  float values[ROW_TILES][STRIPS][4];

  static __device__ __forceinline__ u32 row(u32 tile, u32 i) {
    return tile * 16 + threadIdx.x % WARP_SIZE / 4 + i / 2 * 8;
  }
  static __device__ __forceinline__ u32 rank(u32 strip, u32 i) {
    return strip * STRIP + threadIdx.x % 4 * 2 + i % 2;
  }
};

// The inputs of a chunk in float32: upward, one by one.
template <bool WIDE, u32 ROW_TILES>
__device__ __forceinline__ void add_chunk(float, const Operand& x, const Operand& a, u32 chunk,
                                          Sums<ROW_TILES>& sums) {
#pragma unroll 1
  for (u32 start = chunk; start < chunk + CHUNK_INPUTS; start += F32_CHUNK) {
#pragma unroll
    for (u32 s = 0; s < STRIPS; ++s) {
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        float weights[F32_CHUNK];
        unpack(a.load<WIDE, F32_CHUNK>(sums.rank(s, i), start), weights);
#pragma unroll
        for (u32 r = 0; r < ROW_TILES; ++r) {
          float values[F32_CHUNK], &sum = sums.values[r][s][i];
          unpack(x.load<WIDE, F32_CHUNK>(sums.row(r, i), start), values);
#pragma unroll
          for (u32 j = 0; j < F32_CHUNK; ++j) sum = fmaf(values[j], weights[j], sum);
        }
      }
    }
  }
}

// On the matrix units, 16 inputs a step: the first 4 of each 8 that follow each other, then the
// others. A lane has 8 of a row, of x and of A alike.
template <bool WIDE, u32 ROW_TILES, class E>
__device__ __forceinline__ void add_chunk(E, const Operand& x, const Operand& a, u32 chunk,
                                          Sums<ROW_TILES>& sums) {
  const u32 start = chunk + threadIdx.x % 4 * CHUNK, lane_row = threadIdx.x % WARP_SIZE / 4;
  Chunk<T, CHUNK> weights[STRIPS], values[ROW_TILES][2];
#pragma unroll
  for (u32 s = 0; s < STRIPS; ++s) weights[s] = a.load<WIDE, CHUNK>(s * STRIP + lane_row, start);
#pragma unroll
  for (u32 r = 0; r < ROW_TILES; ++r) {
    values[r][0] = x.load<WIDE, CHUNK>(r * 16 + lane_row, start);
    values[r][1] = x.load<WIDE, CHUNK>(r * 16 + lane_row + 8, start);
  }
#pragma unroll
  for (u32 step = 0; step < 2; ++step) {
    const u32 low = 2 * step, high = low + 1;
#pragma unroll
    for (u32 r = 0; r < ROW_TILES; ++r) {
      const u32 words[4] = {values[r][0].word[low], values[r][1].word[low],
                            values[r][0].word[high], values[r][1].word[high]};
#pragma unroll
      for (u32 s = 0; s < STRIPS; ++s) {
        mma<E>(sums.values[r][s], words, weights[s].word[low], weights[s].word[high]);
      }
    }
  }
}

// What a warp adds over its chunks of k.
template <bool WIDE, u32 ROW_TILES>
__device__ __forceinline__ void add_chunks(const Operand& x, const Operand& a,
                                           Sums<ROW_TILES>& sums) {
  // Chunks whose loads are under way at once: as many as there are registers for.
  constexpr u32 UNDER_WAY = ROW_TILES == 1 && sizeof(T) == 2 ? 4 : 1;
  const u32 first = threadIdx.x / WARP_SIZE * CHUNK_INPUTS;
#pragma unroll UNDER_WAY
  for (u32 chunk = first; chunk < x.width; chunk += SHRINK_WARPS * CHUNK_INPUTS) {
    add_chunk<WIDE>(T{}, x, a, chunk, sums);
  }
}

template <u32 ROWS>
using SumsOfWarps = float[SHRINK_WARPS][ROWS][SHRINK_RANKS];

// The products of x and A, whatever adapter a row of x has, by warps.
template <u32 ROW_TILES>
__device__ __forceinline__ void multiply(const Operand& x, const Operand& a,
                                         SumsOfWarps<16 * ROW_TILES>& of_warps) {
  constexpr u32 N = CHUNK * 2 / sizeof(T);
  Sums<ROW_TILES> sums{};
  if (is_wide<N>(x.first, x.width) && is_wide<N>(a.first, a.width)) {
    add_chunks<true>(x, a, sums);
  } else {
    add_chunks<false>(x, a, sums);
  }
#pragma unroll
  for (u32 r = 0; r < ROW_TILES; ++r) {
#pragma unroll
    for (u32 s = 0; s < STRIPS; ++s) {
#pragma unroll
      for (u32 i = 0; i < 4; ++i) {
        of_warps[threadIdx.x / WARP_SIZE][sums.row(r, i)][sums.rank(s, i)] = sums.values[r][s][i];
      }
    }
  }
}

// t (num_rows, max_ranks) = A x, for the ranks that the adapter of a row has; no other is written.
// x (num_rows, k), row_slots (num_rows), slots (any). A block takes ROWS rows and 16 ranks; grid
// (ceil(num_rows / ROWS), ceil(max_ranks / 16)).
template <u32 ROWS>
__device__ __forceinline__ void shrink(const T* x, const u32* row_slots, const LoraSlot* slots,
                                       u32 all_rows, u32 k, u32 max_ranks, float* t) {
  __shared__ u32 own_slots[ROWS];
  __shared__ SumsOfWarps<ROWS> of_warps;
  const u32 first_row = blockIdx.x * ROWS, first_rank = blockIdx.y * SHRINK_RANKS;
  const u32 num_rows = Min()(all_rows - first_row, ROWS);
  for_each_run(row_slots + first_row, num_rows, own_slots, [&](u32 slot, u32 first, u32 end) {
    const T* const a = slots[slot].a;
    if (first_rank >= slots[slot].num_ranks) return;
    const u32 num_ranks = Min()(slots[slot].num_ranks - first_rank, SHRINK_RANKS);
    multiply<ROWS / 16>(Operand{x + u64(first_row) * k, num_rows, k},
                        Operand{a + u64(first_rank) * k, num_ranks, k}, of_warps);
    __syncthreads();
    for (u32 i = threadIdx.x; i < (end - first) * SHRINK_RANKS; i += SHRINK_THREADS) {
      const u32 row = first + i / SHRINK_RANKS, rank = i % SHRINK_RANKS;
      float sum = 0.0f;
#pragma unroll
      for (u32 warp = 0; warp < SHRINK_WARPS; ++warp) sum += of_warps[warp][row][rank];
      if (rank < num_ranks) t[u64(first_row + row) * max_ranks + first_rank + rank] = sum;
    }
    __syncthreads();
  });
}

KERNEL(SHRINK_THREADS)
lora_shrink_16(const T* x, const u32* row_slots, const LoraSlot* slots, u32 num_rows, u32 k,
               u32 max_ranks, float* t) {
  shrink<16>(x, row_slots, slots, num_rows, k, max_ranks, t);
}
EXPORT(lora_shrink_16)

// For many rows.
KERNEL(SHRINK_THREADS)
lora_shrink_64(const T* x, const u32* row_slots, const LoraSlot* slots, u32 num_rows, u32 k,
               u32 max_ranks, float* t) {
  shrink<64>(x, row_slots, slots, num_rows, k, max_ranks, t);
}
EXPORT(lora_shrink_64)

constexpr u32 EXPAND_THREADS = 128;
constexpr u32 EXPAND_ROWS = 16;
// Outputs of a thread, which follow each other, and of a block.
constexpr u32 COLUMNS = 2;
constexpr u32 BLOCK_COLUMNS = EXPAND_THREADS * COLUMNS;
// Ranks that a block has in shared memory at a time, and those that a thread takes at a time.
constexpr u32 EXPAND_RANKS = 32;
constexpr u32 FEW_RANKS = 4;

using SharedRanks = float[EXPAND_ROWS][EXPAND_RANKS];
using RowSums = float[EXPAND_ROWS][COLUMNS];

// Adds the products of the ranks from `first_rank` on that are in shared memory, for the rows
// first .. end. `is_of_part`: which of the outputs from `output` on, counted from those of the
// part, it has.
__device__ __forceinline__ void add_ranks(const SharedRanks& ranks, const LoraPart& part,
                                          const bool (&is_of_part)[COLUMNS], u32 output,
                                          u32 first_rank, u32 first, u32 end, RowSums& sums) {
  const bool wide = is_wide<FEW_RANKS>(part.b, part.num_ranks);
#pragma unroll 1
  for (u32 start = 0; start < EXPAND_RANKS && first_rank + start < part.num_ranks;
       start += FEW_RANKS) {
    float weights[COLUMNS][FEW_RANKS] = {};
#pragma unroll
    for (u32 c = 0; c < COLUMNS; ++c) {
      if (!is_of_part[c]) continue;
      const T* row = part.b + u64(output + c) * part.num_ranks;
      load_part(row, first_rank + start, part.num_ranks, wide, weights[c]);
    }
#pragma unroll
    for (u32 row = 0; row < EXPAND_ROWS; ++row) {
      if (row < first || row >= end) continue;
#pragma unroll
      for (u32 i = 0; i < FEW_RANKS; ++i) {
#pragma unroll
        for (u32 c = 0; c < COLUMNS; ++c) {
          sums[row][c] = fmaf(ranks[row][start + i], weights[c][i], sums[row][c]);
        }
      }
    }
  }
}

// out (num_rows, width) += B (scale t), for the outputs of the parts that the adapter of a row has.
// t as `shrink` has it. A block takes 16 rows and 256 outputs; grid (ceil(num_rows / 16),
// ceil(width / 256)).
template <class E>
__device__ __forceinline__ void expand(const float* t, const u32* row_slots, const LoraSlot* slots,
                                       u32 all_rows, u32 max_ranks, u32 width, E* out) {
  __shared__ u32 own_slots[EXPAND_ROWS];
  __shared__ SharedRanks ranks;
  const u32 first_row = blockIdx.x * EXPAND_ROWS, first_column = blockIdx.y * BLOCK_COLUMNS;
  const u32 num_rows = Min()(all_rows - first_row, EXPAND_ROWS);
  const u32 column = first_column + threadIdx.x * COLUMNS;
  for_each_run(row_slots + first_row, num_rows, own_slots, [&](u32 slot, u32 first, u32 end) {
    for (u32 p = 0; p < slots[slot].num_parts; ++p) {
      const LoraPart part = slots[slot].parts[p];
      const u32 end_output = part.first_output + part.num_outputs;
      if (end_output <= first_column || part.first_output >= first_column + BLOCK_COLUMNS) continue;
      bool is_of_part[COLUMNS];
#pragma unroll
      for (u32 c = 0; c < COLUMNS; ++c) {
        is_of_part[c] = column + c >= part.first_output && column + c < end_output;
      }
      RowSums sums = {};
      for (u32 first_rank = 0; first_rank < part.num_ranks; first_rank += EXPAND_RANKS) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < (end - first) * EXPAND_RANKS; i += EXPAND_THREADS) {
          const u32 row = first + i / EXPAND_RANKS, rank = first_rank + i % EXPAND_RANKS;
          const u64 at = u64(first_row + row) * max_ranks + part.first_rank + rank;
          ranks[row][i % EXPAND_RANKS] = rank < part.num_ranks ? t[at] * part.scale : 0.0f;
        }
        __syncthreads();
        add_ranks(ranks, part, is_of_part, column - part.first_output, first_rank, first, end,
                  sums);
      }
#pragma unroll
      for (u32 row = 0; row < EXPAND_ROWS; ++row) {
        if (row < first || row >= end) continue;
        E* const to = out + u64(first_row + row) * width + column;
#pragma unroll
        for (u32 c = 0; c < COLUMNS; ++c) {
          if (is_of_part[c]) to[c] = from_float<E>(to_float(to[c]) + sums[row][c]);
        }
      }
    }
  });
}

KERNEL(EXPAND_THREADS, 6)
lora_expand(const float* t, const u32* row_slots, const LoraSlot* slots, u32 num_rows,
            u32 max_ranks, u32 width, T* out) {
  expand(t, row_slots, slots, num_rows, max_ranks, width, out);
}
EXPORT(lora_expand)

// As `lora_expand`, of logits.
KERNEL(EXPAND_THREADS, 6)
lora_expand_f32(const float* t, const u32* row_slots, const LoraSlot* slots, u32 num_rows,
                u32 max_ranks, u32 width, float* out) {
  expand(t, row_slots, slots, num_rows, max_ranks, width, out);
}
EXPORT(lora_expand_f32)
