"""Routers of mixtures of experts: how clear their choices are, and mistakes in them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from transformers.models.phimoe import modeling_phimoe

from .mistakes import Change, named, replaced
from .weights import CHOICE_BIASES


@dataclass
class Margin:
    """The smallest gap between what is chosen and what comes next."""

    smallest: float = float("inf")

    def see_mixed(self, logits: torch.Tensor, jitter: float) -> None:
        """Two experts of sparsemixer: each is the best, and others are clearly near it or not."""
        for _ in range(2):
            self.see(logits, 1)
            best, index = logits.max(dim=-1, keepdim=True)
            behind = (best - logits) / torch.maximum(logits.abs(), best)
            near = (behind - 2 * jitter).nan_to_num(1.0)
            self.smallest = min(self.smallest, float(near.abs().min()))
            logits = logits.scatter(-1, index, float("-inf"))

    def see(self, values: torch.Tensor, count: int) -> None:
        if count < values.shape[-1]:
            best = torch.sort(values.float(), dim=-1, descending=True).values
            gap = best[..., count - 1] - best[..., count]
            # Probabilities are compared by their ratio, which is that of the logits.
            ratio = gap / best[..., count - 1].abs().clamp(min=1e-30)
            self.smallest = min(self.smallest, float(torch.maximum(gap, ratio).min()))


@contextmanager
def margins() -> Iterator[Margin]:
    """Sees all that routers choose: they call topk, and nothing else in a forward pass does; or
    sparsemixer."""
    margin = Margin()
    function, method = torch.topk, torch.Tensor.topk
    mixer = modeling_phimoe.sparsemixer

    def seen(values, k, *args, **kwargs):
        margin.see(values, k)
        return function(values, k, *args, **kwargs)

    def mixed(scores, jitter_eps, **kwargs):
        margin.see_mixed(scores, jitter_eps)
        return mixer(scores, jitter_eps, **kwargs)

    torch.topk = seen
    torch.Tensor.topk = seen
    modeling_phimoe.sparsemixer = mixed
    try:
        yield margin
    finally:
        torch.topk = function
        torch.Tensor.topk = method
        modeling_phimoe.sparsemixer = mixer


def routers(model: nn.Module) -> list[nn.Module]:
    endings = ("Router", "Gate")
    found = [m for m in model.modules() if type(m).__name__.endswith(endings)]
    assert found, "no routers"
    return found


def routed(label: str, route: Callable) -> Change:
    """`route(router, logits)` gives weights and experts in place of each router."""

    def change(model: nn.Module) -> None:
        for router in routers(model):
            linear = getattr(router, "wg", router)

            def forward(hidden, router=router, linear=linear):
                hidden = hidden.reshape(-1, hidden.shape[-1]).float()
                bias = getattr(linear, "bias", None)
                logits = nn.functional.linear(hidden, linear.weight, bias)
                return logits, *route(router, logits)

            router.forward = forward

    return named(label, change)


def softmax_all(router: nn.Module, logits: torch.Tensor):
    """The softmax over all experts, not renormalized."""
    return torch.topk(torch.softmax(logits, dim=-1), router.top_k, dim=-1)


def softmax_chosen(router: nn.Module, logits: torch.Tensor):
    """The softmax over those that were chosen."""
    best = torch.topk(logits, router.top_k, dim=-1)
    return torch.softmax(best.values, dim=-1), best.indices


def biases(model: nn.Module) -> list[torch.Tensor]:
    """What is added to scores where experts are chosen: a parameter, or a buffer."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [tensor for name, tensor in tensors if name.endswith(CHOICE_BIASES)]


def unbiased(model: nn.Module) -> None:
    """Experts are chosen by their scores alone."""
    assert biases(model)
    for bias in biases(model):
        bias.zero_()


def biased_weights(model: nn.Module) -> None:
    """The bias counts in the weights too."""
    for router in routers(model):
        of_router = biases(router)
        forward = router.forward

        def with_bias(hidden, *of_block, forward=forward, of_router=of_router):
            logits, weights, indices = forward(hidden, *of_block)
            (bias,) = of_block or of_router
            return logits, weights + bias.flatten()[indices], indices

        router.forward = with_bias


def best_of_groups(model: nn.Module) -> None:
    """Groups are compared by their best expert, not by their best two."""
    method = torch.Tensor.topk

    def topk(values, k, *args, **kwargs):
        best = method(values, k, *args, **kwargs)
        if values.dim() == 3 and k == 2:
            return best[0].clone().index_fill_(-1, torch.tensor([1]), 0.0), best[1]
        return best

    for router in routers(model):
        forward = router.forward

        def by_best(hidden, forward=forward):
            torch.Tensor.topk = topk
            try:
                return forward(hidden)
            finally:
                torch.Tensor.topk = method

        router.forward = by_best


def swapped_gate_and_up(model: nn.Module) -> None:
    """The two halves of every expert's first product change places."""
    found = [p for name, p in model.named_parameters() if name.endswith("experts.gate_up_proj")]
    assert found, "no experts"
    for parameter in found:
        parameter.copy_(parameter.roll(parameter.shape[1] // 2, dims=1))


def uninterleaved(model: nn.Module) -> None:
    """gpt-oss has gate and up of each value side by side: they are taken for halves."""
    for name, parameter in model.named_parameters():
        if "experts.gate_up_proj" in name:
            halves = parameter.unflatten(-1, (2, -1))
            parameter.copy_(torch.stack([halves[..., 0, :], halves[..., 1, :]], -1).flatten(-2))


class Open(nn.Module):
    """A gate that lets everything through."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full((*x.shape[:-1], 1), 1e4)


def ungated(name: str) -> Change:
    return named(f"{name} left out", replaced(name, lambda _: Open()))
