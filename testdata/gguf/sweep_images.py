#!/usr/bin/env python3
"""Golden models that see through llama.cpp's converter, as a text model and its mmproj file, and the
program on both, beside the folders they come from.

    python testdata/gguf/sweep_images.py LLAMA_CPP            # a folder with llama.cpp's conversion/
    python testdata/gguf/sweep_images.py LLAMA_CPP qwen3_vl   # of these only

As `sweep.py`: both files in float32, so that answers are those of the folder, to the byte. What no
key says is written by the keys that llama.cpp has for it, or the folder is run so too (`LOST`).
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import make_models
import sweep

ROOT, GOLDEN, PROGRAM = sweep.ROOT, sweep.GOLDEN, sweep.PROGRAM
HERE = Path(__file__).parent
MEDIA = ROOT / "testdata/media"
# What published tokenizers have where goldens have the same tokens under other names.
QWEN = {"<image>": "<|image_pad|>"}
GLM = {"<image>": "<|image|>"}
GEMMA = {"<image_soft_token>": "<|image|>", "<start_of_image>": "<|image>",
         "<end_of_image>": "<image|>"}
TOKENS = {
    "qwen2_vl": QWEN, "qwen2_5_vl": QWEN, "qwen3_vl": QWEN, "qwen3_vl_moe": QWEN,
    "qwen3_5_multimodal": QWEN, "qwen3_5_moe_multimodal": QWEN, "exaone4_5": QWEN, "lighton_ocr": {"[IMG]": "<|image_pad|>"},
    "paddleocr_vl": {"<image>": "<|IMAGE_PLACEHOLDER|>"},
    "glm4v": GLM, "glm4v_moe": GLM, "glm_ocr": GLM, "gemma4_moe": GEMMA, "gemma4_e2b": GEMMA,
}
GEMMA_4 = {"max_soft_tokens": 280, "pooling_kernel_size": 3}
# Longer contexts, for files that do not say that images are small.
LONGER = {name: {"text_config": {"max_position_embeddings": 2048}}
          for name in ["gemma4_moe", "gemma4_e2b"]}
LONGER["qwen3_vl_moe"] = {"text_config": {"mlp_only_layers": []}}
# What the file does not say, in config.json and in preprocessor_config.json: the folder is run so.
LOST = {
    "qwen2_5_vl": ({"vision_config": {"window_size": 112}}, {}),
    "gemma3_multimodal": ({"text_config": sweep.LOST["gemma3_multimodal"]}, {}),
    "gemma3_published": ({"text_config": sweep.LOST["gemma3_published"]}, {}),
    "pixtral": ({}, {"size": {"longest_edge": 64}}),
    "mistral3": ({}, {"size": {"longest_edge": 64}}),
    "ministral3_multimodal": (
        {"projector_hidden_act": "gelu", "vision_feature_layer": -1,
         "vision_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}}, {}),
    "internvl_chat": ({"use_thumbnail": True}, {}),
    "gemma4_moe": ({"vision_config": {"pooling_kernel_size": 3}}, GEMMA_4),
    "gemma4_e2b": ({"vision_config": {"pooling_kernel_size": 3}}, GEMMA_4),
    "lfm2_vl": ({}, {"min_image_tokens": 64, "max_image_tokens": 256, "tile_size": 512,
                     "min_tiles": 2, "max_tiles": 10}),
}
# Classes of text parts, which published files have and transformers 5 leaves out.
TEXTS = {"llama": "LlamaForCausalLM", "lfm2": "Lfm2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
# What classes are called in published files.
CLASSES = {
    "LightOnOcrForConditionalGeneration": "LightOnOCRForConditionalGeneration",
}
ROWS = [["rgb.png"], ["wide2.png", "thin.png"], []]
# Towers of few positions, of images that are as large as files do not say.
SQUARE = [["rgb.png"], ["wide2.png", "palette8.png"], []]


def rows(name):
    """Chats with images, and one of text."""
    for index, images in enumerate(SQUARE if name.startswith("gemma4") else ROWS):
        parts = [{"type": "image", "image": str(MEDIA / name)} for name in images]
        content = [*parts, {"type": "text", "text": f"What is this {index}?"}]
        yield json.dumps({"messages": [{"role": "user", "content": content}]}) + "\n"


def answers(name, model, *more):
    command = [
        PROGRAM, "run", "-q", "--model", model, "--dtype", "float32", "--max-tokens", "6",
        "--temperature", "0", "--ignore-eos", "--logprobs", "2", "--allowed-local-media-path",
        MEDIA, *more,
    ]
    done = subprocess.run(command, input="".join(rows(name)), capture_output=True, text=True)
    error = done.stderr.strip().splitlines()
    return done.stdout, next((line for line in error if "error" in line), "")


@contextlib.contextmanager
def quietly():
    with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet):
        with contextlib.redirect_stderr(quiet):
            yield


def vocabulary(name, folder):
    """That of `make_models`, with published names of tokens and the folder's chat template."""
    set_vocab = make_models.vocabulary(name, folder)
    names = TOKENS.get(name, {})
    template = folder / "chat_template.jinja"

    def with_names(self):
        add = self.gguf_writer.add_token_list
        self.gguf_writer.add_token_list = lambda tokens: add([names.get(t, t) for t in tokens])
        set_vocab(self)
        text = template.read_text()
        for old, new in names.items():
            text = text.replace(old, new)
        self.gguf_writer.add_chat_template(text)
        padding = {**self.hparams, **self.hparams.get("text_config", {})}.get("pad_token_id")
        if padding is not None:
            self.gguf_writer.add_pad_token_id(padding)

    return with_names


