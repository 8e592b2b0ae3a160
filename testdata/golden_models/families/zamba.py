"""Zamba 2: Mamba 2 in all layers, and before some of them blocks that layers share, with adapters of each use.

Every mistake that is listed with a family moves a golden logprob: `--check` says so.
"""

from torch import nn

from ..family import Family, dims, rope, small
from ..mistakes import attributes, swapped, without, zeroed
from .recurrent import MAMBA, groups_in_turns, one_norm_group

LINEAR, HYBRID = "linear_attention", "hybrid"


def stays_in_the_stream(model: nn.Module) -> None:
    """What a shared block gives is added to the stream, not to what the recurrence reads alone."""
    for module in model.modules():
        if type(module).__name__ == "Zamba2HybridLayer":

            def forward(hidden, *args, transformer_hidden_states, inner=module.mamba_decoder.forward, **more):
                return inner(hidden + transformer_hidden_states, *args, **more)

            module.mamba_decoder.forward = forward


def embeddings_first(model: nn.Module) -> None:
    """The embeddings before the stream."""
    for name, parameter in model.named_parameters():
        if parameter.shape[-1] == 2 * model.config.hidden_size:
            parameter.copy_(parameter.roll(model.config.hidden_size, -1))


def calmed(model: nn.Module) -> None:
    """Scores that a rounding moves less: sharp ones of a block that three layers share make more of it each time."""
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("q_proj", "k_proj", "adapter_list")):
            parameter.mul_(0.5)


def zamba2(*sizes, **more) -> dict:
    return dims(
        *sizes, rms_norm_eps=1e-3, mamba_d_state=12, n_mamba_heads=4, chunk_size=8, adapter_rank=5,
        tie_word_embeddings=True, time_step_min=1e-30, **more,
    )


SHARED = [
    stays_in_the_stream, embeddings_first, zeroed("gate_up_proj_adapter_list"), zeroed(".linear.weight"),
    attributes("Zamba2Attention", scaling=0.25), without("pre_ff_layernorm"), dict(hidden_act="silu"),
    swapped("q_proj", "k_proj"),
]
MIXERS = [mistake for mistake in MAMBA if getattr(mistake, "__name__", "") != "gate_after_norm"]

FAMILIES: dict[str, Family] = {
    "zamba2": small(
        "Zamba2Config",
        zamba2(
            24, 20, 4, 4, 4, layers_block_type=[LINEAR, HYBRID, LINEAR, HYBRID], mamba_ngroups=2,
        ),
        [*MIXERS, groups_in_turns, one_norm_group, *SHARED, dict(use_mem_rope=True)],
        means={"A_log": -1.0}, rounded=calmed, final_norm_mean=2.0,
    ),
    "zamba2_adapters": small(
        "Zamba2Config",
        zamba2(
            24, 12, 3, 4, 4, layers_block_type=[HYBRID, HYBRID, HYBRID], num_mem_blocks=2,
            use_shared_attention_adapter=True, use_mem_rope=True, rope_parameters=rope(100.0),
            mamba_expand=1,
        ),
        [
            *SHARED, dict(use_mem_rope=False), dict(rope_parameters=rope(10.0)),
            zeroed("linear_q_adapter_list"), zeroed("linear_k_adapter_list"), zeroed("linear_v_adapter_list"),
            swapped("linear_q_adapter_list", "linear_v_adapter_list"),
            swapped("gate_up_proj_adapter_list.0", "gate_up_proj_adapter_list.2"),
        ],
        means={"A_log": -1.0}, rounded=calmed, final_norm_mean=1.0,
        # Float32 is within 1e-4 of float64.
        first_seed=10,
    ),
}
