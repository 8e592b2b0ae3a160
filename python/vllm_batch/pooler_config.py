"""`PoolerConfig`: how vLLM is told to make vectors and classes of states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .exceptions import VLLMValidationError
from .kinds import is_mapping

POOLINGS = ("CLS", "MEAN", "LAST", "ALL")


@dataclass
class PoolerConfig:
    """vLLM's arguments of a pooler. `task`: what is asked for says it. `pooling_type`,
    `seq_pooling_type`, `tok_pooling_type`: CLS, MEAN, LAST or ALL. `use_activation`: normalized
    vectors, or probabilities. The others are refused where they are given."""

    task: str | None = None
    pooling_type: str | None = None
    seq_pooling_type: str | None = None
    tok_pooling_type: str | None = None
    use_activation: bool | None = None
    enable_flash_late_interaction: bool = True
    dimensions: int | None = None
    enable_chunked_processing: bool = False
    max_embed_len: int | None = None
    logit_mean: float | None = None
    logit_sigma: float | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None

    def __post_init__(self) -> None:
        for name in ("max_embed_len", "logit_mean", "logit_sigma", "step_tag_id"):
            if getattr(self, name) is not None:
                raise NotImplementedError(f"PoolerConfig.{name} is not supported: leave it out")
        if self.enable_chunked_processing or self.returned_token_ids is not None:
            raise NotImplementedError("PoolerConfig: long texts in parts, and parts of classes")


def pooler_flags(config: Any, command: str) -> dict[str, Any]:
    """Flags of the program that say the same. `config`: a `PoolerConfig` or its fields."""
    if config is None:
        return {}
    found = PoolerConfig(**config) if is_mapping(config) else config
    if not isinstance(found, PoolerConfig):
        raise TypeError(f"pooler_config is a {type(config).__name__}: give a PoolerConfig")
    flags: dict[str, Any] = {}
    pooling = found.pooling_type or found.seq_pooling_type or found.tok_pooling_type
    if pooling is not None and pooling not in POOLINGS:
        raise VLLMValidationError(f"PoolerConfig.pooling_type is {pooling!r}: one of {POOLINGS}")
    if command == "classify":
        flags["use_activation"] = found.use_activation
    elif command in ("embed", "score"):
        flags = {"pooling_type": pooling, "normalize": found.use_activation}
        if command == "score" and found.task == "token_embed":
            # Late interaction, of a vector for each token.
            flags["pooling_type"] = "ALL"
        if command == "embed":
            flags["dimensions"] = found.dimensions
    return {name: value for name, value in flags.items() if value is not None}
