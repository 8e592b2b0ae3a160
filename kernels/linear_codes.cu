// Linear layers whose weights stay codes in memory: out = x Wᵀ + b.
#include "code_tiles.cuh"

template <class Tile>
__device__ __forceinline__ void multiply(const T* x, u32 k, CodedStrips of, float zero,
                                         const float* levels, const Outputs& out) {
  DYN_SMEM(u8, stages);
  const u32 first_row = blockIdx.x * Tile::ROWS;
  x += u64(first_row) * k;
  const u32 num_rows = out.num_rows - first_row;
  of.first = blockIdx.y * Tile::BLOCK_STRIPS;
  Sums<Tile> sums{};
  const auto row_at = [&](u32 row) { return row < num_rows ? x + u64(row) * k : nullptr; };
  multiply_codes<Tile>(stages, x, row_at, k, of, zero, levels, sums);
  store_sums<Tile>(sums, out, first_row, of.first);
}

// out (num_rows, n) at rows of `stride` = x (num_rows, k) Wᵀ + bias (n, or null), in f32 where
// `is_f32`. k is a multiple of 8. Strips of 8 outputs, each for k filled up to a multiple of 128:
// `codes` in units, `scales` and `offsets` (groups, 8). `table`: 16 floats. A block has 128 threads
// and (stages under way) * STAGE_BYTES of dynamic shared memory; grid (ceil(num_rows / rows of the
// tile), ceil(n / outputs of the tile)).
#define LINEAR_CODES(name, min_blocks, ...)                                                     \
  KERNEL(NUM_THREADS, min_blocks)                                                               \
  name(const T* x, const u8* codes, const u8* scales, const u8* offsets, const float* table,    \
       const T* bias, void* out, u32 num_rows, u32 n, u32 k, u32 stride, float zero,            \
       u32 is_f32) {                                                                            \
    __shared__ float levels[16];                                                                \
    /* Read after the first stage's barrier. */                                                 \
    if (LEVELS == TABLE && threadIdx.x < 16) levels[threadIdx.x] = table[threadIdx.x];          \
    const CodedStrips of{codes, scales, offsets, 0, (n + STRIP - 1) / STRIP,                    \
                         inputs_of_strip(k)};                                                   \
    multiply<Tile<__VA_ARGS__>>(x, k, of, zero, levels,                                         \
                                Outputs{out, bias, num_rows, n, stride, is_f32 != 0});          \
  }

// Rows, outputs: named for both. The first two are for decode.
LINEAR_CODES(linear_codes_16x32, 2, 1, 1, 1, 128, 8)
EXPORT(linear_codes_16x32)
LINEAR_CODES(linear_codes_16x128, 2, 1, 4, 1, 128, 4)
EXPORT(linear_codes_16x128)
LINEAR_CODES(linear_codes_64x32, 2, 2, 2, 2, 64, 6)
EXPORT(linear_codes_64x32)
LINEAR_CODES(linear_codes_64x128, 2, 4, 4, 1, 64, 4)
EXPORT(linear_codes_64x128)
LINEAR_CODES(linear_codes_128x128, 2, 8, 4, 1, 64, 3)
EXPORT(linear_codes_128x128)

// out (n, k) = the weights, for products of many rows. A warp makes a unit of a strip; on a way
// through shared memory, since a lane of operand b has four bytes of a row at once. Grid
// (ceil(units of a strip / 4), strips); the operands are those of `linear_codes`.
KERNEL(NUM_THREADS)
widen_codes(const u8* codes, const u8* scales, const u8* offsets, const float* table, T* out, u32 n,
            u32 k, float zero) {
  constexpr u32 ROW_CHUNKS = UNIT / CHUNK;
  constexpr u32 ROW_WORDS = ROW_CHUNKS * 4 + 4;  // Rows begin in different banks.
  __shared__ float levels[16];
  __shared__ uint4 rows[NUM_WARPS][STRIP * ROW_WORDS / 4];
  if (LEVELS == TABLE && threadIdx.x < 16) levels[threadIdx.x] = table[threadIdx.x];
  __syncthreads();
  const u32 num_inputs = inputs_of_strip(k);
  const u32 unit = blockIdx.x * NUM_WARPS + warp_of_thread(), strip = blockIdx.y;
  if (unit >= num_inputs / UNIT) return;
  const u32 lane = lane_of_thread(), first_input = unit * UNIT;
  const u64 input = u64(strip) * num_inputs + first_input;
  const Words<2> code = reinterpret_cast<const Words<2>*>(codes + input / UNIT * UNIT_BYTES)[lane];
  u32* const own = reinterpret_cast<u32*>(rows[warp_of_thread()]);
  Group group;
#pragma unroll
  for (u32 step = 0; step < UNIT / STEP; ++step) {
    if (step == 0 || step * STEP % GROUP == 0) {
      const u64 at = (input + step * STEP) / GROUP * STRIP + lane / 4;
      const float offset =
          HAS_OFFSETS ? to_float(reinterpret_cast<const S*>(offsets)[at]) : zero;
      group = group_of(reinterpret_cast<const S*>(scales)[at], offset);
    }
    u32 b[2];
    widen_step(code.word[step / WORD_STEPS % 2], step, group.scale, group.offset, levels, b);
    for (u32 half = 0; half < 2; ++half) {
      own[lane / 4 * ROW_WORDS + (step * 2 + half) * 4 + lane % 4] = b[half];
    }
  }
  __syncwarp();
#pragma unroll
  for (u32 index = lane; index < STRIP * ROW_CHUNKS; index += WARP_SIZE) {
    const u32 row = index / ROW_CHUNKS, chunk = index % ROW_CHUNKS;
    const u32 output = strip * STRIP + row, column = first_input + chunk * CHUNK;
    if (output >= n || column >= k) continue;
    *reinterpret_cast<uint4*>(out + u64(output) * k + column) =
        rows[warp_of_thread()][row * (ROW_WORDS / 4) + chunk];
  }
}
EXPORT(widen_codes)
