// Activations of the MLP: plain, or gated (`silu_and_mul` and its kin). In f32, rounded once.
#include "activation.cuh"

// Chunks of a row that a thread loads before it looks at one.
constexpr u32 NUM_PARTS = 2;
// Chunks of an activated row that a thread holds until the row's scale is known.
constexpr u32 NUM_HELD = sizeof(T) == 4 ? 1 : 8;

// What the activated gate is multiplied by.
template <u32 KIND>
__device__ __forceinline__ float gated(float up, const XIelu& xielu) {
  if (KIND != CLAMPED_SWIGLU && KIND != BOUNDED_SILU) return up;
  const float limit = xielu.alpha_n, below = up > limit ? limit : up;
  const float bounded = below < -limit ? -limit : below;
  return KIND == CLAMPED_SWIGLU ? bounded + 1.0f : bounded;
}

// Chunks first, first + step, .. of f(gate) * up, PARTS of them.
template <bool WIDE, u32 KIND, u32 PARTS>
__device__ __forceinline__ void activate_chunks(const T* gate, u32 inner, u32 first, u32 step,
                                                const XIelu& xielu,
                                                Chunk<T, CHUNK> (&result)[PARTS]) {
  Chunk<T, CHUNK> gates[PARTS], ups[PARTS];
#pragma unroll
  for (u32 j = 0; j < PARTS; ++j) {
    const u32 start = (first + j * step) * CHUNK;
    gates[j] = load_raw<WIDE, CHUNK>(gate, start, inner);
    ups[j] = load_raw<WIDE, CHUNK>(gate + inner, start, inner);
  }
#pragma unroll
  for (u32 j = 0; j < PARTS; ++j) {
    float x[CHUNK], y[CHUNK];
    unpack(gates[j], x);
    unpack(ups[j], y);
#pragma unroll
    for (u32 i = 0; i < CHUNK; ++i) x[i] = activated<KIND>(x[i], xielu) * gated<KIND>(y[i], xielu);
    pack(x, result[j]);
  }
}

template <bool WIDE, u32 KIND, u32 PARTS>
__device__ __forceinline__ void activate_row(const T* gate, T* out, u32 inner,
                                             const XIelu& xielu) {
  const u32 step = gridDim.y * blockDim.x;
  u32 first = blockIdx.y * blockDim.x + threadIdx.x;
  for (; first * CHUNK < inner; first += PARTS * step) {
    Chunk<T, CHUNK> result[PARTS];
    activate_chunks<WIDE, KIND>(gate, inner, first, step, xielu, result);
#pragma unroll
    for (u32 j = 0; j < PARTS; ++j) {
      store_raw<WIDE>(out, (first + j * step) * CHUNK, inner, result[j]);
    }
  }
}

// As `activate_row`, then E4M3 over the row's scale. A row that does not fit in the block's
// registers is computed again.
template <bool WIDE, u32 KIND, u32 PARTS>
__device__ __forceinline__ void activate_row_e4m3(const T* gate, u8* out, float* row_scale,
                                                  u32 inner, const XIelu& xielu,
                                                  u32 (&scratch)[WARP_SIZE]) {
  const u32 step = blockDim.x, span = PARTS * step;
  Chunk<T, CHUNK> held[PARTS];
  float x[CHUNK];
  u32 largest = 0;
  for (u32 base = 0; base * CHUNK < inner; base += span) {
    activate_chunks<WIDE, KIND>(gate, inner, base + threadIdx.x, step, xielu, held);
#pragma unroll
    for (u32 j = 0; j < PARTS; ++j) {
      unpack(held[j], x);
      largest = largest_size(largest, x);
    }
  }
  const RowQuantizer quantized(block_reduce<Max>(largest, scratch));
  if (threadIdx.x == 0) *row_scale = quantized.scale;
  for (u32 base = 0; base * CHUNK < inner; base += span) {
    const u32 first = base + threadIdx.x;
    if (span * CHUNK < inner) activate_chunks<WIDE, KIND>(gate, inner, first, step, xielu, held);
#pragma unroll
    for (u32 j = 0; j < PARTS; ++j) {
      unpack(held[j], x);
      store_raw<WIDE>(out, (first + j * step) * CHUNK, inner, quantized(x));
    }
  }
}

// No model gates with XIELU: one part at a time, which needs fewer registers.
template <u32 KIND>
__device__ __forceinline__ void activate_row_of(const T* gate, T* out, u32 inner,
                                                const XIelu& xielu) {
  if (KIND != XIELU && is_wide<CHUNK>(gate, inner) && is_wide<CHUNK>(out, inner)) {
    activate_row<true, KIND, NUM_PARTS>(gate, out, inner, xielu);
  } else {
    activate_row<false, KIND, 1>(gate, out, inner, xielu);
  }
}

