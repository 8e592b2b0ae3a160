"""Latent attention: K and V of all heads are made of one latent per token."""

from dataclasses import dataclass

import torch
from torch import nn

from ..family import Family, Layout, dims, rope, small
from ..layouts import renamed, with_experts_one_by_one, with_extra, with_stacked_experts
from ..mistakes import named, rows_swapped, without, zeroed
from ..ropes import fixed_at
from ..routing import best_of_groups, biased_weights, swapped_gate_and_up, unbiased
from .experts import further_layer

SHORT, LONG = [1.0, 1.1, 1.4, 2.0], [1.0, 1.7, 3.1, 6.0]
LONGROPE = rope(
    10000.0, "longrope", short_factor=SHORT, long_factor=LONG, original_max_position_embeddings=256
)
YARN = rope(
    10000.0, "yarn", factor=8.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0,
    mscale=1.0, mscale_all_dim=0.7,
)


def latent_eps(eps: float):
    """Norms of latents with the epsilon of the other norms."""

    def change(model: nn.Module) -> None:
        for name, module in model.named_modules():
            if name.endswith(("q_a_layernorm", "kv_a_layernorm")):
                module.variance_epsilon = eps

    return named(f"latents' eps {eps}", change)


def scaled_by(factor: float):
    """Attention scores with another factor."""

    def change(model: nn.Module) -> None:
        for module in model.modules():
            if hasattr(module, "kv_b_proj"):
                module.scaling *= factor

    return named(f"scores * {factor}", change)


def turning_first(model: nn.Module) -> None:
    """The part that turns taken from the front of q's heads and of what leads to the latent."""
    for module in model.modules():
        if not hasattr(module, "kv_b_proj"):
            continue
        still, turning = module.qk_nope_head_dim, module.qk_rope_head_dim
        q = (module.q_b_proj if module.q_lora_rank else module.q_proj).weight
        heads = q.view(-1, still + turning, q.shape[1])
        q.copy_(heads.roll(turning, 1).reshape(q.shape))
        kv = module.kv_a_proj_with_mqa.weight
        kv.copy_(kv.roll(turning, 0))


def values_first(nope: int, v: int):
    return rows_swapped("kv_b_proj.weight", [nope, v])


YOUTU = dict(
    qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=10, kv_lora_rank=24, rms_norm_eps=1e-2,
)

EXPERTS = dict(
    qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=10, kv_lora_rank=24, n_routed_experts=8,
    num_experts_per_tok=2, moe_intermediate_size=16, first_k_dense_replace=1,
    routed_scaling_factor=2.5,
)

MISTRAL4 = dict(YARN, mscale_all_dim=1.0, llama_4_scaling_beta=0.3, partial_rotary_factor=0.4)


def without_growth_of_turning(model: nn.Module) -> None:
    """Of q the part that turns does not grow with the position."""
    from transformers.models.mistral4 import modeling_mistral4 as code

    for module in model.modules():
        if not hasattr(module, "kv_b_proj"):
            continue
        forward = module.forward

        def other(*args, forward=forward, still=module.qk_nope_head_dim, **kwargs):
            scale = code.get_llama_4_attn_scale

            def of_still(*args):
                whole = scale(*args)
                return torch.cat([whole.expand(-1, -1, -1, still), torch.ones_like(whole).expand(-1, -1, -1, 8)], -1)

            code.get_llama_4_attn_scale = of_still
            try:
                return forward(*args, **kwargs)
            finally:
                code.get_llama_4_attn_scale = scale

        module.forward = other


AXK1 = {key: value for key, value in EXPERTS.items() if key != "first_k_dense_replace"}
AXK1_NAMES = [(".post_mlp_layernorm", ".mlp.post_mlp_layernorm")]


def norm_of_mlp(tensors: dict) -> dict:
    """A norm behind the MLP of a dense layer, which published files have and nothing reads."""
    norm = tensors["model.layers.1.post_mlp_layernorm.weight"]
    return {"model.layers.0.post_mlp_layernorm.weight": norm}


def with_zeros(tensors: dict) -> dict:
    """The biases of choices that the file lacks."""
    tensors = renamed(AXK1_NAMES, tensors)
    routers = [name for name in tensors if name.endswith("mlp.gate.weight")]
    biases = {
        name.replace("gate.weight", "gate.e_score_correction_bias"):
            torch.zeros(tensors[name].shape[0]) for name in routers
    }
    return {**tensors, **biases}


WITHOUT_BIASES = with_experts_one_by_one(Layout(
    dict, lambda tensors: {n: t for n, t in tensors.items() if "correction_bias" not in n},
    with_zeros,
))


def sarvam(config: dict) -> dict:
    """As Sarvam writes it."""
    renamed_keys = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
    dropped = ("qk_head_dim", "rope_interleave")
    keys = {renamed_keys.get(k, k): v for k, v in config.items() if k not in dropped}
    return keys | dict(
        architectures=["SarvamMLAForCausalLM"], q_head_dim=20, head_dim=32,
        rope_scaling={
            k: v for k, v in keys["rope_scaling"].items() if k != "rope_type"
        } | dict(type="deepseek_yarn"),
    )


