"""Sparse attention: a token attends to the best tokens before it, by the scores of an indexer."""

from collections.abc import Callable

import torch
from torch import nn

from ..family import Family, dims, rope, small
from ..layouts import with_stacked_experts
from ..mistakes import Change, filled, named, other_pairs, without, zeroed
from .experts import further_layer
from .latent import EXPERTS, YARN


def lowest_of_equal(model: nn.Module) -> None:
    """Of equal scores, which relu makes of many, the lowest position is chosen: torch.topk leaves
    it open."""

    def stable(scores: torch.Tensor, count: int, dim: int = -1):
        values, indices = torch.sort(scores, dim=dim, descending=True, stable=True)
        return torch.return_types.topk((values[..., :count], indices[..., :count]))

    for indexer in indexers(model):
        indexer.forward = with_attribute(indexer.forward, torch.Tensor, "topk", stable)


def indexers(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if type(m).__name__.endswith("Indexer")]


def with_attribute(forward: Callable, owner, name: str, value) -> Callable:
    """`forward` while the owner has another attribute."""

    def changed(*args, **kwargs):
        before = getattr(owner, name)
        setattr(owner, name, value)
        try:
            return forward(*args, **kwargs)
        finally:
            setattr(owner, name, before)

    return changed


def without_relu(model: nn.Module) -> None:
    for indexer in indexers(model):
        function = nn.functional
        indexer.forward = with_attribute(indexer.forward, function, "relu", lambda x: x)


def highest_of_equal(model: nn.Module) -> None:
    """Ties go to the last position."""

    def last(scores: torch.Tensor, count: int, dim: int = -1):
        values, indices = torch.sort(scores.flip(dim), dim=dim, descending=True, stable=True)
        return torch.return_types.topk(
            (values[..., :count], scores.shape[-1] - 1 - indices[..., :count])
        )

    for indexer in indexers(model):
        # Inside of what `lowest_of_equal` has made of it.
        forward = type(indexer).forward.__get__(indexer)
        indexer.forward = with_attribute(forward, torch.Tensor, "topk", last)


def with_arguments(label: str, change: Callable[[nn.Module, dict], None]) -> Change:
    """The indexers' arguments are changed, which are given by position."""
    names = ("hidden_states", "q_resid", "position_embeddings")

    def apply(model: nn.Module) -> None:
        for indexer in indexers(model):
            indexer.forward = changed(indexer, indexer.forward)

    def changed(indexer: nn.Module, forward: Callable) -> Callable:
        def call(*args, **kwargs):
            given = dict(zip(names, args[:3]))
            change(indexer, given)
            return forward(*given.values(), *args[3:], **kwargs)

        return call

    return named(label, apply)


def stand_still(_: nn.Module, given: dict) -> None:
    cos, sin = given["position_embeddings"]
    given["position_embeddings"] = (torch.ones_like(cos), torch.zeros_like(sin))


def latents_before_norm(model: nn.Module) -> None:
    """q of the latent that its norm has not seen."""
    for module in model.modules():
        if getattr(module, "indexer", None) is not None:
            seen: list[torch.Tensor] = []
            hook = lambda _module, args, seen=seen: seen.append(args[0])
            module.q_a_layernorm.register_forward_pre_hook(hook)
            forward = module.indexer.forward
            module.indexer.forward = lambda x, _, *args, f=forward, seen=seen, **kwargs: f(
                x, seen[-1], *args, **kwargs
            )


def sharing_first(model: nn.Module) -> None:
    """Every layer without an indexer takes the choice of the first layer."""
    attentions = [layer.self_attn for layer in model.model.layers]
    first: list[torch.Tensor] = []
    attentions[0].register_forward_hook(lambda _module, _args, out: first.append(out[2]))

    def hook(_module, args, kwargs):
        return args, {**kwargs, "prev_topk_indices": first[-1]}

    for attention in attentions[1:]:
        if attention.indexer is None:
            attention.register_forward_pre_hook(hook, with_kwargs=True)


PAIRS = ("indexer.wq_b", "indexer.wk", "indexer.k_norm")
OF_ALL = [
    dict(index_topk=256), without_relu, without("k_norm"), zeroed("indexer.k_norm.bias"),
    filled("indexer.weights_proj", 1.0), latents_before_norm,
    with_arguments("nothing of an indexer turns", stand_still), highest_of_equal,
]
SIZES = dict(
    rms_norm_eps=1e-2, q_lora_rank=20, n_group=1, topk_group=1, norm_topk_prob=True,
    n_shared_experts=1, num_nextn_predict_layers=1,
    **{**EXPERTS, "first_k_dense_replace": 2, "n_routed_experts": 4},
)

FAMILIES: dict[str, Family] = {
    "deepseek_v32_sparse": small(
        "DeepseekV32Config",
        dims(
            40, 48, 3, 3, 3, rope_parameters=YARN, index_topk=9, index_n_heads=3,
            index_head_dim=14, **SIZES
        ),
        [dict(index_topk=8), dict(index_topk=10), other_pairs(14, 8, PAIRS), *OF_ALL],
        layout=with_stacked_experts(further_layer), old_config=True, fix=lowest_of_equal,
        old_keys=dict(scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1, ep_size=1),
    ),
    "glm_moe_dsa_sparse": small(
        "GlmMoeDsaConfig",
        dims(
            40, 48, 3, 3, 3, rope_parameters=rope(10000.0), index_topk=11, index_n_heads=2,
            index_head_dim=12, indexer_types=["full", "full", "shared"], **SIZES
        ),
        [
            dict(index_topk=10), dict(index_topk=12), other_pairs(12, 8, PAIRS), sharing_first,
            *OF_ALL,
        ],
        layout=with_stacked_experts(further_layer), fix=lowest_of_equal,
    ),
}
