#!/usr/bin/env python3
"""Make the pairs of a text model and a projector beside this file, of golden models that see.

    python testdata/gguf/make_pairs.py LLAMA_CPP              # a folder with llama.cpp's conversion/
    python testdata/gguf/make_pairs.py LLAMA_CPP qwen3_vl     # of these only

`NAME.gguf` and `mmproj-NAME.gguf` have the weights of testdata/golden, in the types of `PAIRS`: what
they answer is what that folder does, which transformers computed (`tests/engine/gguf_images.rs`).
Each of the mistakes below is tried on the folder, with `target/debug/vllm-batch`: it has to change
a log-probability.
"""

import json
import logging
import shutil
import sys
import tempfile
from pathlib import Path

import sweep
import sweep_images as pairs

HERE = Path(__file__).parent
# Golden model: pairs, each a name with the types of the text model and of the projector.
PAIRS = {
    "qwen2_vl": [("qwen2vl", "MOSTLY_BF16", "MOSTLY_BF16")],
    "qwen3_vl": [("qwen3vl", "MOSTLY_BF16", "MOSTLY_BF16"),
                 ("qwen3vl-q8", "MOSTLY_Q8_0", "MOSTLY_F16")],
    "gemma3_published": [("gemma3vision", "MOSTLY_BF16", "MOSTLY_F16")],
    "smolvlm": [("smolvlm", "MOSTLY_BF16", "MOSTLY_F16")],
    "pixtral": [("pixtral", "MOSTLY_BF16", "MOSTLY_BF16")],
}


def mixed_qkv(tensors):
    """Rows of q, k and v by turns."""
    for name, value in tensors.items():
        if ".attn.qkv." in name:
            shape = (3, value.shape[0] // 3, *value.shape[1:])
            tensors[name] = value.view(shape).transpose(0, 1).reshape(value.shape).contiguous()


def frames_of_bands(tensors):
    """Frames of a patch before its colours."""
    for name, value in tensors.items():
        if name.endswith("patch_embed.proj.weight"):
            tensors[name] = value.transpose(1, 2).reshape(value.shape).contiguous()


def permuted(heads):
    """q and k of the tower as the file has them."""
    def change(tensors):
        for name, value in tensors.items():
            if "vision_tower" in name and name.endswith(("q_proj.weight", "k_proj.weight")):
                parts = value.view(heads, 2, value.shape[0] // heads // 2, -1)
                tensors[name] = parts.swapaxes(1, 2).reshape(value.shape).contiguous()
    return change


def exchanged(one, other):
    """Tensors with these in their names."""
    def change(tensors):
        for name in [name for name in tensors if one in name]:
            second = name.replace(one, other)
            tensors[name], tensors[second] = tensors[second], tensors[name]
    return change


def add_one(part):
    def change(tensors):
        for name, value in tensors.items():
            if part in name:
                tensors[name] = value + 1
    return change


def nothing(tensors):
    pass


VISION = "vision_config"
MISTAKES = {
    "qwen2_vl": [
        ("q, k and v by turns", mixed_qkv, {}), ("frames first", frames_of_bands, {}),
        ("another activation", nothing, {VISION: {"hidden_act": "gelu"}}),
        ("other axes", nothing, {"rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]}}),
    ],
    "qwen3_vl": [
        ("frames first", frames_of_bands, {}),
        ("deep layers exchanged", exchanged("deepstack_merger_list.0.", "deepstack_merger_list.1."),
         {}),
        ("deep layers elsewhere", nothing, {VISION: {"deepstack_visual_indexes": [1, 2]}}),
    ],
    "gemma3_published": [
        ("norm + 1 left in", add_one("mm_soft_emb_norm"), {}),
        ("tokens of other squares", nothing, {"mm_tokens_per_image": 36}),
    ],
    "smolvlm": [
        ("products exchanged", exchanged("encoder.layers.0.mlp.", "encoder.layers.1.mlp."), {}),
        ("another activation", nothing, {VISION: {"hidden_act": "relu"}}),
    ],
    "pixtral": [
        ("permutation left in", permuted(3), {}),
        ("another activation", nothing, {VISION: {"hidden_act": "gelu"}}),
    ],
}


def wrong_folder(name, folder, change, keys):
    from safetensors.torch import load_file, save_file

    shutil.copytree(pairs.GOLDEN / name, folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    for key, value in keys.items():
        if isinstance(config.get(key), dict):
            config[key].update(value)
        else:
            config[key] = value
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def try_mistakes(name, scratch):
    right, error = pairs.answers(name, pairs.GOLDEN / name)
    assert right, error
    for index, (what, change, keys) in enumerate(MISTAKES[name]):
        folder = wrong_folder(name, Path(scratch) / f"{name}{index}", change, keys)
        wrong, error = pairs.answers(name, folder)
        assert wrong, (name, what, error)
        said = sweep.difference(right, wrong)
        assert said.startswith("DIFFERS") and "0.0e+00" not in said, (name, what, said)
        print(f"{name}: {what}: {said}")


def main():
    sys.path[:0] = [f"{sys.argv[1]}/gguf-py", sys.argv[1]]
    import gguf

    logging.disable(logging.CRITICAL)
    for golden, made in PAIRS.items():
        if sys.argv[2:] and golden not in sys.argv[2:]:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder = pairs.source(golden, Path(scratch) / golden)
            for name, text, projector in made:
                paths = [HERE / f"{name}.gguf", HERE / f"mmproj-{name}.gguf"]
                kinds = [getattr(gguf.LlamaFileType, kind) for kind in (text, projector)]
                pairs.convert_text(golden, folder, paths[0], kinds[0])
                pairs.convert_projector(golden, folder, paths[1], kinds[1])
                assert all(path.stat().st_size < 160_000 for path in paths), paths
                print(name, [path.stat().st_size for path in paths])
            try_mistakes(golden, scratch)


if __name__ == "__main__":
    main()
