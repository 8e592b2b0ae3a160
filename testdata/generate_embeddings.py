#!/usr/bin/env python3
"""Make the tiny random encoders under testdata/golden_embeddings/ with Hugging Face transformers.

Every folder is a complete checkpoint (config, tokenizer, weights) plus golden.json: for a few texts
the token ids, the state of the first token and the mean of all states, in float32. Rows are run one
by one, so no padding is in them.

    nice python testdata/generate_embeddings.py            # all, a minute on one core

Versions: transformers 5.23.0, torch 2.15.0, tokenizers as transformers brings it.
"""

import json
import os
import sys
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = Path(__file__).parent / "golden_embeddings"
TEXTS = [
    "",
    "a",
    "The cat sits outside.",
    "A man is playing guitar, and nobody listens to him: it is late!",
    "Ärger über 東京 and naïve café prices, 12.50 euros.",
    "vectors of texts are compared by their angle, and rows of one file by nothing at all " * 3,
]
# The tokenizers are made of the text above: it stays as it is.
CORPUS = [*TEXTS, __doc__]
SMALL = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_hidden_layers=3)
POSITIONS = dict(max_position_embeddings=160)


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    # The second is what RoBERTa and MPNet take for padding.
    special = ["[unused0]", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=special)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    # Real files have both, and nobody wants them here.
    tokenizer.enable_truncation(128)
    tokenizer.enable_padding(length=128)
    return tokenizer


def ending() -> Tokenizer:
    """As those of Qwen3-Embedding: one token ends a text, and none begins it."""
    tokenizer = word_piece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A [SEP]", pair="$A $B [SEP]",
        special_tokens=[("[SEP]", tokenizer.token_to_id("[SEP]"))],
    )
    return tokenizer


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=400, special_tokens=special, unk_token="<unk>")
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")],
    )
    return tokenizer


GROUPED = dict(num_key_value_heads=2, head_dim=8)

# Their vectors are of the last token, unless their files say otherwise.
DECODERS = ("gemma3_bidirectional", "qwen2_bidirectional", "qwen3")
FAMILIES = {
    "gemma3_bidirectional": (
        transformers.Gemma3TextModel,
        transformers.Gemma3TextConfig(
            **SMALL, **POSITIONS, **GROUPED, sliding_window=16, use_bidirectional_attention=True,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
        word_piece,
    ),
    "qwen2_bidirectional": (
        transformers.Qwen2Model,
        transformers.Qwen2Config(**SMALL, **POSITIONS, num_key_value_heads=2, is_causal=False),
        ending,
    ),
    "qwen3": (
        transformers.Qwen3Model, transformers.Qwen3Config(**SMALL, **POSITIONS, **GROUPED), ending
    ),
    "bert": (transformers.BertModel, transformers.BertConfig(**SMALL, **POSITIONS), word_piece),
    "distilbert": (
        transformers.DistilBertModel,
        transformers.DistilBertConfig(dim=32, hidden_dim=48, n_heads=4, n_layers=3, **POSITIONS),
        word_piece,
    ),
    "mpnet": (transformers.MPNetModel, transformers.MPNetConfig(**SMALL, **POSITIONS), word_piece),
    "modernbert": (
        transformers.ModernBertModel,
        transformers.ModernBertConfig(
            **{**SMALL, "num_hidden_layers": 5}, **POSITIONS, local_attention=16
        ),
        word_piece,
    ),
    "roberta": (
        transformers.RobertaModel, transformers.RobertaConfig(**SMALL, **POSITIONS), word_piece
    ),
    "xlm_roberta": (
        transformers.XLMRobertaModel,
        transformers.XLMRobertaConfig(**SMALL, **POSITIONS, type_vocab_size=1, hidden_act="gelu"),
        unigram,
    ),
}


def random_weights(model: torch.nn.Module) -> None:
    """Norms and biases that are not trivial, so that none of them can be left out unseen."""
    generator = torch.Generator().manual_seed(17)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        is_norm = parameter.dim() == 1 and name.endswith("weight")
        parameter.data = 1 + 0.2 * noise if is_norm else 0.25 * noise


def generate(name: str) -> None:
    model_class, config, make_tokenizer = FAMILIES[name]
    tokenizer = make_tokenizer()
    config.vocab_size = tokenizer.get_vocab_size()
    for key in ("cls_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "pad_token_id"):
        if (getattr(config, key, None) or 0) >= config.vocab_size:
            setattr(config, key, 1 if key == "pad_token_id" else None)
    config.architectures = [model_class.__name__]
    model = model_class(config).eval().float()
    random_weights(model)
    folder = OUT / name
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    records = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        with torch.no_grad():
            states = model(torch.tensor([ids])).last_hidden_state[0]
        vectors = dict(mean=states.mean(0), cls=states[0])
        if name in DECODERS:
            vectors["last"] = states[-1]
        vectors = {name: vector.tolist() for name, vector in vectors.items()}
        records.append({"text": text, "token_ids": ids, **vectors})
    golden = {"transformers": transformers.__version__, "texts": records}
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
    (folder / "golden.json").write_text(text.replace('{"text"', '\n{"text"') + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for family in sys.argv[1:] or FAMILIES:
        generate(family)
        print(f"{family}: ok", flush=True)
