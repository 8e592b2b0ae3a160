"""Ling 1 and 2 and Sarvam: names of their own, q, k and v in one tensor.

Mistakes that these goldens catch: rows of q, k and v in another order; a bias of the choice of
experts left out, or used in the weights; groups compared by their best; norms of heads left out; a
whole head rotated where half of it is; Ling 1's output layer as it is stored.
"""

import torch
from torch import nn
from torch.nn.functional import linear, normalize

from ..family import Family, Layout, dims, rope, small
from ..layouts import renamed, with_experts_one_by_one
from ..mistakes import other_pairs, without, zeroed
from ..routing import (
    best_of_groups, biased_weights, routed, softmax_all, softmax_chosen, swapped_gate_and_up,
    unbiased,
)
from .renamed import with_choice_biases

HEADS, KV_HEADS, HEAD = 4, 2, 16
SIZES = [HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD]
NAMES = [
    ("model.word_embeddings.", "model.embed_tokens."), (".attention.", ".self_attn."),
    (".self_attn.dense.", ".self_attn.o_proj."), ("query_layernorm", "q_norm"),
    ("key_layernorm", "k_norm"), ("gate.expert_bias", "gate.e_score_correction_bias"),
]


def apart(tensors: dict) -> dict:
    """q, k and v as transformers has them in memory."""
    out = {}
    for name, tensor in renamed(NAMES, tensors).items():
        if "query_key_value" in name:
            parts = zip("qkv", torch.split(tensor, SIZES))
            out |= {name.replace("query_key_value", f"{part}_proj"): t for part, t in parts}
        else:
            out[name] = tensor
    return out


def ling(config: dict) -> dict:
    """As inclusionAI writes it."""
    words = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
    keys = {words.get(key, key): value for key, value in config.items()}
    keys["use_qkv_bias"] = keys.pop("attention_bias")
    return keys | dict(
        architectures=["BailingMoeV2ForCausalLM"], model_type="bailing_moe",
        embedding_dropout=0.0, max_window_layers=3, moe_router_enable_expert_bias=True,
        moe_shared_expert_intermediate_size=16, norm_head=False, norm_softmax=False,
        num_nextn_predict_layers=0, output_dropout=0.0, rotary_dim=8, router_dtype="fp32",
        score_function="sigmoid", use_bias=False, use_rmsnorm=True,
    )


# Ling 1's experts by a softmax over all, and by what is the same as their shares of it.
SUMS = routed("a softmax of all", softmax_all)
SHARES = routed("a softmax of the chosen", softmax_chosen)
# Keys that Ling 1 does not have.
OF_SECOND = (
    "max_window_layers", "moe_router_enable_expert_bias", "moe_shared_expert_intermediate_size",
    "num_nextn_predict_layers", "rotary_dim", "router_dtype", "score_function", "n_group",
    "topk_group", "routed_scaling_factor", "partial_rotary_factor",
)


def first(route, norm_head: bool):
    """Experts by this choice; an output layer whose columns have length 1."""

    def fix(model: nn.Module) -> None:
        route(model)
        head = model.lm_head
        if norm_head:
            head.forward = lambda hidden: linear(hidden, normalize(head.weight, dim=0, eps=1e-7))

    fix.__name__ = f"{route.__name__}, {norm_head = }"
    return fix


def uneven(model: nn.Module) -> None:
    """Columns of the output layer have other lengths: factors that round nothing."""
    model.lm_head.weight *= 2.0 ** (torch.arange(model.lm_head.weight.shape[1]) % 4 - 2)


def first_ling(norm_head: bool, num_layers: int, mistakes: list, **more) -> Family:
    def config(config: dict) -> dict:
        keys = {key: value for key, value in ling(config).items() if key not in OF_SECOND}
        return keys | dict(architectures=["BailingMoeForCausalLM"], norm_head=norm_head)

    def publish(tensors: dict) -> dict:
        return {name: tensor for name, tensor in tensors.items() if "expert_bias" not in name}

    layout = Layout(config, publish, lambda tensors: with_choice_biases(apart(tensors)))
    routes = {True: SHARES, False: SUMS}
    route = routes[more["norm_topk_prob"]]
    other = routes[not more["norm_topk_prob"]]
    return small(
        "SarvamMoEConfig",
        dims(
            32, 48, num_layers, HEADS, KV_HEADS, head_dim=HEAD, n_routed_experts=6,
            num_experts_per_tok=2, moe_intermediate_size=16, rms_norm_eps=1e-5, n_group=1, topk_group=1,
            tie_word_embeddings=False, routed_scaling_factor=1.0,
            rope_parameters=rope(20000.0, partial_rotary_factor=1.0), **more,
        ),
        [
            dict(_fix=first(other, norm_head)), dict(_fix=first(route, not norm_head)),
            swapped_gate_and_up, zeroed("shared_experts.down_proj"), other_pairs(HEAD), *mistakes,
        ],
        model_class="Glm4MoeForCausalLM", fix=first(route, norm_head), rounded=uneven,
        layout=with_experts_one_by_one(layout), old_config=True,
        oracle="transformers Glm4MoeForCausalLM with a softmax, as BailingMoeForCausalLM",
        final_norm_mean=8.0 if norm_head else 1.0,
    )


def model(mistakes: list, more: dict, **family) -> Family:
    return small(
        "SarvamMoEConfig",
        dims(
            32, 48, 3, HEADS, KV_HEADS, head_dim=HEAD, n_routed_experts=8, num_experts_per_tok=2,
            moe_intermediate_size=16, first_k_dense_replace=1, rms_norm_eps=1e-5, **more,
        ),
        [
            unbiased, biased_weights, swapped_gate_and_up, dict(routed_scaling_factor=1.0),
            zeroed("shared_experts.down_proj"), *mistakes,
        ],
        model_class="Glm4MoeForCausalLM", **family,
    )


FAMILIES: dict[str, Family] = {
    "bailing_moe": first_ling(
        True, 2, [], norm_topk_prob=True, use_qk_norm=False, n_shared_experts=2,
        first_k_dense_replace=0,
    ),
    "bailing_moe_sums": first_ling(
        False, 3, [without("q_norm"), without("k_norm"), zeroed("q_proj.bias")],
        norm_topk_prob=False, use_qk_norm=True, attention_bias=True, n_shared_experts=1,
        first_k_dense_replace=1,
    ),
    "bailing_moe_v2": model(
        [
            best_of_groups, dict(n_group=1, topk_group=1), without("q_norm"), without("k_norm"),
            dict(rope_parameters=rope(20000.0, partial_rotary_factor=1.0)),
            other_pairs(HEAD, HEAD // 2),
        ],
        dict(
            n_group=4, topk_group=2, routed_scaling_factor=2.5,
            rope_parameters=rope(20000.0, partial_rotary_factor=0.5),
        ),
        layout=with_experts_one_by_one(Layout(ling, dict, apart)), old_config=True,
        oracle="transformers Glm4MoeForCausalLM, as BailingMoeV2ForCausalLM",
    ),
    "sarvam_moe": model(
        [dict(norm_topk_prob=True), zeroed("q_proj.bias"), other_pairs(HEAD)],
        dict(
            n_shared_experts=2, routed_scaling_factor=1.5, use_qk_norm=False, attention_bias=True,
            norm_topk_prob=False, rope_parameters=rope(20000.0, partial_rotary_factor=1.0),
        ),
    ),
}
