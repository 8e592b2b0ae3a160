"""Families of 2025 and 2026 that others' parts make up: experts chosen by sigmoids, sinks beside
windows, names and norms of their own.

Every mistake that is listed with a family moves a golden logprob: `--check` says so.
"""

from ..family import FULL, SLIDING, Family, Layout, dims, rope, small
from ..layouts import renamed, with_experts_one_by_one, with_extra, wrapped
from ..mistakes import activation, added, filled, other_pairs, swapped, without, zeroed
from ..routing import (
    best_of_groups, biased_weights, routed, softmax_all, swapped_gate_and_up, unbiased,
)

CHOICES = [unbiased, biased_weights, swapped_gate_and_up, dict(num_experts_per_tok=3)]


def of_further_tokens(tensors: dict) -> dict:
    """A tensor of layers that predict the token after the next one."""
    return {"mtp.layers.0.norm.weight": tensors["model.norm.weight"].clone()}


def no_rotation(index: int):
    """Config changes: one layer is not rotated."""
    return dict(layer_rope_theta=[0 if layer == index else 10000.0 for layer in range(3)])


def swa(**more) -> dict:
    return dims(
        32, 24, 3, 4, 2, rms_norm_eps=1e-5, rope_parameters=rope(10000.0), sliding_window=8,
        layer_types=[SLIDING, FULL, SLIDING], layer_rope_theta=[10000.0, 0, 500.0],
        embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.6,
        logits_scaling=2.5, **more,
    )


SWA = [
    filled("sinks", -1e9), dict(sliding_window=256), dict(sliding_window=7), no_rotation(1),
    no_rotation(0), dict(layer_types=[FULL, SLIDING, SLIDING]), dict(attention_multiplier=0.125),
]

IMAGE_TOKEN = 270  # an id that no prompt has


def aria(config: dict) -> dict:
    return dict(
        architectures=["AriaForConditionalGeneration"], model_type="aria", ignore_index=-100,
        image_token_index=IMAGE_TOKEN, projector_patch_to_query_dict={"4": 4}, dtype="bfloat16",
        text_config=config, tie_word_embeddings=False, vision_feature_layer=-1,
        vision_config=dict(
            hidden_size=24, image_size=16, intermediate_size=40, model_type="idefics3_vision",
            num_attention_heads=2, num_hidden_layers=1, patch_size=8,
        ),
    )


def in_memory(layout: Layout) -> Layout:
    """Aria's experts, as transformers has them in memory."""
    names = [("experts.fc1.weight", "experts.gate_up_proj"), ("experts.fc2.weight", "experts.down_proj")]
    return Layout(layout.config, layout.publish, lambda t: renamed(names, layout.restore(t)))


