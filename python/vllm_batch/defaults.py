"""Parameters of sampling where a prompt has none: the model's own, as vLLM takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .engines import Engines
from .models import generation_defaults, is_gguf, read_config
from .requests import sampling_fields
from .rows import Row
from .sampling_params import SamplingParams


def default_sampling_params(engines: Engines) -> SamplingParams:
    """vLLM's defaults with what the model's generation_config.json sets.

    Raises NotImplementedError for a GGUF file, whose defaults the program alone reads.
    """
    defaults = _defaults_of(engines)
    if defaults is None:
        raise NotImplementedError(
            "the sampling defaults of a GGUF file are not known to Python: give SamplingParams, or "
            "leave sampling_params out"
        )
    return SamplingParams.from_optional(**defaults)


def fields_of(engines: Engines, params: SamplingParams | None) -> Row:
    """The fields of a row with these parameters; None is the model's.

    Raises NotImplementedError for a parameter that cannot be done.
    """
    if params is None:
        if engines.args.override_generation_config:
            return fields_of(engines, default_sampling_params(engines))
        # The program knows the model's, but for vLLM's 16 tokens.
        limit = (_defaults_of(engines) or {}).get("max_tokens")
        return {} if limit is not None else {"max_tokens": SamplingParams().max_tokens}
    if not isinstance(params, SamplingParams):
        raise TypeError(f"sampling_params is a {type(params).__name__}: give SamplingParams")
    return sampling_fields(params, engines.max_model_len)


def _defaults_of(engines: Engines) -> dict[str, Any] | None:
    """What the model says of sampling. None: not known here."""
    args = engines.args
    found: dict[str, Any] | None = {}
    if args.generation_config == "auto":
        if is_gguf(args.model) and not args.override_generation_config:
            return None
        found = engines.config("generation_config.json")
    elif args.generation_config != "vllm":
        found = read_config(Path(args.generation_config), "generation_config.json")
    return generation_defaults({**(found or {}), **(args.override_generation_config or {})})
