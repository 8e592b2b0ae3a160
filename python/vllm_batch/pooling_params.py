"""`PoolingParams`: how a vector, classes or scores are made of a text."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any


@dataclass
class PoolingParams:
    """Parameters of `LLM.embed`, `classify`, `score` and `encode`.

    `use_activation`: normalized vectors, or probabilities; None is what the model says.
    `dimensions`: the first so many values of a vector, of a model that was trained for it.
    The others are vLLM's, and refused by name when they are used.
    """

    use_activation: bool | None = None
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
    task: str | None = None
    requires_token_ids: bool = False
    skip_reading_prefix_cache: bool | None = None
    late_interaction_params: Any = None
    extra_kwargs: dict[str, Any] | None = None

    def clone(self) -> PoolingParams:
        """A copy that shares nothing."""
        return copy.deepcopy(self)
