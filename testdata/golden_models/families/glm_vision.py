"""GLM's models that see images. Their text parts are checked here; `generate_images.py` adds what
the multimodal class makes of images."""

from ..family import Family, dims, rope, small
from ..layouts import of_tower, with_experts_one_by_one, wrapped
from ..mistakes import other_pairs, swapped, without
from ..routing import biased_weights, swapped_gate_and_up, unbiased
from .qwen_vision import DEPTH, HEADS
from .towers import IMAGE_TOKEN, INNER, PATCH, WIDTH

SIDE = 5


def tower(hidden: int) -> dict[str, tuple[int, ...]]:
    """Tensors of GLM-4.1V's tower."""
    shapes = {
        "patch_embed.proj.weight": (WIDTH, 3, 2, PATCH, PATCH), "patch_embed.proj.bias": (WIDTH,),
        "post_conv_layernorm.weight": (WIDTH,), "post_layernorm.weight": (WIDTH,),
        "embeddings.position_embedding.weight": (SIDE * SIDE, WIDTH),
        "downsample.weight": (hidden, WIDTH, 2, 2), "downsample.bias": (hidden,),
        "merger.proj.weight": (hidden, hidden), "merger.down_proj.weight": (hidden, INNER),
        "merger.gate_proj.weight": (INNER, hidden), "merger.up_proj.weight": (INNER, hidden),
        "merger.post_projection_norm.weight": (hidden,),
        "merger.post_projection_norm.bias": (hidden,),
    }
    for block in (f"blocks.{index}." for index in range(DEPTH)):
        shapes |= {
            f"{block}norm1.weight": (WIDTH,), f"{block}norm2.weight": (WIDTH,),
            f"{block}attn.qkv.weight": (3 * WIDTH, WIDTH),
            f"{block}attn.proj.weight": (WIDTH, WIDTH),
            f"{block}mlp.gate_proj.weight": (hidden, WIDTH),
            f"{block}mlp.up_proj.weight": (hidden, WIDTH),
            f"{block}mlp.down_proj.weight": (WIDTH, hidden),
        }
    return {f"model.visual.{name}": shape for name, shape in shapes.items()}


def glm4v(config: dict) -> dict:
    """As in GLM-4.1V's own files."""
    left_out = ("architectures", "head_dim", "tie_word_embeddings", "transformers_version")
    text = {key: value for key, value in config.items() if key not in left_out}
    text["model_type"] = "glm4v_text"
    text["rope_scaling"] = dict(rope_type="default", mrope_section=[2, 1, 1])
    return dict(
        architectures=["Glm4vForConditionalGeneration"], model_type="glm4v",
        image_start_token_id=280, image_end_token_id=281, video_start_token_id=282,
        video_end_token_id=283, image_token_id=IMAGE_TOKEN, video_token_id=284,
        text_config=text, tie_word_embeddings=False, transformers_version="4.57.1",
        vision_config=dict(
            attention_bias=False, attention_dropout=0.0, depth=DEPTH, hidden_act="silu",
            hidden_dropout_prob=0.0, hidden_size=WIDTH, image_size=SIDE * PATCH, in_channels=3,
            initializer_range=0.02, intermediate_size=INNER, model_type="glm4v_vision",
            num_heads=HEADS, out_hidden_size=config["hidden_size"], patch_size=PATCH,
            rms_norm_eps=1e-5, spatial_merge_size=2, temporal_patch_size=2,
        ),
    )


def glm4v_moe(config: dict) -> dict:
    """As in GLM-4.5V's own files."""
    out = glm4v(config)
    text = out["text_config"]
    text["model_type"], text["head_dim"] = "glm4v_moe_text", config["head_dim"]
    vision = dict(out["vision_config"], model_type="glm4v_moe_vision")
    del vision["hidden_dropout_prob"]
    return {
        **out, "architectures": ["Glm4vMoeForConditionalGeneration"], "model_type": "glm4v_moe",
        "vision_config": vision,
    }


