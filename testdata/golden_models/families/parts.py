"""Families with a small part of their own: V heads that are narrower than K heads (MiMo V2), a layer
between the last norm and the output layer (Ettin).

Mistakes that these goldens catch: V heads cut out of rows of another width, or not scaled; a sink
left out; the layer before the output layer, its activation and its norm left out; a bias of logits
left out; the window of ModernBERT's two directions taken for that of one.
"""

from torch import nn

from ..family import FULL, SLIDING, Family, dims, rope, small
from ..layouts import with_extra, with_experts_one_by_one
from ..mistakes import activation, filled, without, zeroed
from ..routing import best_of_groups, biased_weights, swapped_gate_and_up, unbiased

HEAD, V_HEAD = 24, 16
ROPES = {
    FULL: rope(100000.0, partial_rotary_factor=0.5),
    SLIDING: rope(10000.0, partial_rotary_factor=0.25),
}
MIMO = dict(
    head_dim=HEAD, v_head_dim=V_HEAD, n_routed_experts=8, num_experts_per_tok=2,
    moe_intermediate_size=16, sliding_window=8, rms_norm_eps=1e-4,
)
# What transformers has in memory for a name that it writes.
MIMO_NAMES = [("attention_sink_bias", "sinks")]


def of_further_tokens(tensors: dict) -> dict:
    """A tensor of layers that predict the token after the next one."""
    return {"model.mtp.layers.0.enorm.weight": tensors["model.norm.weight"].clone()}


def next_values(model: nn.Module) -> None:
    """Rows of V shifted by one: as if heads had another width."""
    for layer in model.model.layers:
        weight = layer.self_attn.v_proj.weight
        weight.copy_(weight.roll(1, 0))


def scaled_scores(model: nn.Module) -> None:
    """Scores by the width of V heads."""
    for layer in model.model.layers:
        layer.self_attn.scaling = V_HEAD**-0.5


FAMILIES: dict[str, Family] = {
    "mimo_v2": small(
        "MiMoV2FlashConfig",
        dims(
            32, 48, 4, 4, 1, layer_types=[FULL, SLIDING, SLIDING, FULL], n_group=4, topk_group=2,
            routed_scaling_factor=1.5, rope_parameters=ROPES, **MIMO,
        ),
        [
            unbiased, biased_weights, best_of_groups, swapped_gate_and_up, next_values,
            scaled_scores, filled("sinks", -1e9), dict(attention_value_scale=None),
            dict(routed_scaling_factor=1.0), dict(sliding_window=9), dict(norm_topk_prob=False),
            dict(rope_parameters={**ROPES, SLIDING: ROPES[FULL]}),
            dict(rope_parameters={**ROPES, FULL: ROPES[SLIDING]}),
        ],
        layout=with_experts_one_by_one(with_extra(of_further_tokens, MIMO_NAMES)),
    ),
    "ettin": small(
        "ModernBertDecoderConfig",
        dict(
            hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
            max_position_embeddings=256, local_attention=16, norm_eps=1e-3, cls_token_id=1,
            sep_token_id=2, bos_token_id=1, pad_token_id=0, layer_types=[FULL, SLIDING, SLIDING, FULL],
        ),
        [
            activation("relu", "act"), without("norm"), zeroed("decoder.bias"),
            zeroed("lm_head.dense"), dict(sliding_window=16), dict(sliding_window=9),
            dict(layer_types=[FULL] * 4), dict(norm_eps=1e-5), without("final_norm"),
            dict(rope_parameters={FULL: rope(10000.0), SLIDING: rope(10000.0)}),
        ],
        head_std=0.3,
    ),
    "ettin_biases": small(
        "ModernBertDecoderConfig",
        dict(
            hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
            max_position_embeddings=256, local_attention=16, cls_token_id=1, sep_token_id=2,
            bos_token_id=1, pad_token_id=0, tie_word_embeddings=False, decoder_bias=False, norm_bias=True, attention_bias=True,
            mlp_bias=True, classifier_bias=True, classifier_activation="silu",
            rope_parameters={FULL: rope(20000.0), SLIDING: rope(500.0)},
        ),
        [
            zeroed("lm_head.dense.bias"), zeroed("lm_head.norm.bias"), zeroed("Wi.bias"),
            zeroed("attn.Wo.bias"), zeroed("final_norm.bias"), zeroed("embeddings.norm.bias"),
            dict(classifier_activation="gelu"),
        ],
    ),
}
