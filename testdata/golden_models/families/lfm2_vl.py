"""LFM2-VL. Its text part is checked here; `generate_images.py` adds what the multimodal class makes
of images."""

from ..family import Family, rope, small
from ..layouts import of_tower, wrapped
from ..mistakes import swapped, without
from .recurrent import CONV, lfm2, oldest_tap_lost
from .towers import IMAGE_TOKEN, INNER, PATCH, WIDTH, siglip

SIDE, PROJECTOR = 5, 36


def tower(hidden: int) -> dict[str, tuple[int, ...]]:
    vision, projector = "model.vision_tower.vision_model.", "model.multi_modal_projector."
    tensors = {
        name.replace("model.vision_model.", vision): shape
        for name, shape in siglip(SIDE, 3, 1, 1).items() if "connector" not in name
    }
    return tensors | {
        f"{vision}embeddings.patch_embedding.weight": (WIDTH, PATCH * PATCH * 3),
        f"{projector}layer_norm.weight": (4 * WIDTH,), f"{projector}layer_norm.bias": (4 * WIDTH,),
        f"{projector}linear_1.weight": (PROJECTOR, 4 * WIDTH),
        f"{projector}linear_1.bias": (PROJECTOR,),
        f"{projector}linear_2.weight": (hidden, PROJECTOR),
        f"{projector}linear_2.bias": (hidden,),
    }


def published(config: dict) -> dict:
    """As in LFM2-VL's own files."""
    text = {
        key: value for key, value in config.items()
        if key not in ("architectures", "transformers_version")
    }
    return dict(
        architectures=["Lfm2VlForConditionalGeneration"], do_image_splitting=True,
        downsample_factor=2, encoder_patch_size=PATCH, image_token_id=IMAGE_TOKEN,
        max_image_tokens=6, max_num_patches=24, max_pixels_tolerance=2.0, max_tiles=4,
        min_image_tokens=2, min_tiles=2, model_type="lfm2_vl", projector_bias=True,
        projector_hidden_act="gelu", projector_hidden_size=PROJECTOR, text_config=text,
        tile_size=32, torch_dtype="bfloat16", transformers_version="4.57.0.dev0",
        use_image_special_tokens=True, use_thumbnail=True, vision_feature_layer=-1,
        vision_config=dict(
            attention_dropout=0.0, hidden_act="gelu_pytorch_tanh", hidden_size=WIDTH,
            intermediate_size=INNER, layer_norm_eps=1e-6, model_type="siglip2_vision_model",
            num_attention_heads=3, num_channels=3, num_hidden_layers=3, num_patches=SIDE * SIDE,
            patch_size=PATCH, torch_dtype="bfloat16", vision_use_head=False,
        ),
    )


FAMILIES: dict[str, Family] = {
    "lfm2_vl": small(
        "Lfm2Config", lfm2(conv_L_cache=3, layer_types=[CONV, "full_attention", CONV, CONV]),
        [
            oldest_tap_lost, without("q_layernorm"), swapped("w1.weight", "w3.weight"),
            dict(rope_parameters=rope(1000000.0)),
        ],
        layout=wrapped("model.language_model.", "lm_head.", tower(48), published, of_tower),
        oracle="transformers Lfm2ForCausalLM, inside of a multimodal checkpoint",
        shared="lfm2_images", old_config=True, old_keys=dict(full_attn_idxs=[1]),
    ),
}
