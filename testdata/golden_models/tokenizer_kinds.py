"""Tokenizers of golden models, trained on a few lines of text.

SHARED has one tokenizer per kind: the folders of golden/ that were added later link to it.
"""

import json
from collections.abc import Callable
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

LLAMA3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN_REGEX = LLAMA3_REGEX.replace(r"\p{N}{1,3}", r"\p{N}")

# What the tokenizers are trained on: small, and written for this file.
CORPUS = (Path(__file__).parent / "corpus.txt").read_text(encoding="utf-8").strip("\n")


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
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(regex), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False),
        ]
    )


def llama3_tokenizer() -> Tokenizer:
    tokenizer = train_byte_level(split_pre_tokenizer(LLAMA3_REGEX), 432)
    special = [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
    ]
    add_tokens(tokenizer, special)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            template(special[0], tokenizer.token_to_id(special[0])),
        ]
    )
    return edited(tokenizer, lambda j: j["model"].update(ignore_merges=True))


def qwen_tokenizer(plain: list[str]) -> Tokenizer:
    tokenizer = train_byte_level(split_pre_tokenizer(QWEN_REGEX), 416, normalizers.NFC())
    add_tokens(tokenizer, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], plain)
    tokenizer.post_processor = processors.ByteLevel(
        add_prefix_space=False, trim_offsets=False, use_regex=False
    )
    return tokenizer


def opt_tokenizer() -> Tokenizer:
    """GPT-2's byte-level BPE with OPT's specials first: <s>, <pad>, </s> (also BOS), <unk>."""
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    trained = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), 404)
    order = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    merges = json.loads(trained.to_str())["model"]["merges"]
    vocab = {token: i for i, token in enumerate(specials + [token for token, _ in order])}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=[tuple(m) for m in merges],
            continuing_subword_prefix="",
            end_of_word_suffix="",
            fuse_unk=False,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=True) for t in ["</s>", "<pad>"]]
    )
    tokenizer.post_processor = template("</s>", 2)
    return tokenizer


def digits_tokenizer() -> Tokenizer:
    """SmolLM's structure: byte-level BPE behind a Digits splitter, ids of specials first."""
    pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=True)
    specials = [
        AddedToken(t, special=True, normalized=False)
        for t in ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    ]
    tokenizer.train_from_iterator(
        [CORPUS],
        trainers.BpeTrainer(
            vocab_size=400,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
            special_tokens=specials,
        ),
    )
    return tokenizer


