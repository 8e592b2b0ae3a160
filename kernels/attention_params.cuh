// What the host says of one launch of attention.
#pragma once

#include "common.cuh"

struct AttentionWork {
  u32 token;       // flat index of the first query token
  u32 num_tokens;  // query tokens
  u32 seq;         // row of the block tables
  u32 position;    // absolute position of the first query token
};

struct AttentionParams {
  u32 num_heads, num_kv_heads;  // of the layer; the same number of heads shares each of K and V
  u32 cache_kv_heads;           // of the caches; the layer has the first num_kv_heads
  u32 block_size, max_blocks_per_seq, qkv_stride;
  u32 window;  // 0: none
  float scale, soft_cap;  // soft_cap 0: none
  const float* alibi_slopes;  // (num_heads); null without ALIBI
};

// Whether `alibi_slopes` are there. Models without pay nothing for it.
#if ALIBI
constexpr bool HAS_ALIBI = true;
#else
constexpr bool HAS_ALIBI = false;
#endif
