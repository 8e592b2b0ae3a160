"""Qwen's models that see images. Their text parts are checked here; `generate_images.py` adds what
the multimodal class makes of images."""

from ..family import FULL, SLIDING, Family, dims, rope, small
from ..layouts import of_tower, with_turned_experts, wrapped
from ..mistakes import swapped, without, zeroed
from ..routing import swapped_gate_and_up
from .towers import IMAGE_TOKEN, INNER, PATCH, WIDTH

DEPTH, HEADS = 3, 3
VISION_TOKENS = dict(
    image_token_id=IMAGE_TOKEN, video_token_id=281, vision_start_token_id=282,
    vision_end_token_id=283,
)


def qwen2_tower(hidden: int) -> dict[str, tuple[int, ...]]:
    """Tensors of Qwen2-VL's tower."""
    merged = 4 * WIDTH
    tensors = {"visual.patch_embed.proj.weight": (WIDTH, 3, 2, PATCH, PATCH)}
    linears = {
        "merger.mlp.0": (merged, merged),
        "merger.mlp.2": (hidden, merged),
    }
    norms = ["merger.ln_q"]
    for block in (f"blocks.{index}." for index in range(DEPTH)):
        norms += [f"{block}norm1", f"{block}norm2"]
        linears |= {
            f"{block}attn.qkv": (3 * WIDTH, WIDTH), f"{block}attn.proj": (WIDTH, WIDTH),
            f"{block}mlp.fc1": (2 * WIDTH, WIDTH), f"{block}mlp.fc2": (WIDTH, 2 * WIDTH),
        }
    for name in norms:
        tensors[f"visual.{name}.weight"] = tensors[f"visual.{name}.bias"] = (WIDTH,)
    for name, shape in linears.items():
        tensors[f"visual.{name}.weight"], tensors[f"visual.{name}.bias"] = shape, shape[:1]
    return tensors


def qwen2_vl(config: dict) -> dict:
    """As in Qwen2-VL's own files: the text's keys at the top."""
    return {
        **config, **VISION_TOKENS, "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl", "vision_token_id": 284,
        "rope_scaling": dict(type="mrope", mrope_section=[2, 3, 3]),
        "vision_config": dict(
            depth=DEPTH, embed_dim=WIDTH, hidden_size=config["hidden_size"], in_chans=3,
            mlp_ratio=2, num_heads=HEADS, patch_size=PATCH, spatial_merge_size=2,
            spatial_patch_size=PATCH, temporal_patch_size=2,
        ),
    }


def qwen2_5_tower(hidden: int) -> dict[str, tuple[int, ...]]:
    """Tensors of Qwen2.5-VL's: norms without biases, MLPs with gates."""
    tensors = {
        name: shape for name, shape in qwen2_tower(hidden).items()
        if not ("mlp.fc" in name or name.endswith(("norm1.bias", "norm2.bias", "ln_q.bias")))
    }
    for block in (f"visual.blocks.{index}.mlp." for index in range(DEPTH)):
        for name, shape in {
            "gate_proj": (INNER, WIDTH), "up_proj": (INNER, WIDTH), "down_proj": (WIDTH, INNER),
        }.items():
            tensors[f"{block}{name}.weight"], tensors[f"{block}{name}.bias"] = shape, shape[:1]
    return tensors


def qwen2_5_vl(config: dict) -> dict:
    """As in Qwen2.5-VL's own files. Windows of 3 x 3 tokens."""
    return {
        **config, **VISION_TOKENS, "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl", "vision_token_id": 284,
        "rope_scaling": dict(type="mrope", mrope_section=[2, 3, 3]),
        "vision_config": dict(
            depth=DEPTH, fullatt_block_indexes=[1], hidden_act="silu", hidden_size=WIDTH,
            in_chans=3, intermediate_size=INNER, num_heads=HEADS,
            out_hidden_size=config["hidden_size"], patch_size=PATCH, spatial_merge_size=2,
            spatial_patch_size=PATCH, temporal_patch_size=2, tokens_per_second=2, window_size=48,
        ),
    }


def qwen2(layout, **more) -> Family:
    return small(
        "Qwen2Config",
        dims(48, 64, 2, 3, 1, tie_word_embeddings=False, use_sliding_window=False,
             max_window_layers=2, rope_parameters=rope(1000000.0)),
        [dict(rope_parameters=rope(10000.0)), zeroed("q_proj.bias"),
         swapped("gate_proj", "up_proj")],
        layout=layout, oracle="transformers Qwen2ForCausalLM, inside of a multimodal checkpoint",
        shared="images", **more,
    )


