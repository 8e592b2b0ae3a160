"""Mixtures of experts.

Mistakes that these goldens catch: weights that are not renormalized, or are where they should not
be; the softmax over all experts taken for that over the chosen ones, and the other way round; gate
and up swapped; one expert too many or too few; a shared expert left out, or its gate; layers that
are dense taken for sparse ones; a bias of the choice left out, or used in the weights; groups
compared by their best in place of their best two; a factor left out; gate and up by turns taken for
halves; the bounds of gpt-oss's gate, its sinks, and each of its biases.
"""

from .. import mxfp4
from ..family import Family, dims, rope, small
from ..layouts import with_stacked_experts
from ..mistakes import filled, other_pairs, without, zeroed
from ..routing import (
    best_of_groups, biased_weights, routed, softmax_all, softmax_chosen,
    swapped_gate_and_up, unbiased, ungated, uninterleaved,
)

PHI_ROPE = rope(
    10000.0, "longrope", short_factor=[1.0, 1.2, 1.5, 2.0], long_factor=[1.0, 2.0, 4.0, 8.0],
    short_mscale=1.25, long_mscale=1.25, original_max_position_embeddings=256,
)
OSS_ROPE = rope(
    10000.0, "yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
    original_max_position_embeddings=32,
)


def further_layer(tensors: dict) -> dict:
    """A layer that predicts the token after the next one, as published files have it."""
    norms = {n: t for n, t in tensors.items() if n.startswith("model.layers.2.") and t.dim() == 1}
    return {n.replace("layers.2", "layers.3"): t for n, t in norms.items()}


