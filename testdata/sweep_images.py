#!/usr/bin/env python3
"""Tiny models that see with other sizes and parts than the golden ones, beside transformers.

    python testdata/sweep_images.py                    # all cases, two minutes on one core
    python testdata/sweep_images.py glm4v paligemma    # those whose names have one of these

Each case is a golden folder with some keys of its config and of its image processor changed, and
random weights. transformers saves it as it does, and answers five chats with up to two images
greedily in float32; `vllm-batch run` answers the same. A line says `ok` (all ids, and each
log-probability within 2e-4 of the size of the logits over ten), `DIFF`, `REFUSED` with our error,
or `ORACLE` where transformers refuses or breaks. Exits with 1 at a DIFF. Needs what
generate_images.py needs, and the program in target/debug.
"""

import copy
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

import generate_images
import generate_media
from golden_models.check import load
from golden_models.deepseek_vl2_oracle import DeepseekVL2, DeepseekVL2Processor
from golden_models.dots_ocr_oracle import DotsOcr
from golden_models.families import FAMILIES, deepseek_vl2, dots_ocr
from golden_models.layouts import of_tower
from golden_models.records import with_logits_scaling
from sweep_images_cases import CASES

ROOT = Path(__file__).resolve().parent.parent
MEDIA = ROOT / "testdata/media"
PROGRAM = ROOT / "target/debug/vllm-batch"
PROCESSORS = {name: sizes for name, *sizes in generate_images.MODELS}
NEW_TOKENS = 6
MIN_GAP = 1e-3
MAX_DISTANCE = 2e-4
IMAGE = dict(type="image")
CHATS = [
    (["wide2.png"], [IMAGE, "What is this?"]),
    (["thin.png", "palette8.png"], ["First ", IMAGE, " then, later, ", IMAGE, " and then?"]),
    (["rgb.png", "rgb.png"], [IMAGE, IMAGE, "Both?"]),
    (["grey16.png"], [IMAGE, "A grey one"]),
    ([], ["What is this?"]),
]


# Folders whose models read one image of a row.
ONE_IMAGE = ("molmo2",)


# What models that read no images as thin as one have in its place.
NOT_THIN = {"thin.png": "45_420_19x39_q75.jpg", "rgb.png": "40_420_90x79_q3_progressive.jpg"}


def chats(base: str) -> list[tuple]:
    if base.startswith("phi4_multimodal"):
        return [([NOT_THIN.get(file, file) for file in files], chat) for files, chat in CHATS]
    return [chat for chat in CHATS if len(chat[0]) < 2 or not base.startswith(ONE_IMAGE)]


def parts_of(content: list) -> list[dict]:
    return [part if part is IMAGE else dict(type="text", text=part) for part in content]


def put(config: dict, key: str, value) -> None:
    *outer, last = key.split(".")
    for part in outer:
        config = config.setdefault(part, {})
    config[last] = value


