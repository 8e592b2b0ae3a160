"""Gemma 3n: streams that layers mix, a branch beside attention, gates of which the largest are kept.

Mistakes that these goldens catch: each part of the mixing left out, and its factors; the branch and
its factor left out; streams that do not have the size of the first; the side block added to the
stream that layers run on; gates of layers that keep all, and the other way round; K and V of the
first layer of a kind; the rest as in Gemma 4.
"""

import torch
from torch import nn

from ..family import FULL, SLIDING, Family, dims, rope, small
from ..layouts import wrapped
from ..mistakes import attributes, filled, named, swapped, without, zeroed
from .gemma4 import first_of_kind

ROPE = {FULL: rope(1000.0), SLIDING: rope(100.0)}
AUDIO = dict(
    model_type="gemma3n_audio", hidden_size=16, conf_num_attention_heads=2,
    conf_num_hidden_layers=1, sscp_conv_channel_size=[4, 4], vocab_size=8,
)
VISION = dict(model_type="gemma3n_vision", hidden_size=16, vocab_size=8)


def in_all_streams(model: nn.Module) -> None:
    """The side block is added to all streams."""
    for layer in model.model.layers:

        def forward(streams, *args, forward=layer.forward, altup=layer.altup, **kwargs):
            corrected = {}
            correct = altup.correct

            def seen(*parts):
                corrected["all"] = correct(*parts)
                return corrected["all"].clone()

            altup.correct = seen
            out = forward(streams, *args, **kwargs)
            altup.correct = correct
            added = out[1] - corrected["all"][1]
            return torch.cat([(out[0] + added)[None], out[1:]])

        layer.forward = forward


def last_row_behind(model: nn.Module) -> None:
    """Tokens behind the table of inputs have its last row."""
    inputs = model.model.get_per_layer_inputs
    last = model.config.vocab_size_per_layer_input - 1
    model.model.get_per_layer_inputs = lambda ids: inputs(ids.clamp(max=last))


def other_coefs(model: nn.Module) -> None:
    """Coefficients of what is predicted, by the streams that are read first."""
    for layer in model.model.layers:
        weight = layer.altup.prediction_coefs.weight
        num = weight.shape[1]
        weight.copy_(weight.view(num, num, num).transpose(0, 1).reshape(weight.shape))


def unscaled_kinds(model: nn.Module) -> None:
    """The router reads the norm as it is."""
    for layer in model.model.layers:
        layer.altup.router_input_scale.fill_(1.0)


def gemma3n(config: dict) -> dict:
    """As Google writes the multimodal class."""
    text = {k: v for k, v in config.items() if k not in ("architectures", "transformers_version")}
    return dict(
        architectures=["Gemma3nForConditionalGeneration"], audio_config=AUDIO,
        audio_soft_tokens_per_image=188, audio_token_id=291, boa_token_id=292, boi_token_id=293,
        dtype="bfloat16", eoa_token_id=294, eoi_token_id=295, image_token_id=296,
        initializer_range=0.02, model_type="gemma3n", text_config=text, tie_word_embeddings=True,
        transformers_version=config["transformers_version"], vision_config=VISION,
        vision_soft_tokens_per_image=256,
    )


COMMON = dict(
    head_dim=12, tie_word_embeddings=True, rms_norm_eps=1e-3, sliding_window=8,
    rope_parameters=ROPE, hidden_size_per_layer_input=8, final_logit_softcapping=8.0,
)

FAMILIES: dict[str, Family] = {
    "gemma3n": small(
        "Gemma3nTextConfig",
        dims(
            32, [24, 16, 24, 16, 24], 5, 4, 2, num_kv_shared_layers=2, laurel_rank=8,
            layer_types=[SLIDING, FULL, SLIDING, SLIDING, FULL],
            activation_sparsity_pattern=[0.9, 0.75, 0.0, 0.0, 0.0],
            vocab_size_per_layer_input=300, altup_active_idx=0, altup_num_inputs=4, **COMMON,
        ),
        [
            without("v_norm"), without("q_norm"), without("k_norm"), first_of_kind,
            dict(sliding_window=256), dict(sliding_window=7),
            attributes("Gemma3nTextAttention", scaling=0.25),
            zeroed("embed_tokens_per_layer"), zeroed("per_layer_model_projection"),
            zeroed("per_layer_input_gate"), without("post_per_layer_input_norm"),
            dict(final_logit_softcapping=30.0), zeroed("linear_right"),
            without("post_laurel_norm"), zeroed("prediction_coefs"), zeroed("correction_coefs"),
            zeroed("modality_router"), without("router_norm"), unscaled_kinds, other_coefs,
            filled("correct_output_scale", 1.0), in_all_streams, zeroed("altup_projections"),
            zeroed("altup_unembed_projections.1"),
            swapped("altup_projections.0", "altup_projections.1"),
            dict(activation_sparsity_pattern=[0.9, 0.9, 0.0, 0.0, 0.0]),
            dict(activation_sparsity_pattern=[0.0] * 5),
            dict(rope_parameters={**ROPE, FULL: ROPE[SLIDING]}),
            swapped("post_attention_layernorm", "post_feedforward_layernorm"),
        ],
        means={"q_norm": 0.6, "k_norm": 0.6},
    ),
    "gemma3n_wrapped": small(
        "Gemma3nTextConfig",
        dims(
            32, 24, 4, 4, 1, num_kv_shared_layers=2, laurel_rank=4,
            layer_types=[FULL, SLIDING, FULL, SLIDING],
            activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0], vocab_size_per_layer_input=120,
            altup_active_idx=1, altup_num_inputs=3, altup_correct_scale=False, **COMMON,
        ),
        [
            dict(altup_active_idx=0), dict(altup_correct_scale=True), zeroed("correction_coefs"),
            last_row_behind, in_all_streams,
        ],
        model_class="Gemma3nForCausalLM",
        layout=wrapped(
            "model.language_model.", "lm_head.",
            {
                "model.embed_vision.embedding_projection.weight": (32, 16),
                "model.vision_tower.timm_model.conv_stem.conv.weight": (4, 3, 3, 3),
                "model.audio_tower.conformer.0.norm.weight": (16,),
                # Of a layer that takes K and V from another.
                "model.language_model.layers.3.self_attn.k_proj.weight": (12, 32),
                "model.language_model.layers.3.self_attn.v_proj.weight": (12, 32),
                "model.language_model.layers.3.self_attn.k_norm.weight": (12,),
            },
            gemma3n,
        ),
        means={"q_norm": 0.6, "k_norm": 0.6},
        oracle="transformers' text model with its output layer, inside of a multimodal checkpoint",
    ),
}
