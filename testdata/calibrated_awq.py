"""AWQ's search (Lin et al., 2023), as AutoAWQ does it: which weights are worth most steps.

Inputs of large magnitude have their weights multiplied by a scale s before they are rounded, and
whatever makes the inputs divides by s: the norm before, or the rows of up_proj for down_proj. So
the file is plain AWQ. Layers whose inputs nothing simple makes (o_proj behind grouped K and V)
keep s = 1. After that the ends of each group are cut where that costs less.
Other than in AutoAWQ, the error of q, k and v is that of their own outputs, not of attention's.
"""

import torch

NUM_ALPHAS = 20
NUM_CLIPS = 10
MAX_CODE = 15

# Who makes the inputs, and the layers that read them.
SCALED = [
    ("input_layernorm", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    ("post_attention_layernorm", ["mlp.gate_proj", "mlp.up_proj"]),
    ("mlp.up_proj", ["mlp.down_proj"]),
]
# What attention makes of q and k is not linear: their outliers stay.
NOT_CLIPPED = ("q_proj", "k_proj")


def scaled_and_clipped(source, inputs, group):
    """Tensors of a model of Llama's names, to be rounded to groups of so many inputs."""
    tensors = {name: tensor.float() for name, tensor in source.items()}
    inputs = dict(inputs)
    layers = {name.rsplit(".self_attn.", 1)[0] for name in inputs if ".self_attn." in name}
    for layer in sorted(layers):
        for maker, readers in SCALED:
            readers = [f"{layer}.{reader}" for reader in readers]
            weights = [tensors[f"{reader}.weight"] for reader in readers]
            scales = best_scales(weights, inputs[readers[0]], group)
            for name in (f"{layer}.{maker}.weight", f"{layer}.{maker}.bias"):
                if name in tensors:
                    by_row = scales if tensors[name].dim() == 1 else scales[:, None]
                    tensors[name] = tensors[name] / by_row
            for reader in readers:
                tensors[f"{reader}.weight"] = tensors[f"{reader}.weight"] * scales
                inputs[reader] = inputs[reader].scaled(scales)
    for module, known in inputs.items():
        if not module.endswith(NOT_CLIPPED):
            weight = tensors[f"{module}.weight"]
            tensors[f"{module}.weight"] = clipped(weight, known.moments, group)
    return {name: tensors[name].to(tensor.dtype) for name, tensor in source.items()}


def best_scales(weights, inputs, group):
    """By input: of magnitudes of inputs and weights to powers alpha and 1 - alpha, the alpha whose
    error is least. All layers that read the inputs have one scale."""
    grouped = torch.cat(weights).unflatten(1, (-1, group)).abs()
    share = (grouped / (grouped.amax(2, keepdim=True) + 1e-6)).flatten(1).mean(0)
    magnitudes = inputs.magnitudes / inputs.magnitudes.mean()
    least, best = torch.inf, torch.ones_like(share)
    for alpha in torch.arange(NUM_ALPHAS) / NUM_ALPHAS:
        scales = (magnitudes**alpha / (share ** (1 - alpha) + 1e-4)).clamp(min=1e-4)
        scales /= (scales.max() * scales.min()).sqrt()
        cost = 0.0
        for weight in weights:
            error = rounded(weight * scales, group) / scales - weight
            cost += float(((error @ inputs.moments) * error).sum())
        if cost < least:
            least, best = cost, scales
    return best


def clipped(weight, moments, group):
    """Each group of each output within the bound that costs least: half its largest weight or
    more."""
    parts = weight.unflatten(1, (-1, group))
    own = torch.stack([
        moments[start : start + group, start : start + group]
        for start in range(0, weight.shape[1], group)
    ])
    largest = parts.abs().amax(2)
    least, bound = torch.full_like(largest, torch.inf), largest
    for step in range(NUM_CLIPS):
        tried = largest * (1 - 0.5 * step / NUM_CLIPS)
        within = parts.clamp(-tried[..., None], tried[..., None])
        error = rounded(within.flatten(1), group).unflatten(1, (-1, group)) - parts
        cost = (torch.einsum("ogi,gij->ogj", error, own) * error).sum(2)
        bound = torch.where(cost < least, tried, bound)
        least = torch.minimum(cost, least)
    return parts.clamp(-bound[..., None], bound[..., None]).flatten(1)


def rounded(weight, group):
    """The values that codes of 4 bits with a zero by group stand for."""
    parts = weight.unflatten(1, (-1, group))
    low, high = parts.amin(2, keepdim=True).clamp(max=0), parts.amax(2, keepdim=True).clamp(min=0)
    scale = ((high - low) / MAX_CODE).clamp(min=2.0**-24).half().float()
    zero = (-low / scale).round().clamp(0, MAX_CODE)
    codes = ((parts / scale).round() + zero).clamp(0, MAX_CODE)
    return ((codes - zero) * scale).flatten(1)
