"""Rotary embeddings that transformers chooses by the current length, fixed for a whole run.

vllm-batch decides once, by the run's longest context. So does the oracle: the frequencies are
replaced when the model is made.
"""

from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


def fixed_at(length: int):
    """The frequencies that dynamic or longrope have for sequences of this length, at every
    position."""

    def fix(model: nn.Module) -> None:
        found = [m for m in model.modules() if hasattr(m, "inv_freq")]
        assert found
        for rotary in found:
            make = ROPE_INIT_FUNCTIONS[rotary.config.rope_parameters["rope_type"]]
            inv_freq, rotary.attention_scaling = make(rotary.config, seq_len=length)
            rotary.inv_freq.copy_(inv_freq)
            rotary.rope_type = "default"  # no update by the current length

    fix.__name__ = f"frequencies of length {length}"
    return fix
