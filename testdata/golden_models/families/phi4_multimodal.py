"""Phi-4-multimodal, as transformers saves it and as its own code has it. Its text is checked here;
`generate_images.py` adds what it makes of images."""

from ..family import Family, Layout, dims, rope, small
from ..layouts import of_tower
from ..mistakes import rows_swapped, zeroed
from .phi3 import SMALL_LONGROPE, old_scaling
from .towers import IMAGE_TOKEN, INNER, PATCH, WIDTH

# Pixels of a tile: 6 x 6 patches, which become 3 x 3 tokens.
TILE = 48


AUDIO = dict(
    audio_token_id=1, bias_max_distance=4, depthwise_separable_out_channel=8,
    ext_pw_out_channel=8, hidden_size=8, input_size=8, intermediate_size=8,
    nemo_conv_channels=4, num_attention_heads=2, num_blocks=1, time_reduction=2,
)


def parts(
    text: dict, feature_layer: int, num_layers: int, image_token: int = IMAGE_TOKEN, eos: int = 288
) -> dict:
    return text | dict(
        bos_token_id=None, pad_token_id=None, eos_token_id=eos,
        vision_config=dict(
            crop_size=TILE, feature_layer=feature_layer, hidden_size=WIDTH,
            image_size=TILE, image_token_id=image_token, intermediate_size=INNER,
            layer_norm_eps=1e-5, num_attention_heads=3, num_hidden_layers=num_layers,
            patch_size=PATCH,
        ),
        audio_config=AUDIO,
    )


# Of tokenizer_kinds.shared_phi4_images: the token that stands for one of an image's, and EOS.
OWN_TOKEN, OWN_EOS = 288, 287
# Parts of a layer that have adapters within the files.
ADAPTED = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
IMAGES = "model.embed_tokens_extend.image_embed."
# Names in transformers, and in the own code.
NAMES = [
    (f"{IMAGES}img_projection_up.", f"{IMAGES}img_projection.0."),
    (f"{IMAGES}img_projection_down.", f"{IMAGES}img_projection.2."),
    (f"{IMAGES}global_img_feature_extensor", f"{IMAGES}glb_GN"),
    (f"{IMAGES}sub_img_feature_extensor", f"{IMAGES}sub_GN"),
]


def own_config(config: dict) -> dict:
    """As in the files of its own code, which has the sizes of the tower. Here a key has them."""
    vision = dict(config.pop("vision_config"))
    config.pop("audio_config")
    for key in ("crop_size", "feature_layer", "image_token_id", "model_type", "dtype"):
        vision.pop(key, None)
    lora = dict(dp=0.0, layer="layers.*((self_attn\\.(qkv_proj|o_proj))|(mlp\\.(gate_up|down)_proj))")
    return config | dict(
        architectures=["Phi4MMForCausalLM"], audio_processor=dict(config=dict(num_blocks=1), name="cascades"),
        auto_map=dict(AutoConfig="configuration_phi4mm.Phi4MMConfig"), embd_layer=dict(
            audio_embd_layer=dict(
                compression_rate=8, downsample_rate=1, embedding_cls="audio",
                enable_gradient_checkpointing=True, projection_cls="mlp",
                use_conv_downsample=False, use_qformer=False,
            ),
            embedding_cls="image_audio",
            image_embd_layer=dict(
                crop_size=TILE, embedding_cls="tune_image", enable_gradient_checkpointing=True,
                hd_transform_order="sub_glb", image_token_compression_cls="avg_pool_2d",
                projection_cls="mlp", use_hd_transform=True, with_learnable_separator=True,
            ),
        ),
        full_attn_mod=1, img_processor=None, interpolate_factor=1, lm_head_bias=False, mlp_bias=False, model_type="phi4mm",
        speech_lora=dict(lora, lora_alpha=4, r=2), vision_config=vision,
        vision_lora=dict(lora, lora_alpha=4, r=2),
    )


def of_transformers(config: dict) -> dict:
    """The same in the words of transformers."""
    dropped = ("audio_processor", "embd_layer", "img_processor", "speech_lora", "vision_lora", "auto_map")
    own = {key: value for key, value in config.items() if key not in dropped}
    vision = dict(config["vision_config"], crop_size=TILE, feature_layer=-2, image_token_id=OWN_TOKEN)
    return own | dict(
        architectures=["Phi4MultimodalForCausalLM"], model_type="phi4_multimodal",
        vision_config=vision, audio_config=AUDIO,
    )


def published(tensors: dict) -> dict:
    """Names of the own code, and its adapters."""
    out = {}
    for name, tensor in tensors.items():
        for old, new in NAMES:
            name = name.replace(old, new)
        module = name.removesuffix(".weight")
        if not (name.startswith("model.layers.") and module.endswith(ADAPTED)):
            out[name] = tensor
        else:
            out[f"{module}.base_layer.weight"] = tensor
            for kind in ("vision", "speech"):
                for part, shape in (("A", (2, tensor.shape[1])), ("B", (tensor.shape[0], 2))):
                    lora = f"{module}.lora_{part}.{kind}.weight"
                    out[lora] = of_tower(lora, shape).bfloat16()
    return out


def restored(tensors: dict) -> dict:
    """Names of transformers again."""
    out = {}
    for name, tensor in tensors.items():
        if ".lora_" not in name:
            for old, new in NAMES:
                name = name.replace(new, old)
            out[name.replace(".base_layer.", ".")] = tensor
    return out


FAMILIES: dict[str, Family] = {
    "phi4_multimodal": small(
        "Phi4MultimodalConfig",
        parts(
            dims(
                32, 48, 2, 2, 1, tie_word_embeddings=True, rms_norm_eps=1e-4,
                original_max_position_embeddings=256, rope_parameters=SMALL_LONGROPE,
            ),
            -2, 3,
        ),
        [
            dict(rope_parameters=rope(10000.0, partial_rotary_factor=0.75)),
            dict(rope_parameters=rope(10000.0, partial_rotary_factor=1.0)),
            rows_swapped("gate_up_proj.weight", [48, 48]), zeroed("post_attention_layernorm"),
        ],
        shared="images",
    ),
    "phi4_multimodal_untied": small(
        "Phi4MultimodalConfig",
        parts(
            dims(
                24, 36, 2, 3, 3, tie_word_embeddings=False, rms_norm_eps=1e-5, sliding_window=20,
                original_max_position_embeddings=256,
                rope_parameters=rope(1000.0, partial_rotary_factor=1.0),
            ),
            1, 2,
        ),
        [dict(sliding_window=19), dict(sliding_window=21), rows_swapped("qkv_proj.weight", [24, 24])],
        shared="images",
    ),
    "phi4mm": small(
        "Phi4MultimodalConfig",
        parts(
            dims(
                32, 36, 2, 2, 1, tie_word_embeddings=True, rms_norm_eps=1e-5, sliding_window=512,
                original_max_position_embeddings=256, rope_parameters=SMALL_LONGROPE,
            ),
            -2, 2, OWN_TOKEN, OWN_EOS,
        ),
        [
            dict(rope_parameters=rope(10000.0, partial_rotary_factor=1.0)),
            rows_swapped("gate_up_proj.weight", [36, 36]),
        ],
        shared="phi4_images", layout=Layout(own_config, published, restored), old_config=True,
        old_keys=old_scaling(SMALL_LONGROPE),
    ),
}
