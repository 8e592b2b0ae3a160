"""Gemma 4: heads of two widths, K and V of earlier layers, inputs of each layer, experts.

Mistakes that these goldens catch: the norm of V left out, or V made of K that is normalized; K and V
of the first layer of a kind taken for those of the last; rotary frequencies of the turning part
alone taken for those of the whole head; scores divided by the root of the width; each part of the
inputs of layers left out, and their factors; the scalar of a layer; the router's scale, its factor
and its norm; the factor of each expert; the norms of the MLP and of the experts exchanged; weights
that are not renormalized; the cap of logits; the window.
"""

import re
import zlib

import torch
from torch import nn

from ..family import FULL, SLIDING, Family, dims, rope, small
from ..layouts import of_tower, with_extra, wrapped
from ..mistakes import attributes, filled, named, swapped, without, zeroed
from ..routing import swapped_gate_and_up

TURNING = dict(partial_rotary_factor=0.25)
ROPE = {FULL: rope(1000.0, "proportional", **TURNING), SLIDING: rope(100.0)}
WHOLE = {**ROPE, FULL: rope(1000.0)}

START, END, SOFT = 288, 289, 290  # of tokenizer_kinds.shared_gemma_images
WIDTH, INNER, PATCH, SIDE, DEPTH, HEADS, HEAD = 24, 40, 4, 160, 2, 3, 12
VISION_CONFIG = dict(
    attention_bias=False, attention_dropout=0.0, default_output_length=280, global_head_dim=HEAD,
    head_dim=HEAD, hidden_activation="gelu_pytorch_tanh", hidden_size=WIDTH,
    initializer_range=0.02, intermediate_size=INNER, max_position_embeddings=131072,
    model_type="gemma4_vision", num_attention_heads=HEADS, num_hidden_layers=DEPTH,
    num_key_value_heads=HEADS, patch_size=PATCH, pooling_kernel_size=2,
    position_embedding_size=SIDE, rms_norm_eps=1e-6, rope_parameters=dict(rope_theta=100.0, rope_type="default"),
    standardize=True, use_clipped_linears=False,
)


BOUNDS = ("input_min", "input_max", "output_min", "output_max")


def vision(is_small: bool = False) -> dict[str, tuple[int, ...]]:
    """Tensors of the tower: means that are standardized, or linear layers with bounds and something
    for sounds."""
    tower = "model.vision_tower."
    tensors = {
        f"{tower}patch_embedder.input_proj.weight": (WIDTH, 3 * PATCH * PATCH),
        f"{tower}patch_embedder.position_embedding_table": (2, SIDE, WIDTH),
        "model.embed_vision.embedding_projection.weight": (32, WIDTH),
    }
    if is_small:
        tensors["model.embed_audio.embedding_projection.weight"] = (32, 16)
    else:
        tensors |= {f"{tower}std_bias": (WIDTH,), f"{tower}std_scale": (WIDTH,)}
    for layer in (f"{tower}encoder.layers.{index}." for index in range(DEPTH)):
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            tensors[f"{layer}{norm}_layernorm.weight"] = (WIDTH,)
        for norm in ("q_norm", "k_norm"):
            tensors[f"{layer}self_attn.{norm}.weight"] = (HEAD,)
        for part, shape in {
            **{f"self_attn.{part}_proj": (HEADS * HEAD, WIDTH) for part in "qkv"},
            "self_attn.o_proj": (WIDTH, HEADS * HEAD),
            "mlp.gate_proj": (INNER, WIDTH), "mlp.up_proj": (INNER, WIDTH),
            "mlp.down_proj": (WIDTH, INNER),
        }.items():
            tensors[f"{layer}{part}.linear.weight"] = shape
            if is_small:
                tensors |= {f"{layer}{part}.{bound}": () for bound in BOUNDS}
    return tensors


