// Norms of a token's heads, then what rotary_and_cache does, in one pass over the row: the bits of
// norm_heads followed by rotary_and_cache.
#include "norm.cuh"
#include "rotary.cuh"

// Threads of a block, at most.
constexpr u32 MAX_THREADS = 256;

// Of the heads of q, k or v.
struct HeadNorm {
  const float* weight;  // of the first head; null: they are not normalized
  const float* bias;
  float eps;
  u32 weight_step;  // from the weights of a head to those of the next; 0: all share them

  template <u32 N>
  __device__ __forceinline__ bool is_wide(u32 width) const {
    return ::is_wide<N>(weight, width) && ::is_wide<N>(bias, width);
  }

  // By value, field by field: an address of a parameter would need a stack.
  __device__ __forceinline__ HeadNorm or_else(bool is_own, const HeadNorm& other) const {
    return HeadNorm{is_own ? weight : other.weight, is_own ? bias : other.bias,
                    is_own ? eps : other.eps, is_own ? weight_step : other.weight_step};
  }
};

struct HeadNorms {
  HeadNorm q, k, v;
  u32 is_layer;

  // Of a head of the row, with its own weights; null weights if it is not normalized.
  __device__ __forceinline__ Norm of_head(const Shape& shape, u32 head) const {
    const bool is_q = head < shape.num_heads, is_k = shape.is_k(head);
    const HeadNorm own = q.or_else(is_q, k.or_else(is_k, v));
    const u32 column = head - (is_q ? 0 : is_k ? shape.num_heads : shape.k_end());
    const Norm norm{own.weight, own.bias, own.eps, is_layer};
    return own.weight ? norm.of_head(column, own.weight_step) : norm;
  }

  template <u32 N>
  __device__ __forceinline__ bool are_wide(u32 width) const {
    return q.is_wide<N>(width) && k.is_wide<N>(width) && v.is_wide<N>(width);
  }
};

// How one thread's chunk of every head of a token is rotated, from value `start` of the head on.
template <bool WIDE>
struct Turn {
  const u32 start, rotary_dim, half;
  float cos[CHUNK], sin[CHUNK];  // the sine of a first half is negated

  __device__ __forceinline__ Turn(const TokenAngles& of_token, u32 start, u32 rotary_dim)
      : start(start), rotary_dim(rotary_dim), half(rotary_dim / 2) {
    if (!turns()) return;
    float angles[2 * CHUNK];
    if constexpr (WIDE) {
      const u32 pair = start < half ? start : start - half;
      unpack(of_token.load<WIDE, 2 * CHUNK>(pair, half), angles);
    }
#pragma unroll
    for (u32 i = 0; i < CHUNK; ++i) {
      const u32 own = start + i, pair = own < half ? own : own - half;
      if constexpr (!WIDE) {
        float of_pair[2];
        unpack(of_token.load<false, 2>(pair, own < rotary_dim ? half : 0), of_pair);
        angles[2 * i] = of_pair[0];
        angles[2 * i + 1] = of_pair[1];
      }
      cos[i] = angles[2 * i];
      sin[i] = own < half ? -angles[2 * i + 1] : angles[2 * i + 1];
    }
  }

  __device__ __forceinline__ bool turns() const { return start < rotary_dim; }

  // Rotates the chunk; its partners are in `head`, as they were before.
  __device__ __forceinline__ void rotate(const T* head, Chunk<T, CHUNK>& chunk) const {
    float x[CHUNK], partner[CHUNK];
    unpack(chunk, x);
    if constexpr (WIDE) {
      const u32 from = start < half ? start + half : start - half;
      unpack(load_whole<T, CHUNK>(head + from), partner);
    }
#pragma unroll
    for (u32 i = 0; i < CHUNK; ++i) {
      const u32 own = start + i;
      if constexpr (!WIDE) {
        if (own >= rotary_dim) break;
        partner[i] = to_float(head[own < half ? own + half : own - half]);
      }
      x[i] = x[i] * cos[i] + partner[i] * sin[i];
    }
    pack(x, chunk);
  }
};