FAMILIES: dict[str, Family] = {
    "mellum": small(
        "MellumConfig",
        dims(
            32, 48, 4, 4, 2, head_dim=16, num_experts=6, num_experts_per_tok=2,
            moe_intermediate_size=16, sliding_window=8, rms_norm_eps=1e-6,
            layer_types=[SLIDING, FULL, SLIDING, FULL],
            mlp_layer_types=["sparse", "dense", "sparse", "sparse"],
            rope_parameters={FULL: rope(5000.0), SLIDING: rope(100.0)},
        ),
        [
            swapped_gate_and_up, dict(num_experts_per_tok=3), dict(norm_topk_prob=False),
            without("q_norm"), swapped("q_norm", "k_norm"), dict(sliding_window=7),
            dict(rope_parameters={FULL: rope(100.0), SLIDING: rope(100.0)}),
            dict(rope_parameters={FULL: rope(5000.0), SLIDING: rope(5000.0)}),
            dict(layer_types=[FULL, SLIDING, SLIDING, FULL]),
        ],
        layout=with_experts_one_by_one(with_extra(of_further_tokens)),
    ),
    "gpt_neo": small(
        "GPTNeoConfig",
        dict(
            hidden_size=32, num_layers=4, num_heads=4, max_position_embeddings=256, window_size=8,
            attention_types=[[["global", "local"], 1], [["local"], 2]], layer_norm_epsilon=1e-2,
            tie_word_embeddings=False,
        ),
        [
            dict(window_size=7), dict(attention_layers=["local", "global", "local", "global"]),
            zeroed("out_proj.bias"), zeroed("c_fc.bias"), zeroed("wpe"),
            dict(layer_norm_epsilon=1e-6), swapped("q_proj", "k_proj"),
        ],
    ),
    "aria": small(
        "AriaTextConfig",
        dims(
            32, 16, 2, 4, 2, moe_num_experts=6, moe_topk=2, moe_num_shared_experts=2,
            rms_norm_eps=1e-5, rope_parameters=rope(10000.0),
        ),
        [
            routed("the softmax of all experts", softmax_all), zeroed("shared_experts.down_proj"),
            dict(moe_topk=3),
        ],
        model_class="AriaTextForCausalLM",
        layout=in_memory(
            wrapped(
                "language_model.model.", "language_model.lm_head.",
                {"multi_modal_projector.query": (4, 24)}, aria,
            )
        ),
    ),
    "aria_text": small(
        "AriaTextConfig",
        dims(
            32, 16, 2, 4, 2, moe_num_experts=5, moe_topk=3, moe_num_shared_experts=1,
            rms_norm_eps=1e-5, attention_bias=True, mlp_bias=True, rope_parameters=rope(10000.0),
        ),
        [
            routed("the softmax of all experts", softmax_all), dict(moe_topk=2),
            zeroed("shared_experts.down_proj.bias"), zeroed("o_proj.bias"),
        ],
        model_class="AriaTextForCausalLM",
    ),
    "minimax_m2": small(
        "MiniMaxM2Config",
        dims(
            32, 24, 3, 4, 2, head_dim=16, num_local_experts=6, num_experts_per_tok=2,
            rms_norm_eps=1e-6, rotary_dim=8, rope_theta=20000.0,
        ),
        [
            *CHOICES, without("q_norm"), without("k_norm"), other_pairs(16, 8),
            dict(rope_parameters=rope(20000.0)),
            dict(rope_parameters=rope(10000.0, partial_rotary_factor=0.5)),
        ],
        old_config=True, old_drop=("partial_rotary_factor",),
        old_keys=dict(
            attn_type_list=[1, 1, 1], mtp_transformer_layers=1, num_mtp_modules=3,
            qk_norm_type="per_layer", scoring_func="sigmoid", shared_intermediate_size=0,
            shared_moe_mode="sigmoid", use_mtp=True, use_qk_norm=True, use_routing_bias=True,
        ),
    ),
    "exaone": small(
        "ExaoneConfig",
        dims(
            32, 48, 3, 4, 2, tie_word_embeddings=False, rms_norm_eps=1e-2,
            rope_parameters=rope(20000.0),
        ),
        [
            swapped("gate_proj", "up_proj"), swapped("input_layernorm", "post_attention_layernorm"),
            dict(rms_norm_eps=1e-6), dict(rope_parameters=rope(500000.0)),
        ],
        model_class="LlamaForCausalLM", old_config=True,
        old_drop=("num_hidden_layers", "rms_norm_eps", "hidden_act", "mlp_bias", "attention_bias"),
        old_keys=dict(
            architectures=["ExaoneForCausalLM"], num_layers=3, layer_norm_epsilon=1e-2,
            activation_function="silu", embed_dropout=0.0,
        ),
    ),
    "exaone_moe": small(
        "ExaoneMoeConfig",
        dims(
            32, 48, 4, 4, 2, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=16,
            num_shared_experts=2, n_group=4, topk_group=2, routed_scaling_factor=1.5,
            first_k_dense_replace=1, rms_norm_eps=1e-2, sliding_window=8,
            layer_types=[SLIDING, SLIDING, FULL, SLIDING], tie_word_embeddings=False,
            rope_parameters=rope(10000.0),
        ),
        [
            *CHOICES, best_of_groups, dict(n_group=1, topk_group=1),
            dict(routed_scaling_factor=1.0), dict(norm_topk_prob=False), without("q_norm"),
            swapped("q_norm", "k_norm"), dict(sliding_window=7), dict(layer_types=[SLIDING] * 4),
            dict(rms_norm_eps=1e-6), zeroed("shared_experts.down_proj"),
        ],
        layout=with_experts_one_by_one(with_extra(of_further_tokens, [(".mlp.e_", ".mlp.gate.e_")])),
    ),
    "solar_open": small(
        "SolarOpenConfig",
        dict(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=16, max_position_embeddings=256, n_routed_experts=8, num_experts_per_tok=2,
            moe_intermediate_size=16, n_shared_experts=1, n_group=4, topk_group=2,
            routed_scaling_factor=1.5, rms_norm_eps=1e-2, rope_parameters=rope(10000.0),
        ),
        [
            *CHOICES, best_of_groups, dict(routed_scaling_factor=1.0), dict(rms_norm_eps=1e-6),
            dict(norm_topk_prob=False), zeroed("shared_experts.down_proj"),
        ],
    ),
    "hy_v3": small(
        "HYV3Config",
        dims(
            32, 48, 3, 4, 2, head_dim=16, num_experts=6, num_experts_per_tok=2,
            moe_intermediate_size=16, num_shared_experts=2, router_scaling_factor=1.5,
            mlp_bias=True, attention_bias=True, rms_norm_eps=1e-2, rope_parameters=rope(10000.0),
        ),
        [
            *CHOICES, dict(router_scaling_factor=2.826), without("q_norm"), without("k_norm"),
            zeroed("o_proj.bias"), zeroed("shared_experts.down_proj.bias"),
            zeroed("shared_experts.down_proj.weight"), dict(rms_norm_eps=1e-6),
        ],
    ),
    "flex_olmo": small(
        "FlexOlmoConfig",
        dims(
            32, 16, 2, 4, 2, num_experts=6, num_experts_per_tok=3, rms_norm_eps=1e-4,
            rope_parameters=rope(20000.0),
        ),
        [
            # The norm behind takes a common factor of all weights away.
            dict(num_experts_per_tok=2), without("q_norm"), without("k_norm"), swapped_gate_and_up,
            swapped("post_attention_layernorm", "post_feedforward_layernorm"),
            without("post_feedforward_layernorm"),
        ],
    ),
    "vault_gemma": small(
        "VaultGemmaConfig",
        dims(
            32, 64, 3, 4, 2, head_dim=16, tie_word_embeddings=False, rms_norm_eps=1e-6,
            query_pre_attn_scalar=24, sliding_window=8, attn_logit_softcapping=5.0,
            final_logit_softcapping=8.0, layer_types=[SLIDING, FULL, SLIDING],
            rope_parameters=rope(10000.0),
        ),
        [
            added("layernorm", -1.0), dict(sliding_window=7), dict(query_pre_attn_scalar=16),
            dict(attn_logit_softcapping=None), dict(final_logit_softcapping=None),
            dict(layer_types=[FULL, SLIDING, FULL]),
            swapped("input_layernorm", "pre_feedforward_layernorm"),
        ],
        norm_mean=0.0,
    ),
    "jais2": small(
        "Jais2Config",
        dims(
            32, 48, 3, 4, 2, head_dim=16, layer_norm_eps=1e-2, tie_word_embeddings=False,
            rope_parameters=rope(10000.0),
        ),
        [
            activation("relu"), zeroed("o_proj.bias"), zeroed("up_proj.bias"),
            zeroed("down_proj.bias"), zeroed("norm.bias"), zeroed("input_layernorm.bias"),
            dict(layer_norm_eps=1e-6),
        ],
    ),
    "granite_swa": small(
        "GraniteSWAConfig", swa(tie_word_embeddings=False), [*SWA, dict(logits_scaling=1.0)],
        head_std=0.8,
    ),
    "granite_moe_swa": small(
        "GraniteMoeSWAConfig",
        swa(
            tie_word_embeddings=False, num_local_experts=5, num_experts_per_tok=2,
            shared_intermediate_size=20,
        ),
        [*SWA, swapped_gate_and_up, zeroed("shared_mlp.output_linear")],
        head_std=0.8,
    ),
}
