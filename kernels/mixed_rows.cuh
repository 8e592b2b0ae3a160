// Rows that are of several rows of a table each: those of row i are shares[ends[i - 1]..ends[i]].
#pragma once

#include "common.cuh"

// A row of a table with its share in a sum.
struct Share {
  u32 id;
  float share;
};

// Where the shares of a row begin.
__device__ __forceinline__ u32 first_share(const u32* ends, u32 row) {
  return row == 0 ? 0 : ends[row - 1];
}
