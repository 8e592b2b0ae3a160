"""Arguments of `LLM` as keywords. Made by scripts/python-flags: do not edit."""

from __future__ import annotations

from typing import Any, Literal, Mapping, TypedDict

from .flags import Path


class EngineOptions(TypedDict, total=False):
    """vLLM's names, then flags of the program that vLLM has not."""

    runner: str
    convert: str
    tokenizer: str | None
    revision: str | None
    download_dir: str | None
    load_format: str
    dtype: Any
    max_model_len: int | None
    seed: int
    hf_overrides: Any
    quantization: str | None
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    block_size: int | None
    kv_cache_dtype: str
    kv_cache_memory_bytes: int | None
    kv_offloading_size: float | None
    gpu_memory_utilization: float | None
    num_gpu_blocks_override: int | None
    enable_prefix_caching: bool | None
    enforce_eager: bool
    speculative_config: dict[str, Any] | None
    scheduling_policy: str
    allowed_local_media_path: str
    allowed_media_domains: list[str] | None
    limit_mm_per_prompt: dict[str, Any] | None
    mm_processor_cache_gb: float | None
    language_model_only: bool
    chat_template: Any
    generation_config: str
    reasoning_parser: str | None
    served_model_name: Any
    enable_lora: bool
    max_loras: int | None
    max_lora_rank: int | None
    lora_modules: Any
    default_mm_loras: dict[str, str] | None
    override_generation_config: dict[str, Any] | None
    hf_token: bool | str | None
    trust_remote_code: bool
    disable_log_stats: bool
    enable_log_requests: bool
    disable_log_requests: bool
    log_stats: bool
    enable_expert_parallel: bool
    enable_chunked_prefill: bool | None
    max_num_partial_prefills: int
    max_long_partial_prefills: int
    long_prefill_token_threshold: int
    async_scheduling: bool | None
    stream_interval: int
    compilation_config: Any
    optimization_level: Any
    attention_config: Any
    attention_backend: Any
    distributed_executor_backend: Any
    disable_custom_all_reduce: bool
    disable_cascade_attn: bool
    max_parallel_loading_workers: int | None
    max_cpu_loras: int | None
    max_logprobs: int
    swap_space: float
    max_seq_len_to_capture: int
    skip_mm_profiling: bool
    use_tqdm_on_load: bool
    profiler_config: Any
    structured_outputs_config: Any
    tokenizer_mode: str
    tokenizer_revision: str | None
    skip_tokenizer_init: bool
    cpu_offload_gb: float
    offload_group_size: int
    logits_processors: Any
    mm_processor_kwargs: Any
    pooler_config: Any
    quantization_config: Any
    kv_transfer_config: Any
    enable_prompt_embeds: bool
    enable_return_routed_experts: bool
    return_sampling_mask: bool
    enable_sleep_mode: bool
    model_impl: str
    config_format: str
    worker_cls: str
    worker_extension_cls: str
    io_processor_plugin: str | None
    spec_method: str | None
    spec_model: str | None
    spec_tokens: int | None
    allow_media_urls: bool | None
    allow_special: bool | None
    audio_column: str | None
    chat_template_kwargs: str | Mapping[str, Any] | None
    classifier_from_token: str | None
    cpu_isa: Literal[
        "avx512", "avx512-bf16", "amx", "amx-twin", "avx2", "neon", "neon-bf16", "portable"
    ] | None
    device: str | None
    document_prompt_name: str | None
    dpi: int | None
    longest_side: int | None
    lora_merge: str | None
    max_tokens_per_doc: int | None
    max_tokens_per_query: int | None
    mmproj: Path | None
    normalize: bool | None
    page_timeout: float | None
    pages: str | None
    pooling_type: Literal[
        "CLS", "MEAN", "LAST", "MAX", "MEAN_SQRT_LEN", "WEIGHTEDMEAN", "ALL"
    ] | None
    prefill_kernel: Literal["mma-sync", "wgmma"] | None
    prompt_name: str | None
    sparse: bool | None
    system_prompt: str | None
    threads: int | None
