"""What transformers computes for the prompts of a golden model."""

import math

import torch
from transformers import GenerationConfig

from .family import Family

TOP = 5
DIGITS = 6  # decimals kept of every logprob
LONG_PROMPT = (
    "The scheduler decides which sequence runs next, and the cache holds the keys and values. "
    "When there are no blocks left, the youngest one waits: it is computed again."
)
PROMPTS = [
    "The quick brown fox",
    "Déjà vu à la carte 😀 日本語 Ünïcode ✓",
    "  two leading spaces\nand a new line\n\n\tthen a tab   ",
    "In 2024, 1234567 people paid $3.50 each; 100% didn't agree!",
    LONG_PROMPT,
]
FEW_PROMPTS = ["A", "The quick brown fox", "Déjà vu 日本\n\n 1234", LONG_PROMPT]


def prompts_of(family: Family) -> list[str]:
    if family.shared:
        return FEW_PROMPTS + family.extra_prompts
    return [family.first_prompt] + PROMPTS + family.extra_prompts


@torch.no_grad()
def logits_of(model, ids: list[int]) -> torch.Tensor:
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


def rounded(value) -> float:
    return round(float(value), DIGITS)


def golden_prompt(model, tokenizer, text: str, ids: list[int], new: int) -> tuple[dict, float]:
    """The record of one prompt, and the smallest gap between the two best logits on the way."""
    known = torch.log_softmax(logits_of(model, ids), dim=-1)
    prompt_logprobs = [None] + [rounded(known[i, token]) for i, token in enumerate(ids[1:])]
    output, logprobs, top, gap = [], [], [], math.inf
    for _ in range(new):
        last = logits_of(model, ids + output)[-1]
        scores = torch.log_softmax(last, dim=-1)
        best, indices = torch.sort(last, descending=True, stable=True)
        gap = min(gap, float(best[0] - best[1]))
        output.append(int(indices[0]))
        logprobs.append(rounded(scores[output[-1]]))
        top.append([[int(i), rounded(scores[i])] for i in indices[:TOP]])
    record = {
        "text": text, "prompt_token_ids": ids, "output_token_ids": output, "logprobs": logprobs,
        "top": top, "prompt_logprobs": prompt_logprobs,
        "text_out": text_out(tokenizer, ids, output),
        "output_decoded": tokenizer.decode(output, skip_special_tokens=True),
    }
    return record, gap


def text_out(tokenizer, prompt: list[int], output: list[int]) -> str | None:
    before = tokenizer.decode(prompt, skip_special_tokens=True)
    after = tokenizer.decode(prompt + output, skip_special_tokens=True)
    return after[len(before) :] if after.startswith(before) else None


def cached_greedy(model, ids: list[int], new: int) -> list[int]:
    """What generate() with its KV cache produces: an independent path through transformers."""
    config = GenerationConfig(
        max_new_tokens=new, do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=0
    )
    model.generation_config = config
    with torch.no_grad():
        out = model.generate(
            input_ids=torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            generation_config=config,
        )
    return out[0, len(ids) :].tolist()


def with_logits_scaling(model):
    """A multimodal model whose logits are divided as the class of its text multiplies them (Granite, Cohere).
    vLLM does so; transformers' class leaves it out, and samples from another softmax."""
    text = model.config.get_text_config()
    scale = getattr(text, "logit_scale", 1.0) / getattr(text, "logits_scaling", 1.0)
    if scale != 1.0 and not hasattr(model.model, "projector"):  # HyperCLOVA X does it itself
        model.lm_head.register_forward_hook(lambda _module, _inputs, logits: logits * scale)
    return model