def sentencepiece_vocab(
    specials: list[str], size: int, runs: list[str]
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """SentencePiece-BPE order: specials, 256 bytes, runs and merges by rank, characters."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme="always", split=True
    )
    text = "".join(c for c in CORPUS if c.isascii() or c in "éèàç")
    trained.train_from_iterator(
        text.split("\n"), trainers.BpeTrainer(vocab_size=size, show_progress=False)
    )
    merges = [tuple(m) for m in json.loads(trained.to_str())["model"]["merges"]]
    run_merges = [(run[: len(run) // 2], run[: len(run) // 2]) for run in runs]
    merged = ["".join(pair) for pair in run_merges + merges]
    characters = sorted({c for c in trained.get_vocab() if len(c) == 1} | {"\n", "▁"})
    byte_tokens = [f"<0x{i:02X}>" for i in range(256)]
    tokens = list(dict.fromkeys(specials + byte_tokens + merged + characters))
    return {token: i for i, token in enumerate(tokens)}, run_merges + merges


def sentencepiece(vocab, merges) -> Tokenizer:
    return Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )


LLAMA2_DECODER = [
    decoders.Replace("▁", " "),
    decoders.ByteFallback(),
    decoders.Fuse(),
    decoders.Strip(" ", 1, 0),
]


def llama2_tokenizer() -> Tokenizer:
    """Llama-2's tokenizer.json: Prepend + Replace normalizer, no pre-tokenizer."""
    tokenizer = sentencepiece(*sentencepiece_vocab(["<unk>", "<s>", "</s>"], 210, ["▁▁", "▁▁▁▁"]))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(LLAMA2_DECODER)
    add_tokens(tokenizer, ["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = template("<s>", 1)
    return tokenizer


def mistral_tokenizer() -> Tokenizer:
    """Mistral-v0.3's: no normalizer, Metaspace(first, split=false), control tokens first."""
    specials = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"]
    tokenizer = sentencepiece(*sentencepiece_vocab(specials, 210, ["▁▁", "▁▁▁▁"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme="first", split=False
    )
    tokenizer.decoder = decoders.Sequence(LLAMA2_DECODER)
    add_tokens(tokenizer, specials)
    tokenizer.post_processor = template("<s>", 1)
    return tokenizer


def gemma_tokenizer() -> Tokenizer:
    """Gemma's: spaces become ▁ with no prefix, newline runs are added plain tokens."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>"]
    newlines = ["\n\n", "\n\n\n"]
    vocab, merges = sentencepiece_vocab(specials + newlines, 200, ["▁▁", "▁▁▁▁"])
    tokenizer = sentencepiece(vocab, merges)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(
        " ", behavior="merged_with_previous", invert=False
    )
    tokenizer.decoder = decoders.Sequence(LLAMA2_DECODER[:3])
    add_tokens(tokenizer, specials, newlines)
    tokenizer.post_processor = template("<bos>", 2)
    return tokenizer


def edited(tokenizer: Tokenizer, edit: Callable[[dict], None]) -> Tokenizer:
    """The tokenizer after `edit` changed its JSON, for settings that have no Python attribute."""
    data = json.loads(tokenizer.to_str())
    edit(data)
    return Tokenizer.from_str(json.dumps(data))


def shared_byte_level() -> Tokenizer:
    """GPT-2's kind: 256 bytes, few merges, no BOS."""
    tokenizer = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), 286)
    add_tokens(tokenizer, ["<|endoftext|>", "<|user|>"])
    return tokenizer


def shared_sentencepiece() -> Tokenizer:
    """Llama 2's kind: byte fallback, Prepend + Replace, BOS."""
    vocab, merges = sentencepiece_vocab(["<unk>", "<s>", "</s>"], 90, [])
    used = {part for merge in merges for part in (*merge, "".join(merge))}
    kept = [t for t in vocab if t.startswith("<") or t in used or t in "▁abcdefghiklmnoprstuvwy"]
    tokenizer = sentencepiece({token: i for i, token in enumerate(kept)}, merges)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(LLAMA2_DECODER)
    add_tokens(tokenizer, ["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = template("<s>", 1)
    return tokenizer


def shared_images() -> Tokenizer:
    """The same with what prompts have around images."""
    tokenizer = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), 286)
    places = [f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)]
    names = ["<|endoftext|>", "<|im_start|>", "<end_of_utterance>", "<global-img>", *places]
    add_tokens(tokenizer, [*names, "<fake_token_around_image>", "<image>"])
    return tokenizer


def shared_cohere_images() -> Tokenizer:
    """The same with what prompts of Aya Vision and Command A Vision have around images."""
    tokenizer = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), 286)
    names = ["<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_LINE_BREAK|>", "TILE_GLOBAL"]
    names += [f"TILE_{index}" for index in range(1, 10)]
    add_tokens(tokenizer, ["<|endoftext|>", "<end_of_utterance>", *names, "<|IMG_PATCH|>"])
    return tokenizer


def shared_gemma_images() -> Tokenizer:
    """The same with what Gemma 3's prompts have around images."""
    tokenizer = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), 286)
    names = ["<start_of_image>", "<end_of_image>", "<image_soft_token>"]
    add_tokens(tokenizer, ["<|endoftext|>", "<end_of_utterance>", *names])
    return tokenizer


def shared_internvl_images() -> Tokenizer:
    """The same with what InternVL's prompts have around images."""
    tokenizer = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), 286)
    names = ["<img>", "</img>", "<IMG_CONTEXT>"]
    add_tokens(tokenizer, ["<|endoftext|>", "<end_of_utterance>", *names])
    return tokenizer


