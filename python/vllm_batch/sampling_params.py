"""`SamplingParams` and `BeamSearchParams`, with vLLM's names, order, defaults and rules."""

from __future__ import annotations

import copy
import logging
import math
from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum
from typing import Any, Mapping

from .exceptions import VLLMValidationError
from .structured_outputs import GuidedDecodingParams, StructuredOutputsParams

__all__ = [
    "BeamSearchParams",
    "GuidedDecodingParams",
    "RequestOutputKind",
    "SamplingParams",
    "SamplingType",
    "StructuredOutputsParams",
]

LOGGER = logging.getLogger("vllm_batch")

MAX_NUM_SEQUENCES = 16384
# A temperature below is raised to it, as in vLLM.
MIN_TEMPERATURE = 0.01
# What is greedy sampling.
GREEDY_BELOW = 1e-5


class RequestOutputKind(Enum):
    """Which outputs a request gives: all so far, what is new, or the last alone."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingType(IntEnum):
    """How tokens are chosen."""

    GREEDY = 0
    RANDOM = 1
    RANDOM_SEED = 2


@dataclass
class SamplingParams:
    """How a prompt is completed. docs/SAMPLING.md has what each parameter does.

    All of vLLM 0.32's parameters are taken. Those that cannot be done here are refused by name when
    they are used, and `max_tokens=None` is the rest of the context.
    `guided_decoding`: older name of `structured_outputs`.

    Raises VLLMValidationError for a value out of its range.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    watermarking: bool | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: Any = None
    prompt_logprob_start: int | None = None
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int | None = None
    skip_clone: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: Any = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: list[int] | None = None
    guided_decoding: StructuredOutputsParams | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if 0 < self.temperature < MIN_TEMPERATURE:
            LOGGER.warning("temperature %s is raised to %s", self.temperature, MIN_TEMPERATURE)
            self.temperature = MIN_TEMPERATURE
        if self.seed == -1:
            self.seed = None
        stop = self.stop
        self.stop = [] if stop is None else [stop] if isinstance(stop, str) else list(stop)
        self.stop_token_ids = list(dict.fromkeys(self.stop_token_ids or []))
        self.bad_words = list(dict.fromkeys(self.bad_words or []))
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is True:
                setattr(self, name, 1)
        if self.thinking_token_budget == -1:
            self.thinking_token_budget = None
        if self.guided_decoding is not None:
            self.structured_outputs, self.guided_decoding = self.guided_decoding, None
        _check(self)
        if self.temperature < GREEDY_BELOW:
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0
            if self.n > 1:
                raise _wrong("n", self.n, "must be 1 when using greedy sampling")

    @staticmethod
    def from_optional(**options: Any) -> SamplingParams:
        """Parameters of which None means the default."""
        defaults: dict[str, Any] = {one.name: one.default for one in fields(SamplingParams)}
        given: dict[str, Any] = {
            name: defaults[name] if value is None and name != "max_tokens" else value
            for name, value in options.items()
        }
        if given.get("logit_bias"):
            given["logit_bias"] = _bias_of(given["logit_bias"])
        return SamplingParams(**given)

    @property
    def sampling_type(self) -> SamplingType:
        """Greedy, random, or random by a seed of its own."""
        if self.temperature < GREEDY_BELOW:
            return SamplingType.GREEDY
        return SamplingType.RANDOM if self.seed is None else SamplingType.RANDOM_SEED

    @property
    def all_stop_token_ids(self) -> set[int]:
        """Token ids that end an answer, besides the model's own."""
        return set(self.stop_token_ids or [])

    def clone(self) -> SamplingParams:
        """A copy that shares nothing."""
        return copy.deepcopy(self)


@dataclass
class BeamSearchParams:
    """How `LLM.beam_search` searches. `temperature` changes nothing, as scores are those before it.

    Raises VLLMValidationError for a width out of its range.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    skip_special_tokens: bool = True
    watermarking: bool | None = None

    def __post_init__(self) -> None:
        _check_number_of_sequences("beam_width", self.beam_width)


def _bias_of(bias: Mapping[Any, float]) -> dict[int, float]:
    wrong: list[Any] = []
    found: dict[int, float] = {}
    for token_id, value in bias.items():
        try:
            found[int(token_id)] = min(100.0, max(-100.0, value))
        except (TypeError, ValueError):
            wrong.append(token_id)
    if wrong:
        raise _wrong("logit_bias", wrong, "has keys that are no token ids")
    return found


def _wrong(name: str, value: Any, rule: str) -> VLLMValidationError:
    return VLLMValidationError(f"{name} {rule}, got {value!r}.", parameter=name, value=value)


def _check_number_of_sequences(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(name, value, "must be an int")
    if value < 1:
        raise _wrong(name, value, "must be at least 1")
    if value > MAX_NUM_SEQUENCES:
        raise _wrong(name, value, f"must be at most {MAX_NUM_SEQUENCES}")


def _check(params: SamplingParams) -> None:
    _check_number_of_sequences("n", params.n)
    for name in ("presence_penalty", "frequency_penalty"):
        if not -2.0 <= getattr(params, name) <= 2.0:
            raise _wrong(name, getattr(params, name), "must be in [-2, 2]")
    for name in ("repetition_penalty", "temperature"):
        if not math.isfinite(getattr(params, name)):
            raise _wrong(name, getattr(params, name), "must be a finite number")
    if params.repetition_penalty <= 0.0:
        raise _wrong("repetition_penalty", params.repetition_penalty, "must be greater than zero")
    if params.temperature < 0.0:
        raise _wrong("temperature", params.temperature, "must be non-negative")
    if params.temperature > 2.0:
        raise _wrong("temperature", params.temperature, "must be in [0, 2]")
    if not 0.0 < params.top_p <= 1.0:
        raise _wrong("top_p", params.top_p, "must be in (0, 1]")
    if params.top_k < -1:
        raise _wrong("top_k", params.top_k, "must be 0 (disable), or at least 1")
    if not isinstance(params.top_k, int):
        raise _wrong("top_k", params.top_k, "must be an integer")
    if not 0.0 <= params.min_p <= 1.0:
        raise _wrong("min_p", params.min_p, "must be in [0, 1]")
    _check_lengths(params)


def _check_lengths(params: SamplingParams) -> None:
    if params.max_tokens is not None and params.max_tokens < 1:
        raise _wrong("max_tokens", params.max_tokens, "must be at least 1")
    if params.min_tokens < 0:
        raise _wrong("min_tokens", params.min_tokens, "must be greater than or equal to 0")
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        rule = f"must be less than or equal to max_tokens={params.max_tokens}"
        raise _wrong("min_tokens", params.min_tokens, rule)
    if params.stream_interval is not None and params.stream_interval < 1:
        raise _wrong("stream_interval", params.stream_interval, "must be at least 1")
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(params, name)
        if value is not None and value < -1:
            raise _wrong(name, value, "must be non-negative or -1")
    budget: Any = params.thinking_token_budget
    if budget is not None and (type(budget) is not int or budget < 0):
        raise _wrong("thinking_token_budget", budget, "must be a non-negative integer or -1")
    if not all(isinstance(token_id, int) for token_id in params.stop_token_ids or []):
        raise _wrong("stop_token_ids", params.stop_token_ids, "must contain only integers")
    if any(not text for text in params.stop or []):
        raise _wrong("stop", params.stop, "cannot contain an empty string")
    if params.stop and not params.detokenize:
        raise _wrong("stop", params.stop, "is only supported when detokenize is True")
    if any(not text for text in params.bad_words or []):
        raise _wrong("bad_words", params.bad_words, "cannot contain an empty string")
