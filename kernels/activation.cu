// Activations of the MLP: plain, or gated (`silu_and_mul` and its kin). In f32, rounded once.
#include "common.cuh"

// Values of `kind`, in the order of the engine's `Activation`.
constexpr u32 SILU = 0;
constexpr u32 GELU_TANH = 1;
constexpr u32 GELU = 2;
constexpr u32 RELU = 3;

template <u32 KIND>
__device__ __forceinline__ float activated(float x) {
  if (KIND == SILU) return x / (1.0f + expf(-x));
  if (KIND == GELU_TANH) {
    const float inner = fmaf(x * x * x, 0.044715f, x) * 0.7978845608f;
    return 0.5f * x * (1.0f + tanhf(inner));
  }
  if (KIND == GELU) return 0.5f * x * (1.0f + erff(x * 0.7071067812f));
  // The comparison lets a NaN through.
  return x < 0.0f ? 0.0f : x;
}

template <u32 KIND>
__device__ __forceinline__ void activate_row(const T* gate, T* out, u32 inner) {
  const T* up = gate + inner;
  const bool wide = is_wide<CHUNK>(gate, inner) && is_wide<CHUNK>(out, inner);
  const u32 step = gridDim.y * blockDim.x * CHUNK;
  u32 start = (blockIdx.y * blockDim.x + threadIdx.x) * CHUNK;
  for (; start < inner; start += step) {
    float x[CHUNK], y[CHUNK];
    load_part(gate, start, inner, wide, x);
    load_part(up, start, inner, wide, y);
#pragma unroll
    for (u32 i = 0; i < CHUNK; ++i) x[i] = activated<KIND>(x[i]) * y[i];
    store_part(out, start, inner, wide, x);
  }
}

// out (num_rows, inner) = f(gate) * up, where a row of gate_up (num_rows, 2 * inner) is gate then
// up. Grid (num_rows, any): the blocks of y share a row.
KERNEL(256) activate_and_mul(const T* gate_up, T* out, u32 inner, u32 kind) {
  gate_up += u64(blockIdx.x) * inner * 2;
  out += u64(blockIdx.x) * inner;
  if (kind == SILU) activate_row<SILU>(gate_up, out, inner);
  if (kind == GELU_TANH) activate_row<GELU_TANH>(gate_up, out, inner);
  if (kind == GELU) activate_row<GELU>(gate_up, out, inner);
  if (kind == RELU) activate_row<RELU>(gate_up, out, inner);
}
EXPORT(activate_and_mul)

template <u32 KIND>
__device__ __forceinline__ void activate_all(T* x, u64 n) {
  const bool wide = is_wide<CHUNK>(x, 0);
  const u64 step = u64(gridDim.x) * blockDim.x * CHUNK;
  u64 start = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * CHUNK;
  for (; start < n; start += step) {
    float values[CHUNK];
    load_part(x, start, n, wide, values);
#pragma unroll
    for (u32 i = 0; i < CHUNK; ++i) values[i] = activated<KIND>(values[i]);
    store_part(x, start, n, wide, values);
  }
}

// x (n) = f(x), in place. Any grid.
KERNEL(256) activate(T* x, u64 n, u32 kind) {
  if (kind == SILU) activate_all<SILU>(x, n);
  if (kind == GELU_TANH) activate_all<GELU_TANH>(x, n);
  if (kind == GELU) activate_all<GELU>(x, n);
  if (kind == RELU) activate_all<RELU>(x, n);
}
EXPORT(activate)
