"""InternVL. Its text parts are checked here; `generate_images.py` adds what the multimodal class
makes of images."""

from ..family import Family, dims, rope, small
from ..layouts import of_tower, wrapped
from ..mistakes import swapped, without, zeroed
from .towers import INNER, PATCH, WIDTH

IMAGE_TOKEN = 290  # of tokenizer_kinds.shared_internvl_images
LAYERS = 3


def tower(
    vision: str, projector: str, sizes: tuple[int, int, int], qk_norm: bool = False,
) -> dict[str, tuple[int, ...]]:
    """Tensors of a tower and of its projector: patches of a side, patches of the side of a token,
    and the width of the text. With norms of q and k it has RMSNorms, a norm at the end, and no
    biases of q, k and v."""
    side, scale, hidden = sizes
    merged = scale * scale * WIDTH
    shapes = {
        f"{vision}embeddings.cls_token": (1, 1, WIDTH),
        f"{vision}embeddings.position_embeddings": (1, 1 + side * side, WIDTH),
    }
    linears = {
        f"{vision}embeddings.patch_embeddings.projection": (WIDTH, 3, PATCH, PATCH),
        f"{projector}layer_norm": (merged,), f"{projector}linear_1": (hidden, merged),
        f"{projector}linear_2": (hidden, hidden),
    }
    if qk_norm:
        linears[f"{vision}layernorm"] = (WIDTH,)
    for layer in (f"{vision}encoder.layer.{index}." for index in range(LAYERS)):
        shapes |= {f"{layer}lambda_1": (WIDTH,), f"{layer}lambda_2": (WIDTH,)}
        linears |= {
            f"{layer}attention.projection_layer": (WIDTH, WIDTH),
            f"{layer}mlp.fc1": (INNER, WIDTH), f"{layer}mlp.fc2": (WIDTH, INNER),
        }
        qkv = {f"{layer}attention.{part}_proj": (WIDTH, WIDTH) for part in "qkv"}
        norms = {f"{layer}layernorm_{where}": (WIDTH,) for where in ("before", "after")}
        if qk_norm:
            norms |= {f"{layer}attention.{part}_norm": (WIDTH,) for part in "qk"}
            shapes |= {f"{name}.weight": shape for name, shape in (qkv | norms).items()}
        else:
            linears |= qkv | norms
    for name, shape in linears.items():
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = shape, shape[:1]
    return shapes


def saved(config: dict) -> dict:
    """All keys, as transformers 5 writes them."""
    text = {k: v for k, v in config.items() if k not in ("architectures", "transformers_version")}
    return dict(
        architectures=["InternVLForConditionalGeneration"], downsample_ratio=0.5,
        dtype="bfloat16", image_seq_length=256, image_token_id=IMAGE_TOKEN, model_type="internvl",
        projector_hidden_act="gelu", text_config=text, tie_word_embeddings=False,
        transformers_version=config["transformers_version"],
        vision_config=dict(
            attention_bias=True, attention_dropout=0.0, hidden_act="gelu", hidden_dropout_prob=0.0,
            hidden_size=WIDTH, image_size=[32, 32], initializer_range=0.02,
            intermediate_size=INNER, layer_norm_eps=1e-5, layer_scale_init_value=0.1,
            model_type="internvl_vision", norm_type="layer_norm", num_attention_heads=3,
            num_channels=3, num_hidden_layers=LAYERS, patch_size=[PATCH, PATCH],
            projection_dropout=0.0, use_absolute_position_embeddings=True, use_mask_token=False,
            use_mean_pooling=True, use_qk_norm=False,
        ),
        vision_feature_layer=-1, vision_feature_select_strategy="default",
    )


def published(config: dict) -> dict:
    """As in the files of InternVL3 and later; norms as the largest tower has them."""
    text = {
        k: v for k, v in config.items() if k not in ("torch_dtype", "transformers_version")
    }
    return dict(
        architectures=["InternVLForConditionalGeneration"], downsample_ratio=0.25,
        image_seq_length=256, image_token_id=IMAGE_TOKEN, model_type="internvl",
        projector_hidden_act="gelu", text_config=text, torch_dtype="bfloat16",
        transformers_version="4.52.0.dev0",
        vision_config=dict(
            architectures=["InternVisionModel"], attention_bias=False, attention_dropout=0.0,
            dropout=0.0, hidden_act="gelu", hidden_dropout_prob=0.0, hidden_size=WIDTH,
            image_size=[64, 64], initializer_factor=0.1, initializer_range=1e-10,
            intermediate_size=INNER, layer_norm_eps=1e-6, layer_scale_init_value=0.1,
            model_type="internvl_vision", norm_type="rms_norm", num_attention_heads=2,
            num_channels=3, num_hidden_layers=LAYERS, patch_size=[PATCH, PATCH],
            projection_dropout=0.0, torch_dtype="bfloat16", use_absolute_position_embeddings=True,
            use_mask_token=False, use_mean_pooling=False, use_qk_norm=True,
        ),
        vision_feature_layer=-1, vision_feature_select_strategy="default",
    )


# Names in InternVL's own code, and those of transformers, as convert_internvl_weights_to_hf.py has
# them.
RENAMED = [
    ("model.vision_tower.", "vision_model."), ("encoder.layer.", "encoder.layers."),
    ("cls_token", "class_embedding"), ("position_embeddings", "position_embedding"),
    ("patch_embeddings.projection", "patch_embedding"), (".lambda_", ".ls"),
    ("attention.projection_layer", "attn.proj"), ("layernorm_before", "norm1"),
    ("layernorm_after", "norm2"), ("model.multi_modal_projector.layer_norm", "mlp1.0"),
    ("model.multi_modal_projector.linear_1", "mlp1.1"),
    ("model.multi_modal_projector.linear_2", "mlp1.3"),
]


