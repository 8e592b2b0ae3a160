"""The search for a seed whose goldens are unambiguous, and the folder that is made of it."""

import shutil
from collections import Counter
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from .check import check
from .families import FAMILIES
from .family import Family
from .files import (
    make_readable,
    raw_tokenizer,
    write_golden,
    write_json,
    write_model,
    write_tokenizer,
)
from .published import make_config
from .quantized import digests
from .records import golden_prompt, prompts_of
from .routing import margins
from .weights import make_model

MIN_GAP = 3e-3  # between the two best logits of every greedy step
MIN_MARGIN = 1e-3  # of an expert that is chosen over the next one
MAX_SEEDS = 40


def search(family: Family, config, tokenizer, tokens: int, prompts: list[tuple[str, list[int]]]):
    """The first seed whose goldens are unambiguous and varied."""
    rejected: Counter[str] = Counter()
    for seed in range(family.first_seed, family.first_seed + MAX_SEEDS):
        model = make_model(family, config, tokens, seed)
        records = []
        for text, ids in prompts:
            with margins() as margin:
                record, gap = golden_prompt(model, tokenizer, text, ids, family.max_new_tokens)
            if margin.smallest < MIN_MARGIN:
                rejected["margin"] += 1
                break
            if gap < MIN_GAP:
                rejected["gap"] += 1
                break
            if len(set(record["output_token_ids"])) < family.min_distinct:
                rejected["distinct"] += 1
                break
            records.append(record)
        else:
            return seed, model, records
    raise SystemExit(
        f"no seed of {MAX_SEEDS} gives unambiguous goldens.\n"
        f"{rejected['gap']} have two best logits closer than {MIN_GAP}: "
        "raise head_std or final_norm_mean, they set the spread of the logits.\n"
        f"{rejected['margin']} have routers that hardly prefer an expert by {MIN_MARGIN}.\n"
        f"{rejected['distinct']} have an output with fewer than {family.min_distinct} distinct "
        "ids: untie, raise head_std or final_norm_mean, or lower the embedding's share."
    )


def generate(out: Path, name: str) -> None:
    """Write the folder of one family, after it was checked."""
    family, folder = FAMILIES[name], out / name
    fresh = out / f".{name}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        seed, lengths = fill(fresh, name, family)
        check(fresh, name)
    except BaseException:
        shutil.rmtree(fresh)
        raise
    make_readable(fresh)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    size = sum(f.lstat().st_size for f in folder.iterdir())
    print(f"{name}: seed {seed}, prompt lengths {lengths}, {size // 1024} KiB", flush=True)


def fill(folder: Path, name: str, family: Family) -> tuple[int, list[int]]:
    """Write all files; the seed, and the lengths of the prompts."""
    raw = raw_tokenizer(family)
    config = make_config(family, raw)
    write_tokenizer(folder, family, raw)
    write_json(folder / "config.json", config.to_dict())  # AutoTokenizer wants a config beside it
    tokenizer = load_tokenizer(folder, family)
    prompts = [(text, tokenizer(text)["input_ids"]) for text in prompts_of(family)]
    seed, model, records = search(family, config, tokenizer, raw.get_vocab_size(), prompts)
    write_model(folder, family, model, raw)
    head = {
        "family": name, "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0], "seed": seed,
        "attn_implementation": "eager", "max_new_tokens": family.max_new_tokens,
    }
    if family.oracle:
        head["oracle"] = family.oracle
    if family.quantized:
        head["sha256"] = digests(load_file(folder / "model.safetensors"), family.quantized)
    write_golden(folder / "golden.json", head, records)
    return seed, [len(ids) for _, ids in prompts]


def load_tokenizer(folder: Path, family: Family):
    return (PreTrainedTokenizerFast if family.shared else AutoTokenizer).from_pretrained(folder)
