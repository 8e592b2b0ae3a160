"""Attention and MLP side by side, LayerNorm, partial rotation."""

from ..family import FULL, SLIDING, Family, dims, rope, small
from ..mistakes import activation, other_pairs, swapped, zeroed
from ..routing import swapped_gate_and_up

QUARTER = rope(10000.0, partial_rotary_factor=0.25)
# What Command R7B's file has besides; the pattern is the only one of them that decides anything.
COMMAND_R7B = dict(
    sliding_window_pattern=2, layer_switch=2, order_of_interleaved_layers="local_attn_first",
    position_embedding_type="rope_gptj", rotary_pct=1.0, use_embedding_sharing=True,
    use_gated_activation=True, use_parallel_block=True, use_parallel_embedding=True,
)

FAMILIES: dict[str, Family] = {
    "cohere": small(
        "CohereConfig",
        dims(
            48, 64, 3, 3, 1, logit_scale=0.25, tie_word_embeddings=True, layer_norm_eps=1e-5,
            rope_parameters=rope(10000.0),
        ),
        [dict(logit_scale=1.0), other_pairs(16), dict(layer_norm_eps=1e-1)],
        final_norm_mean=14.0, old_config=True,
    ),
    "cohere_qk_norm": small(
        "CohereConfig",
        dims(
            48, 64, 3, 3, 1, logit_scale=0.25, tie_word_embeddings=True, layer_norm_eps=1e-5,
            use_qk_norm=True, rope_parameters=rope(10000.0),
        ),
        [dict(use_qk_norm=False), other_pairs(16)],
        final_norm_mean=14.0, old_config=True,
    ),
    "cohere2": small(
        "Cohere2Config",
        dims(
            48, 64, 3, 3, 1, logit_scale=0.25, tie_word_embeddings=True, layer_norm_eps=1e-5,
            sliding_window=8, layer_types=[SLIDING, FULL, SLIDING], rope_parameters=rope(1e4),
        ),
        [
            dict(sliding_window=7), dict(sliding_window=9), dict(layer_types=[SLIDING] * 3),
            dict(layer_types=[FULL] * 3), other_pairs(16),
        ],
        final_norm_mean=14.0, both_configs=True, old_keys=COMMAND_R7B,
    ),
    "cohere2_moe": small(
        "Cohere2MoeConfig",
        dims(
            48, 16, 4, 3, 1, head_dim=16, logit_scale=0.25, tie_word_embeddings=True,
            layer_norm_eps=1e-5, sliding_window=8, first_k_dense_replace=1, sliding_window_pattern=2, num_experts=6,
            num_experts_per_tok=2, num_shared_experts=2, prefix_dense_intermediate_size=40,
            rope_parameters=rope(1e4),
        ),
        [
            dict(shared_expert_combination_strategy="sum"),
            dict(expert_selection_fn="sigmoid"), dict(num_experts_per_tok=1), other_pairs(16),
            dict(prefix_dense_sliding_window_pattern=2), dict(sliding_window=9),
            dict(layer_types=[FULL, SLIDING, SLIDING, SLIDING]), swapped_gate_and_up,
            zeroed("shared_experts.down_proj"),
        ],
        final_norm_mean=14.0,
    ),
    "cohere2_moe_rms": small(
        "Cohere2MoeConfig",
        dims(
            48, 16, 3, 3, 1, head_dim=16, logit_scale=0.5, tie_word_embeddings=False,
            rms_norm_eps=1e-5, sliding_window=8, layer_types=[SLIDING, FULL, SLIDING],
            mlp_layer_types=["sparse", "dense", "sparse"], prefix_dense_intermediate_size=40,
            prefix_dense_sliding_window_pattern=2, num_experts=5, num_experts_per_tok=3,
            expert_selection_fn="sigmoid", num_shared_experts=1,
            shared_expert_combination_strategy="sum", rope_parameters=rope(1e4),
        ),
        [
            dict(expert_selection_fn="softmax"), dict(norm_topk_prob=False),
            dict(shared_expert_combination_strategy="average"), dict(rms_norm_eps=None),
            dict(prefix_dense_sliding_window_pattern=1), swapped_gate_and_up,
        ],
        head_std=0.8,
    ),
    "stablelm": small(
        "StableLmConfig",
        dims(48, 64, 3, 3, 3, tie_word_embeddings=False, rope_parameters=QUARTER),
        [
            dict(use_parallel_residual=True), zeroed("input_layernorm.bias"),
            dict(rope_parameters=rope(10000.0, partial_rotary_factor=0.5)),
        ],
        old_config=True,
    ),
    "stablelm_parallel": small(
        "StableLmConfig",
        dims(
            48, 64, 3, 3, 1, use_parallel_residual=True, qk_layernorm=True, use_qkv_bias=True,
            tie_word_embeddings=False, rope_parameters=QUARTER,
        ),
        [
            zeroed("q_proj.bias"), swapped("q_layernorm.norms.0", "q_layernorm.norms.2"),
            dict(use_parallel_residual=False), dict(qk_layernorm=False),
        ],
        old_config=True,
    ),
    "starcoder2": small(
        "Starcoder2Config",
        dims(
            48, 64, 3, 3, 1, use_bias=True, sliding_window=8, norm_epsilon=1e-5,
            hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True, rope_parameters=rope(1e4),
        ),
        [
            dict(sliding_window=7), dict(sliding_window=9), dict(sliding_window=None),
            activation("gelu", "act"), zeroed("o_proj.bias"), zeroed("c_proj.bias"),
        ],
        old_config=True,
    ),
    "phi": small(
        "PhiConfig",
        dims(
            48, 64, 3, 3, 3, tie_word_embeddings=False, hidden_act="gelu_new",
            rope_parameters=rope(10000.0, partial_rotary_factor=0.5),
        ),
        [
            zeroed("lm_head.bias"), zeroed("dense.bias"), zeroed("fc2.bias"),
            activation("gelu", "activation_fn"),
            dict(rope_parameters=rope(10000.0, partial_rotary_factor=1.0)),
        ],
        old_config=True,
    ),
}
