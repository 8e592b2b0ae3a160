"""Aya Vision, and Command A Vision: SigLIP, and squares of patches through an MLP with a gate. Text parts are checked
here; `generate_images.py` adds what the multimodal class makes of images."""

from ..family import FULL, SLIDING, Family, dims, rope, small
from ..layouts import of_tower, wrapped
from ..mistakes import swapped
from .parallel import COMMAND_R7B
from .towers import INNER, PATCH, WIDTH, siglip

IMAGE = 301  # of tokenizer_kinds.shared_cohere_images
ALIGNED = 44


def tower(prefix: str, layers: int) -> dict[str, tuple[int, ...]]:
    return {
        name.replace("model.vision_model.", prefix): shape
        for name, shape in siglip(4, layers, 1, 1).items() if "connector" not in name
    }


def projector(prefix: str, hidden: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}linear_1.weight": (ALIGNED, 4 * WIDTH), f"{prefix}linear_1.bias": (ALIGNED,),
        f"{prefix}linear_2.weight": (hidden, ALIGNED // 2), f"{prefix}linear_2.bias": (hidden,),
    }


def aya_vision(config: dict) -> dict:
    """As in Aya Vision's own files."""
    text = {k: v for k, v in config.items() if k != "transformers_version"}
    return dict(
        adapter_layer_norm_eps=1e-6, alignment_intermediate_size=ALIGNED,
        architectures=["AyaVisionForConditionalGeneration"], downsample_factor=2,
        image_token_index=IMAGE, model_type="aya_vision", text_config=text,
        torch_dtype="float16", transformers_version="4.50.0.dev0",
        vision_config=dict(
            hidden_act="gelu_pytorch_tanh", hidden_size=WIDTH, image_size=32,
            intermediate_size=INNER, layer_norm_eps=1e-6, model_type="siglip_vision_model",
            num_attention_heads=3, num_channels=3, num_hidden_layers=3, patch_size=PATCH,
            torch_dtype="bfloat16", vision_use_head=False,
        ),
        vision_feature_layer=-1, vision_feature_select_strategy="full",
    )


def command_a_vision(config: dict) -> dict:
    """As transformers 4 has saved it."""
    text = {k: v for k, v in config.items() if k not in ("architectures", "transformers_version")}
    return dict(
        alignment_intermediate_size=ALIGNED,
        architectures=["Cohere2VisionForConditionalGeneration"], downsample_factor=2,
        dtype="bfloat16", image_token_id=IMAGE, model_type="cohere2_vision", text_config=text,
        transformers_version="4.55.0",
        vision_config=dict(
            attention_dropout=0.0, hidden_act="gelu_pytorch_tanh", hidden_size=WIDTH,
            image_size=32, intermediate_size=INNER, layer_norm_eps=1e-6,
            model_type="siglip_vision_model", num_attention_heads=3, num_channels=3,
            num_hidden_layers=2, patch_size=PATCH, torch_dtype="bfloat16",
        ),
    )


def with_end(prefix: str) -> dict[str, tuple[int, ...]]:
    """The norm behind the last layer, which is read here."""
    return {f"{prefix}post_layernorm.{part}": (WIDTH,) for part in ("weight", "bias")}


FAMILIES: dict[str, Family] = {
    "cohere2_vision": small(
        "Cohere2Config",
        dims(
            48, 64, 3, 3, 1, logit_scale=0.25, tie_word_embeddings=True, layer_norm_eps=1e-5,
            sliding_window=8, layer_types=[SLIDING, FULL, SLIDING], rope_parameters=rope(1e4),
        ),
        [dict(sliding_window=7)],
        layout=wrapped(
            "model.language_model.", "lm_head.",
            tower("model.vision_tower.vision_model.", 2)
            | with_end("model.vision_tower.vision_model.")
            | projector("model.multi_modal_projector.", 48),
            command_a_vision, of_tower,
        ),
        oracle="transformers Cohere2ForCausalLM, inside of a multimodal checkpoint",
        shared="cohere_images", final_norm_mean=14.0,
    ),
    "aya_vision": small(
        "Cohere2Config",
        dims(
            48, 64, 3, 3, 1, logit_scale=0.25, tie_word_embeddings=True, layer_norm_eps=1e-5,
            sliding_window=8, layer_types=[SLIDING, FULL, SLIDING], rope_parameters=rope(1e4),
        ),
        [dict(sliding_window=7), swapped("gate_proj", "up_proj")],
        layout=wrapped(
            "language_model.model.", "language_model.lm_head.",
            tower("vision_tower.vision_model.", 3) | projector("multi_modal_projector.", 48)
            | {
                "multi_modal_projector.layernorm.weight": (4 * WIDTH,),
                "multi_modal_projector.layernorm.bias": (4 * WIDTH,),
            },
            aya_vision, of_tower,
        ),
        oracle="transformers Cohere2ForCausalLM, inside of a multimodal checkpoint",
        shared="cohere_images", final_norm_mean=14.0, old_config=True,
        old_keys=COMMAND_R7B,
    ),
}
