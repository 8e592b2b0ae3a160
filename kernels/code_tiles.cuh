// Tiles of layers whose weights stay codes in memory: a weight is made of its code in registers,
// rounded to T, and multiplied by mma.m16n8k16 with rows of x.
//
// Defined at compilation: LEVELS, what a code stands for; CODE_BITS, 4 or 8; SCALE, the type of
// scales and offsets; GROUP, the inputs that share them: 16, 32, 64 or 128.
#pragma once

#include "tiles.cuh"

// Values of LEVELS.
constexpr u32 INTEGERS = 0;  // The code less `zero`.
constexpr u32 ZEROS = 1;     // The code less the offset of its group.
constexpr u32 MINIMA = 2;    // The code; the offset of its group is taken off after scaling.
constexpr u32 TABLE = 3;     // An entry of `table`.
constexpr u32 FLOAT8 = 4;    // An E4M3 number.

using S = SCALE;
constexpr bool HAS_OFFSETS = LEVELS == ZEROS || LEVELS == MINIMA;

// Codes of a strip lie in units of 64 inputs (of 4 bits) or 32 (of 8), 8 bytes for each lane.
constexpr u32 UNIT = 256 / CODE_BITS;
constexpr u32 UNIT_BYTES = 256;
constexpr u32 WORD_STEPS = 8 / CODE_BITS;
// k is filled up to a multiple of this, with codes and scales of 0.
constexpr u32 BLOCK_INPUTS = 128;

__device__ __forceinline__ u32 inputs_of_strip(u32 k) {
  return (k + BLOCK_INPUTS - 1) / BLOCK_INPUTS * BLOCK_INPUTS;
}

// With its last places set to an integer below 2^23, this float is larger by just that.
constexpr float SHIFTED = 8388608.0f;

// Whether T holds both factors of a weight: then two are made at once, each rounded as often.
constexpr bool IN_PAIRS =
    CODE_BITS == 4 && (LEVELS == INTEGERS || LEVELS == ZEROS) && IS_SAME<S, T>;
// As SHIFTED, of T: bits and value, for codes and zeros below 2^7.
constexpr u32 SHIFTED_T = IS_SAME<T, bf16> ? 0x4300 : 0x6400;
constexpr float SHIFTED_T_VALUE = IS_SAME<T, bf16> ? 128.0f : 1024.0f;
constexpr u32 ONE_T = IS_SAME<T, bf16> ? 0x3F80 : 0x3C00;

__device__ __forceinline__ u32 twice(u32 half) { return half << 16 | half; }

// The stages of a tile: rows of x, then strips of codes with their scales.
template <u32... TILE>
struct Tile : RowTile<TILE...> {
  using Rows = RowTile<TILE...>;
  static constexpr u32 CODE_BYTES = Rows::INPUTS / UNIT * UNIT_BYTES;
  static constexpr u32 NUM_GROUPS = Rows::INPUTS > GROUP ? Rows::INPUTS / GROUP : 1;
  static constexpr u32 SCALE_BYTES = NUM_GROUPS * STRIP * sizeof(S);
  static constexpr u32 STRIP_BYTES = CODE_BYTES + SCALE_BYTES * (HAS_OFFSETS ? 2 : 1);
  static constexpr u32 STAGE_BYTES = Rows::X_BYTES + Rows::BLOCK_STRIPS * STRIP_BYTES;
};

// Where the weights of a block begin, and how far they go.
struct CodedStrips {
  const u8* codes;  // All strips.
  const u8* scales;
  const u8* offsets;
  u32 first, end;  // Strips of the block from here on; of the layer.
  u32 num_inputs;  // k, filled up.
};

// Bytes of a strip, copied by a warp; zeros unless `is_valid`.
template <u32 BYTES>
__device__ __forceinline__ void copy_strip(u8* to, const u8* from, bool is_valid) {
#pragma unroll
  for (u32 first = 0; first < BYTES; first += WARP_SIZE * COPY_BYTES) {
    const u32 at = first + lane_of_thread() * COPY_BYTES;
    if (at < BYTES) copy_async_16(smem_address(to + at), from + at, is_valid);
  }
}

template <class Tile>
__device__ __forceinline__ void copy_strips(const CodedStrips& of, u32 first_input, u8* to) {
  static_assert(Tile::BLOCK_STRIPS % NUM_WARPS == 0, "every warp copies as many");
#pragma unroll
  for (u32 i = 0; i < Tile::BLOCK_STRIPS / NUM_WARPS; ++i) {
    const u32 index = i * NUM_WARPS + warp_of_thread(), strip = of.first + index;
    u8* const at = to + index * Tile::STRIP_BYTES;
    const bool is_valid = strip < of.end;
    const u64 input = u64(is_valid ? strip : 0) * of.num_inputs + first_input;
    const u64 scale = input / GROUP * STRIP * sizeof(S);
    copy_strip<Tile::CODE_BYTES>(at, of.codes + input / UNIT * UNIT_BYTES, is_valid);
    copy_strip<Tile::SCALE_BYTES>(at + Tile::CODE_BYTES, of.scales + scale, is_valid);
    if (HAS_OFFSETS) {
      copy_strip<Tile::SCALE_BYTES>(at + Tile::CODE_BYTES + Tile::SCALE_BYTES,
                                    of.offsets + scale, is_valid);
    }
  }
}

// A weight in f32, with one rounding. `offset` is what a level is less than the bits of its code
// in `SHIFTED`, or a minimum.
__device__ __forceinline__ float weight_of(u32 code, float scale, float offset,
                                           const float* levels) {
  if (LEVELS == TABLE) return scale * levels[code];
  const float shifted = bit_cast<float>(bit_cast<u32>(SHIFTED) | code);
  // The first product is exact, so that this rounds once.
  if (LEVELS == MINIMA) return scale * (shifted - SHIFTED) - offset;
  return scale * (shifted - offset);
}

