"""`LLM`: vLLM's class for work offline, over the program."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, Sequence, TypeVar

from .calls import (
    Call,
    Params,
    Prompts,
    check_errors,
    check_priority,
    check_processor,
    check_quantization,
    checked,
    tokenization_fields,
)
from .defaults import default_sampling_params, fields_of
from .engine_args import EngineArgs
from .engines import Engines, template_flags
from .inputs import conversations_of, messages_field, prompt_field, prompts_of
from .journal import answers_of
from .lora import Loras
from .models import command_of
from .outputs import BeamSearchOutput, RequestOutput
from .pooling import Pooling
from .progress import Progress, UseTqdm
from .requests import Request, beam_fields, beam_output
from .rows import Row
from .sampling_params import BeamSearchParams, SamplingParams

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .engine_options import EngineOptions

Output = TypeVar("Output")

# Why a method of vLLM's is not here, and what to do.
_NOT_HERE = {
    "apply_model": "the model is in another process, and no module of torch",
    "collective_rpc": "the model is in another process: there are no workers",
    "get_metrics": "run `vllm-batch run --stats FILE`, or vllm_batch.run_file, for figures",
    "start_profile": "run `vllm-batch bench`",
    "stop_profile": "run `vllm-batch bench`",
    "reset_prefix_cache": "no answer depends on it: leave it out",
    "reset_mm_cache": "no answer depends on it: leave it out",
    "sleep": "close the LLM, and make another",
    "wake_up": "close the LLM, and make another",
    "init_weight_transfer_engine": "save the weights, and make another LLM",
    "update_weights": "save the weights, and make another LLM",
}


class LLM(Pooling):
    """A model that answers prompts, by vLLM's names. The program runs it as a process, which stays
    until `close` or the end of Python.

        llm = LLM(model="./model")
        outputs = llm.generate(["2+3="], SamplingParams(temperature=0))
        print(outputs[0].outputs[0].text)

    `model`: folder, GGUF file or Hugging Face id.
    `engine_args`: vLLM's arguments (`EngineArgs`), and flags of the program with underscores.
    `binary`, `env`: as of `Engine`.

    Raises EngineError where the model cannot be loaded, NotImplementedError for an argument that
    cannot be done, and TypeError for one that is unknown. Any thread may call its methods.
    """

    def __init__(
        self,
        model: str,
        *,
        binary: str | None = None,
        env: Mapping[str, str] | None = None,
        **engine_args: Unpack[EngineOptions],
    ) -> None:
        args = EngineArgs.of(model, engine_args)
        self.engines = Engines(args, binary, env)
        self._counter = itertools.count()
        self._llm_engine: Any = None
        command = command_of(self.engines.config(), args.runner, args.convert)
        args.flags(command or "run")
        check_quantization(args, self.engines.config())
        if command is not None:
            with self.engines.use(command):
                pass
        self.command = command

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> LLM:
        """The same of `EngineArgs`."""
        return cls(**vars(args))

    def close(self) -> None:
        """Ends the process. Raises EngineError where it did not end well."""
        self.engines.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LLM(model={self.engines.args.model!r})"

    def generate(
        self,
        prompts: Any,
        sampling_params: Params = None,
        use_tqdm: UseTqdm = True,
        lora_request: Loras = None,
        priority: int | Sequence[int] | None = None,
        *,
        tokenization_kwargs: dict[str, Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        errors: str = "raise",
        journal: str | os.PathLike[str] | None = None,
    ) -> list[RequestOutput]:
        """Completes prompts, and returns an output for each, in their order.

        `prompts`: a prompt or an iterable of them: a text, token ids, `{"prompt": text}` or
        `{"prompt_token_ids": ids}`.
        `sampling_params`: for all, or one for each; None is the model's generation_config.json.
        `use_tqdm`: a bar, where tqdm is installed; or what makes one.
        `errors`: `raise`, or `return`: a prompt that cannot be answered has an output with `error`.
        `journal`: a folder that keeps answers. The same call after a kill goes on where it was;
        prompts and parameters that have changed are computed again, and the others are kept.

        Raises RowError for such a prompt, NotImplementedError for what cannot be done, ValueError
        for lists of different lengths, EngineError where the process ends, and FileError where a
        journal is another model's.
        """
        check_processor(mm_processor_kwargs)
        many = prompts_of(prompts)
        check_priority(priority, self.engines.args, many)
        prompts_and_more = self._completions(
            many, sampling_params, lora_request, tokenization_kwargs
        )
        return self._answered(prompts_and_more, use_tqdm, errors, journal)

    def generate_iter(
        self,
        prompts: Iterable[Any],
        sampling_params: Params = None,
        *,
        lora_request: Loras = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        errors: str = "raise",
    ) -> Iterator[RequestOutput]:
        """`generate`, but yields each output in the order of the prompts, and holds no others: for
        prompts of a generator, in little memory. They are read on another thread."""
        check_errors(errors)
        many = prompts_of(prompts)
        call = self._call(
            self._completions(many, sampling_params, lora_request, tokenization_kwargs)
        )
        return self._ordered(call, lambda request, row: checked(request, row, errors))

    def chat(
        self,
        messages: Any,
        sampling_params: Params = None,
        use_tqdm: UseTqdm = True,
        lora_request: Loras = None,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        mm_processor_kwargs: dict[str, Any] | None = None,
        *,
        errors: str = "raise",
        journal: str | os.PathLike[str] | None = None,
    ) -> list[RequestOutput]:
        """Answers conversations, and returns an output for each, in their order.

        `messages`: a list of messages with `role` and `content`, or a list of such lists. A content
        may be a list of parts: text, `image_url`, `image_pil` (an image of Pillow).
        `tools`: reach the template. Calls are in the text, as the model writes them.
        `chat_template_kwargs`: variables of the template.
        `chat_template`: another than that of the `LLM`, which starts the process again.
        The others, and what is raised: as of `generate`.
        """
        check_processor(mm_processor_kwargs)
        conversations = conversations_of(messages)
        check_priority(priority, self.engines.args, conversations)
        if chat_template_content_format not in ("auto", "string", "openai"):
            raise ValueError(f"chat_template_content_format is {chat_template_content_format!r}")
        if continue_final_message and add_generation_prompt:
            raise ValueError("continue_final_message needs add_generation_prompt=False")
        fields: Row = {"add_generation_prompt": add_generation_prompt}
        if continue_final_message:
            fields["continue_final_message"] = True
        if tools:
            fields["tools"] = tools
        if chat_template_kwargs:
            fields["chat_template_kwargs"] = chat_template_kwargs
        fields.update(tokenization_fields(tokenization_kwargs))
        prompts = Prompts(
            conversations,
            sampling_params,
            lora_request,
            lambda one, index: {"messages": messages_field(one, index), **fields},
            lambda given: fields_of(self.engines, given),
            template_flags(self.engines.args, chat_template),
        )
        return self._answered(prompts, use_tqdm, errors, journal)

    def beam_search(
        self,
        prompts: Any,
        params: BeamSearchParams,
        lora_request: Loras = None,
        use_tqdm: UseTqdm = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """Finds the likeliest completions of prompts, and returns them best first.

        `concurrency_limit`: changes nothing, as `max_num_seqs` of `LLM` is the limit.
        Raises RowError for a prompt that cannot be answered.
        """
        del concurrency_limit
        fields, many = beam_fields(params), prompts_of(prompts)
        call = self._call(
            Prompts(
                many,
                None,
                lora_request,
                lambda prompt, index: {"prompt": prompt_field(prompt, index)},
                lambda none: fields,
            )
        )
        progress = Progress(use_tqdm, many)
        found: list[BeamSearchOutput] = []
        for output in self._ordered(call, beam_output):
            progress.finished(output)
            found.append(output)
        progress.close()
        return found

    def get_default_sampling_params(self) -> SamplingParams:
        """vLLM's defaults with what the model's generation_config.json sets.

        Raises NotImplementedError for a GGUF file, whose defaults the program alone reads.
        """
        return default_sampling_params(self.engines)

    def get_tokenizer(self) -> Any:
        """The model's tokenizer, of transformers. Raises ImportError where there is none."""
        from .tokenizers import tokenizer_of

        return tokenizer_of(self.engines)

    @property
    def llm_engine(self) -> Any:
        """An `LLMEngine` over the same process."""
        from .llm_engine import LLMEngine

        if self._llm_engine is None:
            self._llm_engine = LLMEngine(self.engines)
        return self._llm_engine

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in _NOT_HERE:
                raise NotImplementedError(f"LLM.{name} is not supported: {_NOT_HERE[name]}")
            raise AttributeError(f"LLM has no attribute {name!r}")

    def _completions(
        self, prompts: Iterable[Any], params: Params, loras: Loras, cut: dict[str, Any] | None
    ) -> Prompts:
        fields = tokenization_fields(cut)

        def row_of(prompt: Any, index: int) -> Row:
            return {"prompt": prompt_field(prompt, index), **fields}

        return Prompts(prompts, params, loras, row_of, lambda given: fields_of(self.engines, given))

    def _call(self, prompts: Prompts, counter: Iterator[int] | None = None) -> Call:
        if self.command not in (None, "run"):
            raise ValueError(
                "this model makes no text, or is run with runner='pooling': use embed, classify, "
                "score or encode"
            )
        call = prompts.call(self._counter if counter is None else counter)
        args = self.engines.args
        if call.adapters and not args.enable_lora and not args.lora_modules:
            raise ValueError("lora_request needs LLM(enable_lora=True)")
        return call

    def _answered(
        self,
        prompts: Prompts,
        use_tqdm: UseTqdm,
        errors: str,
        journal: str | os.PathLike[str] | None,
    ) -> list[RequestOutput]:
        check_errors(errors)
        if journal is None:
            call = self._call(prompts)
            return self._outputs(call, Progress(use_tqdm, prompts.prompts), errors)
        # Ids are those of the call, so that the same call has the same rows.
        call = self._call(prompts, itertools.count())
        answers = answers_of(self.engines, call, Path(journal), bool(use_tqdm))
        return [checked(request, answer, errors) for request, answer in answers]

    def _outputs(self, call: Call, progress: Progress, errors: str) -> list[RequestOutput]:
        """Outputs of all, in their order. The bar shows them as they finish."""
        found: dict[int, RequestOutput] = {}
        pending: dict[str, Request] = {}

        def rows() -> Iterator[Row]:
            for request in call.requests:
                pending[request.request_id] = request
                yield request.row

        try:
            with self.engines.use("run", call.flags, call.adapters) as engine:
                with contextlib.closing(engine.run(rows(), ordered=False)) as answers:
                    for answer in answers:
                        request = pending.pop(answer["id"])
                        found[request.index] = output = checked(request, answer, errors)
                        progress.finished(output)
        finally:
            progress.close()
        return [found[index] for index in range(len(found))]

    def _ordered(self, call: Call, make: Callable[[Request, Row], Output]) -> Iterator[Output]:
        pending: collections.deque[Request] = collections.deque()

        def rows() -> Iterator[Row]:
            for request in call.requests:
                pending.append(request)
                yield request.row

        with self.engines.use("run", call.flags, call.adapters) as engine:
            with contextlib.closing(engine.run(rows())) as answers:
                for answer in answers:
                    yield make(pending.popleft(), answer)
