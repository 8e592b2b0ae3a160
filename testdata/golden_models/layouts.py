"""Checkpoints whose tensors have other names or shapes than save_pretrained writes."""

import re

import torch

from .family import Layout


def same(config: dict) -> dict:
    return config


def renamed(pairs: list[tuple[str, str]], tensors: dict) -> dict:
    """Every pair (pattern, replacement) applied to every name."""

    def rename(name: str) -> str:
        for pattern, replacement in pairs:
            name = re.sub(pattern, replacement, name)
        return name

    out = {rename(name): tensor for name, tensor in tensors.items()}
    assert len(out) == len(tensors), "two tensors got one name"
    return out


def without_prefix(prefix: str, extra) -> Layout:
    """Names without a prefix that save_pretrained writes, and `extra(tensors)` beside them."""

    def publish(tensors: dict) -> dict:
        out = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
        return {**out, **extra(out)}

    def restore(tensors: dict) -> dict:
        unread = set(extra(tensors))
        return {
            name if name.startswith("lm_head") else prefix + name: tensor
            for name, tensor in tensors.items() if name not in unread
        }

    return Layout(same, publish, restore)


def with_extra(extra, inner: list[tuple[str, str]] = ()) -> Layout:
    """save_pretrained's tensors, and `extra(tensors)` beside them. `inner`: names that
    transformers has in memory for those that it writes."""

    def restore(tensors: dict) -> dict:
        unread = set(extra(tensors))
        kept = {name: tensor for name, tensor in tensors.items() if name not in unread}
        return renamed(inner, kept)

    return Layout(same, lambda tensors: {**tensors, **extra(tensors)}, restore)


def causal_masks(name: str, layers: int, length: int, dtype: torch.dtype):
    """The masks that old checkpoints hold as tensors: `name` with {} for the layer."""

    def extra(_: dict) -> dict:
        mask = torch.tril(torch.ones(length, length)).view(1, 1, length, length).to(dtype)
        return {name.format(layer): mask.clone() for layer in range(layers)}

    return extra