// out (num_rows, inner) = f(gate) * up, where a row of gate_up (num_rows, 2 * inner) is gate then
// up. Grid (num_rows, any): the blocks of y share a row.
KERNEL(128, 8)
activate_and_mul(const T* gate_up, T* out, u32 inner, u32 kind, XIelu xielu) {
  gate_up += u64(blockIdx.x) * inner * 2;
  out += u64(blockIdx.x) * inner;
  if (kind == SILU) activate_row_of<SILU>(gate_up, out, inner, xielu);
  if (kind == GELU_TANH) activate_row_of<GELU_TANH>(gate_up, out, inner, xielu);
  if (kind == GELU) activate_row_of<GELU>(gate_up, out, inner, xielu);
  if (kind == RELU) activate_row_of<RELU>(gate_up, out, inner, xielu);
  if (kind == RELU2) activate_row_of<RELU2>(gate_up, out, inner, xielu);
  if (kind == XIELU) activate_row_of<XIELU>(gate_up, out, inner, xielu);
  if (kind == CLAMPED_SWIGLU) activate_row_of<CLAMPED_SWIGLU>(gate_up, out, inner, xielu);
  if (kind == BOUNDED_SILU) activate_row_of<BOUNDED_SILU>(gate_up, out, inner, xielu);
  if (kind == SCALED_SILU) activate_row_of<SCALED_SILU>(gate_up, out, inner, xielu);
  if (kind == QUICK_GELU) activate_row_of<QUICK_GELU>(gate_up, out, inner, xielu);
}
EXPORT(activate_and_mul)

template <u32 KIND>
__device__ __forceinline__ void activate_row_e4m3_of(const T* gate, u8* out, float* row_scale,
                                                     u32 inner, const XIelu& xielu,
                                                  u32 (&scratch)[WARP_SIZE]) {
  if (KIND != XIELU && is_wide<CHUNK>(gate, inner) && is_wide<CHUNK>(out, inner)) {
    activate_row_e4m3<true, KIND, NUM_HELD>(gate, out, row_scale, inner, xielu, scratch);
  } else {
    activate_row_e4m3<false, KIND, 1>(gate, out, row_scale, inner, xielu, scratch);
  }
}

// As `activate_and_mul` followed by `quantize_rows`: out (num_rows, inner) is E4M3, to be
// multiplied by scales (num_rows). One block per row, of any size up to 448; ceil(inner / 64)
// threads hold the row (f32: ceil(inner / 8)).
KERNEL(448)
activate_and_mul_fp8(const T* gate_up, u8* out, float* scales, u32 inner, u32 kind, XIelu xielu) {
  __shared__ u32 scratch[WARP_SIZE];
  gate_up += u64(blockIdx.x) * inner * 2;
  out += u64(blockIdx.x) * inner;
  scales += blockIdx.x;
  if (kind == SILU) activate_row_e4m3_of<SILU>(gate_up, out, scales, inner, xielu, scratch);
  if (kind == GELU_TANH) {
    activate_row_e4m3_of<GELU_TANH>(gate_up, out, scales, inner, xielu, scratch);
  }
  if (kind == GELU) activate_row_e4m3_of<GELU>(gate_up, out, scales, inner, xielu, scratch);
  if (kind == RELU) activate_row_e4m3_of<RELU>(gate_up, out, scales, inner, xielu, scratch);
  if (kind == RELU2) activate_row_e4m3_of<RELU2>(gate_up, out, scales, inner, xielu, scratch);
  if (kind == XIELU) activate_row_e4m3_of<XIELU>(gate_up, out, scales, inner, xielu, scratch);
  if (kind == SCALED_SILU) {
    activate_row_e4m3_of<SCALED_SILU>(gate_up, out, scales, inner, xielu, scratch);
  }
  if (kind == QUICK_GELU) {
    activate_row_e4m3_of<QUICK_GELU>(gate_up, out, scales, inner, xielu, scratch);
  }
}
EXPORT(activate_and_mul_fp8)

template <u32 KIND>
__device__ __forceinline__ void activate_all(T* x, u64 n, const XIelu& xielu) {
  const bool wide = is_wide<CHUNK>(x, 0);
  const u64 step = u64(gridDim.x) * blockDim.x * CHUNK;
  u64 start = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * CHUNK;
  for (; start < n; start += step) {
    float values[CHUNK];
    load_part(x, start, n, wide, values);
#pragma unroll
    for (u32 i = 0; i < CHUNK; ++i) values[i] = activated<KIND>(values[i], xielu);
    store_part(x, start, n, wide, values);
  }
}

// x (n) = f(x), in place. Any grid.
KERNEL(256) activate(T* x, u64 n, u32 kind, XIelu xielu) {
  if (kind == SILU) activate_all<SILU>(x, n, xielu);
  if (kind == GELU_TANH) activate_all<GELU_TANH>(x, n, xielu);
  if (kind == GELU) activate_all<GELU>(x, n, xielu);
  if (kind == RELU) activate_all<RELU>(x, n, xielu);
  if (kind == RELU2) activate_all<RELU2>(x, n, xielu);
  if (kind == XIELU) activate_all<XIELU>(x, n, xielu);
  if (kind == SCALED_SILU) activate_all<SCALED_SILU>(x, n, xielu);
  if (kind == QUICK_GELU) activate_all<QUICK_GELU>(x, n, xielu);
}
EXPORT(activate)
