"""`Engine`: rows through a process that has loaded a model."""

from __future__ import annotations

import os
import threading
from typing import Any, Generator, Iterable, Iterator, Mapping

from .command import COMMANDS, arguments, find_binary
from .feed import Desk, Feed
from .process import Process
from .rows import Row, rows_of

# Rows that are sent and not yet handed out: more than the program computes at once, so that it
# always has some to choose from, and few enough for memory.
MAX_PENDING = 8192


class Engine:
    """A `vllm-batch` process with a loaded model. Its rows are those of the program, byte for byte:
    a row's answer depends on the row alone, not on the rows around it or on the process.

        with Engine("./model", temperature=0, max_tokens=64) as engine:
            for row in engine.run(rows):
                ...

    `model`: folder, GGUF file or Hugging Face id.
    `command`: `run`, `embed`, `classify`, `reward`, `score` or `rerank`.
    `flags`: those of the command, with underscores: `max_tokens=64`, `device="cuda:1"`.
    `binary`: the program, where it is not this environment's.
    `env`: variables of the process, over those of this one.
    `max_pending`: most rows that are sent and not yet handed out.

    Raises EngineError where the model cannot be loaded. Several runs may be under way, of one
    thread or of many.
    """

    def __init__(
        self,
        model: Any,
        *,
        command: str = "run",
        binary: str | None = None,
        env: Mapping[str, str] | None = None,
        max_pending: int = MAX_PENDING,
        **flags: Any,
    ) -> None:
        if command not in COMMANDS:
            raise ValueError(f"no command {command!r}: one of {', '.join(COMMANDS)}")
        if not isinstance(model, (str, os.PathLike)) or not os.fspath(model):
            raise TypeError(f"model is {model!r}: give a folder, a GGUF file or a Hugging Face id")
        if isinstance(max_pending, bool) or not isinstance(max_pending, int):
            raise TypeError(f"max_pending is {max_pending!r}: give a whole number")
        if max_pending < 1:
            raise ValueError("max_pending must be at least 1")
        self._desk: Desk | None = None
        self._words = [find_binary(binary), command, f"--model={os.fspath(model)}", "--quiet"]
        self._words += ["--format=jsonl", "--unordered", "--progress=none", "--color=never"]
        self._words += arguments(flags)
        self._env = env
        self._max_pending = max_pending
        # Runs that have begun and not ended.
        self._guard = threading.RLock()
        self._feeds: list[Feed] = []
        self._closed = False
        self._start()

    @property
    def pid(self) -> int | None:
        """The process's number; None where it has ended."""
        desk = self._desk
        return desk.process.pid if desk is not None and desk.process.is_alive() else None

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output, in tokens."""
        return int(self._start().process.ready["max_model_len"])

    @property
    def version(self) -> str:
        """Of the program."""
        return str(self._start().process.ready["version"])

    def run(
        self, rows: Iterable[str | Mapping[str, Any]] | Any, *, ordered: bool = True
    ) -> Generator[Row, None, None]:
        """Answers rows. They are read on another thread, as far ahead as `max_pending` says.

        `rows`: mappings as docs/ROWS.md has them, or texts; or a frame of pandas or polars, or an
        Arrow table, whose records are the rows. A row without `id` gets its index. NaN is null.
        `ordered`: in the order of the rows; else each as soon as it has finished.

        Yields the rows with the program's fields behind their own. A row that cannot be answered
        has `error`. Raises EngineError where the process ends before its rows; the next call
        starts another one. Raises what reading `rows` raises, and TypeError at once for a text or a
        mapping in the place of rows.

        A run may begin while another is not read to its end, in this thread or another: both are
        answered, the rows that were sent before first. A run that is left before its end, and is
        the only one, ends the process, as its rows are still being computed.
        """
        if self._closed:
            raise ValueError("the engine is closed")
        return self._answers(rows_of(rows), ordered)

    def close(self) -> None:
        """Ends the process. Raises EngineError where it did not end well."""
        self._closed = True
        desk, self._desk = self._desk, None
        if desk is None:
            return
        if self._feeds:
            desk.process.kill()
        else:
            desk.process.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self._kill()
            self._closed = True

    def __del__(self) -> None:
        if getattr(self, "_desk", None) is not None:
            self._kill()

    def _start(self) -> Desk:
        with self._guard:
            if self._closed:
                raise ValueError("the engine is closed")
            if self._desk is None:
                self._desk = Desk(Process(self._words, self._env))
            return self._desk

    def _kill(self) -> None:
        desk, self._desk = self._desk, None
        if desk is not None:
            desk.process.kill()

    def _answers(self, rows: Iterable[Any], ordered: bool) -> Generator[Row, None, None]:
        feed = self._begin(rows)
        complete = False
        try:
            feed.start()
            yield from _in_order(feed) if ordered else _as_finished(feed)
            feed.join()
            complete = True
        finally:
            self._end(feed, complete)

    def _begin(self, rows: Iterable[Any]) -> Feed:
        desk = self._start()
        feed = Feed(desk, rows, self._max_pending)
        with self._guard:
            self._feeds.append(feed)
        desk.open(feed)
        return feed

    def _end(self, feed: Feed, complete: bool) -> None:
        with self._guard:
            self._feeds.remove(feed)
            is_current = feed.desk is self._desk
            # Other runs need the process, if it is there.
            is_last = all(other.desk is not feed.desk for other in self._feeds)
            is_in_vain = not complete and (is_last or not feed.desk.process.is_alive())
            if is_current and is_in_vain:
                self._kill()
        feed.desk.stop(feed)


def _as_finished(feed: Feed) -> Iterator[Row]:
    for _, answer in feed.answers():
        feed.desk.handed_out(feed)
        yield answer


def _in_order(feed: Feed) -> Iterator[Row]:
    waiting: dict[int, Row] = {}
    next_index = 0
    for index, answer in feed.answers():
        waiting[index] = answer
        while next_index in waiting:
            feed.desk.handed_out(feed)
            yield waiting.pop(next_index)
            next_index += 1
