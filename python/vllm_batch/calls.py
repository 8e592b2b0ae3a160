"""Calls of `LLM`: prompts, parameters and adapters put together, and what is wrong with them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence, Union

from .engine_args import EngineArgs
from .engines import Flags
from .exceptions import VLLMValidationError
from .inputs import text_of
from .kinds import is_list, is_sequence, mapping_of
from .lora import LoRARequest, Loras, adapters_in
from .models import is_gguf
from .outputs import RequestOutput
from .requests import Request, error_of, request_output, row_error
from .rows import Row
from .sampling_params import SamplingParams

Params = Union[SamplingParams, Sequence[SamplingParams], None]


@dataclass
class Call:
    """Requests that are made together. `adapters`: those that any of them names. `flags`: of the
    process, over those of the `LLM`."""

    requests: Iterable[Request]
    adapters: list[LoRARequest]
    flags: Flags = ()


@dataclass
class Prompts:
    """What a call gives for its prompts. `row_of` makes a row of one, and `fields_of` of its
    parameters, which are None where they are the model's."""

    prompts: Iterable[Any]
    params: Params
    loras: Loras
    row_of: Callable[[Any, int], Row]
    fields_of: Callable[[SamplingParams | None], Row]
    flags: Flags = ()

    def call(self, counter: Iterator[int]) -> Call:
        """The requests. Those of a list are all there, so what is wrong with one is said before the
        first is answered."""
        requests = self._requests(counter)
        if is_list(self.prompts):
            requests = iter(list(requests))
        return Call(requests, adapters_in(self.loras), self.flags)

    def _requests(self, counter: Iterator[int]) -> Iterator[Request]:
        params = each("sampling_params", self.params, self.prompts)
        loras = each("lora_request", self.loras, self.prompts)
        known: list[tuple[SamplingParams | None, Row]] = []
        for index, (prompt, one, lora) in enumerate(zip(self.prompts, params, loras)):
            # Most calls have one object of parameters for all prompts.
            if not known or known[0][0] is not one:
                known = [(one, self.fields_of(one))]
            request_id = str(next(counter))
            row = {"id": request_id, **self.row_of(prompt, index), **known[0][1]}
            if lora is not None:
                row["lora"] = lora.lora_name
            yield Request(index, request_id, row, prompt, text_of(prompt), lora, one)


def checked(request: Request, answer: Row, errors: str) -> RequestOutput:
    error = error_of(answer)
    if error is not None and errors == "raise":
        raise row_error(request, error)
    return request_output(request, answer)


def check_errors(errors: str) -> None:
    if errors not in ("raise", "return"):
        raise ValueError(f"errors is {errors!r}: give 'raise' or 'return'")


def check_priority(priority: Any, args: EngineArgs, prompts: Any = None) -> None:
    """Without `scheduling_policy="priority"` a priority changes nothing, as in vLLM. With it, a row
    has none here."""
    given = priority if is_sequence(priority) else [priority]
    if is_sequence(priority) and is_sequence(prompts) and len(priority) != len(prompts):
        raise _differ(len(prompts), len(priority), "priority")
    if args.scheduling_policy != "fcfs" and any(one not in (None, 0) for one in given):
        raise NotImplementedError(
            "priority is not supported with scheduling_policy='priority': leave it out, as answers "
            "of a call are returned together"
        )


def check_processor(mm_processor_kwargs: Any) -> None:
    """Raises NotImplementedError for arguments of a processor."""
    if mm_processor_kwargs:
        raise NotImplementedError("mm_processor_kwargs is not supported: leave it out")


def tokenization_fields(options: Mapping[str, Any] | None) -> Row:
    """The fields of a row that cut prompts as vLLM's `tokenization_kwargs`."""
    found: Row = {}
    for name, value in (options or {}).items():
        if name == "truncate_prompt_tokens":
            found[name] = value
        elif not (name == "add_special_tokens" and value is None):
            raise NotImplementedError(
                f"tokenization_kwargs[{name!r}] is not supported: give truncate_prompt_tokens, or "
                "token ids as prompts"
            )
    return found


def each(name: str, values: Any, prompts: Iterable[Any]) -> Iterable[Any]:
    """A value for each prompt. Raises ValueError where their number differs."""
    if not is_sequence(values):
        return itertools.repeat(values)
    if is_sequence(prompts):
        if len(values) != len(prompts):
            raise _differ(len(prompts), len(values), name)
        return values
    return _as_many(name, values)


def _as_many(name: str, values: Sequence[Any]) -> Iterator[Any]:
    yield from values
    # The prompts of a generator are counted only now.
    raise VLLMValidationError(f"more prompts than the {len(values)} {name}: give one for each")


def _differ(prompts: int, values: int, name: str) -> VLLMValidationError:
    return VLLMValidationError(f"{prompts} prompts and {values} {name}: give one for each")


def check_quantization(args: EngineArgs, config: Mapping[str, Any] | None) -> None:
    """A method that is not the checkpoint's own would narrow its weights, which is not done."""
    method = args.quantization
    if method is None or method in ("int8", "fp8"):
        return
    own = (
        "gguf"
        if is_gguf(args.model)
        else mapping_of((config or {}).get("quantization_config")).get("quant_method")
    )
    if own is None or not method.startswith(own):
        raise NotImplementedError(
            f"LLM(quantization={method!r}) is not supported of this model: give int8 or fp8, or a "
            "checkpoint that is quantized"
        )
