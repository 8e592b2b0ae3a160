"""Log-probabilities as vLLM's objects: for each position a dict from token id to `Logprob`."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Union, overload


@dataclass
class Logprob:
    """The log-probability of a token at a position.

    `rank`: its place among all tokens there, from 1.
    `decoded_token`: its text.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


LogprobsOnePosition = Dict[int, Logprob]


class FlatLogprobs(Sequence[Optional[LogprobsOnePosition]]):
    """Log-probabilities of all positions in a few lists, which `SamplingParams.flat_logprobs` asks
    for: many small objects cost time. It is read as a list of dicts."""

    def __init__(self) -> None:
        self.start_indices: list[int] = []
        self.end_indices: list[int] = []
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.ranks: list[int | None] = []
        self.decoded_tokens: list[str | None] = []

    def append(self, position: LogprobsOnePosition | None) -> None:
        """Adds a position."""
        self.start_indices.append(len(self.logprobs))
        for token_id, logprob in (position or {}).items():
            self.token_ids.append(token_id)
            self.logprobs.append(logprob.logprob)
            self.ranks.append(logprob.rank)
            self.decoded_tokens.append(logprob.decoded_token)
        self.end_indices.append(len(self.logprobs))

    def extend(self, positions: Iterable[LogprobsOnePosition | None]) -> None:
        """Adds positions."""
        for position in positions:
            self.append(position)

    def __len__(self) -> int:
        return len(self.start_indices)

    @overload
    def __getitem__(self, index: int) -> LogprobsOnePosition: ...
    @overload
    def __getitem__(self, index: slice) -> FlatLogprobs: ...
    def __getitem__(self, index: int | slice) -> LogprobsOnePosition | FlatLogprobs:
        if isinstance(index, slice):
            part = FlatLogprobs()
            part.extend(self[position] for position in range(*index.indices(len(self))))
            return part
        entries = range(self.start_indices[index], self.end_indices[index])
        return {
            self.token_ids[i]: Logprob(self.logprobs[i], self.ranks[i], self.decoded_tokens[i])
            for i in entries
        }

    def __iter__(self) -> Iterator[LogprobsOnePosition]:
        return (self[position] for position in range(len(self)))


SampleLogprobs = Union[List[LogprobsOnePosition], FlatLogprobs]
PromptLogprobs = Union[List[Optional[LogprobsOnePosition]], FlatLogprobs]


def float32(values: Iterable[float]) -> list[float]:
    """Numbers of the output, each the shortest text of 32 bits, as a tensor's `tolist` has them."""
    return array("f", values).tolist()


def position_of(entry: Any) -> LogprobsOnePosition | None:
    """A position of the output: the token that is there, then the likeliest ones with their ranks.
    None: nothing is known of it, as of a prompt's first token."""
    if entry is None:
        return None
    top = entry["top_logprobs"]
    found = {entry["token_id"]: Logprob(entry["logprob"], entry["rank"], entry["token"])}
    for rank, other in enumerate(top, 1):
        found[other["token_id"]] = Logprob(other["logprob"], rank, other["token"])
    for logprob, value in zip(found.values(), float32(one.logprob for one in found.values())):
        logprob.logprob = value
    return found
