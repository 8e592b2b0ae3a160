"""Layers that keep a state of the tokens before: short convolutions."""

from torch import nn

from ..family import Family, dims, rope, small
from ..mistakes import named, rows_swapped, swapped, without
from ..routing import swapped_gate_and_up, unbiased

CONV = "conv"


def oldest_tap_lost(model: nn.Module) -> None:
    """A state that is one token short, or is not kept."""
    for module in model.modules():
        if isinstance(module, nn.Conv1d):
            module.weight[..., 0] = 0


def taps_reversed(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Conv1d):
            module.weight.copy_(module.weight.flip(-1))


def eps_of(part: str, eps: float):
    def change(model: nn.Module) -> None:
        for name, module in model.named_modules():
            if name.endswith(part):
                module.variance_epsilon = eps

    return named(f"{part}: eps {eps}", change)


def lfm2(**more) -> dict:
    return dims(
        48, 90, 4, 3, 1, tie_word_embeddings=False, norm_eps=1e-2, block_multiple_of=8,
        rope_parameters=rope(10000.0), **more,
    )


FAMILIES: dict[str, Family] = {
    "lfm2": small(
        "Lfm2Config", lfm2(conv_L_cache=3, layer_types=[CONV, "full_attention", CONV, CONV]),
        [
            oldest_tap_lost, taps_reversed, without("q_layernorm"), eps_of("operator_norm", 1e-6),
            eps_of("k_layernorm", 1e-6), rows_swapped("in_proj.weight", [48, 48]),
            swapped("w1.weight", "w3.weight"), dict(rope_parameters=rope(1000000.0)),
        ],
        old_config=True, old_keys=dict(full_attn_idxs=[1]),
    ),
    "lfm2_moe": small(
        "Lfm2MoeConfig",
        dims(
            48, 64, 4, 3, 1, tie_word_embeddings=False, norm_eps=1e-2, conv_L_cache=3,
            layer_types=[CONV, CONV, "full_attention", CONV], num_dense_layers=1, num_experts=6,
            num_experts_per_tok=2, moe_intermediate_size=16, use_expert_bias=True,
            norm_topk_prob=True, routed_scaling_factor=1.5, rope_parameters=rope(10000.0),
        ),
        [
            oldest_tap_lost, swapped_gate_and_up, unbiased, dict(num_experts_per_tok=3),
            dict(norm_topk_prob=False), dict(routed_scaling_factor=1.0),
        ],
    ),
    "lfm2_bias": small(
        "Lfm2Config",
        lfm2(
            conv_L_cache=4, conv_bias=True, layer_types=["full_attention", CONV, CONV, CONV],
            block_auto_adjust_ff_dim=False,
        ),
        [
            oldest_tap_lost, taps_reversed, named("no bias of the sums", lambda m: [
                c.bias.zero_() for c in m.modules() if isinstance(c, nn.Conv1d)
            ]),
        ],
    ),
}
