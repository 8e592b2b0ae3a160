// Some columns of rows: copied to other columns, and as gates of others.
#include "common.cuh"

// Runs of columns in rows of `row_stride`, the first from column `start` on, `stride` from each
// other.
struct Columns {
  u32 row_stride, start, stride;
};

template <bool WIDE>
__device__ __forceinline__ void copy_runs(const T* x, u32 x_stride, T* out, u32 out_stride,
                                          u32 num_runs, u32 width) {
  const u32 chunks = (width + CHUNK - 1) / CHUNK, step = gridDim.y * blockDim.x;
  for (u32 i = blockIdx.y * blockDim.x + threadIdx.x; i < num_runs * chunks; i += step) {
    const u32 run = i / chunks, start = i % chunks * CHUNK;
    const Chunk<T, CHUNK> values = load_raw<WIDE, CHUNK>(x + run * x_stride, start, width);
    store_raw<WIDE>(out + run * out_stride, start, width, values);
  }
}

// Columns `to` of out (num_rows, to.row_stride) = columns `from` of x (num_rows, from.row_stride),
// `num_runs` of `width`. Grid (num_rows, any).
KERNEL(256)
copy_columns(const T* x, Columns from, T* out, Columns to, u32 num_runs, u32 width) {
  x += u64(blockIdx.x) * from.row_stride + from.start;
  out += u64(blockIdx.x) * to.row_stride + to.start;
  const bool wide =
      width % CHUNK == 0 && is_wide<CHUNK>(x, from.stride) && is_wide<CHUNK>(out, to.stride);
  if (wide) {
    copy_runs<true>(x, from.stride, out, to.stride, num_runs, width);
  } else {
    copy_runs<false>(x, from.stride, out, to.stride, num_runs, width);
  }
}
EXPORT(copy_columns)

// Values of `kind`, in the order of the engine's `Gate`.
constexpr u32 PLAIN = 0;
constexpr u32 SIGMOID = 1;
constexpr u32 SOFTPLUS = 3;

__device__ __forceinline__ float gate_of(float x, u32 kind) {
  if (kind == PLAIN) return x;
  if (kind == SOFTPLUS) return softplus(x);
  return kind == SIGMOID ? logistic(x) : x * logistic(x);
}

// x (num_rows, width) *= f(gates), rounded: the gates of a row are columns of that row of gates
// (num_rows, row_stride), from column `start` on, one of each `head_dim` values. Grid (num_rows,
// any).
KERNEL(256)
gate_columns(T* x, const T* gates, u32 row_stride, u32 start, u32 width, u32 head_dim, u32 kind) {
  x += u64(blockIdx.x) * width;
  gates += u64(blockIdx.x) * row_stride + start;
  const bool wide = is_wide<CHUNK>(x, 0) && is_wide<CHUNK>(gates, 0);
  const u32 step = gridDim.y * blockDim.x * CHUNK;
  for (u32 i = (blockIdx.y * blockDim.x + threadIdx.x) * CHUNK; i < width; i += step) {
    float values[CHUNK], by[CHUNK];
    load_part(x, i, width, wide, values);
    if (head_dim == 1) {
      load_part(gates, i, width, wide, by);
    } else {
      for (u32 j = 0; j < CHUNK; ++j) {
        by[j] = i + j < width ? to_float(gates[(i + j) / head_dim]) : 0.0f;
      }
    }
#pragma unroll
    for (u32 j = 0; j < CHUNK; ++j) values[j] *= gate_of(by[j], kind);
    store_part(x, i, width, wide, values);
  }
}
EXPORT(gate_columns)
