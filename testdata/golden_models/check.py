"""The check of a saved folder: reloaded from nothing, compared with golden.json, and sensitive to
the mistakes that its family lists."""

import json
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from .families import FAMILIES
from .family import Family, Mistake
from .files import restored
from .published import make_config
from .quantized import Misread
from .records import cached_greedy, logits_of, with_logits_scaling
from .weights import EAGER_EXPERTS, empty_model, model_class

MIN_DISTANCE = 2e-4  # that a mistake must move a logprob
MAX_DISTANCE = 2e-5  # of the reloaded model


def check(folder: Path, name: str) -> None:
    """Compare the saved folder with its golden.json, cached generation included."""
    family = FAMILIES[name]
    golden = json.loads((folder / "golden.json").read_text(encoding="utf-8"))
    if not family.shared:
        auto = AutoTokenizer.from_pretrained(folder)
    else:
        auto = PreTrainedTokenizerFast.from_pretrained(folder)
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    loaded = [load(folder, family)]
    if (folder / "config_v4.json").exists():
        loaded.append(load(folder, family, config_file=folder / "config_v4.json"))
    for record in golden["prompts"]:
        ids, text = record["prompt_token_ids"], record["text"]
        assert auto(text)["input_ids"] == ids, (name, text)
        assert raw.encode(text).ids == ids, (name, "tokenizer.json", text)
        for model in loaded:
            assert distance_to_golden(model, record) < MAX_DISTANCE, (name, text)
    check_multimodal(folder, name, golden["prompts"])
    for record in golden["prompts"][-3:]:
        for model in loaded:
            output = cached_greedy(model, record["prompt_token_ids"], family.max_new_tokens)
            assert output == record["output_token_ids"], (name, "generate", record["text"])


def check_multimodal(folder: Path, name: str, records: list[dict]) -> None:
    """transformers' multimodal class computes the same from the folder, with vision tensors that
    are made up where the folder lacks them."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    multimodal_class = getattr(transformers, config["architectures"][0], None)
    # The tower of Gemma 3n is timm's, of one size.
    if "vision_config" not in config or multimodal_class is None or config["model_type"] == "gemma3n":
        return
    model = multimodal_class.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", ignore_mismatched_sizes=True
    )
    model = with_logits_scaling(model).eval()
    if config["model_type"] == "llama4":  # 5.24's class reads an output that its text part lacks
        model = model.language_model
    for record in records:
        assert distance_to_golden(model, record) < MAX_DISTANCE, (name, record["text"])


def check_mistakes(folder: Path, name: str) -> None:
    """Every listed mistake changes the first-step logprobs by far more than the tolerance."""
    records = json.loads((folder / "golden.json").read_text(encoding="utf-8"))["prompts"]
    for mistake in FAMILIES[name].mistakes:
        model = with_mistake(folder, FAMILIES[name], mistake)
        distance = max(distance_to_golden(model, record) for record in records)
        label = labelled(mistake)
        print(f"  {name}: {label} moves a logprob by {distance:.4f}", flush=True)
        assert distance > MIN_DISTANCE, (name, label, distance)


def labelled(mistake: Mistake) -> str:
    if isinstance(mistake, Misread) or callable(mistake):
        return mistake.__name__
    return str({key: getattr(value, "__name__", value) for key, value in mistake.items()})


def with_mistake(folder: Path, family: Family, mistake: Mistake) -> torch.nn.Module:
    if isinstance(mistake, dict):
        return load(folder, family, mistake, exactly=False)
    if isinstance(mistake, Misread):
        misread = family.quantized.misread(**mistake.changes)
        return load(folder, replace(family, quantized=misread), exactly=False)
    model = load(folder, family)
    with torch.no_grad():
        mistake(model)
    return model


def distance_to_golden(model, record: dict) -> float:
    scores = torch.log_softmax(logits_of(model, record["prompt_token_ids"])[-1], dim=-1)
    return max(abs(float(scores[token]) - expected) for token, expected in record["top"][0])


def load(
    folder: Path, family: Family, changes: dict | None = None, config_file: Path | None = None,
    exactly: bool = True,
) -> torch.nn.Module:
    """The oracle with the folder's weights; `changes` are those of a mistake. "_fix" among them
    replaces the family's `fix`."""
    changes = dict(changes or {})
    fix = changes.pop("_fix", family.fix)
    if family.layout or family.quantized:
        raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
        model = empty_model(family, make_config(family, raw, changes), fix)
        tensors = {k: v.float() for k, v in restored(folder, family, exactly).items()}
        missing, unexpected = model.load_state_dict(tensors, strict=False)
        tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
        assert not set(missing) - tied and not unexpected, (missing, unexpected)
        model.tie_weights()
        return model
    config = transformers.AutoConfig.from_pretrained(config_file or folder)
    for key, value in changes.items():
        setattr(config, key, value)
    model, info = getattr(transformers, model_class(family)).from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager",
        output_loading_info=True, **EAGER_EXPERTS,
    )
    assert not exactly or not (info["missing_keys"] or info["unexpected_keys"]), info
    if fix:
        fix(model)
    return model.eval()
