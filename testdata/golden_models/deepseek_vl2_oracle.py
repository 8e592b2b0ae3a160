"""DeepSeek-VL2 in torch, as `modeling_deepseek_vl_v2.py`, `siglip_vit.py` and
`processing_deepseek_vl_v2.py` of its own code have it (MIT, github.com/deepseek-ai/DeepSeek-VL2 at
ef9f91e2): SigLIP without padding of tiles, its projector, embeddings between tokens, and the text
part that the family's golden is of. vLLM pads tiles to whole patches and has another GELU."""

import math
from types import SimpleNamespace

import torch
from PIL import Image, ImageOps
from torch import nn
from torch.nn import functional as F
from torchvision.transforms import functional as TF
from transformers import SiglipVisionConfig, SiglipVisionModel

# timm's names, and those of transformers.
NAMES = [
    ("vision.patch_embed.proj", "embeddings.patch_embedding"), ("vision.blocks", "encoder.layers"),
    ("norm1", "layer_norm1"), ("norm2", "layer_norm2"), ("vision.norm", "post_layernorm"),
    ("attn.proj", "self_attn.out_proj"), ("attn.qkv", "self_attn.qkv"),
]


def of_siglip(tensors: dict) -> dict:
    out = {}
    for name, tensor in tensors.items():
        if not name.startswith("vision.") or "attn_pool" in name:
            continue
        if name == "vision.pos_embed":
            out["embeddings.position_embedding.weight"] = tensor[0]
            continue
        for theirs, own in NAMES:
            name = name.replace(theirs, own)
        if "qkv" in name:
            for part, rows in zip("qkv", tensor.chunk(3), strict=True):
                out[name.replace("qkv", f"{part}_proj")] = rows
        else:
            out[name] = tensor
    return out


class DeepseekVL2(nn.Module):
    def __init__(self, tensors: dict, config: dict, language: nn.Module):
        super().__init__()
        tensors = {name: tensor.float() for name, tensor in tensors.items()}
        vision, projector = config["vision_config"], config["projector_config"]
        keys = SiglipVisionConfig(
            hidden_size=vision["width"], intermediate_size=int(vision["width"] * vision["mlp_ratio"]),
            num_hidden_layers=vision["layers"], num_attention_heads=vision["heads"],
            image_size=vision["image_size"], patch_size=vision["patch_size"],
            hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-6, vision_use_head=False,
        )
        self.vision = SiglipVisionModel._from_config(keys, attn_implementation="eager").float()
        self.vision.load_state_dict(of_siglip(tensors))
        depth = projector.get("depth", 2)
        self.projector = [
            [tensors[f"projector.layers.{2 * index}.{part}"] for part in ("weight", "bias")]
            for index in range(depth)
        ]
        self.newline, self.separator = tensors["image_newline"], tensors["view_seperator"]
        self.language = language
        token = self.language.config.vocab_size - 1
        self.config = SimpleNamespace(
            image_token_id=token, get_text_config=lambda: self.language.config
        )

    @property
    def model(self):
        return self

    def projected(self, patches: torch.Tensor) -> torch.Tensor:
        """(tiles, height, width, hidden) of (tiles, patches, width of the tower)."""
        side = math.isqrt(patches.shape[1])
        squares = patches.unflatten(1, (side, side)).permute(0, 3, 1, 2)
        squares = F.unfold(F.pad(squares, (0, side % 2, 0, side % 2)), 2, stride=2)
        x = squares.transpose(1, 2)
        for index, (weight, bias) in enumerate(self.projector):
            x = F.linear(F.gelu(x) if index else x, weight, bias)
        return x.unflatten(1, (-(-side // 2), -1))

    def get_image_features(self, pixel_values, spatial_crop):
        tiles, first, images = self.projected(self.vision(pixel_values).last_hidden_state), 0, []
        for columns, rows in spatial_crop.tolist():
            whole, local = tiles[first], tiles[first + 1 : first + 1 + rows * columns]
            first += 1 + rows * columns
            local = local.unflatten(0, (rows, columns)).transpose(1, 2).flatten(2, 3).flatten(0, 1)
            lines = [torch.cat([part, self.newline.expand(len(part), 1, -1)], 1).flatten(0, 1)
                     for part in (whole, local)]
            images.append(torch.cat([lines[0], self.separator[None], lines[1]]))
        return SimpleNamespace(pooler_output=images)

    def forward(self, input_ids, pixel_values=None, spatial_crop=None, use_cache=False):
        embeddings = self.language.get_input_embeddings()(input_ids)
        if pixel_values is not None:
            images = self.get_image_features(pixel_values, spatial_crop).pooler_output
            embeddings[input_ids == self.config.image_token_id] = torch.cat(images)
        return self.language(inputs_embeds=embeddings, use_cache=use_cache)


class DeepseekVL2Processor:
    """Of a prompt with `<image>` in the places of its images."""

    def __init__(self, tokenizer, config: dict):
        self.tokenizer, self.image_processor = tokenizer, self
        self.sizes = config["candidate_resolutions"]
        self.tile, self.patch = self.sizes[0][0], config["vision_config"]["patch_size"]

    def best(self, width: int, height: int) -> tuple[int, int]:
        """The first of the sizes that shows most of an image and wastes least."""

        def shown(size):
            scale = min(size[0] / width, size[1] / height)
            area = min(int(width * scale) * int(height * scale), width * height)
            return area, area - size[0] * size[1]

        return max(self.sizes, key=shown)

    def tiles(self, image: Image.Image, size: tuple[int, int]) -> list[torch.Tensor]:
        colour = (127, 127, 127)
        whole = ImageOps.pad(image, (self.tile, self.tile), color=colour)
        local = ImageOps.pad(image, tuple(size), color=colour)
        parts = [
            local.crop((left, top, left + self.tile, top + self.tile))
            for top in range(0, size[1], self.tile) for left in range(0, size[0], self.tile)
        ]
        pixels = [TF.to_tensor(part) for part in (whole, *parts)]
        return [TF.normalize(tile, [0.5] * 3, [0.5] * 3) for tile in pixels]

    def __call__(self, text: str, images=None, return_tensors="pt") -> dict:
        images = images[0] if images else []
        parts, tiles, crops = text.split("<image>"), [], []
        ids = self.tokenizer(parts[0], add_special_tokens=False)["input_ids"]
        token, side = self.tokenizer.convert_tokens_to_ids("<image>"), -(-(self.tile // self.patch) // 2)
        for image, part in zip(images, parts[1:], strict=True):
            size = self.best(*image.size) if len(images) <= 2 else (self.tile, self.tile)
            tiles += self.tiles(image, size)
            columns, rows = (edge // self.tile for edge in size)
            crops.append([columns, rows])
            num_tokens = side * (side + 1) + 1 + rows * side * (columns * side + 1)
            ids += [token] * num_tokens
            ids += self.tokenizer(part, add_special_tokens=False)["input_ids"]
        out = dict(input_ids=torch.tensor([ids]))
        if images:
            out |= dict(pixel_values=torch.stack(tiles), spatial_crop=torch.tensor(crops))
        return out

    def of_chat(self, text: str) -> str:
        """A prompt of one user's message, as its own code writes it."""
        text = text.replace("<image>", "<image>\n").strip()
        bos = self.tokenizer.bos_token
        return f"{bos}<|User|>: {text}\n\n<|Assistant|>:"
