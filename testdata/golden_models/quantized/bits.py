"""Codes without gaps in words of 32 bits, and scales of groups."""

import numpy as np
import torch


def packed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """(lines, values) to (lines, words): value 0 in the lowest bits."""
    values = codes.numpy().astype(np.uint8)
    planes = np.unpackbits(values[..., None], axis=-1, bitorder="little")[..., :bits]
    stream = planes.reshape(values.shape[0], -1)
    stream = np.pad(stream, ((0, 0), (0, -stream.shape[1] % 32)))
    words = np.packbits(stream, axis=-1, bitorder="little").view("<u4").astype(np.int32)
    return torch.from_numpy(words)


def unpacked(words: torch.Tensor, bits: int, length: int) -> torch.Tensor:
    """The way back: (lines, words) to (lines, length)."""
    data = np.ascontiguousarray(words.numpy()).view(np.uint8)
    stream = np.unpackbits(data, axis=-1, bitorder="little")
    planes = stream[:, : length * bits].reshape(data.shape[0], length, bits)
    values = (planes.astype(np.int32) << np.arange(bits)).sum(axis=-1)
    return torch.from_numpy(values.astype(np.int32))


def in_groups(weight: torch.Tensor, groups: torch.Tensor, bits: int, sym: bool):
    """Codes (N, K), scales (G, N) as f16 and zeros (G, N) of a matrix whose input k is in group
    groups[k]. Zeros are 1 to 2^bits."""
    count = int(groups.max()) + 1
    codes = torch.empty(weight.shape, dtype=torch.int32)
    scales = torch.empty(count, weight.shape[0], dtype=torch.float16)
    zeros = torch.empty(count, weight.shape[0], dtype=torch.int32)
    for group in range(count):
        columns = weight[:, groups == group]
        low, high = columns.amin(1).clamp(max=0), columns.amax(1).clamp(min=0)
        if sym:
            scale = torch.maximum(-low, high) / (2 ** (bits - 1) - 0.5)
            zero = torch.full_like(scale, 2 ** (bits - 1))
        else:
            scale = (high - low) / (2**bits - 1)
            zero = torch.round(-low / scale).clamp(1, 2**bits)
            below = columns.amax(1) < 0  # the largest zero: every code is below it
            scale = torch.where(below, -low / 2**bits, scale)
            zero = torch.where(below, 2.0**bits, zero)
        scales[group], zeros[group] = scale.half(), zero.int()
        codes[:, groups == group] = (
            torch.round(columns / scales[group].float()[:, None]) + zero[:, None]
        ).clamp(0, 2**bits - 1).int()
    return codes, scales, zeros
