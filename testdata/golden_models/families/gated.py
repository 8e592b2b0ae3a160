"""What heads give is multiplied by a gate.

Mistakes that these goldens catch: a gate left out; a rotary embedding of layers that have none, or
none of those that have one; a norm that is left out or in another's place; a bias of the choice of
experts left out, or used in the weights; factors of embeddings and experts left out.
"""

from torch import nn

from ..family import FULL, SLIDING, Family, dims, rope, small
from ..mistakes import swapped, without, zeroed
from ..routing import routers, swapped_gate_and_up, unbiased


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
}
