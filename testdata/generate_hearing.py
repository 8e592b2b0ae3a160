#!/usr/bin/env python3
"""Makes golden_hearing: tiny decoders that hear, with what transformers answers of recordings.

    python testdata/generate_hearing.py                      # writes testdata/golden_hearing
    python testdata/generate_hearing.py --check              # writes nothing: compares
    python testdata/generate_hearing.py --only qwen2_audio

`golden.json` has for each case the parts of one user message ("<k>" is the recording
`hearing_families.samples(k)`, "<NAME.png>" an image of testdata/media), the prompt as the processor
makes it, with placeholders repeated, and greedy tokens in float32 with the logprobs of their raw
logits. Folders `NAME_published` hold the same model in the spelling of the published repository:
older keys of config.json, other tensor names, `preprocessor_config.json`.

Made with the versions of generate_images.py.
"""

import argparse
import json
import os
import shutil
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from hearing_families import FAMILIES

OUT = Path(__file__).parent / "golden_hearing"
MAX_TOKENS = 10
LEARNED = [
    "What is this? First, then, later: both. How long is a chunk? "
    "Say what you hear in the recording.",
    "A recording of words and of a song, made with nothing but a sweep and beats behind it.",
]
# Least distance of the two likeliest tokens of every step.
MARGIN = 2e-3
CASES = {
    "one": ["<0>", "What is this?"],
    "text": ["What is this?"],
    "two": ["First ", "<2>", " then, later, ", "<1>", "?"],
    "both": ["First ", "<1>", " then, later, ", "<3>", "?"],
    "alone": ["<1>"],
    "twice": ["<0>", "<0>", "Both?"],
    "long": ["<3>", "How long?"],
    "short": ["<4>", "Hm?"],
    "chunk": ["<5>", "A chunk?"],
    "behind": ["Say: ", "<2>"],
    "seen": ["<wide2.png>", "And ", "<0>", "?"],
}


def tokenizer(first: list[str], last: list[str]) -> Tokenizer:
    """Byte-level BPE trained on a few lines, between special tokens."""
    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=len(first) + 290, initial_alphabet=alphabet, special_tokens=first
    )
    tokens.train_from_iterator(LEARNED, trainer)
    tokens.add_special_tokens([*first, *last])
    return tokens


def random_weights(model, seed: int, is_norm):
    """Nothing is one or zero, so that no norm and no bias can be left out unseen."""
    torch.manual_seed(seed)
    for name, weight in model.named_parameters():
        if is_norm(name):
            torch.nn.init.normal_(weight, 1.0 if name.endswith("weight") else 0.0, 0.2)
        else:
            torch.nn.init.normal_(weight, 0.0, 0.4 if weight.dim() == 1 else 0.3)
    return model.float().eval()


@torch.no_grad()
def answer(model, inputs: dict):
    """Greedy tokens without a cache, their logprobs, and the least margin.

    None ends the answer or is of those around sounds and images, which would want embeddings.
    """
    inputs = dict(inputs)
    ends = model.generation_config.eos_token_id
    forbidden = {model.config.audio_token_id, *(ends if isinstance(ends, list) else [ends])}
    others = ["image_token_id", "video_token_id", "audio_start_token_id", "vision_start_token_id"]
    forbidden.update(getattr(model.config, name, None) for name in others)
    ids, mask = inputs.pop("input_ids"), inputs.pop("attention_mask")
    first, logprobs, least = ids.shape[1], [], float("inf")
    for _ in range(MAX_TOKENS):
        logits = model(input_ids=ids, attention_mask=mask, **inputs).logits[0, -1].float()
        top = logits.topk(2)
        least = min(least, float(top.values[0] - top.values[1]))
        best = top.indices[:1]
        if best.item() in forbidden:
            return [], [], 0.0
        logprobs.append(torch.log_softmax(logits, -1)[best].item())
        ids = torch.cat([ids, best[None]], 1)
        mask = torch.cat([mask, mask[:, -1:]], 1)
        if "mm_token_type_ids" in inputs:
            kinds = inputs["mm_token_type_ids"]
            inputs["mm_token_type_ids"] = torch.cat([kinds, torch.zeros_like(kinds[:, :1])], 1)
    return ids[0, first:].tolist(), logprobs, least


def answers(family, model, prepared: dict):
    rows, least = [], float("inf")
    for case, inputs in prepared.items():
        ids, logprobs, margin = answer(model, inputs)
        least = min(least, margin)
        rows.append({
            "parts": CASES[case], "prompt_token_ids": inputs["input_ids"][0].tolist(),
            "token_ids": ids, "logprobs": logprobs,
        })
        if least < MARGIN:
            break
    return rows, least


def write(family, folder: Path, model, processor, rows):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    processor.save_pretrained(folder)
    (folder / "golden.json").write_text(json.dumps(rows, indent=1) + "\n")


def write_published(family, folder: Path, source: Path):
    """The folder of `source`, spelt as the published repository is."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    config = json.loads((source / "config.json").read_text())
    config = family.published_config(config)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    weights = load_file(source / "model.safetensors")
    save_file(family.published_weights(weights), folder / "model.safetensors", {"format": "pt"})
    family.published_processor(folder)


def check(name: str, family, folder: Path):
    model = family.model_class.from_pretrained(folder, attn_implementation="eager").float().eval()
    processor = family.processor_of(folder)
    for row in json.loads((folder / "golden.json").read_text()):
        inputs = family.inputs(processor, row["parts"])
        assert inputs["input_ids"][0].tolist() == row["prompt_token_ids"], (name, row["parts"])
        ids, logprobs, _ = answer(model, inputs)
        assert ids == row["token_ids"], (name, row["parts"], ids)
        assert np.abs(np.array(logprobs) - row["logprobs"]).max() < 1e-4, (name, row["parts"])
    print(name, "as written")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only")
    asked = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for name, family in FAMILIES.items():
        if asked.only not in (None, name):
            continue
        folder = OUT / name
        published = OUT / f"{name}_published"
        if asked.check:
            check(name, family, folder)
            if family.is_read_as_published:
                check(f"{name}_published", family, published)
            continue
        processor = family.processor(tokenizer(*family.special_tokens))
        prepared = {case: family.inputs(processor, CASES[case]) for case in family.cases}
        config = family.config(processor)
        for seed in range(1, 2000):
            model = family.model_class(config)
            random_weights(model, seed, family.is_norm)
            rows, least = answers(family, model, prepared)
            if least < MARGIN:
                continue
            kinds = {tuple(row["token_ids"]) for row in rows}
            lengths = [len(set(row["token_ids"])) for row in rows]
            if len(kinds) == len(rows) and min(lengths) > 3:
                break
        else:
            raise SystemExit(f"{name}: no seed tells the cases apart")
        write(family, folder, model, processor, rows)
        if family.has_published:
            write_published(family, published, folder)
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(name, f"seed {seed}, margin {least:.4f}, {size} bytes", lengths)


if __name__ == "__main__":
    main()