def qwen3_tower(hidden: int, side: int) -> dict[str, tuple[int, ...]]:
    """Tensors of Qwen3-VL's tower, two of whose layers go further into the decoder."""
    merged = 4 * WIDTH
    shapes = {
        "patch_embed.proj": (WIDTH, 3, 2, PATCH, PATCH), "merger.norm": (WIDTH,),
        "merger.linear_fc1": (merged, merged), "merger.linear_fc2": (hidden, merged),
    }
    for index in range(2):
        shapes |= {
            f"deepstack_merger_list.{index}.norm": (merged,),
            f"deepstack_merger_list.{index}.linear_fc1": (merged, merged),
            f"deepstack_merger_list.{index}.linear_fc2": (hidden, merged),
        }
    for block in (f"blocks.{index}." for index in range(DEPTH)):
        shapes |= {
            f"{block}norm1": (WIDTH,), f"{block}norm2": (WIDTH,),
            f"{block}attn.qkv": (3 * WIDTH, WIDTH), f"{block}attn.proj": (WIDTH, WIDTH),
            f"{block}mlp.linear_fc1": (INNER, WIDTH), f"{block}mlp.linear_fc2": (WIDTH, INNER),
        }
    tensors = {"model.visual.pos_embed.weight": (side * side, WIDTH)}
    for name, shape in shapes.items():
        tensors[f"model.visual.{name}.weight"] = shape
        tensors[f"model.visual.{name}.bias"] = shape[:1]
    return tensors


QWEN3_VISION_CONFIG = dict(
    depth=DEPTH, hidden_act="gelu_pytorch_tanh", hidden_size=WIDTH, in_channels=3,
    initializer_range=0.02, intermediate_size=INNER, num_heads=HEADS, patch_size=PATCH,
    spatial_merge_size=2, temporal_patch_size=2,
)


def qwen3_vl(config: dict) -> dict:
    """As in Qwen3-VL's own files."""
    text = {
        k: v for k, v in config.items()
        if k not in ("architectures", "torch_dtype", "transformers_version")
    }
    text["model_type"] = "qwen3_vl_text"
    text["rope_scaling"] = dict(
        mrope_interleaved=True, mrope_section=[4, 2, 2], rope_type="default"
    )
    return dict(
        architectures=["Qwen3VLForConditionalGeneration"], model_type="qwen3_vl", **VISION_TOKENS,
        text_config=text, tie_word_embeddings=True, transformers_version="4.57.0.dev0",
        vision_config=dict(
            QWEN3_VISION_CONFIG, deepstack_visual_indexes=[0, 2], model_type="qwen3_vl",
            num_position_embeddings=25, out_hidden_size=config["hidden_size"],
        ),
    )


def qwen3_vl_moe(config: dict) -> dict:
    """As in the files of Qwen3-VL with experts."""
    out = qwen3_vl(config)
    out["text_config"]["model_type"] = "qwen3_vl_moe_text"
    out["vision_config"]["model_type"] = "qwen3_vl_moe"
    return {
        **out, "architectures": ["Qwen3VLMoeForConditionalGeneration"],
        "model_type": "qwen3_vl_moe", "tie_word_embeddings": False,
    }


def exaone4_5_tower(hidden: int) -> dict[str, tuple[int, ...]]:
    """Qwen2.5-VL's with shared keys and values; and a tensor of layers of further tokens."""
    tensors = {f"model.{name}": shape for name, shape in qwen2_5_tower(hidden).items()}
    for block in (f"model.visual.blocks.{index}." for index in range(DEPTH)):
        rows = WIDTH + 2 * WIDTH // HEADS
        tensors |= {f"{block}attn.qkv.weight": (rows, WIDTH), f"{block}attn.qkv.bias": (rows,)}
    return tensors | {"mtp.norm.weight": (hidden,)}


def exaone4_5(config: dict) -> dict:
    """As transformers 5 writes it. Windows of 3 x 3 tokens."""
    text = {key: value for key, value in config.items() if key != "transformers_version"}
    return dict(
        architectures=["Exaone4_5_ForConditionalGeneration"], model_type="exaone4_5",
        **VISION_TOKENS, dtype="bfloat16", text_config=text, tie_word_embeddings=False,
        vision_config=dict(
            depth=DEPTH, fullatt_block_indexes=[1], hidden_act="silu", hidden_size=WIDTH,
            in_channels=3, initializer_range=0.02, intermediate_size=INNER,
            model_type="exaone4_5_vision", num_heads=HEADS, num_key_value_heads=1,
            out_hidden_size=config["hidden_size"], patch_size=PATCH, spatial_merge_size=2,
            temporal_patch_size=2, window_size=48,
        ),
    )


