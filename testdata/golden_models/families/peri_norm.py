"""Families of the last year without a part of their own.

Mistakes that these goldens catch: factors and norms left out; logits divided where they are
multiplied; a rotation that turns the other way, or comes after the norms; another activation.
"""

from torch import nn
from transformers.models.nanochat import modeling_nanochat

from ..family import Family, dims, rope, small
from ..mistakes import activation, named, replaced, swapped, without


def turning_forwards(model: nn.Module) -> None:
    """The rotation turns as in other families."""
    backwards = modeling_nanochat.rotate_half

    def with_other(forward):
        def other(*args, **kwargs):
            modeling_nanochat.rotate_half = lambda x: -backwards(x)
            try:
                return forward(*args, **kwargs)
            finally:
                modeling_nanochat.rotate_half = backwards

        return other

    for layer in model.model.layers:
        layer.self_attn.forward = with_other(layer.self_attn.forward)


class Unrooted(nn.Module):
    """A norm with another epsilon."""

    def forward(self, x):
        return x / (x.pow(2).mean(-1, keepdim=True) + 0.5).sqrt()


def of_eps(name: str):
    return named(f"another epsilon of {name}", replaced(name, lambda _: Unrooted()))


FAMILIES: dict[str, Family] = {
    "hyperclovax": small(
        "HyperCLOVAXConfig",
        dims(
            32, 48, 3, 4, 2, rms_norm_eps=1e-5, rope_parameters=rope(20000.0),
            embedding_multiplier=3.0, logits_scaling=0.6, residual_multiplier=0.5,
            attention_multiplier=0.2,
        ),
        [
            dict(embedding_multiplier=1.0), dict(logits_scaling=1.0), dict(logits_scaling=1 / 0.6),
            dict(residual_multiplier=1.0), dict(attention_multiplier=0.35), without("post_norm1"),
            without("post_norm2"), swapped("post_norm1", "post_norm2"),
            swapped("post_norm1", "input_layernorm"),
        ],
        head_std=0.8,
    ),
    "hyperclovax_plain": small(
        "HyperCLOVAXConfig",
        dims(
            32, 48, 2, 4, 2, rms_norm_eps=1e-5, use_post_norm=False, rope_parameters=rope(20000.0),
            logits_scaling=1.5,
        ),
        [dict(logits_scaling=1 / 1.5), dict(attention_multiplier=1.0)],
        both_configs=True,
    ),
    "nanochat": small(
        "NanoChatConfig",
        dims(
            48, 64, 3, 3, 1, rms_norm_eps=1e-2, rope_parameters=rope(20000.0),
            final_logit_softcapping=12.0,
        ),
        [
            turning_forwards, of_eps("q_norm"), of_eps("k_norm"), without("q_norm"),
            without("k_norm"), activation("relu", "activation_fn"), activation("gelu", "activation_fn"),
            dict(final_logit_softcapping=15.0), without("input_layernorm"), dict(rms_norm_eps=1e-6),
        ],
        head_std=0.6,
    ),
}
