#!/usr/bin/env python3
"""The classes of transformers and vLLM that are run, and why others are not: a part of docs/MODELS.md.

    python testdata/scoreboard.py VLLM/model_executor/models/registry.py           # writes the part
    python testdata/scoreboard.py --check VLLM/model_executor/models/registry.py   # compares it

Needs transformers; of vLLM only the file. A class is run if the table of docs/MODELS.md or that of
docs/EMBEDDINGS.md has its name, or the name but for upper and lower case. A class without a reason
below stops the script.
"""

import ast
import importlib.metadata
import re
import sys
from pathlib import Path

from transformers.models.auto import modeling_auto

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN, END = "<!-- scoreboard -->\n", "<!-- end of scoreboard -->"
# (reason, patterns of names)
REASONS = [
    ("decoders of encoders' families, which nobody generates with", (
        "Bert|Roberta|Electra|Data2Vec|Ernie(ForCausal|Model)|RemBert|RoCBert|RoFormer|Xmod"
        "|Camembert|BigBirdForCausalLM|MegatronBert|XLMWith|XLNet|ProphetNet|Reformer"
    )),
    ("encoders with decoders, and their halves", (
        "Bart|Pegasus|Blenderbot|Marian|Mvp|T5|VisionEncoderDecoder|Udop|Pix2Struct|Florence|TrOCR"
        "|Kosmos|Blip|Git|PPFormulaNet|NemotronParse"
    )),
    ("sounds, music, video, actions or proteins alone", (
        "Whisper|Kimia|Musicgen|Moshi|Moss|Voxtral|Audio|ASR|Asr|Speech|Ultravox|MiDasheng|FunA"
        "|VideoLl|NextVideo|OpenVLA|PI0|Evolla|Cosmos|Realtime|Qwen2AudioFor"
    )),
    ("draft models alone", "Assistant"),
    ("sparse attention other than DeepSeek V3.2's and MiniMax M3's", (
        "AXK2|DeepseekV4|Dots3Note|Glm5Next|HYV4|MistralLarge4|Qwen4Exp"
    )),
    ("linear attention other than delta nets (lightning, RG-LRU, RWKV, xLSTM)", (
        "KimiK3|BailingMoeV2_5|BailingMoeV3VL|MiniMaxForCausalLM|RecurrentGemma|Rwkv|xLSTM|LaraMini"
    )),
    ("Mamba 1 with heads, and blocks that layers share (Zamba 1)", "ZambaFor"),
    ("q, k and v fused by heads of K and V (MiMo V2)", "MiMoV2"),
    ("embeddings of n-grams (LongCat)", "LongcatFlashNgram"),
    ("ternary weights", "BitNet"),
    ("a way to generate that is not token by token, or layers that run twice", (
        "Diffusion|HrmText|IQuestLoop|Loop|Blt|Beam"
    )),
    ("images that cross-attention reads", "Mllama|IdeficsForVision|Moondream|HfMoondream"),
    ("images as tokens of a vocabulary", "Emu3|Chameleon|Janus|Bagel|Cosmos3"),
    ("vision towers that are not there yet; `--language-model-only` runs some of their texts", (
        "(?<!ChatGLM)ForConditionalGeneration|VL|Ocr|OCR|Omni|Vision|Ovis|Molmo|Phi3V|Phi4|MiniCPM[VO]"
        "|NVLM|Fuyu|GLM4V|Eagle|Nano_VL|OpenCUA|SkyworkR1V"
    )),
    ("text parts saved alone, of which no file was seen", "MuseGlimmerForCausalLM|MiniMaxM3VLFor"),
    ("not begun: a component of its own, or few users", (
        "ChatGLM|JetMoe|Doge|DiffLlama|Zaya|Step1|Step3|Dory|Kolibri|Flint|Inkling|K2Horizon"
        "|Pangu|TeleFLM|TeleChat2|Plamo3|Param2|CpmAnt|CohereCompass|Apertus1p5|Lfm3|Puzzle"
        "|MistralLarge3|Rnj1|Arctic|MuseSpark"
    )),
]


def run_here() -> set[str]:
    """Names of the tables, and of early files, in lower case."""
    text = "".join((DOCS / name).read_text() for name in ("MODELS.md", "EMBEDDINGS.md"))
    names = re.findall(r"^\| `(\w+)`", text, re.MULTILINE)
    early = re.search(r"^Early files .*$", text, re.MULTILINE).group()
    return {name.lower() for name in names + re.findall(r"`(\w+)`", early)}


def of_transformers(mapping: dict) -> set[str]:
    values = [value if isinstance(value, (tuple, list)) else [value] for value in mapping.values()]
    return {name for value in values for name in value}


def of_vllm(registry: Path, table: str) -> set[str]:
    for node in ast.parse(registry.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == table:
            return {key.value for key in node.value.keys if key}
    raise SystemExit(f"{registry}: no {table}; which vLLM is this?")


def reason(name: str) -> str:
    for why, pattern in REASONS:
        if re.search(pattern, name):
            return why
    raise SystemExit(f"{name}: neither run nor in REASONS")


def part(registry: Path) -> str:
    ours = run_here()
    version = importlib.metadata.version("transformers")
    registries = {
        f"transformers {version}, causal language models":
            of_transformers(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        f"transformers {version}, images and texts":
            of_transformers(modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES),
        "vLLM, text generation": of_vllm(registry, "_TEXT_GENERATION_MODELS"),
        "vLLM, multimodal": of_vllm(registry, "_MULTIMODAL_MODELS"),
    }
    lines = ["| registry | classes | run here |", "|---|---|---|"]
    others = set()
    for what, names in registries.items():
        missing = {name for name in names if name.lower() not in ours}
        lines.append(f"| {what} | {len(names)} | {len(names) - len(missing)} |")
        others |= missing
    lines += ["", "| why not | classes |", "|---|---|"]
    for why, _ in REASONS:
        names = sorted(name for name in others if reason(name) == why)
        if names:
            lines.append(f"| {why} | {', '.join(f'`{name}`' for name in names)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    *flags, registry = sys.argv[1:]
    path = DOCS / "MODELS.md"
    text = path.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    new = before + BEGIN + part(Path(registry)) + END + after
    if flags == ["--check"]:
        raise SystemExit(0 if new == text else "docs/MODELS.md: the scoreboard is another")
    path.write_text(new)


if __name__ == "__main__":
    main()
