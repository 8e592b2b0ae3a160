"""Mistakes that no config change expresses: functions on the oracle."""

from collections.abc import Callable

import torch
from torch import nn

Change = Callable[[nn.Module], None]


def named(label: str, change: Change) -> Change:
    change.__name__ = label
    return change


def zeroed(part: str) -> Change:
    """Parameters whose names contain `part` are zero: as if they were not read."""
    return filled(part, 0.0)


def filled(part: str, value: float) -> Change:
    def change(model: nn.Module) -> None:
        found = [p for name, p in model.named_parameters() if part in name]
        assert found, part
        for parameter in found:
            parameter.fill_(value)

    return named(f"{part} = {value}", change)


def added(part: str, value: float) -> Change:
    """`value` is added to parameters: (1 + w) taken for w, or the other way round."""

    def change(model: nn.Module) -> None:
        found = [p for name, p in model.named_parameters() if part in name]
        assert found, part
        for parameter in found:
            parameter.add_(value)

    return named(f"{part} + {value}", change)


def swapped(first: str, second: str) -> Change:
    """Parameters of two names change places in every layer."""

    def change(model: nn.Module) -> None:
        parameters = dict(model.named_parameters())
        names = [name for name in parameters if first in name]
        pairs = [(parameters[n], parameters[n.replace(first, second)]) for n in names]
        assert pairs, first
        for one, other in pairs:
            one_before = one.clone()
            one.copy_(other)
            other.copy_(one_before)

    return named(f"{first} <-> {second}", change)


def attributes(cls: str, **values) -> Change:
    """Attributes of every module of a class."""

    def change(model: nn.Module) -> None:
        found = [m for m in model.modules() if type(m).__name__ == cls]
        assert found, cls
        for module in found:
            for key, value in values.items():
                assert hasattr(module, key), (cls, key)
                setattr(module, key, value)

    return named(f"{cls}: {values}", change)


def replaced(name: str, make: Callable[[nn.Module], nn.Module]) -> Change:
    """Every submodule with this last name is replaced."""

    def change(model: nn.Module) -> None:
        found = [(n, m) for n, m in model.named_modules() if n.rpartition(".")[2] == name]
        assert found, name
        for path, module in found:
            parent = model.get_submodule(path.rpartition(".")[0])
            setattr(parent, name, make(module))

    return named(f"another {name}", change)


def activation(kind: str, name: str = "act_fn") -> Change:
    from transformers.activations import ACT2FN

    return named(f"activation {kind}", replaced(name, lambda _: ACT2FN[kind]))


def without(name: str) -> Change:
    """Every submodule with this last name passes on what it gets."""
    return named(f"without {name}", replaced(name, lambda _: nn.Identity()))


def rows_swapped(part: str, sizes: list[int]) -> Change:
    """Two blocks of rows of a fused matrix change places: [sizes[0], sizes[1]] from the top."""

    def change(model: nn.Module) -> None:
        found = [p for name, p in model.named_parameters() if name.endswith(part)]
        assert found, part
        first, second = sizes
        for parameter in found:
            rows = parameter[: first + second].clone()
            parameter[: first + second] = torch.cat([rows[first:], rows[:first]])

    return named(f"rows of {part} in another order", change)




def other_pairs(head_dim: int, rotary: int | None = None, parts=("q_proj", "k_proj")) -> Change:
    """Interleaved pairs taken for halves, or halves for interleaved pairs: as if the rows of
    each head were in the other order."""
    rotary = rotary or head_dim
    order = torch.arange(head_dim)
    order[:rotary] = torch.arange(rotary).view(2, rotary // 2).T.reshape(-1)

    def change(model: nn.Module) -> None:
        found = [p for n, p in model.named_parameters() if any(part in n for part in parts)]
        assert found, parts
        for p in found:
            p.copy_(p.view(-1, head_dim, *p.shape[1:])[:, order].reshape(p.shape))

    return named("the other kind of rotary pairs", change)


class HeadNorm(nn.Module):
    """A projection, and a norm of each of its heads."""

    def __init__(self, projection: nn.Module, norm: nn.Module):
        super().__init__()
        self.projection, self.norm = projection, norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.projection(x)
        return self.norm(y.unflatten(-1, (-1, self.norm.weight.shape[0]))).flatten(-2)


def norm_before_rotation(model: nn.Module) -> None:
    """HunYuan's norms of q and k before the rotation, as Qwen3 has them."""
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.q_proj = HeadNorm(attention.q_proj, attention.query_layernorm)
        attention.k_proj = HeadNorm(attention.k_proj, attention.key_layernorm)
        attention.query_layernorm, attention.key_layernorm = nn.Identity(), nn.Identity()
