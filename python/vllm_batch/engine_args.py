"""`EngineArgs`: vLLM's arguments of an engine, and the program's flags that they are."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from .exceptions import VLLMValidationError
from .flags import FLAGS
from .kinds import is_list, mapping_of, path_of
from .pooler_config import pooler_flags

#: Flags of the program that vLLM has not, and that are no parameters of a row.
OPTIONS = (
    "allow_media_urls",
    "allow_special",
    "audio_column",
    "chat_template_kwargs",
    "classifier_from_token",
    "cpu_isa",
    "device",
    "dpi",
    "lora_merge",
    "longest_side",
    "max_tokens_per_doc",
    "max_tokens_per_query",
    "mmproj",
    "normalize",
    "page_timeout",
    "pages",
    "pooling_type",
    "prefill_kernel",
    "prompt_name",
    "document_prompt_name",
    "sparse",
    "system_prompt",
    "threads",
)

#: Models by other names, and arguments of every `LLM`: `vllm_batch.as_vllm` sets them.
MODEL_MAP: dict[str, str] = {}
OVERRIDES: dict[str, Any] = {}

# How an argument is treated.
FLAG, NOTHING, REFUSED = "flag", "nothing", "refused"


def _flag(default: Any = None, name: str | None = None) -> Any:
    """A flag of the program, where its value is not the default."""
    return dataclasses.field(default=default, metadata={"how": FLAG, "flag": name})


def _nothing(default: Any = None) -> Any:
    """No answer depends on it."""
    return dataclasses.field(default=default, metadata={"how": NOTHING})


def _refused(default: Any, remedy: str, *also: Any) -> Any:
    """Another value than the default, or than those that mean the same, is refused."""
    metadata = {"how": REFUSED, "remedy": remedy, "also": (default, None, *also)}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass
class EngineArgs:
    """Arguments of an engine by vLLM's names, with its defaults.

    Those that a flag of the program does are that flag. Those that change no answer are taken and
    do nothing. Any other value than the default is refused by name (`flags` raises
    NotImplementedError), and so is a name that is not here (TypeError).
    `options`: flags of the program that vLLM has not, as `device` and `threads`.
    """

    model: str = _flag("Qwen/Qwen3-0.6B")
    runner: str = _nothing("auto")
    convert: str = _nothing("auto")
    tokenizer: str | None = _flag()
    revision: str | None = _flag()
    download_dir: str | None = _flag()
    load_format: str = _flag("auto")
    dtype: Any = _flag("auto")
    max_model_len: int | None = _flag()
    seed: int = _flag(0)
    hf_overrides: Any = _flag()
    quantization: str | None = _flag()
    tensor_parallel_size: int = _flag(1)
    pipeline_parallel_size: int = _flag(1)
    data_parallel_size: int = _flag(1)
    max_num_seqs: int | None = _flag()
    max_num_batched_tokens: int | None = _flag()
    block_size: int | None = _flag()
    kv_cache_dtype: str = _flag("auto")
    kv_cache_memory_bytes: int | None = _flag()
    kv_offloading_size: float | None = _flag()
    gpu_memory_utilization: float | None = _flag()
    num_gpu_blocks_override: int | None = _flag()
    enable_prefix_caching: bool | None = _flag()
    enforce_eager: bool = _flag(False)
    speculative_config: dict[str, Any] | None = _flag()
    scheduling_policy: str = _flag("fcfs")
    allowed_local_media_path: str = _flag("")
    allowed_media_domains: list[str] | None = _flag()
    limit_mm_per_prompt: dict[str, Any] | None = _flag()
    mm_processor_cache_gb: float | None = _flag()
    language_model_only: bool = _flag(False)
    chat_template: Any = _flag()
    generation_config: str = _flag("auto")
    reasoning_parser: str | None = _flag()
    served_model_name: Any = _flag()
    enable_lora: bool = _flag(False)
    max_loras: int | None = _flag()
    max_lora_rank: int | None = _flag()
    lora_modules: Any = _flag()
    default_mm_loras: dict[str, str] | None = _flag()
    override_generation_config: dict[str, Any] | None = _nothing()
    hf_token: bool | str | None = _nothing()
    trust_remote_code: bool = _nothing(False)
    disable_log_stats: bool = _nothing(True)
    enable_log_requests: bool = _nothing(False)
    disable_log_requests: bool = _nothing(True)
    log_stats: bool = _nothing(False)
    enable_expert_parallel: bool = _nothing(False)
    enable_chunked_prefill: bool | None = _nothing()
    max_num_partial_prefills: int = _nothing(1)
    max_long_partial_prefills: int = _nothing(1)
    long_prefill_token_threshold: int = _nothing(0)
    async_scheduling: bool | None = _nothing()
    stream_interval: int = _nothing(1)
    compilation_config: Any = _nothing()
    optimization_level: Any = _nothing()
    attention_config: Any = _nothing()
    attention_backend: Any = _nothing()
    distributed_executor_backend: Any = _nothing()
    disable_custom_all_reduce: bool = _nothing(False)
    disable_cascade_attn: bool = _nothing(False)
    max_parallel_loading_workers: int | None = _nothing()
    max_cpu_loras: int | None = _nothing()
    max_logprobs: int = _nothing(20)
    swap_space: float = _nothing(4)
    max_seq_len_to_capture: int = _nothing(8192)
    skip_mm_profiling: bool = _nothing(False)
    use_tqdm_on_load: bool = _nothing(True)
    profiler_config: Any = _nothing()
    structured_outputs_config: Any = _refused(None, "leave it out: one engine makes all forms", {})
    tokenizer_mode: str = _refused("auto", "leave it out", "hf", "slow")
    tokenizer_revision: str | None = _refused(None, "give revision, which is the tokenizer's too")
    skip_tokenizer_init: bool = _refused(False, "leave it out, and give token ids all the same")
    cpu_offload_gb: float = _refused(0, "leave it out, or quantize the weights")
    offload_group_size: int = _refused(0, "leave it out")
    logits_processors: Any = _refused(None, "give logit_bias, bad_words or structured_outputs", [])
    mm_processor_kwargs: Any = _refused(None, "leave it out", {})
    pooler_config: Any = _nothing()
    quantization_config: Any = _refused(None, "leave it out: the checkpoint's own is read", {})
    kv_transfer_config: Any = _refused(None, "leave it out")
    enable_prompt_embeds: bool = _refused(False, "give texts or token ids")
    enable_return_routed_experts: bool = _refused(False, "leave it out")
    return_sampling_mask: bool = _refused(False, "leave it out")
    enable_sleep_mode: bool = _refused(False, "close the LLM, and make another")
    model_impl: str = _refused("auto", "leave it out", "vllm")
    config_format: str = _refused("auto", "leave it out", "hf")
    worker_cls: str = _refused("auto", "leave it out")
    worker_extension_cls: str = _refused("", "leave it out")
    io_processor_plugin: str | None = _refused(None, "leave it out")
    spec_method: str | None = _refused(None, "give speculative_config={'method': ...}")
    spec_model: str | None = _refused(None, "give speculative_config={'model': ...}")
    spec_tokens: int | None = _refused(None, "give it in speculative_config")
    options: dict[str, Any] = dataclasses.field(
        default_factory=dict[str, Any], metadata={"how": "options"}
    )

    def __post_init__(self) -> None:
        self.model = model_name(self.model)
        for name, value in OVERRIDES.items():
            if name in OPTIONS:
                self.options = {**self.options, name: value}
            elif hasattr(self, name):
                setattr(self, name, value)
            else:
                raise TypeError(f"LLM() has no argument {name!r}")

    def flags(self, command: str) -> dict[str, Any]:
        """The keywords of `Engine` for a command.

        Raises NotImplementedError for an argument that cannot be done, and VLLMValidationError for
        one that the command has no use for.
        """
        found: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            how, value = field.metadata["how"], getattr(self, field.name)
            if how == REFUSED and not any(value is one or value == one for one in _same(field)):
                remedy = field.metadata["remedy"]
                raise NotImplementedError(f"LLM({field.name}=...) is not supported: {remedy}")
            if how == FLAG and field.name != "model" and value != field.default:
                found[field.name] = _value_of(field.name, value)
        if found.get("allowed_media_domains") is not None:
            found["allow_media_urls"] = True
        found.update(self.options)
        found.update(pooler_flags(self.pooler_config, command))
        # A seed draws nothing where nothing is sampled, and the same of other flags of generation.
        for name in _OF_GENERATION - FLAGS[command]:
            found.pop(name, None)
        unknown = sorted(name for name in found if name not in FLAGS[command])
        if unknown:
            raise VLLMValidationError(f"{unknown[0]} is no flag of `vllm-batch {command}`")
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def of(cls, model: Any, arguments: Mapping[str, Any]) -> EngineArgs:
        """Arguments from keywords. Those that are flags of the program alone become `options`.

        Raises TypeError for a name that is neither.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        options: dict[str, Any] = {**mapping_of(arguments.get("options"))}
        given: dict[str, Any] = {}
        for name, value in arguments.items():
            if name in names:
                given[name] = value
            elif name in OPTIONS:
                options[name] = value
            else:
                own = any(name in flags for flags in FLAGS.values())
                remedy = ": it is a parameter of prompts or of files" if own else ""
                raise TypeError(f"LLM() has no argument {name!r}{remedy}")
        given["options"] = options
        return cls(model=path_of(model), **given)

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Adds an option for each argument, as `--max-model-len`."""
        for field in dataclasses.fields(EngineArgs):
            if field.name == "options":
                continue
            name = "--" + field.name.replace("_", "-")
            if str(field.type).startswith("bool"):
                action = argparse.BooleanOptionalAction
                parser.add_argument(name, action=action, default=field.default)
            else:
                parser.add_argument(name, type=_reader_of(str(field.type)), default=field.default)
        for name, kind in (("device", str), ("threads", int)):
            parser.add_argument(f"--{name}", type=kind, default=None)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        """Arguments from options that were parsed; other options are passed over."""
        names = {field.name for field in dataclasses.fields(cls)} - {"options", "model"}
        given = {name: value for name, value in vars(args).items() if name in names}
        own = {name: getattr(args, name, None) for name in ("device", "threads")}
        return cls.of(args.model, {**given, **own})


def model_name(model: Any) -> str:
    """Where a model is, by the name that a script has for it."""
    name = path_of(model)
    if name in MODEL_MAP.values():
        return name
    return MODEL_MAP.get(name, MODEL_MAP.get("*", name))


class AsyncEngineArgs(EngineArgs):
    """Arguments of `AsyncLLM`."""


# Flags that commands without sampling have not.
_OF_GENERATION = frozenset(
    ("seed", "generation_config", "enforce_eager", "speculative_config", "language_model_only")
)


def _same(field: Any) -> tuple[Any, ...]:
    also: tuple[Any, ...] = field.metadata["also"]
    return also


def _value_of(name: str, value: Any) -> Any:
    if name == "dtype":
        word = str(value).rpartition(".")[2]
        return {"half": "float16", "float": "float32"}.get(word, word)
    if name == "load_format" and value in ("safetensors", "hf", "gguf", "pt"):
        # How weights are stored is seen.
        return None
    if name == "quantization" and value not in ("int8", "fp8", None):
        # The checkpoint's own method, which is read from its files.
        return None
    if name == "served_model_name" and is_list(value):
        return value[0] if value else None
    if name == "hf_overrides":
        if callable(value):
            message = (
                "LLM(hf_overrides=...) takes a mapping: a function cannot be sent to a process"
            )
            raise NotImplementedError(message)
        return value or None
    nothing: tuple[Any, ...] = ("", {}, [])
    return None if value in nothing else value


def _reader_of(kind: str) -> Any:
    plain = kind.partition(" ")[0]
    if plain in ("int", "float", "str"):
        return {"int": int, "float": float, "str": str}[plain]
    return _json_or_text


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


class FlexibleArgumentParser(argparse.ArgumentParser):
    """A parser that takes `--max_tokens` for `--max-tokens`, as vLLM's."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args([_with_dashes(word) for word in words], namespace)


def _with_dashes(word: str) -> str:
    name, sign, value = word.partition("=")
    return name.replace("_", "-") + sign + value if name.startswith("--") else word
