// Rows to E4M3, one scale each.
#include "common.cuh"

// Chunks of a row that a thread holds in registers.
constexpr u32 NUM_PARTS = sizeof(T) == 4 ? 2 : 4;

template <bool WIDE, u32 PARTS>
__device__ __forceinline__ void load_chunks(const T* x, u32 first, u32 width,
                                            Chunk<T, CHUNK> (&chunks)[PARTS]) {
#pragma unroll
  for (u32 j = 0; j < PARTS; ++j) {
    chunks[j] = load_raw<WIDE, CHUNK>(x, (first + j * blockDim.x) * CHUNK, width);
  }
}

// A row that does not fit in the block's registers is read again.
template <bool WIDE, u32 PARTS>
__device__ __forceinline__ void quantize_row(const T* x, u8* out, float* row_scale, u32 width,
                                             u32 (&scratch)[WARP_SIZE]) {
  const u32 span = PARTS * blockDim.x;
  Chunk<T, CHUNK> chunks[PARTS];
  float values[CHUNK];
  u32 largest = 0;
  for (u32 base = 0; base * CHUNK < width; base += span) {
    load_chunks<WIDE>(x, base + threadIdx.x, width, chunks);
#pragma unroll
    for (u32 j = 0; j < PARTS; ++j) {
      unpack(chunks[j], values);
      largest = largest_size(largest, values);
    }
  }
  const RowQuantizer quantized(block_reduce<Max>(largest, scratch));
  if (threadIdx.x == 0) *row_scale = quantized.scale;
  for (u32 base = 0; base * CHUNK < width; base += span) {
    const u32 first = base + threadIdx.x;
    if (span * CHUNK < width) load_chunks<WIDE>(x, first, width, chunks);
#pragma unroll
    for (u32 j = 0; j < PARTS; ++j) {
      unpack(chunks[j], values);
      store_raw<WIDE>(out, (first + j * blockDim.x) * CHUNK, width, quantized(values));
    }
  }
}

// Blocks at once on a multiprocessor. Without an instruction for E4M3 the conversion takes more
// registers.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr u32 MIN_BLOCKS = 2;
#else
constexpr u32 MIN_BLOCKS = 3;
#endif

// scales (num_rows) = absmax / 448 of each row of x (num_rows, width), 1 for a row of zeros;
// out (num_rows, width) = x / scale as E4M3. One block per row, of any size up to 512;
// ceil(width / 32) threads hold the row (f32: ceil(width / 16)).
KERNEL(512, MIN_BLOCKS) quantize_rows(const T* x, u8* out, float* scales, u32 width) {
  __shared__ u32 scratch[WARP_SIZE];
  x += u64(blockIdx.x) * width;
  out += u64(blockIdx.x) * width;
  scales += blockIdx.x;
  if (is_wide<CHUNK>(x, width) && is_wide<CHUNK>(out, width)) {
    quantize_row<true, NUM_PARTS>(x, out, scales, width, scratch);
  } else {
    quantize_row<false, 1>(x, out, scales, width, scratch);
  }
}
EXPORT(quantize_rows)

// Rows of E4M3 (strips of 8, k) in the order of kernels/code_tiles.cuh: units of 32 inputs, k
// filled up to a multiple of 128 with zeros, and a scale of each row for each 128 inputs. A thread
// takes 8 bytes; grid (strips, ceil(units of a strip * 32 / 256)): strips are too many for y.
KERNEL(256) strips_of_rows(const u8* rows, const float* row_scales, u8* codes, float* scales,
                           u32 k) {
  const u32 num_groups = (k + 127) / 128, num_units = num_groups * 4;
  const u32 index = blockIdx.y * blockDim.x + threadIdx.x, strip = blockIdx.x;
  const u32 unit = index / WARP_SIZE, lane = index % WARP_SIZE, row = strip * 8 + lane / 4;
  if (unit >= num_units) return;
  u32 words[2] = {0, 0};
#pragma unroll
  for (u32 i = 0; i < 8; ++i) {
    const u32 input = unit * 32 + i / 4 * 16 + i / 2 % 2 * 8 + lane % 4 * 2 + i % 2;
    if (input < k) words[i / 4] |= u32(rows[u64(row) * k + input]) << (i % 4 * 8);
  }
  const u64 at = (u64(strip) * num_units + unit) * WARP_SIZE + lane;
  reinterpret_cast<uint2*>(codes)[at] = uint2{words[0], words[1]};
  if (unit % 4 == 0 && lane % 4 == 0) {
    scales[(u64(strip) * num_groups + unit / 4) * 8 + lane / 4] = row_scales[row];
  }
}
EXPORT(strips_of_rows)
