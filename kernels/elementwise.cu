// Element by element: adding to the residual stream, narrowing, multiplying, bounding.
#include "common.cuh"

template <u32 N, class E>
__device__ __forceinline__ void add_all(E* x, const T* y, u64 n) {
  const bool wide = is_wide<N>(x, 0) && is_wide<N>(y, 0);
  const u64 stride = u64(gridDim.x) * blockDim.x * N;
  u64 start = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  for (; start < n; start += stride) {
    float a[N], b[N];
    load_part(x, start, n, wide, a);
    load_part(y, start, n, wide, b);
#pragma unroll
    for (u32 i = 0; i < N; ++i) a[i] += b[i];
    store_part(x, start, n, wide, a);
  }
}

// residual (n) += delta (n). Any grid.
KERNEL(256) add(float* residual, const T* delta, u64 n) { add_all<F32_CHUNK>(residual, delta, n); }
EXPORT(add)

// x (n) += y (n), rounded. Any grid.
KERNEL(256) add_activations(T* x, const T* y, u64 n) { add_all<CHUNK>(x, y, n); }
EXPORT(add_activations)

template <class In, class Out>
__device__ __forceinline__ void copy_all(const In* x, Out* out, u64 n) {
  const bool wide = is_wide<F32_CHUNK>(x, 0) && is_wide<F32_CHUNK>(out, 0);
  const u64 stride = u64(gridDim.x) * blockDim.x * F32_CHUNK;
  u64 start = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * F32_CHUNK;
  for (; start < n; start += stride) {
    float values[F32_CHUNK];
    load_part(x, start, n, wide, values);
    store_part(out, start, n, wide, values);
  }
}

// out (n) = x (n), rounded. Any grid.
KERNEL(256) convert(const float* x, T* out, u64 n) { copy_all(x, out, n); }
EXPORT(convert)

// out (n) = x (n). Any grid.
KERNEL(256) widen(float* out, const T* x, u64 n) { copy_all(x, out, n); }
EXPORT(widen)

struct Scale {
  float factor;

  __device__ __forceinline__ float operator()(float x) const { return x * factor; }
};

// The comparisons let a NaN through.
struct Clamp {
  float limit;

  __device__ __forceinline__ float operator()(float x) const {
    if (x < -limit) return -limit;
    return x > limit ? limit : x;
  }
};

template <u32 N, class E, class Change>
__device__ __forceinline__ void change_all(E* x, u64 n, Change change) {
  const bool wide = is_wide<N>(x, 0);
  const u64 stride = u64(gridDim.x) * blockDim.x * N;
  u64 start = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  for (; start < n; start += stride) {
    float values[N];
    load_part(x, start, n, wide, values);
#pragma unroll
    for (u32 i = 0; i < N; ++i) values[i] = change(values[i]);
    store_part(x, start, n, wide, values);
  }
}

// x (n) *= factor, in place. Any grid.
KERNEL(256) scale(float* x, float factor, u64 n) { change_all<F32_CHUNK>(x, n, Scale{factor}); }
EXPORT(scale)

// As `scale`, rounded.
KERNEL(256) scale_activations(T* x, float factor, u64 n) {
  change_all<CHUNK>(x, n, Scale{factor});
}
EXPORT(scale_activations)

// x (n) = min(max(x, -limit), limit), in place. Any grid.
KERNEL(256) clamp(float* x, float limit, u64 n) { change_all<F32_CHUNK>(x, n, Clamp{limit}); }
EXPORT(clamp)

// As `clamp`, rounded.
KERNEL(256) clamp_activations(T* x, float limit, u64 n) {
  change_all<CHUNK>(x, n, Clamp{limit});
}
EXPORT(clamp_activations)

// x (num_rows, width) *= factors (width), rounded, in place. One block per row, of any size.
KERNEL(1024) scale_columns(T* x, const float* factors, u32 width) {
  const bool wide = is_wide<F32_CHUNK>(x, width) && is_wide<F32_CHUNK>(factors, width);
  T* row = x + u64(blockIdx.x) * width;
  for (u32 i = threadIdx.x * F32_CHUNK; i < width; i += blockDim.x * F32_CHUNK) {
    float values[F32_CHUNK], by[F32_CHUNK];
    load_part(row, i, width, wide, values);
    load_part(factors, i, width, wide, by);
#pragma unroll
    for (u32 j = 0; j < F32_CHUNK; ++j) values[j] *= by[j];
    store_part(row, i, width, wide, values);
  }
}
EXPORT(scale_columns)

// Columns start .. start + width of x (num_rows, row_stride) *= 1 + beta ln(1 + floor((position +
// offset) / original)), of each row's positions (num_rows); in place. One block per row, of any
// size.
KERNEL(1024)
scale_by_position(T* x, const u32* positions, float beta, float offset, float original,
                  u32 row_stride, u32 start, u32 width) {
  const float position = float(positions[blockIdx.x]) + offset;
  const float factor = 1.0f + beta * logf(1.0f + floorf(position / original));
  const bool wide = is_wide<CHUNK>(x + start, row_stride);
  T* row = x + u64(blockIdx.x) * row_stride + start;
  for (u32 i = threadIdx.x * CHUNK; i < width; i += blockDim.x * CHUNK) {
    float values[CHUNK];
    load_part(row, i, width, wide, values);
#pragma unroll
    for (u32 j = 0; j < CHUNK; ++j) values[j] *= factor;
    store_part(row, i, width, wide, values);
  }
}
EXPORT(scale_by_position)

// out (num_rows, width) = e^(-rate * softplus(a + bias)), or e^(bound * sigmoid(rate * (a + bias)))
// with a bound below 0, where a are columns first .. first + width of x (num_rows, stride), and
// `num` of them beside each other share a rate. Any grid; n = num_rows * width.
KERNEL(256)
delta_decays(const T* x, float* out, const float* rates, const float* bias, u32 stride, u32 first,
             u32 width, u32 num, float bound, u64 n) {
  const u64 step = u64(gridDim.x) * blockDim.x;
  for (u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const u32 column = i % width;
    const float a = to_float(x[i / width * stride + first + column]) + bias[column];
    const float rate = rates[column / num];
    const float bounded = bound / (1.0f + expf(-rate * a));
    out[i] = expf(bound < 0.0f ? bounded : -rate * softplus(a));
  }
}
EXPORT(delta_decays)
