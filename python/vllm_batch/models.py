"""Files of a model that Python reads too: config.json and generation_config.json of a folder, or of
a Hugging Face id in the cache. The program reads all that counts for answers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Mapping

from .kinds import is_mapping, list_of, mapping_of

# Endings of names of classes that make no text.
_CLASSIFIERS = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForRewardModel",
    "ForProcessRewardModel",
    "ForImageClassification",
)
# Parameters of sampling that generation_config.json may set.
_SAMPLED = (
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
)
_WRITERS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForVision2Seq")


def is_gguf(model: str) -> bool:
    """Whether a model is a GGUF file, here or in a repository of the hub."""
    return model.lower().endswith(".gguf")


def folder_of(
    model: str, *, revision: str | None, cache: str | None, env: Mapping[str, str]
) -> Path | None:
    """The folder of a model. None of an id that is not in the cache.

    `cache`: as of `download_dir`. `env`: variables of the program's process.
    """
    if os.path.exists(model):
        path = Path(model)
        return path if path.is_dir() else path.parent
    name = model.rpartition(":")[0] if is_gguf(model) else model
    if cache is None:
        home = env.get("HF_HOME") or os.path.join(
            env.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
        )
        cache = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE")
        cache = cache or os.path.join(home, "hub")
    repository = Path(cache) / ("models--" + name.replace("/", "--"))
    try:
        commit = (repository / "refs" / (revision or "main")).read_text().strip()
    except OSError:
        commit = revision or ""
    folder = repository / "snapshots" / commit
    return folder if commit and folder.is_dir() else None


def read_config(folder: Path | None, name: str = "config.json") -> dict[str, Any] | None:
    """A JSON object of a model's folder; None where there is no such file."""
    if folder is None:
        return None
    try:
        with open(folder / name, encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return None
    return dict(found) if is_mapping(found) else None


def class_of(config: Mapping[str, Any] | None) -> str:
    """The name of a model's class; an empty one is not known."""
    names = list_of(mapping_of(config).get("architectures"))
    return str(names[0]) if names else ""


def command_of(config: Mapping[str, Any] | None, runner: str, convert: str) -> str | None:
    """`run`, `embed` or `classify`: what vLLM's `runner` and `convert` make of a model by the name
    of its class. None: the name is not known yet, and any may be meant."""
    if convert in ("embed", "classify"):
        return convert
    name = class_of(config)
    if name.endswith(_CLASSIFIERS):
        return "classify" if runner != "generate" else "run"
    if runner == "generate":
        return "run"
    if runner == "pooling":
        return "embed" if name else None
    return "run" if not name or name.endswith(_WRITERS) else "embed"


def generation_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that generation_config.json sets, by the names of `SamplingParams`."""
    found = {name: config[name] for name in _SAMPLED if config.get(name) is not None}
    if config.get("max_new_tokens") is not None:
        found["max_tokens"] = config["max_new_tokens"]
    return found
