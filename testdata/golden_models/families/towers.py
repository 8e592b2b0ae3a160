"""Models that see images. Their text parts are checked here; `generate_images.py` adds what the
multimodal class makes of images."""

from ..family import Family, dims, rope, small
from ..layouts import of_tower, wrapped
from ..mistakes import swapped

IMAGE_TOKEN = 300  # of tokenizer_kinds.shared_images
WIDTH, INNER, PATCH = 24, 40, 8


def siglip(side: int, layers: int, scale: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Tensors of a tower of SigLIP's shape, and of what makes tokens of its patches."""
    vision = "model.vision_model."
    tensors = {
        f"{vision}embeddings.patch_embedding.weight": (WIDTH, 3, PATCH, PATCH),
        f"{vision}embeddings.patch_embedding.bias": (WIDTH,),
        f"{vision}embeddings.position_embedding.weight": (side * side, WIDTH),
        f"{vision}post_layernorm.weight": (WIDTH,),
        f"{vision}post_layernorm.bias": (WIDTH,),
        "model.connector.modality_projection.proj.weight": (hidden, WIDTH * scale * scale),
    }
    for layer in (f"{vision}encoder.layers.{index}." for index in range(layers)):
        for norm in ("layer_norm1", "layer_norm2"):
            tensors[f"{layer}{norm}.weight"] = tensors[f"{layer}{norm}.bias"] = (WIDTH,)
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            tensors[f"{layer}self_attn.{part}.weight"] = (WIDTH, WIDTH)
            tensors[f"{layer}self_attn.{part}.bias"] = (WIDTH,)
        tensors[f"{layer}mlp.fc1.weight"], tensors[f"{layer}mlp.fc1.bias"] = (INNER, WIDTH), (INNER,)
        tensors[f"{layer}mlp.fc2.weight"], tensors[f"{layer}mlp.fc2.bias"] = (WIDTH, INNER), (WIDTH,)
    return tensors


def clip(prefix: str, side: int, layers: int) -> dict[str, tuple[int, ...]]:
    """Tensors of a tower of CLIP's shape."""
    tensors = {
        name.replace("model.vision_model.", prefix): shape
        for name, shape in siglip(side, layers, 1, 1).items() if "connector" not in name
    }
    del tensors[f"{prefix}embeddings.patch_embedding.bias"]
    tensors |= {
        f"{prefix}embeddings.class_embedding": (WIDTH,),
        f"{prefix}embeddings.position_embedding.weight": (1 + side * side, WIDTH),
        f"{prefix}pre_layrnorm.weight": (WIDTH,),
        f"{prefix}pre_layrnorm.bias": (WIDTH,),
    }
    return tensors


def projector(prefix: str, hidden: int, states: int = 1) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}linear_1.weight": (hidden, states * WIDTH), f"{prefix}linear_1.bias": (hidden,),
        f"{prefix}linear_2.weight": (hidden, hidden), f"{prefix}linear_2.bias": (hidden,),
    }


def llava(config: dict) -> dict:
    """As in LLaVA 1.5's own files, whose text part says little."""
    keys = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings",
        "rms_norm_eps", "rope_theta", "torch_dtype",
    )
    text = {key: config[key] for key in keys} | dict(model_type="llama")
    return dict(
        architectures=["LlavaForConditionalGeneration"], ignore_index=-100,
        image_token_index=IMAGE_TOKEN, model_type="llava", pad_token_id=0,
        projector_hidden_act="gelu", text_config=text, tie_word_embeddings=False,
        torch_dtype="bfloat16", transformers_version="4.36.0.dev0",
        vision_config=dict(
            hidden_size=WIDTH, image_size=24, intermediate_size=INNER,
            model_type="clip_vision_model", num_attention_heads=3, num_hidden_layers=4,
            patch_size=PATCH, projection_dim=16, vocab_size=32000,
        ),
        vision_feature_layer=-2, vision_feature_select_strategy="default",
        vocab_size=config["vocab_size"],
    )


