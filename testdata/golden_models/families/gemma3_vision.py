"""Gemma 3 with a tower of SigLIP's shape. Its text part is checked here; `generate_images.py` adds
what the multimodal class makes of images."""

from ..family import FULL, SLIDING, Family, dims, rope, small
from ..layouts import of_tower, wrapped
from ..mistakes import without
from .towers import INNER, PATCH, WIDTH, siglip

START, END, SOFT = 288, 289, 290  # of tokenizer_kinds.shared_gemma_images
HIDDEN = 32


def tower(vision: str, projector: str, side: int, layers: int) -> dict[str, tuple[int, ...]]:
    tensors = {
        name.replace("model.vision_model.", vision): shape
        for name, shape in siglip(side, layers, 1, 1).items() if "connector" not in name
    }
    return tensors | {
        f"{projector}mm_input_projection_weight": (WIDTH, HIDDEN),
        f"{projector}mm_soft_emb_norm.weight": (WIDTH,),
    }


def vision_config(image_size: int, layers: int, **more) -> dict:
    return dict(
        hidden_size=WIDTH, image_size=image_size, intermediate_size=INNER,
        model_type="siglip_vision_model", num_attention_heads=3, num_hidden_layers=layers,
        patch_size=PATCH, **more,
    )


def published(config: dict) -> dict:
    """Only what differs from the defaults, as in Gemma 3's own files. Its images have more tokens
    than a window, each made of four patches."""
    keys = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "sliding_window", "vocab_size",
        "max_position_embeddings",
    )
    text = {key: config[key] for key in keys}
    text |= dict(model_type="gemma3_text", rope_scaling=dict(factor=8.0, rope_type="linear"))
    return dict(
        architectures=["Gemma3ForConditionalGeneration"], boi_token_index=START,
        eoi_token_index=END, eos_token_id=[config["eos_token_id"]], image_token_index=SOFT,
        initializer_range=0.02, mm_tokens_per_image=9, model_type="gemma3", text_config=text,
        torch_dtype="bfloat16", transformers_version="4.50.0.dev0",
        vision_config=vision_config(48, 2, vision_use_head=False),
    )


def saved(config: dict) -> dict:
    """As transformers 5 writes it; patches are tokens."""
    text = {k: v for k, v in config.items() if k != "architectures"}
    return dict(
        architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3", dtype="bfloat16",
        boi_token_index=START, eoi_token_index=END, image_token_index=SOFT,
        initializer_range=0.02, mm_tokens_per_image=16, tie_word_embeddings=True,
        text_config=text, transformers_version=config["transformers_version"],
        vision_config=vision_config(
            32, 3, attention_dropout=0.0, hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-5,
            num_channels=3, vision_use_head=False,
        ),
    )


def gemma3(layout) -> Family:
    """The defaults of Gemma 3 wherever a tiny model can have them: the published file leaves
    them out."""
    return small(
        "Gemma3TextConfig",
        dims(
            HIDDEN, 32, 6, 4, 1, head_dim=16, sliding_window=8, query_pre_attn_scalar=256,
            layer_types=[SLIDING] * 5 + [FULL], hidden_activation="gelu_pytorch_tanh",
            tie_word_embeddings=True,
            rope_parameters={FULL: rope(1000000.0, "linear", factor=8.0), SLIDING: rope(10000.0)},
        ),
        [
            dict(sliding_window=7), dict(sliding_window=9), dict(layer_types=[SLIDING] * 6),
            dict(query_pre_attn_scalar=16), without("q_norm"),
            dict(rope_parameters={FULL: rope(1000000.0), SLIDING: rope(10000.0)}),
        ],
        norm_mean=0.0, post_norm_mean=2.0, final_norm_mean=4.0, head_std=0.1, layout=layout,
        oracle="transformers Gemma3ForCausalLM, inside of a multimodal checkpoint",
        shared="gemma_images",
    )


FAMILIES: dict[str, Family] = {
    "gemma3_multimodal": gemma3(
        wrapped(
            "model.language_model.", "lm_head.",
            tower("model.vision_tower.", "model.multi_modal_projector.", 4, 3), saved, of_tower,
        )
    ),
    "gemma3_published": gemma3(
        wrapped(
            "language_model.model.", "language_model.lm_head.",
            tower("vision_tower.vision_model.", "multi_modal_projector.", 6, 2), published,
            of_tower,
        )
    ),
}
