"""Makes testdata/tokenizers: small tokenizers without tokenizer.json, and what transformers makes of texts.

    python testdata/generate_tokenizers.py

Versions: transformers 5.23.0, tokenizers 0.23.3, sentencepiece 0.2.3, protobuf 7.36.2.
"""

import io
import json
import os
import pathlib
import random
import shutil

os.environ["HF_HUB_OFFLINE"] = "1"

import sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

OUT = pathlib.Path(__file__).resolve().parent / "tokenizers"
WORDS = (
    "the of and a to in is you that it he was for on are as with his they I at be this have from or one had by word "
    "but not what all were we when your can said there use an each which she do how their if will up other about out "
    "many then them these so some her would make like him into time has look two more write go see number no way "
    "could people my than first water been call who oil its now find long down day did get come made may part café "
    "naïve über straße 日本 語 привет мир 12 345 6.78 ! ? , . ( ) def return x = y + 1"
).split()
TEXTS = [
    "", " ", "  ", "a", " a", "a ", "the water", "  the  water  ", "The first day, they said: 12345!", "café naïve",
    "日本語 привет", "😀 emoji 🏴", "tabs\tand\nlines\n\n  indented", "x = y + 1", "</s>", "a</s>b", "<s>the</s> day",
    "<unk> the", "<pad>", "<|endoftext|>the", "<bos>the<eos>", "the <|user|> water<|user|>", "\x04control\x1d",
    "½ ﬁne ① Å", "e\u0301", "▁the▁water", "don't we'll", "a" * 40, "\u00a0the", "the\u200bwater", "<extra>", " <extra> a",
]  # fmt: skip


def corpus():
    rng = random.Random(7)
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, 12))) for _ in range(3000)]


def folder(name, model_type, config, files=None):
    path = OUT / name
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"model_type": model_type}) + "\n")
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    for file, value in (files or {}).items():
        (path / file).write_text(json.dumps(value, indent=1) + "\n")
    return path


def byte_level(path, special, normalizer=None):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.model.save(str(path))


def sentence_piece(path, model_type, **options):
    model = io.BytesIO()  # a file's name would be in the model
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_writer=model, model_type=model_type, vocab_size=420,
        hard_vocab_limit=False, minloglevel=2, num_threads=1, **options,
    )  # fmt: skip
    (path / "tokenizer.model").write_bytes(model.getvalue())


def token(content, **flags):
    default = {"lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
    return {"__type": "AddedToken", "content": content, **default, **flags}


def make():
    opt = {
        "errors": "replace", "unk_token": token("</s>"), "bos_token": token("</s>"), "eos_token": token("</s>"),
        "pad_token": token("<pad>"), "add_prefix_space": False, "add_bos_token": True, "special_tokens_map_file": None,
        "tokenizer_class": "GPT2Tokenizer",
    }  # fmt: skip
    named = {"bos_token": {"content": "</s>", "lstrip": False, "normalized": True, "rstrip": False, "single_word": False}}
    byte_level(folder("opt", "opt", opt, {"special_tokens_map.json": named}), ["<s>", "<pad>", "</s>", "<unk>"])
    byte_level(folder("gpt2", "gpt2", {"model_max_length": 1024}), ["<|endoftext|>"])
    byte_level(folder("gpt2_without_config", "gpt2", None), ["<|endoftext|>"])
    prefix = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True, "model_max_length": 1e30, "eos_token": "<|endoftext|>"}
    added = {"<|user|>": 420, "<extra>": 421}
    more = {"additional_special_tokens": ["<|user|>"], "bos_token": "<|endoftext|>"}
    path = folder("gpt2_added", "gpt2", prefix, {"added_tokens.json": added, "special_tokens_map.json": more})
    byte_level(path, ["<|endoftext|>"])
    qwen2 = {
        "add_prefix_space": False, "bos_token": None, "eos_token": "<|im_end|>", "unk_token": None, "errors": "replace",
        "pad_token": "<|endoftext|>", "tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": {
            "0": {**token("<|endoftext|>", normalized=False), "special": True},
            "420": {**token("<|im_end|>", normalized=False), "special": True},
            "421": {**token("<extra>", normalized=False), "special": False},
        }, "additional_special_tokens": ["<|im_end|>"],
    }  # fmt: skip
    qwen2["added_tokens_decoder"] = {
        id: {key: value for key, value in token.items() if key != "__type"}
        for id, token in qwen2["added_tokens_decoder"].items()
    }
    byte_level(folder("qwen2", "qwen2", qwen2), ["<|endoftext|>"])

    bpe = {"byte_fallback": True, "split_digits": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    llama = {"add_bos_token": True, "add_eos_token": False, "tokenizer_class": "LlamaTokenizer", "sp_model_kwargs": {},
        "bos_token": token("<s>"), "eos_token": token("</s>"), "unk_token": token("<unk>"), "pad_token": None}  # fmt: skip
    sentence_piece(folder("llama", "llama", {**llama, "legacy": False}), "bpe", **bpe)
    sentence_piece(folder("llama_legacy", "llama", {**llama, "legacy": True, "add_eos_token": True}), "bpe", **bpe)
    sentence_piece(folder("llama_bare", "llama", {"tokenizer_class": "LlamaTokenizer"}), "bpe", user_defined_symbols=["<|user|>", "<extra>"], **bpe)
    gemma = {"add_bos_token": True, "bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>", "tokenizer_class": "GemmaTokenizer"}
    pieces = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "bos_piece": "<bos>", "eos_piece": "<eos>", "add_dummy_prefix": False}
    sentence_piece(folder("gemma", "gemma2", gemma), "bpe", user_defined_symbols=["<mask>", "<|user|>"], **pieces, **bpe)
    # No class of its own: SentencePiece's parts as they are.
    sentence_piece(folder("mistral", "mistral", llama), "bpe", **bpe)
    path = folder("unigram", "mistral", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "add_eos_token": True})
    os.chdir(path)
    rules = pathlib.Path("rules.tsv")
    rules.write_text("".join(f"{ord(a):X}\t{' '.join(f'{ord(c):X}' for c in b)}\n" for a, b in [("ﬁ", "fi"), ("①", "1"), ("½", "1/2")]))
    sentence_piece(path, "unigram", normalization_rule_tsv=str(rules), user_defined_symbols=["<|user|>"])
    rules.unlink()
    sentence_piece(folder("unigram_bytes", "mistral", None), "unigram", byte_fallback=True, normalization_rule_name="identity")


def expected(path):
    tokenizer = AutoTokenizer.from_pretrained(path)
    texts = []
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        plain = tokenizer(text, add_special_tokens=False)["input_ids"]
        texts.append([text, ids, plain, tokenizer.decode(plain), tokenizer.decode(ids, skip_special_tokens=True)])
    print(path.name, type(tokenizer).__name__, tokenizer.bos_token, tokenizer.eos_token, len(tokenizer))
    return {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token, "num_tokens": len(tokenizer), "texts": texts}


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    make()
    results = {path.name: expected(path) for path in sorted(OUT.iterdir())}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(result)}" for name, result in results.items())
    (OUT / "expected.json").write_text("{" + lines + "}\n")


if __name__ == "__main__":
    main()
