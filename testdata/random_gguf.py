#!/usr/bin/env python3
"""A GGUF file of the shape of a Llama or a Qwen3-MoE with random weights, to measure memory and speed.

    random_gguf.py CONFIG TOKENIZER.gguf OUT.gguf [--type Q4_0|Q4_K|Q8_0]

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
    parser.add_argument("--type", choices=list(SCALES), default="Q4_0")
    args = parser.parse_args()
    config = json.loads(args.config.read_text(encoding="utf-8"))
    has_experts = "num_experts" in config
    writer = GGUFWriter(args.out, "qwen3moe" if has_experts else "llama")
    fields = GGUFReader(args.tokenizer).fields
    for name, field in fields.items():
        if name.startswith("tokenizer."):
            kind, *of = field.types
            writer.add_key_value(name, field.contents(), kind, *of)
    write_shape(writer, config)
    kind, random = GGMLQuantizationType[args.type], np.random.default_rng(0)
    for name, shape in matrices(config, len(fields["tokenizer.ggml.tokens"].data)):
        writer.add_tensor(f"{name}.weight", blocks(kind, shape, random), raw_dtype=kind)
    for name, shape in floats(config):
        # Norms are 1, routers are random: experts are chosen as by chance.
        values = np.ones(shape) if len(shape) == 1 else random.normal(0.0, 0.02, shape)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def head_dim(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def write_shape(writer, config):
    writer.add_context_length(4096)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim(config))
    writer.add_value_length(head_dim(config))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def matrices(config, vocab_size):
    """Names and shapes of what is in blocks."""
    hidden, experts = config["hidden_size"], config.get("num_experts")
    q, kv = (config[key] * head_dim(config) for key in ["num_attention_heads", "num_key_value_heads"])
    inner = config["moe_intermediate_size" if experts else "intermediate_size"]
    stack, suffix = ((experts,), "_exps") if experts else ((), "")
    yield "token_embd", (vocab_size, hidden)
    for index in range(config["num_hidden_layers"]):
        for name, shape in [
            ("attn_q", (q, hidden)), ("attn_k", (kv, hidden)), ("attn_v", (kv, hidden)),
            ("attn_output", (hidden, q)), (f"ffn_gate{suffix}", (*stack, inner, hidden)),
            (f"ffn_up{suffix}", (*stack, inner, hidden)), (f"ffn_down{suffix}", (*stack, hidden, inner)),
        ]:
            yield f"blk.{index}.{name}", shape


def floats(config):
    """Names and shapes of norms and routers."""
    hidden, experts = config["hidden_size"], config.get("num_experts")
    for index in range(config["num_hidden_layers"]):
        yield f"blk.{index}.attn_norm", (hidden,)
        yield f"blk.{index}.ffn_norm", (hidden,)
        if experts:
            yield f"blk.{index}.attn_q_norm", (head_dim(config),)
            yield f"blk.{index}.attn_k_norm", (head_dim(config),)
            yield f"blk.{index}.ffn_gate_inp", (experts, hidden)
    yield "output_norm", (hidden,)


# Of a block, so that weights are about 0 +- 0.02: a code is 7.5 +- 4.6, of Q8_0 0 +- 74, and an inner
# scale of Q4_K 31.5 +- 18.
SCALES = {"Q4_0": 0.004, "Q4_K": 0.00012, "Q8_0": 0.00027}


def blocks(kind, shape, random):
    """Random codes and inner scales, and one outer scale."""
    *rows, inputs = shape
    values, num_bytes = GGML_QUANT_SIZES[kind]
    data = random.integers(0, 256, (*rows, inputs // values, num_bytes), np.uint8)
    scale = np.float16(SCALES[kind.name])
    data[..., :2] = np.frombuffer(scale.tobytes(), np.uint8)
    if kind == GGMLQuantizationType.Q4_K:
        minimum = np.float16(7.5 * scale)
        data[..., 2:4] = np.frombuffer(minimum.tobytes(), np.uint8)
    return data.reshape(*rows, -1)


if __name__ == "__main__":
    main()
