#!/usr/bin/env python3
"""Adds to golden models that see images what transformers makes of images.

    python testdata/generate_images.py            # after generate_golden.py has made their folders
    python testdata/generate_images.py --check    # writes nothing: compares
    python testdata/generate_images.py --only llava

Writes into each folder `preprocessor_config.json`, `chat_template.jinja` and `images.json`: prompts
with images of testdata/media, and what the multimodal class computes in float32 of the folder's
weights: some rows of what the tower gives, positions on axes where it has several, the logits
behind the prompt, and greedy tokens. The processor of transformers makes ids and pixels, the latter
with torchvision.

Made with Python 3.11, torch 2.15.0, torchvision 0.29.2, transformers 5.24.0, tokenizers 0.23.3 and
Pillow 13.0.0 on a CPU with AVX2.
"""

import argparse
import copy
import json
import os
import tempfile
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

from golden_models.check import load
from golden_models.deepseek_vl2_oracle import DeepseekVL2, DeepseekVL2Processor
from golden_models.dots_ocr_oracle import DotsOcr
from golden_models.families import FAMILIES, internvl, kimi_vision, phi4_multimodal
from golden_models.image_mistakes import MISTAKES
from golden_models.records import with_logits_scaling
from image_processors import (
    BRACKET, IN_BRACKETS, MODELS, WITH_AXES, AyaVisionProcessor, Gemma3Processor, Gemma4Processor,
    GotOcr2ImageProcessorPil, Molmo2ImageProcessor, Molmo2Processor,
    Ovis2Processor, PaliGemmaProcessor, Phi4MultimodalImageProcessor,
    QianfanOCRProcessor, SiglipImageProcessor, WHOLE, phi4_tokens, make_processor, preprocessor_config, shown,
)

TESTDATA = Path(__file__).parent
MIN_GAP = 1e-3  # between the two best logits of every greedy step
NEW_TOKENS = 4
MAX_DISTANCE = 2e-5
MIN_MOVED = 3e-4  # of an embedding, by a mistake: three times what tests tolerate
PROMPTS = [
    ("one image", ["wide2.png"], "User:<image>What is this?<end_of_utterance>\nAssistant:"),
    ("two images, and text between", ["thin.png", "palette8.png"],
     "First <image> then, much later, <image> and then?"),
    ("the same image twice", ["rgb.png", "rgb.png"], "<image><image>\nBoth?"),
    ("text alone", [], "User: What is this?<end_of_utterance>\nAssistant:"),
]

# Of models whose images see each other past text.
ONE_IMAGE_PROMPTS = [
    PROMPTS[0],
    ("a thin one, and text before", ["thin.png"], "What is <image> then?"),
    ("a palette", ["palette8.png"], "<image>\nBoth?"),
    PROMPTS[3],
]

# Of models that read no images as thin as one of these is.
WIDE_PROMPTS = [
    PROMPTS[0],
    ("two images, and text between", ["40_420_90x79_q3_progressive.jpg", "45_420_19x39_q75.jpg"],
     PROMPTS[1][2]),
    ("the same image twice", ["50_420_88x10_q75_progressive.jpg"] * 2, PROMPTS[2][2]),
    PROMPTS[3],
]


def prompts_of(image_processor) -> list[tuple]:
    if image_processor is Molmo2ImageProcessor:
        return ONE_IMAGE_PROMPTS
    return WIDE_PROMPTS if issubclass(image_processor, Phi4MultimodalImageProcessor) else PROMPTS


CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role | capitalize }}"
    "{% if message.content[0].type == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message.content %}"
    "{% if line.type == 'text' %}{{ line.text }}"
    "{% elif line.type == 'image' %}{{ '<image>' }}{% endif %}"
    "{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
def rounded(values: torch.Tensor) -> list[float]:
    return [round(float(value), 6) for value in values]


def of_image(processor, ids: torch.Tensor) -> torch.Tensor:
    """Which tokens Molmo 2's images have, marks too."""
    return torch.isin(ids, torch.tensor(processor.image_token_ids))


def image_token_id(config) -> int:
    own = getattr(config, "image_token_id", None)
    return config.vision_config.image_token_id if own is None else own


def features_of(model, pixels: dict) -> list[torch.Tensor]:
    """Embeddings of images."""
    if "image_pixel_values" in pixels:
        embed = model.model.embed_tokens_extend.image_embed
        token = image_token_id(model.config)
        ids = torch.full((1, sum(phi4_tokens(pixels))), token)
        places = torch.zeros(*ids.shape, model.config.hidden_size)
        return [embed(ids, places, **pixels)[0]]
    inner = model if hasattr(model, "get_image_features") else model.model
    return inner.get_image_features(**pixels).pooler_output


