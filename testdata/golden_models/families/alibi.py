"""Falcon in its four forms, BLOOM, MPT."""

from dataclasses import replace

import torch

from ..family import Family, Layout, small
from ..layouts import without_prefix
from ..mistakes import activation, attributes, rows_swapped, swapped, zeroed


def falcon(heads: int, **more) -> dict:
    return dict(
        hidden_size=16 * heads, num_hidden_layers=2, num_attention_heads=heads,
        ffn_hidden_size=64, max_position_embeddings=256, **{"tie_word_embeddings": True, **more},
    )


def falcon_family(config: dict, mistakes: list) -> Family:
    return small(
        "FalconConfig", config, mistakes, old_config=True,
        old_drop=("rope_scaling", "rope_theta") if config.get("alibi") is False else (),
    )


def without_second_alibi(model: torch.nn.Module) -> None:
    """Eager attention of transformers 5 adds ALiBi with the mask and once more with the scores;
    the default, scaled_dot_product_attention, adds it once."""
    model.config._attn_implementation = "sdpa"


def bloom(heads: int) -> Family:
    config = dict(
        hidden_size=16 * heads, n_layer=2, n_head=heads, layer_norm_epsilon=1e-5,
        tie_word_embeddings=True,
    )
    return small(
        "BloomConfig", config,
        [
            zeroed("word_embeddings_layernorm.bias"), zeroed("query_key_value.bias"),
            dict(apply_residual_connection_post_layernorm=True),
            rows_swapped("query_key_value.weight", [16, 16]),
        ],
        means={"word_embeddings_layernorm": 0.0}, bias_std=0.05, head_std=0.06,
        final_norm_mean=9.0,
        layout=without_prefix("transformer.", lambda _: {}),
        oracle="transformers BloomForCausalLM, names as published",
    )


def plain_attn_config(config: dict) -> dict:
    """Without what transformers 5 writes of any config: MPT's files have these keys only."""
    keys = (
        "alibi", "alibi_bias_max", "attn_impl", "attn_pdrop", "attn_type",
        "attn_uses_sequence_id", "clip_qkv", "prefix_lm", "qk_ln", "softmax_scale",
    )
    attn = {key: config["attn_config"][key] for key in keys}
    return {**config, "attn_config": attn}


FAMILIES: dict[str, Family] = {
    "falcon_7b": falcon_family(
        falcon(3, multi_query=True, parallel_attn=True, alibi=False, bias=False),
        [activation("gelu_new", "act"), dict(parallel_attn=False),
         rows_swapped("query_key_value.weight", [48, 16])],
    ),
    "falcon_40b": falcon_family(
        falcon(4, new_decoder_architecture=True, num_kv_heads=2, alibi=False, bias=False),
        [swapped("ln_attn", "ln_mlp"), rows_swapped("query_key_value.weight", [32, 16]),
         activation("gelu_new", "act")],
    ),
    "falcon_one_norm": falcon_family(
        falcon(
            4, new_decoder_architecture=True, num_ln_in_parallel_attn=1, num_kv_heads=2,
            alibi=False, bias=False,
        ),
        [rows_swapped("query_key_value.weight", [32, 16]), zeroed("input_layernorm.bias")],
    ),
    "falcon_rw": replace(
        falcon_family(
            falcon(4, multi_query=False, parallel_attn=False, alibi=True, bias=True,
                   tie_word_embeddings=False),
            [dict(alibi=False), zeroed("dense.bias"), zeroed("query_key_value.bias"),
             rows_swapped("query_key_value.weight", [16, 16])],
        ),
        fix=without_second_alibi,
        oracle="transformers FalconForCausalLM with scaled_dot_product_attention",
    ),
    "bloom": bloom(4),
    "bloom_three_heads": bloom(3),
    "mpt": small(
        "MptConfig",
        dict(
            d_model=48, n_heads=3, n_layers=2, max_seq_len=256, no_bias=True,
            tie_word_embeddings=True, attn_config=dict(alibi=True, clip_qkv=1.0),
        ),
        [
            attributes("MptAttention", clip_qkv=None), activation("gelu_new", "act"),
            rows_swapped("Wqkv.weight", [48, 48]),
        ],
        layout=Layout(plain_attn_config, dict, dict),
    ),
}
