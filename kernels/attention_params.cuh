// What the host says of one launch of attention.
#pragma once

#include "attention_work.cuh"

// Units of decode that a later launch takes, and to which others add tokens.
struct DecodeList {
  AttentionWork* items;
  u32* num_items;
  u32* is_added;  // a bit for each token of the step, 0 at its start
};

// Tokens of a step whose sequences begin with the same K and V, and splits of these.
struct SharedWork {
  u32 first, num_tokens;  // of the list of tokens
  u32 seq;                // row of the block tables: of any of the tokens' sequences
  u32 start, end;         // positions, both where splits end, before any of the tokens
  u32 place;              // which of a token's slots the first split goes to
};
struct SharedToken {
  u32 token;  // flat index
  u32 slot;   // its first one
};

// Whether sequences are whole texts, whose tokens may see those after them (-DTEXTS=1). Else a
// token sees itself and what is before it.
#if TEXTS
constexpr bool IS_TEXTS = true;
#else
constexpr bool IS_TEXTS = false;
#endif

// Whether tokens of images see all of theirs, which is in the step (-DIMAGES=1).
#if IMAGES
constexpr bool HAS_IMAGES = true;
#else
constexpr bool HAS_IMAGES = false;
#endif
// Whether a token may see others behind it.
constexpr bool SEES_BEHIND = IS_TEXTS || HAS_IMAGES;
static_assert(!(IS_TEXTS && HAS_IMAGES), "tokens of texts see all of theirs");

// Whether a number is added to each score: ALiBi's slope times the distance (-DALIBI=1), or, in
// texts, one from a table (-DBIAS=1). Models without pay nothing for it.
#if ALIBI
constexpr bool HAS_ALIBI = true;
#else
constexpr bool HAS_ALIBI = false;
#endif
#if BIAS
constexpr bool HAS_BIAS = true;
#else
constexpr bool HAS_BIAS = false;
#endif
// Whether heads have sinks (-DSINKS=1): scores that are in the softmax and have no value.
#if SINKS
constexpr bool HAS_SINKS = true;
#else
constexpr bool HAS_SINKS = false;
#endif
// Whether a token sees its own chunk of positions (-DREACH_CHUNKS=1). Else a window, or all.
#if REACH_CHUNKS
constexpr bool IS_CHUNKED = true;
#else
constexpr bool IS_CHUNKED = false;
#endif
// Whether K and V are latents (-DLATENT_DIM=..): the V of a position is the last LATENT_DIM values
// of its K. Else V is as wide as K, and lies apart.
#ifdef LATENT_DIM
constexpr bool IS_LATENT = true;
constexpr u32 V_DIM = LATENT_DIM;
#else
constexpr bool IS_LATENT = false;
constexpr u32 V_DIM = HEAD_DIM;
#endif
static_assert(V_DIM <= HEAD_DIM, "a latent is a part of K");
// Whether a token has chosen the blocks that it sees (-DCHOSEN=1): of latents single positions,
// else blocks of the cache, for each K and V head its own.
#if CHOSEN
constexpr bool IS_CHOSEN = true;
#else
constexpr bool IS_CHOSEN = false;
#endif
static_assert(IS_TEXTS ? !HAS_ALIBI : !HAS_BIAS, "slopes are for causal rows, tables for texts");

struct AttentionParams {
  u32 num_heads, num_kv_heads;  // of the layer; the same number of heads shares each of K and V
  u32 cache_kv_heads;           // of the caches; the layer has the first num_kv_heads
  u32 block_size, max_blocks_per_seq, qkv_stride;
  // Positions that a token sees up to itself, itself included; 0: all. REACH_CHUNKS: of a chunk.
  u32 window;
  u32 after;   // TEXTS: and how many after it
  u32 bias_stride, bias_origin;  // BIAS: numbers of a head, and which of them is of distance 0
  float scale, soft_cap;         // soft_cap 0: none
  // ALIBI: slopes (num_heads). BIAS: (num_heads, bias_stride), by key position - query position.
  const float* biases;
  const float* sinks;  // SINKS: (num_heads)
  void* states;        // PREFILL_STATES_APART: of all warps of the blocks that are resident
  const u32* ends;     // IMAGES: (num_tokens) where what each token sees ends; it never falls

  // Where the block table of a work item's K and V head begins in the tables. CHOSEN: each head has
  // one, of max_blocks_per_seq entries, and `seq` is the first entry of the first one.
  __device__ __forceinline__ u64 table_of(const AttentionWork& item, u32 kv_head) const {
    if (IS_CHOSEN) return u64(item.seq) + kv_head * max_blocks_per_seq;
    return u64(item.seq) * max_blocks_per_seq;
  }
  // The first and the last position that a token at `position` sees.
  __device__ __forceinline__ u32 first_seen(u32 position) const {
    if (IS_CHUNKED) return position - position % window;
    return window > 0 && position + 1 > window ? position + 1 - window : 0;
  }
  // With a window or chunks: the first position whose token does not see this one before it.
  __device__ __forceinline__ u32 first_blind(u32 position) const {
    return (IS_CHUNKED ? first_seen(position) : position) + window;
  }
  __device__ __forceinline__ u32 last_seen(const AttentionWork& item, u32 position) const {
    if (HAS_IMAGES) return ends[item.token + position - item.position] - 1;
    return IS_TEXTS ? min(item.end - 1, position + after) : position;
  }
  // BIAS: the numbers of a query at `position` and the keys from position `key` on.
  __device__ __forceinline__ const float* bias_of(u32 head, u32 position, u32 key) const {
    return biases + (u64(head) * bias_stride + bias_origin + key - position);
  }
};
