#!/usr/bin/env python3
"""Tiny models of text classes with other sizes and parts than the golden ones, beside transformers.

    python testdata/sweep_texts.py                 # all cases, a second or two each
    python testdata/sweep_texts.py afmoe nanochat  # those whose names have one of these

Each case is a class of transformers with a config, and random weights. transformers saves it as it
does, and completes prompts of ids greedily in float32, by full forward passes; `vllm-batch run`
completes the same, in chunks. Lines are as those of sweep_images.py, which this needs. Exits with 1
at a DIFF. Needs what generate_golden.py needs, and the program in target/debug.
"""

import copy
import json
import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

from golden_models.families.blocks import publish as minimax_names
from golden_models.families.kda import kimi_names, olmo_names
from golden_models.families.longcat import publish as longcat_tensors
from golden_models.families.sparse import lowest_of_equal
from golden_models.weights import EAGER_EXPERTS
from sweep_images import greedy, put, randomise, run, sweep
from sweep_texts_cases import CASES

TOKENIZER = Path(__file__).parent / "golden/.shared/byte_level"
VOCAB_SIZE = 288
# Names of published files that transformers does not write.
PUBLISHED = {
    "KimiLinearForCausalLM": kimi_names, "OlmoHybridForCausalLM": olmo_names,
    "MiniMaxM3VLForCausalLM": minimax_names, "LongcatFlashForCausalLM": longcat_tensors,
}
# And of their classes.
PUBLISHED_CLASSES = {"MiniMaxM3VLForCausalLM": "MiniMaxM3SparseForCausalLM"}
# Up to several windows.
PROMPT_LENS = [1, 3, 9, 26, 41]


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(280, (num,), generator=generator).tolist() for num in PROMPT_LENS]


def build(folder: Path, case: tuple, seed: int):
    """The model, saved."""
    _, cls, keys, changes = case
    config = copy.deepcopy(keys)
    for key, value in changes.items():
        put(config, key, value)
    cls, _, config_class = cls.partition(" of ")
    model_class = getattr(transformers, cls)
    config_class = getattr(transformers, config_class, model_class.config_class)
    built = config_class(**config)
    model = model_class._from_config(built, attn_implementation="eager", **EAGER_EXPERTS)
    model = model.float().eval()
    randomise(model, seed)
    model.tie_weights()
    lowest_of_equal(model)
    model.save_pretrained(folder)
    if cls in PUBLISHED:
        file = folder / "model.safetensors"
        save_file(PUBLISHED[cls](load_file(file)), file, metadata={"format": "pt"})
    if cls in PUBLISHED_CLASSES:
        file = folder / "config.json"
        saved = json.loads(file.read_text()) | dict(architectures=[PUBLISHED_CLASSES[cls]])
        file.write_text(json.dumps(saved))
    (folder / "generation_config.json").unlink(missing_ok=True)
    for file in TOKENIZER.iterdir():
        shutil.copy(file, folder)
    return model


@torch.no_grad()
def oracle(folder: Path, case: tuple, seed: int) -> list[dict]:
    model = build(folder, case, seed)
    def logits_of(ids):
        return model(input_ids=ids, use_cache=False).logits[0, -1]

    # A text has no token of an image; behind one the class computes otherwise.
    last = case[2].get("image_token_id")
    return [greedy(logits_of, torch.tensor([ids]), [last]) for ids in prompts()]


def ours(folder: Path) -> tuple[list[dict], str]:
    rows = [json.dumps(dict(prompt_token_ids=ids, ignore_eos=True)) for ids in prompts()]
    return run(folder, rows, "--max-num-batched-tokens", 16)


if __name__ == "__main__":
    sweep(CASES, oracle, ours)
