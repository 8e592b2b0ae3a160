"""Layers that keep a state of the tokens before: short convolutions, Mamba 2.

Every mistake that is listed with a family moves a golden logprob: `--check` says so.
"""

import torch
from torch import nn

from ..family import Family, Mistake, dims, rope, small
from ..layouts import with_experts_one_by_one, with_extra
from ..mistakes import filled, named, other_pairs, rows_swapped, swapped, without, zeroed
from ..routing import (
    best_of_groups, biased_weights, routed, softmax_all, swapped_gate_and_up, unbiased,
)

CONV, LINEAR = "conv", "linear_attention"


def oldest_tap_lost(model: nn.Module) -> None:
    """A state that is one token short, or is not kept."""
    for module in model.modules():
        if isinstance(module, nn.Conv1d):
            module.weight[..., 0] = 0


def taps_reversed(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv1d):
            module.weight.copy_(module.weight.flip(-1))


def eps_of(part: str, eps: float):
    def change(model: nn.Module) -> None:
        for name, module in model.named_modules():
            if name.endswith(part):
                module.variance_epsilon = eps

    return named(f"{part}: eps {eps}", change)


def lfm2(**more) -> dict:
    return dims(
        48, 90, 4, 3, 1, tie_word_embeddings=False, norm_eps=1e-2, block_multiple_of=8,
        rope_parameters=rope(10000.0), **more,
    )


def mixers(model: nn.Module) -> list[nn.Module]:
    found = [module for module in model.modules() if hasattr(module, "A_log")]
    assert found
    return found


def b_and_c_swapped(model: nn.Module) -> None:
    for mixer in mixers(model):
        inner, width = mixer.intermediate_size, mixer.n_groups * mixer.ssm_state_size
        conv = mixer.conv1d
        rows = [(mixer.in_proj.weight, 2 * inner), (conv.weight, inner), (conv.bias, inner)]
        for parameter, start in rows:
            b = parameter[start : start + width].clone()
            parameter[start : start + width] = parameter[start + width : start + 2 * width]
            parameter[start + width : start + 2 * width] = b


def groups_in_turns(model: nn.Module) -> None:
    """Head h reads group h % groups: heads change places in all but B and C."""
    for mixer in mixers(model):
        heads, groups = mixer.num_heads, mixer.n_groups
        order = torch.arange(heads).view(groups, -1).T.reshape(-1)
        values = (order[:, None] * mixer.head_dim + torch.arange(mixer.head_dim)).reshape(-1)
        inner, proj, conv = mixer.intermediate_size, mixer.in_proj.weight, mixer.conv1d
        for start in (0, inner):
            proj[start : start + inner] = proj[start : start + inner][values]
        proj[-heads:] = proj[-heads:][order]
        conv.weight[:inner] = conv.weight[:inner][values]
        conv.bias[:inner] = conv.bias[:inner][values]
        for parameter in (mixer.A_log, mixer.D, mixer.dt_bias):
            parameter.copy_(parameter[order])
        # What groups a norm has is another matter.
        if hasattr(mixer.norm, "weight"):
            mixer.norm.weight.copy_(mixer.norm.weight[values])
        mixer.out_proj.weight.copy_(mixer.out_proj.weight[:, values])


def one_norm_group(model: nn.Module) -> None:
    for mixer in mixers(model):
        mixer.norm.group_size = mixer.intermediate_size


def falcon_one_norm_group(model: nn.Module) -> None:
    for mixer in mixers(model):
        mixer.norm.n_groups = 1


def gate_after_norm(model: nn.Module) -> None:
    for mixer in mixers(model):
        norm, before = mixer.norm, mixer.norm.forward
        norm.forward = lambda y, gate, before=before: before(y) * nn.functional.silu(gate)


MAMBA = [
    oldest_tap_lost, taps_reversed, b_and_c_swapped, zeroed(".D"), zeroed("dt_bias"),
    zeroed("conv1d.bias"), filled("A_log", -20.0), filled("A_log", 20.0), gate_after_norm,
]


