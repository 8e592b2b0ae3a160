"""Other norms, and norms in other places."""

from ..family import FULL, SLIDING, Family, dims, rope, small
from ..mistakes import activation, added, other_pairs, swapped, without, zeroed

# The theta is the default: from a file of transformers 4 the windowed layers get no other.
OLMO3_YARN = rope(
    500000.0, "yarn", factor=8.0, original_max_position_embeddings=32, attention_factor=1.2,
    beta_fast=32.0, beta_slow=1.0,
)

FAMILIES: dict[str, Family] = {
    "olmo": small(
        "OlmoConfig",
        dims(48, 64, 3, 3, 1, clip_qkv=1.0, tie_word_embeddings=False, rope_parameters=rope(1e4)),
        [
            dict(clip_qkv=None), dict(clip_qkv=2.0), without("input_layernorm"),
            without("post_attention_layernorm"),
        ],
        old_config=True,
    ),
    "olmo2": small(
        "Olmo2Config",
        dims(48, 64, 3, 3, 1, tie_word_embeddings=False, rms_norm_eps=1e-4,
             rope_parameters=rope(20000.0)),
        [
            swapped("post_attention_layernorm", "post_feedforward_layernorm"), without("q_norm"),
            without("k_norm"), without("post_feedforward_layernorm"), dict(rms_norm_eps=1e-1),
        ],
        old_config=True,
    ),
    "olmo3": small(
        "Olmo3Config",
        dims(
            48, 64, 3, 3, 1, tie_word_embeddings=False, rms_norm_eps=1e-6, sliding_window=8,
            layer_types=[SLIDING, FULL, SLIDING],
            rope_parameters={FULL: OLMO3_YARN, SLIDING: rope(500000.0)},
        ),
        [
            dict(sliding_window=7), dict(sliding_window=9),
            dict(layer_types=[SLIDING, SLIDING, FULL]),
            dict(rope_parameters={FULL: rope(500000.0), SLIDING: rope(500000.0)}),
            dict(rope_parameters={FULL: OLMO3_YARN, SLIDING: OLMO3_YARN}),
        ],
        both_configs=True, old_keys=dict(layer_types=[SLIDING, FULL, SLIDING]),
    ),
    "exaone4": small(
        "Exaone4Config",
        dims(
            48, 64, 3, 3, 1, tie_word_embeddings=False, rms_norm_eps=1e-5, sliding_window=8,
            sliding_window_pattern="LG", layer_types=[SLIDING, FULL, SLIDING],
            rope_parameters=rope(10000.0),
        ),
        [
            dict(sliding_window=7), dict(sliding_window=9), dict(layer_types=[FULL] * 3),
            swapped("q_norm", "k_norm"),
            without("post_attention_layernorm"), without("post_feedforward_layernorm"),
        ],
        both_configs=True, old_keys=dict(layer_types=[SLIDING, FULL, SLIDING]),
    ),
    "glm": small(
        "GlmConfig",
        dims(
            32, 64, 3, 4, 2, head_dim=16, attention_bias=True, tie_word_embeddings=False,
            rms_norm_eps=1e-5, rope_parameters=rope(10000.0, partial_rotary_factor=0.5),
        ),
        [
            other_pairs(16, 8), dict(rope_parameters=rope(10000.0, partial_rotary_factor=1.0)),
            zeroed("q_proj.bias"),
        ],
        old_config=True,
    ),
    "glm4": small(
        "Glm4Config",
        dims(
            32, 64, 3, 4, 2, head_dim=16, attention_bias=True, tie_word_embeddings=False,
            rms_norm_eps=1e-5, rope_parameters=rope(10000.0, partial_rotary_factor=0.5),
        ),
        [
            other_pairs(16, 8), swapped("post_self_attn_layernorm", "post_mlp_layernorm"),
            swapped("post_attention_layernorm", "post_self_attn_layernorm"),
            without("post_mlp_layernorm"),
        ],
        old_config=True,
    ),
    "nemotron": small(
        "NemotronConfig",
        dims(
            32, 64, 3, 4, 2, head_dim=16, norm_eps=1e-5, tie_word_embeddings=False,
            rope_parameters=rope(10000.0, partial_rotary_factor=0.5),
        ),
        [
            added("layernorm.weight", -1.0), zeroed("norm.bias"), activation("relu"),
            dict(rope_parameters=rope(10000.0, partial_rotary_factor=1.0)), other_pairs(16, 8),
        ],
        norm_mean=0.0, old_config=True,
    ),
}