def logits_of(model, processor, ids, pixels: dict, prompt_len: int) -> torch.Tensor:
    """(tokens, vocabulary), by the multimodal class, which some families tell which tokens are of
    images or of the prompt."""
    more, is_image = dict(pixels), ids == image_token_id(model.config)
    if isinstance(processor, WITH_AXES) and hasattr(model.model, "get_rope_index") and pixels:
        more["mm_token_type_ids"] = is_image.int()
    if isinstance(processor, Molmo2Processor):
        more.pop("image_num_crops", None)
        more["mm_token_type_ids"] = of_image(processor, ids).int()
    if isinstance(processor, Gemma4Processor):
        more["mm_token_type_ids"] = is_image.int()
    if isinstance(processor, PaliGemmaProcessor) and pixels:
        more["token_type_ids"] = (torch.arange(ids.shape[1]) >= prompt_len)[None].long()
    if isinstance(processor, Gemma3Processor):
        more["token_type_ids"] = is_image.long()
    return model(input_ids=ids, use_cache=False, **more).logits[0]


@torch.no_grad()
def record(model, processor, name: str, files: list[str], text: str) -> dict:
    images = [Image.open(TESTDATA / "media" / file).convert("RGB") for file in files]
    if not isinstance(processor, (AyaVisionProcessor, QianfanOCRProcessor)):
        text = text.replace("<image>", shown(type(processor.image_processor)))
    is_in_brackets = isinstance(processor, WITH_AXES)
    has_axes = is_in_brackets and hasattr(model.model, "get_rope_index")
    if is_in_brackets:
        text = text.replace("<image>", f"{BRACKET}<image>{BRACKET}")
    is_prefix = isinstance(processor, PaliGemmaProcessor)
    if isinstance(processor, DeepseekVL2Processor) and text.startswith("User:"):
        task = text.removeprefix("User:").split("<end_of_utterance>")[0]
        text = processor.of_chat(task)
    if is_prefix:
        # It has no chats: a prompt is a task, and the processor adds the rest.
        text = text.removeprefix("User: ").removeprefix("User:").split("<end_of_utterance>")[0]
    if is_prefix and not images:
        # The processor takes none.
        text = f"{processor.tokenizer.bos_token}{text}\n"
        inputs = processor.tokenizer(text, return_tensors="pt", add_special_tokens=False)
    else:
        inputs = processor(text=text, images=[images] if images else None, return_tensors="pt")
    pixels = {k: v for k, v in inputs.items() if k.startswith(("pixel", "image_", "spatial", "batch_"))}
    ids = inputs["input_ids"]
    prompt_len = ids.shape[1]
    out = dict(name=name, images=files, prompt_token_ids=ids[0].tolist(), text=text)

    if has_axes and images:
        axes, _ = model.model.get_rope_index(
            ids, inputs["mm_token_type_ids"], image_grid_thw=inputs["image_grid_thw"]
        )
        out["axes"] = axes[:, 0].T.tolist()
    if images:
        norm = getattr(model.model, "perception_emb_norm", None)
        if norm is not None:
            # We normalize embeddings of images with those of tokens.
            model.model.perception_emb_norm = torch.nn.Identity()
        given = {key: value for key, value in pixels.items() if key != "image_num_crops"}
        features = features_of(model, given)
        # Texts whose class multiplies all embeddings.
        multiplier = getattr(model.config.get_text_config(), "embedding_multiplier", 1.0)
        features = multiplier * torch.cat(list(features)).flatten(0, -2)
        assert len(features) == int((ids == image_token_id(model.config)).sum())
        if norm is not None:
            model.model.perception_emb_norm = norm
        if isinstance(processor, Molmo2Processor):
            # The first row and the last are of marks.
            assert torch.equal(of_image(processor, ids)[0].int(), inputs["mm_token_type_ids"][0].int())
            features = model.get_input_embeddings()(ids[of_image(processor, ids)])
        if isinstance(processor, Ovis2Processor):
            features = inner.get_image_features(**given).visual_indicator_features
        out["first_row"], out["last_row"] = rounded(features[0]), rounded(features[-1])
    logits = logits_of(model, processor, ids, pixels, prompt_len)
    missing = max(getattr(model.config, "vocab_size", 0) - logits.shape[-1], 0)
    if isinstance(processor, Molmo2Processor):
        # Marks are no words: no answer has them.
        logits = torch.nn.functional.pad(logits, (0, missing), value=torch.finfo(torch.float32).min)
    out["logits"] = rounded(logits[-1])
    tokens, gap = [], 1e9
    for _ in range(NEW_TOKENS):
        best, indices = torch.topk(logits[-1], 2)
        gap = min(gap, float(best[0] - best[1]))
        tokens.append(int(indices[0]))
        ids = torch.cat([ids, indices[:1][None]], dim=1)
        logits = logits_of(model, processor, ids, pixels, prompt_len)
    assert gap > MIN_GAP, (name, gap)
    out["output_token_ids"] = tokens
    return out


