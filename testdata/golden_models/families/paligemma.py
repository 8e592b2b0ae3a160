"""PaliGemma 1 and 2. Their text parts are checked here; `generate_images.py` adds what the
multimodal class makes of images."""

from ..family import FULL, SLIDING, Family, dims, rope, small
from ..layouts import of_tower, wrapped
from ..mistakes import activation, added
from .gemma3_vision import vision_config
from .towers import IMAGE_TOKEN, WIDTH, siglip

HIDDEN = 32


def tower(vision: str, projector: str, side: int, layers: int) -> dict[str, tuple[int, ...]]:
    tensors = {
        name.replace("model.vision_model.", vision): shape
        for name, shape in siglip(side, layers, 1, 1).items() if "connector" not in name
    }
    return tensors | {
        f"{projector}linear.weight": (HIDDEN, WIDTH), f"{projector}linear.bias": (HIDDEN,),
    }


def published(config: dict) -> dict:
    """Only what differs from the defaults, as in PaliGemma's own files."""
    keys = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings", "vocab_size",
    )
    text = {key: config[key] for key in keys}
    text |= dict(model_type="gemma", num_image_tokens=16, torch_dtype="bfloat16")
    return dict(
        _vocab_size=290, architectures=["PaliGemmaForConditionalGeneration"], bos_token_id=287,
        eos_token_id=288, hidden_size=HIDDEN, ignore_index=-100, image_token_index=IMAGE_TOKEN,
        model_type="paligemma", pad_token_id=0, projection_dim=HIDDEN, text_config=text,
        torch_dtype="bfloat16", transformers_version="4.41.0.dev0", vocab_size=config["vocab_size"],
        vision_config=vision_config(
            32, 2, num_image_tokens=16, projection_dim=HIDDEN, projector_hidden_act="gelu_fast",
            vision_use_head=False,
        ),
    )


def saved(config: dict) -> dict:
    """As transformers 5 writes it. Its images have more tokens than a window."""
    text = {key: value for key, value in config.items() if key != "architectures"}
    text |= dict(num_image_tokens=25, use_bidirectional_attention=True)
    return dict(
        architectures=["PaliGemmaForConditionalGeneration"], dtype="bfloat16", hidden_size=2048,
        image_token_index=IMAGE_TOKEN, model_type="paligemma", projection_dim=HIDDEN,
        text_config=text, tie_word_embeddings=True, vocab_size=257152,
        transformers_version=config["transformers_version"],
        vision_config=vision_config(
            40, 3, attention_dropout=0.0, hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-5,
            num_channels=3, projection_dim=HIDDEN, vision_use_head=False,
        ),
    )


FAMILIES: dict[str, Family] = {
    "paligemma": small(
        "GemmaConfig",
        dims(
            HIDDEN, 64, 3, 4, 1, head_dim=16, tie_word_embeddings=True, rms_norm_eps=1e-6,
            hidden_act="gelu_pytorch_tanh", rope_parameters=rope(10000.0),
        ),
        [activation("gelu"), added("norm", 1.0), added("layernorm", -1.0)],
        norm_mean=0.0, final_norm_mean=2.5, shared="paligemma_images",
        layout=wrapped(
            "language_model.model.", "language_model.lm_head.",
            tower("vision_tower.vision_model.", "multi_modal_projector.", 4, 2), published,
            of_tower,
        ),
        oracle="transformers GemmaForCausalLM, inside of a multimodal checkpoint",
    ),
    "paligemma2": small(
        "Gemma2Config",
        dims(
            HIDDEN, 48, 4, 4, 2, head_dim=16, sliding_window=8, query_pre_attn_scalar=24,
            attn_logit_softcapping=5.0, final_logit_softcapping=8.0,
            hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True,
            layer_types=[SLIDING, FULL] * 2, rope_parameters=rope(10000.0),
        ),
        [
            dict(sliding_window=7), dict(sliding_window=9), dict(query_pre_attn_scalar=16),
            dict(attn_logit_softcapping=None), dict(final_logit_softcapping=None),
        ],
        norm_mean=0.0, post_norm_mean=2.0, final_norm_mean=4.0, head_std=0.1,
        shared="paligemma_images",
        layout=wrapped(
            "model.language_model.", "lm_head.",
            tower("model.vision_tower.", "model.multi_modal_projector.", 5, 3), saved, of_tower,
        ),
        oracle="transformers Gemma2ForCausalLM, inside of a multimodal checkpoint",
    ),
}
