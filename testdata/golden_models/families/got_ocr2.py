"""GOT-OCR 2. Its text part is checked here; `generate_images.py` adds what the multimodal class makes
of images."""

import torch

from ..family import Family, dims, rope, small
from ..layouts import of_tower, wrapped
from ..mistakes import swapped, zeroed
from .towers import IMAGE_TOKEN, INNER, PATCH, WIDTH

HIDDEN, LAYERS, HEADS, GRID, WINDOW, CHANNELS, WHOLE = 48, 3, 3, 8, 3, 12, [1]


def tower() -> dict[str, tuple[int, ...]]:
    tensors = {
        "pos_embed": (1, GRID, GRID, WIDTH),
        "patch_embed.projection.weight": (WIDTH, 3, PATCH, PATCH),
        "patch_embed.projection.bias": (WIDTH,),
        "neck.conv1.weight": (CHANNELS, WIDTH, 1, 1),
        "neck.conv2.weight": (CHANNELS, CHANNELS, 3, 3),
    }
    norms = {"neck.layer_norm1": CHANNELS, "neck.layer_norm2": CHANNELS}
    for index in range(LAYERS):
        layer, side = f"layers.{index}.", GRID if index in WHOLE else WINDOW
        norms |= {f"{layer}layer_norm1": WIDTH, f"{layer}layer_norm2": WIDTH}
        for name, shape in {
            "attn.qkv": (3 * WIDTH, WIDTH), "attn.proj": (WIDTH, WIDTH),
            "mlp.lin1": (INNER, WIDTH), "mlp.lin2": (WIDTH, INNER),
        }.items():
            tensors[f"{layer}{name}.weight"] = shape
            tensors[f"{layer}{name}.bias"] = shape[:1]
        for axis in "hw":
            tensors[f"{layer}attn.rel_pos_{axis}"] = (2 * side - 1, WIDTH // HEADS)
    for name, width in norms.items():
        tensors[f"{name}.weight"] = tensors[f"{name}.bias"] = (width,)
    projector = {
        "conv_upsampler1.weight": (2 * CHANNELS, CHANNELS, 3, 3),
        "conv_upsampler2.weight": (HIDDEN, 2 * CHANNELS, 3, 3),
        "multimodal_projector.weight": (HIDDEN, HIDDEN), "multimodal_projector.bias": (HIDDEN,),
    }
    return {f"vision_tower.{name}": shape for name, shape in tensors.items()} | {
        f"multi_modal_projector.{name}": shape for name, shape in projector.items()
    }


def values(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    # Learned places and distances are as large as what they are added to.
    made = of_tower(name, shape)
    return made / made.std() * 0.7 if "pos" in name else made


def got_ocr2(config: dict) -> dict:
    """As in GOT-OCR-2.0-hf."""
    text = {key: value for key, value in config.items() if key != "architectures"}
    return dict(
        architectures=["GotOcr2ForConditionalGeneration"], image_seq_length=576,
        image_token_index=IMAGE_TOKEN, model_type="got_ocr2", text_config=text,
        torch_dtype="bfloat16", transformers_version=config["transformers_version"],
        vision_config=dict(
            attention_dropout=0.0, global_attn_indexes=WHOLE, hidden_act="gelu", hidden_size=WIDTH,
            image_size=GRID * PATCH, initializer_range=1e-10, layer_norm_eps=3e-4, mlp_dim=INNER,
            model_type="got_ocr2_vision", num_attention_heads=HEADS, num_channels=3,
            num_hidden_layers=LAYERS, output_channels=CHANNELS, patch_size=PATCH, qkv_bias=True,
            use_abs_pos=True, use_rel_pos=True, window_size=WINDOW,
        ),
    )


FAMILIES: dict[str, Family] = {
    "got_ocr2": small(
        "Qwen2Config",
        dims(HIDDEN, 64, 2, 4, 4, rms_norm_eps=1e-6, tie_word_embeddings=True,
             rope_parameters=rope(1000000.0)),
        [dict(rope_parameters=rope(10000.0)), zeroed("q_proj.bias"),
         swapped("gate_proj", "up_proj")],
        layout=wrapped(
            "language_model.model.", "language_model.lm_head.", tower(), got_ocr2, values
        ),
        oracle="transformers Qwen2ForCausalLM, inside of a multimodal checkpoint",
        shared="images", old_config=True,
    ),
}
