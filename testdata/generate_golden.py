#!/usr/bin/env python3
"""Make the tiny golden models under testdata/golden/ with Hugging Face transformers.

Every folder is a complete checkpoint of one model family (config, tokenizer, random weights) plus golden.json: what
transformers computes for a handful of prompts. Greedy ids, logprobs, top-5 and prompt logprobs come from full forward
passes in float32 without a KV cache, so nothing here depends on how a cache treats sliding windows.

    python testdata/generate_golden.py                  # all families, under a minute on one core
    python testdata/generate_golden.py --only opt       # one family
    python testdata/generate_golden.py --check          # write nothing: reload what is saved and compare with golden.json

Run with: Python 3.11, torch 2.15.0, transformers 5.23.0, tokenizers 0.23.3, safetensors 0.8.0. Same versions, same
bytes. Other versions may pick other weights (torch's generator) or word config.json differently; --check must pass anyway.

A seed is rejected when any greedy step has its two best logits closer than MIN_GAP or when an output is monotonous, so
the goldens are unambiguous for any correct float32 implementation.
"""

import argparse
import copy
import json
import math
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

MAX_NEW_TOKENS = 24
TOP = 5
MIN_GAP = 3e-3          # between the two best logits of every greedy step
MIN_DISTINCT = 8        # distinct ids among the 24 of every output
MAX_SEEDS = 400
DIGITS = 6              # decimals kept of every logprob

LLAMA3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN_REGEX = LLAMA3_REGEX.replace(r"\p{N}{1,3}", r"\p{N}")

# What the tokenizers are trained on: small, and written for this file.
CORPUS = """
A batch of prompts goes in and a batch of answers comes out, in the order in which the prompts were read.
The quick brown fox jumps over the lazy dog, and then the dog jumps over the other fox.
When the river is high the farmers open the gates; when it is low they close them again.
It was the third of March 1987, and the train to the north was 25 minutes late, as it always was.
She said that she'd be there at 10:30, but he didn't believe her, and they weren't there at all.
There are two kinds of people in this world: those who count from zero and those who count from one.
The cache holds keys and values; the scheduler decides which sequence runs next and which one has to wait.
In 2024 the price was $3.50, in 2025 it was $4.75, and nobody knows what it will be in 2026 or in 2030.
def add(left, right):
    return left + right  # the sum of the two
for index in range(10):
    print(index, add(index, 1), [index] * 3)
{"name": "value", "number": 1234, "list": [1, 2, 3], "nested": {"true": false}}
Where there is a will there is a way, and where there is a way there is somebody who wants to go there.
What is the capital of France? The capital of France is Paris. What is the capital of Italy? It is Rome.
The user asks a question, the assistant answers it, and the system tells the assistant how to behave.
Le café est très bon ici, même s'il est un peu cher; déjà vu, naïve, garçon, élève, où, là.
Der Fluss fließt über die Brücke, und die Straße führt nach Süden.
El niño mañana irá a la montaña con su señor padre.
Once upon a time there was a little model with very few parameters that wanted to speak like the large ones.
Water, wind and stone shape the land over thousands and thousands of years, and nothing stays as it was.
Please write a short story about a cat, a mouse and a piece of cheese. The cat was not hungry that day.
""".strip("\n")

LONG_PROMPT = (
    "The scheduler decides which sequence runs next, and the cache holds the keys and values. When there are no blocks "
    "left, the youngest one waits: it is computed again."
)
PROMPTS = [
    "The quick brown fox",
    "Déjà vu à la carte 😀 日本語 Ünïcode ✓",
    "  two leading spaces\nand a new line\n\n\tthen a tab   ",
    "In 2024, 1234567 people paid $3.50 each; 100% didn't agree!",
    LONG_PROMPT,
]


# ---------------------------------------------------------------------------------------------------- tokenizers

def template(bos: str, bos_id: int):
    return processors.TemplateProcessing(
        single=f"{bos}:0 $A:0", pair=f"{bos}:0 $A:0 {bos}:1 $B:1", special_tokens=[(bos, bos_id)]
    )


