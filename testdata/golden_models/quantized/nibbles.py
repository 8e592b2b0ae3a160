"""Floats of four bits: NVFP4, MXFP4, and bitsandbytes' nf4 and fp4."""

import json
from dataclasses import dataclass

import torch

from . import Format, Tensors

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def nearest(values: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """The code of the nearest level."""
    return (values[..., None] - levels).abs().argmin(-1).to(torch.uint8)


def in_bytes(codes: torch.Tensor, high_first: bool) -> torch.Tensor:
    first, second = codes[..., ::2], codes[..., 1::2]
    return (first << 4 | second) if high_first else (second << 4 | first)


def from_bytes(data: torch.Tensor, high_first: bool) -> torch.Tensor:
    halves = [data >> 4, data & 15] if high_first else [data & 15, data >> 4]
    return torch.stack(halves, -1).flatten(-2)


@dataclass(frozen=True)
class Fp4(Format):
    """E2M1 with a scale for `group` inputs, and for NVFP4 one for the matrix."""

    kind: str  # "ct" (divided by the matrix's), "modelopt" (multiplied), "mx" (no such)
    high_first: bool = False
    divided: bool | None = None
    group: int = 0

    @property
    def group_size(self) -> int:
        return self.group or (32 if self.kind == "mx" else 16)

    def names(self) -> tuple[str, str | None]:
        return {
            "ct": ("weight_packed", "weight_global_scale"),
            "modelopt": ("weight", "weight_scale_2"), "mx": ("weight_packed", None),
        }[self.kind]

    def pack(self, weight: torch.Tensor, seed: int) -> Tensors:
        data_name, whole_name = self.names()
        largest = weight.unflatten(1, (-1, self.group_size)).abs().amax(-1)
        tensors: Tensors = {}
        if whole_name is None:
            exponents = torch.ceil(torch.log2(largest / 6.0)).to(torch.int32) + 127
            tensors["weight_scale"] = exponents.to(torch.uint8)
        else:
            whole = (448.0 * 6.0) / weight.abs().max()
            tensors["weight_scale"] = (largest / 6.0 * whole).to(torch.float8_e4m3fn)
            tensors[whole_name] = (whole if self.kind == "ct" else 1 / whole).reshape(1)
            tensors["input_global_scale" if self.kind == "ct" else "input_scale"] = torch.ones(1)
        scales = self.scales(tensors).repeat_interleave(self.group_size, 1)
        tensors[data_name] = in_bytes(nearest(weight / scales, E2M1), self.high_first)
        return tensors

    def scales(self, tensors: Tensors) -> torch.Tensor:
        _, whole_name = self.names()
        scales = tensors["weight_scale"]
        if whole_name is None:
            return torch.exp2(scales.float() - 127.0)
        divided = self.kind == "ct" if self.divided is None else self.divided
        whole = tensors[whole_name]
        return scales.float() / whole if divided else scales.float() * whole

    def unpack(self, tensors: Tensors, shape: tuple[int, int]) -> torch.Tensor:
        codes = from_bytes(tensors[self.names()[0]], self.high_first)
        size = shape[1] // tensors["weight_scale"].shape[1]
        return E2M1[codes.long()] * self.scales(tensors).repeat_interleave(size, 1)

    def reference(self, tensors: Tensors, shape: tuple[int, int]) -> torch.Tensor | None:
        if self.kind == "modelopt":
            return None
        from compressed_tensors.compressors import MXFP4PackedCompressor, NVFP4PackedCompressor
        from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
        from compressed_tensors.quantization import QuantizationArgs
        from compressed_tensors.quantization.lifecycle.forward import dequantize

        compressor = MXFP4PackedCompressor if self.kind == "mx" else NVFP4PackedCompressor
        strategy = "group" if self.kind == "mx" else "tensor_group"
        args = QuantizationArgs(
            num_bits=4, type="float", strategy=strategy, group_size=self.group_size
        )
        # `decompress` in f32: it rounds to bfloat16.
        levels = unpack_fp4_from_uint8(tensors["weight_packed"], *shape, dtype=torch.float32)
        scales = compressor._decompress_scale(tensors["weight_scale"], torch.float32)
        whole = tensors.get("weight_global_scale")
        return dequantize(levels, scales, args=args, global_scale=whole)


@dataclass(frozen=True)
class Bnb(Format):
    """bitsandbytes: blocks of 64 values that run over the rows."""

    kind: str  # nf4 or fp4
    nested: bool = False
    high_first: bool = True
    offset: bool = True  # it is added to nested scales

    def pack(self, weight: torch.Tensor, seed: int) -> Tensors:
        import bitsandbytes.functional as bnb

        data, state = bnb.quantize_4bit(
            weight, blocksize=64, quant_type=self.kind, compress_statistics=self.nested
        )
        packed = {f"weight.{name}": t for name, t in state.as_dict(packed=True).items()}
        return {"weight": data, **packed}

    def unpack(self, tensors: Tensors, shape: tuple[int, int]) -> torch.Tensor:
        state = tensors[f"weight.quant_state.bitsandbytes__{self.kind}"]
        state = json.loads(bytes(state.tolist()))
        scales = tensors["weight.absmax"]
        if self.nested:
            outer = tensors["weight.nested_absmax"].repeat_interleave(state["nested_blocksize"])
            scales = tensors["weight.nested_quant_map"][scales.long()] * outer[: len(scales)]
            scales = scales + (torch.tensor(state["nested_offset"]) if self.offset else 0.0)
        codes = from_bytes(tensors["weight"].flatten(), self.high_first)
        values = tensors["weight.quant_map"][codes.long()]
        return (values * scales.repeat_interleave(state["blocksize"])).reshape(shape)

    def reference(self, tensors: Tensors, shape: tuple[int, int]) -> torch.Tensor:
        """The kernel in PyTorch: that of the CPU takes blocks that end within a row for blocks of
        rows (bitsandbytes 0.50.2)."""
        import bitsandbytes.functional as bnb
        from bitsandbytes.backends.default.ops import _dequantize_4bit_compute as compute

        stats = {k: v for k, v in tensors.items() if k != "weight"}
        state = bnb.QuantState.from_dict(stats, torch.device("cpu"))
        scales = state.absmax
        if state.nested:
            scales = bnb.dequantize_blockwise(scales, state.state2) + state.offset
        compute = getattr(compute, "__wrapped__", compute)
        data = tensors["weight"].reshape(-1)
        return compute(data, scales, state.code, state.blocksize, shape, torch.float32)
