"""What heads give is multiplied by a gate.

Mistakes that these goldens catch: a gate left out; a rotary embedding of layers that have none, or
none of those that have one; a norm that is left out or in another's place; a bias of the choice of
experts left out, or used in the weights; factors of embeddings and experts left out.
"""

import torch
from torch import nn

from .. import muse  # a class that transformers lacks
from ..family import FULL, SLIDING, Family, dims, rope, small
from ..layouts import of_tower, wrapped
from ..mistakes import named, swapped, without, zeroed
from ..routing import routers, swapped_gate_and_up, unbiased
from .towers import IMAGE_TOKEN


def rotated_everywhere(model: nn.Module) -> None:
    """Layers without a window are rotated, too."""
    for layer in model.model.layers:
        layer.self_attn.is_local_attention = True


def biased_weights(model: nn.Module) -> None:
    """The bias counts in the weights too."""
    for router in routers(model):
        forward = router.forward

        def with_bias(hidden, bias, forward=forward):
            logits, weights, indices = forward(hidden, bias)
            return logits, weights + bias[indices], indices

        router.forward = with_bias


def gates_by(function):
    """Gates by another function than softplus."""

    def change(model: nn.Module) -> None:
        for layer in model.model.layers:
            forward = layer.self_attn.forward

            def other(*args, forward=forward, **kwargs):
                softplus, nn.functional.softplus = nn.functional.softplus, function
                try:
                    return forward(*args, **kwargs)
                finally:
                    nn.functional.softplus = softplus

            layer.self_attn.forward = other

    return named(f"gates by {function.__name__}", change)


def gates_of_neighbours(model: nn.Module) -> None:
    """Gates taken for those of values that are heads' number apart."""
    for layer in model.model.layers:
        gate = layer.self_attn.g_proj.weight
        gate.copy_(gate.roll(1, 0))


def biased_shares(model: nn.Module) -> None:
    """The bias counts in the weights too."""
    for router in routers(model):
        forward, bias = router.forward, router.e_score_correction_bias

        def with_bias(hidden, forward=forward, bias=bias):
            logits, weights, indices = forward(hidden)
            return logits, weights + bias[indices], indices

        router.forward = with_bias


ROPES = {FULL: rope(500000.0, partial_rotary_factor=0.5), SLIDING: rope(10000.0)}
LAGUNA = dict(
    head_dim=16, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
    shared_expert_intermediate_size=24, sliding_window=8, moe_routed_scaling_factor=2.5,
    rms_norm_eps=1e-5,
)
VISION = dict(
    hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, patch_size=4,
    pos_emb_height=4, pos_emb_width=4, model_type="muse_glimmer_vision",
)


MUSE_VISION = VISION | dict(
    hidden_act="gelu", layer_norm_eps=1e-3, num_hidden_layers=3, patch_size=8,
    layer_types=["window_attention", "full_attention", "window_attention"], merge_size=2,
    patch_temporal=2, rope_parameters=dict(rope_type="axial", rope_theta=100.0),
)


def muse_tower(hidden: int) -> dict[str, tuple[int, ...]]:
    """Tensors of Muse Glimmer's tower, and of what makes tokens of its patches."""
    width, inner, tower = 16, 24, "model.vision_tower."
    tensors = {
        f"{tower}patch_embedder.patch_embedding.weight": (width, 2 * 3 * 8 * 8),
        f"{tower}patch_embedder.position_embedding_table.weight": (16, width),
        "model.vision_adapter.fc1.weight": (20, 4 * width),
        "model.vision_adapter.fc2.weight": (20, 20),
        "model.vision_projection.weight": (hidden, 20),
    }
    norms = [f"{tower}ln_pre", f"{tower}ln_post"]
    for layer in (f"{tower}layers.{index}." for index in range(3)):
        norms += [f"{layer}norm1", f"{layer}norm2"]
        for part, shape in {
            "attn.q_proj": (width, width), "attn.k_proj": (width, width),
            "attn.v_proj": (width, width), "attn.proj": (width, width), "mlp.fc1": (inner, width),
            "mlp.fc2": (width, inner),
        }.items():
            tensors[f"{layer}{part}.weight"], tensors[f"{layer}{part}.bias"] = shape, shape[:1]
    for norm in norms:
        tensors[f"{norm}.weight"] = tensors[f"{norm}.bias"] = (width,)
    return tensors


