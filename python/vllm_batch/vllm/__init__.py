"""vLLM's names, for a script that was written for it: `import vllm_batch.vllm as vllm`.

`vllm_batch.as_vllm` runs a script that says `import vllm`, unchanged.
"""

from .. import (
    LLM,
    AsyncEngineArgs,
    AsyncLLMEngine,
    BeamSearchParams,
    ClassificationOutput,
    ClassificationRequestOutput,
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    EngineArgs,
    LLMEngine,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    PromptType,
    RequestOutput,
    SamplingParams,
    ScoringOutput,
    ScoringRequestOutput,
    TextPrompt,
    TokensPrompt,
)
from .modules import install_below

__all__ = [
    "AsyncEngineArgs",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "LLM",
    "LLMEngine",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RequestOutput",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "TextPrompt",
    "TokensPrompt",
]

#: The version of vLLM whose names these are.
__version__ = "0.32.0"
__version_tuple__ = (0, 32, 0)

install_below(__name__)
