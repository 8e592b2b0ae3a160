"""Checkpoints whose tensors have other names or shapes than save_pretrained writes."""

import math
import zlib

import torch

from .family import Layout


def same(config: dict) -> dict:
    return config


def renamed(pairs: list[tuple[str, str]], tensors: dict) -> dict:
    """Every pair (part, replacement) applied to every name, in turn."""

    def rename(name: str) -> str:
        for part, replacement in pairs:
            name = name.replace(part, replacement)
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


def with_stacked_experts(extra) -> Layout:
    """The same as `with_extra`, and as `with_experts_one_by_one`."""
    return with_experts_one_by_one(with_extra(extra))


def stacked(tensors: dict) -> dict:
    """Experts one by one, as transformers has them in memory: gate and up of all, or up alone, and down of all."""
    out, experts = {}, {}
    for name, tensor in tensors.items():
        block, experts_of, rest = name.partition(".experts.")
        if experts_of:
            index, part, _ = rest.split(".")
            experts.setdefault(block, {}).setdefault(part, {})[int(index)] = tensor
        else:
            out[name] = tensor
    for block, parts in experts.items():
        of_all = {
            part: torch.stack([tensor for _, tensor in sorted(tensors.items())])
            for part, tensors in parts.items()
        }
        if "gate_proj" in of_all:
            gate_up = [of_all.pop("gate_proj"), of_all.pop("up_proj")]
            of_all["gate_up_proj"] = torch.cat(gate_up, dim=1)
        out |= {f"{block}.experts.{part}": tensor for part, tensor in of_all.items()}
    return out


def with_experts_one_by_one(layout: Layout) -> Layout:
    """The same where transformers has experts in two tensors that it writes one by one."""
    return Layout(
        layout.config, layout.publish, lambda tensors: stacked(layout.restore(tensors))
    )


def with_turned_experts(layout: Layout) -> Layout:
    """The same with experts stacked in two tensors of (experts, inputs, outputs)."""

    def turned(tensors: dict) -> dict:
        return {
            name: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor
            for name, tensor in tensors.items()
        }

    return Layout(
        layout.config,
        lambda tensors: layout.publish(turned(stacked(tensors))),
        lambda tensors: turned(layout.restore(tensors)),
    )


def causal_masks(name: str, layers: int, length: int, dtype: torch.dtype):
    """The masks that old checkpoints hold as tensors: `name` with {} for the layer."""

    def extra(_: dict) -> dict:
        mask = torch.tril(torch.ones(length, length)).view(1, 1, length, length).to(dtype)
        return {name.format(layer): mask.clone() for layer in range(layers)}

    return extra


def alias(architecture: str, model_type: str, **keys) -> Layout:
    """The same tensors under another architecture, with more keys in config.json."""

    def config(config: dict) -> dict:
        return {**config, "architectures": [architecture], "model_type": model_type, **keys}

    return Layout(config, dict, dict)


def fused(names: list[tuple[str, str]], keys: dict, dropped: tuple[str, ...]) -> Layout:
    """InternLM2's: q, k and v in one matrix, [q, .., q, k, v] for every KV head of 16 rows, two
    query heads to each; then other names."""
    back = [(new, old) for old, new in names]

    def config(config: dict) -> dict:
        return {k: v for k, v in {**config, **keys}.items() if k not in dropped}

    def publish(tensors: dict) -> dict:
        tensors = dict(tensors)
        for name in [name for name in tensors if "q_proj" in name]:
            q = tensors.pop(name).unflatten(0, (-1, 2, 16))
            k, v = (
                tensors.pop(name.replace("q_proj", part)).unflatten(0, (-1, 1, 16))
                for part in ("k_proj", "v_proj")
            )
            tensors[name.replace("q_proj", "wqkv")] = torch.cat([q, k, v], dim=1).flatten(0, 2)
        return renamed(names, tensors)

    def restore(tensors: dict) -> dict:
        tensors = renamed(back, tensors)
        for name in [name for name in tensors if "wqkv" in name]:
            groups = tensors.pop(name).unflatten(0, (-1, 4, 16))
            parts = {"q_proj": groups[:, :2], "k_proj": groups[:, 2], "v_proj": groups[:, 3]}
            for part, value in parts.items():
                tensors[name.replace("wqkv", part)] = value.reshape(-1, value.shape[-1])
        return tensors

    return Layout(config, publish, restore)


def halves(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Values of a tensor that nothing computes with."""
    return torch.full(shape, 0.5)


def of_tower(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Random values of a tensor of a vision tower."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    values = torch.randn(shape, generator=generator)
    if name.endswith("bias"):
        return values * 0.3
    if len(shape) == 1:
        return 1.0 + values * 0.25
    if "position" in name:
        return values * 0.7
    return values * 1.2 / math.sqrt(math.prod(shape[1:]))


def wrapped(
    model: str, head: str, vision: dict[str, tuple[int, ...]], config, values=halves
) -> Layout:
    """The text part of a multimodal checkpoint: `model` and `head` are its prefixes for "model."
    and "lm_head."; `vision` are tensors that no text needs, by shape."""

    def publish(tensors: dict) -> dict:
        out = {
            name.replace("model.", model, 1)
            if name.startswith("model.")
            else name.replace("lm_head.", head, 1): tensor
            for name, tensor in tensors.items()
        }
        images = {name: values(name, shape).bfloat16() for name, shape in vision.items()}
        return {**out, **images}

    def restore(tensors: dict) -> dict:
        return {
            name.replace(head, "lm_head.", 1)
            if name.startswith(head)
            else name.replace(model, "model.", 1): tensor
            for name, tensor in tensors.items() if name not in vision
        }

    return Layout(config, publish, restore)
