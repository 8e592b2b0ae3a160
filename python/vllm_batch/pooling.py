"""Methods of `LLM` for models that make vectors, classes and scores."""

from __future__ import annotations

import base64
import contextlib
import itertools
from array import array
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence, Union

from .calls import each, tokenization_fields
from .engines import Engines, Flags, template_flags
from .exceptions import RowError
from .inputs import prompt_field, prompts_of
from .kinds import is_list, is_mapping, library
from .logprobs import float32
from .lora import LoRARequest, Loras, adapters_in
from .models import class_of
from .outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from .pooling_params import PoolingParams
from .progress import Progress, UseTqdm
from .rows import Row

PoolParams = Union[PoolingParams, Sequence[PoolingParams], None]
TASKS = ("embed", "classify", "token_embed", "token_classify")


@dataclass
class Pooled:
    """A text that is under way."""

    index: int
    row: Row
    token_ids: list[int] | None
    lora: LoRARequest | None


class Pooling:
    """What `LLM` has for models that make no text."""

    engines: Engines
    command: str | None
    _counter: Iterator[int]

    def embed(
        self,
        prompts: Any,
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolParams = None,
        lora_request: Loras = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Makes a vector of each prompt: `output.outputs.embedding`, a list of floats.

        Raises RowError for a prompt that cannot be answered, ValueError for a model that makes no
        vectors, and NotImplementedError for a parameter that cannot be done.
        """
        texts = self._texts(prompts, pooling_params, lora_request, tokenization_kwargs)
        return [
            EmbeddingRequestOutput(name, EmbeddingOutput(vector), ids)
            for name, vector, ids in self._pooled("embed", texts, _vector_of, use_tqdm)
        ]

    def classify(
        self,
        prompts: Any,
        *,
        pooling_params: PoolParams = None,
        use_tqdm: UseTqdm = True,
        lora_request: Loras = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """Finds the class of each prompt: `output.outputs.probs`, a list with a number of each.

        Raises as `embed` does.
        """
        texts = self._texts(prompts, pooling_params, lora_request, tokenization_kwargs)
        return [
            ClassificationRequestOutput(name, ClassificationOutput(probs), ids)
            for name, probs, ids in self._pooled("classify", texts, _probs_of, use_tqdm)
        ]

    def score(
        self,
        data_1: Any,
        data_2: Any,
        /,
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParams | None = None,
        lora_request: Loras = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        chat_template: str | None = None,
    ) -> list[ScoringRequestOutput]:
        """Says how well pairs of texts match: `output.outputs.score`, a float.

        `data_1`, `data_2`: a text or a list of texts; one to one, one to many, or as many. In the
        place of a text there may be a content of parts.
        `chat_template`: another than that of the `LLM`, which starts the process again.
        Raises ValueError for other numbers of texts, and as `embed` does.
        """
        first, second = _sides(data_1, data_2)
        flags = template_flags(self.engines.args, chat_template)
        fields = {**tokenization_fields(tokenization_kwargs), **_fields(pooling_params)}

        def texts() -> Iterator[Pooled]:
            for index, (one, other) in enumerate(zip(first, second)):
                body = {"text_1": one, "text_2": other, **fields}
                yield self._request("/v1/score", body, index, None)

        return [
            ScoringRequestOutput(name, ScoringOutput(score), ids)
            for name, score, ids in self._pooled(
                "score", _Texts(texts(), second, lora_request), _score_of, use_tqdm, flags
            )
        ]

    def reward(self, prompts: Any, **options: Any) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Scores prompts by a reward model: `encode` by `classify`, or by `token_classify` of a
        model that scores tokens. `options`: of `encode`."""
        return self.encode(prompts, pooling_task=_task_of(self.engines.config()), **options)

    def encode(
        self,
        prompts: Any,
        pooling_params: PoolParams = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: Loras = None,
        pooling_task: str | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Makes numbers of each prompt: `output.outputs.data` (`PoolingOutput`).

        `pooling_task`: `embed` (a vector) or `token_embed` (one for each token), `classify` or
        `token_classify`.
        Raises ValueError for another task or none, and as `embed` does.
        """
        if pooling_task not in TASKS:
            raise ValueError(f"pooling_task is {pooling_task!r}: give one of {', '.join(TASKS)}")
        texts = self._texts(prompts, pooling_params, lora_request, tokenization_kwargs)
        command = "embed" if pooling_task.endswith("embed") else "classify"
        flags: Flags = (("pooling_type", "ALL"),) if pooling_task == "token_embed" else ()
        is_token_task = pooling_task.startswith("token_")
        if command == "classify" and is_token_task != (
            _task_of(self.engines.config()) == "token_classify"
        ):
            raise ValueError(f"pooling_task is {pooling_task!r}, and the model does the other")
        value_of = _vectors_of if command == "embed" else _rows_of_probs
        return [
            PoolingRequestOutput(name, PoolingOutput(_tensor(data)), ids)
            for name, data, ids in self._pooled(command, texts, value_of, use_tqdm, flags)
        ]

    def _texts(
        self, prompts: Any, params: PoolParams, loras: Loras, cut: dict[str, Any] | None
    ) -> _Texts:
        many = prompts_of(prompts)
        return _Texts(_with_params(many, params, loras, tokenization_fields(cut)), many, loras)

    def _request(self, url: str, body: Row, index: int, ids: list[int] | None) -> Pooled:
        row = {"custom_id": str(next(self._counter)), "url": url, "body": body}
        return Pooled(index, row, ids, None)

    def _row(self, command: str, text: Any) -> Pooled:
        """A request of `_with_params`, as the command's rows have it."""
        if isinstance(text, Pooled):
            return text
        index, prompt, fields, lora = text
        value = prompt_field(prompt, index)
        ids = None if isinstance(value, str) else value
        if command == "embed":
            found = self._request("/v1/embeddings", {"input": value, **fields}, index, ids)
            found.row["body"]["encoding_format"] = "base64"
            if lora is not None:
                found.row["body"]["model"] = lora.lora_name
            return found
        row: Row = {"id": str(next(self._counter)), "prompt": value, **fields}
        if lora is not None:
            row["lora"] = lora.lora_name
        return Pooled(index, row, ids, lora)

    def _pooled(
        self,
        command: str,
        texts: _Texts,
        value_of: Callable[[Row], Any],
        use_tqdm: UseTqdm,
        flags: Flags = (),
    ) -> list[tuple[str, Any, list[int] | None]]:
        """Request ids, values and token ids of texts, in their order."""
        self._check_pools(command)
        pending: dict[str, Pooled] = {}
        found: dict[int, tuple[str, Any, list[int] | None]] = {}

        def rows() -> Iterator[Row]:
            for text in texts.requests:
                request = self._row(command, text)
                pending[request.row.get("custom_id") or request.row["id"]] = request
                yield request.row

        progress = Progress(use_tqdm, texts.prompts)
        try:
            with self.engines.use(command, flags, texts.adapters) as engine:
                with contextlib.closing(engine.run(rows(), ordered=False)) as answers:
                    for answer in answers:
                        name = answer.get("custom_id") or answer["id"]
                        request = pending.pop(name)
                        _check_answer(answer, request, name)
                        found[request.index] = (name, value_of(answer), request.token_ids)
                        progress.finished(None)
        finally:
            progress.close()
        return [found[index] for index in range(len(found))]

    def _check_pools(self, command: str) -> None:
        known = self.command
        if known == "run":
            raise ValueError(
                "this model makes text: give LLM(runner='pooling') for vectors, or "
                "LLM(convert='classify', classifier_from_token=...) for classes"
            )
        if command == "score" or known is None or known == command:
            return
        raise ValueError(
            "this model is a classifier: use classify, score or encode"
            if known == "classify"
            else "this model makes vectors: use embed, score or encode"
        )


class _Texts:
    """Texts of a call, and the adapters that they name."""

    def __init__(self, requests: Iterable[Any], prompts: Any, loras: Loras) -> None:
        self.requests = requests
        self.prompts = prompts
        self.adapters = adapters_in(loras)


def _with_params(
    prompts: Iterable[Any], params: PoolParams, loras: Loras, cut: Row
) -> Iterable[tuple[int, Any, Row, LoRARequest | None]]:
    """Index, prompt, fields and adapter of each. Those of a list are checked at once."""
    every = each("pooling_params", params, prompts)
    adapters = each("lora_request", loras, prompts)
    texts = (
        (index, prompt, {**cut, **_fields(one)}, lora)
        for index, (prompt, one, lora) in enumerate(zip(prompts, every, adapters))
    )
    return list(texts) if is_list(prompts) else texts


def _fields(params: PoolingParams | None) -> Row:
    if params is None:
        return {}
    for name in ("step_tag_id", "returned_token_ids", "late_interaction_params", "extra_kwargs"):
        if getattr(params, name) is not None:
            raise NotImplementedError(f"PoolingParams.{name} is not supported: leave it out")
    found = {"use_activation": params.use_activation, "dimensions": params.dimensions}
    return {name: value for name, value in found.items() if value is not None}


def _texts_of(data: Any) -> list[Any]:
    return [data] if isinstance(data, str) or is_mapping(data) else list(data)


def _sides(data_1: Any, data_2: Any) -> tuple[Iterable[Any], list[Any]]:
    first, second = _texts_of(data_1), _texts_of(data_2)
    if not first or not second:
        raise ValueError("score needs at least one text on each side")
    if len(first) == 1:
        return itertools.repeat(first[0], len(second)), second
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} texts: give one to many, or as many")
    return first, second


def _check_answer(answer: Row, request: Pooled, name: str) -> None:
    error = answer.get("error")
    if error is None and answer.get("response", {}).get("status_code", 200) != 200:
        error = answer["response"]["body"]["error"]
    if error is not None:
        raise RowError(request.index, name, error["code"], error["message"])


def _floats(text: str) -> list[float]:
    return array("f", base64.b64decode(text)).tolist()


def _embedding(answer: Row) -> Any:
    return answer["response"]["body"]["data"][0]["embedding"]


def _vector_of(answer: Row) -> list[float]:
    found = _embedding(answer)
    if not isinstance(found, str):
        raise ValueError("this model makes several vectors of a text: encode with token_embed")
    return _floats(found)


def _vectors_of(answer: Row) -> Any:
    found = _embedding(answer)
    return _floats(found) if isinstance(found, str) else [_floats(one) for one in found]


def _probs_of(answer: Row) -> list[float]:
    if is_list(answer["label"]):
        raise ValueError("this model classifies tokens: encode with token_classify")
    return float32(answer["probs"])


def _rows_of_probs(answer: Row) -> Any:
    found = answer["probs"]
    return [float32(one) for one in found] if is_list(answer["label"]) else float32(found)


def _score_of(answer: Row) -> float:
    return float32([answer["response"]["body"]["data"][0]["score"]])[0]


def _task_of(config: Mapping[str, Any] | None) -> str:
    name = class_of(config)
    by_token = name.endswith(("ForTokenClassification", "ForProcessRewardModel"))
    by_token = by_token or name == "InternLM2ForRewardModel"
    return "token_classify" if by_token else "classify"


def _tensor(values: Any) -> Any:
    """Values as a tensor of torch, where it is installed, else as an array of NumPy."""
    try:
        torch = library("torch")
        return torch.tensor(values, dtype=torch.float32)
    except ImportError:
        pass
    try:
        numpy = library("numpy")
    except ImportError:
        raise ImportError("encode gives tensors: install torch or numpy, or use embed") from None
    return numpy.array(values, dtype=numpy.float32)
