"""Weights: random, exactly representable in the dtype they are stored in, and such that logits
are spread."""

import math

import torch
import transformers
from transformers.pytorch_utils import Conv1D

from .family import Family
from .quantized import quantize

FINAL_NORMS = (
    "model.norm.weight", "final_layernorm.weight", "ln_f.weight", "norm_f.weight",
    "gpt_neox.final_layer_norm.weight",
)
ROUTERS = ("gate.weight", "gate.wg.weight", "router.weight", "router.proj.weight")
CHOICE_BIASES = ("e_score_correction_bias", "expert_bias")
EAGER_EXPERTS = dict(experts_implementation="eager")
FUSED = ("qkv", "query_key_value", "c_attn")


def model_class(family: Family) -> str:
    return family.model_class or family.config_class.replace("Text", "").replace(
        "Config", "ForCausalLM"
    )


def make_model(family: Family, config, tokens: int, seed: int) -> torch.nn.Module:
    """The oracle in float32."""
    model = empty_model(family, config, family.fix)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            values = values * std(family, name, parameter, model) + mean(family, name, parameter)
            if values.shape[0] == config.vocab_size:
                values[tokens:] = 0.0
            parameter.copy_(values.to(family.dtype).float())
        for name, buffer in model.named_buffers():
            if name.endswith(CHOICE_BIASES):
                values = torch.randn(buffer.shape, generator=generator) * family.bias_std
                buffer.copy_(values.to(family.dtype).float())
        if family.rounded:
            family.rounded(model)
    if family.quantized:
        quantize(model, family.quantized)
    return model.eval()


def empty_model(family: Family, config, fix) -> torch.nn.Module:
    """The oracle with transformers' own random weights; `fix` is the family's or a mistake."""
    cls = getattr(transformers, model_class(family))
    model = cls._from_config(config, attn_implementation="eager", **EAGER_EXPERTS)
    if fix:
        fix(model)
    return model.float().eval()


def is_norm(name: str, parameter: torch.Tensor) -> bool:
    # Matrices of DBRX stand in a module of this name.
    name = name.replace("norm_attn_norm", "")
    return parameter.dim() == 1 and not name.endswith("bias") or "norm" in name


def std(family: Family, name: str, parameter: torch.Tensor, model) -> float:
    owner = model.get_submodule(name.rpartition(".")[0])
    if name.endswith("bias"):
        return family.bias_std
    if is_norm(name, parameter):
        return 0.25
    tied = owner is model.get_input_embeddings() and model.config.tie_word_embeddings
    if owner is model.get_output_embeddings() or tied:
        return family.head_std
    if owner is model.get_input_embeddings():
        return 1.0
    if isinstance(owner, torch.nn.Embedding):  # of positions
        return 0.7
    is_transposed = isinstance(owner, Conv1D) or type(owner).__name__ == "GptOssExperts"
    inputs = parameter.shape[-2 if is_transposed else -1]
    return gain(name) / math.sqrt(inputs)


def gain(name: str) -> float:
    if any(part in name for part in FUSED):
        return 1.5
    if name.endswith(ROUTERS):
        return 3.0
    return 1.6 if "q_proj" in name or "k_proj" in name else 0.5 if "project_out" in name else 1.2


def mean(family: Family, name: str, parameter: torch.Tensor) -> float:
    if not is_norm(name, parameter) or name.endswith("bias"):
        return 0.0
    for part, value in family.means.items():
        if part in name:
            return value
    after = "post_attention" in name or "post_feedforward" in name
    if family.post_norm_mean is not None and after:
        return family.post_norm_mean
    if family.final_norm_mean is not None and name.endswith(FINAL_NORMS):
        return family.final_norm_mean
    return family.norm_mean
