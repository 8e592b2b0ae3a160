// What rows of queries find among the rows of a group each, as Molmo 2 makes tokens of patches.
#include "mixed_rows.cuh"

// Rows of the largest group: MAX_GROUP of group_attention.rs.
constexpr u32 MAX_GROUP = 64;

// out (num_rows, num_heads * head_dim)[i] = the values of rows shares[ends[i - 1]..ends[i]] of kv
// (any, 2 * num_kv_heads * head_dim: keys, then values), by how well their keys times `scale` fit
// row i of q, which is as out is. Shares in the mean do not count. Sums go upward. Grid (num_rows,
// num_heads).
KERNEL(64)
group_attention(const u32* ends, const Share* shares, const T* q, const T* kv, T* out,
                u32 num_heads, u32 num_kv_heads, u32 head_dim, float scale) {
  __shared__ float weights[MAX_GROUP];
  const u32 row = blockIdx.x, head = blockIdx.y;
  const u32 first = first_share(ends, row);
  const u32 num = ends[row] - first;
  const u32 width = num_kv_heads * head_dim;
  shares += first;
  const T* query = q + (u64(row) * num_heads + head) * head_dim;
  kv += head / (num_heads / num_kv_heads) * head_dim;
  for (u32 i = threadIdx.x; i < num; i += blockDim.x) {
    const T* key = kv + u64(shares[i].id) * 2 * width;
    float sum = 0.0f;
    for (u32 j = 0; j < head_dim; ++j) sum += to_float(query[j]) * scale * to_float(key[j]);
    weights[i] = sum;
  }
  __syncthreads();
  float top = -infinity(), sum = 0.0f;
  for (u32 i = 0; i < num; ++i) top = fmaxf(top, weights[i]);
  for (u32 i = 0; i < num; ++i) sum += expf(weights[i] - top);
  out += (u64(row) * num_heads + head) * head_dim;
  for (u32 j = threadIdx.x; j < head_dim; j += blockDim.x) {
    float value = 0.0f;
    for (u32 i = 0; i < num; ++i) {
      const T* values = kv + (u64(shares[i].id) * 2 + 1) * width;
      value += expf(weights[i] - top) / sum * to_float(values[j]);
    }
    out[j] = from_float<T>(value);
  }
}
EXPORT(group_attention)