def convert_text(name, folder, path, kind):
    import gguf
    import torch
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    hparams = ModelBase.load_hparams(folder, False) | sweep.PUBLISHED.get(name, {})
    text = hparams.get("text_config", {})
    if not text.get("architectures") and text.get("model_type") in TEXTS:
        text["architectures"] = [TEXTS[text["model_type"]]]
    model = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    # Mistral 3's is an object of another class.
    inner = [getattr(model, "Ministral3Model", None)]
    classes = [each for each in [model, *inner] if each]
    own = [(each, each.__dict__.get("set_vocab")) for each in classes]
    for each in classes:
        each.set_vocab = vocabulary(name, folder)
    try:
        with torch.inference_mode(), quietly():
            model(folder, kind, path, eager=True, hparams=hparams).write()
    finally:
        for each, set_vocab in own:
            if set_vocab is None:
                del each.set_vocab
            else:
                each.set_vocab = set_vocab


def convert_projector(name, folder, path, kind):
    import gguf
    import torch
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    hparams = ModelBase.load_hparams(folder, False)
    hparams["architectures"] = [CLASSES.get(c, c) for c in hparams["architectures"]]
    if "PaddleOCR" in str(hparams["architectures"]):
        hparams["vision_config"]["architectures"] = ["PaddleOCRVisionModel"]
    if hparams["architectures"] == ["LlavaForConditionalGeneration"] and (
            hparams["vision_config"].get("model_type") == "clip_vision_model"):
        return legacy_llava(folder, hparams, path)
    base = get_model_class(get_model_architecture(hparams, ModelType.MMPROJ), mmproj=True)
    patch = hparams["vision_config"].get("patch_size")

    class Model(base):
        # Tensors have the names of torch's modules, by the number of layers: few here.
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.tensor_map = gguf.get_tensor_name_map(self.model_arch, max(self.block_count, 8))

        # All in one type, as few files have: Gemma's projector is always in float16.
        def tensor_force_quant(self, name, new_name, bid, n_dims):
            if kind == gguf.LlamaFileType.ALL_F32:
                return gguf.GGMLQuantizationType.F32
            return super().tensor_force_quant(name, new_name, bid, n_dims)

        @classmethod
        def filter_tensors(cls, item):
            name, get = item
            # As published files have them; transformers 5 ties the last in the file too.
            kind = str(hparams["architectures"])
            if "Gemma3For" in kind:
                name = name.removeprefix("model.")
                name = name.replace("vision_tower.", "vision_tower.vision_model.")
                name = name.replace("vision_model.vision_model.", "vision_model.")
            if "Mistral3For" in kind and "language_model" not in name:
                name = name.removeprefix("model.")
            return None if name == "lm_head.weight" else super().filter_tensors((name, get))

        def modify_tensors(self, data_torch, name, bid):
            # Patches of other sides than 16.
            if "Lfm2Vl" in str(hparams["architectures"]) and "patch_embedding.weight" in name:
                data = data_torch.view(data_torch.shape[0], patch, patch, 3).permute(0, 3, 1, 2)
                yield "v.patch_embd.weight", data.contiguous()
                return
            yield from super().modify_tensors(data_torch, name, bid)

        def set_gguf_parameters(self):
            super().set_gguf_parameters()
            areas = self.preprocessor_config
            size = areas.get("size") if isinstance(areas.get("size"), dict) else {}
            for key, names in [("min", ["min_pixels"]), ("max", ["max_pixels"])]:
                side = {"min": "shortest_edge", "max": "longest_edge"}[key]
                is_area = any(kind in str(areas) for kind in ["Qwen2VL", "Glm4v", "Glm46V"])
                area = areas.get(names[0]) or (size.get(side) if is_area else None)
                if area:
                    getattr(self.gguf_writer, f"add_vision_{key}_pixels")(area)

    Model.__name__ = base.__name__
    with torch.inference_mode(), quietly():
        Model(folder, kind, path, eager=True, hparams=hparams).write()