def shared_lfm2_images() -> Tokenizer:
    """The same with what LFM2-VL's prompts have around images."""
    tokenizer = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), 286)
    places = [(row, column) for row in range(1, 5) for column in range(1, 5) if row * column <= 4]
    names = ["<|endoftext|>", "<|im_start|>", "<end_of_utterance>", "<|image_start|>"]
    names += [f"<|img_row_{row}_col_{column}|>" for row, column in places]
    add_tokens(tokenizer, [*names, "<|img_thumbnail|>", "<|image_end|>", "<image>"])
    return tokenizer


def shared_molmo2_images() -> Tokenizer:
    """The same with what Molmo 2's prompts have around images, behind the words that it may say."""
    tokenizer = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), 286)
    names = ["<im_start>", "<im_end>", "<im_patch>", "<im_col>", "<low_res_im_start>", "<|image|>"]
    names += ["<im_low>", "<frame_start>", "<frame_end>", "<|video|>"]
    add_tokens(tokenizer, ["<|endoftext|>", "<|im_start|>", "<end_of_utterance>", *names])
    return tokenizer


def shared_ovis2_images() -> Tokenizer:
    """The same with what Ovis 2's prompts have around images."""
    tokenizer = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), 286)
    names = ["<image>", "<IMG_ATOM>", "<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>"]
    add_tokens(tokenizer, ["<|endoftext|>", "<|im_start|>", "<end_of_utterance>", *names, "<IMG_END>"])
    return tokenizer


def shared_phi4_images() -> Tokenizer:
    """The same with what Phi-4-multimodal's own code has for images and sounds."""
    tokenizer = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), 286)
    add_tokens(tokenizer, ["<|endoftext|>", "<end_of_utterance>", "<|endoftext10|>", "<|endoftext11|>"])
    return tokenizer


def shared_pixtral_images() -> Tokenizer:
    """The same with what Pixtral's prompts have for images."""
    tokenizer = train_byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), 286)
    names = ["[IMG]", "[IMG_BREAK]", "[IMG_END]"]
    add_tokens(tokenizer, ["<|endoftext|>", "<end_of_utterance>", *names])
    return tokenizer


SHARED: dict[str, tuple[Callable[[], Tokenizer], dict]] = {
    "byte_level": (shared_byte_level, dict(eos_token="<|endoftext|>")),
    "sentencepiece": (
        shared_sentencepiece,
        dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>"),
    ),
    "cohere_images": (shared_cohere_images, dict(eos_token="<end_of_utterance>")),
    "gemma_images": (shared_gemma_images, dict(eos_token="<end_of_utterance>")),
    "images": (shared_images, dict(eos_token="<end_of_utterance>")),
    "internvl_images": (shared_internvl_images, dict(eos_token="<end_of_utterance>")),
    "lfm2_images": (shared_lfm2_images, dict(eos_token="<end_of_utterance>")),
    "molmo2_images": (shared_molmo2_images, dict(eos_token="<end_of_utterance>")),
    "ovis2_images": (shared_ovis2_images, dict(eos_token="<end_of_utterance>")),
    "paligemma_images": (
        shared_images, dict(bos_token="<|im_start|>", eos_token="<end_of_utterance>"),
    ),
    "phi4_images": (shared_phi4_images, dict(eos_token="<end_of_utterance>")),
    "pixtral_images": (shared_pixtral_images, dict(eos_token="<end_of_utterance>")),
}


def write_shared(folder: Path) -> None:
    """Write what the folders of golden models link to."""
    for kind, (make, config) in SHARED.items():
        (folder / kind).mkdir(parents=True, exist_ok=True)
        make().save(str(folder / kind / "tokenizer.json"))
        config = dict(
            tokenizer_class="PreTrainedTokenizerFast",
            clean_up_tokenization_spaces=False,
            model_max_length=256,
            **config,
        )
        text = json.dumps(config, indent=2) + "\n"
        (folder / kind / "tokenizer_config.json").write_text(text, encoding="utf-8")
