"""Flags of the program as keywords. Made by scripts/python-flags: do not edit."""

from __future__ import annotations

from os import PathLike
from typing import Any, Literal, Mapping, Sequence, TypedDict, Union

Path = Union[str, "PathLike[str]"]


class SharedFlags(TypedDict, total=False):
    """Of every command."""

    model: Path | None
    mmproj: Path | None
    tokenizer: Path | None
    revision: str | None
    download_dir: Path | None
    load_format: Literal["auto", "dummy"] | None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None
    hf_overrides: str | Mapping[str, Any] | None
    max_model_len: int | None
    split: str | None
    subset: str | None
    format: Literal["auto", "jsonl", "csv", "tsv", "txt", "parquet"] | None
    encoding: str | None
    delimiter: str | None
    no_header: bool | None
    row_params: str | None
    chat_template_kwargs: str | Mapping[str, Any] | None
    chat_template: Path | None
    allow_special: bool | None
    allow_empty_prompts: bool | None
    image_column: str | None
    audio_column: str | None
    allowed_local_media_path: Path | None
    allow_media_urls: bool | None
    allowed_media_domains: str | Sequence[str] | None
    limit_mm_per_prompt: str | Mapping[str, Any] | None
    max_audio_clip_s: float | None
    pages: str | None
    longest_side: int | None
    dpi: int | None
    page_timeout: float | None
    on_resume_media: Literal["refetch", "trust"] | None
    limit: int | None
    sample: int | None
    sample_seed: int | None
    shard: str | None
    on_bad_row: Literal["row", "fail"] | None
    overflow: Literal["error", "truncate-left", "truncate-right"] | None
    lora_modules: str | Sequence[str] | None
    lora_merge: str | None
    default_mm_loras: str | Mapping[str, Any] | None
    max_loras: int | None
    max_lora_rank: int | None
    enable_lora: bool | None
    out_field: str | None
    output_format: Literal["auto", "simple", "full", "openai"] | None
    reasoning_parser: str | None
    tool_call_parser: str | None
    served_model_name: str | None
    stats: Path | None
    overwrite: bool | None
    retry_failed: bool | None
    errors: Path | None
    journal: Path | None
    work_dir: Path | None
    journal_interval: int | None
    take_over: bool | None
    max_errors: int | str | None
    truncate_prompt_tokens: int | None
    device: str | None
    data_parallel_size: int | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    quantization: Literal["fp8", "int8"] | None
    threads: int | None
    cpu_isa: Literal[
        "avx512", "avx512-bf16", "amx", "amx-twin", "avx2", "neon", "neon-bf16", "portable"
    ] | None
    prefill_kernel: Literal["mma-sync", "wgmma"] | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    scheduling_policy: Literal["fcfs", "priority"] | None
    block_size: int | None
    kv_cache_dtype: Literal["auto", "fp8"] | None
    kv_cache_memory_bytes: int | str | None
    kv_offloading_size: float | None
    mm_processor_cache_gb: float | None
    num_gpu_blocks_override: int | None
    gpu_memory_utilization: float | None
    enable_prefix_caching: bool | None


class RunFlags(SharedFlags, total=False):
    """Of `vllm-batch run`."""

    prompt_column: str | None
    template: str | None
    chat: bool | None
    system_prompt: str | None
    last_assistant: Literal["drop", "continue", "error"] | None
    loglikelihood: Literal["choices", "text"] | None
    prompt: str | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: str | Sequence[int] | None
    seed: int | None
    n: int | None
    beam_width: int | None
    length_penalty: float | None
    logprobs: int | None
    prompt_logprobs: int | None
    prompt_logprobs_last: int | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    ignore_eos: bool | None
    skip_special_tokens: bool | None
    include_stop_str_in_output: bool | None
    logit_bias: str | Mapping[int, float] | Sequence[str] | None
    allowed_token_ids: str | Sequence[int] | None
    bad_words: str | Sequence[str] | None
    truncation_side: Literal["left", "right"] | None
    thinking_token_budget: int | None
    language: str | None
    translate: bool | None
    return_timestamps: bool | None
    generation_config: Path | None
    structured_outputs: Mapping[str, Any]
    enforce_eager: bool | None
    language_model_only: bool | None
    speculative_config: str | Mapping[str, Any] | None


class EmbedFlags(SharedFlags, total=False):
    """Of `vllm-batch embed`."""

    prompt_column: str | None
    template: str | None
    chat: bool | None
    system_prompt: str | None
    last_assistant: Literal["drop", "continue", "error"] | None
    pooling_type: Literal[
        "CLS", "MEAN", "LAST", "MAX", "MEAN_SQRT_LEN", "WEIGHTEDMEAN", "ALL"
    ] | None
    normalize: bool | None
    dimensions: int | None
    sparse: bool | None
    encoding_format: Literal["float", "base64"] | None
    prompt_name: str | None


class ClassifyFlags(SharedFlags, total=False):
    """Of `vllm-batch classify`."""

    prompt_column: str | None
    template: str | None
    chat: bool | None
    system_prompt: str | None
    last_assistant: Literal["drop", "continue", "error"] | None
    use_activation: bool | None
    classifier_from_token: str | None


class RewardFlags(SharedFlags, total=False):
    """Of `vllm-batch reward`."""

    prompt_column: str | None
    template: str | None
    chat: bool | None
    system_prompt: str | None
    last_assistant: Literal["drop", "continue", "error"] | None
    use_activation: bool | None
    classifier_from_token: str | None


class ScoreFlags(SharedFlags, total=False):
    """Of `vllm-batch score`."""

    max_tokens_per_query: int | None
    max_tokens_per_doc: int | None
    document_prompt_name: str | None
    pooling_type: Literal[
        "CLS", "MEAN", "LAST", "MAX", "MEAN_SQRT_LEN", "WEIGHTEDMEAN", "ALL"
    ] | None
    normalize: bool | None
    dimensions: int | None
    sparse: bool | None
    prompt_name: str | None
    use_activation: bool | None
    classifier_from_token: str | None


class RerankFlags(SharedFlags, total=False):
    """Of `vllm-batch rerank`."""

    top_n: int | None
    max_tokens_per_query: int | None
    max_tokens_per_doc: int | None
    document_prompt_name: str | None
    pooling_type: Literal[
        "CLS", "MEAN", "LAST", "MAX", "MEAN_SQRT_LEN", "WEIGHTEDMEAN", "ALL"
    ] | None
    normalize: bool | None
    dimensions: int | None
    sparse: bool | None
    prompt_name: str | None
    use_activation: bool | None
    classifier_from_token: str | None


class FileFlags(
    RunFlags,
    EmbedFlags,
    ClassifyFlags,
    RewardFlags,
    ScoreFlags,
    RerankFlags,
    total=False,
):
    """Of any command, from file to file."""


#: Names of the flags of each command.
FLAGS: dict[str, frozenset[str]] = {
    "run": frozenset(RunFlags.__annotations__) | frozenset(SharedFlags.__annotations__),
    "embed": frozenset(EmbedFlags.__annotations__) | frozenset(SharedFlags.__annotations__),
    "classify": frozenset(ClassifyFlags.__annotations__) | frozenset(SharedFlags.__annotations__),
    "reward": frozenset(RewardFlags.__annotations__) | frozenset(SharedFlags.__annotations__),
    "score": frozenset(ScoreFlags.__annotations__) | frozenset(SharedFlags.__annotations__),
    "rerank": frozenset(RerankFlags.__annotations__) | frozenset(SharedFlags.__annotations__),
}
