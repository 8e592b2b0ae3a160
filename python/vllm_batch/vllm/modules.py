"""Modules of vLLM that scripts import, as far as their names are here."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any, Sequence

from . import pieces

# Name of a module below `vllm`, and where its names are: modules of this package, or `pieces`.
_PARTS: dict[str, dict[str, str]] = {
    "sampling_params": {
        "sampling_params": "BeamSearchParams RequestOutputKind SamplingParams SamplingType",
        "structured_outputs": "GuidedDecodingParams StructuredOutputsParams",
    },
    "pooling_params": {"pooling_params": "PoolingParams"},
    "logprobs": {"logprobs": "FlatLogprobs Logprob LogprobsOnePosition PromptLogprobs "
                 "SampleLogprobs"},
    "sequence": {"logprobs": "Logprob PromptLogprobs SampleLogprobs"},
    "exceptions": {"exceptions": "VLLMClientError VLLMError VLLMValidationError"},
    "outputs": {
        "outputs": "BeamSearchOutput ClassificationOutput ClassificationRequestOutput "
        "CompletionOutput EmbeddingOutput EmbeddingRequestOutput PoolingOutput "
        "PoolingRequestOutput RequestError RequestOutput ScoringOutput ScoringRequestOutput"
    },
    "config": {"pooler_config": "PoolerConfig"},
    "beam_search": {"outputs": "BeamSearchOutput BeamSearchSequence"},
    "lora.request": {"lora": "LoRARequest"},
    "inputs": {"inputs": "PromptType TextPrompt TokensPrompt"},
    "inputs.data": {"inputs": "PromptType TextPrompt TokensPrompt"},
    "engine.arg_utils": {"engine_args": "AsyncEngineArgs EngineArgs"},
    "engine.llm_engine": {"llm_engine": "LLMEngine"},
    "engine.async_llm_engine": {"async_llm": "AsyncLLMEngine"},
    "v1.engine.llm_engine": {"llm_engine": "LLMEngine"},
    "v1.engine.async_llm": {"async_llm": "AsyncLLM"},
    "entrypoints.llm": {"llm": "LLM"},
    "utils": {"engine_args": "FlexibleArgumentParser", "pieces": "Counter random_uuid"},
    "utils.argparse_utils": {"engine_args": "FlexibleArgumentParser"},
    "utils.counter": {"pieces": "Counter"},
    "utils.print_utils": {"pieces": "print_embeddings"},
    "utils.network_utils": {"pieces": "get_ip get_open_port"},
    "usage.usage_lib": {"pieces": "UsageContext"},
    "logger": {"pieces": "init_logger"},
    "distributed": {"pieces": "cleanup_dist_env_and_memory"},
    "transformers_utils.tokenizer": {"pieces": "get_tokenizer"},
    "multimodal.utils": {"pieces": "encode_image_url fetch_image"},
    "version": {"pieces": "__version__"},
}  # fmt: skip

_HERE = "vllm_batch.vllm"
_REMEDY = "docs/PYTHON.md says what vllm_batch has of vLLM"


def install_below(root: str) -> None:
    """Makes the modules, as `ROOT.sampling_params`."""
    for name, parts in _PARTS.items():
        _module(f"{root}.{name}", root)
        found = sys.modules[f"{root}.{name}"]
        for source, names in parts.items():
            values = pieces if source == "pieces" else _own(source)
            for one in names.split():
                setattr(found, one, getattr(values, one))


def install() -> None:
    """Makes `vllm` and its modules, so that `import vllm` is this package.

    Raises ImportError where vLLM itself was imported before.
    """
    here = sys.modules[_HERE]
    if sys.modules.get("vllm", here) is not here:
        raise ImportError("vllm was imported before: it is installed, and is not this package")
    sys.modules["vllm"] = here
    for name, module in list(sys.modules.items()):
        own = f"{_HERE}."
        if name.startswith(own) and name[len(own) :] not in ("modules", "pieces"):
            sys.modules["vllm." + name[len(own) :]] = module
    sys.meta_path.insert(0, _Refusal())


class _Refusal(importlib.abc.MetaPathFinder):
    """Says of any other module of vLLM that it is not here, also where vLLM is installed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if name.startswith("vllm."):
            raise ModuleNotFoundError(f"{name} is not supported: {_REMEDY}", name=name)
        return None


def _own(name: str) -> ModuleType:
    return importlib.import_module(f"vllm_batch.{name}")


def _module(name: str, root: str) -> None:
    """A module and those above it."""
    parent, _, last = name.rpartition(".")
    if parent != root and parent not in sys.modules:
        _module(parent, root)
    module = sys.modules.get(name)
    if module is None:
        module = sys.modules[name] = ModuleType(name)
        # It may have modules below it.
        module.__path__ = []

        def refuse(attribute: str, where: str = name) -> Any:
            raise AttributeError(f"{where} has no {attribute!r} here: {_REMEDY}")

        setattr(module, "__getattr__", refuse)  # noqa: B010
    setattr(sys.modules[parent], last, module)
