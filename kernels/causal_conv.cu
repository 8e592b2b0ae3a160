// A causal convolution over the last STATE_ROWS tokens, column by column.
//
// Sums run over the tokens upward, from zeros before the first one, whatever the step holds of
// them; the bias is first.
#include "activation.cuh"
#include "states.cuh"

constexpr u32 NUM_BEFORE = STATE_ROWS - 1;
// Columns of a block, and of a piece of the state: (NUM_BEFORE, columns of the piece).
constexpr u32 TILE = 128;
// Rows whose values a thread loads before it looks at one.
constexpr u32 ROWS_AT_ONCE = 8;

// `struct ConvArg` of the engine.
struct Conv {
  const float* taps;  // (STATE_ROWS, width), that of the oldest token first
  const float* bias;  // (width)
  u32 width;
  u32 stride;         // Of rows.
  u32 first;          // First column of the inputs, whose place the outputs take.
  u32 has_gates;
  u32 input_gates, output_gates;  // First columns of what inputs and outputs are multiplied by.
  u32 has_activation, activation;
};

struct ConvColumn {
  const Conv& conv;
  T* const x;  // The column of the first row.
  const XIelu& xielu;
  u64 place;   // Of the column's first value in a state.
  u32 step;    // From there to the next.
  float bias;
  float tap[STATE_ROWS];
  float before[NUM_BEFORE + 1];  // The oldest first.

  __device__ __forceinline__ ConvColumn(const Conv& conv, T* x, u32 column, const XIelu& xielu)
      : conv(conv), x(x + column), xielu(xielu) {
    const u32 tile = column / TILE * TILE;
    step = Min()(TILE, conv.width - tile);
    place = u64(tile) * NUM_BEFORE + (column - tile);
    bias = conv.bias[column];
#pragma unroll
    for (u32 i = 0; i < STATE_ROWS; ++i) tap[i] = conv.taps[u64(i) * conv.width + column];
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (u32 i = 0; i < NUM_BEFORE; ++i) before[i] = 0.0f;
  }

  __device__ __forceinline__ void load(const float* state) {
#pragma unroll
    for (u32 i = 0; i < NUM_BEFORE; ++i) before[i] = state[place + i * step];
  }

  __device__ __forceinline__ void store(float* state) const {
#pragma unroll
    for (u32 i = 0; i < NUM_BEFORE; ++i) state[place + i * step] = before[i];
  }

  __device__ __forceinline__ float output(float input) {
    float sum = bias;
#pragma unroll
    for (u32 i = 0; i < NUM_BEFORE; ++i) sum = fmaf(before[i], tap[i], sum);
    sum = fmaf(input, tap[NUM_BEFORE], sum);
    before[NUM_BEFORE] = input;
#pragma unroll
    for (u32 i = 0; i < NUM_BEFORE; ++i) before[i] = before[i + 1];
    return conv.has_activation ? activated_as(conv.activation, sum, xielu) : sum;
  }

  __device__ __forceinline__ void advance(u32 row, u32 num_rows) {
    for (u32 done = 0; done < num_rows; done += ROWS_AT_ONCE) {
      const u32 num = Min()(ROWS_AT_ONCE, num_rows - done);
      T* const at = x + u64(row + done) * conv.stride;
      T input[ROWS_AT_ONCE], input_gate[ROWS_AT_ONCE], output_gate[ROWS_AT_ONCE];
#pragma unroll
      for (u32 i = 0; i < ROWS_AT_ONCE; ++i) {
        if (i >= num) continue;
        const T* values = at + u64(i) * conv.stride;
        input[i] = values[conv.first];
        if (!conv.has_gates) continue;
        input_gate[i] = values[conv.input_gates];
        output_gate[i] = values[conv.output_gates];
      }
#pragma unroll
      for (u32 i = 0; i < ROWS_AT_ONCE; ++i) {
        if (i >= num) continue;
        float in = to_float(input[i]);
        if (conv.has_gates) in *= to_float(input_gate[i]);
        float out = output(in);
        if (conv.has_gates) out *= to_float(output_gate[i]);
        at[u64(i) * conv.stride + conv.first] = from_float<T>(out);
      }
    }
  }
};

// Columns of the runs' rows of x (num_rows, stride) = f(sum of tap * column over the last tokens),
// in place. Grid (runs or more, ceil(width / 128)), 128 threads.
KERNEL(128) causal_conv(T* x, States states, Conv conv, XIelu xielu) {
  const u32 column = blockIdx.y * TILE + threadIdx.x;
  Run run;
  if (column >= conv.width || !states.find(blockIdx.x, run)) return;
  ConvColumn part(conv, x, column, xielu);
  go_over(states, run, part);
}
EXPORT(causal_conv)
