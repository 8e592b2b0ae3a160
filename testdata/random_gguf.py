#!/usr/bin/env python3
"""A GGUF file of a Llama's shape with random weights of 4 bits, to measure memory and speed.

    random_gguf.py CONFIG TOKENIZER.gguf OUT.gguf [--type Q4_0|Q4_K]

CONFIG is a config.json of benches/shapes. Tokenizer and chat template are those of another GGUF
file, and so is the size of the vocabulary. Output and embedding are one matrix. Needs gguf 0.19.0.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFWriter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", choices=["Q4_0", "Q4_K"], default="Q4_0")
    args = parser.parse_args()
    config = json.loads(args.config.read_text(encoding="utf-8"))
    writer = GGUFWriter(args.out, "llama")
    fields = GGUFReader(args.tokenizer).fields
    for name, field in fields.items():
        if name.startswith("tokenizer."):
            kind, *of = field.types
            writer.add_key_value(name, field.contents(), kind, *of)
    write_shape(writer, config)
    kind, random = GGMLQuantizationType[args.type], np.random.default_rng(0)
    hidden = config["hidden_size"]
    for name, outputs in matrices(config, len(fields["tokenizer.ggml.tokens"].data)):
        inputs = config["intermediate_size"] if "ffn_down" in name else hidden
        writer.add_tensor(name, blocks(kind, outputs, inputs, random), raw_dtype=kind)
    ones = np.ones(hidden, np.float32)
    for index in range(config["num_hidden_layers"]):
        writer.add_tensor(f"blk.{index}.attn_norm.weight", ones)
        writer.add_tensor(f"blk.{index}.ffn_norm.weight", ones)
    writer.add_tensor("output_norm.weight", ones)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_shape(writer, config):
    writer.add_context_length(4096)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)


def matrices(config, vocab_size):
    """Names and outputs."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    yield "token_embd.weight", vocab_size
    for index in range(config["num_hidden_layers"]):
        for name, outputs in [
            ("attn_q", hidden), ("attn_k", kv), ("attn_v", kv), ("attn_output", hidden),
            ("ffn_gate", inner), ("ffn_up", inner), ("ffn_down", hidden),
        ]:
            yield f"blk.{index}.{name}.weight", outputs


def blocks(kind, outputs, inputs, random):
    """Random codes and inner scales; outer scales are such that weights are about 0 +- 0.02."""
    values, num_bytes = GGML_QUANT_SIZES[kind]
    data = random.integers(0, 256, (outputs, inputs // values, num_bytes), np.uint8)
    # A code is 7.5 +- 4.6, an inner scale of Q4_K 31.5 +- 18.
    scale = np.float16(0.004 if kind == GGMLQuantizationType.Q4_0 else 0.00012)
    data[..., :2] = np.frombuffer(scale.tobytes(), np.uint8)
    if kind == GGMLQuantizationType.Q4_K:
        minimum = np.float16(7.5 * scale)
        data[..., 2:4] = np.frombuffer(minimum.tobytes(), np.uint8)
    return data.reshape(outputs, -1)


if __name__ == "__main__":
    main()
