#!/usr/bin/env python3
"""Writes blocks.bin: blocks of every type of GGUF and what `gguf.dequantize` makes of them.

    python testdata/gguf/make_blocks.py [--check]

Needs gguf 0.19.0 and numpy. For each type: u32 id, u32 number of blocks, the blocks, the values as
f32. The bytes are random, so that every bit of a layout matters; scales are small, and in the last
blocks 0, negative, subnormal, the largest, and (for e8m0 and e4m3) the ends of the range.
"""
import pathlib
import struct
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize

# Offsets of f16 scales in a block.
SCALES = {
    Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
    Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
    Type.IQ4_NL: [0], Type.IQ4_XS: [0], Type.TQ1_0: [52], Type.TQ2_0: [64],
}
EXTREMES = np.array([0.0, -0.5, 2.0**-24, -3 * 2.0**-24, 65504.0], np.float16)
BYTE_EXTREMES = {Type.MXFP4: [0, 1, 2, 254, 255], Type.NVFP4: [0, 1, 7, 0x7E, 0x7F]}
PLAIN = {Type.F32: "<f4", Type.F16: "<f2", Type.BF16: "<u2"}


def blocks_of(kind, random):
    if kind in PLAIN:
        values = random.standard_normal(24).astype(np.float32)
        values[:5] = [0.0, -0.0, np.inf, 1e-40, -65504.0]
        if kind == Type.BF16:
            return (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8).reshape(-1, 2)
        with np.errstate(over="ignore"):
            return values.astype(PLAIN[kind]).view(np.uint8).reshape(24, -1)
    blocks = random.integers(0, 256, (8, GGML_QUANT_SIZES[kind][1]), np.uint8)
    for place in SCALES.get(kind, []):
        scales = random.uniform(-0.02, 0.02, 8).astype(np.float16)
        scales[3:] = np.roll(EXTREMES, place)
        blocks[:, place : place + 2] = scales.astype("<f2").view(np.uint8).reshape(8, 2)
    if kind in BYTE_EXTREMES:
        blocks[3:, 0] = BYTE_EXTREMES[kind]
    return blocks


def content():
    random = np.random.default_rng(15)
    parts = []
    for kind in [*PLAIN, *SCALES, *BYTE_EXTREMES]:
        blocks = blocks_of(kind, random)
        with np.errstate(over="ignore"):
            values = dequantize(blocks, kind)
        assert not np.isnan(values).any()
        parts += [struct.pack("<II", kind, len(blocks)), blocks.tobytes()]
        parts.append(values.astype("<f4").tobytes())
    return b"".join(parts)


path = pathlib.Path(__file__).with_name("blocks.bin")
if "--check" in sys.argv:
    sys.exit(path.read_bytes() != content())
path.write_bytes(content())
