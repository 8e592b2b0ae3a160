#!/usr/bin/env python3
"""Make the tiny LoRA adapters under testdata/golden_adapters/ with peft.

Every folder is an adapter as peft's save_pretrained writes it, with random A and B, plus
golden.json: what transformers computes with it for a few prompts of its base, which golden.json
names. Two ways have to agree: peft's own unmerged layers, and a model whose weights are
W + scale * B A, added in float64 without peft. The adapters are in golden_models/adapters/specs.py.

    python testdata/generate_adapters.py                # all, minutes on one core
    python testdata/generate_adapters.py --only tables  # one
    python testdata/generate_adapters.py --check        # write nothing: reload what is saved,
                                                        # compare, and try the listed mistakes

testdata/README.md has the versions to run it with, and peft 0.21.2.

Seeds are rejected as those of generate_golden.py are, and where the adapter changes no output.
"""

import argparse
import json
import math
import os
import shutil
import sys
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import peft
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from golden_models.adapters import merged
from golden_models.adapters.specs import ADAPTERS, Adapter
from golden_models.check import MIN_DISTANCE, load
from golden_models.families import FAMILIES
from golden_models.files import make_readable, write_golden, write_json
from golden_models.records import golden_prompt, logits_of, rounded
from golden_models.routing import margins
from golden_models.search import MAX_SEEDS, MIN_GAP, MIN_MARGIN, load_tokenizer

HERE = Path(__file__).parent
NUM_PROMPTS = 3
NEW_TOKENS = 12
MIN_DISTINCT = 4
MAX_DISTANCE = 5e-5  # of the two ways, whose roundings differ
EFFECT = 0.05  # of the adapter on a logprob or a logit


def is_classifier(adapter: Adapter) -> bool:
    return adapter.base.startswith("golden_classifiers/")


def base_model(adapter: Adapter) -> torch.nn.Module:
    folder = HERE / adapter.base
    if not is_classifier(adapter):
        return load(folder, FAMILIES[folder.name])
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, name).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def with_peft(adapter: Adapter, folder: Path) -> torch.nn.Module:
    """peft's reader, and its layers beside those of the base."""
    return PeftModel.from_pretrained(base_model(adapter), folder).eval()


def with_merged(adapter: Adapter, folder: Path, merge=merged.merge) -> torch.nn.Module:
    model = base_model(adapter)
    merge(model, merged.read(folder))
    return model


