"""dots.ocr. Its text part is checked here; `generate_images.py` adds what the model makes of images,
by `dots_ocr_oracle.py`: transformers has no class of it."""

from ..family import Family, dims, rope, small
from ..layouts import of_tower, wrapped
from ..mistakes import swapped, zeroed
from .towers import IMAGE_TOKEN, INNER, PATCH, WIDTH

LAYERS, HEADS = 3, 3


def tower(vision: dict) -> dict[str, tuple[int, ...]]:
    """Tensors of a tower of this `vision_config`, by shape."""
    width, inner, patch = (vision[key] for key in ("embed_dim", "intermediate_size", "patch_size"))
    merged, hidden = vision["spatial_merge_size"] ** 2 * width, vision["hidden_size"]
    linears = {"merger.mlp.0": (merged, merged), "merger.mlp.2": (hidden, merged)}
    norms = ["patch_embed.patchifier.norm"] + ["post_trunk_norm"] * vision["post_norm"]
    plain = {"patch_embed.patchifier.proj.weight": (width, 3, patch, patch)}
    for block in (f"blocks.{index}." for index in range(vision["num_hidden_layers"])):
        norms += [f"{block}norm1", f"{block}norm2"]
        of_block = {
            f"{block}attn.qkv": (3 * width, width), f"{block}attn.proj": (width, width),
            f"{block}mlp.fc1": (inner, width), f"{block}mlp.fc2": (width, inner),
            f"{block}mlp.fc3": (inner, width),
        }
        if vision["use_bias"]:
            linears |= of_block
        else:
            plain |= {f"{name}.weight": shape for name, shape in of_block.items()}
    tensors = plain | {f"{norm}.weight": (width,) for norm in norms}
    tensors |= {f"merger.ln_q.{part}": (width,) for part in ("weight", "bias")}
    tensors |= {f"{name}.weight": shape for name, shape in linears.items()}
    tensors |= {f"{name}.bias": shape[:1] for name, shape in linears.items()}
    tensors["patch_embed.patchifier.proj.bias"] = (width,)
    return {f"vision_tower.{name}": shape for name, shape in tensors.items()}


VISION = dict(
    embed_dim=WIDTH, hidden_size=48, intermediate_size=INNER, num_hidden_layers=LAYERS,
    num_attention_heads=HEADS, num_channels=3, patch_size=PATCH, post_norm=True,
    rms_norm_eps=3e-4, spatial_merge_size=2, temporal_patch_size=1, use_bias=False,
    attn_implementation="flash_attention_2", init_merger_std=0.02, initializer_range=0.02,
    is_causal=False, gradient_checkpointing=False,
)


def dots_ocr(config: dict) -> dict:
    """As in dots.ocr's own files: the text's keys at the top."""
    return {
        **config, "architectures": ["DotsOCRForCausalLM"], "model_type": "dots_ocr",
        "attention_bias": True, "image_token_id": IMAGE_TOKEN, "video_token_id": 281,
        "vision_config": VISION,
    }


FAMILIES: dict[str, Family] = {
    "dots_ocr": small(
        "Qwen2Config",
        dims(48, 64, 2, 4, 2, rms_norm_eps=1e-6, tie_word_embeddings=False,
             rope_parameters=rope(1000000.0)),
        [dict(rope_parameters=rope(10000.0)), zeroed("q_proj.bias"),
         swapped("gate_proj", "up_proj")],
        layout=wrapped("model.", "lm_head.", tower(VISION), dots_ocr, of_tower),
        oracle="transformers Qwen2ForCausalLM, inside of a multimodal checkpoint",
        shared="images", old_config=True,
    ),
}
