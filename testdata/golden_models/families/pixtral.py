"""Pixtral's tower, in Pixtral, in Mistral 3 and in LightOnOCR. Text parts are checked here; `generate_images.py`
adds what the multimodal class makes of images."""

from ..family import Family, dims, rope, small
from ..layouts import of_tower, wrapped
from ..mistakes import swapped
from .later import MINISTRAL3
from .towers import INNER, WIDTH, projector

IMAGE = 288  # of tokenizer_kinds.shared_pixtral_images


def tower(prefix: str, patch: int, layers: int) -> dict[str, tuple[int, ...]]:
    tensors = {
        f"{prefix}patch_conv.weight": (WIDTH, 3, patch, patch), f"{prefix}ln_pre.weight": (WIDTH,),
    }
    for layer in (f"{prefix}transformer.layers.{index}." for index in range(layers)):
        for norm in ("attention_norm", "ffn_norm"):
            tensors[f"{layer}{norm}.weight"] = (WIDTH,)
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            tensors[f"{layer}attention.{part}.weight"] = (WIDTH, WIDTH)
        for part in ("gate_proj", "up_proj"):
            tensors[f"{layer}feed_forward.{part}.weight"] = (INNER, WIDTH)
        tensors[f"{layer}feed_forward.down_proj.weight"] = (WIDTH, INNER)
    return tensors


def merger(prefix: str, merge: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """What makes tokens of squares of patches."""
    return {
        f"{prefix}norm.weight": (WIDTH,),
        f"{prefix}patch_merger.merging_layer.weight": (WIDTH, merge * merge * WIDTH),
        **{name: shape for name, shape in projector(prefix, hidden).items() if "bias" not in name},
    }


def mistral3(config: dict) -> dict:
    """As Mistral Small 3.1 has it."""
    text = {
        k: v for k, v in config.items()
        if k not in ("architectures", "torch_dtype", "transformers_version")
    }
    return dict(
        architectures=["Mistral3ForConditionalGeneration"], model_type="mistral3",
        image_token_index=IMAGE, multimodal_projector_bias=False, projector_hidden_act="gelu",
        spatial_merge_size=2, vision_feature_layer=-1, text_config=text,
        torch_dtype="bfloat16", transformers_version="4.52.4",
        vision_config=dict(
            attention_dropout=0.0, head_dim=8, hidden_act="silu", hidden_size=WIDTH,
            image_size=64, initializer_range=0.02, intermediate_size=INNER, model_type="pixtral",
            num_attention_heads=3, num_channels=3, num_hidden_layers=2, patch_size=8,
            rope_theta=10000.0,
        ),
    )


def ministral3(config: dict) -> dict:
    """As transformers 5 writes it; another state, activation, base and square."""
    text = {k: v for k, v in config.items() if k != "architectures"}
    return dict(
        architectures=["Mistral3ForConditionalGeneration"], dtype="bfloat16",
        image_token_index=IMAGE, model_type="mistral3", multimodal_projector_bias=False,
        projector_hidden_act="gelu_pytorch_tanh", spatial_merge_size=3, text_config=text,
        tie_word_embeddings=False, transformers_version=config["transformers_version"],
        vision_config=dict(
            attention_dropout=0.0, head_dim=12, hidden_act="gelu", hidden_size=WIDTH,
            image_size=48, initializer_range=0.02, intermediate_size=INNER, model_type="pixtral",
            num_attention_heads=2, num_channels=3, num_hidden_layers=4, patch_size=4,
            rope_parameters=rope(100.0),
        ),
        vision_feature_layer=2,
    )


def lighton_ocr(config: dict) -> dict:
    """As transformers 5 writes it."""
    text = {k: v for k, v in config.items() if k not in ("architectures", "transformers_version")}
    return dict(
        architectures=["LightOnOcrForConditionalGeneration"], dtype="bfloat16",
        image_token_id=IMAGE, model_type="lighton_ocr", spatial_merge_size=2, text_config=text,
        tie_word_embeddings=True, transformers_version=config["transformers_version"],
        vision_config=dict(
            attention_dropout=0.0, head_dim=8, hidden_act="silu", hidden_size=WIDTH,
            image_size=64, initializer_range=0.02, intermediate_size=INNER, model_type="pixtral",
            num_attention_heads=3, num_channels=3, num_hidden_layers=3, patch_size=6,
            rope_parameters=rope(10000.0),
        ),
    )


def pixtral(config: dict) -> dict:
    """Few keys, as in Pixtral's file of transformers."""
    keys = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings",
        "rms_norm_eps", "rope_theta", "sliding_window",
    )
    text = {key: config[key] for key in keys} | dict(is_composition=True, model_type="mistral")
    return dict(
        architectures=["LlavaForConditionalGeneration"], ignore_index=-100, image_seq_length=1,
        image_token_index=IMAGE, model_type="llava", projector_hidden_act="gelu",
        text_config=text, torch_dtype="bfloat16", transformers_version="4.45.0.dev0",
        vision_config=dict(
            head_dim=8, hidden_act="silu", hidden_size=WIDTH, image_size=64,
            intermediate_size=INNER, is_composition=True, model_type="pixtral",
            num_attention_heads=3, num_hidden_layers=2, patch_size=8, rope_theta=10000.0,
            tie_word_embeddings=False,
        ),
        vision_feature_layer=-1, vision_feature_select_strategy="full",
    )


