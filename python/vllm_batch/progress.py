"""The bar of `use_tqdm`, as vLLM shows it: tqdm's, where tqdm is installed."""

from __future__ import annotations

from typing import Any, Callable, Sequence, Union

from .outputs import RequestOutput

UseTqdm = Union[bool, Callable[..., Any]]


class Progress:
    """A bar, or nothing. `total` is None of prompts whose number is not known."""

    def __init__(self, use_tqdm: UseTqdm, prompts: Any) -> None:
        self._bar: Any = None
        self._tokens = [0, 0]
        total = len(prompts) if isinstance(prompts, Sequence) else None
        make = use_tqdm if callable(use_tqdm) else _tqdm() if use_tqdm else None
        if make is not None:
            self._bar = make(
                total=total,
                desc="Processed prompts",
                dynamic_ncols=True,
                postfix=_speeds(0.0, 0.0),
            )

    def finished(self, output: Any) -> None:
        """A prompt has its output."""
        bar = self._bar
        if bar is None:
            return
        number = 1
        if isinstance(output, RequestOutput):
            number = len(output.outputs)
            self._tokens[0] += len(output.prompt_token_ids or ()) * number
            self._tokens[1] += sum(len(one.token_ids) for one in output.outputs)
            elapsed = bar.format_dict["elapsed"] or 1e-9
            bar.postfix = _speeds(self._tokens[0] / elapsed, self._tokens[1] / elapsed)
        bar.update(1)

    def close(self) -> None:
        """Leaves the bar as it is."""
        if self._bar is not None:
            self._bar.close()


def _speeds(prompts: float, answers: float) -> str:
    return f"est. speed input: {prompts:.2f} toks/s, output: {answers:.2f} toks/s"


def _tqdm() -> Callable[..., Any] | None:
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return None
    found: Callable[..., Any] = tqdm
    return found
