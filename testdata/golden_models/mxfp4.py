"""gpt-oss's experts in MXFP4: blocks of 32 inputs with a scale that is a power of two.

Source: transformers' `integrations/mxfp4.py`, `convert_moe_packed_tensors`.
"""

import torch
from torch import nn

from .family import Layout

LEVELS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
LEVELS = torch.cat([LEVELS, -LEVELS])
PARTS = ("experts.gate_up_proj", "experts.down_proj")
CONFIG = dict(
    quant_method="mxfp4",
    modules_to_not_convert=[
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
    ],
)


def packed(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks (experts, outputs, groups, 16) and scales of (experts, inputs, outputs)."""
    groups = weight.float().transpose(1, 2).unflatten(-1, (-1, 32))
    exponents = torch.ceil(torch.log2(groups.abs().amax(-1) / 6.0)).clamp(-126, 127)
    scaled = groups / torch.exp2(exponents)[..., None]
    codes = (scaled[..., None] - LEVELS).abs().argmin(-1).to(torch.uint8)
    return codes[..., 0::2] | codes[..., 1::2] << 4, (exponents + 127).to(torch.uint8)


def unpacked(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The matrices (experts, inputs, outputs) of blocks and scales."""
    values = torch.stack([LEVELS[(blocks & 15).long()], LEVELS[(blocks >> 4).long()]], dim=-1)
    values = values.flatten(-2) * torch.exp2(scales.float() - 127)[..., None]
    return values.flatten(-2).transpose(1, 2).contiguous()


def rounded(model: nn.Module) -> None:
    """Experts get the values that their codes have."""
    for name, parameter in model.named_parameters():
        if name.endswith(PARTS):
            parameter.copy_(unpacked(*packed(parameter)))


def publish(tensors: dict) -> dict:
    out = dict(tensors)
    for name in [name for name in tensors if name.endswith(PARTS)]:
        out[f"{name}_blocks"], out[f"{name}_scales"] = packed(out.pop(name))
    return out


def restore(tensors: dict) -> dict:
    out = dict(tensors)
    for name in [name for name in tensors if name.endswith("_blocks")]:
        stem = name.removesuffix("_blocks")
        out[stem] = unpacked(out.pop(name), out.pop(f"{stem}_scales"))
    return out


LAYOUT = Layout(lambda config: {**config, "quantization_config": CONFIG}, publish, restore)
