// The recurrence of Mamba 2, token by token: of every head S = e^(dt A) S + dt (B x) and
// y = C S + D x, where S is (STATE_ROWS, head_dim), and dt, B, C and x are the token's. In f32 as
// the state is.
#include "states.cuh"

// `struct ScanArg` of the engine.
struct ScanParams {
  const float* decay;    // (num_heads) A, below 0
  const float* skip;     // (num_heads) D
  const float* dt_bias;  // (num_heads)
  u32 num_heads, head_dim, num_groups;
  u32 first;             // First value of a block's states that is the scan's.
  float least, most;     // dt is between these.

  // Of a head.
  __device__ __forceinline__ u32 num_columns() const { return head_dim; }
};

template <bool WIDE>
struct ScanColumn {
  const ScanParams& params;
  const T* const x;
  T* const out;
  const u32 head;
  ColumnPart part;

  struct Token {
    RowValues b, c;
    float x;
  };

  __device__ __forceinline__ ScanColumn(const ScanParams& params, const T* x, T* out, u32 head,
                                        u32 warp)
      : params(params), x(x), out(out), head(head), part(warp, params.head_dim) {}

  __device__ __forceinline__ u32 inner() const { return params.num_heads * params.head_dim; }
  // Columns of a row: z, x, B and C of all groups, dt.
  __device__ __forceinline__ u32 first_b() const { return 2 * inner(); }
  __device__ __forceinline__ u32 first_dt() const {
    return first_b() + 2 * params.num_groups * STATE_ROWS;
  }
  __device__ __forceinline__ u32 stride() const { return first_dt() + params.num_heads; }

  __device__ __forceinline__ float* column_of(float* state) const {
    const u64 first = params.first + u64(head) * STATE_ROWS * params.head_dim;
    return state + first + part.column;
  }

  __device__ __forceinline__ void clear() { part.clear(); }
  __device__ __forceinline__ void load(float* state) {
    part.load(column_of(state), params.head_dim);
  }
  __device__ __forceinline__ void store(float* state) const {
    part.store(column_of(state), params.head_dim);
  }

  __device__ __forceinline__ void read(u32 row, Token& token) const {
    const T* values = x + u64(row) * stride();
    const u32 group = head / (params.num_heads / params.num_groups) * STATE_ROWS;
    const T* b = values + first_b() + group;
    token.b.template load<WIDE>(b, part.first_row);
    token.c.template load<WIDE>(b + params.num_groups * STATE_ROWS, part.first_row);
    const u32 column = inner() + head * params.head_dim + part.column;
    token.x = part.exists ? to_float(values[column]) : 0.0f;
  }

  __device__ __forceinline__ float dt_of(u32 row) const {
    const float raw = to_float(x[u64(row) * stride() + first_dt() + head]);
    const float dt = softplus(raw + params.dt_bias[head]);
    // The comparisons let a NaN through.
    if (dt < params.least) return params.least;
    return dt > params.most ? params.most : dt;
  }

  __device__ __forceinline__ Gates gates(u32 row) const {
    const float dt = dt_of(row);
    return {dt, expf(dt * params.decay[head])};
  }

  __device__ __forceinline__ void take(u32 row, const Token& token, const Gates& gates) {
    const float input = token.x * gates.input;
    float sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < ROWS_OF_LANE; ++i) {
      part.value[i] = fmaf(input, token.b[i], part.value[i] * gates.decay);
      sum = fmaf(part.value[i], token.c[i], sum);
    }
    sum = warp_reduce<Sum>(sum, LANES);
    if (part.exists && part.first_row == 0) {
      const u64 place = u64(row) * inner() + head * params.head_dim + part.column;
      out[place] = from_float<T>(fmaf(token.x, params.skip[head], sum));
    }
  }

  __device__ __forceinline__ void advance(u32 row, u32 num_rows) {
    take_rows(*this, row, num_rows);
  }
};

// The runs' rows of out (num_rows, heads * head_dim) = y of rows of x (num_rows, stride). Grid
// (runs or more, heads * ceil(head_dim / columns of a block)), 128 threads, whose columns are 4
// warps'.
KERNEL(128) mamba_scan(const T* x, T* out, States states, ScanParams params) {
  Run run;
  if (!states.find(blockIdx.x, run)) return;
  const u32 first_b = 2 * params.num_heads * params.head_dim;
  const u32 stride = first_b + 2 * params.num_groups * STATE_ROWS + params.num_heads;
  const bool wide = STATE_ROWS % CHUNK == 0 && is_wide<CHUNK>(x + first_b, stride);
  if (wide) {
    go_over_columns<ScanColumn<true>>(x, out, states, params, run);
  } else {
    go_over_columns<ScanColumn<false>>(x, out, states, params, run);
  }
}
EXPORT(mamba_scan)
