#!/usr/bin/env python3
"""Make beams.json: what transformers' beam search finds with golden models.

    python testdata/generate_beams.py           # a minute on one core

Every hypothesis has `max_new_tokens` tokens and no length penalty, where vLLM's beam search and that
of transformers are the same search. Passes are in float32 without a KV cache, as for the goldens.
A prompt is left out where two of the sums that decide are closer than MIN_GAP, so that the result is
the same for any correct float32 implementation. testdata/README.md has the versions to run it with.
"""

import json
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

FAMILIES = ["gemma2", "llama3", "mistral", "opt", "qwen3"]
WIDTHS = [2, 4, 8]
MAX_NEW_TOKENS = 8
MIN_GAP = 5e-4


def smallest_gap(model, prompt: list[int], width: int) -> float:
    """The least difference between two neighbours among the best candidates of any step."""
    beams, gap = [(prompt, 0.0)], float("inf")
    for _ in range(MAX_NEW_TOKENS):
        candidates = []
        for tokens, total in beams:
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
            logprobs = torch.log_softmax(logits.float(), -1)
            top = torch.topk(logprobs, 2 * width)
            for value, token in zip(top.values.tolist(), top.indices.tolist()):
                candidates.append((tokens + [token], total + value))
        candidates.sort(key=lambda candidate: -candidate[1])
        sums = [total for _, total in candidates[: width + 1]]
        gap = min([gap, *(a - b for a, b in zip(sums, sums[1:]))])
        beams = candidates[:width]
    return gap


def search(model, prompt: list[int], width: int) -> dict:
    found = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        num_beams=width, num_return_sequences=width, max_new_tokens=MAX_NEW_TOKENS,
        do_sample=False, eos_token_id=None, pad_token_id=0, early_stopping="never",
        length_penalty=0.0, use_cache=False, return_dict_in_generate=True, output_scores=True,
    )
    return {
        "prompt_token_ids": prompt,
        "beam_width": width,
        "outputs": [tokens[len(prompt):] for tokens in found.sequences.tolist()],
        "cumulative_logprobs": [round(score, 6) for score in found.sequences_scores.tolist()],
    }


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    here, searches = Path(__file__).parent, {}
    for family in FAMILIES:
        folder = here / "golden" / family
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        # What a checkpoint says of sampling is not for a search.
        model.generation_config = transformers.GenerationConfig()
        golden = json.loads((folder / "golden.json").read_text())
        with torch.no_grad():
            searches[family] = [
                search(model, prompt["prompt_token_ids"], width)
                for prompt in golden["prompts"]
                for width in WIDTHS
                if smallest_gap(model, prompt["prompt_token_ids"], width) > MIN_GAP
            ]
        print(f"{family}: {len(searches[family])} searches", flush=True)
    lines = [
        f'  "{family}": [\n    ' + ",\n    ".join(json.dumps(found) for found in all_of) + "\n  ]"
        for family, all_of in searches.items()
    ]
    text = "{\n" + f'  "transformers": "{transformers.__version__}",\n' + ",\n".join(lines) + "\n}\n"
    (here / "beams.json").write_text(text)


if __name__ == "__main__":
    main()
