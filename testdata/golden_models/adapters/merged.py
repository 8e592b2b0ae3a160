"""An adapter read and merged without peft: W + scale * B A in float64. The oracle beside peft's
own unmerged layers, and where mistakes are made."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from transformers.pytorch_utils import Conv1D

PREFIX = "base_model.model."


@dataclass(frozen=True)
class Delta:
    """What an adapter has of a module."""

    a: torch.Tensor | None = None  # (rank, inputs); of a table (rank, rows)
    b: torch.Tensor | None = None  # (outputs, rank)
    scale: float = 1.0
    alpha: float = 0.0
    saved: dict | None = None  # weight and bias of a module that is there whole


Deltas = dict[str, Delta]
Mistake = Callable[[nn.Module, Deltas], None]


def matched(patterns: dict, module: str, default):
    for key, value in patterns.items():
        if re.match(rf"(.*\.)?({key})$", module):
            return value
    return default


def read(folder: Path) -> Deltas:
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    deltas: Deltas = {}
    for name, tensor in sorted(tensors.items()):
        path = name.removeprefix(PREFIX)
        found = re.fullmatch(r"(.*)\.lora_(?:embedding_)?([AB])(?:\.weight)?", path)
        if path.endswith(".base_layer.weight"):
            continue
        if not found:
            module, what = path.rsplit(".", 1)
            saved = (deltas.get(module) or Delta(saved={})).saved
            deltas[module] = Delta(saved={**saved, what: tensor.float()})
            continue
        module = found.group(1)
        rank = matched(config["rank_pattern"], module, config["r"])
        alpha = matched(config["alpha_pattern"], module, config["lora_alpha"])
        scale = alpha / (math.sqrt(rank) if config["use_rslora"] else rank)
        delta = deltas.get(module, Delta(scale=scale, alpha=alpha))
        deltas[module] = replace(delta, **{found.group(2).lower(): tensor.double()})
    return deltas


@torch.no_grad()
def merge(model: nn.Module, deltas: Deltas) -> None:
    """A weight that two modules share is changed in one of them."""
    for name, delta in deltas.items():
        module = model.get_submodule(name)
        if delta.saved:
            for key, value in delta.saved.items():
                setattr(module, key, nn.Parameter(value))
            continue
        added = delta.scale * (delta.b @ delta.a)
        if isinstance(module, (Conv1D, nn.Embedding)):
            added = added.T
        module.weight = nn.Parameter((module.weight.double() + added).float())


def scale_left_out(model: nn.Module, deltas: Deltas) -> None:
    merge(model, {k: replace(delta, scale=1.0) for k, delta in deltas.items()})


def alpha_by_rank(model: nn.Module, deltas: Deltas) -> None:
    """rsLoRA not heeded."""
    merge(model, {k: replace(d, scale=d.alpha / len(d.a)) for k, d in deltas.items()})


def one_scale(scale: float) -> Mistake:
    """Patterns not heeded."""

    def patterns_left_out(model: nn.Module, deltas: Deltas) -> None:
        merge(model, {k: replace(delta, scale=scale) for k, delta in deltas.items()})

    return patterns_left_out


def q_on_k(model: nn.Module, deltas: Deltas) -> None:
    other = {"q_proj": "k_proj", "k_proj": "q_proj", "v_proj": "q_proj"}
    moved = {}
    for name, delta in deltas.items():
        before, last = name.rsplit(".", 1)
        moved[f"{before}.{other.get(last, last)}"] = delta
    merge(model, moved)


def transposed(model: nn.Module, deltas: Deltas) -> None:
    """Of square matrices."""
    changed = {
        k: replace(d, a=d.b.T, b=d.a.T) if d.b.shape[0] == d.a.shape[1] else d
        for k, d in deltas.items()
    }
    merge(model, changed)


def without(part: str) -> Mistake:
    def left_out(model: nn.Module, deltas: Deltas) -> None:
        assert any(part in name for name in deltas)
        merge(model, {k: delta for k, delta in deltas.items() if part not in k})

    left_out.__name__ = f"without_{part}"
    return left_out


def rows_in_groups(part: str, groups: int) -> Mistake:
    """Rows of B taken for those of one group after the other, where they go by turns."""

    def other_order(model: nn.Module, deltas: Deltas) -> None:
        def moved(b: torch.Tensor) -> torch.Tensor:
            return b.reshape(groups, -1, b.shape[1]).transpose(0, 1).reshape(b.shape)

        assert any(part in name for name in deltas)
        merge(
            model,
            {k: replace(d, b=moved(d.b)) if part in k else d for k, d in deltas.items()},
        )

    other_order.__name__ = f"other_rows_of_{part}"
    return other_order


def table_not_scaled(model: nn.Module, deltas: Deltas) -> None:
    """The embedding's factor not applied to what the adapter adds."""
    factor = float(model.get_input_embeddings().embed_scale)
    changed = {
        k: replace(d, scale=d.scale / factor) if k.endswith("embed_tokens") else d
        for k, d in deltas.items()
    }
    merge(model, changed)


def head_follows_table(model: nn.Module, deltas: Deltas) -> None:
    """An adapter of the table taken for one of the output layer that shares it."""
    merge(model, deltas)
    model.get_output_embeddings().weight = model.get_input_embeddings().weight
