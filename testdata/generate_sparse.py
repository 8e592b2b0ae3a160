#!/usr/bin/env python3
"""Make the tiny random masked language models under testdata/golden_sparse/.

Every folder has config, weights and golden.json: sparse vectors of a few texts, made of
transformers' logits by sentence-transformers' SpladePooling, one text at a time. The tokenizer is
that of golden_embeddings/bert, and is not copied.

    nice python testdata/generate_sparse.py

Versions: sentence-transformers 6.2.0, transformers 5.23.0, torch 2.15.0.
"""

import json
import os
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from sentence_transformers.sparse_encoder.modules import SpladePooling
from tokenizers import Tokenizer

ROOT = Path(__file__).parent
OUT = ROOT / "golden_sparse"
TEXTS = ["", "A man is playing guitar, and nobody listens to him."]
SMALL = dict(hidden_size=16, intermediate_size=24, num_attention_heads=2, num_hidden_layers=1)
POSITIONS = dict(max_position_embeddings=40)
DISTIL = dict(dim=16, hidden_dim=24, n_heads=2, n_layers=1, **POSITIONS)

FAMILIES = {
    "bert": (transformers.BertForMaskedLM, transformers.BertConfig(**SMALL, **POSITIONS)),
    "bert_own_decoder": (
        transformers.BertForMaskedLM,
        transformers.BertConfig(**SMALL, **POSITIONS, tie_word_embeddings=False),
    ),
    "distilbert": (transformers.DistilBertForMaskedLM, transformers.DistilBertConfig(**DISTIL)),
    "mpnet": (transformers.MPNetForMaskedLM, transformers.MPNetConfig(**SMALL, **POSITIONS)),
    "roberta": (transformers.RobertaForMaskedLM, transformers.RobertaConfig(**SMALL, **POSITIONS)),
}


def generate(name: str) -> None:
    model_class, config = FAMILIES[name]
    tokenizer = Tokenizer.from_file(str(ROOT / "golden_embeddings" / "bert" / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config.vocab_size = tokenizer.get_vocab_size()
    for key in ("cls_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "pad_token_id"):
        if (getattr(config, key, None) or 0) >= config.vocab_size:
            setattr(config, key, 1 if key == "pad_token_id" else None)
    config.architectures = [model_class.__name__]
    model = model_class(config).eval().float()
    generator = torch.Generator().manual_seed(17)
    for parameter_name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        is_norm = parameter.dim() == 1 and parameter_name.endswith("weight")
        parameter.data = 1 + 0.2 * noise if is_norm else 0.25 * noise
    model.tie_weights()
    folder = OUT / name
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    records = []
    for text in TEXTS:
        ids = torch.tensor([tokenizer.encode(text).ids])
        record = {"text": text}
        for activation in ("relu", "log1p_relu"):
            pooling = SpladePooling("max", activation).eval()
            with torch.no_grad():
                logits = model(ids).logits.clone()
                mask = torch.ones_like(ids)
                features = pooling({"token_embeddings": logits, "attention_mask": mask})
            vector = features["sentence_embedding"][0]
            indices = vector.nonzero()[:, 0]
            record["indices"] = indices.tolist()
            record[activation] = [round(value, 7) for value in vector[indices].tolist()]
        records.append(record)
    golden = {"transformers": transformers.__version__, "texts": records}
    text = json.dumps(golden, separators=(",", ":"))
    (folder / "golden.json").write_text(text.replace('{"text"', '\n{"text"') + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for family in FAMILIES:
        generate(family)
        print(f"{family}: ok", flush=True)
