"""Models for make_models.py that no key says everything of: with experts, of 2025 and after, and with
Mamba 1."""

import copy

import torch
import transformers

PLAIN = {"rope_type": "default", "rope_theta": 20000.0}
SIZES = {"hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 256,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
         "rope_parameters": PLAIN, "tie_word_embeddings": False}
FULL, SLIDING = "full_attention", "sliding_attention"
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
ROUTED = {**EXPERTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
          "routed_scaling_factor": 1.5, "first_k_dense_replace": 1}

# What the converter reads in published files, and transformers 5 writes otherwise.
PUBLISHED = {
    "hunyuanmoe": {
        "moe_intermediate_size": [24, 24], "moe_topk": [2, 2], "num_shared_expert": [1, 1],
    },
}

# Decays are stored as they are used, and D beside them.
DECAYS = [
    ("decays as they are stored", ".A_log", lambda value: -value.exp()),
    ("states and channels exchanged", ".A_log", lambda value: value.flip(1)),
    ("no skip", ".D", torch.zeros_like),
]


def configs():
    """Name: (folder of the tokenizer, config)."""
    return {
        "afmoe": ("qwen3", transformers.AfmoeConfig(
            **SIZES, **EXPERTS, num_hidden_layers=4, sliding_window=6, num_dense_layers=1,
            num_shared_experts=1, route_scale=1.5, mup_enabled=True,
            layer_types=[SLIDING, SLIDING, SLIDING, FULL])),
        "dots1": ("qwen3", transformers.Dots1Config(
            **SIZES, **ROUTED, num_hidden_layers=2, n_shared_experts=1, sliding_window=None)),
        "ernie4_5moe": ("qwen3", transformers.Ernie4_5_MoeConfig(
            **SIZES, moe_num_experts=4, moe_k=2, moe_intermediate_size=16, num_hidden_layers=2,
            moe_num_shared_experts=1, moe_layer_start_index=1, moe_layer_interval=1)),
        "exaonemoe": ("qwen3", transformers.ExaoneMoeConfig(
            **SIZES, **ROUTED, num_hidden_layers=4, num_shared_experts=1, sliding_window=6,
            layer_types=[SLIDING, SLIDING, SLIDING, FULL],
            mlp_layer_types=["dense", "sparse", "sparse", "sparse"])),
        "hunyuanmoe": ("qwen3", transformers.HunYuanMoEV1Config(
            **SIZES, num_experts=4, moe_topk=2, num_hidden_layers=2)),
        "hyv3": ("qwen3", transformers.HYV3Config(
            **SIZES, **EXPERTS, num_hidden_layers=2, num_shared_experts=1,
            router_scaling_factor=1.5, first_k_dense_replace=1)),
        "jamba": ("qwen3", transformers.JambaConfig(
            **{key: SIZES[key] for key in SIZES if key not in ("rope_parameters", "head_dim")},
            num_hidden_layers=4, attn_layer_period=3, attn_layer_offset=1, expert_layer_period=2,
            expert_layer_offset=1, num_experts=4, num_experts_per_tok=2, mamba_d_state=8,
            mamba_dt_rank=3, use_mamba_kernels=False, pad_token_id=None)),
        "llama4": ("qwen3", transformers.Llama4TextConfig(
            **SIZES, num_hidden_layers=4, num_local_experts=4, num_experts_per_tok=1,
            intermediate_size_mlp=40, interleave_moe_layer_step=2, pad_token_id=None)),
        "mamba": ("qwen3", transformers.MambaConfig(
            hidden_size=16, state_size=8, num_hidden_layers=2, time_step_rank=3,
            tie_word_embeddings=False)),
        "minimaxm2": ("qwen3", transformers.MiniMaxM2Config(
            **{**SIZES, "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}},
            num_local_experts=4, num_experts_per_tok=2, num_hidden_layers=2, rotary_dim=4)),
        "nemotron3": ("qwen3", transformers.NemotronHConfig(
            **{key: SIZES[key] for key in SIZES if key != "rope_parameters"},
            layers_block_type=["mamba", "moe", "attention", "moe"], mamba_num_heads=2,
            mamba_head_dim=64, n_groups=2, ssm_state_size=8, n_routed_experts=4,
            num_experts_per_tok=2, moe_intermediate_size=16,
            moe_shared_expert_intermediate_size=24, n_group=1, topk_group=1,
            routed_scaling_factor=1.5, norm_topk_prob=True)),
    }


def mistakes(name, model, rebuilt):
    """(what, the model with it)."""
    if name not in configs():
        return
    for what, ending in [
        ("no bias of the choice", ("e_score_correction_bias", "expert_bias")),
        ("experts exchanged", ("experts.down_proj",)),
    ]:
        other = copy.deepcopy(model)
        with torch.no_grad():
            named = [*other.named_parameters(), *other.named_buffers()]
            found = [value for key, value in named if key.endswith(ending)]
            for value in found:
                value.copy_(torch.zeros_like(value) if value.dim() < 3 else value.roll(1, 0))
        # Hunyuan chooses without a bias.
        if found:
            yield what, other
    if name in ["afmoe", "exaonemoe"]:
        yield "no window", rebuilt(model, layer_types=[FULL] * 4)
    for what, ending, of in DECAYS:
        parameters = dict(model.named_parameters())
        found = [key for key in parameters if key.endswith(ending)]
        if found:
            other = copy.deepcopy(model)
            with torch.no_grad():
                for key in found:
                    value = dict(other.named_parameters())[key]
                    value.copy_(of(value))
            yield what, other
