"""Families whose code is not in transformers: the oracle is a class that computes the same, and
the checkpoint has the family's published names, layout and keys."""

import math

import torch
from torch import nn

from ..family import Family, Layout, dims, rope, small
from ..layouts import alias, fused, with_experts_one_by_one
from ..mistakes import rows_swapped, swapped, zeroed
from ..ropes import fixed_at
from ..routing import routed, softmax_all, softmax_chosen, swapped_gate_and_up

INTERNLM2_NAMES = [
    ("embed_tokens.", "tok_embeddings."), ("lm_head.", "output."), (".self_attn.", ".attention."),
    (".o_proj.", ".wo."), (".input_layernorm.", ".attention_norm."),
    (".post_attention_layernorm.", ".ffn_norm."), (".mlp.", ".feed_forward."),
    (".gate_proj.", ".w1."), (".up_proj.", ".w3."), (".down_proj.", ".w2."),
]
DYNAMIC = rope(10000.0, "dynamic", factor=6.0)
YARN = dict(
    kind="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0
)
# TeleChat3's yarn differs from others in what cos and sin are multiplied by (vLLM's
# telechat3_scaling_rope.py).
TELE_FACTOR = 0.07 * math.log(4.0) + 1.0
TELE_YARN = dict(
    factor=4.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0,
    rope_type="telechat3-yarn",
)


def minicpm_config(config: dict) -> dict:
    """Granite's multipliers in MiniCPM's words; its files do not say that they are tied."""
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    config = {
        **config, "architectures": ["MiniCPMForCausalLM"], "model_type": "minicpm",
        "scale_emb": config["embedding_multiplier"],
        "scale_depth": round(config["residual_multiplier"] * layers**0.5, 6),
        "dim_model_base": int(hidden / config["logits_scaling"]),
    }
    dropped = (
        "embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier",
        "attention_bias", "mlp_bias", "tie_word_embeddings", "rope_theta", "attention_dropout",
    )
    return {k: v for k, v in config.items() if k not in dropped}


# DeciLM: (query heads per KV head, ffn_mult) of each layer; None where the block is missing.
DECI_LAYERS = [(2, 5.25), (None, 13.0), (1, None), (2, 1.0)]
DECI_WIDTHS = [256, 512, None, 256]  # 2 * ffn_mult * 32 / 3, rounded up to a multiple of 256


class NoAttention(nn.Module):
    def forward(self, hidden_states: torch.Tensor, **_) -> tuple[torch.Tensor, None]:
        return torch.zeros_like(hidden_states), None


class NoMlp(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)