@torch.no_grad()
def randomise(model, seed: int) -> None:
    """Weights whose outputs are of the size of their inputs, and norms that are not ones."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() >= 2:
            is_table = "embed" in name
            parameter.copy_(noise * (0.6 if is_table else 1.3 / parameter[0].numel() ** 0.5))
        elif name.endswith("bias"):
            parameter.copy_(noise * 0.1)
        elif "A_log" in name or "dt_bias" in name:
            parameter.copy_(noise.abs().clamp(max=1.0))
        elif "norm" in name or "ln_" in name:
            parameter.copy_(parameter.mean().round() + noise * 0.2)
        else:
            parameter.add_(noise * 0.1)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.1)
    for module in model.modules():
        # Made in the dtype of the config, and not again in float32.
        if hasattr(module, "scalar_embed_scale"):
            module.embed_scale = torch.tensor(module.scalar_embed_scale, dtype=torch.float32)


def build(folder: Path, case: tuple, seed: int):
    """The model and its processor, saved."""
    _, base, changes, processor_changes = case
    cls, longest, tile = PROCESSORS[base]
    source = ROOT / "testdata/golden" / base
    config = json.loads((source / "config.json").read_text())
    config.pop("transformers_version", None)
    for key, value in changes.items():
        put(config, key, value)
    keys = (generate_images.preprocessor_config(cls, longest, tile) or {}) | processor_changes
    saves_processor = keys.pop("saved", False)
    if keys:
        (folder / "preprocessor_config.json").write_text(json.dumps(keys))
    copied = ["chat_template.jinja", "generation_config.json", "tokenizer.json"]
    for file in [*copied, "processor_config.json", "tokenizer_config.json"]:
        if (source / file).exists():
            shutil.copy(source / file, folder / file)
    if cls is DeepseekVL2Processor:
        return build_vl2(folder, source, config, seed)
    if config["model_type"] == "dots_ocr":
        return build_dots(folder, source, (config, cls, tile), seed)
    model_class = getattr(transformers, config["architectures"][0])
    built = model_class.config_class(**copy.deepcopy(config))
    model = model_class._from_config(built, attn_implementation="eager").float().eval()
    randomise(model, seed)
    model.tie_weights()
    model.save_pretrained(folder)
    if (source / "generation_config.json").exists():
        shutil.copy(source / "generation_config.json", folder)
    else:
        (folder / "generation_config.json").unlink(missing_ok=True)
    processor = generate_images.make_processor(folder, config, cls, tile)
    if saves_processor:
        # As transformers 5 saves it: within the processor's own file.
        inner = json.loads(processor.image_processor.to_json_string())
        whole = dict(processor_class=type(processor).__name__, image_processor=inner)
        whole |= generate_images.WHOLE.get(case[1], {})
        (folder / "processor_config.json").write_text(json.dumps(whole))
        (folder / "preprocessor_config.json").unlink()
    return with_logits_scaling(model), processor


def build_vl2(folder: Path, source: Path, config: dict, seed: int):
    """DeepSeek-VL2 with another tower around the golden's text."""
    (folder / "config.json").write_text(json.dumps(config))
    text = load_file(source / "model.safetensors")
    tensors = {name: tensor for name, tensor in text.items() if name.startswith("language.")}
    for name, shape in deepseek_vl2.tower(config).items():
        values = deepseek_vl2.values(f"{seed}.{name}", shape)
        tensors[name] = values.bfloat16()
    save_file(tensors, folder / "model.safetensors")
    model = DeepseekVL2(tensors, config, load(source, FAMILIES[source.name])).eval()
    return model, generate_images.make_processor(folder, config, DeepseekVL2Processor, 0)


def build_dots(folder: Path, source: Path, how: tuple, seed: int):
    """dots.ocr with another tower around the golden's text."""
    config, cls, tile = how
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(source / "model.safetensors")
    tensors = {name: tensor for name, tensor in tensors.items() if "vision_tower" not in name}
    for name, shape in dots_ocr.tower(config["vision_config"]).items():
        noise = of_tower(f"{seed}.{name}", shape)
        tensors[name] = noise.bfloat16()
    save_file(tensors, folder / "model.safetensors")
    model = DotsOcr(tensors, config, load(source, FAMILIES[source.name])).eval()
    return model, generate_images.make_processor(folder, config, cls, tile)


def greedy(logits_of: Callable, ids: torch.Tensor, last: list[int | None]) -> dict:
    """What is likeliest behind a prompt, up to where two tokens are as likely, or to one of `last`."""
    prompt_len, tokens, logprobs, size = ids.shape[1], [], [], 10.0
    for _ in range(NEW_TOKENS):
        logits = logits_of(ids).double()
        size = max(size, float(logits.abs().max()))
        best, indices = torch.topk(torch.log_softmax(logits, -1), 2)
        if best[0] - best[1] < MIN_GAP or int(indices[0]) in last:
            break
        tokens.append(int(indices[0]))
        logprobs.append(float(best[0]))
        ids = torch.cat([ids, indices[:1][None]], 1)
    return dict(prompt_len=prompt_len, tokens=tokens, logprobs=logprobs, size=size)


