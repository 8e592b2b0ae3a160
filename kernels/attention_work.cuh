// Units of work of attention.
#pragma once

#include "common.cuh"

struct AttentionWork {
  u32 token;       // flat index of the first query token
  u32 num_tokens;  // query tokens
  u32 seq;         // row of the block tables
  u32 position;    // absolute position of the first query token
  u32 start, end;  // positions that this unit computes, of those that any of the tokens sees
  u32 slot;        // of decode: where the first split is kept, NO_SLOT: the unit is all of a row
};
constexpr u32 NO_SLOT = 0xFFFFFFFFu;