def best_two_of_groups(model: nn.Module) -> None:
    """Groups compared by the sum of their probabilities, not by their best one."""
    method = torch.Tensor.max

    def summed(values, *args, **kwargs):
        best = method(values, *args, **kwargs)
        return Values(values.sum(dim=-1)) if values.dim() == 3 else best

    for module in model.modules():
        if type(module).__name__ != "DeepseekV2TopkRouter":
            continue
        forward = module.forward

        def by_sum(hidden, forward=forward):
            torch.Tensor.max = summed
            try:
                return forward(hidden)
            finally:
                torch.Tensor.max = method

        module.forward = by_sum


@dataclass
class Values:
    values: torch.Tensor


FAMILIES: dict[str, Family] = {
    "deepseek_v2": small(
        "DeepseekV2Config",
        dims(
            48, 64, 3, 3, 3, rms_norm_eps=1e-2, q_lora_rank=20, n_group=4, topk_group=2,
            topk_method="group_limited_greedy", n_shared_experts=2, rope_parameters=YARN,
            **{**EXPERTS, "num_experts_per_tok": 3},
        ),
        [
            best_two_of_groups, dict(topk_method="greedy"), dict(routed_scaling_factor=1.0),
            zeroed("shared_experts.down_proj"), swapped_gate_and_up, latent_eps(1e-2),
            dict(rope_parameters=dict(YARN, mscale_all_dim=0.0, mscale=0.0)), turning_first,
        ],
        old_config=True,
        old_keys=dict(
            scoring_func="softmax", moe_layer_freq=1, ep_size=1, seq_aux=True, aux_loss_alpha=0.001,
        ),
    ),
    "deepseek_v2_lite": small(
        "DeepseekV2Config",
        dims(
            48, 64, 3, 3, 3, rms_norm_eps=1e-2, q_lora_rank=None, n_group=1, topk_group=1,
            topk_method="greedy", n_shared_experts=1, rope_parameters=rope(10000.0), **EXPERTS
        ),
        [
            dict(num_experts_per_tok=3), zeroed("shared_experts.down_proj"), swapped_gate_and_up,
            turning_first, values_first(12, 10),
        ],
    ),
    "deepseek_v3": small(
        "DeepseekV3Config",
        dims(
            48, 64, 3, 3, 3, rms_norm_eps=1e-2, q_lora_rank=20, n_group=4, topk_group=2,
            norm_topk_prob=True, n_shared_experts=1, rope_parameters=YARN, **EXPERTS
        ),
        [
            unbiased, biased_weights, best_of_groups, dict(routed_scaling_factor=1.0),
            dict(norm_topk_prob=False), dict(n_group=1, topk_group=1),
            zeroed("shared_experts.down_proj"), swapped_gate_and_up, latent_eps(1e-2),
            dict(rope_interleave=False), turning_first,
        ],
        layout=with_stacked_experts(further_layer), old_config=True,
        old_keys=dict(scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1, ep_size=1),
    ),
    "deepseek_v32": small(
        "DeepseekV32Config",
        dims(
            40, 48, 2, 3, 3, rms_norm_eps=1e-2, q_lora_rank=20, n_group=4, topk_group=2,
            norm_topk_prob=True, n_shared_experts=1, rope_parameters=YARN, index_topk=160,
            index_n_heads=2, index_head_dim=12, **EXPERTS
        ),
        [
            unbiased, biased_weights, best_of_groups, dict(routed_scaling_factor=1.0),
            dict(norm_topk_prob=False), zeroed("shared_experts.down_proj"), latent_eps(1e-2),
            turning_first, dict(index_topk=8),
        ],
        layout=with_stacked_experts(further_layer), old_config=True,
        old_keys=dict(scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1, ep_size=1),
    ),
    "glm_moe_dsa": small(
        "GlmMoeDsaConfig",
        dims(
            40, 48, 2, 3, 3, rms_norm_eps=1e-2, q_lora_rank=20, n_group=1, topk_group=1,
            norm_topk_prob=True, n_shared_experts=1, rope_parameters=rope(10000.0), index_topk=160,
            index_n_heads=2, index_head_dim=12, indexer_types=["full", "shared"],
            **EXPERTS
        ),
        [
            unbiased, biased_weights, dict(routed_scaling_factor=1.0), dict(norm_topk_prob=False),
            zeroed("shared_experts.down_proj"), turning_first, dict(index_topk=8),
        ],
        layout=with_stacked_experts(further_layer),
    ),
    "glm4_moe_lite": small(
        "Glm4MoeLiteConfig",
        dims(
            48, 64, 3, 3, 3, rms_norm_eps=1e-2, q_lora_rank=20, n_group=1, topk_group=1,
            norm_topk_prob=True, n_shared_experts=1, rope_parameters=rope(10000.0),
            mlp_layer_types=["dense", "sparse", "sparse"],
            **{key: value for key, value in EXPERTS.items() if key != "first_k_dense_replace"},
        ),
        [
            unbiased, biased_weights, dict(routed_scaling_factor=1.0), dict(norm_topk_prob=False),
            dict(rope_interleave=False), latent_eps(1e-2),
        ],
    ),
    "mistral4": small(
        "Mistral4Config",
        dims(
            48, 64, 3, 3, 3, rms_norm_eps=1e-2, q_lora_rank=20, n_group=4, topk_group=2,
            norm_topk_prob=True, n_shared_experts=1, rope_parameters=MISTRAL4, **EXPERTS
        ),
        [
            best_of_groups, dict(routed_scaling_factor=1.0), dict(norm_topk_prob=False),
            dict(n_group=1, topk_group=1), zeroed("shared_experts.down_proj"), swapped_gate_and_up,
            latent_eps(1e-2), dict(rope_interleave=False), turning_first, without_growth_of_turning,
            dict(rope_parameters=dict(MISTRAL4, llama_4_scaling_beta=0.0)),
            dict(rope_parameters=dict(MISTRAL4, mscale_all_dim=0.0)), dict(first_k_dense_replace=0),
        ],
    ),
    "minicpm3": small(
        "MiniCPM3Config",
        dims(
            48, 64, 3, 3, 3, tie_word_embeddings=True, rms_norm_eps=1e-2, q_lora_rank=20,
            kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=16,
            scale_emb=3.0, scale_depth=1.4, dim_model_base=24, rope_parameters=LONGROPE,
        ),
        [
            dict(scale_emb=1.0), dict(scale_depth=1.0), dict(dim_model_base=48),
            dict(_fix=fixed_at(257)), dict(rope_parameters=rope(10000.0)),
            without("q_a_layernorm"), without("kv_a_layernorm"), latent_eps(1e-2),
            scaled_by((20 / 32) ** 0.5), turning_first, values_first(12, 16),
        ],
        head_std=0.04, final_norm_mean=21.0, old_config=True,
        old_drop=("head_dim", "qk_head_dim", "v_head_dim", "mlp_bias", "tie_word_embeddings"),
        old_keys=dict(rope_scaling={k: v for k, v in LONGROPE.items() if k != "rope_theta"}),
    ),
    "youtu": small(
        "YoutuConfig",
        dims(
            48, 64, 3, 3, 3, tie_word_embeddings=True, q_lora_rank=20, rope_parameters=YARN, **YOUTU
        ),
        [
            dict(rope_interleave=False), dict(rope_parameters=rope(10000.0)),
            dict(rope_parameters=dict(YARN, mscale_all_dim=0.0, mscale=0.0)),
            without("q_a_layernorm"), without("kv_a_layernorm"), latent_eps(1e-2),
            scaled_by((20 / 32) ** 0.5), turning_first, values_first(12, 10),
        ],
    ),
    "youtu_plain_q": small(
        "YoutuConfig",
        dims(
            48, 64, 3, 3, 3, tie_word_embeddings=False, q_lora_rank=None, rope_interleave=False,
            rope_parameters=rope(1000.0), **YOUTU,
        ),
        [
            dict(rope_interleave=True), dict(rope_parameters=rope(10000.0)),
            without("kv_a_layernorm"), latent_eps(1e-2), turning_first, values_first(12, 10),
        ],
    ),
    "axk1": small(
        "AXK1Config",
        dims(
            48, 64, 3, 3, 3, rms_norm_eps=1e-2, q_lora_rank=20, n_group=4, topk_group=2,
            norm_topk_prob=True, n_shared_experts=1, rope_parameters=YARN,
            mlp_layer_types=["dense", "sparse", "sparse"], **AXK1,
        ),
        [
            best_of_groups, unbiased, dict(routed_scaling_factor=1.0), without("post_mlp_layernorm"),
            zeroed("shared_experts.down_proj"), latent_eps(1e-2), turning_first,
        ],
        layout=with_experts_one_by_one(with_extra(norm_of_mlp, AXK1_NAMES)),
    ),
    "axk1_unbiased": small(
        "AXK1Config",
        dims(
            48, 64, 2, 3, 3, rms_norm_eps=1e-2, q_lora_rank=20, n_group=1, topk_group=1,
            n_shared_experts=2, rope_parameters=rope(10000.0), **AXK1,
        ),
        [dict(num_experts_per_tok=3), dict(norm_topk_prob=False), without("post_mlp_layernorm")],
        rounded=unbiased, layout=WITHOUT_BIASES,
    ),
    "sarvam_mla": small(
        "SarvamMLAConfig",
        dims(
            48, 64, 3, 3, 3, rms_norm_eps=1e-2, q_lora_rank=None, n_group=1, topk_group=1,
            norm_topk_prob=True, n_shared_experts=1, rope_parameters=YARN, **EXPERTS
        ),
        [unbiased, biased_weights, dict(routed_scaling_factor=1.0), turning_first],
        model_class="DeepseekV3ForCausalLM",
        layout=with_experts_one_by_one(Layout(sarvam, dict, dict)),
        old_config=True, oracle="transformers DeepseekV3ForCausalLM, config as published",
    ),
}