FAMILIES: dict[str, Family] = {
    "mixtral": small(
        "MixtralConfig",
        dims(
            32, 24, 2, 4, 2, head_dim=16, num_local_experts=5, num_experts_per_tok=2,
            rms_norm_eps=1e-5, rope_parameters=rope(20000.0), sliding_window=8,
        ),
        [
            routed("weights are not renormalized", softmax_all), swapped_gate_and_up,
            dict(num_experts_per_tok=1), dict(num_experts_per_tok=3), dict(sliding_window=None),
        ],
        old_config=True,
    ),
    "qwen3_moe": small(
        "Qwen3MoeConfig",
        dims(
            32, 48, 3, 4, 2, head_dim=16, num_experts=6, num_experts_per_tok=3,
            moe_intermediate_size=16, norm_topk_prob=True, mlp_only_layers=[1],
            rms_norm_eps=1e-6, rope_parameters=rope(10000.0),
        ),
        [
            dict(norm_topk_prob=False), swapped_gate_and_up,
            dict(num_experts_per_tok=2), dict(num_experts_per_tok=4),
        ],
        old_config=True, old_keys=dict(max_window_layers=3),
    ),
    "qwen3_moe_sums": small(
        "Qwen3MoeConfig",
        dims(
            32, 48, 2, 4, 2, head_dim=16, num_experts=6, num_experts_per_tok=3,
            moe_intermediate_size=16, norm_topk_prob=False, decoder_sparse_step=2,
            rms_norm_eps=1e-6, rope_parameters=rope(10000.0),
        ),
        [
            dict(norm_topk_prob=True), routed("a softmax of the chosen", softmax_chosen),
            swapped_gate_and_up,
        ],
    ),
    "qwen2_moe": small(
        "Qwen2MoeConfig",
        dims(
            32, 48, 2, 4, 2, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
            shared_expert_intermediate_size=24, norm_topk_prob=False, rms_norm_eps=1e-6,
            rope_parameters=rope(10000.0),
        ),
        [
            ungated("shared_expert_gate"), dict(norm_topk_prob=True), zeroed("q_proj.bias"),
            zeroed("shared_expert.down_proj"), swapped_gate_and_up,
        ],
        old_config=True,
    ),
    "olmoe": small(
        "OlmoeConfig",
        dims(
            32, 16, 2, 4, 2, num_experts=6, num_experts_per_tok=3, rms_norm_eps=1e-5,
            rope_parameters=rope(10000.0),
        ),
        [dict(norm_topk_prob=True), without("q_norm"), without("k_norm"), swapped_gate_and_up],
        old_config=True,
    ),
    "granite_moe": small(
        "GraniteMoeConfig",
        dims(
            32, 16, 2, 4, 2, num_local_experts=5, num_experts_per_tok=2, rms_norm_eps=1e-6,
            rope_parameters=rope(10000.0), embedding_multiplier=3.0, attention_multiplier=0.2,
            residual_multiplier=0.6, logits_scaling=2.5,
        ),
        [
            routed("the softmax of all experts", softmax_all), swapped_gate_and_up,
            dict(residual_multiplier=1.0), dict(num_experts_per_tok=1),
        ],
        head_std=0.8, old_config=True,
    ),
    "granite_moe_shared": small(
        "GraniteMoeSharedConfig",
        dims(
            32, 16, 2, 4, 2, num_local_experts=5, num_experts_per_tok=2, rms_norm_eps=1e-6,
            rope_parameters=rope(10000.0), shared_intermediate_size=24,
            embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.6,
            logits_scaling=2.5,
        ),
        [zeroed("shared_mlp.output_linear"), routed("the softmax of all experts", softmax_all)],
        head_std=0.8, old_config=True,
    ),
    "phimoe": small(
        "PhimoeConfig",
        dims(
            32, 16, 2, 4, 2, num_local_experts=6, num_experts_per_tok=2, rms_norm_eps=1e-5,
            rope_parameters=PHI_ROPE, router_jitter_noise=0.2, attention_bias=True,
            lm_head_bias=True, sliding_window=8,
        ),
        [
            routed("a softmax of the chosen", softmax_chosen), dict(router_jitter_noise=0.01),
            dict(rope_parameters=dict(PHI_ROPE, short_mscale=1.0)), zeroed("lm_head.bias"),
            zeroed("o_proj.bias"), zeroed("layernorm.bias"),
            swapped_gate_and_up,
        ],
        old_config=True,
    ),
    "ernie4_5_moe": small(
        "Ernie4_5_MoeConfig",
        dims(
            32, 48, 3, 4, 2, moe_num_experts=6, moe_k=2, moe_intermediate_size=16,
            moe_num_shared_experts=2, moe_layer_start_index=1, tie_word_embeddings=False,
            rms_norm_eps=1e-5, rope_parameters=rope(5000.0),
        ),
        [
            unbiased, biased_weights, routed("the softmax of all experts", softmax_all),
            other_pairs(8), zeroed("shared_experts.down_proj"), swapped_gate_and_up,
        ],
        model_class="Ernie4_5_MoeForCausalLM", old_config=True,
    ),
    "glm4_moe": small(
        "Glm4MoeConfig",
        dims(
            32, 48, 3, 4, 2, head_dim=16, n_routed_experts=8, num_experts_per_tok=2,
            moe_intermediate_size=16, n_shared_experts=1, n_group=4, topk_group=2,
            routed_scaling_factor=2.5, first_k_dense_replace=1, norm_topk_prob=True,
            use_qk_norm=True, attention_bias=True, rms_norm_eps=1e-5,
            rope_parameters=rope(10000.0, partial_rotary_factor=0.5),
        ),
        [
            unbiased, biased_weights, best_of_groups, dict(routed_scaling_factor=1.0),
            dict(norm_topk_prob=False), dict(n_group=1, topk_group=1), without("q_norm"),
            zeroed("shared_experts.down_proj"), other_pairs(16, 8), swapped_gate_and_up,
        ],
        layout=with_stacked_experts(further_layer), old_config=True,
    ),
    "dots1": small(
        "Dots1Config",
        dims(
            32, 48, 3, 4, 2, head_dim=16, n_routed_experts=6, num_experts_per_tok=2,
            moe_intermediate_size=16, n_shared_experts=2, routed_scaling_factor=1.5,
            first_k_dense_replace=1, norm_topk_prob=True, rms_norm_eps=1e-6,
            sliding_window=8, max_window_layers=2, rope_parameters=rope(10000.0),
        ),
        [
            unbiased, biased_weights, dict(routed_scaling_factor=1.0),
            dict(norm_topk_prob=False), without("k_norm"), dict(sliding_window=256),
        ],
        old_config=True,
    ),
    "hunyuan_moe": small(
        "HunYuanMoEV1Config",
        dims(
            32, 24, 2, 4, 2, head_dim=16, num_experts=5, moe_topk=2, tie_word_embeddings=False,
            rms_norm_eps=1e-5, rope_parameters=rope(10000.0),
        ),
        [
            routed("the softmax of all experts", softmax_all), zeroed("shared_mlp.down_proj"),
            dict(moe_topk=1), swapped_gate_and_up,
        ],
        model_class="HunYuanMoEV1ForCausalLM", old_config=True,
    ),
    "gpt_oss": small(
        "GptOssConfig",
        dims(
            32, 24, 3, 4, 2, head_dim=16, num_local_experts=5, num_experts_per_tok=2,
            rms_norm_eps=1e-5, sliding_window=8, swiglu_limit=1.5, rope_parameters=OSS_ROPE,
        ),
        [
            filled("sinks", -1e9), dict(swiglu_limit=7.0), dict(swiglu_alpha=1.0),
            uninterleaved, zeroed("router.bias"), zeroed("gate_up_proj_bias"),
            zeroed("down_proj_bias"), dict(sliding_window=256),
            dict(rope_parameters=dict(OSS_ROPE, truncate=True)), zeroed("o_proj.bias"),
            routed("the softmax of all experts", softmax_all),
        ],
        old_config=True, old_keys=dict(experts_per_token=2, initial_context_length=32),
    ),
    "gpt_oss_mxfp4": small(
        "GptOssConfig",
        dims(
            32, 32, 2, 4, 2, head_dim=16, num_local_experts=4, num_experts_per_tok=2,
            rms_norm_eps=1e-5, sliding_window=8, swiglu_limit=1.5,
            rope_parameters=rope(10000.0),
        ),
        [filled("sinks", -1e9), uninterleaved],
        layout=mxfp4.LAYOUT, rounded=mxfp4.rounded, old_config=True,
    ),
}
