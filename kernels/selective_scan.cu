// The recurrence of Mamba 1, token by token: of every channel h = e^(dt A) h + dt x B and
// y = C h + D x, where h, A, B and C have STATE_ROWS values, and x and dt are the channel's own. In
// f32 as the state is.
#include "states.cuh"

// Channels of a tile of a state, (STATE_ROWS, channels of the tile).
constexpr u32 TILE = 64;

// `struct SelectiveArg` of the engine.
struct SelectiveParams {
  const float* decay;    // (STATE_ROWS, num_channels) A, below 0
  const float* skip;     // (num_channels) D
  const float* dt_bias;  // (num_channels)
  u32 stride;            // Of rows of x.
  u32 num_channels, num_groups;
  u32 rank;              // Values before B and C of a group.
  u32 first;             // First value of a block's states that is the scan's.

  // Of a group.
  __device__ __forceinline__ u32 num_columns() const { return num_channels / num_groups; }
  // Columns of a group: what dt is made of, B, C.
  __device__ __forceinline__ u32 chosen_width() const { return rank + 2 * STATE_ROWS; }
};

// The same, with what tokens bring beside x.
struct Selective : SelectiveParams {
  const T* chosen;  // (num_rows, groups * chosen_width)
  const T* dt;      // (num_rows, num_channels)
};

template <bool WIDE>
struct SelectiveColumn {
  const Selective& params;
  const T* const x;
  T* const out;
  const u32 group;
  ColumnPart part;
  u32 channel;  // Of all groups.
  float dt_bias, skip;
  float decay[ROWS_OF_LANE];

  struct Token {
    RowValues b, c;
    float x, dt;
  };

  __device__ __forceinline__ SelectiveColumn(const Selective& params, const T* x, T* out,
                                             u32 group, u32 warp)
      : params(params), x(x), out(out), group(group), part(warp, params.num_columns()) {
    channel = group * params.num_columns() + part.column;
    dt_bias = part.exists ? params.dt_bias[channel] : 0.0f;
    skip = part.exists ? params.skip[channel] : 0.0f;
#pragma unroll
    for (u32 i = 0; i < ROWS_OF_LANE; ++i) {
      const u64 row = part.first_row + i;
      decay[i] = part.has(i) ? params.decay[row * params.num_channels + channel] : 0.0f;
    }
  }

  // From a row of the tile's states to the next.
  __device__ __forceinline__ u32 tile_width() const {
    return Min()(TILE, params.num_columns() - part.column / TILE * TILE);
  }

  __device__ __forceinline__ float* column_of(float* state) const {
    const u32 in_tile = part.column % TILE;
    return state + params.first + u64(channel - in_tile) * STATE_ROWS + in_tile;
  }

  __device__ __forceinline__ void clear() { part.clear(); }
  __device__ __forceinline__ void load(float* state) {
    part.load(column_of(state), tile_width());
  }
  __device__ __forceinline__ void store(float* state) const {
    part.store(column_of(state), tile_width());
  }

  __device__ __forceinline__ void read(u32 row, Token& token) const {
    const u64 chosen = u64(row) * params.num_groups * params.chosen_width();
    const T* b = params.chosen + chosen + group * params.chosen_width() + params.rank;
    token.b.template load<WIDE>(b, part.first_row);
    token.c.template load<WIDE>(b + STATE_ROWS, part.first_row);
    token.x = part.exists ? to_float(x[u64(row) * params.stride + channel]) : 0.0f;
    token.dt = part.exists ? to_float(params.dt[u64(row) * params.num_channels + channel]) : 0.0f;
  }

  __device__ __forceinline__ void take(u32 row, const Token& token) {
    const float dt = softplus(token.dt + dt_bias), input = token.x * dt;
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < ROWS_OF_LANE; ++i) {
      part.value[i] = fmaf(input, token.b[i], part.value[i] * expf(dt * decay[i]));
      sum = fmaf(part.value[i], token.c[i], sum);
    }
    sum = warp_reduce<Sum>(sum, LANES);
    if (part.exists && part.first_row == 0) {
      out[u64(row) * params.num_channels + channel] = from_float<T>(fmaf(token.x, skip, sum));
    }
  }

  // Where a lane has the registers, what a row needs is on its way while the row before is
  // computed.
  __device__ __forceinline__ void advance(u32 row, u32 num_rows) {
    Token token;
    read(row, token);
    for (u32 i = 0; i < num_rows; ++i) {
      const u32 after = row + Min()(i + 1, num_rows - 1);
      Token next;
      if (READS_AHEAD) read(after, next);
      take(row + i, token);
      if (!READS_AHEAD) read(after, next);
      token = next;
    }
  }
};

// The runs' rows of out (num_rows, num_channels) = y of rows of x (num_rows, stride), whose first
// columns are the channels. Grid (runs or more, groups * ceil(channels of a group / columns of a
// block)), 128 threads, whose columns are 4 warps'.
KERNEL(128) selective_scan(const T* x, const T* chosen, const T* dt, T* out, States states,
                           SelectiveParams params) {
  Run run;
  if (!states.find(blockIdx.x, run)) return;
  const Selective all{params, chosen, dt};
  const bool wide = STATE_ROWS % CHUNK == 0
                    && is_wide<CHUNK>(chosen + params.rank, params.chosen_width());
  if (wide) {
    go_over_columns<SelectiveColumn<true>>(x, out, states, all, run);
  } else {
    go_over_columns<SelectiveColumn<false>>(x, out, states, all, run);
  }
}
EXPORT(selective_scan)