def ocr_tower(hidden: int) -> dict[str, tuple[int, ...]]:
    """Tensors of GLM-OCR's: biases, norms of q and k, no learned positions. And one of a layer that
    predicts a further token."""
    left_out = ("post_conv", "embeddings", "mlp", "merger.down", "merger.gate", "merger.up")
    shapes = {
        name: shape for name, shape in tower(hidden).items()
        if not any(f".{part}" in name for part in left_out)
    }
    visual, inner = "model.visual.", 3 * hidden
    shapes |= {
        "model.language_model.layers.2.eh_proj.weight": (hidden, 2 * hidden),
        f"{visual}merger.down_proj.weight": (hidden, inner),
        f"{visual}merger.gate_proj.weight": (inner, hidden),
        f"{visual}merger.up_proj.weight": (inner, hidden),
    }
    for block in (f"{visual}blocks.{index}." for index in range(DEPTH)):
        shapes |= {
            f"{block}attn.qkv.bias": (3 * WIDTH,), f"{block}attn.proj.bias": (WIDTH,),
            f"{block}attn.q_norm.weight": (WIDTH // HEADS,),
            f"{block}attn.k_norm.weight": (WIDTH // HEADS,),
        }
        for part, shape in {
            "gate_proj": (INNER, WIDTH), "up_proj": (INNER, WIDTH), "down_proj": (WIDTH, INNER),
        }.items():
            shapes[f"{block}mlp.{part}.weight"] = shape
            shapes[f"{block}mlp.{part}.bias"] = shape[:1]
    return shapes


def glm_ocr(config: dict) -> dict:
    """As in GLM-OCR's own files, which transformers 5 wrote."""
    left_out = ("architectures", "tie_word_embeddings", "transformers_version")
    text = {key: value for key, value in config.items() if key not in left_out}
    text["model_type"], text["num_nextn_predict_layers"] = "glm_ocr_text", 1
    text["rope_parameters"] = dict(
        rope_type="default", rope_theta=10000.0, partial_rotary_factor=1.0, mrope_section=[4, 2, 2]
    )
    out = glm4v(config)
    vision = dict(out["vision_config"], attention_bias=True, model_type="glm_ocr_vision")
    return {
        **out, "architectures": ["GlmOcrForConditionalGeneration"], "model_type": "glm_ocr",
        "text_config": text, "vision_config": vision, "transformers_version": "5.0.1dev0",
    }


def glm46v(config: dict) -> dict:
    """GLM-4.1V in the class that transformers has for GLM-4.6V."""
    return {
        **glm4v(config), "architectures": ["Glm46VForConditionalGeneration"],
        "model_type": "glm46v",
    }


ROPE = rope(10000.0, partial_rotary_factor=0.5)
FAMILIES: dict[str, Family] = {
    "glm46v": small(
        "Glm4Config",
        dims(32, 48, 2, 2, 1, head_dim=16, attention_bias=True, tie_word_embeddings=False,
             rms_norm_eps=1e-5, rope_parameters=ROPE),
        [other_pairs(16, 8), without("post_mlp_layernorm")],
        layout=wrapped("model.language_model.", "lm_head.", tower(32), glm46v, of_tower),
        oracle="transformers Glm4ForCausalLM, inside of a multimodal checkpoint",
        shared="images", old_config=True,
    ),
    "glm_ocr": small(
        "Glm4Config",
        dims(32, 48, 2, 4, 2, head_dim=16, attention_bias=False, tie_word_embeddings=False,
             rms_norm_eps=1e-5, rope_parameters=rope(10000.0, partial_rotary_factor=1.0)),
        [other_pairs(16, 16), dict(rope_parameters=ROPE),
         swapped("post_self_attn_layernorm", "post_mlp_layernorm")],
        layout=wrapped("model.language_model.", "lm_head.", ocr_tower(32), glm_ocr, of_tower),
        oracle="transformers Glm4ForCausalLM, inside of a multimodal checkpoint",
        shared="images",
    ),
    "glm4v": small(
        "Glm4Config",
        dims(48, 64, 2, 3, 1, head_dim=16, attention_bias=True, tie_word_embeddings=False,
             rms_norm_eps=1e-5, rope_parameters=ROPE),
        [other_pairs(16, 8), swapped("post_self_attn_layernorm", "post_mlp_layernorm"),
         without("post_mlp_layernorm")],
        layout=wrapped("model.language_model.", "lm_head.", tower(48), glm4v, of_tower),
        oracle="transformers Glm4ForCausalLM, inside of a multimodal checkpoint",
        shared="images", old_config=True,
    ),
    "glm4v_moe": small(
        "Glm4MoeConfig",
        dims(32, 48, 3, 4, 2, head_dim=16, n_routed_experts=8, num_experts_per_tok=2,
             moe_intermediate_size=16, n_shared_experts=1, n_group=1, topk_group=1,
             routed_scaling_factor=1.0, first_k_dense_replace=1, norm_topk_prob=True,
             use_qk_norm=False, attention_bias=True, rms_norm_eps=1e-5, rope_parameters=ROPE),
        [unbiased, biased_weights, dict(norm_topk_prob=False), other_pairs(16, 8),
         swapped_gate_and_up],
        layout=with_experts_one_by_one(
            wrapped("model.language_model.", "lm_head.", tower(32), glm4v_moe, of_tower)
        ),
        oracle="transformers Glm4MoeForCausalLM, inside of a multimodal checkpoint",
        shared="images", old_config=True,
    ),
}
