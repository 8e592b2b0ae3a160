// Rows of tables by token id or by position.
#include "common.cuh"

template <class Out>
__device__ __forceinline__ void copy_scaled(const T* row, float scale, Out* out, u32 width) {
  const bool wide = is_wide<F32_CHUNK>(row, width) && is_wide<F32_CHUNK>(out, width);
  for (u32 start = threadIdx.x * F32_CHUNK; start < width; start += blockDim.x * F32_CHUNK) {
    float x[F32_CHUNK];
    load_part(row, start, width, wide, x);
#pragma unroll
    for (u32 i = 0; i < F32_CHUNK; ++i) x[i] *= scale;
    store_part(out, start, width, wide, x);
  }
}

// out (num_tokens, width) of f32 or T = table (num_ids, width)[ids (num_tokens)] * scale. An id
// behind the table has its first row. One block per token.
KERNEL(1024)
embedding(const u32* ids, const T* table, float scale, void* out, u32 width, u32 num_ids,
          u32 out_is_f32) {
  const u32 id = ids[blockIdx.x];
  const T* row = table + u64(id < num_ids ? id : 0) * width;
  const u64 start = u64(blockIdx.x) * width;
  if (out_is_f32) {
    copy_scaled(row, scale, static_cast<float*>(out) + start, width);
  } else {
    copy_scaled(row, scale, static_cast<T*>(out) + start, width);
  }
}
EXPORT(embedding)

// out (num_tokens, width) += table (num_positions, width)[positions (num_tokens) + offset].
// One block per token.
KERNEL(1024)
add_rows(const u32* positions, u32 offset, const float* table, float* out, u32 width) {
  const float* row = table + (u64(positions[blockIdx.x]) + offset) * width;
  out += u64(blockIdx.x) * width;
  const bool wide = is_wide<F32_CHUNK>(row, width) && is_wide<F32_CHUNK>(out, width);
  for (u32 start = threadIdx.x * F32_CHUNK; start < width; start += blockDim.x * F32_CHUNK) {
    float x[F32_CHUNK], y[F32_CHUNK];
    load_part(out, start, width, wide, x);
    load_part(row, start, width, wide, y);
#pragma unroll
    for (u32 i = 0; i < F32_CHUNK; ++i) x[i] += y[i];
    store_part(out, start, width, wide, x);
  }
}
EXPORT(add_rows)
