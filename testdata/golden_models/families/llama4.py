"""Llama 4: chunks of positions, queries that grow with the position, inputs of experts weighed.

Mistakes that these goldens catch: a chunk of another length, a window or all in its place; layers
with the other mask; the other kind of rotary pairs; queries that grow from another position on, or
everywhere; weights of what experts give in place of what they read; parts that are left out.
"""

import torch
from torch import nn

from ..family import FULL, Family, dims, rope, small
from ..layouts import wrapped
from ..mistakes import attributes, other_pairs, swapped, zeroed
from ..routing import swapped_gate_and_up

CHUNKED = "chunked_attention"


def grows_from_position_0(model: nn.Module) -> None:
    """Positions are counted from 0 where queries grow."""
    for layer in model.model.layers:
        attention = layer.self_attn

        def counted(*args, forward=attention.forward, scale=attention.floor_scale, **kwargs):
            floor, torch.floor = torch.floor, lambda x: floor(x - 1.0 / scale + 1e-4)
            try:
                return forward(*args, **kwargs)
            finally:
                torch.floor = floor

        attention.forward = counted


def weighed_outputs(model: nn.Module) -> None:
    """The router's numbers are factors of what experts give."""
    for layer in model.model.layers:
        if not layer.is_moe_layer:
            continue

        def forward(hidden, block=layer.feed_forward):
            x = hidden.reshape(-1, hidden.shape[-1])
            scores, logits = block.router(x)
            of_all = block.experts(x.repeat(scores.shape[1], 1)) * scores.T.reshape(-1, 1)
            of_all = of_all.reshape(scores.shape[1], -1, x.shape[-1]).sum(dim=0)
            return block.shared_expert(x) + of_all, logits

        layer.feed_forward.forward = forward


def windows(model: nn.Module) -> None:
    """A window as long as the chunk in its place."""
    from transformers.masking_utils import create_sliding_window_causal_mask
    from transformers.models.llama4 import modeling_llama4

    own, forward = modeling_llama4.create_chunked_causal_mask, model.model.forward

    def slides(config, **kwargs):
        config.sliding_window = config.attention_chunk_size
        return create_sliding_window_causal_mask(config=config, **kwargs)

    def other(*args, **kwargs):
        modeling_llama4.create_chunked_causal_mask = slides
        try:
            return forward(*args, **kwargs)
        finally:
            modeling_llama4.create_chunked_causal_mask = own

    model.model.forward = other


def llama4(config: dict) -> dict:
    """As transformers writes the multimodal class."""
    text = {k: v for k, v in config.items() if k not in ("architectures", "transformers_version")}
    return dict(
        architectures=["Llama4ForConditionalGeneration"], boi_token_index=280, dtype="bfloat16",
        eoi_token_index=281, image_token_index=282, model_type="llama4", text_config=text,
        tie_word_embeddings=False, transformers_version=config["transformers_version"],
        vision_config=dict(
            hidden_size=16, image_size=28, intermediate_size=64, model_type="llama4_vision_model",
            num_attention_heads=2, num_hidden_layers=1, patch_size=14, projector_input_dim=32,
            projector_output_dim=32, vision_output_dim=32,
        ),
    )


FAMILIES: dict[str, Family] = {
    "llama4": small(
        "Llama4TextConfig",
        dims(
            32, 16, 3, 3, 1, head_dim=16, intermediate_size_mlp=40, num_local_experts=4,
            interleave_moe_layer_step=1, no_rope_layers=[1, 0, 1], attention_chunk_size=7,
            floor_scale=5, attn_scale=0.6, rms_norm_eps=1e-4,
            rope_parameters=rope(
                20000.0, "llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=32,
            ),
        ),
        [
            dict(attention_chunk_size=8), windows, dict(layer_types=[FULL] * 3),
            dict(layer_types=[CHUNKED] * 3), other_pairs(16), dict(use_qk_norm=False),
            dict(attn_temperature_tuning=False), dict(attn_scale=0.1), dict(floor_scale=8),
            grows_from_position_0, weighed_outputs, swapped_gate_and_up,
            zeroed("shared_expert.down_proj"), zeroed("experts.down_proj"),
            dict(rms_norm_eps=1e-6),
            dict(rope_parameters=rope(20000.0)),
        ],
        model_class="Llama4ForCausalLM", old_config=True,
    ),
    "llama4_wrapped": small(
        "Llama4TextConfig",
        dims(
            32, 16, 4, 4, 1, head_dim=16, intermediate_size_mlp=24, num_local_experts=4,
            interleave_moe_layer_step=2, attention_chunk_size=16, floor_scale=8, attn_scale=0.5,
            use_qk_norm=False, rope_parameters=rope(500000.0),
        ),
        [
            dict(attention_chunk_size=17), dict(use_qk_norm=True), weighed_outputs,
            grows_from_position_0, dict(no_rope_layers=[1] * 4),
            attributes("Llama4TextAttention", use_rope=True),
            swapped("gate_proj", "up_proj"), zeroed("shared_expert.down_proj"),
        ],
        model_class="Llama4ForCausalLM",
        layout=wrapped(
            "language_model.model.", "language_model.lm_head.",
            {"vision_model.class_embedding": (16,), "multi_modal_projector.linear_1.weight": (32, 32)},
            llama4,
        ),
        oracle="transformers' text model with its output layer, inside of a multimodal checkpoint",
    ),
}
