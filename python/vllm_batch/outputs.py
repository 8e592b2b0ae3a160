"""What the methods of `LLM` return, with vLLM's names and types."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from .logprobs import LogprobsOnePosition, PromptLogprobs, SampleLogprobs
from .lora import LoRARequest


@dataclass(frozen=True)
class RequestError:
    """Why a request has no answer: an error code of docs/OUTPUT.md, and a sentence."""

    code: str
    message: str
    retryable: bool = False


@dataclass
class CompletionOutput:
    """An answer.

    `token_ids`: with the token that ended it.
    `finish_reason`: `stop`, `length`, or `error` where `errors="return"` asked for it.
    `stop_reason`: the text or token id that stopped it, None for the model's end token.
    `logprobs`, `cumulative_logprob`: None unless they were asked for.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: SampleLogprobs | None = None
    routed_experts: Any = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: LoRARequest | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """The answers to a prompt.

    `prompt`: its text; None of token ids and of chats. `prompt_token_ids`: as it was run.
    `prompt_logprobs`: None unless asked for; the first entry is None.
    `num_cached_tokens`: None, as it depends on other prompts.
    `error`: with `errors="return"`, why there is no answer.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    prompt_logprobs: PromptLogprobs | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: Any = None
    lora_request: LoRARequest | None = None
    encoder_prompt: str | None = None
    encoder_prompt_token_ids: list[int] | None = None
    num_cached_tokens: int | None = None
    error: RequestError | None = None


@dataclass
class BeamSearchSequence:
    """A completion that a beam search found. `tokens` and `text` begin with the prompt's."""

    orig_prompt: Any
    tokens: list[int]
    logprobs: list[LogprobsOnePosition]
    lora_request: LoRARequest | None = None
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class BeamSearchOutput:
    """The completions of a prompt, best first."""

    sequences: list[BeamSearchSequence]


@dataclass
class PoolingOutput:
    """What `LLM.encode` gives: numbers of 32 bits, as a tensor of torch where torch is installed,
    else as an array of NumPy. Its shape is (values,), or (tokens, values) of tasks over tokens."""

    data: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PoolingOutput) and bool((self.data == other.data).all())


@dataclass
class EmbeddingOutput:
    """A vector of a text."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass
class ClassificationOutput:
    """The numbers of all classes, in their order."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass
class ScoringOutput:
    """How well two texts match."""

    score: float


Output = TypeVar("Output")


@dataclass
class PoolingRequestOutput(Generic[Output]):
    """What was made of a text. `num_cached_tokens` is None, as it depends on other texts."""

    request_id: str
    outputs: Output
    # None of a text: the program does not say them.
    known_token_ids: list[int] | None = field(repr=False)
    num_cached_tokens: int | None = None
    finished: bool = True
    error: RequestError | None = None

    @property
    def prompt_token_ids(self) -> list[int]:
        """Token ids of the prompt. Raises NotImplementedError of a text."""
        if self.known_token_ids is None:
            raise NotImplementedError(
                "prompt_token_ids are not in answers of pooling models: tokenize with "
                "llm.get_tokenizer(), and give the ids as the prompt"
            )
        return self.known_token_ids


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """A vector: `outputs.embedding`."""


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """Classes: `outputs.probs`."""


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """A score: `outputs.score`."""