@torch.no_grad()
def write_adapter(folder: Path, adapter: Adapter, seed: int) -> None:
    """A and B so large that scale * B A is to W as the adapter's strength says."""
    generator = torch.Generator().manual_seed(seed)
    model = get_peft_model(base_model(adapter), LoraConfig(**adapter.config))
    for name, module in sorted(model.named_modules()):
        if isinstance(module, peft.tuners.lora.LoraLayer):
            is_table = bool(module.lora_embedding_A)
            pair = [module.lora_embedding_A, module.lora_embedding_B]
            pair = pair if is_table else [module.lora_A, module.lora_B]
            a, b = (matrices["default"] for matrices in pair)
            a, b = (a, b) if is_table else (a.weight, b.weight)
            std = 1.0 if is_table else 1.0 / math.sqrt(a.shape[1])
            spread = float(module.get_base_layer().weight.std()) * adapter.strength
            a.normal_(0.0, std, generator=generator)
            spread /= std * abs(module.scaling["default"]) * math.sqrt(a.shape[0])
            b.normal_(0.0, spread, generator=generator)
            b.mul_(0.0 if adapter.zero else 1.0)
        elif name.endswith("modules_to_save"):
            for parameter in module.parameters():
                noise = torch.empty_like(parameter).normal_(generator=generator)
                parameter.add_(0.3 * noise * parameter.std())
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    file, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    # peft's copies of the base's tables stay what the base has.
    stored = {True: torch.float32, False: adapter.dtype}
    tensors = {k: t.to(stored[".base_layer." in k]) for k, t in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    keys = {**json.loads(config.read_text()), "base_model_name_or_path": adapter.base}
    for key in ("target_modules", "modules_to_save"):  # sets, in any order
        keys[key] = sorted(keys[key]) if isinstance(keys[key], list) else keys[key]
    write_json(config, keys)


def class_logits(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0]


def text_records(adapter: Adapter, model: torch.nn.Module) -> list[dict] | None:
    """Of a language model; None where another seed is needed."""
    folder = HERE / adapter.base
    golden = json.loads((folder / "golden.json").read_text())
    tokenizer = load_tokenizer(folder, FAMILIES[folder.name])
    base, records, effect = base_model(adapter), [], 0.0
    for prompt in golden["prompts"][-NUM_PROMPTS:]:
        ids = prompt["prompt_token_ids"]
        with margins() as margin:
            record, gap = golden_prompt(model, tokenizer, prompt["text"], ids, NEW_TOKENS)
        num_distinct = len(set(record["output_token_ids"]))
        if margin.smallest < MIN_MARGIN or gap < MIN_GAP or num_distinct < MIN_DISTINCT:
            return None
        effect = max(effect, distance(base, record))
        records.append(record)
    return records if adapter.zero == (effect < EFFECT) else None


def class_records(adapter: Adapter, model: torch.nn.Module) -> list[dict] | None:
    golden = json.loads((HERE / adapter.base / "golden.json").read_text())
    base, records, effect = base_model(adapter), [], 0.0
    for text in golden["texts"]:
        logits = class_logits(model, text["token_ids"]).tolist()
        records.append({"text": text["text"], "token_ids": text["token_ids"], "logits": logits})
        effect = max(effect, distance(base, records[-1]))
    return records if effect > EFFECT else None


def distance(model: torch.nn.Module, record: dict) -> float:
    """Of what it computes from a record: of a text's classes, or of the first new token."""
    if "logits" in record:
        found = class_logits(model, record["token_ids"])
        return float((found - torch.tensor(record["logits"])).abs().max())
    scores = torch.log_softmax(logits_of(model, record["prompt_token_ids"]), dim=-1)
    known = [(scores[-1][token], logprob) for token, logprob in record["top"][0]]
    for at, (token, logprob) in enumerate(
        zip(record["prompt_token_ids"][1:], record["prompt_logprobs"][1:], strict=True)
    ):
        known.append((scores[at][token], logprob))
    return max(abs(float(found) - logprob) for found, logprob in known)


def generate(out: Path, name: str) -> None:
    adapter, folder, fresh = ADAPTERS[name], out / name, out / f".{name}.new"
    for seed in range(MAX_SEEDS):
        shutil.rmtree(fresh, ignore_errors=True)
        write_adapter(fresh, adapter, seed)
        model = with_peft(adapter, fresh)
        records = (class_records if is_classifier(adapter) else text_records)(adapter, model)
        if records:
            break
    else:
        shutil.rmtree(fresh)
        raise SystemExit(f"{name}: no seed of {MAX_SEEDS} gives unambiguous goldens")
    head = {
        "base": adapter.base, "peft": peft.__version__, "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0], "seed": seed,
    }
    if is_classifier(adapter):
        golden = json.loads((HERE / adapter.base / "golden.json").read_text())
        head["tokenizer"] = golden["tokenizer"]
        texts = [{**r, "logits": [rounded(x) for x in r["logits"]]} for r in records]
        write_json(fresh / "golden.json", {**head, "texts": texts})
    else:
        write_golden(fresh / "golden.json", {**head, "max_new_tokens": NEW_TOKENS}, records)
    make_readable(fresh)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{name}: seed {seed}, {size // 1024} KiB", flush=True)


def check(folder: Path, name: str) -> None:
    """peft's layers and the merged model both compute what golden.json has; mistakes do not."""
    adapter = ADAPTERS[name]
    golden = json.loads((folder / "golden.json").read_text(encoding="utf-8"))
    assert golden["base"] == adapter.base, name
    records = golden.get("texts") or golden["prompts"]

    def furthest(model: torch.nn.Module) -> float:
        return max(distance(model, record) for record in records)

    ways = [with_peft(adapter, folder), with_merged(adapter, folder)]
    ways += [base_model(adapter)] if adapter.zero else []
    for model in ways:
        assert furthest(model) < MAX_DISTANCE, (name, furthest(model))
        for record in golden.get("prompts", []):
            ids, output = record["prompt_token_ids"], record["output_token_ids"]
            found = logits_of(model, ids + output)[len(ids) - 1 : -1].argmax(dim=-1)
            assert found.tolist() == output, (name, record["text"])
    for mistake in adapter.mistakes:
        moved = furthest(with_merged(adapter, folder, mistake))
        print(f"  {name}: {mistake.__name__} moves a value by {moved:.4f}", flush=True)
        assert moved > MIN_DISTANCE, (name, mistake.__name__, moved)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=list(ADAPTERS), metavar="NAME",
        help="adapters to make or check (default: all)",
    )
    parser.add_argument("--out", type=Path, default=HERE / "golden_adapters")
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name in args.only or ADAPTERS:
        if not args.check:
            generate(args.out, name)
        check(args.out / name, name)
        print(f"{name}: ok", flush=True)


if __name__ == "__main__":
    sys.exit(main())