// Codes of E4M3, which is not a level by its place: two, as f16.
__device__ __forceinline__ u32 float8_pair(u32 halves, float scale) {
  return narrow_x2<T>(scale * widen_f16(u16(halves)), scale * widen_f16(u16(halves >> 16)));
}

// A lane's part of operand b (16 inputs, 8 outputs) of one step, of the word that has its codes and
// what `Groups` has of its group.
__device__ __forceinline__ void widen_step(u32 word, u32 step, u32 group_scale, u32 group_offset,
                                           const float* levels, u32 (&b)[2]) {
  const float scale = bit_cast<float>(group_scale), offset = bit_cast<float>(group_offset);
  u32 halves[2];
  if (LEVELS == FLOAT8) widen_e4m3x4(word, halves);
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    if (IN_PAIRS) {
      const u32 codes = word >> (step % 2 * 8 + half * 4) & 0x000F000F;
      const u32 level = fma_x2<T>(codes | twice(SHIFTED_T), twice(ONE_T), group_offset);
      b[half] = fma_x2<T>(level, group_scale, twice(0x8000));
      continue;
    }
    if (LEVELS == FLOAT8) {
      b[half] = float8_pair(halves[half], scale);
      continue;
    }
    // Of 4 bits, the second input is 16 bits above the first; of 8 bits it is the next byte.
    const u32 low = CODE_BITS == 4 ? step % 2 * 8 + half * 4 : half * 16;
    const u32 high = low + (CODE_BITS == 4 ? 16 : 8), mask = (1u << CODE_BITS) - 1;
    b[half] = narrow_x2<T>(weight_of(word >> low & mask, scale, offset, levels),
                           weight_of(word >> high & mask, scale, offset, levels));
  }
}

// What `widen_step` takes of a group: bits of f32, for `weight_of`; for pairs of weights, the scale
// and what takes a shifted code to its level, in both halves.
struct Group {
  u32 scale, offset;
};

__device__ __forceinline__ Group group_of(S scale, float offset) {
  if (IN_PAIRS) {
    return {twice(bits_of(scale)), twice(bits_of(from_float<T>(-(SHIFTED_T_VALUE + offset))))};
  }
  return {bit_cast<u32>(to_float(scale)),
          bit_cast<u32>(LEVELS == MINIMA ? offset : SHIFTED + offset)};
}

// The group that a lane is at, of each strip.
template <class Tile>
struct Groups {
  u32 scales[Tile::STRIPS], offsets[Tile::STRIPS];

  __device__ __forceinline__ void load(const u8* strips, u32 group, float zero) {
    const u32 at = group * STRIP + lane_of_thread() / 4;
#pragma unroll
    for (u32 s = 0; s < Tile::STRIPS; ++s) {
      const u8* strip = strips + s * Tile::STRIP_BYTES + Tile::CODE_BYTES;
      const S scale = reinterpret_cast<const S*>(strip)[at];
      float offset = zero;
      if (HAS_OFFSETS) {
        offset = to_float(reinterpret_cast<const S*>(strip + Tile::SCALE_BYTES)[at]);
      }
      const Group of = group_of(scale, offset);
      scales[s] = of.scale, offsets[s] = of.offset;
    }
  }
};

template <class Tile>
__device__ __forceinline__ void add_stage(const u8* stage, float zero, const float* levels,
                                          Sums<Tile>& sums) {
  const u32 lane = lane_of_thread();
  const u8* strips = stage + Tile::X_BYTES + Tile::strip_of_warp() * Tile::STRIP_BYTES;
  Words<2> codes[Tile::STRIPS];
  Groups<Tile> groups;
#pragma unroll
  for (u32 step = 0; step < Tile::INPUTS / STEP; ++step) {
    const u32 input = step * STEP;
    if (input % UNIT == 0) {
      const u32 at = input / UNIT * UNIT_BYTES + lane * sizeof(Words<2>);
#pragma unroll
      for (u32 s = 0; s < Tile::STRIPS; ++s) {
        codes[s] = *reinterpret_cast<const Words<2>*>(strips + s * Tile::STRIP_BYTES + at);
      }
    }
    if (input % GROUP == 0) groups.load(strips, input / GROUP, zero);
    u32 x[Tile::ROW_TILES][4];
    load_rows<Tile>(stage, step, x);
#pragma unroll
    for (u32 s = 0; s < Tile::STRIPS; ++s) {
      u32 b[2];
      widen_step(codes[s].word[step / WORD_STEPS % 2], step, groups.scales[s], groups.offsets[s],
                 levels, b);
#pragma unroll
      for (u32 r = 0; r < Tile::ROW_TILES; ++r) mma<T>(sums.values[r][s], x[r], b[0], b[1]);
    }
  }
}

// A block's sums, from strip `of.first` on: rows of x, of k inputs, times weights. `row_at(row)`: a
// row of the block, null where there is none; `any`: what may be read instead.
template <class Tile, class RowAt>
__device__ __forceinline__ void multiply_codes(u8* stages, const T* any, const RowAt& row_at, u32 k,
                                               const CodedStrips& of, float zero,
                                               const float* levels, Sums<Tile>& sums) {
  for_each_stage<Tile, Tile::STAGE_BYTES>(
      stages, of.num_inputs / Tile::INPUTS,
      [&](u32 stage, u8* to) {
        copy_rows<Tile, Tile::ROWS>(to, stage * Tile::INPUTS, k, any, row_at);
        copy_strips<Tile>(of, stage * Tile::INPUTS, to + Tile::X_BYTES);
      },
      [&](const u8* stage) { add_stage<Tile>(stage, zero, levels, sums); });
}
