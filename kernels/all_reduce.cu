// Tensor parallel: the sum of what each rank has computed, on every rank.
#include "common.cuh"
#include "ptx.cuh"

// x (n) = ((x of rank 0 + x of rank 1) + ..) in f32, rounded once; equal bits on every rank.
// memories (num_ranks): of each rank the address of memory that all reach, zeroed at first:
// arrivals (num_ranks, gridDim.x), padded to 256 bytes, then two halves of `capacity` elements. A
// sum takes one half and the next sum the other, so that a rank that is one sum ahead writes
// nothing that another still reads.
// epochs (gridDim.x): sums so far, of this rank; a counter on the device, so that a graph replays.
// stop (1): not 0 once a rank has failed; then nobody waits, and x is of no use.
// capacity: n at most, a multiple of 256. The same grid in every launch of all ranks, all of whose
// blocks run at once: blocks of one number wait for each other.
KERNEL(256)
all_reduce(T* x, const u64* memories, u32* epochs, const u32* stop, u32 rank, u32 num_ranks,
           u64 capacity, u64 n) {
  const u32 epoch = epochs[blockIdx.x] + 1;
  const u64 arrivals = (u64(num_ranks) * gridDim.x * sizeof(u32) + 255) / 256 * 256;
  const u64 half = arrivals + epoch % 2 * capacity * sizeof(T);
  const bool wide = is_wide<CHUNK>(x, 0);
  const u64 stride = u64(gridDim.x) * blockDim.x * CHUNK;
  const u64 first = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * CHUNK;
  T* own = reinterpret_cast<T*>(memories[rank] + half);
  for (u64 start = first; start < n; start += stride) {
    float values[CHUNK];
    load_part(x, start, n, wide, values);
    store_part(own, start, capacity, true, values);
  }
  __syncthreads();
  if (threadIdx.x < num_ranks) {
    u32* there = reinterpret_cast<u32*>(memories[threadIdx.x]);
    set_for_ranks(there + rank * gridDim.x + blockIdx.x, epoch);
  }
  // No thread waits before all have told: on the shim one that waits holds the others up.
  __syncthreads();
  if (threadIdx.x < num_ranks) {
    const u32* here = reinterpret_cast<const u32*>(memories[rank]);
    wait_for_rank(here + threadIdx.x * gridDim.x + blockIdx.x, epoch, stop);
  }
  __syncthreads();
  if (threadIdx.x == 0) epochs[blockIdx.x] = epoch;
  for (u64 start = first; start < n; start += stride) {
    float sum[CHUNK];
    load_part(reinterpret_cast<const T*>(memories[0] + half), start, capacity, true, sum);
#pragma unroll 1
    for (u32 other = 1; other < num_ranks; ++other) {
      const T* part = reinterpret_cast<const T*>(memories[other] + half);
      float values[CHUNK];
      load_part(part, start, capacity, true, values);
#pragma unroll
      for (u32 i = 0; i < CHUNK; ++i) sum[i] += values[i];
    }
    store_part(x, start, n, wide, sum);
  }
}
EXPORT(all_reduce)
