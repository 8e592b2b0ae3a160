"""The adapters: each a model that it is of, peft's config, and mistakes that it shows."""

from dataclasses import dataclass, field

import torch

from .merged import (
    Mistake, alpha_by_rank, head_follows_table, one_scale, q_on_k, rows_in_groups, scale_left_out,
    table_not_scaled, transposed, without,
)

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
SAVED = dict(modules_to_save=["classifier", "score"], task_type="SEQ_CLS")


@dataclass
class Adapter:
    """An adapter of a folder of testdata."""

    base: str
    config: dict  # peft's LoraConfig
    mistakes: list[Mistake] = field(default_factory=list)
    dtype: torch.dtype = torch.float32  # as stored
    zero: bool = False  # B is zero
    strength: float = 0.5  # how large B A is beside W


def lora(rank: int, alpha: float, modules: list[str] | str, **more) -> dict:
    return dict(r=rank, lora_alpha=alpha, target_modules=modules, **more)


ADAPTERS = {
    "rank_1": Adapter("golden/llama2", lora(1, 3, ATTENTION + MLP), [scale_left_out, q_on_k]),
    "rank_8": Adapter(
        "golden/llama2", lora(8, 12, ATTENTION + MLP),
        [scale_left_out, transposed, q_on_k, without("down_proj"), without("layers.2")],
    ),
    "rank_16_rslora": Adapter(
        "golden/llama2", lora(16, 6, ["q_proj", "v_proj", "up_proj"], use_rslora=True),
        [scale_left_out, alpha_by_rank], torch.bfloat16,
    ),
    "rank_64": Adapter(
        "golden/llama2", lora(64, 16, ATTENTION + MLP, layers_to_transform=[1]),
        [scale_left_out], torch.bfloat16,
    ),
    "patterns": Adapter(
        "golden/llama2",
        lora(
            4, 6, ATTENTION + MLP, rank_pattern={r"layers\.[01]\.mlp\..*": 2, "q_proj": 8},
            alpha_pattern={"up_proj": 9, "mlp.up_proj": 1, r".*\.[kv]_proj": 3},
        ),
        [one_scale(1.5), scale_left_out],
    ),
    "v_alone": Adapter("golden/llama2", lora(8, 16, ["v_proj"]), [q_on_k], torch.float16),
    "tables": Adapter(
        "golden/llama2", lora(4, 10, ["embed_tokens", "lm_head", "q_proj"]),
        [without("embed_tokens"), without("lm_head"), scale_left_out],
    ),
    "zero": Adapter("golden/llama2", lora(8, 16, ATTENTION + MLP), zero=True),
    "tied_tables": Adapter(
        "golden/llama3", lora(4, 10, ["embed_tokens", "up_proj"]),
        [head_follows_table, without("embed_tokens")], torch.bfloat16,
    ),
    "biases": Adapter(
        "golden/qwen2", lora(8, 12, r".*layers\.\d+\.(self_attn\.(q|v)_proj|mlp\.down_proj)"),
        [scale_left_out, without("v_proj")],
    ),
    "fused": Adapter(
        "golden/phi3", lora(8, 12, ["qkv_proj", "gate_up_proj", "o_proj"]),
        [scale_left_out, rows_in_groups("gate_up_proj", 2)],
    ),
    "fused_by_heads": Adapter(
        "golden/gpt_neox", lora(8, 12, ["query_key_value", "dense_4h_to_h"]),
        [scale_left_out, rows_in_groups("query_key_value", 3)],
    ),
    "conv1d": Adapter(
        "golden/gpt2", lora(8, 12, ["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True),
        [scale_left_out, transposed, without("mlp.c_proj")],
    ),
    "scaled_table": Adapter(
        "golden/gemma3", lora(4, 10, ["q_proj", "o_proj", "gate_proj", "embed_tokens"]),
        [table_not_scaled, without("embed_tokens"), scale_left_out], torch.bfloat16,
    ),
    "pairs": Adapter(
        "golden/cohere", lora(8, 12, ["q_proj", "k_proj", "down_proj"]),
        [scale_left_out, rows_in_groups("q_proj", 8)],
    ),
    "gated_and_recurrent": Adapter(
        "golden/qwen3_next",
        lora(
            4, 10,
            ["q_proj", "k_proj", "o_proj", "in_proj_qkvz", "in_proj_ba", "out_proj"],
        ),
        [scale_left_out, without("in_proj_ba"), rows_in_groups("q_proj", 2)], strength=0.3,
    ),
    "latent": Adapter(
        "golden/deepseek_v2_lite", lora(4, 10, ["q_proj", "kv_a_proj_with_mqa", "o_proj"]),
        [scale_left_out, without("kv_a_proj_with_mqa")], strength=0.3,
    ),
    "score": Adapter(
        "golden_classifiers/llama", lora(4, 10, ["q_proj", "v_proj"], **SAVED),
        [without("score"), scale_left_out],
    ),
    "classifier": Adapter(
        "golden_classifiers/roberta", lora(4, 10, ["query", "value", "output.dense"], **SAVED),
        [without("classifier.dense"), without("classifier.out_proj"), scale_left_out],
    ),
}