def legacy_llava(folder, hparams, path):
    """As tools/mtmd/legacy-models/convert_image_encoder_to_gguf.py writes LLaVA 1.5."""
    import gguf
    import numpy as np
    from safetensors.torch import load_file

    vision = hparams["vision_config"]
    layer = hparams.get("vision_feature_layer", -2)
    used = layer if layer >= 0 else vision["num_hidden_layers"] + layer + 1
    writer = gguf.GGUFWriter(path, "clip")
    for key, value in [("has_text_encoder", False), ("has_vision_encoder", True),
                       ("has_llava_projector", True)]:
        writer.add_bool(f"clip.{key}", value)
    writer.add_string("clip.projector_type", "mlp")
    for key, value in [
        ("image_size", vision["image_size"]), ("patch_size", vision["patch_size"]),
        ("embedding_length", vision["hidden_size"]),
        ("feed_forward_length", vision["intermediate_size"]),
        ("projection_dim", vision.get("projection_dim", 768)),
        ("attention.head_count", vision["num_attention_heads"]), ("block_count", used),
    ]:
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", vision.get("layer_norm_eps", 1e-5))
    writer.add_array("clip.vision.feature_layer", [used])
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    writer.add_array("clip.vision.image_mean", processor["image_mean"])
    writer.add_array("clip.vision.image_std", processor["image_std"])
    writer.add_bool("clip.use_gelu", vision.get("hidden_act") == "gelu")
    short = [("vision_model.", "v."), ("encoder.layers", "blk"), ("embeddings.", ""),
             ("_proj", ""), ("self_attn.", "attn_"), ("layer_norm", "ln"), ("layernorm", "ln"),
             ("mlp.fc1", "ffn_down"), ("mlp.fc2", "ffn_up"), ("embedding", "embd"),
             ("layrnorm", "ln")]
    for name, data in load_file(folder / "model.safetensors").items():
        name = name.replace("vision_tower.", "vision_model.")
        name = name.replace("vision_model.vision_model.", "vision_model.")
        at = name.find("vision_model.")
        projector = {"linear_1": "mm.0", "linear_2": "mm.2"}
        if "multi_modal_projector" in name:
            part, suffix = name.rsplit(".", 2)[1:]
            new = f"{projector[part]}.{suffix}"
        elif at < 0 or any(f"layers.{n}." in name for n in range(used, 99)):
            continue
        else:
            new = name[at:]
            for old, other in short:
                new = new.replace(old, other)
        writer.add_tensor(new, np.ascontiguousarray(data.float().squeeze().numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def changed(name, copy):
    """The folder with what the files do not say."""
    config_changes, processor_changes = LOST.get(name, ({}, {}))
    shutil.copytree(GOLDEN / name, copy)
    lengthen(name, copy)
    for file, changes in [("config.json", config_changes),
                          ("preprocessor_config.json", processor_changes)]:
        path = copy / file
        config = json.loads(path.read_text())
        for key, value in changes.items():
            of_text = config.get("text_config", {})
            if isinstance(value, dict) and isinstance(config.get(key), dict):
                config[key].update(value)
            elif file == "config.json" and key not in config and key in of_text:
                of_text[key] = value
            else:
                config[key] = value
        path.write_text(json.dumps(config))
    return copy


def without_dense(folder):
    """Qwen3-VL with experts in all layers, as llama.cpp has them."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    first, second = "language_model.layers.0.mlp.", "language_model.layers.1.mlp."
    tensors = {name: value for name, value in tensors.items() if second not in name}
    for name in [name for name in tensors if first in name]:
        tensors[name.replace(first, second)] = tensors[name].flip(0).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def lengthen(name, folder):
    if name == "qwen3_vl_moe":
        without_dense(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for key, value in LONGER.get(name, {}).items():
        config[key].update(value)
    path.write_text(json.dumps(config))


def source(name, copy):
    """The folder as it is published: what the converter needs beside goldens."""
    shutil.copytree(GOLDEN / name, copy)
    lengthen(name, copy)
    path = copy / "preprocessor_config.json"
    processor = json.loads(path.read_text())
    processor.setdefault("image_mean", [0.48145466, 0.4578275, 0.40821073])
    processor.setdefault("image_std", [0.26862954, 0.26130258, 0.27577711])
    if name.startswith("gemma3"):
        config = json.loads((copy / "config.json").read_text())
        processor["image_seq_length"] = config.get("mm_tokens_per_image", 256)
    path.write_text(json.dumps(processor))
    return copy


def tried(name, scratch):
    """What came of a model: `equal`, or what is wrong."""
    import gguf

    text, projector = Path(scratch) / f"{name}.gguf", Path(scratch) / f"mmproj-{name}.gguf"
    folder = changed(name, Path(scratch) / name)
    published = source(name, Path(scratch) / f"{name}.published")
    try:
        convert_text(name, published, text, gguf.LlamaFileType.ALL_F32)
        convert_projector(name, published, projector, gguf.LlamaFileType.ALL_F32)
    except (Exception, SystemExit) as error:
        return f"converter: {type(error).__name__} {error}".splitlines()[0][:150]
    expected, failed = answers(name, folder)
    found, error = answers(name, text, "--mmproj", projector)
    if error and not found or not expected:
        return f"refused: {error or failed}"[:400]
    for own, published in TOKENS.get(name, {}).items():
        found = found.replace(f'"{published}"', f'"{own}"')
    if name.startswith("gemma4"):
        # Their padding is a word, which a GGUF file makes a control token.
        expected, found = (re.sub(r'"(response|text|token)": ?"(\\.|[^"\\])*"', "", text)
                           for text in (expected, found))
    if found == expected and '"error"' not in found:
        return "equal"
    return difference(expected, found)


def difference(expected, found):
    for text in (expected, found):
        errors = [json.loads(line)["error"] for line in text.splitlines() if '"error":{' in line]
        if errors:
            return f"DIFFERS: {errors[0]}"[:300]
    return sweep.difference(expected, found)


if __name__ == "__main__":
    sys.exit(sweep.main(tried, sorted(path.parent.name for path in GOLDEN.glob("*/images.json"))))