@torch.no_grad()
def check_mistakes(name: str, model, processor) -> None:
    """Every listed mistake changes embeddings of images by far more than the tolerance."""
    for mistake in MISTAKES.get(name, []):
        other = copy.deepcopy(model)
        mistake(other)
        moved = 0.0
        for _, files, text in prompts_of(type(processor.image_processor))[:2]:
            images = [Image.open(TESTDATA / "media" / file).convert("RGB") for file in files]
            text = text.replace("<image>", shown(type(processor.image_processor)))
            inputs = processor(text=text, images=[images], return_tensors="pt")
            pixels = {k: v for k, v in inputs.items() if k.startswith(("pixel", "image_", "spatial"))}
            rows = [torch.cat(list(features_of(m, pixels))) for m in (model, other)]
            moved = max(moved, float((rows[0] - rows[1]).abs().max()))
        print(f"  {name}: {mistake.__name__} moves an embedding by {moved:.4f}", flush=True)
        assert moved > MIN_MOVED, (name, mistake.__name__, moved)


def distance(a, b) -> float:
    return max((abs(x - y) for x, y in zip(a, b, strict=True)), default=0.0)


def same(old: dict, new: dict) -> None:
    floats = [key for key in ("first_row", "last_row", "logits") if key in new]
    for key in floats:
        assert distance(old[key], new[key]) < MAX_DISTANCE, (new["name"], key)
    rest = {key: value for key, value in new.items() if key not in floats}
    assert rest == {key: value for key, value in old.items() if key not in floats}, new["name"]


def write(path: Path, data: dict) -> None:
    prompts = ",\n".join(f"    {json.dumps(prompt)}" for prompt in data["prompts"])
    path.write_text(
        f'{{\n  "transformers": "{data["transformers"]}",\n  "prompts": [\n{prompts}\n  ]\n}}\n'
    )


def load_model(folder: Path, config: dict):
    """The multimodal class with the folder's weights."""
    multimodal_class = getattr(transformers, config["architectures"][0], None)
    if multimodal_class is not None:
        return with_logits_scaling(multimodal_class.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )).eval()
    if config["model_type"] == "deepseek_vl_v2":
        tensors = load_file(folder / "model.safetensors")
        return DeepseekVL2(tensors, config, load(folder, FAMILIES[folder.name])).eval()
    if config["model_type"] == "dots_ocr":
        tensors = load_file(folder / "model.safetensors")
        return DotsOcr(tensors, config, load(folder, FAMILIES[folder.name])).eval()
    if config["model_type"] == "kimi_vl":
        keys, tensors = kimi_vision.vl_as_k25(config), kimi_vision.of_k25
        return load_renamed(folder, keys, tensors)
    if config["model_type"] == "phi4mm":
        keys, tensors = phi4_multimodal.of_transformers(config), phi4_multimodal.restored
        return load_renamed(folder, keys, tensors)
    of_hf = transformers.InternVLConfig(**internvl.chat_as_hf(config))
    of_hf._attn_implementation = "eager"
    model = transformers.InternVLForConditionalGeneration(of_hf).float()
    tensors = internvl.of_hf(load_file(folder / "model.safetensors"))
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return model.eval()


def load_renamed(folder: Path, keys: dict, renamed):
    """The class of these keys, which reads the folder's tensors under its own names."""
    with tempfile.TemporaryDirectory() as other:
        other = Path(other)
        (other / "config.json").write_text(json.dumps(keys))
        tensors = renamed(load_file(folder / "model.safetensors"))
        save_file(tensors, other / "model.safetensors", metadata=dict(format="pt"))
        return load_model(other, keys)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    names = [name for name, *_ in MODELS]
    parser.add_argument(
        "--only", nargs="+", choices=names, metavar="NAME", help="folders (default: all)"
    )
    args = parser.parse_args()
    check, only = args.check, args.only
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name, image_processor, longest, tile in MODELS:
        if only and name not in only:
            continue
        folder = TESTDATA / "golden" / name
        keys = preprocessor_config(image_processor, longest, tile)
        if not check:
            if keys is not None:
                text = json.dumps(keys, indent=2) + "\n"
                (folder / "preprocessor_config.json").write_text(text)
            if name in WHOLE:
                text = json.dumps(WHOLE[name], indent=2) + "\n"
                (folder / "processor_config.json").write_text(text)
            is_in_brackets = image_processor in IN_BRACKETS
            bracket = BRACKET if is_in_brackets else ""
            mark = f"{bracket}{shown(image_processor)}{bracket}"
            template = CHAT_TEMPLATE.replace("<image>", mark)
            if image_processor not in (DeepseekVL2Processor, SiglipImageProcessor):
                (folder / "chat_template.jinja").write_text(template)
        config = json.loads((folder / "config.json").read_text())
        model = load_model(folder, config)
        processor = make_processor(folder, config, image_processor, tile)
        prompts = prompts_of(image_processor)
        prompts = [record(model, processor, *prompt) for prompt in prompts]
        path = folder / "images.json"
        if check:
            for old, new in zip(json.loads(path.read_text())["prompts"], prompts, strict=True):
                same(old, new)
            check_mistakes(name, model, processor)
        else:
            write(path, dict(transformers=transformers.__version__, prompts=prompts))
        print(f"{name}: {[len(prompt['prompt_token_ids']) for prompt in prompts]} tokens, ok")


if __name__ == "__main__":
    main()
