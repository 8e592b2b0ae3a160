"""Attention and MLP side by side, LayerNorm, partial rotation."""

from ..family import FULL, SLIDING, Family, dims, rope, small
from ..mistakes import activation, other_pairs, swapped, zeroed

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