// A head has as many neighbouring lanes as norm_heads gives it, a chunk each.
template <bool WIDE>
__device__ __forceinline__ void norm_rotate_and_cache(T* row, const TokenAngles& of_token,
                                                      u32 slot_index, KV* k_cache, KV* v_cache,
                                                      const Shape& shape, const HeadNorms& norms,
                                                      T* scratch) {
  const u32 head_dim = shape.head_dim;
  u32 lanes = 1;
  while (lanes * CHUNK < head_dim) lanes *= 2;
  const u32 own_lane = threadIdx.x % lanes, start = own_lane * CHUNK;
  const u32 heads_at_once = blockDim.x / lanes, step = heads_at_once * gridDim.y;
  const u32 end = v_cache ? shape.v_end() : shape.k_end();
  T *own_place = scratch + threadIdx.x * CHUNK, *of_head = own_place - start;
  u32 turn = blockIdx.y * heads_at_once, head = turn + threadIdx.x / lanes;
  auto load = [&](u32 head) {
    return load_raw<WIDE, CHUNK>(row + head * head_dim, start, head < end ? head_dim : 0);
  };
  Chunk<T, CHUNK> next[1] = {load(head)};
  const Turn<WIDE> of_chunk(of_token, start, shape.rotary_dim);
  const bool has_slot = k_cache && slot_index != NO_SLOT;
  const Slot slot(shape, slot_index, k_cache, v_cache);
  // All lanes of a warp stay in the loop, for the butterfly; past the last head they hold nothing.
  for (; turn < end; turn += step, head += step) {
    Chunk<T, CHUNK> chunk[1] = {next[0]};
    next[0] = load(head + step);
    const bool exists = head < end;
    const Norm norm = norms.of_head(shape, head);
    const bool is_normed = exists && norm.weight;
    const Lanes group{is_normed ? own_lane : lanes, lanes};
    NormRow<WIDE, 1, CHUNK, Lanes> values(norm, head_dim, group);
    values.prepare(chunk);
    if (is_normed) {
      values.normalize(row, 0);
      pack(values.x[0], chunk[0]);
    }
    const bool is_rotated = exists && head < shape.k_end() && of_chunk.turns();
    store_whole(own_place, chunk[0]);
    __syncwarp();
    if (is_rotated) of_chunk.rotate(of_head, chunk[0]);
    __syncwarp();
    if (is_normed || is_rotated) {
      store_raw<WIDE>(row + head * head_dim, start, head_dim, chunk[0]);
    }
    if (has_slot && exists && head >= shape.num_heads) {
      store_kv<WIDE>(slot.of_head(shape, head), start, head_dim, chunk[0]);
    }
  }
}

// As `rotary_and_cache`, with heads of q, k and v normalized before: each rms or, with is_layer,
// layer norms. head_dim is even and at most 256. Grid (num_tokens, any): the blocks of y share a
// token; a multiple of 32 threads, at most 256.
KERNEL(256)
norm_rotary_and_cache(T* qkv, Angles angles, const u32* slot_mapping, KV* k_cache, KV* v_cache,
                      u32 row_stride, Shape shape, HeadNorm q, HeadNorm k, HeadNorm v,
                      u32 is_layer) {
  // Words, for their alignment.
  __shared__ Words<4> words[MAX_THREADS * CHUNK * sizeof(T) / 16];
  T* scratch = reinterpret_cast<T*>(words);
  T* row = qkv + u64(blockIdx.x) * row_stride;
  const u32 slot = slot_mapping[blockIdx.x];
  const TokenAngles of_token(angles, blockIdx.x, shape.rotary_dim);
  const HeadNorms norms{q, k, v, is_layer};
  const u32 head_dim = shape.head_dim;
  const bool wide = head_dim % CHUNK == 0 && shape.rotary_dim % (2 * CHUNK) == 0 &&
                    is_wide<CHUNK>(qkv, row_stride) && is_aligned(angles.cos_sin, 16) &&
                    is_aligned(k_cache, 16) && is_aligned(v_cache, 16) &&
                    norms.are_wide<CHUNK>(head_dim);
  if (wide) {
    norm_rotate_and_cache<true>(row, of_token, slot, k_cache, v_cache, shape, norms, scratch);
  } else {
    norm_rotate_and_cache<false>(row, of_token, slot, k_cache, v_cache, shape, norms, scratch);
  }
}
EXPORT(norm_rotary_and_cache)
