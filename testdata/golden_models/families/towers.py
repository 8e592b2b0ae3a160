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


def llama(sizes: tuple[int, ...], tower: dict[str, tuple[int, ...]], config, **more) -> Family:
    return small(
        "LlamaConfig",
        dims(*sizes, head_dim=16, rms_norm_eps=1e-5, tie_word_embeddings=False,
             rope_parameters=rope(100000.0)),
        [dict(rope_parameters=rope(10000.0)), swapped("gate_proj", "up_proj")],
        layout=wrapped("model.text_model.", "lm_head.", tower, config, of_tower),
        oracle="transformers LlamaForCausalLM, inside of a multimodal checkpoint",
        shared="images", **more,
    )


FAMILIES: dict[str, Family] = {
    "idefics3": llama((32, 64, 2, 4, 2), siglip(5, 3, 4, 32), idefics3, old_config=True),
    "smolvlm": llama((48, 64, 2, 3, 1), siglip(4, 3, 2, 48), smolvlm),
}