def llava_saved(config: dict) -> dict:
    """As transformers 5 writes it; another layer, and no biases of the projector."""
    text = {k: v for k, v in config.items() if k not in ("architectures", "transformers_version")}
    return dict(
        architectures=["LlavaForConditionalGeneration"], dtype="bfloat16", image_seq_length=576,
        image_token_index=IMAGE_TOKEN, model_type="llava", multimodal_projector_bias=False,
        projector_hidden_act="gelu", text_config=text, tie_word_embeddings=False,
        transformers_version=config["transformers_version"],
        vision_config=dict(
            attention_dropout=0.0, hidden_act="gelu", hidden_size=WIDTH, image_size=16,
            initializer_factor=1.0, initializer_range=0.02, intermediate_size=INNER,
            layer_norm_eps=1e-6, model_type="clip_vision_model", num_attention_heads=2,
            num_channels=3, num_hidden_layers=4, patch_size=PATCH, projection_dim=16,
        ),
        vision_feature_layer=2, vision_feature_select_strategy="default",
    )


PINPOINTS = [[24, 48], [48, 24], [48, 48], [72, 24], [24, 72]]


def llava_next(config: dict) -> dict:
    """As in LLaVA-NeXT's own files of Mistral, whose text part says little."""
    of_llava = llava(config)
    text = of_llava["text_config"] | dict(model_type="mistral", sliding_window=None)
    return of_llava | dict(
        architectures=["LlavaNextForConditionalGeneration"], image_grid_pinpoints=PINPOINTS,
        model_type="llava_next", text_config=text, transformers_version="4.39.0.dev0",
        use_image_newline_parameter=True,
    )


def llava_next_saved(config: dict) -> dict:
    """As transformers 5 writes it."""
    return llava_saved(config) | dict(
        architectures=["LlavaNextForConditionalGeneration"], model_type="llava_next",
        image_grid_pinpoints=[[16, 32], [32, 16], [32, 32], [48, 16], [16, 48], [16, 16]],
    )


ONEVISION_PINPOINTS = [[26 * rows, 26 * columns] for rows in range(1, 5) for columns in range(1, 5)]


def llava_onevision(config: dict) -> dict:
    """As in LLaVA-OneVision's own files, whose text part says little."""
    keys = (
        "architectures", "eos_token_id", "hidden_size", "intermediate_size", "model_type",
        "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
        "rope_theta", "tie_word_embeddings", "torch_dtype", "use_sliding_window",
    )
    text = {key: config[key] for key in keys if key in config}
    return dict(
        architectures=["LlavaOnevisionForConditionalGeneration"],
        image_grid_pinpoints=ONEVISION_PINPOINTS, image_token_index=IMAGE_TOKEN,
        model_type="llava_onevision", projector_hidden_act="gelu", text_config=text,
        tie_word_embeddings=False, torch_dtype="float16", transformers_version="4.45.0.dev0",
        use_image_newline_parameter=True, video_token_index=299,
        vision_aspect_ratio="anyres_max_2",
        vision_config=dict(
            hidden_size=WIDTH, image_size=26, intermediate_size=INNER,
            model_type="siglip_vision_model", num_attention_heads=3, num_hidden_layers=3,
            patch_size=PATCH, vision_use_head=False,
        ),
        vision_feature_layer=-1, vision_feature_select_strategy="full",
    )


GRANITE_STATES = [-4, 1, -1]


def granite_vision(config: dict) -> dict:
    """As in Granite Vision's own files: SigLIP, of which several states are read. Pixels at the
    right and the bottom of a tile are in no patch, as of 384 pixels in patches of 14."""
    text = {k: v for k, v in config.items() if k != "transformers_version"}
    sides = [[1, 1], [1, 2], [2, 1], [2, 2], [3, 1], [1, 3]]
    return dict(
        architectures=["LlavaNextForConditionalGeneration"], ignore_index=-100,
        image_grid_pinpoints=[[26 * rows, 26 * columns] for rows, columns in sides],
        image_seq_length=576, image_token_index=IMAGE_TOKEN, model_type="llava_next",
        multimodal_projector_bias=True, projector_hidden_act="gelu", text_config=text,
        tie_word_embeddings=True, torch_dtype="bfloat16", transformers_version="4.49.0",
        use_image_newline_parameter=True,
        vision_config=dict(
            attention_dropout=0.0, hidden_act="gelu_pytorch_tanh", hidden_size=WIDTH,
            image_size=26, intermediate_size=INNER, layer_norm_eps=1e-6,
            model_type="siglip_vision_model", num_attention_heads=3, num_channels=3,
            num_hidden_layers=4, patch_size=PATCH,
        ),
        vision_feature_layer=GRANITE_STATES, vision_feature_select_strategy="full",
    )


