"""Molmo 2, as transformers saves it and as it is published. Its own class is the oracle of text;
`generate_images.py` adds what it makes of images."""

import torch

from ..family import Family, dims, rope, small
from ..mistakes import attributes, swapped, without, zeroed
from .towers import PATCH

# Of tokenizer_kinds.shared_molmo2_images: words, and what stands behind them.
WORDS, MARKS = 289, 10
START, END, PATCH_ID, COLUMN, LOW_START = range(WORDS, WORDS + 5)
# Patches of the side of a tile.
SIDE = 5


def parts(text: dict, layers: list[int]) -> dict:
    hidden = text["hidden_size"]
    return dict(
        text_config=text | dict(
            additional_vocab_size=MARKS, vocab_size=WORDS, bos_token_id=None, pad_token_id=None,
            eos_token_id=288,
        ),
        vision_config=dict(
            head_dim=8, hidden_size=16, image_size=[SIDE * PATCH] * 2, intermediate_size=20,
            layer_norm_eps=1e-5, num_attention_heads=2, num_hidden_layers=4,
            num_key_value_heads=1, patch_size=PATCH,
        ),
        adapter_config=dict(
            head_dim=10, hidden_size=16, intermediate_size=20, num_attention_heads=4,
            num_key_value_heads=2, text_hidden_size=hidden, vision_feature_layer=layers,
        ),
        image_start_token_id=START, image_end_token_id=END, image_patch_id=PATCH_ID,
        low_res_image_start_token_id=LOW_START, frame_start_token_id=WORDS + 7,
        frame_end_token_id=WORDS + 8, tie_word_embeddings=False,
    )


def published(config: dict, tensors: dict) -> tuple[dict, dict]:
    """As in Molmo 2's own files, where the table of words is apart and the tower has more layers
    than the weights. transformers 5 writes the table in two halves."""
    names = [f"model.transformer.wte.{part}" for part in ("embedding", "new_embedding")]
    table = torch.cat([tensors[name] for name in names])
    tensors |= {name: rows.clone() for name, rows in zip(names, table.split([WORDS, MARKS]))}
    return published_config(config), tensors


def published_config(config: dict) -> dict:
    config = dict(config)
    vision, adapter = config.pop("vision_config"), dict(config.pop("adapter_config"))
    text = dict(config.pop("text_config"))
    for part in (vision, adapter, text):
        part.pop("model_type", None)
        part.pop("dtype", None)
    names = dict(
        image_size="image_default_input_size", num_position_embeddings="image_num_pos",
        patch_size="image_patch_size",
    )
    kept = {k: v for k, v in vision.items() if k not in ("attention_bias", "num_channels")}
    vit = {names.get(key, key): value for key, value in kept.items()}
    scaling = text.pop("rope_parameters")
    text |= dict(
        rope_theta=scaling.pop("rope_theta"), rope_scaling=scaling, qkv_bias=text.pop("attention_bias"),
        layer_norm_eps=text.pop("rms_norm_eps"), use_qk_norm=True, embedding_dropout=0.0,
        residual_dropout=0.0, model_type="molmo2_text", attn_implementation="sdpa",
    )
    for key in ("attention_bias", "mlp_bias"):
        adapter.pop(key)
    layers = adapter.pop("vision_feature_layer")
    return config | dict(
        adapter_config=adapter | dict(
            vit_layers=layers, pooling_attention_mask=True, float32_attention=True,
            image_feature_dropout=0.0, residual_dropout=0.0, model_type="molmo2_adapter",
            attn_implementation="sdpa",
        ),
        vit_config=vit | dict(
            num_hidden_layers=vision["num_hidden_layers"] + 2, float32_attention=True,
            residual_dropout=0.0, model_type="molmo2", attn_implementation="sdpa",
        ),
        text_config=text, image_col_id=COLUMN, image_low_res_id=WORDS + 6,
        use_frame_special_tokens=True, torch_dtype=config.pop("dtype"),
        transformers_version="4.57.1",
    )


FAMILIES: dict[str, Family] = {
    "molmo2": small(
        "Molmo2Config",
        parts(
            dims(
                32, 48, 2, 4, 2, head_dim=16, rms_norm_eps=1e-5, rope_parameters=rope(100000.0),
            ),
            [3, -3],
        ),
        [without("q_norm"), swapped("gate_proj", "up_proj"), without("input_layernorm")],
        model_class="Molmo2ForConditionalGeneration", shared="molmo2_images",
    ),
    "molmo2_o": small(
        "Molmo2Config",
        parts(
            dims(
                32, 36, 3, 2, 1, head_dim=12, rms_norm_eps=1e-4, attention_bias=True,
                qk_norm_type="olmo", norm_after=True, rope_scaling_layers=[0, 2],
                rope_parameters=rope(
                    10000.0, "yarn", factor=8.0, original_max_position_embeddings=32,
                    attention_factor=1.2, beta_fast=32.0, beta_slow=1.0,
                ),
            ),
            [1, 3],
        ),
        [
            attributes("Molmo2TextModel", rope_types=["scaled"] * 3),
            attributes("Molmo2TextModel", rope_types=["unscaled"] * 3),
            attributes("Molmo2DecoderLayer", norm_after=False), zeroed("q_proj.bias"),
        ],
        model_class="Molmo2ForConditionalGeneration", shared="molmo2_images",
        published=published,
    ),
}
