#!/usr/bin/env python3
"""Make the tiny random classifiers under testdata/golden_classifiers/ with Hugging Face transformers.

Every folder is a complete checkpoint but for its tokenizer, which is that of
testdata/golden_embeddings (the folder is named in golden.json), plus golden.json: for a few texts
the token ids and the logits in float32, of the text or of each of its tokens. Rows are run one by
one, so no padding is in them.

    nice python testdata/generate_classifiers.py           # all, a minute on one core
    nice python testdata/generate_classifiers.py llama     # one

Versions: transformers 5.23.0, torch 2.15.0, tokenizers as transformers brings it.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from generate_embeddings import OUT as EMBEDDINGS
from generate_embeddings import POSITIONS, TEXTS, random_weights
from tokenizers import Tokenizer

OUT = Path(__file__).parent / "golden_classifiers"
SMALL = dict(hidden_size=24, intermediate_size=32, num_attention_heads=2, num_hidden_layers=1)
MOODS = dict(id2label={0: "sad", 1: "glad", 2: "neither"})
ENTITIES = dict(id2label={0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC"})

DISTILBERT = dict(dim=24, hidden_dim=32, n_heads=2, n_layers=1)
MODERNBERT = {**SMALL, "num_hidden_layers": 2, "local_attention": 16}
# Of decoders. There is no padding token, so the last token is the last one.
DECODER = {**SMALL, "num_hidden_layers": 2, "num_key_value_heads": 1, "head_dim": 12}

# Class, keys of its config, folder of its tokenizer.
CLASSIFIERS = {
    "bert": ("BertForSequenceClassification", {**SMALL, **MOODS}, "bert"),
    "bert_tokens": ("BertForTokenClassification", {**SMALL, **ENTITIES}, "bert"),
    # Two labels without names, and a problem that has an activation of its own.
    "distilbert": (
        "DistilBertForSequenceClassification",
        {**DISTILBERT, "problem_type": "multi_label_classification"}, "distilbert",
    ),
    "distilbert_tokens": ("DistilBertForTokenClassification", {**DISTILBERT, **ENTITIES},
                          "distilbert"),
    "modernbert": (
        "ModernBertForSequenceClassification",
        {**MODERNBERT, **MOODS, "classifier_pooling": "mean", "classifier_bias": True}, "modernbert",
    ),
    "modernbert_tokens": ("ModernBertForTokenClassification", {**MODERNBERT, **ENTITIES},
                          "modernbert"),
    "gemma2": (
        "Gemma2ForSequenceClassification",
        {**DECODER, **MOODS, "query_pre_attn_scalar": 12, "sliding_window": 16}, "bert",
    ),
    "llama": ("LlamaForSequenceClassification", {**DECODER, **MOODS}, "bert"),
    "mpnet": ("MPNetForSequenceClassification", {**SMALL, **MOODS}, "mpnet"),
    "mpnet_tokens": ("MPNetForTokenClassification", {**SMALL, **ENTITIES}, "mpnet"),
    "qwen2_tokens": (
        "Qwen2ForTokenClassification",
        {**{k: v for k, v in DECODER.items() if k != "head_dim"}, **ENTITIES}, "bert",
    ),
    # A reward model has one class.
    "qwen3": (
        "Qwen3ForSequenceClassification", {**DECODER, "id2label": {0: "LABEL_0"}}, "bert"
    ),
    "roberta": ("RobertaForSequenceClassification", {**SMALL, **MOODS}, "roberta"),
    "roberta_tokens": ("RobertaForTokenClassification", {**SMALL, **ENTITIES}, "roberta"),
    # A cross-encoder has one class.
    "xlm_roberta": (
        "XLMRobertaForSequenceClassification",
        {**SMALL, "type_vocab_size": 1, "hidden_act": "gelu", "id2label": {0: "LABEL_0"}},
        "xlm_roberta",
    ),
}


def generate(name: str) -> None:
    class_name, keys, tokenizer_folder = CLASSIFIERS[name]
    tokenizer = Tokenizer.from_file(str(EMBEDDINGS / tokenizer_folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    model_class = getattr(transformers, class_name)
    config = model_class.config_class(**keys, **POSITIONS, vocab_size=tokenizer.get_vocab_size())
    for key in ("cls_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "pad_token_id"):
        if (getattr(config, key, None) or 0) >= config.vocab_size:
            setattr(config, key, 1 if key == "pad_token_id" else None)
    if getattr(config, "num_key_value_heads", None):
        config.pad_token_id = None
    config.architectures = [class_name]
    model = model_class(config).eval().float()
    random_weights(model)
    folder = OUT / name
    model.save_pretrained(folder)
    records = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0]
        records.append({"text": text, "token_ids": ids, "logits": logits.tolist()})
    golden = {
        "transformers": transformers.__version__, "tokenizer": tokenizer_folder, "texts": records,
    }
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
    (folder / "golden.json").write_text(text.replace('{"text"', '\n{"text"') + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for classifier in sys.argv[1:] or CLASSIFIERS:
        generate(classifier)
        print(f"{classifier}: ok", flush=True)
