"""dots.ocr in torch, as `modeling_dots_vision.py` of its own code and vLLM's `dots_ocr.py` have it:
patches with a norm behind them, blocks of RMSNorms with heads that turn by rows and columns, a norm
behind all of them, what makes tokens of squares, and the text part that the family's golden is of."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F


class DotsOcr(nn.Module):
    def __init__(self, tensors: dict, config: dict, language: nn.Module):
        super().__init__()
        prefix = "vision_tower."
        self.tensors = {
            name.removeprefix(prefix): tensor.float()
            for name, tensor in tensors.items() if name.startswith(prefix)
        }
        self.vision, self.language = config["vision_config"], language
        self.config = SimpleNamespace(
            image_token_id=config["image_token_id"], get_text_config=lambda: language.config
        )

    @property
    def model(self):
        return self

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        eps = self.vision["rms_norm_eps"]
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        return x * scale * self.tensors[f"{name}.weight"]

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def angles(self, height: int, width: int) -> torch.Tensor:
        """(patches, half of a head), in the order of squares."""
        side = self.vision["spatial_merge_size"]
        dim = self.vision["embed_dim"] // self.vision["num_attention_heads"] // 2
        inv_freq = 1.0 / 10000.0 ** (torch.arange(0, dim, 2, dtype=torch.float) / dim)

        def in_squares(places: torch.Tensor) -> torch.Tensor:
            squares = places.reshape(height // side, side, width // side, side)
            return squares.permute(0, 2, 1, 3).flatten()

        rows = in_squares(torch.arange(height)[:, None].expand(-1, width))
        columns = in_squares(torch.arange(width)[None].expand(height, -1))
        return torch.cat([rows[:, None] * inv_freq, columns[:, None] * inv_freq], dim=-1)

    def attention(self, block: str, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        heads = self.vision["num_attention_heads"]
        q, k, v = self.linear(f"{block}.attn.qkv", x).unflatten(-1, (3, heads, -1)).unbind(1)
        cos, sin = (f(angles).repeat(1, 2)[:, None] for f in (torch.cos, torch.sin))

        def turned(x: torch.Tensor) -> torch.Tensor:
            first, second = x.chunk(2, dim=-1)
            return x * cos + torch.cat([-second, first], dim=-1) * sin

        q, k, v = (part.transpose(0, 1) for part in (turned(q), turned(k), v))
        scores = q @ k.transpose(1, 2) * q.shape[-1] ** -0.5
        out = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
        return self.linear(f"{block}.attn.proj", out)

    def mlp(self, block: str, x: torch.Tensor) -> torch.Tensor:
        gate = F.silu(self.linear(f"{block}.mlp.fc1", x))
        return self.linear(f"{block}.mlp.fc2", gate * self.linear(f"{block}.mlp.fc3", x))

    def embedded(self, pixels: torch.Tensor, grid: list[int]) -> torch.Tensor:
        _, height, width = grid
        patch = self.vision["patch_size"]
        weight = self.tensors["patch_embed.patchifier.proj.weight"].flatten(1)
        # One frame.
        pixels = pixels.view(len(pixels), 3, -1, patch, patch)[:, :, 0].flatten(1)
        x = F.linear(pixels, weight, self.tensors["patch_embed.patchifier.proj.bias"])
        x = self.norm("patch_embed.patchifier.norm", x)
        angles = self.angles(height, width)
        for index in range(self.vision["num_hidden_layers"]):
            block = f"blocks.{index}"
            x = x + self.attention(block, self.norm(f"{block}.norm1", x), angles)
            x = x + self.mlp(block, self.norm(f"{block}.norm2", x))
        if self.vision["post_norm"]:
            x = self.norm("post_trunk_norm", x)
        weight, bias = (self.tensors[f"merger.ln_q.{part}"] for part in ("weight", "bias"))
        x = F.layer_norm(x, x.shape[-1:], weight, bias, 1e-6)
        x = x.view(-1, self.vision["spatial_merge_size"] ** 2 * x.shape[-1])
        return self.linear("merger.mlp.2", F.gelu(self.linear("merger.mlp.0", x)))

    def get_image_features(self, pixel_values, image_grid_thw):
        grids = image_grid_thw.tolist()
        parts = pixel_values.split([rows * columns for _, rows, columns in grids])
        images = [self.embedded(part, grid) for part, grid in zip(parts, grids, strict=True)]
        return SimpleNamespace(pooler_output=images)

    def forward(self, input_ids, pixel_values=None, image_grid_thw=None, use_cache=False):
        embeddings = self.language.get_input_embeddings()(input_ids)
        if pixel_values is not None:
            images = self.get_image_features(pixel_values, image_grid_thw).pooler_output
            embeddings[input_ids == self.config.image_token_id] = torch.cat(images)
        return self.language(inputs_embeds=embeddings, use_cache=use_cache)
