"""Requests of generation: parameters become fields of a row, and its answer the objects of vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

from .exceptions import RowError
from .kinds import is_list, is_mapping, list_of
from .logprobs import FlatLogprobs, PromptLogprobs, SampleLogprobs, position_of
from .lora import LoRARequest
from .outputs import (
    BeamSearchOutput,
    BeamSearchSequence,
    CompletionOutput,
    RequestError,
    RequestOutput,
)
from .rows import Row
from .sampling_params import BeamSearchParams, SamplingParams
from .structured_outputs import StructuredOutputsParams, guided_of

# Fields that a model's generation_config.json would set where the row has none.
_ALWAYS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
# Fields that a row has where they are not empty.
_SOMETIMES = (
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
    "include_stop_str_in_output",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "thinking_token_budget",
)
# What asks for nothing, of parameters that cannot be done, and what to do instead.
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "watermarking": ((None, False), "leave it out"),
    "prompt_logprob_token_ids": ((None,), "ask for prompt_logprobs"),
    "prompt_logprob_start": ((None, 0), "ask for prompt_logprobs, which has all positions"),
    "logprob_token_ids": ((None,), "ask for logprobs=-1, which has all tokens"),
    "spaces_between_special_tokens": ((True,), "leave it out"),
    "extra_args": ((None, {}), "leave it out"),
    "repetition_detection": ((None,), "give max_tokens, or a repetition_penalty"),
    "routed_experts_prompt_start": ((0,), "leave it out"),
    "trace_decode_token_ids": ((None,), "leave it out"),
}


def sampling_fields(params: SamplingParams, max_model_len: Callable[[], int]) -> Row:
    """The fields of a row that ask for what the parameters say.

    Raises NotImplementedError for a parameter that cannot be done.
    """
    for name, (nothing, remedy) in _REFUSED.items():
        value = getattr(params, name)
        if not any(value is one or value == one for one in nothing):
            raise NotImplementedError(f"SamplingParams.{name} is not supported: {remedy}")
    found: Row = {name: getattr(params, name) for name in _ALWAYS}
    # As many as fit where there is no limit.
    found["max_tokens"] = max_model_len() if params.max_tokens is None else params.max_tokens
    for name in _SOMETIMES:
        value = getattr(params, name)
        if value is not None and value is not False and value != [] and value != {}:
            found[name] = value
    if found.get("min_tokens") == 0:
        del found["min_tokens"]
    if params.n != 1:
        found["n"] = params.n
    if not params.skip_special_tokens:
        found["skip_special_tokens"] = False
    constraint = params.structured_outputs
    if is_mapping(constraint):
        constraint = guided_of(constraint)
    if constraint is not None:
        if not isinstance(constraint, StructuredOutputsParams):
            raise TypeError(f"structured_outputs is a {type(constraint).__name__}")
        found["structured_outputs"] = constraint.fields()
    return found


def beam_fields(params: BeamSearchParams) -> Row:
    """The fields of a row that ask for a beam search.

    Raises NotImplementedError for structured outputs.
    """
    if params.structured_outputs is not None:
        message = (
            "BeamSearchParams.structured_outputs is not supported: sample with it, by generate"
        )
        raise NotImplementedError(message)
    found: Row = {
        "beam_width": params.beam_width,
        "max_tokens": params.max_tokens,
        "length_penalty": params.length_penalty,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        # vLLM's sequences show the tokens among which each was chosen.
        "logprobs": 2 * params.beam_width,
        "skip_special_tokens": params.skip_special_tokens,
    }
    for name in ("ignore_eos", "include_stop_str_in_output"):
        if getattr(params, name):
            found[name] = True
    return found


@dataclass
class Request:
    """A prompt that is under way: its row, and what its output needs to know of it."""

    index: int
    request_id: str
    row: Row
    prompt: Any = None
    text: str | None = None
    lora_request: LoRARequest | None = None
    params: Any = None


def error_of(answer: Row) -> RequestError | None:
    """Why a row has no answer."""
    error = answer.get("error")
    return None if error is None else RequestError(error["code"], error["message"])


def row_error(request: Request, error: RequestError) -> RowError:
    """The exception of a request that has no answer."""
    return RowError(request.index, request.request_id, error.code, error.message)


def request_output(request: Request, answer: Row) -> RequestOutput:
    """The output of a request."""
    params, error = request.params, error_of(answer)
    if error is not None:
        outputs = [CompletionOutput(0, "", [], finish_reason="error")]
    else:
        outputs = [_completion(one, request, params) for one in answer["outputs"]]
    flat = params is not None and params.flat_logprobs
    found = answer.get("prompt_logprobs") if error is None else None
    asked = params is not None and params.prompt_logprobs is not None
    logprobs: PromptLogprobs | None = None
    if asked and is_list(found):
        logprobs = FlatLogprobs() if flat else []
        logprobs.extend(position_of(entry) for entry in found)
    return RequestOutput(
        request.request_id,
        request.text,
        answer.get("prompt_token_ids") if error is None else None,
        logprobs,
        outputs,
        True,
        lora_request=request.lora_request,
        error=error,
    )


def _completion(one: Row, request: Request, params: SamplingParams | None) -> CompletionOutput:
    entries, logprobs = one["logprobs"], None
    if entries is not None:
        positions: SampleLogprobs = FlatLogprobs() if params and params.flat_logprobs else []
        positions.extend(found for found in map(position_of, entries) if found is not None)
        logprobs = positions
    reason, stop_reason = one["finish_reason"], one["stop_reason"]
    if reason == "incomplete":
        # An answer that a stop cut before it matched its form: vLLM has no word for it.
        reason = "stop"
    return CompletionOutput(
        one["index"],
        one["text"] if params is None or params.detokenize else "",
        one["token_ids"],
        one["cumulative_logprob"],
        logprobs,
        finish_reason=reason,
        stop_reason=stop_reason,
        lora_request=request.lora_request,
    )


def beam_output(request: Request, answer: Row) -> BeamSearchOutput:
    """The completions that a beam search found, with the prompt before each.

    Raises RowError where the row has no answer.
    """
    error = error_of(answer)
    if error is not None:
        raise row_error(request, error)
    prompt_ids = answer["prompt_token_ids"]
    sequences: list[BeamSearchSequence] = []
    for one in answer["outputs"]:
        entries = [position_of(entry) for entry in list_of(one["logprobs"])]
        sequences.append(
            BeamSearchSequence(
                request.prompt,
                prompt_ids + one["token_ids"],
                [entry for entry in entries if entry is not None],
                request.lora_request,
                one["cumulative_logprob"],
                None if request.text is None else request.text + one["text"],
                one["finish_reason"],
                one["stop_reason"],
            )
        )
    return BeamSearchOutput(sequences)
