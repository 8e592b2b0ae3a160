#!/usr/bin/env python3
"""Make the folders of testdata/golden_modules/ with sentence-transformers.

Every folder has what sentence-transformers writes beside a model: modules.json, the modules'
folders and config_sentence_transformers.json, plus golden.json: vectors of a few texts, made one by
one. The model itself is that of golden_embeddings/bert, and is not copied.

    nice python testdata/generate_modules.py

Versions: sentence-transformers 6.2.0, transformers 5.23.0, torch 2.15.0.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import sentence_transformers
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

ROOT = Path(__file__).parent
MODEL = ROOT / "golden_embeddings" / "bert"
OUT = ROOT / "golden_modules"
PROMPT = "Represent the sentence: "
TEXTS = ["", "a", "The cat sits outside.", "A man is playing guitar, and nobody listens to him."]


CASES = {
    "max": lambda: [Pooling(32, pooling_mode="max")],
    "mean_sqrt_len": lambda: [Pooling(32, pooling_mode="mean_sqrt_len_tokens")],
    "weightedmean": lambda: [Pooling(32, pooling_mode="weightedmean"), Normalize()],
    "without_prompt": lambda: [Pooling(32, pooling_mode="mean", include_prompt=False)],
    "weighted_without_prompt": lambda: [
        Pooling(32, pooling_mode="weightedmean", include_prompt=False)
    ],
    "dense": lambda: [
        Pooling(32, pooling_mode="mean"),
        Dense(32, 24, activation_function=torch.nn.Tanh()),
        Dense(24, 16, bias=False, activation_function=torch.nn.Identity()),
        Normalize(),
    ],
    "dense_gelu": lambda: [
        Pooling(32, pooling_mode="cls"),
        Dense(32, 16, activation_function=torch.nn.GELU()),
    ],
}


def generate(name: str) -> None:
    transformer = Transformer(str(MODEL), max_seq_length=160)
    modules = CASES[name]()
    generator = torch.Generator().manual_seed(17)
    for module in modules:
        for parameter in module.parameters():
            parameter.data = 0.25 * torch.randn(parameter.shape, generator=generator)
    has_prompt = "without_prompt" in name
    model = SentenceTransformer(
        modules=[transformer, *modules], device="cpu",
        prompts={"instruction": PROMPT} if has_prompt else None,
    )
    prompt = {"prompt_name": "instruction"} if has_prompt else {}
    records = []
    for text in TEXTS:
        vector = model.encode([text], show_progress_bar=False, **prompt)[0]
        records.append({"text": text, "vector": [float(value) for value in vector]})
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as saved:
        model.save(saved, create_model_card=False)
        kept = {"modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"}
        for path in sorted(Path(saved).rglob("*")):
            inside = path.relative_to(saved)
            if path.is_file() and (len(inside.parts) > 1 or inside.name in kept):
                (folder / inside).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, folder / inside)
    golden = {"sentence_transformers": sentence_transformers.__version__, "texts": records}
    text = json.dumps(golden, separators=(",", ":"))
    (folder / "golden.json").write_text(text.replace('{"text"', '\n{"text"') + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in CASES:
        generate(case)
        print(f"{case}: ok", flush=True)