def muse_glimmer(config: dict) -> dict:
    """As transformers writes the multimodal class."""
    text = {k: v for k, v in config.items() if k not in ("architectures", "transformers_version")}
    return dict(
        architectures=["MuseGlimmerForConditionalGeneration"], dtype="bfloat16",
        eos_token_id=config["eos_token_id"], image_token_id=IMAGE_TOKEN,
        model_type="muse_glimmer", out_hidden_size=64, projector_hidden_act="gelu",
        projector_hidden_size=20, text_config=text, tie_word_embeddings=False,
        transformers_version=config["transformers_version"], vision_config=MUSE_VISION,
    )


def plain_norms(model: nn.Module) -> None:
    """1 + w taken for w in norms of layers."""
    for name, parameter in model.named_parameters():
        if "layernorm" in name:
            parameter.sub_(1.0)


FAMILIES: dict[str, Family] = {
    "afmoe": small(
        "AfmoeConfig",
        dims(
            32, 48, 4, 4, 2, head_dim=16, num_experts=6, num_experts_per_tok=2,
            moe_intermediate_size=16, num_shared_experts=1, num_dense_layers=1, route_scale=2.5,
            sliding_window=8, mup_enabled=True, rms_norm_eps=1e-4, rope_parameters=rope(20000.0),
            layer_types=[SLIDING, SLIDING, FULL, SLIDING],
        ),
        [
            unbiased, biased_weights, swapped_gate_and_up, dict(route_scale=1.0),
            dict(mup_enabled=False), dict(num_dense_layers=0), dict(num_experts_per_tok=3),
            zeroed("self_attn.gate_proj"), zeroed("shared_experts.down_proj"),
            swapped("post_attention_layernorm", "pre_mlp_layernorm"), without("post_mlp_layernorm"),
            without("q_norm"), without("k_norm"), rotated_everywhere, dict(sliding_window=9),
            dict(layer_types=[SLIDING] * 4), dict(layer_types=[FULL] * 4),
        ],
    ),
    "laguna": small(
        "LagunaConfig",
        dims(
            32, 48, 4, 4, 2, layer_types=[FULL, SLIDING, SLIDING, FULL],
            num_attention_heads_per_layer=[4, 8, 2, 6], rope_parameters=ROPES, **LAGUNA,
        ),
        [
            unbiased, biased_shares, swapped_gate_and_up, dict(moe_routed_scaling_factor=1.0),
            zeroed("g_proj"), gates_by(torch.sigmoid), gates_by(nn.functional.silu),
            gates_of_neighbours, zeroed("shared_experts.down_proj"), without("q_norm"),
            without("k_norm"), dict(sliding_window=9), dict(num_experts_per_tok=3),
            dict(rope_parameters={**ROPES, FULL: rope(500000.0)}),
            dict(rope_parameters={**ROPES, SLIDING: ROPES[FULL]}),
        ],
    ),
    "laguna_values": small(
        "LagunaConfig",
        dims(
            32, 48, 3, 4, 2, gating="per-element", layer_types=[SLIDING, FULL, SLIDING],
            mlp_layer_types=["sparse", "dense", "sparse"], rope_parameters=ROPES, **LAGUNA,
        ),
        [
            zeroed("g_proj"), gates_by(torch.sigmoid), gates_of_neighbours,
            dict(layer_types=[FULL] * 3),
        ],
    ),
    "muse_glimmer": small(
        "MuseGlimmerTextConfig",
        dims(
            32, 48, 4, 4, 2, head_dim=16, sliding_window=8, rms_norm_eps=1e-3, post_norm_eps=1e-2,
            layer_types=[SLIDING, FULL, SLIDING, FULL], layer_rope_theta=[20000.0, 0, 0, 20000.0],
            rope_parameters=rope(20000.0), final_logit_softcapping=8.0, output_multiplier=0.7,
        ),
        [
            zeroed("self_attn.gate_proj"), dict(post_norm_eps=1e-3), dict(output_multiplier=1.0),
            dict(qk_scale_factor=1.0), dict(final_logit_softcapping=20.0), plain_norms,
            dict(layer_rope_theta=[20000.0] * 4), dict(layer_rope_theta=[20000.0, 0, 20000.0, 0]),
            without("qk_norm"), without("embed_norm"), dict(sliding_window=9),
            swapped("post_attention_layernorm", "pre_feedforward_layernorm"),
        ],
        model_class="MuseGlimmerForCausalLM",
        layout=wrapped("model.language_model.", "lm_head.", muse_tower(32), muse_glimmer, of_tower),
        oracle="transformers' text model with its output layer, inside of a multimodal checkpoint",
        norm_mean=0.0, final_norm_mean=1.0, shared="lfm2_images",
    ),
}
