"""`Engine`: rows through a process that has loaded a model."""

from __future__ import annotations

import os
import threading
from typing import Any, Generator, Iterable, Iterator, Mapping, Sequence

from .command import COMMANDS, arguments, find_binary
from .feed import Desk, Feed
from .frames import BATCH_ROWS, columns_of, is_dataset, records_of, with_answers
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
        out_field = flags.get("out_field")
        self._command = (command, None if out_field is None else str(out_field))
        self._words = [find_binary(binary), command, f"--model={os.fspath(model)}", "--quiet"]
        self._words += ["--format=jsonl", "--unordered", "--progress=none", "--color=never"]
        self._words += arguments(flags)
        self._env = env
        self._max_pending = max_pending
        self._prepare()
        self._start()

    def _prepare(self) -> None:
        self._desk: Desk | None = None
        # Runs that have begun and not ended.
        self._guard = threading.RLock()
        self._feeds: list[Feed] = []
        self._closed = False

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

    def run_frame(self, frame: Any) -> Any:
        """Answers the rows of a frame, and returns it with the columns of the answers.

        `frame`: a DataFrame of pandas or polars, an Arrow table, or a `Dataset` of datasets; of its
        `IterableDataset` the answers are computed as they are read. What comes back is of the same
        kind. Columns keep what they have; one with a name of the program's is `input_NAME`.

        Raises as `run` does, and TypeError for what is no frame.
        """
        if is_dataset(frame) and not hasattr(frame, "num_rows"):
            options = {"batched": True, "batch_size": BATCH_ROWS, "with_indices": True}
            return frame.map(self.batch, **options)
        columns_of(frame)
        return with_answers(frame, list(self.run(frame)), *self._command)

    def batch(self, batch: Any, indices: Sequence[int] | None = None) -> Any:
        """Answers a batch, for `Dataset.map(engine.batch, batched=True, with_indices=True)`.

        `batch`: lists by column, or a frame, as `with_format("arrow")` gives. What comes back is of
        the same kind; in lists `error` is a text, and counts of tokens are columns.
        `indices`: name rows that have no column `id`.

        Raises ValueError where rows have no names: answers would depend on the size of batches.
        """
        names = columns_of(batch)
        if "id" not in names and indices is None:
            raise ValueError("rows have no column `id`: give with_indices=True")
        rows = records_of(batch) if isinstance(batch, Mapping) else rows_of(batch)
        if "id" not in names:
            rows = ({"id": index, **row} for index, row in zip(indices or (), rows))
        return with_answers(batch, list(self.run(rows)), *self._command)

    def __getstate__(self) -> dict[str, Any]:
        # Another process starts its own; `datasets` and Ray send engines to their workers.
        names = ("_words", "_env", "_max_pending", "_command")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

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
