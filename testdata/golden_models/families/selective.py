"""Layers of Mamba 1: states whose values each have their own rate, dt of every channel.

Every mistake that is listed with a family moves a golden logprob: `--check` says so.
"""

from torch import nn

from ..family import Family, dims, small
from ..mistakes import filled, named, rows_swapped, swapped, without, zeroed
from ..routing import routed, softmax_chosen, swapped_gate_and_up
from .recurrent import mixers, oldest_tap_lost, taps_reversed


def b_and_c_swapped(model: nn.Module) -> None:
    for mixer in mixers(model):
        size = mixer.ssm_state_size
        rows = mixer.x_proj.weight
        b = rows[-2 * size : -size].clone()
        rows[-2 * size : -size] = rows[-size:]
        rows[-size:] = b


def dt_last(model: nn.Module) -> None:
    """B, C and then what dt is made of."""
    for mixer in mixers(model):
        mixer.x_proj.weight.copy_(mixer.x_proj.weight.roll(-2 * mixer.ssm_state_size, 0))


def one_rate(model: nn.Module) -> None:
    """A channel's values of the state all forget as fast as the first."""
    for mixer in mixers(model):
        mixer.A_log.copy_(mixer.A_log[:, :1].clone().expand_as(mixer.A_log))


def rates_by_turns(model: nn.Module) -> None:
    """Rates stored (channels, states) taken for (states, channels)."""
    for mixer in mixers(model):
        rates = mixer.A_log
        rates.copy_(rates.clone().flatten().view(rates.shape[1], rates.shape[0]).T)


def halves_swapped(inner: int):
    return named("z before x", rows_swapped("in_proj.weight", [inner, inner]))


SELECTIVE = [
    oldest_tap_lost, taps_reversed, b_and_c_swapped, dt_last, one_rate, rates_by_turns,
    zeroed(".D"), zeroed("dt_proj.bias"), filled("A_log", -20.0), filled("A_log", 20.0),
]
NORMS = [without("dt_layernorm"), without("b_layernorm"), without("c_layernorm")]


def mamba(**more) -> dict:
    return dict(
        hidden_size=40, num_hidden_layers=2, state_size=12, layer_norm_epsilon=1e-2,
        time_step_rank=5, tie_word_embeddings=False, **more,
    )


def jamba(*sizes, **more) -> dict:
    return dims(
        *sizes, rms_norm_eps=1e-2, mamba_d_state=12, mamba_dt_rank=5, attn_layer_period=3,
        attn_layer_offset=1, tie_word_embeddings=False, **more,
    )


FAMILIES: dict[str, Family] = {
    "mamba": small(
        "MambaConfig", mamba(),
        [*SELECTIVE, halves_swapped(80), zeroed("conv1d.bias"), dict(layer_norm_epsilon=1e-6)],
    ),
    "falcon_mamba": small(
        "FalconMambaConfig",
        mamba(
            expand=16, intermediate_size=72, use_bias=True, use_conv_bias=False, conv_kernel=3,
            mixer_rms_eps=1e-1,
        ),
        [
            *SELECTIVE, *NORMS, halves_swapped(72), zeroed("in_proj.bias"),
            zeroed("out_proj.bias"), dict(mixer_rms_eps=1e-6),
        ],
    ),
    "jamba": small(
        "JambaConfig",
        jamba(
            32, 16, 4, 4, 1, num_experts=4, num_experts_per_tok=2, expert_layer_period=2,
            expert_layer_offset=1,
        ),
        [
            *SELECTIVE, *NORMS, halves_swapped(64), zeroed("conv1d.bias"), swapped_gate_and_up,
            routed("a softmax of the chosen", softmax_chosen), dict(num_experts_per_tok=1),
            dict(rms_norm_eps=1e-6), swapped("gate_proj", "up_proj"),
            swapped("input_layernorm", "pre_ff_layernorm"), zeroed("k_proj"),
        ],
        old_config=True, old_keys=dict(
            calc_logits_for_entire_prompt=False, mamba_inner_layernorms=True, n_ctx=256,
            sliding_window=None,
        ),
    ),
    "jamba_dense": small(
        "JambaConfig",
        jamba(
            40, 32, 3, 5, 1, num_experts=1, num_experts_per_tok=1, mamba_proj_bias=True,
            mamba_conv_bias=False, mamba_d_conv=3, mamba_expand=1,
        ),
        [
            *SELECTIVE, *NORMS, halves_swapped(40), zeroed("mamba.in_proj.bias"),
            zeroed("mamba.out_proj.bias"),
        ],
    ),
}