@torch.no_grad()
def reference(model, processor, files: list[str], content: list) -> dict:
    images = [generate_media.reference(Image.open(MEDIA / file)) for file in files]
    tokenizer, is_prefix = processor.tokenizer, type(processor).__name__ == "PaliGemmaProcessor"
    if isinstance(processor, DeepseekVL2Processor):
        text = processor.of_chat("".join("<image>" if part is IMAGE else part for part in content))
    elif is_prefix:
        text = "".join(part for part in content if part is not IMAGE)
    else:
        chat = [dict(role="user", content=parts_of(content))]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    if is_prefix and not images:
        text = f"{tokenizer.bos_token}{text}\n"
        inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    else:
        # Molmo 2's images are resized as torch does it on several threads.
        torch.set_num_threads(2)
        inputs = processor(text=text, images=[images] if images else None, return_tensors="pt")
        torch.set_num_threads(1)
    of_images = ("pixel", "image_", "spatial", "batch_")
    pixels = {k: v for k, v in inputs.items() if k.startswith(of_images)}
    ids = inputs["input_ids"]
    prompt_len = ids.shape[1]
    return greedy(
        lambda ids: generate_images.logits_of(model, processor, ids, pixels, prompt_len)[-1],
        ids,
        [
            generate_images.image_token_id(model.config),
            *getattr(model.config, "visual_indicator_token_ids", []),
        ],
    )


def ours(folder: Path) -> tuple[list[dict], str]:
    rows = []
    config = (folder / "config.json").read_text()
    named = dict(Molmo2="molmo2", Phi4Multimodal="phi4_multimodal")
    base = next((base for name, base in named.items() if name in config), "")
    for files, content in chats(base):
        left = iter(files)
        parts = parts_of(content)
        parts = [p | dict(image=str(MEDIA / next(left))) if p is IMAGE else p for p in parts]
        rows.append(json.dumps(dict(messages=[dict(role="user", content=parts)])))
    return run(folder, rows, "--allowed-local-media-path", MEDIA)


def run(folder: Path, rows: list[str], *flags) -> tuple[list[dict], str]:
    """What the program answers, and what it says."""
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
    command = [PROGRAM, "run", "-q", "-m", folder, "-i", folder / "rows.jsonl", "--device", "cpu"]
    command += ["--dtype", "float32", "--temperature", 0, "--max-tokens", NEW_TOKENS]
    command += ["--logprobs", 0, *flags]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def compared(references: list[dict], rows: list[dict], said: str) -> tuple[str, str]:
    if len(rows) != len(references):
        return "REFUSED", " ".join(said.split())[:300]
    worst = 0.0
    for index, (expected, row) in enumerate(zip(references, rows)):
        if "error" in row:
            return "REFUSED", f"row {index}: {row['error']}"
        if row["usage"]["prompt_tokens"] != expected["prompt_len"]:
            return "DIFF", f"row {index}: another number of tokens"
        (output,) = row["outputs"]
        num = len(output["token_ids"]) if output["finish_reason"] == "stop" else NEW_TOKENS
        num = min(num, len(expected["tokens"]))
        if output["token_ids"][:num] != expected["tokens"][:num]:
            return "DIFF", f"row {index}: {output['token_ids']}, not {expected['tokens']}"
        for got, wanted in zip(output["logprobs"], expected["logprobs"]):
            worst = max(worst, abs(got["logprob"] - wanted) * 10 / expected["size"])
    return ("ok" if worst < MAX_DISTANCE else "DIFF"), f"{worst:.1e}"


def sweep(cases: list[tuple], oracle: Callable, run: Callable) -> None:
    """Says of each case how rows of `run(folder)` differ from those of `oracle(folder, case,
    seed)`, which leaves a model in the folder."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    counts: dict[str, int] = {}
    for seed, case in enumerate(cases, 7):
        if len(sys.argv) > 1 and not any(part in case[0] for part in sys.argv[1:]):
            continue
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            try:
                references = oracle(folder, case, seed)
            except Exception as error:  # whatever transformers says
                text = " ".join(str(error).split())[:150]
                kind, text = "ORACLE", f"{type(error).__name__}: {text}"
            else:
                kind, text = compared(references, *run(folder))
        counts[kind] = counts.get(kind, 0) + 1
        print(f"{case[0]:32} {kind:8} {text}", flush=True)
    print(", ".join(f"{num} {kind}" for kind, num in sorted(counts.items())))
    sys.exit("DIFF" in counts)


def oracle(folder: Path, case: tuple, seed: int) -> list[dict]:
    model, processor = build(folder, case, seed)
    return [reference(model, processor, *chat) for chat in chats(case[1])]


if __name__ == "__main__":
    sweep(CASES, oracle, ours)
