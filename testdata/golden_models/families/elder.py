"""Decoders from before Llama, and DBRX, which is of their kind with experts.

Mistakes that these goldens catch: a norm before a block taken for one of the sum; positions that
are not scaled with the embeddings, or are; computed positions at another offset or with other
frequencies; a padding row that is not zero; an epsilon of the config that its class does not read;
a bias of the last layer alone; a bias of logits whose matrix is the table; w1 and v1 swapped, and
w2 read as (outputs, inputs).
"""

import torch

from ..family import Family, rope, small
from ..layouts import causal_masks, with_extra, without_prefix
from ..mistakes import activation, attributes, named, rows_swapped, swapped, zeroed

GPT_MASKS = causal_masks("h.{}.attn.bias", 2, 96, torch.bfloat16)


def turned_downs(model) -> None:
    """w2 of each expert taken for (outputs, inputs)."""
    for block in model.transformer.blocks:
        experts = block.ffn.experts
        shape = experts.num_experts, experts.hidden_size, experts.ffn_hidden_size
        w2 = experts.mlp.w2
        w2.copy_(w2.view(shape).transpose(1, 2).reshape(w2.shape))


def with_table(model, make) -> None:
    """Other computed positions of XGLM."""
    positions = model.model.embed_positions
    positions.weights.copy_(make(positions.weights))


def shifted(by: int):
    return named(f"positions + {by}", lambda model: with_table(model, lambda t: t.roll(-by, 0)))


def by_turns(model) -> None:
    """Sines and cosines of XGLM by turns, as the paper has them."""
    with_table(model, lambda t: t.view(len(t), 2, -1).transpose(1, 2).reshape(t.shape))


def unpadded(model) -> None:
    """XGLM without a row of zeros."""
    positions = model.model.embed_positions
    positions.make_weights(len(positions.weights), positions.embedding_dim, None)


def unscaled(model) -> None:
    """CTRL's embeddings without their factor."""
    model.transformer.d_model_size = 1


def positions_of_turns(model) -> None:
    """CTRL's sines and cosines by turns."""
    table = model.transformer.pos_encoding
    table.copy_(table.view(len(table), 2, -1).transpose(1, 2).reshape(table.shape))


def norm_first(model) -> None:
    """GPT with GPT-2's blocks."""

    def forward(block, x, attention_mask=None, output_attentions=False):
        outputs = block.attn(block.ln_1(x), attention_mask=attention_mask)
        x = x + outputs[0]
        return [x + block.mlp(block.ln_2(x))] + outputs[1:]

    for block in model.transformer.h:
        block.forward = forward.__get__(block)


def old_positions(_: dict) -> dict:
    """A buffer of the first XGLM files."""
    return {"model.embed_positions.weights": torch.zeros(4, 32, dtype=torch.bfloat16)}


def xglm(**more) -> dict:
    return {
        "d_model": 32, "ffn_dim": 56, "num_layers": 3, "attention_heads": 4,
        "max_position_embeddings": 256, "pad_token_id": 9, "tie_word_embeddings": False,
        **more,
    }


FAMILIES: dict[str, Family] = {
    "dbrx": small(
        "DbrxConfig",
        {
            "d_model": 48, "n_heads": 4, "n_layers": 2, "max_seq_len": 256,
            "rope_parameters": rope(20000.0),
            "attn_config": dict(clip_qkv=1.5, kv_n_heads=2, rope_theta=20000.0),
            "ffn_config": dict(
                ffn_hidden_size=16, moe_num_experts=5, moe_top_k=2, moe_jitter_eps=0.01,
                moe_loss_weight=0.05,
            ),
        },
        [
            attributes("DbrxAttention", clip_qkv=100.0), turned_downs, swapped("w1", "v1"),
            attributes("DbrxFFN", moe_normalize_expert_weights=None),
            attributes("DbrxFFN", top_k=1), attributes("DbrxFFN", top_k=3),
            dict(rope_parameters=rope(10000.0)),
        ],
    ),
    "dbrx_sums": small(
        "DbrxConfig",
        {
            "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 256,
            "rope_parameters": rope(10000.0),
            "attn_config": dict(clip_qkv=8, kv_n_heads=1, rope_theta=10000.0),
            "ffn_config": dict(
                ffn_hidden_size=24, moe_num_experts=4, moe_top_k=3,
                moe_normalize_expert_weights=None, ffn_act_fn=dict(name="gelu"),
            ),
        },
        [
            attributes("DbrxFFN", moe_normalize_expert_weights=1.0), activation("silu", "activation_fn"),
        ],
    ),
    "openai_gpt": small(
        "OpenAIGPTConfig",
        {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 144},
        [
            norm_first, activation("gelu", "act"), zeroed("positions_embed"),
            zeroed("c_attn.bias"), zeroed("ln_2.bias"),
        ],
        model_class="OpenAIGPTLMHeadModel", layout=without_prefix("transformer.", GPT_MASKS),
        oracle="transformers OpenAIGPTLMHeadModel, names as published",
        head_std=0.12, means={"h.1.ln_2": 3.5},
    ),
    "xglm": small(
        "XGLMConfig", xglm(),
        [
            shifted(1), by_turns, unpadded, dict(scale_embedding=False),
            activation("gelu_new", "activation_fn"), zeroed("out_proj.bias"),
        ],
        model_class="XGLMForCausalLM", layout=with_extra(old_positions),
    ),
    "biogpt": small(
        "BioGptConfig",
        {
            "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 3,
            "num_attention_heads": 5, "max_position_embeddings": 144, "layer_norm_eps": 1e-2,
        },
        [
            activation("gelu_new", "activation_fn"), zeroed("embed_positions"),
            dict(scale_embedding=False), zeroed("fc2.bias"), zeroed("q_proj.bias"),
        ],
        model_class="BioGptForCausalLM", head_std=0.03, means={"biogpt.layer_norm": 20.0},
    ),
    "gpt_neox_japanese": small(
        "GPTNeoXJapaneseConfig",
        {
            "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3,
            "intermediate_multiple_size": 2, "max_position_embeddings": 256,
            "layer_norm_eps": 1e-3, "tie_word_embeddings": True,
            "rope_parameters": rope(20000.0, partial_rotary_factor=0.5),
        },
        [
            activation("gelu_new", "act"), rows_swapped("query_key_value.weight", [16, 16]),
            zeroed("dense_bias"), dict(rope_parameters=rope(20000.0, partial_rotary_factor=1.0)),
            dict(rope_parameters=rope(10000.0, partial_rotary_factor=0.5)),
        ],
        model_class="GPTNeoXJapaneseForCausalLM",
        means={"gpt_neox_japanese.final_layer_norm": 3.5},
        old_config=True, old_keys=dict(rotary_pct=0.5, rotary_emb_base=20000),
        old_drop=("rope_theta", "partial_rotary_factor"),
    ),
    "ctrl": small(
        "CTRLConfig",
        {
            "n_embd": 32, "dff": 56, "n_layer": 3, "n_head": 4, "n_positions": 256,
            "layer_norm_epsilon": 0.5, "tie_word_embeddings": False,
        },
        [
            unscaled, positions_of_turns, zeroed("lm_head.bias"), zeroed("Wq.bias"),
            zeroed("ffn.2.bias"), dict(layer_norm_epsilon=1e-6),
        ],
        model_class="CTRLLMHeadModel",
    ),
}
