"""`AsyncLLM`: requests of many tasks of asyncio, over one process."""

from __future__ import annotations

import asyncio
from typing import Any, AsyncGenerator, Mapping

from .calls import check_priority
from .defaults import default_sampling_params
from .engine_args import EngineArgs
from .engines import Engines
from .llm_engine import ModelConfig, model_config, request_of
from .lora import LoRARequest
from .outputs import RequestOutput
from .requests import error_of, request_output, row_error
from .rows import Row
from .sampling_params import SamplingParams
from .session import Session


class AsyncLLM:
    """A model that any number of tasks ask, with vLLM's names.

        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model="./model"))
        async for output in engine.generate("2+3=", SamplingParams(), request_id="a"):
            print(output.outputs[0].text)

    A request gives one output, which is whole, whatever `output_kind` says.
    """

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self._session = Session(engines)
        self._closed = False

    @classmethod
    def from_engine_args(
        cls,
        engine_args: EngineArgs,
        *,
        binary: str | None = None,
        env: Mapping[str, str] | None = None,
        **ignored: Any,
    ) -> AsyncLLM:
        """Loads a model. `ignored`: vLLM's `usage_context` and the like."""
        del ignored
        return cls(Engines.with_model(engine_args, binary, env))

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        trace_headers: Any = None,
        data_parallel_rank: int | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Completes a prompt. A task that leaves the loop drops the request; the process still
        computes it.

        `trace_headers`, `data_parallel_rank`: change nothing.
        Raises as `LLM.generate` does, for this request alone.
        """
        del trace_headers, data_parallel_rank
        check_priority(priority, self.engines.args)
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[Any] = loop.create_future()

        def deliver(request: Any, answer: Any) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_finish, finished, answer)

        # The first request may wait for a process.
        request = await asyncio.to_thread(
            request_of, self.engines, request_id, prompt, sampling_params, lora_request
        )
        self._session.add(request, deliver)
        try:
            answer = await finished
        finally:
            self._session.forget(request_id)
        if isinstance(answer, BaseException):
            raise answer
        error = error_of(answer)
        if error is not None:
            raise row_error(request, error)
        yield request_output(request, answer)

    async def abort(self, request_id: str | list[str]) -> None:
        """Drops requests: a task that waits for one has an output without text, whose
        `finish_reason` is `abort`."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            deliver = self._session.forget(name)
            if deliver is not None:
                deliver(ABORTED)

    async def get_tokenizer(self) -> Any:
        """As of `LLM`."""
        from .tokenizers import tokenizer_of

        return await asyncio.to_thread(tokenizer_of, self.engines)

    async def get_model_config(self) -> ModelConfig:
        """What is known of the model."""
        return await asyncio.to_thread(model_config, self.engines)

    def get_default_sampling_params(self) -> SamplingParams:
        """As of `LLM`."""
        return default_sampling_params(self.engines)

    async def check_health(self) -> None:
        """Raises ValueError where the engine is shut down."""
        if self._closed:
            raise ValueError("the engine is shut down")

    async def do_log_stats(self) -> None:
        """Nothing: the program's summary has figures."""

    def shutdown(self) -> None:
        """Ends the process."""
        self._closed = True
        self.engines.close()


# The answer to a request that was dropped.
ABORTED: Row = {
    "outputs": [
        {
            "index": 0,
            "text": "",
            "token_ids": [],
            "cumulative_logprob": None,
            "logprobs": None,
            "finish_reason": "abort",
            "stop_reason": None,
        }
    ]
}

#: vLLM's older name.
AsyncLLMEngine = AsyncLLM


def _finish(finished: asyncio.Future[Any], answer: Any) -> None:
    # A task that was cancelled hears of nothing.
    if not finished.done():
        finished.set_result(answer)
