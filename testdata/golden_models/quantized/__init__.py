"""Quantized golden models: linear layers as a format stores them, and as f32 again.

A format is a value with the layout as its fields. Reading with other fields is a mistake, which
must move a golden logprob."""

import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import torch

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Format(ABC):
    """How the linear layers of a checkpoint are stored."""

    @abstractmethod
    def pack(self, weight: torch.Tensor, seed: int) -> Tensors:
        """The tensors of a matrix (outputs, inputs), by their suffixes."""

    @abstractmethod
    def unpack(self, tensors: Tensors, shape: tuple[int, int]) -> torch.Tensor:
        """The matrix that they are, in f32."""

    def reference(self, tensors: Tensors, shape: tuple[int, int]) -> torch.Tensor | None:
        """The same by the format's own library, where it runs on a CPU."""
        return None


@dataclass(frozen=True)
class Quantized:
    """The formats of a family's modules."""

    formats: list[tuple[str, Format | None]]  # by a part of the module's name: the first counts
    config: dict  # what says so
    file: str | None = None  # beside config.json, where it is not in it
    extra: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)  # that nothing reads

    def format_of(self, module: str) -> Format | None:
        return next((format for part, format in self.formats if part in module), None)

    def misread(self, **changes) -> "Quantized":
        """The same, read with other values of the fields that its formats have."""

        def changed(format: Format | None) -> Format | None:
            if format is None:
                return None
            known = {k: v for k, v in changes.items() if hasattr(format, k)}
            return dataclasses.replace(format, **known)

        formats = [(part, changed(format)) for part, format in self.formats]
        return dataclasses.replace(self, formats=formats)


@dataclass(frozen=True)
class Misread:
    """A mistake: a layout read with other fields."""

    changes: dict

    @property
    def __name__(self) -> str:
        return f"read with {self.changes}"


def misread(**changes) -> Misread:
    return Misread(changes)


def quantize(model: torch.nn.Module, quantized: Quantized) -> None:
    """Give the model the values of its quantized weights, and keep their tensors in it."""
    tensors: Tensors = {}
    with torch.no_grad():
        for index, (name, module) in enumerate(model.named_modules()):
            format = quantized.format_of(name) if isinstance(module, torch.nn.Linear) else None
            if format is None:
                continue
            packed = format.pack(module.weight.detach().float(), index)
            module.weight.copy_(format.unpack(packed, tuple(module.weight.shape)))
            for suffix, tensor in packed.items():
                tensors[f"{name}.{suffix}"] = tensor.clone().contiguous()
    model.quantized_tensors = {**tensors, **quantized.extra}


def stored(plain: Tensors, model: torch.nn.Module) -> Tensors:
    """The tensors of the checkpoint: the plain ones that no packed one replaces."""
    packed = model.quantized_tensors
    modules = [name.rpartition(".")[0] for name in packed if name.endswith(MARKS)]
    replaced = {f"{module}.weight" for module in modules}
    return {**{k: v for k, v in plain.items() if k not in replaced}, **packed}


# Endings of a tensor that every quantized module has.
MARKS = (".qweight", ".weight_packed", ".weight")


def unpacked(tensors: Tensors, quantized: Quantized, check: bool = False) -> Tensors:
    """All weights in f32."""
    out = {name: tensor.float() for name, tensor in tensors.items() if is_plain(name, tensor)}
    for module, shape in sorted(shapes_of(tensors, quantized).items()):
        format = quantized.format_of(module)
        prefix = f"{module}."
        own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        for suffix, tensor in own.items():
            if suffix != "bias" or not tensor.any():  # zeros are the format's
                out.pop(prefix + suffix, None)
        weight = format.unpack(own, shape)
        other = format.reference(own, shape) if check else None
        if other is not None:
            assert torch.equal(weight, other.float()), (module, "differs from the library")
        out[f"{module}.weight"] = weight
    return {k: v for k, v in out.items() if k not in quantized.extra}


def is_plain(name: str, tensor: torch.Tensor) -> bool:
    return name.endswith((".weight", ".bias")) and tensor.dtype in (
        torch.float32, torch.bfloat16, torch.float16,
    )


LLAMA_SHAPES = {
    "q_proj": (64, 32), "k_proj": (32, 32), "v_proj": (32, 32), "o_proj": (32, 64),
    "gate_proj": (64, 32), "up_proj": (64, 32), "down_proj": (32, 64),
}


def shapes_of(tensors: Tensors, quantized: Quantized) -> dict[str, tuple[int, int]]:
    """Every quantized module, with its shape."""
    modules = {name.rpartition(".")[0] for name in tensors if name.endswith(MARKS)}
    shapes = {**LLAMA_SHAPES, "lm_head": tuple(tensors["model.embed_tokens.weight"].shape)}
    kinds = {module: module.rpartition(".")[2] for module in modules}
    return {
        module: shapes[kind] for module, kind in kinds.items()
        if kind in shapes and quantized.format_of(module)
    }


def digests(tensors: Tensors, quantized: Quantized) -> dict[str, str]:
    """SHA-256 of each quantized matrix in f32, row by row."""
    weights = unpacked(tensors, quantized)
    modules = sorted(shapes_of(tensors, quantized))
    return {
        module: hashlib.sha256(weights[f"{module}.weight"].numpy().tobytes()).hexdigest()
        for module in modules
    }


def write_config(folder: Path, config: dict, quantized: Quantized) -> None:
    """config.json, and what says how the weights are stored."""
    text = json.dumps(quantized.config, indent=2) + "\n"
    if quantized.file:
        (folder / quantized.file).write_text(text, encoding="utf-8")
    else:
        config = {**config, "quantization_config": quantized.config}
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
