"""Mistakes in what makes embeddings of images: `generate_images.py --check` wants each to move one."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from .mistakes import named


def tower_of(model: nn.Module) -> nn.Module:
    return model.model.vision_tower


def interpolated(mode: str, align_corners: bool):
    """Learned positions found in another way."""

    def change(model: nn.Module) -> None:
        positions = tower_of(model).patch_embed.pos_emb
        positions.interpolation_mode, positions.interpolation_align_corners = mode, align_corners

    return named(f"{mode}, corners {align_corners}", change)


def rows_first(model: nn.Module) -> None:
    """Rows turn what columns do."""

    def recomposed(freq: torch.Tensor) -> torch.Tensor:
        both = freq.transpose(1, 2).flatten(1)
        return torch.cat([both, both], dim=-1)

    tower_of(model).rotary_emb.recomposition_frequencies = recomposed


def not_by_turns(model: nn.Module) -> None:
    """All frequencies of columns before those of rows."""

    def recomposed(freq: torch.Tensor) -> torch.Tensor:
        both = freq.flip(1).flatten(1)
        return torch.cat([both, both], dim=-1)

    tower_of(model).rotary_emb.recomposition_frequencies = recomposed


def without_pre_norm(model: nn.Module) -> None:
    model.model.mm_projector.pre_norm = nn.Identity()


def without_positions(model: nn.Module) -> None:
    tower_of(model).patch_embed.pos_emb.position_embeddings.zero_()


def exact_gelu(model: nn.Module) -> None:
    """As vLLM has it with timm."""
    for layer in model.vision.encoder.layers:
        layer.mlp.activation_fn = nn.GELU()


def by_patch(model: nn.Module) -> None:
    """Patches of a token beside each other, and not the values of a channel of all of them."""
    weight = model.projector[0][0]
    width = weight.shape[1] // 4
    model.projector[0][0] = weight.unflatten(1, (width, 4)).transpose(1, 2).flatten(1)


def edges_repeated(model: nn.Module) -> None:
    """Patches at the edge in place of zeros beyond it."""
    zeros = F.pad

    def projected(patches: torch.Tensor) -> torch.Tensor:
        F.pad = lambda x, sides: zeros(x, sides, mode="replicate")
        try:
            return type(model).projected(model, patches)
        finally:
            F.pad = zeros

    model.projected = projected


def without_newlines(model: nn.Module) -> None:
    """Zeros in the place of newlines."""
    model.newline = torch.zeros_like(model.newline)


def separator_is_newline(model: nn.Module) -> None:
    model.separator = model.newline


MOONVIT = [
    interpolated("bilinear", False), interpolated("bicubic", True), rows_first, not_by_turns,
    without_pre_norm, without_positions,
]
VL2 = [exact_gelu, by_patch, edges_repeated, without_newlines, separator_is_newline]
MISTAKES: dict[str, list[Callable[[nn.Module], None]]] = {
    "deepseek_vl2": VL2, "deepseek_vl2_tiny": VL2, "kimi_k25": MOONVIT, "kimi_vl": MOONVIT,
}
