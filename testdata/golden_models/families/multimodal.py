"""The text part of multimodal checkpoints: its config and its tensors are inside of others.

The oracle is the text model; the check compares with the multimodal class too. The vision tensors
stand for the kinds that the real files have.
"""

from ..family import Family, dims, rope, small
from ..layouts import wrapped
from ..mistakes import swapped, without

MISTRAL3_VISION = {
    "vision_tower.patch_conv.weight": (8, 3, 2, 2),
    "vision_tower.transformer.layers.0.attention.q_proj.weight": (8, 8),
    "vision_tower.ln_pre.weight": (8,),
    "multi_modal_projector.norm.weight": (8,),
    "multi_modal_projector.patch_merger.merging_layer.weight": (8, 32),
    "multi_modal_projector.linear_1.weight": (32, 8),
}
VISION_CONFIG = dict(
    hidden_size=8, intermediate_size=16, num_attention_heads=2, num_hidden_layers=1,
    image_size=8, patch_size=2,
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


FAMILIES: dict[str, Family] = {
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
}
