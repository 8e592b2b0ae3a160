"""Falcon in its four forms, BLOOM, MPT."""

from dataclasses import replace

import torch

from ..family import Family, Layout, small
from ..layouts import without_prefix
from ..mistakes import activation, attributes, rows_swapped, swapped, zeroed


def falcon(heads: int, **more) -> dict:
    return dict(
        hidden_size=16 * heads, num_hidden_layers=2, num_attention_heads=heads,
        **{
            "ffn_hidden_size": 64, "max_position_embeddings": 256, "tie_word_embeddings": True,
            **more,
        },
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


def alibi_bias_max_of_16(model: torch.nn.Module) -> None:
    """transformers reads the key and then computes with 8; MosaicML's code and vLLM heed it."""
    build = model.transformer.build_mpt_alibi_tensor
    model.transformer.build_mpt_alibi_tensor = lambda heads, length, device: build(
        heads, length, 16, device
    )


def mpt(attn_config: dict, mistakes: list, config, oracle=None, fix=None) -> Family:
    return small(
        "MptConfig",
        dict(
            d_model=48, n_heads=3, n_layers=2, max_seq_len=256, no_bias=True,
            tie_word_embeddings=True, attn_config=dict(alibi=True, **attn_config),
        ),
        [
            *mistakes, activation("gelu_new", "act"),
            rows_swapped("Wqkv.weight", [48, 48]),
        ],
        layout=Layout(config, dict, dict), oracle=oracle, fix=fix,
    )


def published_mpt(config: dict) -> dict:
    """As mosaicml/mpt-7b has it: the class of its own code, and keys of its training."""
    config = plain_attn_config(config)
    config["torch_dtype"] = config.pop("dtype")
    dropped = ("tie_word_embeddings", "layer_norm_epsilon", "initializer_range")
    return {
        **{key: value for key, value in config.items() if key not in dropped},
        "architectures": ["MPTForCausalLM"], "transformers_version": "4.28.1",
        "auto_map": {"AutoConfig": "configuration_mpt.MPTConfig"}, "verbose": 0,
        "init_config": {"name": "kaiming_normal_", "verbose": 0, "emb_init_std": None},
        "tokenizer_name": "EleutherAI/gpt-neox-20b",
    }


def refined_web(config: dict) -> dict:
    """As tiiuae/falcon-40b first had it: the class of its own code, and other names."""
    names = {
        "num_attention_heads": "n_head", "num_hidden_layers": "n_layer", "num_kv_heads": "n_head_kv",
    }
    kept = (
        "alibi", "attention_dropout", "bias", "bos_token_id", "eos_token_id", "hidden_dropout",
        "hidden_size", "initializer_range", "layer_norm_epsilon", "parallel_attn", "torch_dtype",
        "use_cache", "vocab_size",
    )
    return {
        **{key: value for key, value in config.items() if key in kept},
        **{new: config[old] for old, new in names.items()},
        "apply_residual_connection_post_layernorm": False, "architectures": ["RWForCausalLM"],
        "auto_map": {"AutoConfig": "configuration_RW.RWConfig"}, "model_type": "RefinedWeb",
        "transformers_version": "4.26.0",
    }


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
    "falcon_refined_web": replace(
        falcon_family(
            falcon(4, new_decoder_architecture=True, num_kv_heads=2, alibi=False, bias=False,
                   ffn_hidden_size=256, max_position_embeddings=2048),
            [swapped("ln_attn", "ln_mlp"), rows_swapped("query_key_value.weight", [32, 16])],
        ),
        layout=Layout(refined_web, dict, dict),
        oracle="transformers FalconForCausalLM, config as first published",
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
    "mpt": mpt(
        dict(clip_qkv=1.0), [attributes("MptAttention", clip_qkv=None)], plain_attn_config,
    ),
    "mpt_published": mpt(
        dict(alibi_bias_max=16, softmax_scale=0.3),
        [dict(_fix=None), attributes("MptAttention", softmax_scale=0.25)],
        published_mpt, "transformers MptForCausalLM with alibi_bias_max, config as published",
        alibi_bias_max_of_16,
    ),
}