def hyperclovax_tower(hidden: int) -> dict[str, tuple[int, ...]]:
    """Qwen2.5-VL's, and a product behind it."""
    tower = {
        name.replace("visual.", "model.vision_model.", 1): shape
        for name, shape in qwen2_5_tower(20).items()
    }
    return tower | {
        "model.vision_projector.weight": (hidden, 20), "model.vision_projector.bias": (hidden,),
    }


def hyperclovax_vision(config: dict) -> dict:
    """As transformers 5 writes it. Windows of 3 x 3 tokens."""
    text = {key: value for key, value in config.items() if key != "transformers_version"}
    of_qwen = qwen2_5_vl(config)["vision_config"] | dict(out_hidden_size=20)
    return dict(
        architectures=["HyperCLOVAXVisionV2ForConditionalGeneration"], dtype="bfloat16",
        image_token_id=IMAGE_TOKEN, model_type="hyperclovax_vision_v2", text_config=text,
        tie_word_embeddings=False, video_token_id=281,
        vision_config=of_qwen | dict(model_type="qwen2_5_vl_vision"),
    )


FAMILIES: dict[str, Family] = {
    "hyperclovax_vision": small(
        "HyperCLOVAXConfig",
        dims(
            32, 48, 3, 4, 2, rms_norm_eps=1e-5, rope_parameters=rope(20000.0),
            embedding_multiplier=3.0, logits_scaling=0.6, residual_multiplier=0.5,
            attention_multiplier=0.2, tie_word_embeddings=False,
        ),
        [dict(embedding_multiplier=1.0), dict(logits_scaling=1.0), without("post_norm1")],
        layout=wrapped(
            "model.language_model.model.", "model.language_model.lm_head.", hyperclovax_tower(32),
            hyperclovax_vision, of_tower,
        ),
        oracle="transformers HyperCLOVAXForCausalLM, inside of a multimodal checkpoint",
        head_std=0.8, shared="images",
    ),
    "exaone4_5": small(
        "Exaone4Config",
        dims(
            48, 64, 3, 3, 1, tie_word_embeddings=False, rms_norm_eps=1e-5, sliding_window=8,
            layer_types=[SLIDING, FULL, SLIDING], rope_parameters=rope(10000.0),
        ),
        [dict(sliding_window=7), swapped("q_norm", "k_norm"), dict(layer_types=[FULL] * 3)],
        layout=wrapped(
            "model.language_model.", "lm_head.", exaone4_5_tower(48), exaone4_5, of_tower
        ),
        oracle="transformers Exaone4ForCausalLM, inside of a multimodal checkpoint",
        shared="images",
    ),
    "qwen2_5_vl": qwen2(
        wrapped("model.", "lm_head.", qwen2_5_tower(48), qwen2_5_vl, of_tower), old_config=True
    ),
    "qwen2_vl": qwen2(
        wrapped("model.", "lm_head.", qwen2_tower(48), qwen2_vl, of_tower), old_config=True
    ),
    "qwen3_vl": small(
        "Qwen3Config",
        dims(32, 64, 3, 4, 2, head_dim=16, tie_word_embeddings=True,
             rope_parameters=rope(5000000.0)),
        [dict(rope_parameters=rope(10000.0)), without("k_norm")],
        layout=wrapped(
            "model.language_model.", "lm_head.", qwen3_tower(32, 5), qwen3_vl, of_tower
        ),
        oracle="transformers Qwen3ForCausalLM, inside of a multimodal checkpoint",
        shared="images", old_config=True,
    ),
    "qwen3_vl_moe": small(
        "Qwen3MoeConfig",
        dims(32, 48, 3, 4, 2, head_dim=16, tie_word_embeddings=False, num_experts=6,
             num_experts_per_tok=3, moe_intermediate_size=24, norm_topk_prob=True,
             mlp_only_layers=[1], rms_norm_eps=1e-6, rope_parameters=rope(5000000.0)),
        [dict(rope_parameters=rope(10000.0)), dict(norm_topk_prob=False), swapped_gate_and_up,
         dict(num_experts_per_tok=2), dict(num_experts_per_tok=4)],
        layout=with_turned_experts(
            wrapped("model.language_model.", "lm_head.", qwen3_tower(32, 5), qwen3_vl_moe, of_tower)
        ),
        oracle="transformers Qwen3MoeForCausalLM, inside of a multimodal checkpoint",
        shared="images", old_config=True,
    ),
}