def chat_tower(sizes: tuple[int, int, int]) -> dict[str, tuple[int, ...]]:
    """The same as `tower`, under the names of InternVL's own code."""
    shapes = {}
    of_hf = tower("model.vision_tower.", "model.multi_modal_projector.", sizes)
    for name, shape in of_hf.items():
        for theirs, own in RENAMED:
            name = name.replace(theirs, own)
        if "attention.q_proj" in name:
            name, shape = name.replace("attention.q_proj", "attn.qkv"), (3 * WIDTH, *shape[1:])
        if "attention." not in name:
            shapes[name] = shape
    return shapes


def of_hf(tensors: dict) -> dict:
    """Tensors of a file of InternVL's own code, under the names of transformers."""
    out = {}
    for name, tensor in tensors.items():
        if name.startswith(("vision_model.", "mlp1.")):
            if "attn.qkv" in name:
                parts = zip("qkv", tensor.chunk(3), strict=True)
                named = {name.replace("attn.qkv", f"attention.{part}_proj"): t for part, t in parts}
            else:
                named = {name: tensor}
            for own_name, part in named.items():
                for theirs, own in RENAMED:
                    own_name = own_name.replace(own, theirs)
                out[own_name] = part
        else:
            name = name.replace("language_model.model.", "model.language_model.")
            out[name.replace("language_model.lm_head.", "lm_head.")] = tensor
    return out


def chat(config: dict) -> dict:
    """As in the files of InternVL's own code."""
    text = {
        k: v for k, v in config.items() if k not in ("dtype", "transformers_version")
    }
    return dict(
        architectures=["InternVLChatModel"],
        auto_map={"AutoModel": "modeling_internvl_chat.InternVLChatModel"}, downsample_ratio=0.5,
        dynamic_image_size=True, force_image_size=32, llm_config=text, max_dynamic_patch=4,
        min_dynamic_patch=1, model_type="internvl_chat", pad2square=False, ps_version="v2",
        select_layer=-1, template="internvl2_5", tie_word_embeddings=False,
        torch_dtype="bfloat16", transformers_version=None, use_backbone_lora=0, use_llm_lora=0,
        use_thumbnail=True,
        vision_config=dict(
            architectures=["InternVisionModel"], attention_dropout=0.0, capacity_factor=1.2,
            drop_path_rate=0.1, dropout=0.0, hidden_act="gelu", hidden_size=WIDTH, image_size=32,
            initializer_factor=0.1, initializer_range=1e-10, intermediate_size=INNER,
            layer_norm_eps=1e-5, model_type="intern_vit_6b", norm_type="layer_norm",
            num_attention_heads=3, num_channels=3, num_experts=8, num_hidden_layers=LAYERS,
            patch_size=PATCH, qk_normalization=False, qkv_bias=True, torch_dtype="bfloat16",
            use_bfloat16=True, use_flash_attn=True, use_moe=False,
        ),
    )


def chat_as_hf(config: dict) -> dict:
    """The same in the words of transformers."""
    return saved(dict(config["llm_config"], transformers_version=None))


def qianfan(config: dict) -> dict:
    """The keys of transformers, around tensors under the names of InternVL's own code."""
    out = saved(config)
    vision = out["vision_config"] | dict(model_type="qianfan_ocr_vision", drop_path_rate=0.1)
    return out | dict(
        architectures=["QianfanOCRForConditionalGeneration"], model_type="qianfan_ocr",
        vision_config=vision,
    )


def qwen2(layout, **more) -> Family:
    return small(
        "Qwen2Config",
        dims(48, 64, 2, 4, 2, tie_word_embeddings=False, use_sliding_window=False,
             max_window_layers=2, rope_parameters=rope(1000000.0)),
        [dict(rope_parameters=rope(10000.0)), zeroed("q_proj.bias"),
         swapped("gate_proj", "up_proj")],
        layout=layout, oracle="transformers Qwen2ForCausalLM, inside of a multimodal checkpoint",
        shared="internvl_images", **more,
    )


FAMILIES: dict[str, Family] = {
    "internvl": qwen2(
        wrapped(
            "model.language_model.", "lm_head.",
            tower("model.vision_tower.", "model.multi_modal_projector.", (4, 2, 48)),
            saved, of_tower,
        )
    ),
    "internvl_chat": qwen2(
        wrapped(
            "language_model.model.", "language_model.lm_head.", chat_tower((4, 2, 48)), chat,
            of_tower,
        )
    ),
    "qianfan_ocr": small(
        "Qwen3Config",
        dims(32, 64, 2, 4, 2, head_dim=16, tie_word_embeddings=False,
             rope_parameters=rope(1000000.0)),
        [dict(rope_parameters=rope(10000.0)), without("q_norm")],
        layout=wrapped(
            "language_model.model.", "language_model.lm_head.", chat_tower((4, 2, 32)), qianfan,
            of_tower,
        ),
        oracle="transformers Qwen3ForCausalLM, inside of a multimodal checkpoint",
        shared="internvl_images",
    ),
    "internvl_published": small(
        "Qwen3Config",
        dims(32, 64, 2, 4, 2, head_dim=16, tie_word_embeddings=False,
             rope_parameters=rope(1000000.0)),
        [dict(rope_parameters=rope(10000.0)), without("k_norm")],
        layout=wrapped(
            "language_model.model.", "language_model.lm_head.",
            tower("vision_tower.", "multi_modal_projector.", (8, 4, 32), qk_norm=True),
            published, of_tower,
        ),
        oracle="transformers Qwen3ForCausalLM, inside of a multimodal checkpoint",
        shared="internvl_images", old_config=True,
    ),
}
