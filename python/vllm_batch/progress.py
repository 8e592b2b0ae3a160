"""The bar of `use_tqdm`, as vLLM shows it: tqdm's, where tqdm is installed."""

from __future__ import annotations

import logging
from typing import Any, Callable, Union

from .kinds import is_sequence, library
from .outputs import RequestOutput

LOGGER = logging.getLogger("vllm_batch")

UseTqdm = Union[bool, Callable[..., Any]]


class Progress:
    """A bar, or nothing. `total` is None of prompts whose number is not known."""

    def __init__(self, use_tqdm: UseTqdm, prompts: Any) -> None:
        self._bar: Any = None
        self._tokens = [0, 0]
        total = len(prompts) if is_sequence(prompts) else None
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


class FileProgress:
    """A bar of a job from file to file, by the program's events. Without tqdm the logger hears of
    it."""

    def __init__(self, use_tqdm: bool, output: str) -> None:
        self._make = _tqdm() if use_tqdm else None
        self._output = output
        self._bar: Any = None

    def __enter__(self) -> FileProgress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def heard(self, event: dict[str, Any]) -> None:
        """An event of `--progress json`."""
        if event["event"] == "warning":
            LOGGER.warning("%s", event["message"])
        if event["event"] != "progress":
            return
        done, total = event["rows_done"], event["rows_total"]
        speed = event["output_tokens_per_second"] or 0.0
        if self._make is None:
            LOGGER.info("%s: %s of %s rows, %.0f tokens/s", self._output, done, total, speed)
            return
        if self._bar is None:
            self._bar = self._make(total=total, desc=self._output, unit="row", dynamic_ncols=True)
        self._bar.total = total
        failed = event["rows_failed"]
        self._bar.set_postfix_str(
            f"{speed:.0f} tokens/s" + (f", {failed} failed" if failed else "")
        )
        self._bar.update(done - self._bar.n)


def _speeds(prompts: float, answers: float) -> str:
    return f"est. speed input: {prompts:.2f} toks/s, output: {answers:.2f} toks/s"


def _tqdm() -> Callable[..., Any] | None:
    try:
        found: Callable[..., Any] = library("tqdm.auto").tqdm
    except ImportError:
        return None
    return found
