"""config.json: what the config class gets, and what is written."""

import transformers
from tokenizers import Tokenizer

from .family import Family
from .tokenizer_kinds import SHARED
from .weights import model_class


def tokenizer_config(family: Family) -> dict:
    return SHARED[family.shared][1] if family.shared else family.tokenizer_config


def make_config(family: Family, tokenizer: Tokenizer, changes: dict | None = None):
    """The oracle's config."""
    rows = tokenizer.get_vocab_size()
    rows += -rows % family.pad_vocab_to
    tokens = tokenizer_config(family)
    ids = {
        f"{kind}_token_id": token_id(tokenizer, tokens.get(f"{kind}_token"))
        for kind in ("bos", "eos", "pad")
    }
    # Some classes have no model without them.
    ids = {k: family.config.get(k) if id is None else id for k, id in ids.items()}
    values = {**family.config, **(changes or {}), **ids, "vocab_size": rows}
    config = getattr(transformers, family.config_class)(**values)
    config.architectures = [model_class(family)]
    return config


def token_id(tokenizer: Tokenizer, token: str | None) -> int | None:
    return None if token is None else tokenizer.token_to_id(token)


def old_style(config: dict, family: Family) -> dict:
    """config.json as transformers 4 wrote it: rope_theta and rope_scaling at the top, torch_dtype,
    no layer_types."""
    config = dict(config)
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.45.0"
    config.pop("_sliding_window_pattern", None)
    rope = config.pop("rope_parameters", None)
    config.pop("layer_types", None)
    if rope and "full_attention" in rope:
        config["rope_theta"] = rope["full_attention"]["rope_theta"]
        if config["model_type"] == "gemma3_text":
            config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        config["rope_scaling"] = scaling(rope["full_attention"])
    elif rope:
        config["rope_theta"] = rope["rope_theta"]
        config["rope_scaling"] = scaling(rope)
        if "partial_rotary_factor" in rope:
            config["partial_rotary_factor"] = rope["partial_rotary_factor"]
        if config["model_type"] == "qwen2" and not config["use_sliding_window"]:
            config["sliding_window"] = 8  # present but switched off, as Qwen2.5 has it
        if rope["rope_type"] == "linear":
            config["rope_scaling"] = {"type": "linear", "factor": rope["factor"]}  # the oldest
    config.update(family.old_keys)
    for key in family.old_drop:
        del config[key]
    return config


def scaling(rope: dict) -> dict | None:
    """rope_scaling of transformers 4, from rope_parameters."""
    top = ("rope_theta", "partial_rotary_factor")
    rest = {k: v for k, v in rope.items() if k not in top}
    return None if rope["rope_type"] == "default" else rest