def granite(**more) -> dict:
    return dims(
        48, 16, 4, 3, 1, rms_norm_eps=1e-3, shared_intermediate_size=40, mamba_n_heads=6,
        mamba_d_head=16, mamba_d_state=12, mamba_chunk_size=8, embedding_multiplier=3.0,
        attention_multiplier=0.5, residual_multiplier=0.6, logits_scaling=2.5,
        rope_parameters=rope(10000.0), **more,
    )


def falcon(**more) -> dict:
    return dims(
        48, 40, 2, 3, 1, rms_norm_eps=1e-2, mamba_n_heads=6, mamba_n_groups=2, mamba_d_state=12,
        mamba_chunk_size=8, rope_parameters=rope(10000.0), tie_word_embeddings=False,
        embedding_multiplier=2.5, lm_head_multiplier=0.6, key_multiplier=0.7,
        attention_in_multiplier=1.3, attention_out_multiplier=0.8, ssm_in_multiplier=1.25,
        ssm_out_multiplier=0.45, ssm_multipliers=[0.7, 0.5, 1.4, 1.2, 0.8],
        mlp_multipliers=[1.6, 0.6], **more,
    )


# Each factor left out, or at another place of its list.
FACTORS: list[Mistake] = [
    dict(embedding_multiplier=1.0), dict(lm_head_multiplier=1.0), dict(key_multiplier=1.0),
    dict(attention_in_multiplier=1.0), dict(attention_out_multiplier=1.0),
    dict(ssm_in_multiplier=1.0), dict(ssm_out_multiplier=1.0),
    dict(ssm_multipliers=[0.5, 0.7, 1.4, 1.2, 0.8]), dict(ssm_multipliers=[0.7, 0.5, 1.2, 1.4, 0.8]),
    dict(ssm_multipliers=[0.7, 0.5, 1.4, 1.2, 1.0]), dict(mlp_multipliers=[1.0, 0.6]),
    dict(mlp_multipliers=[1.6, 1.0]),
]

def nemotron3(**more) -> dict:
    return dict(
        hidden_size=48, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, max_position_embeddings=256, mamba_num_heads=4, mamba_head_dim=16,
        n_groups=2, ssm_state_size=12, chunk_size=8, layer_norm_epsilon=1e-3,
        num_experts_per_tok=2, moe_intermediate_size=24, moe_shared_expert_intermediate_size=28,
        routed_scaling_factor=2.5, time_step_min=1e-30, **more,
    )


def further(tensors: dict) -> dict:
    """Of a layer that predicts the token after the next one."""
    return {"mtp.layers.0.norm.weight": tensors["backbone.norm_f.weight"]}


CHOICES = [
    unbiased, biased_weights, dict(num_experts_per_tok=3), dict(routed_scaling_factor=1.0),
    dict(mlp_hidden_act="relu"),
]