def of_bounded_tower(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Bounds in which most values are; layers that read the same have the same of inputs."""
    if shape:
        return of_tower(name, shape)
    module, bound = name.rsplit(".", 1)
    if bound.startswith("input"):
        module = re.sub(r"[qkvup]+_proj$|gate_proj$", "", module)
    generator = torch.Generator().manual_seed(zlib.crc32(f"{module} {bound}".encode()))
    size = 0.5 + torch.rand((), generator=generator)
    return -size if bound.endswith("min") else size


def scalars(model: nn.Module) -> None:
    """Each layer has its own."""
    for index, layer in enumerate(model.model.layers):
        layer.layer_scalar.fill_(0.625 + 0.125 * index)


def without_scalars(model: nn.Module) -> None:
    for layer in model.model.layers:
        layer.layer_scalar.fill_(1.0)


def first_of_kind(model: nn.Module) -> None:
    """Layers take K and V of the first layer of their kind, not of the last."""
    seen = set()
    for layer in model.model.layers:
        attention = layer.self_attn
        if not attention.is_kv_shared_layer:
            attention.store_full_length_kv = attention.layer_type not in seen
            seen.add(attention.layer_type)


def narrow_frequencies(model: nn.Module) -> None:
    """Frequencies of the turning part alone, in global layers."""
    frequencies = model.model.rotary_emb.full_attention_inv_freq
    turning = int((frequencies > 0).sum())
    frequencies[:turning] = 1000.0 ** (-torch.arange(turning) / turning)


def normed_values(model: nn.Module) -> None:
    """V made of K after its norm, where V has no projection."""
    found = [m for m in model.modules() if getattr(m, "v_proj", m) is None]
    assert found, "no layer whose V is K"
    for module in found:
        module.v_norm = nn.Sequential(module.k_norm, module.v_norm)


def unshared_weights(model: nn.Module) -> None:
    """Weights of experts are their probabilities."""
    for router in [m for m in model.modules() if type(m).__name__.endswith("TextRouter")]:
        forward = router.forward

        def probable(hidden, forward=forward, router=router):
            probabilities, _, chosen = forward(hidden)
            weights = probabilities.gather(-1, chosen) * router.per_expert_scale[chosen]
            return probabilities, weights, chosen

        router.forward = probable


def router_of_experts(model: nn.Module) -> None:
    """The router reads what the experts read."""
    for layer in model.model.layers:
        norm = layer.pre_feedforward_layernorm_2

        def forward(hidden, forward=layer.router.forward, norm=norm):
            return forward(norm(hidden))

        layer.router.forward = forward


def unused_kv(tensors: dict) -> dict:
    """K and V of layers that take them from others, which published files have all the same."""
    of_layers = {
        name: tensor for name, tensor in tensors.items()
        if ".layers.2.self_attn." in name and ("k_" in name or "v_" in name)
    }
    return {name.replace("layers.2.", "layers.5."): tensor for name, tensor in of_layers.items()}


def published(architecture: str, kind: str, widths: dict, images: dict):
    """A multimodal config whose text part has keys of global layers, as Google writes it."""

    def config(config: dict) -> dict:
        dropped = ("architectures", "per_layer_config", "transformers_version")
        text = {k: v for k, v in config.items() if k not in dropped} | {"pad_token_id": 0}
        return dict(
            architectures=[architecture], model_type=kind, audio_token_id=300,
            boa_token_id=301, dtype="bfloat16", eoa_token_index=303,
            eos_token_id=[config["eos_token_id"]],
            initializer_range=0.02, text_config={**text, **widths}, tie_word_embeddings=True,
            transformers_version="5.7.0", video_token_id=306, **{"audio_config": None, **images},
        )

    return config


IMAGES = dict(
    boi_token_id=START, eoi_token_id=END, image_token_id=SOFT, vision_config=VISION_CONFIG,
)
# What the text part leaves alone.
OTHER_IMAGES = dict(
    boi_token_id=302, eoi_token_id=304, image_token_id=305,
    vision_config=dict(
        hidden_size=8, intermediate_size=16, num_attention_heads=2, num_key_value_heads=2,
        head_dim=4, num_hidden_layers=1, patch_size=2, position_embedding_size=16,
    ),
)
SMALL_IMAGES = dict(
    boi_token_id=START, eoi_token_id=END, image_token_id=SOFT,
    vision_config={**VISION_CONFIG, "standardize": False, "use_clipped_linears": True},
    audio_config=dict(
        model_type="gemma4_audio", hidden_size=16, num_attention_heads=2, num_hidden_layers=1,
        output_proj_dims=16, subsampling_conv_channels=[4, 4],
    ),
)
# Tokens of images have the inputs of `pad_token_id`.
SMALL_WIDTHS = dict(global_head_dim=24, pad_token_id=5)
EXPERTS_WIDTHS = dict(global_head_dim=24, num_global_key_value_heads=1)
UNIFIED_WIDTHS = dict(global_head_dim=16, num_global_key_value_heads=2)

FAMILIES: dict[str, Family] = {
    "gemma4": small(
        "Gemma4TextConfig",
        dims(
            32, 24, 6, 4, 2, head_dim=12, global_head_dim=24, tie_word_embeddings=True,
            rms_norm_eps=1e-3, sliding_window=8, rope_parameters=ROPE,
            layer_types=[SLIDING, FULL, SLIDING, SLIDING, SLIDING, FULL], num_kv_shared_layers=3,
            use_double_wide_mlp=True, hidden_size_per_layer_input=8,
            vocab_size_per_layer_input=300, final_logit_softcapping=8.0,
        ),
        [
            without("v_norm"), without("q_norm"), without("k_norm"), first_of_kind,
            narrow_frequencies, dict(rope_parameters=WHOLE), dict(sliding_window=256),
            attributes("Gemma4TextAttention", scaling=0.25), without_scalars,
            zeroed("embed_tokens_per_layer"), zeroed("per_layer_model_projection"),
            zeroed("per_layer_input_gate"), without("post_per_layer_input_norm"),
            attributes("Gemma4TextModel", per_layer_input_scale=1.0),
            attributes("Gemma4TextModel", per_layer_model_projection_scale=1.0),
            dict(final_logit_softcapping=None),
        ],
        layout=with_extra(unused_kv), rounded=scalars, means={"q_norm": 0.6, "k_norm": 0.6},
    ),
    "gemma4_moe": small(
        "Gemma4TextConfig",
        dims(
            32, 24, 3, 4, 2, head_dim=12, tie_word_embeddings=True, rms_norm_eps=1e-3,
            sliding_window=8, rope_parameters=ROPE, layer_types=[SLIDING, FULL, FULL],
            attention_k_eq_v=True, hidden_size_per_layer_input=0, vocab_size_per_layer_input=300,
            enable_moe_block=True, num_experts=6, top_k_experts=3, moe_intermediate_size=16,
            use_bidirectional_attention="vision", final_logit_softcapping=8.0, **EXPERTS_WIDTHS,
        ),
        [
            normed_values, without("v_norm"), filled("per_expert_scale", 1.0), without_scalars,
            filled("router.scale", 1.0), attributes("Gemma4TextRouter", scalar_root_size=1.0),
            unshared_weights, router_of_experts, swapped_gate_and_up, dict(top_k_experts=2),
            swapped("post_feedforward_layernorm_1", "post_feedforward_layernorm_2"),
            swapped("pre_feedforward_layernorm.", "pre_feedforward_layernorm_2."),
            zeroed("mlp.down_proj"), zeroed("experts.down_proj"), narrow_frequencies,
        ],
        layout=wrapped(
            "model.language_model.", "lm_head.", vision(),
            published("Gemma4ForConditionalGeneration", "gemma4", EXPERTS_WIDTHS, IMAGES),
            of_tower,
        ),
        rounded=scalars, means={"router.scale": 4.0}, shared="gemma_images", first_seed=3,
    ),
    "gemma4_e2b": small(
        "Gemma4TextConfig",
        dims(
            32, 24, 4, 4, 2, head_dim=12, global_head_dim=24, tie_word_embeddings=True,
            rms_norm_eps=1e-3, sliding_window=8, rope_parameters=ROPE,
            layer_types=[SLIDING, FULL, SLIDING, FULL], num_kv_shared_layers=2,
            hidden_size_per_layer_input=8, vocab_size_per_layer_input=300,
            final_logit_softcapping=8.0,
        ),
        [zeroed("embed_tokens_per_layer"), without_scalars],
        layout=wrapped(
            "model.language_model.", "lm_head.", vision(is_small=True),
            published("Gemma4ForConditionalGeneration", "gemma4", SMALL_WIDTHS, SMALL_IMAGES),
            of_bounded_tower,
        ),
        rounded=scalars, means={"q_norm": 0.6, "k_norm": 0.6}, shared="gemma_images", first_seed=6,
    ),
    "gemma4_unified": small(
        "Gemma4UnifiedTextConfig",
        dims(
            32, 48, 2, 4, 4, head_dim=12, tie_word_embeddings=True, rms_norm_eps=1e-3,
            sliding_window=8, rope_parameters=ROPE, layer_types=[SLIDING, FULL],
            attention_k_eq_v=True, final_logit_softcapping=8.0, **UNIFIED_WIDTHS,
        ),
        [normed_values, without("v_norm"), without_scalars, dict(sliding_window=256)],
        layout=wrapped(
            "model.language_model.", "lm_head.", {},
            published(
                "Gemma4UnifiedForConditionalGeneration", "gemma4_unified", UNIFIED_WIDTHS,
                OTHER_IMAGES,
            ),
        ),
        rounded=scalars,
    ),
    "gemma4_unified_text": small(
        "Gemma4UnifiedTextConfig",
        dims(
            32, 48, 4, 4, 2, head_dim=12, tie_word_embeddings=True, rms_norm_eps=1e-3,
            sliding_window=8, rope_parameters=ROPE, layer_types=[SLIDING, FULL, SLIDING, FULL],
            num_kv_shared_layers=2, use_double_wide_mlp=True, global_head_dim=24,
        ),
        [
            without("v_norm"), without("q_norm"), without_scalars, dict(sliding_window=256),
            dict(rope_parameters=WHOLE), narrow_frequencies,
        ],
        model_class="Gemma4UnifiedForCausalLM", rounded=scalars,
        means={"q_norm": 0.6, "k_norm": 0.6},
    ),
}
