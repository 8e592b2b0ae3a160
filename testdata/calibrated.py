"""What GPTQ and AWQ do beyond rounding: they look at the inputs of the layers.

A layer's inputs enter as their second moments H = XᵀX: an error E of its weights costs tr(E H Eᵀ).
"""

from dataclasses import dataclass

import torch
from golden_models.quantized.bits import packed

MAX_CODE = 15
ZERO = 8


@dataclass
class Inputs:
    """What is known of a layer's inputs."""

    moments: torch.Tensor  # H, (inputs, inputs)
    magnitudes: torch.Tensor  # sums of |X|, (inputs)

    def scaled(self, scales):
        """Of inputs that are divided by scales."""
        moments = self.moments / scales[:, None] / scales[None, :]
        return Inputs(moments, self.magnitudes / scales)


def inputs_of_layers(folder, text, chars):
    """Of each linear layer of a transformers folder, by the module's name."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = {}

    def hook(name):
        def add(_, inputs):
            x = inputs[0].flatten(0, -2)
            so_far = found.get(name, Inputs(0, 0))
            found[name] = Inputs(so_far.moments + x.T @ x, so_far.magnitudes + x.abs().sum(0))

        return add

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.register_forward_pre_hook(hook(name))
    with torch.no_grad():
        for start in range(0, len(text), chars):
            model(tokenizer(text[start : start + chars], return_tensors="pt").input_ids)
    return found


def gptq(weight, moments, group):
    """Tensors of 4 bits in AutoGPTQ's layout. Each column's error is taken up by those behind it,
    as their inputs go along with its own (Frantar et al., 2022)."""
    outputs, inputs = weight.shape
    damped = moments.double() + 0.01 * moments.double().diagonal().mean() * torch.eye(inputs)
    inverse = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(damped)))
    inverse = inverse.T.float()
    weight = weight.clone()
    codes = torch.empty(outputs, inputs, dtype=torch.int64)
    scales = []
    for column in range(inputs):
        if column % group == 0:
            part = weight[:, column : column + group]
            scale = best_scale(part, moments.diagonal()[column : column + group])
            scales.append(scale)
        value = weight[:, column]
        codes[:, column] = (value / scale).round().add(ZERO).clamp(0, MAX_CODE)
        error = (value - scale * (codes[:, column] - ZERO)) / inverse[column, column]
        weight[:, column + 1 :] -= error[:, None] * inverse[column, column + 1 :][None, :]
    groups = torch.arange(inputs) // group
    zeros = torch.full((len(scales), outputs), ZERO)
    return {
        "qweight": packed(codes, 4).T, "qzeros": packed(zeros - 1, 4),
        "scales": torch.stack(scales).half(), "g_idx": groups.int(),
    }


def best_scale(part, importance):
    """By output, the scale (a float16) of a group that costs least of 20."""
    largest = part.abs().amax(1).clamp(min=1e-8) / 7.5
    best, scale = torch.full_like(largest, torch.inf), largest
    for shrink in torch.linspace(0.6, 1.05, 20):
        tried = (largest * shrink).half().float()
        codes = (part / tried[:, None]).round().clamp(-ZERO, MAX_CODE - ZERO)
        cost = ((codes * tried[:, None] - part).square() * importance).sum(1)
        scale = torch.where(cost < best, tried, scale)
        best = torch.minimum(cost, best)
    return scale
