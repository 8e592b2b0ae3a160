"""Ovis 2. Its text part is checked here; `generate_images.py` adds what the multimodal class makes
of images."""

from ..family import Family, dims, rope, small
from ..layouts import of_tower, wrapped
from ..mistakes import swapped
from .towers import INNER, PATCH, WIDTH

# Of tokenizer_kinds.shared_ovis2_images: what stands for a word of an image, and marks.
ATOM = 290
MARKS = list(range(ATOM + 1, ATOM + 6))
WORDS, SIDE, STRIDE = 45, 4, 2


def tower(hidden: int) -> dict[str, tuple[int, ...]]:
    vision = "model.vision_tower."
    inner = f"{vision}transformer."
    tensors = {
        f"{inner}embeddings.patch_embedding.weight": (WIDTH, 3, PATCH, PATCH),
        f"{inner}embeddings.patch_embedding.bias": (WIDTH,),
        f"{inner}embeddings.position_embedding.weight": (SIDE * SIDE, WIDTH),
        f"{inner}embeddings.rms_norm.weight": (WIDTH,), f"{inner}rms_norm.weight": (WIDTH,),
        f"{vision}head_linear.weight": (WORDS - 5, WIDTH * STRIDE * STRIDE),
        f"{vision}head_norm.weight": (WORDS - 5,), f"{vision}head_norm.bias": (WORDS - 5,),
        "model.visual_embeddings_table.weight": (WORDS, hidden),
    }
    for layer in (f"{inner}encoder.layers.{index}." for index in range(3)):
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            tensors[f"{layer}attention.{part}.weight"] = (WIDTH, WIDTH)
            tensors[f"{layer}attention.{part}.bias"] = (WIDTH,)
        for part, shape in (("gate_proj", (INNER, WIDTH)), ("up_proj", (INNER, WIDTH)),
                            ("down_proj", (WIDTH, INNER))):
            tensors[f"{layer}ffn.{part}.weight"] = shape
        for part in ("rms_norm1", "rms_norm2"):
            tensors[f"{layer}{part}.weight"] = (WIDTH,)
    return tensors


def saved(config: dict) -> dict:
    """As transformers writes it."""
    text = {k: v for k, v in config.items() if k not in ("architectures", "transformers_version")}
    return dict(
        architectures=["Ovis2ForConditionalGeneration"], dtype="bfloat16",
        hidden_size=text["hidden_size"], image_token_id=ATOM, model_type="ovis2",
        text_config=text, tie_word_embeddings=True, transformers_version="4.55.0",
        vision_config=dict(
            attention_dropout=0.0, hidden_act="silu", hidden_size=WIDTH, hidden_stride=STRIDE,
            image_size=SIDE * PATCH, initializer_range=0.02, intermediate_size=INNER,
            mlp_bias=False, model_type="ovis2_vision", num_attention_heads=3, num_channels=3,
            num_hidden_layers=3, num_visual_indicator_tokens=5, patch_size=PATCH, qkv_bias=True,
            rms_norm_eps=1e-4, tokenize_function="softmax", vocab_size=WORDS,
        ),
        visual_indicator_token_ids=MARKS, vocab_size=text["vocab_size"],
    )


FAMILIES: dict[str, Family] = {
    "ovis2": small(
        "Qwen2Config",
        dims(32, 48, 2, 4, 2, tie_word_embeddings=True, rms_norm_eps=1e-6,
             rope_parameters=rope(1000000.0)),
        [dict(rope_parameters=rope(10000.0)), swapped("gate_proj", "up_proj")],
        layout=wrapped("model.language_model.", "lm_head.", tower(32), saved, of_tower),
        oracle="transformers Qwen2ForCausalLM, inside of a multimodal checkpoint",
        shared="ovis2_images",
    ),
}