FAMILIES: dict[str, Family] = {
    "lfm2": small(
        "Lfm2Config", lfm2(conv_L_cache=3, layer_types=[CONV, "full_attention", CONV, CONV]),
        [
            oldest_tap_lost, taps_reversed, without("q_layernorm"), eps_of("operator_norm", 1e-6),
            eps_of("k_layernorm", 1e-6), rows_swapped("in_proj.weight", [48, 48]),
            swapped("w1.weight", "w3.weight"), dict(rope_parameters=rope(1000000.0)),
        ],
        old_config=True, old_keys=dict(full_attn_idxs=[1]),
    ),
    "lfm2_moe": small(
        "Lfm2MoeConfig",
        dims(
            48, 64, 4, 3, 1, tie_word_embeddings=False, norm_eps=1e-2, conv_L_cache=3,
            layer_types=[CONV, CONV, "full_attention", CONV], num_dense_layers=1, num_experts=6,
            num_experts_per_tok=2, moe_intermediate_size=16, use_expert_bias=True,
            norm_topk_prob=True, routed_scaling_factor=1.5, rope_parameters=rope(10000.0),
        ),
        [
            oldest_tap_lost, swapped_gate_and_up, unbiased, dict(num_experts_per_tok=3),
            dict(norm_topk_prob=False), dict(routed_scaling_factor=1.0),
        ],
    ),
    "lfm3": small(
        "Lfm3Config",
        dims(
            48, 40, 4, 3, 1, head_dim=16, tie_word_embeddings=False, norm_eps=1e-2,
            conv_L_cache=4, sliding_window=8, layer_types=[CONV, "full_attention", "sliding_attention", CONV],
            rope_parameters={
                "full_attention": rope(1000.0, "proportional", partial_rotary_factor=0.5),
                "sliding_attention": rope(100.0),
            },
        ),
        [
            oldest_tap_lost, taps_reversed, without("q_norm"), without("post_operator_norm"),
            without("post_ffn_norm"), filled("g_proj", 0.0), dict(sliding_window=7),
            dict(norm_eps=1e-6), swapped("operator_norm", "ffn_norm"),
            dict(rope_parameters={
                "full_attention": rope(1000.0), "sliding_attention": rope(100.0),
            }),
        ],
        post_norm_mean=0.7,
    ),
    "mamba2": small(
        "Mamba2Config",
        dict(
            hidden_size=48, num_hidden_layers=3, num_heads=6, head_dim=16, n_groups=3,
            state_size=12, chunk_size=8, layer_norm_epsilon=1e-2, tie_word_embeddings=False,
        ),
        [*MAMBA, groups_in_turns, one_norm_group, dict(layer_norm_epsilon=1e-6)],
        means={"A_log": -1.0},
    ),
    "granite_hybrid": small(
        "GraniteMoeHybridConfig",
        granite(
            layer_types=[LINEAR, LINEAR, "full_attention", LINEAR], num_local_experts=5,
            num_experts_per_tok=2, mamba_n_groups=2, tie_word_embeddings=False,
        ),
        [
            *MAMBA, groups_in_turns, one_norm_group, swapped_gate_and_up,
            dict(position_embedding_type="rope"), dict(residual_multiplier=1.0),
            dict(attention_multiplier=0.25), zeroed("shared_mlp.output_linear"),
            routed("the softmax of all experts", softmax_all), dict(num_experts_per_tok=1),
        ],
        means={"A_log": -1.0}, head_std=0.8,
    ),
    "granite_hybrid_dense": small(
        "GraniteMoeHybridConfig",
        granite(
            layer_types=["full_attention", LINEAR, LINEAR, LINEAR], num_local_experts=0,
            position_embedding_type="rope", mamba_proj_bias=True, mamba_conv_bias=False,
            mamba_n_groups=1, tie_word_embeddings=False,
        ),
        [
            oldest_tap_lost, zeroed("in_proj.bias"), zeroed("out_proj.bias"),
            dict(position_embedding_type=None), dict(rope_parameters=rope(500.0)),
            swapped("q_proj", "o_proj"), dict(embedding_multiplier=1.0), dict(logits_scaling=1.0),
        ],
        means={"A_log": -1.0}, head_std=0.8, old_config=True,
        old_keys=dict(layer_types=["attention", "mamba", "mamba", "mamba"]),
    ),
    "falcon_h1": small(
        "FalconH1Config",
        falcon(mamba_rms_norm=False, mamba_d_ssm=72, mamba_d_head=12),
        [
            *[mistake for mistake in MAMBA if mistake is not gate_after_norm], groups_in_turns,
            *FACTORS, dict(rope_parameters=rope(500.0)), zeroed("mamba.out_proj"),
            zeroed("self_attn.o_proj"),
        ],
        means={"A_log": -1.0}, head_std=0.8,
    ),
    "falcon_h1_norm": small(
        "FalconH1Config",
        falcon(mamba_rms_norm=True, mamba_norm_before_gate=True, mamba_d_ssm=None,
               mamba_d_head="auto", mamba_expand=2, projectors_bias=True),
        [
            falcon_one_norm_group, zeroed("out_proj.bias"), dict(rms_norm_eps=1e-6),
            dict(mamba_norm_before_gate=False), *FACTORS,
        ],
        means={"A_log": -1.0}, head_std=0.8, old_config=True,
    ),
    "nemotron_h": small(
        "NemotronHConfig",
        dict(
            hidden_size=48, intermediate_size=64, num_attention_heads=3, num_key_value_heads=1,
            head_dim=24, max_position_embeddings=256, mamba_num_heads=6, mamba_head_dim=20,
            n_groups=3, ssm_state_size=12, chunk_size=8, layer_norm_epsilon=1e-2,
            layers_block_type=[LINEAR, "mlp", "full_attention", "mlp", LINEAR],
            # transformers bounds dt of prompts by it; the published code does not.
            time_step_min=1e-30,
        ),
        [
            *MAMBA, groups_in_turns, one_norm_group, dict(mlp_hidden_act="relu"),
            dict(mamba_hidden_act="gelu"), dict(layer_norm_epsilon=1e-6),
        ],
        means={"A_log": -1.0}, old_config=True, old_drop=("layers_block_type",),
        old_keys=dict(hybrid_override_pattern="M-*-M", num_hidden_layers=5),
    ),
    "nemotron3_nano": small(
        "NemotronHConfig",
        nemotron3(
            layers_block_type=[LINEAR, "moe", "full_attention", "moe", "mlp"],
            norm_topk_prob=True, n_routed_experts=6,
        ),
        [
            *CHOICES, zeroed("shared_experts.down_proj"), dict(mlp_hidden_act="silu"),
            dict(norm_topk_prob=False),
        ],
        means={"A_log": -1.0}, old_config=True, old_drop=("layers_block_type",),
        old_keys=dict(hybrid_override_pattern="ME*E-", num_hidden_layers=5),
    ),
    "nemotron3_latent": small(
        "NemotronHConfig",
        nemotron3(
            layers_block_type=["full_attention", "moe", LINEAR, "moe"], norm_topk_prob=True,
            n_routed_experts=8, n_group=4, topk_group=2, moe_latent_size=20, mlp_bias=True,
            num_nextn_predict_layers=1,
        ),
        [
            *CHOICES, best_of_groups, dict(n_group=1, topk_group=1),
            zeroed("fc1_latent_proj.bias"), zeroed("fc2_latent_proj"),
            zeroed("shared_experts.up_proj.bias"), zeroed("shared_experts.down_proj.bias"),
        ],
        means={"A_log": -1.0},
        layout=with_experts_one_by_one(with_extra(further, [("backbone.", "model.")])),
    ),
    "bamba": small(
        "BambaConfig",
        dims(
            48, 40, 4, 3, 1, rms_norm_eps=1e-3, mamba_n_heads=6, mamba_d_head=16, mamba_n_groups=2,
            mamba_d_state=12, mamba_chunk_size=8, attn_layer_indices=[1],
            tie_word_embeddings=False, rope_parameters=rope(10000.0),
        ),
        [
            *MAMBA, groups_in_turns, one_norm_group, dict(rope_parameters=rope(500.0)),
            dict(attn_layer_indices=[]), swapped("gate_proj", "up_proj"),
            swapped("input_layernorm", "pre_ff_layernorm"), other_pairs(16, 8),
            dict(rope_parameters=rope(10000.0, partial_rotary_factor=1.0)),
        ],
        means={"A_log": -1.0}, old_config=True,
    ),
    "lfm2_bias": small(
        "Lfm2Config",
        lfm2(
            conv_L_cache=4, conv_bias=True, layer_types=["full_attention", CONV, CONV, CONV],
            block_auto_adjust_ff_dim=False,
        ),
        [
            oldest_tap_lost, taps_reversed, named("no bias of the sums", lambda m: [
                c.bias.zero_() for c in m.modules() if isinstance(c, nn.Conv1d)
            ]),
        ],
    ),
}