def vipllava(config: dict) -> dict:
    """As in ViP-LLaVA's own files."""
    out = llava(config)
    del out["vision_feature_layer"], out["vision_feature_select_strategy"]
    return out | dict(
        architectures=["VipLlavaForConditionalGeneration"], model_type="vipllava",
        projector_layernorm_eps=1e-2, vision_feature_layers=[-2, -4, 2],
    )


def deepseek_vl(config: dict) -> dict:
    """As in DeepSeek-VL's own files, which transformers 4 wrote."""
    text = {k: v for k, v in config.items() if k not in ("architectures", "transformers_version")}
    return dict(
        architectures=["DeepseekVLForConditionalGeneration"], image_token_id=IMAGE_TOKEN,
        model_type="deepseek_vl", text_config=text, tie_word_embeddings=False,
        torch_dtype="bfloat16", transformers_version="4.54.0",
        vision_config=dict(
            attention_dropout=0.0, hidden_act="gelu", hidden_size=WIDTH, image_size=32,
            intermediate_size=INNER, layer_norm_eps=1e-6, model_type="siglip_vision_model",
            num_attention_heads=3, num_channels=3, num_hidden_layers=3, patch_size=PATCH,
            torch_dtype="bfloat16", vision_use_head=False,
        ),
    )


def deepseek_vl_tower(hidden: int) -> dict[str, tuple[int, ...]]:
    """SigLIP's, and an MLP."""
    tensors = {
        name.replace("model.vision_model.", "model.vision_model.vision_model."): shape
        for name, shape in siglip(4, 3, 1, 1).items() if "connector" not in name
    }
    return tensors | {
        "model.aligner.linear1.weight": (hidden, WIDTH), "model.aligner.linear1.bias": (hidden,),
        "model.aligner.linear2.weight": (hidden, hidden), "model.aligner.linear2.bias": (hidden,),
    }


def smolvlm(config: dict) -> dict:
    """All keys, as transformers 5 writes them."""
    text = {k: v for k, v in config.items() if k not in ("architectures", "transformers_version")}
    return dict(
        architectures=["SmolVLMForConditionalGeneration"], dtype="bfloat16",
        image_token_id=IMAGE_TOKEN, model_type="smolvlm", scale_factor=2, text_config=text,
        tie_word_embeddings=False, transformers_version=config["transformers_version"],
        use_cache=True,
        vision_config=dict(
            attention_dropout=0.0, hidden_act="gelu_pytorch_tanh", hidden_size=WIDTH,
            image_size=32, initializer_range=0.02, intermediate_size=INNER, layer_norm_eps=1e-5,
            model_type="smolvlm_vision", num_attention_heads=3, num_channels=3,
            num_hidden_layers=3, patch_size=PATCH,
        ),
    )


def idefics3(config: dict) -> dict:
    """Few keys, as in published files; tiles smaller than what the tower was made for."""
    keys = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings",
        "rms_norm_eps", "rope_theta", "torch_dtype", "pad_token_id",
    )
    text = {key: config[key] for key in keys if config.get(key) is not None}
    text |= dict(
        is_llama_config=True, model_type="llama", neftune_noise_alpha=0.0, pixel_shuffle_factor=4,
        qk_layer_norms=False, use_resampler=False,
    )
    return dict(
        architectures=["Idefics3ForConditionalGeneration"], image_token_id=IMAGE_TOKEN,
        model_type="idefics3", scale_factor=4, text_config=text, tie_word_embeddings=False,
        torch_dtype="bfloat16", transformers_version="4.46.0", use_cache=True,
        vision_config=dict(
            hidden_size=WIDTH, image_size=40, intermediate_size=INNER,
            max_image_size=dict(longest_edge=32), model_type="idefics3", num_attention_heads=2,
            num_hidden_layers=3, patch_size=PATCH, size=dict(longest_edge=64),
            tie_word_embeddings=False, use_base_siglip=False,
        ),
        vocab_size=config["vocab_size"],
    )


def llama(
    sizes: tuple[int, ...], tower: dict[str, tuple[int, ...]], config,
    model="model.text_model.", head="lm_head.", **more,
) -> Family:
    return small(
        "LlamaConfig",
        dims(*sizes, head_dim=16, rms_norm_eps=1e-5, tie_word_embeddings=False,
             rope_parameters=rope(100000.0)),
        [dict(rope_parameters=rope(10000.0)), swapped("gate_proj", "up_proj")],
        layout=wrapped(model, head, tower, config, of_tower),
        oracle="transformers LlamaForCausalLM, inside of a multimodal checkpoint",
        shared="images", **more,
    )


