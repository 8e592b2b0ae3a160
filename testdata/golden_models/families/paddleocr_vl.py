"""PaddleOCR-VL. Its text part is checked here; `generate_images.py` adds what the multimodal class
makes of images."""

from ..family import Family, dims, rope, small
from ..layouts import of_tower, wrapped
from ..mistakes import other_pairs, swapped
from .qwen_vision import HEADS, VISION_TOKENS
from .towers import INNER, PATCH, WIDTH, siglip

SIDE, LAYERS = 4, 3


def tower(hidden: int) -> dict[str, tuple[int, ...]]:
    """SigLIP's, with what published files have of it besides, and what makes tokens of squares."""
    prefix = "visual.vision_model."
    tensors = {
        name.replace("model.vision_model.", prefix): shape
        for name, shape in siglip(SIDE, LAYERS, 1, hidden).items() if "connector" not in name
    }
    merged = 4 * WIDTH
    return tensors | {
        f"{prefix}embeddings.packing_position_embedding.weight": (6, WIDTH),
        f"{prefix}head.probe": (1, 1, WIDTH),
        "mlp_AR.pre_norm.weight": (WIDTH,), "mlp_AR.pre_norm.bias": (WIDTH,),
        "mlp_AR.linear_1.weight": (merged, merged), "mlp_AR.linear_1.bias": (merged,),
        "mlp_AR.linear_2.weight": (hidden, merged), "mlp_AR.linear_2.bias": (hidden,),
    }


def paddleocr_vl(config: dict) -> dict:
    """As in PaddleOCR-VL's own files: the text's keys at the top."""
    left_out = ("attention_bias", "mlp_bias", "pretraining_tp")
    text = {key: value for key, value in config.items() if key not in left_out}
    return {
        **text, **VISION_TOKENS, "architectures": ["PaddleOCRVLForConditionalGeneration"],
        "model_type": "paddleocr_vl", "compression_ratio": 1.0, "ignored_index": -100,
        "rope_scaling": dict(mrope_section=[2, 3, 3], rope_type="default", type="default"),
        "rope_is_neox_style": True, "use_3d_rope": True, "use_bias": False,
        "use_flash_attention": False, "weight_share_add_bias": True,
        "vision_config": dict(
            attention_dropout=0.0, hidden_act="gelu_pytorch_tanh", hidden_size=WIDTH,
            image_size=SIDE * PATCH, intermediate_size=INNER, layer_norm_eps=1e-6,
            model_type="paddleocr_vl", num_attention_heads=HEADS, num_channels=3,
            num_hidden_layers=LAYERS, pad_token_id=0, patch_size=PATCH, spatial_merge_size=2,
            temporal_patch_size=2, tokens_per_second=2, torch_dtype="bfloat16",
        ),
    }


FAMILIES: dict[str, Family] = {
    "paddleocr_vl": small(
        "LlamaConfig",
        dims(48, 64, 2, 4, 2, head_dim=16, rms_norm_eps=1e-5, tie_word_embeddings=False,
             rope_parameters=rope(500000.0)),
        [dict(rope_parameters=rope(10000.0)), other_pairs(16, 16), swapped("gate_proj", "up_proj")],
        layout=wrapped("model.", "lm_head.", tower(48), paddleocr_vl, of_tower),
        oracle="transformers LlamaForCausalLM, inside of a multimodal checkpoint",
        shared="images", old_config=True,
    ),
}
