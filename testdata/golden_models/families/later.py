"""Families of recent years, and known families with another rotary embedding."""

from ..family import FULL, SLIDING, Family, dims, rope, small
from ..mistakes import activation, swapped, without, zeroed
from ..ropes import fixed_at

LLAMA3 = rope(
    10000.0, "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
MINISTRAL3 = rope(
    10000.0, "yarn", factor=8.0, original_max_position_embeddings=32, beta_fast=32.0,
    beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3,
)
YARN = rope(10000.0, "yarn", factor=4.0, original_max_position_embeddings=64)
DYNAMIC = rope(10000.0, "dynamic", factor=4.0)


FAMILIES: dict[str, Family] = {
    "apertus": small(
        "ApertusConfig",
        dims(48, 64, 3, 3, 1, tie_word_embeddings=False, rms_norm_eps=1e-5,
             rope_parameters=LLAMA3),
        [
            activation("relu2"), zeroed("alpha_p"), zeroed("alpha_n"), without("q_norm"),
            swapped("attention_layernorm", "feedforward_layernorm"),
            dict(rope_parameters=rope(10000.0)),
        ],
        means={"alpha_p": 1.0, "alpha_n": -0.5}, both_configs=True,
    ),
    "persimmon": small(
        "PersimmonConfig",
        dict(
            hidden_size=48, intermediate_size=64, num_hidden_layers=3, num_attention_heads=3,
            max_position_embeddings=256, layer_norm_eps=1e-5, tie_word_embeddings=False,
            rope_parameters=rope(10000.0, partial_rotary_factor=0.5),
        ),
        [
            activation("relu", "act"), dict(qk_layernorm=False), zeroed("q_layernorm.bias"),
            dict(rope_parameters=rope(10000.0, partial_rotary_factor=1.0)),
            zeroed("query_key_value.bias"), zeroed("dense.bias"),
        ],
        old_config=True,
    ),
    "cwm": small(
        "CwmConfig",
        dims(
            32, 64, 3, 4, 2, head_dim=16, tie_word_embeddings=False, rms_norm_eps=1e-5,
            sliding_window=8, layer_types=[SLIDING, FULL, SLIDING], rope_parameters=LLAMA3,
        ),
        [dict(sliding_window=7), dict(sliding_window=9), dict(layer_types=[FULL] * 3)],
        shared="sentencepiece", both_configs=True,
        old_keys=dict(layer_types=[SLIDING, FULL, SLIDING]),
    ),
    "ministral": small(
        "MinistralConfig",
        dims(
            32, 64, 3, 4, 2, head_dim=16, tie_word_embeddings=False, rms_norm_eps=1e-5,
            sliding_window=8, layer_types=[FULL, SLIDING, SLIDING], rope_parameters=rope(10000.0),
        ),
        [
            dict(sliding_window=7), dict(sliding_window=9), dict(layer_types=[SLIDING] * 3),
            dict(layer_types=[FULL] * 3),
        ],
    ),
    "ministral3": small(
        "Ministral3Config",
        dims(
            32, 64, 3, 4, 2, head_dim=16, tie_word_embeddings=False, rms_norm_eps=1e-5,
            rope_parameters=MINISTRAL3,
        ),
        [
            dict(rope_parameters=dict(MINISTRAL3, llama_4_scaling_beta=0.0)),
            dict(rope_parameters=dict(MINISTRAL3, mscale_all_dim=0.0)),
            dict(rope_parameters=dict(MINISTRAL3, factor=4.0)),
        ],
    ),
    "mistral_nemo": small(
        "MistralConfig",
        dims(
            32, 64, 3, 4, 2, head_dim=16, sliding_window=None, tie_word_embeddings=False,
            rms_norm_eps=1e-5, rope_parameters=rope(1000000.0),
        ),
        [dict(rope_parameters=rope(10000.0)), dict(sliding_window=64)],
        old_config=True, shared="sentencepiece",
    ),
    "llama_yarn": small(
        "LlamaConfig",
        dims(32, 64, 3, 4, 2, head_dim=16, tie_word_embeddings=False, rope_parameters=YARN),
        [
            dict(rope_parameters=rope(10000.0)),
            dict(rope_parameters=dict(YARN, attention_factor=1.0)),
            dict(rope_parameters=dict(YARN, truncate=False)),
            dict(rope_parameters=dict(YARN, beta_slow=4.0)),
        ],
        old_config=True,
        old_keys=dict(
            rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=64)
        ),
    ),
    "llama_dynamic": small(
        "LlamaConfig",
        dims(
            32, 64, 3, 4, 2, head_dim=16, max_position_embeddings=64, tie_word_embeddings=False,
            rope_parameters=DYNAMIC,
        ),
        [dict(_fix=None), dict(_fix=fixed_at(64)), dict(_fix=fixed_at(255))],
        fix=fixed_at(256),
        oracle="transformers LlamaForCausalLM, frequencies of length 256 at every position",
        old_config=True, old_keys=dict(rope_scaling=dict(type="dynamic", factor=4.0)),
    ),
    "qwen2_dynamic": small(
        "Qwen2Config",
        dims(
            48, 64, 3, 3, 1, max_position_embeddings=128, tie_word_embeddings=True,
            rope_parameters=dict(DYNAMIC, factor=2.0), use_sliding_window=False,
        ),
        [dict(_fix=None), dict(_fix=fixed_at(128))],
        fix=fixed_at(256),
        oracle="transformers Qwen2ForCausalLM, frequencies of length 256 at every position",
    ),
}
