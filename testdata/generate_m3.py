#!/usr/bin/env python3
"""Make testdata/golden_m3/: what bge-m3 has beside a model, and what FlagEmbedding makes of it.

The folder has sparse_linear.pt, colbert_linear.pt (random, as `torch.save` writes them; the first
in float16, as published), tokenizer_config.json and golden.json: lexical weights and vectors of
tokens of a few texts, and scores of pairs. The model itself is that of
golden_embeddings/xlm_roberta, and is not copied. The formulas are those of FlagEmbedding's
BGEM3Model and BGEM3FlagModel, written out here, one text at a time.

    nice python testdata/generate_m3.py

Versions: transformers 5.23.0, torch 2.15.0.
"""

import json
import os
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from tokenizers import Tokenizer

ROOT = Path(__file__).parent
MODEL = ROOT / "golden_embeddings" / "xlm_roberta"
OUT = ROOT / "golden_m3"
TEXTS = [
    "",
    "a",
    "The cat sits outside.",
    "the cat, the cat and a guitar <s> of one file",
]
SPECIAL = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>",
           "pad_token": "<pad>", "unk_token": "<unk>"}


def lexical_weights(weights: torch.Tensor, ids: list[int], unused: set[int]) -> dict[int, float]:
    result: dict[int, float] = {}
    for weight, token in zip(weights.tolist(), ids):
        if token not in unused and weight > 0 and weight > result.get(token, 0):
            result[token] = weight
    return result


def lexical_score(a: dict[int, float], b: dict[int, float]) -> float:
    return sum(weight * b[token] for token, weight in a.items() if token in b)


def late_interaction(query: torch.Tensor, document: torch.Tensor) -> float:
    # FlagEmbedding divides this by the query's number of vectors; ColBERT and vLLM do not.
    return torch.einsum("in,jn->ij", query, document).max(-1).values.sum().item()


def main() -> None:
    OUT.mkdir(exist_ok=True)
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    model = transformers.XLMRobertaModel.from_pretrained(MODEL, add_pooling_layer=False).eval()
    width = model.config.hidden_size
    generator = torch.Generator().manual_seed(17)
    sparse, colbert = torch.nn.Linear(width, 1), torch.nn.Linear(width, width)
    for parameter in [*sparse.parameters(), *colbert.parameters()]:
        parameter.data = 0.25 * torch.randn(parameter.shape, generator=generator)
    sparse.half()
    torch.save(sparse.state_dict(), OUT / "sparse_linear.pt")
    torch.save(colbert.state_dict(), OUT / "colbert_linear.pt")
    sparse.float()
    (OUT / "tokenizer_config.json").write_text(json.dumps(SPECIAL, indent=1) + "\n")
    unused = {tokenizer.token_to_id(SPECIAL[role])
              for role in ("cls_token", "eos_token", "pad_token", "unk_token")}
    records, weights, vectors = [], [], []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        with torch.no_grad():
            states = model(torch.tensor([ids])).last_hidden_state
            token_weights = torch.relu(sparse(states))[0, :, 0]
            rows = torch.nn.functional.normalize(colbert(states[:, 1:]), dim=-1)[0]
        weights.append(lexical_weights(token_weights, ids, unused))
        vectors.append(rows)
        words = sorted(weights[-1].items())
        records.append({
            "text": text,
            "indices": [token for token, _ in words],
            "weights": [round(weight, 7) for _, weight in words],
            "vectors": [[round(value, 7) for value in row] for row in rows.tolist()],
        })
    last = len(TEXTS) - 1
    pairs = [{"texts": [a, b], "lexical": lexical_score(weights[a], weights[b]),
              "late_interaction": late_interaction(vectors[a], vectors[b])}
             for a, b in [(2, last), (last, 2), (1, 2), (0, 1)]]
    golden = {"transformers": transformers.__version__, "texts": records, "pairs": pairs}
    text = json.dumps(golden, separators=(",", ":"))
    (OUT / "golden.json").write_text(text.replace('{"text', '\n{"text') + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    main()