def train_byte_level(pre_tokenizer, size: int, normalizer=None) -> Tokenizer:
    """Byte-level BPE with `size` ordinary tokens: 256 bytes and the rest merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([CORPUS], trainer)
    return tokenizer


def add_tokens(tokenizer: Tokenizer, special: list[str], plain: list[str] = ()) -> None:
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    if plain:
        tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in plain])


def split_pre_tokenizer(regex: str):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(regex), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False),
    ])


def llama3_tokenizer() -> Tokenizer:
    tokenizer = train_byte_level(split_pre_tokenizer(LLAMA3_REGEX), 432)
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>"]
    add_tokens(tokenizer, special)
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        template(special[0], tokenizer.token_to_id(special[0])),
    ])
    return edited(tokenizer, lambda j: j["model"].update(ignore_merges=True))


def qwen_tokenizer(plain: list[str]) -> Tokenizer:
    tokenizer = train_byte_level(split_pre_tokenizer(QWEN_REGEX), 416, normalizers.NFC())
    add_tokens(tokenizer, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], plain)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    return tokenizer


def opt_tokenizer() -> Tokenizer:
    """GPT-2's byte-level BPE with OPT's specials first: <s> 0, <pad> 1, </s> 2 (which is also BOS), <unk> 3."""
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    trained = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), 404)
    order = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    merges = json.loads(trained.to_str())["model"]["merges"]
    vocab = {token: i for i, token in enumerate(specials + [token for token, _ in order])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m) for m in merges], continuing_subword_prefix="",
                                     end_of_word_suffix="", fuse_unk=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=True) for t in ["</s>", "<pad>"]])
    tokenizer.post_processor = template("</s>", 2)
    return tokenizer


def digits_tokenizer() -> Tokenizer:
    """GPT-2's byte-level BPE behind a Digits splitter, ids of specials first, no post-processor (SmolLM's structure)."""
    pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
    ])
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=True)
    specials = [AddedToken(t, special=True, normalized=False) for t in ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]]
    tokenizer.train_from_iterator([CORPUS], trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, special_tokens=specials
    ))
    return tokenizer


def sentencepiece_vocab(specials: list[str], size: int, runs: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """SentencePiece-BPE order: specials, 256 bytes, runs and merges by rank, then single characters."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    text = "".join(c for c in CORPUS if c.isascii() or c in "éèàç")
    trained.train_from_iterator(text.split("\n"), trainers.BpeTrainer(vocab_size=size, show_progress=False))
    merges = [tuple(m) for m in json.loads(trained.to_str())["model"]["merges"]]
    run_merges = [(run[: len(run) // 2], run[: len(run) // 2]) for run in runs]
    merged = ["".join(pair) for pair in run_merges + merges]
    characters = sorted({c for c in trained.get_vocab() if len(c) == 1} | {"\n", "▁"})
    byte_tokens = [f"<0x{i:02X}>" for i in range(256)]
    tokens = list(dict.fromkeys(specials + byte_tokens + merged + characters))
    return {token: i for i, token in enumerate(tokens)}, run_merges + merges


def sentencepiece(vocab, merges) -> Tokenizer:
    return Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))


LLAMA2_DECODER = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]


