// The gated delta rule, token by token: of every head, with its state S (STATE_ROWS, v_dim),
// S *= decay; S += k (v - S^T k)^T beta; out = S^T q. In f32 as the state is. The decay is one of
// the head, or one of each row of S.
#include "states.cuh"

// Columns of a stripe of a head's state, (STATE_ROWS, columns); the columns of the last stripe are
// padded to a multiple of GROUP.
constexpr u32 STRIPE = 64;
constexpr u32 GROUP = 16;

// `struct RuleArg` of the engine.
struct RuleParams {
  const float* rates;  // (num_v_heads) how fast heads forget
  const float* bias;   // (num_v_heads)
  // (num_rows, num_v_heads * STATE_ROWS) those of rows, where rates and bias are not read.
  const float* decays;
  float beta_factor;
  u32 num_k_heads, num_v_heads, v_dim;
  u32 stride;          // Of rows.
  u32 gates;           // First column of b, and then a if heads decay, of all v heads.
  u32 first;           // First value of a block's states that is the rule's.

  // Of a head.
  __device__ __forceinline__ u32 num_columns() const { return v_dim; }
};

// The decays of a token's rows of a state: a lane's share. Empty where heads decay.
template <bool BY_ROW>
struct RowDecays {
  template <bool WIDE>
  __device__ __forceinline__ void load(const float*, u32) {}
  __device__ __forceinline__ float operator[](u32) const { return 1.0f; }
};

template <>
struct RowDecays<true> {
  float value[ROWS_OF_LANE];

  // WIDE: the values (STATE_ROWS) are read in whole chunks.
  template <bool WIDE>
  __device__ __forceinline__ void load(const float* values, u32 first_row) {
#pragma unroll
    for (u32 j = 0; j < ROWS_OF_LANE; j += F32_CHUNK) {
      float part[F32_CHUNK];
      unpack(load_raw<WIDE, F32_CHUNK>(values, first_row + j, STATE_ROWS), part);
#pragma unroll
      for (u32 i = 0; i < F32_CHUNK; ++i) value[j + i] = part[i];
    }
  }
  __device__ __forceinline__ float operator[](u32 i) const { return value[i]; }
};

template <bool WIDE, bool BY_ROW>
struct RuleColumn {
  const RuleParams& params;
  const T* const x;
  T* const out;
  const u32 head;
  ColumnPart part;

  struct Token {
    RowValues q, k;
    float v;
  };

  __device__ __forceinline__ RuleColumn(const RuleParams& params, const T* x, T* out, u32 head,
                                        u32 warp)
      : params(params), x(x), out(out), head(head), part(warp, params.v_dim) {}

  __device__ __forceinline__ u32 k_width() const { return params.num_k_heads * STATE_ROWS; }

  // Columns of the stripe, with its padding.
  __device__ __forceinline__ u32 stripe_width() const {
    const u32 left = params.v_dim - part.column / STRIPE * STRIPE;
    return (Min()(STRIPE, left) + GROUP - 1) / GROUP * GROUP;
  }

  __device__ __forceinline__ float* column_of(float* state) const {
    const u32 padded = (params.v_dim + GROUP - 1) / GROUP * GROUP;
    const u32 stripe = part.column / STRIPE * STRIPE;
    const u64 first = params.first + (u64(head) * padded + stripe) * STATE_ROWS;
    return state + first + (part.column - stripe);
  }

  __device__ __forceinline__ void clear() { part.clear(); }
  __device__ __forceinline__ void load(float* state) {
    part.load(column_of(state), stripe_width());
  }
  __device__ __forceinline__ void store(float* state) const {
    part.store(column_of(state), stripe_width());
  }

  __device__ __forceinline__ void read(u32 row, Token& token) const {
    const T* values = x + u64(row) * params.stride;
    const T* q = values + head / (params.num_v_heads / params.num_k_heads) * STATE_ROWS;
    token.q.template load<WIDE>(q, part.first_row);
    token.k.template load<WIDE>(q + k_width(), part.first_row);
    const u32 column = 2 * k_width() + head * params.v_dim + part.column;
    token.v = part.exists ? to_float(values[column]) : 0.0f;
  }

  __device__ __forceinline__ Gates gates(u32 row) const {
    const T* values = x + u64(row) * params.stride + params.gates;
    const float beta = 1.0f / (1.0f + expf(-to_float(values[head])));
    if constexpr (BY_ROW) return {beta, 1.0f};
    const float a = to_float(values[params.num_v_heads + head]) + params.bias[head];
    return {beta, expf(-params.rates[head] * softplus(a))};
  }

  __device__ __forceinline__ void take(u32 row, const Token& token, const Gates& gates) {
    // Not read ahead with the token: a lane has no registers for twice as many.
    RowDecays<BY_ROW> decays;
    const u64 first = (u64(row) * params.num_v_heads + head) * STATE_ROWS;
    decays.template load<WIDE>(params.decays + first, part.first_row);
    float known = 0.0f, sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < ROWS_OF_LANE; ++i) {
      const float k = BY_ROW ? token.k[i] * decays[i] : token.k[i];
      known = fmaf(part.value[i], k, known);
    }
    known = warp_reduce<Sum>(known, LANES);
    if (!BY_ROW) known *= gates.decay;
    // Here, and not where gates are found: ptxas spills there.
    const float added = (token.v - known) * (gates.input * params.beta_factor);
#pragma unroll
    for (u32 i = 0; i < ROWS_OF_LANE; ++i) {
      const float decay = BY_ROW ? decays[i] : gates.decay;
      part.value[i] = fmaf(added, token.k[i], part.value[i] * decay);
      sum = fmaf(part.value[i], token.q[i], sum);
    }
    sum = warp_reduce<Sum>(sum, LANES);
    if (part.exists && part.first_row == 0) {
      const u64 width = u64(params.num_v_heads) * params.v_dim;
      out[row * width + head * params.v_dim + part.column] = from_float<T>(sum);
    }
  }

  __device__ __forceinline__ void advance(u32 row, u32 num_rows) {
    // With decays a lane has no registers for two tokens.
    take_rows<READS_AHEAD && !BY_ROW>(*this, row, num_rows);
  }
};

template <bool BY_ROW>
__device__ __forceinline__ void go_over_heads(const T* x, T* out, const States& states,
                                              const RuleParams& params) {
  Run run;
  if (!states.find(blockIdx.x, run)) return;
  const bool wide = STATE_ROWS % CHUNK == 0 && is_wide<CHUNK>(x, params.stride);
  if (wide) {
    go_over_columns<RuleColumn<true, BY_ROW>>(x, out, states, params, run);
  } else {
    go_over_columns<RuleColumn<false, BY_ROW>>(x, out, states, params, run);
  }
}

// The runs' rows of out (num_rows, num_v_heads * v_dim) = what each token of x (num_rows, stride)
// reads: q, k and v of all heads, then columns of others, b and a. q and k are normalized, q is
// scaled. Grid (runs or more, v heads * ceil(v_dim / columns of a block)), 128 threads, whose
// columns are 4 warps'.
KERNEL(128) delta_rule(const T* x, T* out, States states, RuleParams params) {
  go_over_heads<false>(x, out, states, params);
}
EXPORT(delta_rule)

// The same where each row of a state has its decay.
KERNEL(128) delta_rule_by_row(const T* x, T* out, States states, RuleParams params) {
  go_over_heads<true>(x, out, states, params);
}
EXPORT(delta_rule_by_row)
