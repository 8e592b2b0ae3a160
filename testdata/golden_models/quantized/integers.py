"""Integers of few bits: GPTQ, AWQ, and compressed-tensors' pack-quantized."""

from dataclasses import dataclass

import torch

from . import Format, Tensors
from .bits import in_groups, packed, unpacked

# Which output the i-th nibble of an AWQ word is.
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


@dataclass(frozen=True)
class Gptq(Format):
    """AutoGPTQ's layout: scales[g] * (q - zeros[g]), zeros stored less one in version 1."""

    bits: int
    group: int
    sym: bool = True
    act_order: bool = False
    stored_offset: int = 1
    zero_offset: int = 1
    lists: bool = True  # g_idx is read
    zeros_wrap: bool = False  # the largest zero plus one is taken for zero
    reverse: bool = False  # the first code is taken for the last of a word
    bias: bool = False  # zeros, as old files have them

    def pack(self, weight: torch.Tensor, seed: int) -> Tensors:
        outputs, inputs = weight.shape
        groups = torch.arange(inputs) // self.group
        if self.act_order:
            generator = torch.Generator().manual_seed(seed)
            groups = groups[torch.randperm(inputs, generator=generator)]
        if not self.sym:
            weight = torch.where((groups == 0)[None, :], -weight.abs(), weight)  # zeros of 2^bits
        codes, scales, zeros = in_groups(weight, groups, self.bits, self.sym)
        tensors = {
            "qweight": packed(codes, self.bits).T,
            "qzeros": packed(zeros - self.stored_offset, self.bits),
            "scales": scales, "g_idx": groups.int(),
        }
        return {**tensors, "bias": torch.zeros(outputs).half()} if self.bias else tensors

    def unpack(self, tensors: Tensors, shape: tuple[int, int]) -> torch.Tensor:
        outputs, inputs = shape
        codes = unpacked(tensors["qweight"].T, self.bits, inputs)
        if self.reverse:
            per_word = 32 // self.bits
            codes = codes.reshape(outputs, -1, per_word).flip(-1).reshape(outputs, inputs)
        zeros = unpacked(tensors["qzeros"], self.bits, outputs) + self.zero_offset
        if self.zeros_wrap:
            zeros = zeros % 2**self.bits
        groups = tensors["g_idx"] if self.lists else torch.arange(inputs) // self.group
        scales = tensors["scales"].float()[groups]
        return (scales * (codes.T - zeros[groups])).T.contiguous()


@dataclass(frozen=True)
class Awq(Format):
    """AutoAWQ's gemm layout: scales[g] * (q - zeros[g])."""

    group: int
    order: tuple[int, ...] = tuple(AWQ_ORDER)
    zero_offset: int = 0
    along_outputs: bool = False  # groups along the outputs

    def pack(self, weight: torch.Tensor, seed: int) -> Tensors:
        groups = torch.arange(weight.shape[1]) // self.group
        codes, scales, zeros = in_groups(weight, groups, 4, False)
        return {
            "qweight": self.words(codes.T), "qzeros": self.words(zeros.clamp(max=15)),
            "scales": scales,
        }

    def words(self, values: torch.Tensor) -> torch.Tensor:
        lines = values.reshape(values.shape[0], -1, 8)[..., list(self.order)]
        return packed(lines.reshape(values.shape), 4)

    def values(self, words: torch.Tensor, outputs: int) -> torch.Tensor:
        back = torch.argsort(torch.tensor(self.order))
        values = unpacked(words, 4, outputs).reshape(words.shape[0], -1, 8)
        return values[..., back].reshape(words.shape[0], outputs)

    def unpack(self, tensors: Tensors, shape: tuple[int, int]) -> torch.Tensor:
        outputs, inputs = shape
        codes = self.values(tensors["qweight"], outputs)
        zeros = self.values(tensors["qzeros"], outputs) + self.zero_offset
        scales = tensors["scales"].float()
        groups = torch.arange(inputs) // self.group
        if self.along_outputs:
            groups = groups.flip(0)
        return (scales[groups] * (codes - zeros[groups])).T.contiguous()


@dataclass(frozen=True)
class Packed(Format):
    """compressed-tensors' pack-quantized: (q - 2^(bits-1) - zero) * scale, 2^(bits-1) added to
    codes and zeros when they are stored."""

    bits: int
    group: int | None = None  # None: a scale for each output
    sym: bool = True
    offset: int | None = None  # where it is not 2^(bits-1)
    dtype: torch.dtype = torch.bfloat16

    def groups(self, inputs: int) -> torch.Tensor:
        return torch.arange(inputs) // (self.group or inputs)

    def pack(self, weight: torch.Tensor, seed: int) -> Tensors:
        codes, scales, zeros = in_groups(weight, self.groups(weight.shape[1]), self.bits, self.sym)
        scales = scales.T.to(self.dtype).contiguous()
        tensors = {
            "weight_packed": packed(codes, self.bits), "weight_scale": scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if self.sym:
            return tensors
        zeros = zeros.clamp(max=2**self.bits - 1)
        return {**tensors, "weight_zero_point": packed(zeros, self.bits).T}

    def unpack(self, tensors: Tensors, shape: tuple[int, int]) -> torch.Tensor:
        outputs, inputs = shape
        codes = unpacked(tensors["weight_packed"], self.bits, inputs)
        zeros = torch.tensor(2 ** (self.bits - 1) if self.offset is None else self.offset)
        if not self.sym and self.offset is None:
            zeros = unpacked(tensors["weight_zero_point"].T, self.bits, outputs).T
            zeros = zeros[:, self.groups(inputs)]
        scales = tensors["weight_scale"].float()[:, self.groups(inputs)]
        return (codes - zeros) * scales

    def reference(self, tensors: Tensors, shape: tuple[int, int]) -> torch.Tensor:
        from compressed_tensors.compressors import PackedQuantizationCompressor as Compressor
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

        strategy = "group" if self.group else "channel"
        args = QuantizationArgs(
            num_bits=self.bits, symmetric=self.sym, strategy=strategy, group_size=self.group
        )
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        tensors = {**tensors, "weight_scale": tensors["weight_scale"].float()}
        return Compressor.decompress(tensors, scheme)["weight"]
