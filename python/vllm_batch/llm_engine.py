"""`LLMEngine`: requests one by one, and steps that return what has finished since."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Mapping

from .calls import check_priority
from .defaults import default_sampling_params, fields_of
from .engine_args import EngineArgs
from .engines import Engines
from .inputs import prompt_field, text_of
from .kinds import mapping_of
from .lora import LoRARequest
from .outputs import RequestOutput
from .requests import Request, error_of, request_output, row_error
from .sampling_params import SamplingParams
from .session import Session


@dataclass
class ModelConfig:
    """What is known of a model: `hf_config` has the keys of config.json."""

    model: str
    max_model_len: int
    hf_config: Any


def model_config(engines: Engines) -> ModelConfig:
    """What config.json and the process say of a model."""
    config = dict(mapping_of(engines.config()))
    labels = {int(key): name for key, name in mapping_of(config.get("id2label")).items()}
    config = {**config, "id2label": labels} if labels else config
    return ModelConfig(engines.args.model, engines.max_model_len(), SimpleNamespace(**config))


def request_of(
    engines: Engines, request_id: str, prompt: Any, params: Any, lora: LoRARequest | None
) -> Request:
    """The request of a prompt. Raises as `LLM.generate` does for what is wrong with it."""
    if not isinstance(request_id, str) or not request_id:
        raise TypeError(f"request_id is {request_id!r}: give a text")
    row = {
        "id": request_id,
        "prompt": prompt_field(prompt, 0),
        **fields_of(engines, params),
    }
    if lora is not None:
        if not engines.args.enable_lora and not engines.args.lora_modules:
            raise ValueError("lora_request needs enable_lora=True")
        row["lora"] = lora.lora_name
    return Request(0, request_id, row, prompt, text_of(prompt), lora, params)


class LLMEngine:
    """A model that takes requests at any time, with vLLM's names.

        engine = LLMEngine.from_engine_args(EngineArgs(model="./model"))
        engine.add_request("0", "2+3=", SamplingParams(temperature=0))
        while engine.has_unfinished_requests():
            for output in engine.step():
                print(output.outputs[0].text)

    A request's output comes when it has finished, and is whole. Any thread may add requests.
    """

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self._session = Session(engines)
        self._answers: queue.SimpleQueue[tuple[Request, Any]] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._unfinished: set[str] = set()

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        *,
        binary: str | None = None,
        env: Mapping[str, str] | None = None,
        **ignored: Any,
    ) -> LLMEngine:
        """Loads a model. `ignored`: vLLM's `usage_context` and the like."""
        del ignored
        return cls(Engines.with_model(engine_args, binary, env))

    def add_request(
        self,
        request_id: str,
        prompt: Any,
        params: SamplingParams | None = None,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        trace_headers: Any = None,
        priority: int = 0,
    ) -> str:
        """Adds a prompt, and returns its id. It is computed from now on.

        `arrival_time`, `trace_headers`: change nothing.
        Raises as `LLM.generate` does, and ValueError for an id that is under way.
        """
        del arrival_time, trace_headers
        check_priority(priority, self.engines.args)
        if tokenization_kwargs:
            raise NotImplementedError("tokenization_kwargs is not supported: leave it out")
        request = request_of(self.engines, request_id, prompt, params, lora_request)
        with self._guard:
            self._session.add(request, lambda one, answer: self._answers.put((one, answer)))
            self._unfinished.add(request_id)
        return request_id

    def step(self) -> list[RequestOutput]:
        """Waits for an answer, and returns all that are there. An empty list: nothing is under way.

        Raises RowError for a prompt that cannot be answered, and EngineError where the process
        ends; the requests that are under way stay so after the first.
        """
        if not self.has_unfinished_requests():
            return []
        outputs = self._take(block=True)
        while not self._answers.empty():
            outputs += self._take(block=False)
        return outputs

    def has_unfinished_requests(self) -> bool:
        """Whether any request waits for its output."""
        return bool(self._unfinished)

    def get_num_unfinished_requests(self) -> int:
        """How many requests wait for their outputs."""
        return len(self._unfinished)

    def abort_request(self, request_ids: str | list[str], internal: bool = False) -> None:
        """Drops requests: `step` returns nothing of them. The process still computes them."""
        del internal
        for request_id in [request_ids] if isinstance(request_ids, str) else request_ids:
            with self._guard:
                if request_id in self._unfinished:
                    self._unfinished.discard(request_id)
                    self._session.forget(request_id)

    def get_default_sampling_params(self) -> SamplingParams:
        """As of `LLM`."""
        return default_sampling_params(self.engines)

    def get_tokenizer(self) -> Any:
        """As of `LLM`."""
        from .tokenizers import tokenizer_of

        return tokenizer_of(self.engines)

    @property
    def model_config(self) -> ModelConfig:
        """What is known of the model."""
        return model_config(self.engines)

    @property
    def vllm_config(self) -> Any:
        """An object whose `model_config` is known, and nothing else."""
        return SimpleNamespace(model_config=self.model_config)

    def shutdown(self) -> None:
        """Ends the process."""
        self.engines.close()

    def _take(self, block: bool) -> list[RequestOutput]:
        try:
            request, answer = self._answers.get(block)
        except queue.Empty:
            return []
        with self._guard:
            if request.request_id not in self._unfinished:
                # It was aborted when its answer was there already.
                return []
            self._unfinished.discard(request.request_id)
        if isinstance(answer, BaseException):
            raise answer
        error = error_of(answer)
        if error is not None:
            raise row_error(request, error)
        return [request_output(request, answer)]