FAMILIES: dict[str, Family] = {
    "deepseek_vl": llama(
        (32, 64, 2, 4, 2), deepseek_vl_tower(32), deepseek_vl, model="model.language_model.",
        old_config=True,
    ),
    "granite_vision": small(
        "GraniteConfig",
        dims(32, 64, 2, 4, 2, tie_word_embeddings=True, rms_norm_eps=1e-5,
             rope_parameters=rope(10000.0), embedding_multiplier=3.0, attention_multiplier=0.1,
             residual_multiplier=0.6, logits_scaling=2.5),
        [dict(embedding_multiplier=1.0), dict(logits_scaling=1.0)],
        layout=wrapped(
            "language_model.model.", "language_model.lm_head.",
            {
                name.replace("model.vision_model.", "vision_tower.vision_model."): shape
                for name, shape in siglip(3, 4, 1, 1).items() if "connector" not in name
            }
            | projector("multi_modal_projector.", 32, len(GRANITE_STATES))
            | {"image_newline": (32,)},
            granite_vision, of_tower,
        ),
        oracle="transformers GraniteForCausalLM, inside of a multimodal checkpoint",
        shared="images", head_std=0.04, final_norm_mean=26.0, old_config=True,
    ),
    "idefics3": llama((32, 64, 2, 4, 2), siglip(5, 3, 4, 32), idefics3, old_config=True),
    "llava": llama(
        (32, 64, 2, 4, 2),
        clip("vision_tower.vision_model.", 3, 4) | projector("multi_modal_projector.", 32),
        llava, model="language_model.model.", head="language_model.lm_head.", old_config=True,
    ),
    "llava_next": small(
        "MistralConfig",
        dims(32, 64, 2, 4, 2, head_dim=16, sliding_window=None, tie_word_embeddings=False,
             rms_norm_eps=1e-5, rope_parameters=rope(1000000.0)),
        [dict(rope_parameters=rope(10000.0)), swapped("gate_proj", "up_proj")],
        layout=wrapped(
            "language_model.model.", "language_model.lm_head.",
            clip("vision_tower.vision_model.", 3, 4) | projector("multi_modal_projector.", 32)
            | {"image_newline": (32,)},
            llava_next, of_tower,
        ),
        oracle="transformers MistralForCausalLM, inside of a multimodal checkpoint",
        shared="images", old_config=True,
    ),
    "llava_next_saved": llama(
        (48, 64, 2, 3, 1),
        clip("model.vision_tower.", 2, 4) | {
            name: shape for name, shape in projector("model.multi_modal_projector.", 48).items()
            if "bias" not in name
        } | {"model.image_newline": (48,)},
        llava_next_saved, model="model.language_model.",
    ),
    "llava_onevision": small(
        "Qwen2Config",
        dims(48, 64, 2, 4, 2, tie_word_embeddings=True, rms_norm_eps=1e-6,
             max_position_embeddings=32768, rope_parameters=rope(1000000.0)),
        [dict(rope_parameters=rope(10000.0)), swapped("gate_proj", "up_proj")],
        layout=wrapped(
            "language_model.model.", "language_model.lm_head.",
            {
                name.replace("model.vision_model.", "vision_tower.vision_model."): shape
                for name, shape in siglip(3, 3, 1, 1).items() if "connector" not in name
            }
            | projector("multi_modal_projector.", 48) | {"image_newline": (48,)},
            llava_onevision, of_tower,
        ),
        oracle="transformers Qwen2ForCausalLM, inside of a multimodal checkpoint",
        shared="images", old_config=True,
    ),
    "llava_saved": llama(
        (48, 64, 2, 3, 1),
        clip("model.vision_tower.", 2, 4) | {
            name: shape for name, shape in projector("model.multi_modal_projector.", 48).items()
            if "bias" not in name
        },
        llava_saved, model="model.language_model.",
    ),
    "vipllava": llama(
        (32, 64, 2, 4, 2),
        clip("vision_tower.vision_model.", 3, 4) | projector("multi_modal_projector.", 32, 3) | {
            f"multi_modal_projector.projector_layernorm.{part}": (3 * WIDTH,)
            for part in ("weight", "bias")
        },
        vipllava, model="language_model.model.", head="language_model.lm_head.", old_config=True,
    ),
    "smolvlm": llama((48, 64, 2, 3, 1), siglip(4, 3, 2, 48), smolvlm),
}