def llama2_tokenizer() -> Tokenizer:
    """Llama-2's tokenizer.json: Prepend + Replace normalizer, no pre-tokenizer."""
    tokenizer = sentencepiece(*sentencepiece_vocab(["<unk>", "<s>", "</s>"], 210, ["▁▁", "▁▁▁▁"]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(LLAMA2_DECODER)
    add_tokens(tokenizer, ["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = template("<s>", 1)
    return tokenizer


def mistral_tokenizer() -> Tokenizer:
    """Mistral-v0.3's tokenizer.json: no normalizer, Metaspace(first, split=false), control tokens among the first ids."""
    specials = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"]
    tokenizer = sentencepiece(*sentencepiece_vocab(specials, 210, ["▁▁", "▁▁▁▁"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(LLAMA2_DECODER)
    add_tokens(tokenizer, specials)
    tokenizer.post_processor = template("<s>", 1)
    return tokenizer


def gemma_tokenizer() -> Tokenizer:
    """Gemma's: spaces become ▁ with no prefix, newline runs are added tokens that are not special."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
    newlines = ["\n\n", "\n\n\n"]
    vocab, merges = sentencepiece_vocab(specials + newlines, 200, ["▁▁", "▁▁▁▁"])
    tokenizer = sentencepiece(vocab, merges)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous", invert=False)
    tokenizer.decoder = decoders.Sequence(LLAMA2_DECODER[:3])
    add_tokens(tokenizer, specials, newlines)
    tokenizer.post_processor = template("<bos>", 2)
    return tokenizer


def edited(tokenizer: Tokenizer, edit: Callable[[dict], None]) -> Tokenizer:
    """The tokenizer after `edit` changed its JSON, for settings that have no Python attribute."""
    data = json.loads(tokenizer.to_str())
    edit(data)
    return Tokenizer.from_str(json.dumps(data))


# ------------------------------------------------------------------------------------------------ chat templates

CHATML = (
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "{%- endif %}\n"
)
LLAMA2_CHAT = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + message['content'].strip() "
    "+ ' [/INST]' }}{% else %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA3_CHAT = (
    "{{- bos_token }}\n"
    "{%- for message in messages %}\n"
    "    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n"
    "{%- endif %}\n"
)
GEMMA_CHAT = (
    "{{ bos_token }}{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)


# ------------------------------------------------------------------------------------------------------ families

@dataclass
class Family:
    """One folder: how its tokenizer and config are made, how its weights are stored, what its config.json looks like."""
    config_class: str
    config: dict
    tokenizer: Callable[[], Tokenizer]
    tokenizer_config: dict
    first_prompt: str                                # the prompt that is one token long
    extra_prompts: list[str] = field(default_factory=list)
    pad_vocab_to: int = 1                            # embedding rows are rounded up to this, as Qwen does
    dtype: torch.dtype = torch.float32               # of the stored weights; goldens use them widened to float32
    shard_size: str | None = None
    head_std: float = 0.4                            # of lm_head, or of the embedding when tied
    norm_mean: float = 1.0                           # 0 where the model computes (1 + w)
    post_norm_mean: float | None = None              # of norms after attention and MLP, where the family has them
    final_norm_mean: float | None = None             # of the last norm: with tied embeddings it sets the spread of the logits
    bias_std: float = 0.3
    old_config: bool = False                         # write config.json as transformers 4 did
    chat_in_config: bool = False                     # chat template inside tokenizer_config.json instead of a .jinja file
    chat_template: str | None = None
    generation_config: dict = field(default_factory=dict)
    slow_files: bool = False                         # also write vocab.json and merges.txt, all that OPT checkpoints have


def dims(hidden, inter, layers, heads, kv, **more) -> dict:
    return dict(hidden_size=hidden, intermediate_size=inter, num_hidden_layers=layers, num_attention_heads=heads,
                num_key_value_heads=kv, max_position_embeddings=256, **more)


def fast(**more) -> dict:
    return dict(tokenizer_class="PreTrainedTokenizerFast", clean_up_tokenization_spaces=False, model_max_length=256, **more)


FAMILIES: dict[str, Family] = {
    "llama3": Family(
        "LlamaConfig",
        dims(48, 104, 3, 6, 2, head_dim=16, tie_word_embeddings=True, rms_norm_eps=1e-5,
             rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                                  high_freq_factor=4.0, original_max_position_embeddings=32)),
        llama3_tokenizer, fast(bos_token="<|begin_of_text|>", eos_token="<|eot_id|>"), "",
        extra_prompts=["<|start_header_id|>user<|end_header_id|>\n\nWhat is the capital?<|eot_id|>"],
        old_config=True, chat_in_config=True, chat_template=LLAMA3_CHAT,
        generation_config=dict(eos_token_id=["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"], do_sample=True, temperature=0.6,
                               top_p=0.9),
    ),
    "qwen2": Family(
        "Qwen2Config",
        dims(64, 96, 2, 4, 2, rms_norm_eps=1e-6, tie_word_embeddings=False, use_sliding_window=False,
             max_window_layers=1, rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
        lambda: qwen_tokenizer(["<tool_call>", "</tool_call>"]),
        dict(tokenizer_class="Qwen2Tokenizer", add_prefix_space=False, bos_token=None, eos_token="<|im_end|>",
             pad_token="<|endoftext|>", clean_up_tokenization_spaces=False, model_max_length=256, errors="replace"),
        "A", extra_prompts=["Cafe\u0301 <|im_start|>user\nI'll say HI'S<|im_end|>\n<tool_call>x</tool_call>"],
        pad_vocab_to=32, old_config=True, chat_in_config=True, chat_template=CHATML,
        generation_config=dict(eos_token_id=["<|im_end|>", "<|endoftext|>"], do_sample=True, temperature=0.7, top_p=0.8,
                               top_k=20, repetition_penalty=1.05),
    ),
    "opt": Family(
        "OPTConfig",
        dict(hidden_size=48, ffn_dim=96, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=128,
             do_layer_norm_before=True, activation_function="relu", word_embed_proj_dim=48, dropout=0.1),
        opt_tokenizer,
        dict(tokenizer_class="GPT2Tokenizer", bos_token="</s>", eos_token="</s>", unk_token="</s>", pad_token="<pad>",
             add_bos_token=True, add_prefix_space=False, errors="replace", clean_up_tokenization_spaces=False),
        "", extra_prompts=["one</s> two"], slow_files=True, generation_config=dict(eos_token_id="</s>"),
    ),
    "opt350": Family(
        "OPTConfig",
        dict(hidden_size=48, ffn_dim=96, num_hidden_layers=3, num_attention_heads=3, max_position_embeddings=128,
             do_layer_norm_before=False, activation_function="relu", word_embed_proj_dim=32, dropout=0.1),
        opt_tokenizer,
        dict(tokenizer_class="GPT2Tokenizer", bos_token="</s>", eos_token="</s>", unk_token="</s>", pad_token="<pad>",
             add_bos_token=True, add_prefix_space=False, errors="replace", clean_up_tokenization_spaces=False),
        "", extra_prompts=["one</s> two"], bias_std=0.1, head_std=1.0, generation_config=dict(eos_token_id="</s>"),
    ),
    "llama2": Family(
        "LlamaConfig",
        dims(48, 96, 3, 3, 3, rms_norm_eps=1e-2, tie_word_embeddings=False,
             rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
        llama2_tokenizer,
        fast(bos_token="<s>", eos_token="</s>", unk_token="<unk>"), "",
        extra_prompts=["[INST] Say </s> twice <s>now [/INST]"],
        shard_size="160KB", chat_in_config=True, chat_template=LLAMA2_CHAT, generation_config=dict(eos_token_id="</s>"),
    ),
    "llama_bias": Family(
        "LlamaConfig",
        dims(32, 80, 3, 4, 4, head_dim=16, attention_bias=True, mlp_bias=True, tie_word_embeddings=False,
             rope_parameters=dict(rope_type="linear", rope_theta=5000.0, factor=4.0)),
        digits_tokenizer,
        fast(bos_token="<|im_start|>", eos_token="<|im_end|>", unk_token="<|endoftext|>"), "A",
        extra_prompts=["<|im_start|>system\nBe 3x brief<|im_end|>"],
        old_config=True, chat_template=CHATML, generation_config=dict(eos_token_id="<|im_end|>"),
    ),
    "mistral": Family(
        "MistralConfig",
        dims(48, 96, 3, 6, 2, head_dim=16, sliding_window=8, tie_word_embeddings=False, rms_norm_eps=1e-5,
             rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
        mistral_tokenizer,
        fast(bos_token="<s>", eos_token="</s>", unk_token="<unk>"), "",
        extra_prompts=["[INST] Say it twice[/INST]"],
        dtype=torch.bfloat16, chat_template=LLAMA2_CHAT, generation_config=dict(eos_token_id="</s>"),
    ),
    "qwen2_window": Family(
        "Qwen2Config",
        dims(48, 96, 4, 3, 1, rms_norm_eps=1e-6, tie_word_embeddings=True, use_sliding_window=True, sliding_window=8,
             max_window_layers=2, rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
        lambda: qwen_tokenizer(["<tool_call>", "</tool_call>"]),
        dict(tokenizer_class="Qwen2Tokenizer", add_prefix_space=False, bos_token=None, eos_token="<|im_end|>",
             pad_token="<|endoftext|>", clean_up_tokenization_spaces=False, model_max_length=256, errors="replace"),
        "A", extra_prompts=["Cafe\u0301 <|im_start|>user\nHi<|im_end|>\n"],
        pad_vocab_to=32, dtype=torch.float16, generation_config=dict(eos_token_id="<|endoftext|>"),
    ),
    "qwen3": Family(
        "Qwen3Config",
        dims(48, 96, 3, 4, 2, head_dim=32, rms_norm_eps=1e-6, tie_word_embeddings=True,
             rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
        lambda: qwen_tokenizer(["<tool_call>", "</tool_call>", "<think>", "</think>"]),
        dict(tokenizer_class="Qwen2Tokenizer", add_prefix_space=False, bos_token=None, eos_token="<|im_end|>",
             pad_token="<|endoftext|>", clean_up_tokenization_spaces=False, model_max_length=256, errors="replace"),
        "A", extra_prompts=["<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"],
        pad_vocab_to=32, chat_template=CHATML, head_std=0.12, final_norm_mean=3.5,
        generation_config=dict(eos_token_id=["<|im_end|>", "<|endoftext|>"], do_sample=True, temperature=0.6, top_p=0.95,
                               top_k=20),
    ),
    "gemma2": Family(
        "Gemma2Config",
        dims(48, 96, 4, 4, 2, head_dim=16, sliding_window=8, query_pre_attn_scalar=24, attn_logit_softcapping=5.0,
             final_logit_softcapping=8.0, hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True,
             rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
        gemma_tokenizer,
        dict(tokenizer_class="GemmaTokenizer", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", pad_token="<pad>",
             mask_token="<mask>", add_bos_token=True, clean_up_tokenization_spaces=False), "",
        extra_prompts=["<start_of_turn>user\n\n\nHi<end_of_turn>\n"],
        norm_mean=0.0, post_norm_mean=2.0, final_norm_mean=4.0, head_std=0.1, chat_in_config=True, chat_template=GEMMA_CHAT,
        generation_config=dict(eos_token_id=["<eos>", "<end_of_turn>"]),
    ),
    "gemma3": Family(
        "Gemma3TextConfig",
        dims(48, 96, 4, 4, 1, head_dim=16, sliding_window=8, query_pre_attn_scalar=24,
             layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
             hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True,
             rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=100000.0, factor=8.0),
                                  sliding_attention=dict(rope_type="default", rope_theta=1000.0))),
        gemma_tokenizer,
        dict(tokenizer_class="GemmaTokenizer", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", pad_token="<pad>",
             mask_token="<mask>", add_bos_token=True, clean_up_tokenization_spaces=False), "",
        extra_prompts=["<start_of_turn>user\n\n\nHi<end_of_turn>\n"],
        norm_mean=0.0, post_norm_mean=2.0, final_norm_mean=4.0, head_std=0.1, chat_template=GEMMA_CHAT,
        generation_config=dict(eos_token_id=["<eos>", "<end_of_turn>"]),
    ),
}


# ------------------------------------------------------------------------------------------------ configs, weights

def make_config(family: Family, tokenizer: Tokenizer):
    rows = tokenizer.get_vocab_size()
    rows += -rows % family.pad_vocab_to
    ids = {k: token_id(tokenizer, family.tokenizer_config.get(t)) for k, t in
           [("bos_token_id", "bos_token"), ("eos_token_id", "eos_token"), ("pad_token_id", "pad_token")]}
    config = getattr(transformers, family.config_class)(**family.config, **ids, vocab_size=rows)
    config.architectures = [architecture(family)]
    return config


def architecture(family: Family) -> str:
    return family.config_class.replace("Text", "").replace("Config", "ForCausalLM")


def token_id(tokenizer: Tokenizer, token: str | None) -> int | None:
    return None if token is None else tokenizer.token_to_id(token)


def make_model(family: Family, config, tokens: int, seed: int) -> torch.nn.Module:
    """A float32 model whose weights are random and exactly representable in the dtype they are stored in."""
    model = getattr(transformers, architecture(family))._from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = torch.randn(parameter.shape, generator=generator) * std(family, name, parameter, config)
            values += mean(family, name)
            if values.shape[0] == config.vocab_size:
                values[tokens:] = 0.0
            parameter.copy_(values.to(family.dtype).float())
    return model.eval()


def is_norm(name: str) -> bool:
    return "norm" in name


def std(family: Family, name: str, parameter: torch.Tensor, config) -> float:
    if name.endswith(".bias"):
        return family.bias_std
    if is_norm(name):
        return 0.25
    if "embed_positions" in name:
        return 0.7
    if "lm_head" in name or ("embed_tokens" in name and config.tie_word_embeddings):
        return family.head_std
    if "embed_tokens" in name:
        return 1.0
    gain = 1.6 if "q_proj" in name or "k_proj" in name else 0.5 if "project_out" in name else 1.2
    return gain / math.sqrt(parameter.shape[1])


def mean(family: Family, name: str) -> float:
    if not is_norm(name) or name.endswith(".bias"):
        return 0.0
    if family.post_norm_mean is not None and ("post_attention" in name or "post_feedforward" in name):
        return family.post_norm_mean
    if family.final_norm_mean is not None and name == "model.norm.weight":
        return family.final_norm_mean
    return family.norm_mean


def old_style(config: dict, family: Family) -> dict:
    """config.json as transformers 4 wrote it: rope_theta and rope_scaling at the top, torch_dtype, no layer_types."""
    config = dict(config)
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.45.0"
    config.pop("_sliding_window_pattern", None)
    rope = config.pop("rope_parameters")
    config.pop("layer_types", None)
    if "full_attention" in rope:                                     # gemma3
        config["rope_theta"] = rope["full_attention"]["rope_theta"]
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        config["rope_scaling"] = scaling(rope["full_attention"])
        config["sliding_window_pattern"] = 3
        return config
    config["rope_theta"] = rope["rope_theta"]
    config["rope_scaling"] = scaling(rope)
    if config["model_type"] == "qwen2" and not config["use_sliding_window"]:
        config["sliding_window"] = 8                                 # present but switched off, as Qwen2.5 has it
    if rope["rope_type"] == "linear":
        config["rope_scaling"] = {"type": "linear", "factor": rope["factor"]}   # the oldest spelling
    return config


def scaling(rope: dict) -> dict | None:
    rest = {k: v for k, v in rope.items() if k != "rope_theta"}
    return None if rope["rope_type"] == "default" else rest


# --------------------------------------------------------------------------------------------------------- goldens

@torch.no_grad()
def logits_of(model, ids: list[int]) -> torch.Tensor:
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


def rounded(value) -> float:
    return round(float(value), DIGITS)


def golden_prompt(model, tokenizer, text: str, ids: list[int]) -> tuple[dict, float]:
    """The golden record of one prompt, and the smallest gap between the two best logits on the way."""
    known = torch.log_softmax(logits_of(model, ids), dim=-1)
    prompt_logprobs = [None] + [rounded(known[i, token]) for i, token in enumerate(ids[1:])]
    output, logprobs, top, gap = [], [], [], math.inf
    for _ in range(MAX_NEW_TOKENS):
        last = logits_of(model, ids + output)[-1]
        scores = torch.log_softmax(last, dim=-1)
        best = torch.topk(last, TOP)
        gap = min(gap, float(best.values[0] - best.values[1]))
        output.append(int(best.indices[0]))
        logprobs.append(rounded(scores[output[-1]]))
        top.append([[int(i), rounded(scores[i])] for i in best.indices])
    record = {
        "text": text, "prompt_token_ids": ids, "output_token_ids": output, "logprobs": logprobs, "top": top,
        "prompt_logprobs": prompt_logprobs, "text_out": text_out(tokenizer, ids, output),
        "output_decoded": tokenizer.decode(output, skip_special_tokens=True),
    }
    return record, gap


def text_out(tokenizer, prompt: list[int], output: list[int]) -> str | None:
    before = tokenizer.decode(prompt, skip_special_tokens=True)
    after = tokenizer.decode(prompt + output, skip_special_tokens=True)
    return after[len(before):] if after.startswith(before) else None


def prompts_of(family: Family) -> list[str]:
    return [family.first_prompt] + PROMPTS + family.extra_prompts


def cached_greedy(model, ids: list[int]) -> list[int]:
    """What generate() with its KV cache produces: an independent path through transformers."""
    config = GenerationConfig(max_new_tokens=MAX_NEW_TOKENS, do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=0)
    model.generation_config = config
    with torch.no_grad():
        out = model.generate(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                             generation_config=config)
    return out[0, len(ids):].tolist()


def search(family: Family, config, tokenizer, tokens: int, prompts: list[tuple[str, list[int]]]):
    """The first seed whose goldens are unambiguous and varied."""
    for seed in range(MAX_SEEDS):
        model = make_model(family, config, tokens, seed)
        records = []
        for text, ids in prompts:
            record, gap = golden_prompt(model, tokenizer, text, ids)
            if gap < MIN_GAP or len(set(record["output_token_ids"])) < MIN_DISTINCT:
                break
            records.append(record)
        else:
            return seed, model, records
    raise SystemExit(f"no seed below {MAX_SEEDS} gives unambiguous goldens")


# ---------------------------------------------------------------------------------------------------------- files

def write_json(path: Path, data) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_golden(path: Path, head: dict, records: list[dict]) -> None:
    """One line per field of a prompt: readable, and small."""
    fields = [",\n".join(f"      {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in r.items()) for r in records]
    prompts = ",\n".join("    {\n" + text + "\n    }" for text in fields)
    lines = "".join(f"  {json.dumps(k)}: {json.dumps(v)},\n" for k, v in head.items())
    path.write_text("{\n" + lines + '  "prompts": [\n' + prompts + "\n  ]\n}\n", encoding="utf-8")


def write_tokenizer(folder: Path, family: Family, tokenizer: Tokenizer) -> None:
    tokenizer.save(str(folder / "tokenizer.json"))
    added = json.loads(tokenizer.to_str())["added_tokens"]
    config = dict(family.tokenizer_config)
    config["added_tokens_decoder"] = {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in added}
    if family.chat_template and family.chat_in_config:
        config["chat_template"] = family.chat_template
    elif family.chat_template:
        (folder / "chat_template.jinja").write_text(family.chat_template, encoding="utf-8")
    write_json(folder / "tokenizer_config.json", config)
    if family.slow_files:
        tokenizer.model.save(str(folder))


def make_readable(folder: Path) -> None:
    for file in folder.iterdir():
        file.chmod(0o644)


def write_model(folder: Path, family: Family, model, tokenizer: Tokenizer) -> None:
    stored = copy.deepcopy(model).to(family.dtype)
    stored.config.dtype = family.dtype
    stored.save_pretrained(folder, max_shard_size=family.shard_size or "5GB")
    config = json.loads((folder / "config.json").read_text())
    if family.old_config:
        write_json(folder / "config.json", old_style(config, family))
    if "full_attention" in config.get("rope_parameters", {}):
        write_json(folder / "config_v4.json", old_style(config, family))
    generation = {k: ids_of(tokenizer, v) if k == "eos_token_id" else v for k, v in family.generation_config.items()}
    ids = {"bos_token_id": config.get("bos_token_id"), "pad_token_id": config.get("pad_token_id")}
    write_json(folder / "generation_config.json",
               {**{k: v for k, v in ids.items() if v is not None}, **generation, "transformers_version": transformers.__version__})


def ids_of(tokenizer: Tokenizer, tokens: str | list[str]) -> int | list[int]:
    return [tokenizer.token_to_id(t) for t in tokens] if isinstance(tokens, list) else tokenizer.token_to_id(tokens)


def generate(out: Path, name: str) -> None:
    family, folder = FAMILIES[name], out / name
    fresh = out / f".{name}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    raw = family.tokenizer()
    config = make_config(family, raw)
    write_tokenizer(fresh, family, raw)
    write_json(fresh / "config.json", config.to_dict())              # AutoTokenizer wants a config beside it
    tokenizer = AutoTokenizer.from_pretrained(fresh)
    prompts = [(text, tokenizer(text)["input_ids"]) for text in prompts_of(family)]
    seed, model, records = search(family, config, tokenizer, raw.get_vocab_size(), prompts)
    write_model(fresh, family, model, raw)
    head = {"family": name, "transformers": transformers.__version__, "torch": torch.__version__.split("+")[0], "seed": seed,
            "attn_implementation": "eager", "max_new_tokens": MAX_NEW_TOKENS}
    write_golden(fresh / "golden.json", head, records)
    check(out, f".{name}.new", name)
    make_readable(fresh)
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name}: seed {seed}, prompt lengths {[len(i) for _, i in prompts]}, {size // 1024} KiB", flush=True)


# ---------------------------------------------------------------------------------------------------------- check

FULL, SLIDING = "full_attention", "sliding_attention"

# Plausible mistakes, as config changes. Each must move some golden logprob: a golden that a mistake does not touch tests nothing.
MISTAKES: dict[str, list[dict]] = {
    "llama2": [dict(rms_norm_eps=1e-5), dict(rope_parameters=dict(rope_type="default", rope_theta=500000.0))],
    "llama3": [dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
               dict(rope_parameters=dict(FAMILIES["llama3"].config["rope_parameters"], high_freq_factor=2.0)),
               dict(rope_parameters=dict(FAMILIES["llama3"].config["rope_parameters"], original_max_position_embeddings=64))],
    "llama_bias": [dict(rope_parameters=dict(rope_type="default", rope_theta=5000.0))],
    "mistral": [dict(sliding_window=w) for w in (7, 9, None)],
    "qwen2": [dict(use_sliding_window=True, sliding_window=8, layer_types=[FULL, SLIDING])],
    "qwen2_window": [dict(sliding_window=7), dict(sliding_window=9), dict(layer_types=[FULL] * 4), dict(layer_types=[SLIDING] * 4)],
    "qwen3": [dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0))],
    "opt": [dict(activation_function="gelu"), dict(_remove_final_layer_norm=True)],
    "opt350": [dict(activation_function="gelu"), dict(do_layer_norm_before=True, _remove_final_layer_norm=True)],
    "gemma2": [dict(sliding_window=7), dict(sliding_window=9), dict(layer_types=[FULL, SLIDING] * 2), dict(query_pre_attn_scalar=16),
               dict(attn_logit_softcapping=None), dict(final_logit_softcapping=None), dict(hidden_activation="gelu")],
    "gemma3": [dict(sliding_window=7), dict(sliding_window=9), dict(layer_types=[SLIDING] * 3 + [FULL]), dict(query_pre_attn_scalar=16),
               dict(hidden_activation="gelu"),
               dict(rope_parameters={k: dict(rope_type="default", rope_theta=100000.0) for k in (FULL, SLIDING)}),
               dict(rope_parameters={FULL: dict(rope_type="default", rope_theta=100000.0),
                                     SLIDING: dict(rope_type="default", rope_theta=1000.0)})],
}


def check_mistakes(folder: Path, name: str) -> None:
    """Every listed mistake changes the first-step logprobs of some prompt by far more than the tolerance."""
    records = json.loads((folder / "golden.json").read_text(encoding="utf-8"))["prompts"]
    for mistake in MISTAKES[name]:
        model, _ = load(folder, None, mistake)
        distance = max(distance_to_golden(model, record) for record in records)
        print(f"  {name}: {mistake} moves a logprob by {distance:.4f}", flush=True)
        assert distance > 2e-4, (name, mistake, distance)


def distance_to_golden(model, record: dict) -> float:
    scores = torch.log_softmax(logits_of(model, record["prompt_token_ids"])[-1], dim=-1)
    return max(abs(float(scores[token]) - expected) for token, expected in record["top"][0])


def check(out: Path, folder_name: str, name: str) -> None:
    """Reload the saved folder from nothing and compare it with golden.json, cached generation included."""
    folder = out / folder_name
    golden = json.loads((folder / "golden.json").read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    loaded = [load_exactly(folder, None)]
    if (folder / "config_v4.json").exists():
        loaded.append(load_exactly(folder, folder / "config_v4.json"))
    for record in golden["prompts"]:
        ids = record["prompt_token_ids"]
        assert tokenizer(record["text"])["input_ids"] == ids, (name, record["text"])
        assert raw.encode(record["text"]).ids == ids, (name, "tokenizer.json", record["text"], raw.encode(record["text"]).ids, ids)
        for model in loaded:
            assert distance_to_golden(model, record) < 2e-5, (name, record["text"])
    for record in golden["prompts"][-3:]:
        for model in loaded:
            assert cached_greedy(model, record["prompt_token_ids"]) == record["output_token_ids"], (name, "generate", record["text"])


def load(folder: Path, config_file: Path | None, changes: dict = {}):
    config = transformers.AutoConfig.from_pretrained(config_file or folder)
    for key, value in changes.items():
        setattr(config, key, value)
    model, info = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32, attn_implementation="eager",
                                                       output_loading_info=True)
    return model.eval(), info


def load_exactly(folder: Path, config_file: Path | None):
    model, info = load(folder, config_file)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(FAMILIES), help="families to make or check (default: all)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "golden", help="folder to write to")
    parser.add_argument("--check", action="store_true", help="compare what is saved with golden.json and write nothing")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name in args.only or FAMILIES:
        if args.check:
            check(args.out, name, name)
            check_mistakes(args.out / name, name)
            print(f"{name}: ok", flush=True)
        else:
            generate(args.out, name)


if __name__ == "__main__":
    main()
