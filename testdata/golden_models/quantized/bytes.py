"""A byte to a weight: E4M3 and int8, with scales of matrices, outputs, groups or blocks."""

from dataclasses import dataclass

import torch

from . import Format, Tensors

E4M3_MAX = 448.0


@dataclass(frozen=True)
class Scaled(Format):
    """q * scale. `block`: (outputs, inputs) that share a scale; None for all."""

    kind: str = "fp8"  # or int8
    block: tuple[int | None, int | None] = (None, None)
    scale_name: str = "weight_scale"
    scale_dtype: torch.dtype = torch.float32
    scale_shape: tuple[int, ...] | None = None  # where it is not that of the blocks
    activations: tuple[str, ...] = ()  # scales of activations
    sym: bool = True
    divided: bool = False  # by the scale
    transposed: bool = False  # the blocks
    zeros: bool = True  # they are read
    factor: float | None = None  # after the product: bitsandbytes
    metadata: tuple[tuple[str, torch.Tensor], ...] = ()

    def spread(self, scales: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
        """Scales of blocks, for every weight."""
        rows, columns = (side or size for side, size in zip(self.block, shape))
        counts = (-(-shape[0] // rows), -(-shape[1] // columns))
        scales = scales.float().reshape(counts)
        if self.transposed:
            scales = scales.T.reshape(counts)
        full = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        return full[: shape[0], : shape[1]]

    def pack(self, weight: torch.Tensor, seed: int) -> Tensors:
        outputs, inputs = weight.shape
        rows, columns = (side or size for side, size in zip(self.block, weight.shape))
        padded = torch.nn.functional.pad(weight, (0, -inputs % columns, 0, -outputs % rows))
        blocks = padded.unflatten(0, (-1, rows)).unflatten(2, (-1, columns))
        low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
        limit = {"fp8": E4M3_MAX, "int8": 127.0}[self.kind]
        zeros = torch.zeros(low.shape, dtype=torch.int8)
        if self.sym:
            scales = torch.maximum(-low, high) / limit
        else:
            scales = (high - low) / 255.0
            zeros = torch.round(-128.0 - low / scales).clamp(-128, 127).to(torch.int8)
        if self.scale_dtype == torch.float8_e8m0fnu:
            scales = torch.exp2(torch.ceil(torch.log2(scales)))
        scales = scales.to(self.scale_dtype)
        codes = weight / self.spread(scales, weight.shape)
        if self.kind == "fp8":
            codes = codes.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
        else:
            codes = torch.round(codes) + self.spread(zeros, weight.shape)
            codes = codes.clamp(-128 if not self.sym else -127, 127).to(torch.int8)
        if self.factor:
            scales = (scales / self.factor).float()
        shape = self.scale_shape if self.scale_shape is not None else scales.shape
        tensors = {"weight": codes, self.scale_name: scales.reshape(shape)}
        if not self.sym:
            tensors["weight_zero_point"] = zeros
        for name in self.activations:
            tensors[name] = torch.tensor([0.25])
        return {**tensors, **dict(self.metadata)}

    def unpack(self, tensors: Tensors, shape: tuple[int, int]) -> torch.Tensor:
        scales = self.spread(tensors[self.scale_name], shape)
        levels = tensors["weight"].float()
        if not self.sym and self.zeros:
            levels = levels - self.spread(tensors["weight_zero_point"], shape)
        values = levels / scales if self.divided else levels * scales
        return values * self.factor if self.factor else values


@dataclass(frozen=True)
class Native(Scaled):
    """`quant_method: fp8`."""

    def reference(self, tensors: Tensors, shape: tuple[int, int]) -> torch.Tensor:
        from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

        block = None if self.block[0] is None else list(self.block)
        scales = tensors[self.scale_name]
        return _dequantize_fp8_weight(tensors["weight"], scales, block, torch.float32)


@dataclass(frozen=True)
class Compressed(Scaled):
    """compressed-tensors' int-quantized and float-quantized."""

    def reference(self, tensors: Tensors, shape: tuple[int, int]) -> torch.Tensor:
        from compressed_tensors.compressors import NaiveQuantizationCompressor as Compressor
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

        kind = "float" if self.kind == "fp8" else "int"
        args = dict(num_bits=8, type=kind, symmetric=self.sym)
        if self.block[0] not in (None, 1):
            args |= dict(strategy="block", block_structure=list(self.block))
        elif self.block[1]:
            args |= dict(strategy="group", group_size=self.block[1])
        else:
            args |= dict(strategy="channel" if self.block[0] else "tensor")
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
        scales = tensors["weight_scale"].float()
        return Compressor.decompress({**tensors, "weight_scale": scales}, scheme)["weight"]


@dataclass(frozen=True)
class BnbInt8(Scaled):
    """bitsandbytes' int8."""

    def reference(self, tensors: Tensors, shape: tuple[int, int]) -> torch.Tensor:
        import bitsandbytes

        return bitsandbytes.functional.int8_vectorwise_dequant(tensors["weight"], tensors["SCB"])
