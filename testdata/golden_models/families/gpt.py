"""GPT-2 and what came from it: learned positions, transposed and fused tensors, LayerNorm."""

import torch

from ..family import Family, dims, rope, small
from ..layouts import causal_masks, with_extra, without_prefix
from ..mistakes import activation, other_pairs, rows_swapped, zeroed

GPT2_MASKS = causal_masks("h.{}.attn.bias", 2, 144, torch.bfloat16)
PYTHIA_ROPE = rope(10000.0, partial_rotary_factor=0.25)


def gpt(layers: int, heads: int, **more) -> dict:
    return {
        "n_embd": 16 * heads, "n_layer": layers, "n_head": heads, "n_positions": 256,
        "n_inner": 64, "tie_word_embeddings": False, **more,
    }


def neox_buffers(tensors: dict) -> dict:
    """What Pythia's checkpoints hold besides weights."""
    masks = causal_masks("gpt_neox.layers.{}.attention.bias", 3, 144, torch.uint8)(tensors)
    for layer in range(3):
        name = f"gpt_neox.layers.{layer}.attention"
        masks[f"{name}.masked_bias"] = torch.tensor(-1e9, dtype=torch.bfloat16)
        masks[f"{name}.rotary_emb.inv_freq"] = 1e4 ** -torch.tensor([0.0, 0.5])
    return masks


def neox(**more) -> dict:
    config = dims(
        48, 64, 3, 3, 3, hidden_act="gelu", layer_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters=PYTHIA_ROPE, **more,
    )
    del config["num_key_value_heads"]
    return config


NEOX = dict(
    old_config=True, old_keys=dict(rotary_pct=0.25, rotary_emb_base=10000.0),
    old_drop=("rope_theta", "partial_rotary_factor"),
)

FAMILIES: dict[str, Family] = {
    "gpt2": small(
        "GPT2Config",
        gpt(2, 3, n_positions=144, n_inner=None, tie_word_embeddings=True),
        [
            activation("gelu", "act"), zeroed("wpe"), zeroed("c_attn.bias"), zeroed("ln_1.bias"),
            dict(scale_attn_by_inverse_layer_idx=True), dict(scale_attn_weights=False),
        ],
        model_class="GPT2LMHeadModel", layout=without_prefix("transformer.", GPT2_MASKS),
        oracle="transformers GPT2LMHeadModel, names as published",
    ),
    "gpt_bigcode": small(
        "GPTBigCodeConfig",
        gpt(3, 3, multi_query=True, tie_word_embeddings=True),
        [activation("gelu", "act"), zeroed("wpe"), rows_swapped("c_attn.weight", [48, 16])],
    ),
    "gpt_neox": small(
        "GPTNeoXConfig", neox(use_parallel_residual=True),
        [
            activation("gelu_new", "act"), rows_swapped("query_key_value.weight", [16, 16]),
            dict(use_parallel_residual=False), zeroed("query_key_value.bias"),
            dict(rope_parameters=rope(10000.0, partial_rotary_factor=1.0)),
        ],
        model_class="GPTNeoXForCausalLM",
        layout=with_extra(neox_buffers, [("embed_out.", "lm_head.")]), **NEOX,
    ),
    "gpt_neox_serial": small(
        "GPTNeoXConfig", neox(use_parallel_residual=False),
        [dict(use_parallel_residual=True), zeroed("post_attention_layernorm.bias")],
        model_class="GPTNeoXForCausalLM", **NEOX,
    ),
    "gptj": small(
        "GPTJConfig", gpt(3, 3, rotary_dim=8),
        [
            other_pairs(16, 8), dict(rotary_dim=16), zeroed("lm_head.bias"),
            zeroed("fc_in.bias"), activation("gelu", "act"),
        ],
        model_class="GPTJForCausalLM",
    ),
    "codegen": small(
        "CodeGenConfig", gpt(3, 4, rotary_dim=8, n_ctx=256),
        [
            dict(rotary_dim=16), zeroed("lm_head.bias"), zeroed("fc_out.bias"),
            rows_swapped("qkv_proj.weight", [16, 16]),
        ],
        model_class="CodeGenForCausalLM",
    ),
}
