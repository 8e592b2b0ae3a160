"""The text part of multimodal checkpoints: its config and its tensors are inside of others.

The oracle is the text model; the check compares with the multimodal class too. The vision tensors
stand for the kinds that the real files have.
"""

from ..family import FULL, SLIDING, Family, dims, rope, small
from ..layouts import wrapped
from ..mistakes import swapped, without

GEMMA3_VISION = {
    "vision_tower.vision_model.embeddings.patch_embedding.weight": (8, 3, 2, 2),
    "vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight": (8, 8),
    "vision_tower.vision_model.post_layernorm.bias": (8,),
    "multi_modal_projector.mm_input_projection_weight": (8, 32),
    "multi_modal_projector.mm_soft_emb_norm.weight": (8,),
}
MISTRAL3_VISION = {
    "vision_tower.patch_conv.weight": (8, 3, 2, 2),
    "vision_tower.transformer.layers.0.attention.q_proj.weight": (8, 8),
    "vision_tower.ln_pre.weight": (8,),
    "multi_modal_projector.norm.weight": (8,),
    "multi_modal_projector.patch_merger.merging_layer.weight": (8, 32),
    "multi_modal_projector.linear_1.weight": (32, 8),
}
QWEN3_VISION = {
    "model.visual.patch_embed.proj.weight": (8, 3, 2, 2, 2),
    "model.visual.blocks.0.attn.qkv.weight": (24, 8),
    "model.visual.merger.linear_fc1.weight": (8, 8),
    "model.visual.deepstack_merger_list.0.norm.weight": (8,),
}
VISION_CONFIG = dict(
    hidden_size=8, intermediate_size=16, num_attention_heads=2, num_hidden_layers=1,
    image_size=8, patch_size=2,
)
QWEN_VISION_CONFIG = dict(
    depth=1, hidden_size=8, intermediate_size=16, num_heads=2, patch_size=2, spatial_merge_size=2,
)


def gemma3_published(config: dict) -> dict:
    """Only what differs from the defaults, as in Gemma 3's own files."""
    keys = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "sliding_window", "vocab_size",
        "max_position_embeddings",
    )
    text = {key: config[key] for key in keys}
    text |= dict(model_type="gemma3_text", rope_scaling=dict(factor=8.0, rope_type="linear"))
    return dict(
        architectures=["Gemma3ForConditionalGeneration"], boi_token_index=255999,
        eoi_token_index=256000, eos_token_id=[config["eos_token_id"]], image_token_index=262144,
        initializer_range=0.02, mm_tokens_per_image=4, model_type="gemma3", text_config=text,
        torch_dtype="bfloat16", transformers_version="4.50.0.dev0",
        vision_config=dict(VISION_CONFIG, model_type="siglip_vision_model"),
    )


def gemma3_saved(config: dict) -> dict:
    """As transformers 5 writes it."""
    text = {k: v for k, v in config.items() if k != "architectures"}
    return dict(
        architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3", dtype="bfloat16",
        boi_token_index=255999, eoi_token_index=256000, image_token_index=262144,
        mm_tokens_per_image=4, tie_word_embeddings=True, text_config=text,
        vision_config=dict(VISION_CONFIG, model_type="siglip_vision_model"),
        transformers_version=config["transformers_version"],
    )


def mistral3(config: dict) -> dict:
    text = {
        k: v for k, v in config.items()
        if k not in ("architectures", "torch_dtype", "transformers_version")
    }
    return dict(
        architectures=["Mistral3ForConditionalGeneration"], model_type="mistral3",
        image_token_index=10, multimodal_projector_bias=False, projector_hidden_act="gelu",
        spatial_merge_size=2, vision_feature_layer=-1, text_config=text,
        torch_dtype="bfloat16", transformers_version="4.52.4",
        vision_config=dict(VISION_CONFIG, model_type="pixtral", head_dim=4),
    )


def qwen3_vl(config: dict) -> dict:
    text = {
        k: v for k, v in config.items()
        if k not in ("architectures", "torch_dtype", "transformers_version")
    }
    text["model_type"] = "qwen3_vl_text"
    text["rope_scaling"] = dict(
        mrope_interleaved=True, mrope_section=[4, 2, 2], rope_type="default"
    )
    return dict(
        architectures=["Qwen3VLForConditionalGeneration"], model_type="qwen3_vl",
        image_token_id=280, video_token_id=281, vision_start_token_id=282,
        vision_end_token_id=283, text_config=text, tie_word_embeddings=True,
        transformers_version="4.57.0.dev0",
        vision_config=dict(
            QWEN_VISION_CONFIG, model_type="qwen3_vl", out_hidden_size=config["hidden_size"],
            deepstack_visual_indexes=[0],
        ),
    )


def gemma3(layout) -> Family:
    """The defaults of Gemma 3 wherever a tiny model can have them: the published file leaves
    them out."""
    return small(
        "Gemma3TextConfig",
        dims(
            32, 32, 6, 4, 1, head_dim=16, sliding_window=8, query_pre_attn_scalar=256,
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
        shared="sentencepiece",
    )


FAMILIES: dict[str, Family] = {
    "gemma3_published": gemma3(
        wrapped("language_model.model.", "language_model.lm_head.", GEMMA3_VISION,
                gemma3_published)
    ),
    "gemma3_multimodal": gemma3(
        wrapped(
            "model.language_model.", "lm_head.",
            {f"model.{name}": shape for name, shape in GEMMA3_VISION.items()}, gemma3_saved,
        )
    ),
    "mistral3": small(
        "MistralConfig",
        dims(32, 64, 3, 4, 2, head_dim=16, sliding_window=None, tie_word_embeddings=False,
             rms_norm_eps=1e-5, rope_parameters=rope(1000000.0)),
        [dict(rope_parameters=rope(10000.0)), swapped("gate_proj", "up_proj")],
        layout=wrapped("language_model.model.", "language_model.lm_head.", MISTRAL3_VISION,
                       mistral3),
        oracle="transformers MistralForCausalLM, inside of a multimodal checkpoint",
        old_config=True,
    ),
    "qwen3_vl": small(
        "Qwen3Config",
        dims(32, 64, 3, 4, 2, head_dim=16, tie_word_embeddings=True,
             rope_parameters=rope(5000000.0)),
        [dict(rope_parameters=rope(10000.0)), without("k_norm")],
        layout=wrapped("model.language_model.", "lm_head.", QWEN3_VISION, qwen3_vl),
        oracle="transformers Qwen3ForCausalLM, inside of a multimodal checkpoint",
        old_config=True,
    ),
}
