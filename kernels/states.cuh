// Sequences of a step whose tokens go on from states, which lie in blocks of the KV cache: each the
// one after the last token that was computed of its block.
//
// STATE_ROWS: rows of a state whose columns do not see each other; of a convolution its taps.
#pragma once

#include "common.cuh"

// Tokens of one sequence: `struct Run` of the engine.
struct Run {
  u32 row, num_rows;  // Of the step.
  u32 table;          // First entry of the sequence in the tables of blocks.
  u32 position;       // Of the first row.
};

// The runs of one level of a step, and the states of one layer: `struct StatesArg` of the engine.
struct States {
  const Run* runs;
  const u32* starts;   // Where the level begins, and where it ends.
  const u32* tables;   // Blocks of all sequences.
  float* values;       // (num_blocks, width)
  u32 width, block_size;

  // The run with this number; false: the level has fewer.
  __device__ __forceinline__ bool find(u32 index, Run& run) const {
    const u32 place = starts[0] + index;
    if (place >= starts[1]) return false;
    run = runs[place];
    return true;
  }

  __device__ __forceinline__ float* of_block(const Run& run, u32 position) const {
    return values + u64(tables[run.table + position / block_size]) * width;
  }
};

// Lets `part` of a state go over the rows of a run, from the state after the token before (zeros
// before the first one): part.load(state), part.advance(first row, rows), part.store(state). Every
// block that the rows reach gets the state after its last one.
template <class Part>
__device__ __forceinline__ void go_over(const States& states, const Run& run, Part& part) {
  if (run.position == 0) {
    part.clear();
  } else {
    part.load(states.of_block(run, run.position - 1));
  }
  u32 done = 0;
  while (done < run.num_rows) {
    const u32 position = run.position + done;
    const u32 left = states.block_size - position % states.block_size;
    const u32 num = Min()(left, run.num_rows - done);
    part.advance(run.row + done, num);
    part.store(states.of_block(run, position));
    done += num;
  }
}

// How the states of heads, (STATE_ROWS, columns), lie in the registers of a warp: each column in
// neighbouring lanes, of which each has ROWS_OF_LANE rows that follow each other, 32 where there
// are so many. A sum over a column goes upward in a lane, and then over the lanes as a butterfly.
__host__ __device__ constexpr u32 lanes_of(u32 rows) {
  u32 lanes = 4;
  while (lanes < WARP_SIZE && lanes * 32 < rows) lanes *= 2;
  return lanes;
}
constexpr u32 LANES = lanes_of(STATE_ROWS);
constexpr u32 ROWS_OF_LANE = ((STATE_ROWS + LANES - 1) / LANES + CHUNK - 1) / CHUNK * CHUNK;
constexpr u32 NUM_CHUNKS = ROWS_OF_LANE / CHUNK;
constexpr u32 COLUMNS_OF_WARP = WARP_SIZE / LANES;
// Whether a lane has registers for what two tokens bring.
constexpr bool READS_AHEAD = sizeof(T) < 4;

// A lane's share of a column.
struct ColumnPart {
  float value[ROWS_OF_LANE];
  u32 first_row;
  u32 column;    // Of the head.
  bool exists;

  // Warp `warp` of those that share a head of so many columns.
  __device__ __forceinline__ ColumnPart(u32 warp, u32 num_columns) {
    const u32 lane = threadIdx.x % WARP_SIZE;
    first_row = lane % LANES * ROWS_OF_LANE;
    column = warp * COLUMNS_OF_WARP + lane / LANES;
    exists = column < num_columns;
  }

  __device__ __forceinline__ bool has(u32 i) const {
    return exists && first_row + i < STATE_ROWS;
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (u32 i = 0; i < ROWS_OF_LANE; ++i) value[i] = 0.0f;
  }

  // Of states whose rows are `stride` values apart; `state`: the column's first value.
  __device__ __forceinline__ void load(const float* state, u32 stride) {
#pragma unroll
    for (u32 i = 0; i < ROWS_OF_LANE; ++i) {
      value[i] = has(i) ? state[u64(first_row + i) * stride] : 0.0f;
    }
  }

  __device__ __forceinline__ void store(float* state, u32 stride) const {
#pragma unroll
    for (u32 i = 0; i < ROWS_OF_LANE; ++i) {
      if (has(i)) state[u64(first_row + i) * stride] = value[i];
    }
  }
};

// What a token has for each row of a state: a lane's share, as it lies in memory.
struct RowValues {
  Chunk<T, CHUNK> chunk[NUM_CHUNKS];

  // WIDE: the values (STATE_ROWS) are read in whole chunks.
  template <bool WIDE>
  __device__ __forceinline__ void load(const T* values, u32 first_row) {
#pragma unroll
    for (u32 j = 0; j < NUM_CHUNKS; ++j) {
      chunk[j] = load_raw<WIDE, CHUNK>(values, first_row + j * CHUNK, STATE_ROWS);
    }
  }

  __device__ __forceinline__ float operator[](u32 i) const {
    return to_float(of_bits<T>(chunk[i / CHUNK].bits(i % CHUNK)));
  }
};

// What decides how a token changes the columns of a head: how much of the state stays, and how much
// of the token's input comes in.
struct Gates {
  float input, decay;
};

// Takes rows into a column: column.gates(row), column.read(row, token), column.take(row, token,
// gates). Each lane finds the gates of one of 32 rows. AHEAD: what a row needs is on its way while
// the row before is computed.
template <bool AHEAD = READS_AHEAD, class Column>
__device__ __forceinline__ void take_rows(Column& column, u32 row, u32 num_rows) {
  const u32 lane = threadIdx.x % WARP_SIZE;
  for (u32 done = 0; done < num_rows; done += WARP_SIZE) {
    const u32 num = Min()(WARP_SIZE, num_rows - done), first = row + done;
    const Gates own = column.gates(first + Min()(lane, num - 1));
    typename Column::Token token;
    column.read(first, token);
    for (u32 i = 0; i < num; ++i) {
      const u32 after = first + Min()(i + 1, num - 1);
      typename Column::Token next;
      if (AHEAD) column.read(after, next);
      const Gates gates = {__shfl_sync(FULL_WARP, own.input, i),
                           __shfl_sync(FULL_WARP, own.decay, i)};
      column.take(first + i, token, gates);
      if (!AHEAD) column.read(after, next);
      token = next;
    }
  }
}

// Of kernels whose blocks have 4 warps, grid (runs or more, heads * ceil(columns / columns of a
// block)): each warp takes the rows of a run into its columns of a head.
constexpr u32 NUM_WARPS = 4;

template <class Column, class Params>
__device__ __forceinline__ void go_over_columns(const T* x, T* out, const States& states,
                                                const Params& params, const Run& run) {
  constexpr u32 COLUMNS = NUM_WARPS * COLUMNS_OF_WARP;
  const u32 tiles = (params.num_columns() + COLUMNS - 1) / COLUMNS;
  const u32 warp = blockIdx.y % tiles * NUM_WARPS + threadIdx.x / WARP_SIZE;
  Column column(params, x, out, blockIdx.y / tiles, warp);
  go_over(states, run, column);
}
