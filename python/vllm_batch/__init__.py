"""vllm-batch from Python: a process that loads a model once, and prompts or rows through its pipes.

    from vllm_batch import LLM, SamplingParams

    llm = LLM(model="./model")
    outputs = llm.generate(["2+3="], SamplingParams(temperature=0))
    print(outputs[0].outputs[0].text)

`LLM` and what is around it have vLLM's names. `Engine` takes rows as the program does.
`vllm_batch.ray` is for Ray Data, `vllm_batch.lm_eval` for lm-evaluation-harness.
docs/PYTHON.md has tasks, docs/PROTOCOL.md what goes through the pipes.
"""

from importlib import metadata as _metadata

from .async_llm import AsyncLLM, AsyncLLMEngine
from .command import find_binary
from .engine import Engine
from .engine_args import AsyncEngineArgs, EngineArgs
from .exceptions import RowError, VLLMValidationError
from .files import FileError, RunSummary, run_file
from .inputs import PromptType, TextPrompt, TokensPrompt
from .llm import LLM
from .llm_engine import LLMEngine
from .logprobs import Logprob
from .lora import LoRARequest
from .outputs import (
    BeamSearchOutput,
    ClassificationOutput,
    ClassificationRequestOutput,
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from .pooling_params import PoolingParams
from .process import EngineError
from .sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
from .structured_outputs import GuidedDecodingParams, StructuredOutputsParams

try:
    __version__ = _metadata.version("vllm-batch")
except _metadata.PackageNotFoundError:
    # A checkout, which is not installed.
    __version__ = "0+unknown"

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "Engine",
    "EngineArgs",
    "EngineError",
    "FileError",
    "GuidedDecodingParams",
    "LLMEngine",
    "LoRARequest",
    "Logprob",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RequestOutput",
    "RequestOutputKind",
    "RowError",
    "RunSummary",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "VLLMValidationError",
    "__version__",
    "find_binary",
    "run_file",
]
