#!/usr/bin/env python3
"""Make the tiny random cross-encoders under testdata/golden_scores/ with Hugging Face transformers.

Every folder is a complete checkpoint (config, tokenizer, weights) plus golden.json: for a few pairs
of texts the token ids, their types, and the logit of the one class, in float32. Tokenizers are those
of testdata/golden_embeddings. Pairs are run one by one, so no padding is in them.

    nice python testdata/generate_scores.py            # seconds

Versions: transformers 5.23.0, torch 2.15.0, tokenizers as transformers brings it.
"""

import json
import os
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from tokenizers import Tokenizer

OUT = Path(__file__).parent / "golden_scores"
TOKENIZERS = Path(__file__).parent / "golden_embeddings"
LENGTH = 64
PAIRS = [
    ("where does the cat sit?", "The cat sits outside."),
    ("where does the cat sit?", "A man is playing guitar."),
    ("", "a"),
    ("Ärger über 東京", "naïve café prices, 12.50 euros."),
    # Both are cut, and the longer one alone.
    ("one file by nothing at all " * 20, "texts are compared by their angle " * 20),
    ("guitar", "and nobody listens to him: it is late! " * 20),
]
SMALL = dict(
    hidden_size=16, intermediate_size=24, num_attention_heads=2, num_hidden_layers=2, num_labels=1
)
FAMILIES = {
    "bert": (
        transformers.BertForSequenceClassification,
        transformers.BertConfig(**SMALL, max_position_embeddings=LENGTH),
    ),
    "xlm_roberta": (
        transformers.XLMRobertaForSequenceClassification,
        transformers.XLMRobertaConfig(
            **SMALL, max_position_embeddings=LENGTH + 2, type_vocab_size=1, hidden_act="gelu"
        ),
    ),
}


def random_weights(model: torch.nn.Module) -> None:
    """Norms and biases that are not trivial, so that none of them can be left out unseen."""
    generator = torch.Generator().manual_seed(23)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        is_norm = parameter.dim() == 1 and name.endswith("weight")
        parameter.data = 1 + 0.2 * noise if is_norm else 0.4 * noise


def generate(name: str) -> None:
    model_class, config = FAMILIES[name]
    tokenizer = Tokenizer.from_file(str(TOKENIZERS / name / "tokenizer.json"))
    config.vocab_size = tokenizer.get_vocab_size()
    for key in ("cls_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "pad_token_id"):
        if (getattr(config, key, None) or 0) >= config.vocab_size:
            setattr(config, key, None)
    model = model_class(config).eval().float()
    random_weights(model)
    folder = OUT / name
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LENGTH, strategy="longest_first")
    records = []
    for first, second in PAIRS:
        pair = tokenizer.encode(first, second)
        inputs = {"input_ids": torch.tensor([pair.ids])}
        if config.type_vocab_size > 1:
            inputs["token_type_ids"] = torch.tensor([pair.type_ids])
        with torch.no_grad():
            logit = model(**inputs).logits[0, 0]
        records.append(
            {
                "texts": [first, second],
                "token_ids": pair.ids,
                "token_types": pair.type_ids,
                "logit": logit.item(),
                "score": torch.sigmoid(logit.double()).item(),
            }
        )
    golden = {"transformers": transformers.__version__, "pairs": records}
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
    (folder / "golden.json").write_text(text.replace('{"texts"', '\n{"texts"') + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for family in FAMILIES:
        generate(family)
        print(f"{family}: ok", flush=True)
