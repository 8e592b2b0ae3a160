#!/usr/bin/env python3
"""Makes golden_sounds: tiny models that write down recordings, with what transformers writes.

    python testdata/generate_sounds.py            # writes testdata/golden_sounds
    python testdata/generate_sounds.py --check    # writes nothing: compares

`golden.json` has for each case the tokens that `generate` gives greedily in float32, and their
logprobs after its masks. Recordings are made by `samples`, as the test makes them.

Made with the versions of generate_images.py.
"""

import argparse
import json
import os
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

OUT = Path(__file__).parent / "golden_sounds"
RATE = 16_000
SECONDS = 1
LANGUAGES = ["en", "zh", "de", "es"]
MAX_TOKENS = 14
# Least distance of the two likeliest tokens of every step.
MARGIN = 2e-3


def samples(kind: int) -> np.ndarray:
    """16-bit samples: a sweep, beats and a burst, none as long as the model hears."""
    length = [12_000, 16_000, 5_000][kind]
    at = np.arange(length, dtype=np.int64)
    sweep = (at * at * (kind + 1) // 977 + at * 13) % 2001 - 1000
    beat = np.where((at // (400 + 150 * kind)) % 2 == 0, 9, 2)
    return (sweep * beat).astype(np.int16)


def tokenizer(is_multilingual: bool) -> Tokenizer:
    """As that of openai/whisper, trained on a few lines."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([__doc__], trainer)
    names = ["<|endoftext|>", "<|startoftranscript|>"]
    names += [f"<|{code}|>" for code in LANGUAGES]
    names += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>"]
    names += ["<|nospeech|>", "<|notimestamps|>"]
    tokenizer.add_special_tokens(names)
    times = [f"<|{index * 0.02:.2f}|>" for index in range(50 * SECONDS + 1)]
    tokenizer.add_tokens([AddedToken(text, special=False) for text in times])
    first = ["<|startoftranscript|>", *(["<|en|>", "<|transcribe|>"] if is_multilingual else [])]
    first.append("<|notimestamps|>")
    around = [(text, tokenizer.token_to_id(text)) for text in [*first, "<|endoftext|>"]]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join([*first, "$A", "<|endoftext|>"]), special_tokens=around
    )
    return tokenizer


def config(tokens: Tokenizer, is_multilingual: bool) -> tuple[WhisperConfig, GenerationConfig]:
    id_of = tokens.token_to_id
    end, start = id_of("<|endoftext|>"), id_of("<|startoftranscript|>")
    special = range(start, id_of("<|notimestamps|>"))
    suppressed = [1, 5, 9, *(id for id in special)]
    keys = dict(
        suppress_tokens=suppressed, begin_suppress_tokens=[220, end], bos_token_id=end,
        eos_token_id=end, pad_token_id=end, decoder_start_token_id=start,
    )
    model = WhisperConfig(
        vocab_size=tokens.get_vocab_size(), num_mel_bins=8 if is_multilingual else 12,
        encoder_layers=2, encoder_attention_heads=2, decoder_layers=2, decoder_attention_heads=4,
        encoder_ffn_dim=48, decoder_ffn_dim=40, d_model=32, max_source_positions=50 * SECONDS,
        max_target_positions=48, scale_embedding=not is_multilingual, bos_token_id=end,
        eos_token_id=end, pad_token_id=end, decoder_start_token_id=start,
    )
    generation = GenerationConfig(
        **keys, max_length=48, no_timestamps_token_id=id_of("<|notimestamps|>"),
        is_multilingual=is_multilingual, max_initial_timestamp_index=20,
        prev_sot_token_id=id_of("<|startofprev|>"), return_timestamps=False,
    )
    if is_multilingual:
        generation.lang_to_id = {f"<|{code}|>": id_of(f"<|{code}|>") for code in LANGUAGES}
        generation.task_to_id = {task: id_of(f"<|{task}|>") for task in ["translate", "transcribe"]}
    return model, generation


def random_model(model_config: WhisperConfig, seed: int) -> WhisperForConditionalGeneration:
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(model_config).float().eval()
    for name, weight in model.named_parameters():
        if "layer_norm" in name:
            torch.nn.init.normal_(weight, 1.0 if name.endswith("weight") else 0.0, 0.2)
        elif name != "model.encoder.embed_positions.weight":
            torch.nn.init.normal_(weight, 0.0, 0.5 if weight.dim() == 1 else 0.35)
    return model


CASES = {
    "multilingual": [
        dict(sound=0, language="en"),
        dict(sound=1, language="german", task="translate"),
        dict(sound=2),
        dict(sound=1),
        dict(sound=0, language="es", return_timestamps=True),
        dict(sound=1, language="zh", return_timestamps=True),
        dict(sound=2, return_timestamps=True, task="translate"),
        dict(sound=0, language="en", prompt="Makes words."),
    ],
    "english": [
        dict(sound=0), dict(sound=1), dict(sound=1, return_timestamps=True),
        dict(sound=2, prompt="With what"),
    ],
}


@torch.no_grad()
def answer(model, extractor, tokens: Tokenizer, case: dict):
    features = extractor(samples(case["sound"]) / 32768.0, sampling_rate=RATE, return_tensors="pt")
    asked = {key: case[key] for key in ["language", "task"] if key in case}
    if model.generation_config.is_multilingual:
        asked.setdefault("task", "transcribe")
    if "prompt" in case:
        ids = tokens.encode(" " + case["prompt"], add_special_tokens=False).ids
        asked["prompt_ids"] = torch.tensor([tokens.token_to_id("<|startofprev|>"), *ids])
    out = model.generate(
        features.input_features, return_timestamps=case.get("return_timestamps", False),
        max_new_tokens=MAX_TOKENS, do_sample=False, num_beams=1, return_dict_in_generate=True,
        output_scores=True, force_unique_generate_call=True, **asked,
    )
    scores = [row[0] for row in out.scores]
    ids = out.sequences[0].tolist()[-len(scores):]
    logprobs = [torch.log_softmax(row, -1)[id].item() for row, id in zip(scores, ids)]
    margins = [(top := row.topk(2).values)[0] - top[1] for row in scores]
    before = out.sequences[0].tolist()[: -len(scores)]
    return before, ids, logprobs, float(min(margins))


def make(name: str, seed: int):
    is_multilingual = name == "multilingual"
    tokens = tokenizer(is_multilingual)
    model_config, generation = config(tokens, is_multilingual)
    extractor = WhisperFeatureExtractor(feature_size=model_config.num_mel_bins, chunk_length=SECONDS)
    model = random_model(model_config, seed)
    model.generation_config = generation
    rows, least = [], 1.0
    for case in CASES[name]:
        before, ids, logprobs, margin = answer(model, extractor, tokens, case)
        least = min(least, margin)
        rows.append({**case, "prompt_token_ids": before, "token_ids": ids, "logprobs": logprobs})
    return tokens, model, extractor, rows, least


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    transformers.logging.set_verbosity_error()
    for name in CASES:
        folder = OUT / name
        if check:
            extractor = WhisperFeatureExtractor.from_pretrained(folder)
            model = WhisperForConditionalGeneration.from_pretrained(folder).eval()
            tokens = Tokenizer.from_file(str(folder / "tokenizer.json"))
            for row in json.loads((folder / "golden.json").read_text()):
                _, ids, logprobs, _ = answer(model, extractor, tokens, row)
                assert ids == row["token_ids"], (name, row, ids)
                assert np.abs(np.array(logprobs) - row["logprobs"]).max() < 1e-4, (name, row)
            continue
        for seed in range(1, 400):
            tokens, model, extractor, rows, least = make(name, seed)
            kinds = {tuple(row["token_ids"]) for row in rows}
            lengths = [len(set(row["token_ids"])) for row in rows]
            if least > MARGIN and len(kinds) == len(rows) and min(lengths) > 3:
                break
        else:
            raise SystemExit(f"{name}: no seed tells the cases apart")
        folder.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(folder)
        weights = load_file(folder / "model.safetensors")
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        extractor.save_pretrained(folder)
        PreTrainedTokenizerFast(
            tokenizer_object=tokens, bos_token="<|endoftext|>", eos_token="<|endoftext|>",
            unk_token="<|endoftext|>",
        ).save_pretrained(folder)
        (folder / "golden.json").write_text(json.dumps(rows, indent=1) + "\n")
        print(name, seed, least, lengths)


if __name__ == "__main__":
    main()
