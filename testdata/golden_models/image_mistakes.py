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
def image_embed(model: nn.Module) -> nn.Module:
    return model.model.embed_tokens_extend.image_embed


def unmasked(module, args, kwargs):
    mask = torch.ones_like(kwargs["patch_attention_mask"])
    return args, kwargs | dict(patch_attention_mask=mask)


def all_seen(model: nn.Module) -> None:
    """What is beside an image is seen too."""
    image_embed(model).img_processor.register_forward_pre_hook(unmasked, with_kwargs=True)


def own_positions(model: nn.Module) -> None:
    """Patches have positions of their place in a tile, and not in what of it is the image."""
    embeddings = image_embed(model).img_processor.embeddings
    embeddings.register_forward_pre_hook(unmasked, with_kwargs=True)


def other_layer(model: nn.Module) -> None:
    image_embed(model).layer_idx = -1


def whole_line(model: nn.Module) -> None:
    """The separator is as the rows that stand behind lines."""
    embed = image_embed(model)
    embed.global_img_feature_extensor.data = embed.sub_img_feature_extensor.data[0].clone()


def whole_antialiased(model: nn.Module) -> None:
    """The whole picture is what its tiles would make by means."""
    embed = image_embed(model)
    embed.register_forward_pre_hook(antialiased, with_kwargs=True)


def antialiased(module, args, kwargs):
    values = kwargs["image_pixel_values"].clone()
    tile = values.shape[-1]
    for image, (height, width) in zip(values, kwargs["image_sizes"].tolist()):
        rows, columns = height // tile, width // tile
        tiles = image[1 : 1 + rows * columns].view(rows, columns, 3, tile, tile)
        picture = tiles.permute(2, 0, 3, 1, 4).reshape(1, 3, height, width)
        image[0] = F.interpolate(picture, (tile, tile), mode="bicubic", antialias=True)[0]
    return args, kwargs | dict(image_pixel_values=values)


PHI4 = [all_seen, own_positions, other_layer, whole_line, whole_antialiased]


def without_norm(name: str):
    def change(model: nn.Module) -> None:
        own = model.norm
        model.norm = lambda part, x: x if part.endswith(name) else own(part, x)

    return named(f"without {name}", change)


def gate_is_up(model: nn.Module) -> None:
    for name in [name for name in model.tensors if ".fc1." in name]:
        other = name.replace("fc1", "fc3")
        model.tensors[name], model.tensors[other] = model.tensors[other], model.tensors[name]


def columns_first(model: nn.Module) -> None:
    own = model.angles
    model.angles = lambda *sides: own(*sides).unflatten(1, (2, -1)).flip(1).flatten(1)


DOTS = [
    without_norm("patchifier.norm"), without_norm("post_trunk_norm"), gate_is_up, columns_first,
]


def without_distances(axis: str):
    def change(model: nn.Module) -> None:
        for layer in tower_of(model).layers:
            getattr(layer.attn, f"rel_pos_{axis}").zero_()

    return named(f"without rel_pos_{axis}", change)


def other_windows(model: nn.Module) -> None:
    """What is beyond an edge is not seen."""
    for layer in tower_of(model).layers:
        layer.attn.qkv.bias.data[layer.attn.qkv.bias.shape[0] // 3 :].zero_()


def distances_of_scaled(model: nn.Module) -> None:
    for layer in tower_of(model).layers:
        for axis in "hw":
            getattr(layer.attn, f"rel_pos_{axis}").mul_(layer.attn.scale)


GOT = [
    without_distances("h"), without_distances("w"), other_windows, distances_of_scaled,
]
MISTAKES: dict[str, list[Callable[[nn.Module], None]]] = {
    "phi4_multimodal": PHI4, "phi4_multimodal_untied": PHI4, "phi4mm": PHI4,
    "deepseek_vl2": VL2, "dots_ocr": DOTS, "got_ocr2": GOT, "deepseek_vl2_tiny": VL2, "kimi_k25": MOONVIT, "kimi_vl": MOONVIT,
}
