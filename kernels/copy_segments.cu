// What the host has written for a step, to where the step's kernels read it.
#include "common.cuh"

struct Segment {
  const u32* from;  // in pinned memory of the host, aligned to 16 bytes
  u32* to;
  u64 num_words;
};

// Copies segments (gridDim.x), a pinned list too. Grid (number of segments, any): the blocks of y
// share a segment. Any threads.
KERNEL(128) copy_segments(const Segment* segments) {
  const Segment segment = segments[blockIdx.x];
  const u64 first = u64(blockIdx.y) * blockDim.x + threadIdx.x;
  const u64 step = u64(gridDim.y) * blockDim.x;
  const u64 num_whole = is_aligned(segment.to, 16) ? segment.num_words / 4 : 0;
  for (u64 i = first; i < num_whole; i += step) {
    store_whole(segment.to + 4 * i, load_whole<u32, 4>(segment.from + 4 * i));
  }
  for (u64 i = 4 * num_whole + first; i < segment.num_words; i += step) {
    segment.to[i] = segment.from[i];
  }
}
EXPORT(copy_segments)
