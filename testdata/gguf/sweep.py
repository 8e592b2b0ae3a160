#!/usr/bin/env python3
"""Golden models through llama.cpp's converter and the program, beside the folders they come from.

    python testdata/gguf/sweep.py LLAMA_CPP            # a folder with llama.cpp's conversion/
    python testdata/gguf/sweep.py LLAMA_CPP afmoe dots1   # of these only

The converter writes each model of testdata/golden in float32, so that answers of the file are those
of the folder, to the byte: `target/debug/vllm-batch run` writes both, in float32, with
log-probabilities. A model that the converter refuses is said, with why.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import make_models

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "testdata/golden"
PROGRAM = ROOT / "target/debug/vllm-batch"
FULL, SLIDING = "full_attention", "sliding_attention"
# What published files have and transformers 5.24 writes otherwise; the converter needs it.
PUBLISHED = {
    "bamba": {"attn_rotary_emb": 8},
    "granite_hybrid": {"layer_types": ["mamba", "mamba", "attention", "mamba"]},
    "granite_hybrid_dense": {"layer_types": ["attention", "mamba", "mamba", "mamba"]},
    "exaone": {"activation_function": "silu"},
    "exaone_moe": {"num_nextn_predict_layers": 1},
    "minimax_m3": {
        "n_shared_experts": 1, "rotary_dim": 8, "moe_layer_freq": [0, 1, 1],
        "scoring_func": "sigmoid",
        "sparse_attention_config": {
            "sparse_num_index_heads": 2, "sparse_index_dim": 12, "sparse_block_size": 16,
            "sparse_topk_blocks": 3, "sparse_local_block": 1,
        },
    },
    "hunyuan_moe": {
        "moe_intermediate_size": [24, 24], "moe_topk": [2, 2], "num_shared_expert": [1, 1],
    },
}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.7, "mscale_all_dim": 0.7}
# The default of the class, which is written where a config says null.
GPT_OSS = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
           "original_max_position_embeddings": 4096, "truncate": False}
NOT_STRETCHED = {"rope_scaling": None, "rope_parameters": None}
NO_WINDOW = {"sliding_window": None}
LLAMA_4 = {"attention_chunk_size": 8192, "attn_scale": 0.1, "floor_scale": 8192,
           "no_rope_layers": [1, 1, 1], "attn_temperature_tuning": True, "use_qk_norm": True}
# What the converter does not write (docs/GGUF.md): the folder is run so too. None: without the key.
LOST = {
    "afmoe": {"layer_types": [SLIDING, SLIDING, SLIDING, FULL]},
    "aya_vision": {"sliding_window_pattern": 4, "layer_switch": 4},
    "deepseek_v2": {"rope_scaling": YARN},
    "deepseek_v3": {"rope_scaling": YARN},
    "dots1": NO_WINDOW,
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"query_pre_attn_scalar": 16, "layer_types": [SLIDING] * 4},
    "gemma3_multimodal": {"query_pre_attn_scalar": 16},
    "gemma3_published": {"query_pre_attn_scalar": 16},
    "gpt_oss": {"swiglu_limit": 7.0},
    "gpt_oss_mxfp4": {"swiglu_limit": 7.0, "rope_scaling": GPT_OSS},
    "granite_hybrid_dense": {"position_embedding_type": "nope"},
    "internlm3": NOT_STRETCHED,
    "kimi_k25": {"rope_scaling": YARN},
    # All of Llama 4's attention but its norms.
    "llama4": LLAMA_4,
    "llama4_wrapped": {**LLAMA_4, "no_rope_layers": [1, 1, 1, 0]},
    "llama_dynamic": NOT_STRETCHED,
    "minimax_m3": {"swiglu_limit": 7.0, "swiglu_alpha": 1.702},
    "minicpm3": {"scale_emb": 12, "dim_model_base": 256},
    "mistral": NO_WINDOW,
    "mixtral": NO_WINDOW,
    "mpt_published": {"attn_config": {"alibi": True, "alibi_bias_max": 16}},
    # Of a width that follows from the stream.
    "nemotron": {"partial_rotary_factor": 0.25},
    "qwen2_dynamic": NOT_STRETCHED,
    "qwen2_window": {"use_sliding_window": False, "layer_types": None},
    "smollm3": {"no_rope_layers": [1, 1, 1], "no_rope_layer_interval": 4},
    "starcoder2": NO_WINDOW,
    "youtu": {"rope_parameters": {**YARN, "rope_theta": 10000.0}},
    "youtu_plain_q": {"rope_interleave": True},
}
# Ids: texts are another matter.
PROMPTS = [[7, 3, 9, 11, 3, 5], [12 + 5 * at % 23 for at in range(21)], [4, 4, 8]]


def answers(model):
    rows = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS)
    command = [
        PROGRAM, "run", "-q", "--model", model, "--dtype", "float32", "--no-chat", "--max-tokens",
        "24", "--temperature", "0", "--ignore-eos", "--logprobs", "2", "--language-model-only",
    ]
    done = subprocess.run(command, input=rows, capture_output=True, text=True)
    error = done.stderr.strip().splitlines()
    return done.stdout, next((line for line in error if "error" in line), "")


def convert(name, folder, path):
    import gguf
    import torch
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    hparams = ModelBase.load_hparams(folder, False) | PUBLISHED.get(name, {})
    kind = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    kind.set_vocab = make_models.vocabulary(name, GOLDEN / name)
    with torch.inference_mode():
        kind(folder, gguf.LlamaFileType.ALL_F32, path, eager=True, hparams=hparams).write()


def changed(name, copy, changes):
    """The folder with these keys of its text part."""
    shutil.copytree(GOLDEN / name, copy)
    path = copy / "config.json"
    config = json.loads(path.read_text())
    text = config.get("text_config", config)
    text.update(changes.get(name, {}))
    for key in [key for key, value in changes.get(name, {}).items() if value is None]:
        del text[key]
    path.write_text(json.dumps(config))
    return copy


def tried(name, scratch):
    """What came of a model: `equal`, or what is wrong."""
    path = Path(scratch) / f"{name}.gguf"
    source = changed(name, Path(scratch) / f"{name}.published", PUBLISHED)
    folder = changed(name, Path(scratch) / name, LOST)
    try:
        with contextlib.redirect_stdout(sys.stderr), open(os.devnull, "w") as quiet:
            with contextlib.redirect_stderr(quiet):
                convert(name, source, path)
    except (Exception, SystemExit) as error:
        return f"converter: {type(error).__name__} {error}".splitlines()[0][:150]
    (expected, _), (found, error) = answers(folder), answers(path)
    path.unlink()
    if error and not found:
        return f"refused: {error[:260]}"
    return "equal" if found == expected and found else difference(expected, found)


def difference(expected, found):
    """`near` where tokens are equal and log-probabilities nearly: some values are stored changed."""
    rows = [[json.loads(line) for line in text.splitlines()] for text in (expected, found)]
    if len(rows[0]) != len(rows[1]):
        return "DIFFERS: other rows"
    most = 0.0
    for ours, theirs in zip(*rows):
        if ours.get("response") != theirs.get("response"):
            return f"DIFFERS: {ours.get('response')!r} {theirs.get('response')!r}"[:120]
        pairs = zip(numbers(ours), numbers(theirs))
        most = max([most, *(abs(a - b) for a, b in pairs)])
    return f"{'near' if most < 1e-4 else 'DIFFERS'}: by {most:.1e}"


def numbers(value):
    """All numbers in a value, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    return [value] if isinstance(value, float) else []


def main(tried, every):
    """Tries the models that are named, or `every` one; says what came of each."""
    sys.path[:0] = [f"{sys.argv[1]}/gguf-py", sys.argv[1]]
    import logging

    logging.disable(logging.CRITICAL)
    names, counts = sys.argv[2:] or every, {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            result = tried(name, scratch)
            kind = result.split(":")[0]
            counts[kind] = counts.get(kind, 0) + 1
            print(f"{name}: {result}", flush=True)
    print(counts)
    return 1 if "DIFFERS" in counts else 0


if __name__ == "__main__":
    sys.exit(main(tried, sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))))