def decilm(model: nn.Module) -> None:
    """Llama with blocks missing, and with KV heads and widths of each layer."""
    for layer, (group, _), width in zip(model.model.layers, DECI_LAYERS, DECI_WIDTHS):
        if group is None:
            layer.self_attn, layer.input_layernorm = NoAttention(), nn.Identity()
        else:
            layer.self_attn.num_key_value_groups = group
            layer.self_attn.k_proj = nn.Linear(32, 32 // group, bias=False)
            layer.self_attn.v_proj = nn.Linear(32, 32 // group, bias=False)
        if width is None:
            layer.mlp, layer.post_attention_layernorm = NoMlp(), nn.Identity()
        else:
            layer.mlp.gate_proj = nn.Linear(32, width, bias=False)
            layer.mlp.up_proj = nn.Linear(32, width, bias=False)
            layer.mlp.down_proj = nn.Linear(width, 32, bias=False)


def decilm_config(config: dict) -> dict:
    common = {"replace_with_linear": False, "sparsify": None}
    blocks = [
        {
            "attention": {
                "n_heads_in_group": group, "no_op": group is None, "num_sink_tokens": None,
                "unshifted_sink": False, "use_prefill_window_in_sink_attention": False,
                "window_length": None, **common,
            },
            "ffn": {"ffn_mult": mult, "no_op": mult is None, **common},
        }
        for group, mult in DECI_LAYERS
    ]
    return {
        **config, "architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas",
        "block_configs": blocks, "num_key_value_heads": None, "intermediate_size": None,
    }


# Solar: the layers before which the stream is kept or mixed, and the share of what was kept.
BSKCN = dict(bskcn_1=[1], bskcn_2=[2], bskcn_3=[3], bskcn_4=[4], bskcn_tv=[0.9, 0.8])


def solar(share: float):
    """Llama whose stream before some layers is mixed with that before an earlier one."""

    def fix(model: nn.Module) -> None:
        kept = {}

        def before(index: int):
            def hook(_, args):
                hidden = args[0]
                for keep, mix in (("bskcn_1", "bskcn_3"), ("bskcn_2", "bskcn_4")):
                    if index in BSKCN[keep]:
                        kept[keep] = hidden
                    if index in BSKCN[mix]:
                        hidden = kept[keep] * share + hidden * (1 - share)
                return (hidden, *args[1:])

            return hook

        for index, layer in enumerate(model.model.layers):
            layer.register_forward_pre_hook(before(index))

    fix.__name__ = f"share {share}"
    return fix


def mimo_config(config: dict) -> dict:
    return {**config, "architectures": ["MiMoForCausalLM"], "model_type": "mimo"}


def mtp_tensors(tensors: dict) -> dict:
    return {"model.mtp_layers.0.input_layernorm.weight": tensors["model.norm.weight"].clone()}


with_mtp = Layout(
    mimo_config, lambda tensors: {**tensors, **mtp_tensors(tensors)},
    lambda tensors: {n: t for n, t in tensors.items() if "mtp_layers" not in n},
)


def layer_norms(model: nn.Module) -> None:
    """Llama with LayerNorms."""
    hidden, eps = model.config.hidden_size, model.config.rms_norm_eps
    model.model.norm = nn.LayerNorm(hidden, eps)
    for layer in model.model.layers:
        layer.input_layernorm = nn.LayerNorm(hidden, eps)
        layer.post_attention_layernorm = nn.LayerNorm(hidden, eps)


def first_deepseek(model: nn.Module) -> None:
    """dots.llm1 without norms of q and k, and with the probabilities of a softmax."""
    for layer in model.model.layers:
        layer.self_attn.q_norm, layer.self_attn.k_norm = nn.Identity(), nn.Identity()
    routed("the softmax of all experts", softmax_all)(model)


def first_deepseek_config(config: dict) -> dict:
    keys = dict(
        architectures=["DeepseekForCausalLM"], model_type="deepseek", scoring_func="softmax",
        aux_loss_alpha=0.001, seq_aux=True, moe_layer_freq=1,
    )
    dropped = ("n_group", "topk_group", "routed_scaling_factor")
    return {k: v for k, v in {**config, **keys}.items() if k not in dropped}


BIAS = "gate.e_score_correction_bias"


def with_choice_biases(tensors: dict) -> dict:
    gates = [name for name in tensors if name.endswith("mlp.gate.weight")]
    biases = {n.replace("gate.weight", BIAS): torch.zeros(len(tensors[n])) for n in gates}
    return {**tensors, **biases}


def without_choice_biases(layout: Layout) -> Layout:
    return Layout(
        layout.config,
        lambda tensors: layout.publish({n: t for n, t in tensors.items() if BIAS not in n}),
        lambda tensors: with_choice_biases(layout.restore(tensors)),
    )


def plain(**more) -> dict:
    return dims(
        32, 64, 3, 4, 2, head_dim=16, tie_word_embeddings=False,
        **{"rms_norm_eps": 1e-5, "rope_parameters": rope(10000.0), **more},
    )


def llama_as(architecture: str, model_type: str, mistakes: list, **more) -> Family:
    config = more.pop("config", plain())
    layout = alias(architecture, model_type, **more.pop("keys", {}))
    return small(
        "LlamaConfig", config, mistakes, layout=layout, old_config=True,
        oracle=f"transformers LlamaForCausalLM, as {architecture}", **more,
    )


def of_first_deepseek(num_layers: int, layout: Layout, oracle: str, **options) -> Family:
    return small(
        "Dots1Config",
        dims(
            32, 48, num_layers, 4, 4, head_dim=8, n_routed_experts=6, num_experts_per_tok=2,
            moe_intermediate_size=16, n_shared_experts=2, first_k_dense_replace=1,
            norm_topk_prob=False, rms_norm_eps=1e-6, sliding_window=None,
            rope_parameters=rope(10000.0),
        ),
        [
            routed("a softmax of the chosen", softmax_chosen), swapped_gate_and_up,
            zeroed("shared_experts.down_proj"), dict(num_experts_per_tok=3),
        ],
        fix=first_deepseek, layout=layout, oracle=oracle, old_config=True,
        old_drop=("sliding_window", "max_window_layers"), **options,
    )


FAMILIES: dict[str, Family] = {
    "internlm2": small(
        "LlamaConfig",
        dims(64, 64, 2, 4, 2, tie_word_embeddings=False, rms_norm_eps=1e-5,
             rope_parameters=rope(10000.0)),
        [
            rows_swapped("q_proj.weight", [16, 16]), swapped("gate_proj", "up_proj"),
            swapped("k_proj", "v_proj"),
        ],
        layout=fused(
            INTERNLM2_NAMES,
            dict(architectures=["InternLM2ForCausalLM"], model_type="internlm2", bias=False),
            ("attention_bias", "mlp_bias", "head_dim", "attention_dropout"),
        ),
        oracle="transformers LlamaForCausalLM, renamed and fused per group of heads",
        old_config=True, shared="sentencepiece",
    ),
    "internlm3": small(
        "InternLM3Config", plain(max_position_embeddings=64, rope_parameters=DYNAMIC),
        [dict(_fix=None), dict(_fix=fixed_at(64))],
        model_class="LlamaForCausalLM", fix=fixed_at(384), old_config=True,
        layout=alias("InternLM3ForCausalLM", "internlm3"),
        oracle="transformers LlamaForCausalLM, frequencies of length 384 at every position",
        old_keys=dict(rope_scaling=dict(rope_type="dynamic", factor=6.0)),
    ),
    "minicpm": small(
        "GraniteConfig",
        dims(
            48, 64, 3, 3, 1, tie_word_embeddings=True, rms_norm_eps=1e-5,
            rope_parameters=rope(10000.0), embedding_multiplier=3.0, attention_multiplier=0.25,
            residual_multiplier=1.4 / 3**0.5, logits_scaling=2.0,
        ),
        [
            dict(embedding_multiplier=1.0), dict(residual_multiplier=1.4),
            dict(residual_multiplier=1.0), dict(logits_scaling=1.0),
        ],
        head_std=0.04, final_norm_mean=21.0, old_config=True,
        layout=Layout(minicpm_config, dict, dict),
        oracle="transformers GraniteForCausalLM with MiniCPM's multipliers",
    ),
    "decilm": small(
        "LlamaConfig",
        dims(32, 256, 4, 2, 2, tie_word_embeddings=False, rms_norm_eps=1e-5,
             rope_parameters=rope(10000.0)),
        [
            swapped("gate_proj", "up_proj"), zeroed("layers.1.mlp"), zeroed("layers.2.self_attn"),
            rows_swapped("layers.2.self_attn.k_proj.weight", [16, 16]),
        ],
        fix=decilm, layout=Layout(decilm_config, dict, dict), old_config=True,
        oracle="transformers LlamaForCausalLM with other or missing blocks",
    ),
    "aquila": llama_as("AquilaForCausalLM", "aquila", [swapped("gate_proj", "up_proj")]),
    "telechat3": llama_as("TeleChat3ForCausalLM", "telechat3", [swapped("gate_proj", "up_proj")]),
    "telechat3_yarn": llama_as(
        "TeleChat3ForCausalLM", "telechat3",
        [dict(rope_parameters=rope(10000.0)), dict(rope_parameters=rope(10000.0, **YARN))],
        config=plain(rope_parameters=rope(10000.0, attention_factor=TELE_FACTOR, **YARN)),
        old_keys=dict(rope_scaling=dict(TELE_YARN, type="telechat3-yarn")),
    ),
    "iquestcoder": small(
        "IQuestCoderConfig", plain(), [swapped("gate_proj", "up_proj")],
        model_class="LlamaForCausalLM", old_config=True,
        layout=alias("IQuestCoderForCausalLM", "iquestcoder"),
        oracle="transformers LlamaForCausalLM, as IQuestCoderForCausalLM",
    ),
    "mimo": small(
        "Qwen2Config", plain(), [zeroed("q_proj.bias"), swapped("gate_proj", "up_proj")],
        layout=with_mtp, old_config=True, old_keys=dict(num_nextn_predict_layers=1),
        oracle="transformers Qwen2ForCausalLM, as MiMoForCausalLM",
    ),
    "orion": llama_as(
        "OrionForCausalLM", "orion", [zeroed("norm.bias"), zeroed("input_layernorm.bias")],
        config=plain(rms_norm_eps=1e-2), fix=layer_norms,
        keys=dict(max_sequence_length=4096),
    ),
    "pangu_embedded": llama_as(
        "PanguEmbeddedForCausalLM", "PanguEmbedded", [zeroed("o_proj.bias"), zeroed("q_proj.bias")],
        config=plain(attention_bias=True), keys=dict(bias=True), old_drop=("attention_bias",),
    ),
    "deepseek_moe": of_first_deepseek(
        3,
        with_experts_one_by_one(without_choice_biases(Layout(first_deepseek_config, dict, dict))),
        "transformers Dots1ForCausalLM with a softmax and without norms of q and k",
    ),
    "solar": llama_as(
        "SolarForCausalLM", "solar", [dict(_fix=None), dict(_fix=solar(0.9))],
        keys=dict(BSKCN, sliding_window=2047), fix=solar(0.8),
        config=dims(32, 64, 5, 4, 2, head_dim=16, tie_word_embeddings=False,
                    rope_parameters=rope(10000.0)),
    ),
}