def mistral(config_class: str, parameters: dict, layout, mistakes: list, **more) -> Family:
    kind = {} if config_class == "Ministral3Config" else dict(sliding_window=None)
    return small(
        config_class,
        dims(32, 64, 3, 4, 2, head_dim=16, tie_word_embeddings=False, rms_norm_eps=1e-5,
             rope_parameters=parameters, **kind),
        [*mistakes, swapped("gate_proj", "up_proj")], layout=layout,
        oracle=f"transformers {config_class.replace('Config', 'ForCausalLM')}, inside of a "
               "multimodal checkpoint",
        shared="pixtral_images", **more,
    )


FAMILIES: dict[str, Family] = {
    "lighton_ocr": small(
        "Qwen3Config",
        dims(32, 64, 3, 4, 2, head_dim=16, tie_word_embeddings=True, rms_norm_eps=1e-6,
             rope_parameters=rope(1000000.0)),
        [dict(rope_parameters=rope(10000.0)), swapped("gate_proj", "up_proj")],
        layout=wrapped(
            "model.language_model.", "lm_head.",
            tower("model.vision_encoder.", 6, 3) | merger("model.vision_projection.", 2, 32),
            lighton_ocr, of_tower,
        ),
        oracle="transformers Qwen3ForCausalLM, inside of a multimodal checkpoint",
        shared="pixtral_images",
    ),
    "ministral3_multimodal": mistral(
        "Ministral3Config", MINISTRAL3,
        wrapped(
            "model.language_model.", "lm_head.",
            tower("model.vision_tower.", 4, 4) | merger("model.multi_modal_projector.", 3, 32),
            ministral3, of_tower,
        ),
        [dict(rope_parameters=dict(MINISTRAL3, llama_4_scaling_beta=0.0))], first_seed=1,
    ),
    "mistral3": mistral(
        "MistralConfig", rope(1000000.0),
        wrapped(
            "language_model.model.", "language_model.lm_head.",
            tower("vision_tower.", 8, 2) | merger("multi_modal_projector.", 2, 32),
            mistral3, of_tower,
        ),
        [dict(rope_parameters=rope(10000.0))], old_config=True,
    ),
    "pixtral": mistral(
        "MistralConfig", rope(1000000.0),
        wrapped(
            "language_model.model.", "language_model.lm_head.",
            tower("vision_tower.", 8, 2) | projector("multi_modal_projector.", 32),
            pixtral, of_tower,
        ),
        [dict(rope_parameters=rope(10000.0))], old_config=True,
    ),
}
