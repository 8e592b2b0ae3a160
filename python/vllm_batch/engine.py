"""`Engine`: rows through a process that has loaded a model."""

import json
import os
import threading
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Union

from .command import COMMANDS, arguments, find_binary
from .process import EngineError, Process
from .rows import line_of, name_of, names_of_answer, row_of, rows_of

Row = Dict[str, Any]

# Rows that are sent and not yet handed out: more than the program computes at once, so that it
# always has some to choose from, and few enough for memory.
MAX_PENDING = 8192

# What a feed has put among the lines of the process.
_FED, _FAILED = "fed", "failed"


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

    Raises EngineError where the model cannot be loaded. One thread at a time may run rows.
    """

    def __init__(
        self,
        model: Any,
        *,
        command: str = "run",
        binary: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
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
        self._process: Optional[Process] = None
        self._words = [find_binary(binary), command, f"--model={os.fspath(model)}", "--quiet"]
        self._words += ["--format=jsonl", "--unordered", "--progress=none", "--color=never"]
        self._words += arguments(flags)
        self._env = env
        self._max_pending = max_pending
        self._running = threading.Lock()
        self._closed = False
        self._lines_sent = 0
        self._start()

    @property
    def pid(self) -> Optional[int]:
        """The process's number; None where it has ended."""
        process = self._process
        return process.pid if process is not None and process.is_alive() else None

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output, in tokens."""
        return self._start().ready["max_model_len"]

    @property
    def version(self) -> str:
        """Of the program."""
        return self._start().ready["version"]

    def run(
        self, rows: Union[Iterable[Union[str, Mapping[str, Any]]], Any], *, ordered: bool = True
    ) -> Iterator[Row]:
        """Answers rows. They are read on another thread, as far ahead as `max_pending` says.

        `rows`: mappings as docs/ROWS.md has them, or texts; or a frame of pandas or polars, or an
        Arrow table, whose records are the rows. A row without `id` gets its index. NaN is null.
        `ordered`: in the order of the rows; else each as soon as it has finished.

        Yields the rows with the program's fields behind their own. A row that cannot be answered
        has `error`. Raises EngineError where the process ends before its rows; the next call
        starts another one. Raises what reading `rows` raises, and TypeError at once for a text or a mapping
        in the place of rows. A run that is left before its end
        ends the process too, as its rows are still being computed.
        """
        if self._closed:
            raise ValueError("the engine is closed")
        return self._answers(rows_of(rows), ordered)

    def close(self) -> None:
        """Ends the process. Raises EngineError where it did not end well."""
        self._closed = True
        process, self._process = self._process, None
        if process is None:
            return
        if self._running.locked():
            process.kill()
        else:
            process.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            self._kill()
            self._closed = True

    def __del__(self) -> None:
        if getattr(self, "_process", None) is not None:
            self._kill()

    def _start(self) -> Process:
        if self._closed:
            raise ValueError("the engine is closed")
        if self._process is None:
            self._process = Process(self._words, self._env)
            self._lines_sent = 0
        return self._process

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def _answers(self, rows: Iterable[Any], ordered: bool) -> Iterator[Row]:
        if not self._running.acquire(blocking=False):
            raise RuntimeError("the engine is running other rows: one engine for each thread")
        try:
            process = self._start()
            feed = _Feed(process, rows, self._max_pending, self._lines_sent)
            complete = False
            try:
                feed.start()
                answers = _answers_of(process, feed)
                yield from _in_order(answers, feed) if ordered else _as_finished(answers, feed)
                feed.join()
                complete = True
            finally:
                if not complete:
                    self._kill()
                feed.stop()
                self._lines_sent = feed.lines_sent
        finally:
            self._running.release()


def _answers_of(process: Process, feed: "_Feed") -> Iterator[Tuple[int, Row]]:
    """Index and answer of each row, as they finish."""
    num_rows, num_answers = None, 0
    while num_rows is None or num_answers < num_rows:
        event = process.lines.get()
        if event is None:
            raise process.error("the process ended before its rows")
        if isinstance(event, tuple):
            kind, value = event
            if kind == _FAILED:
                raise value
            num_rows = value
            continue
        answer = json.loads(event)
        index = feed.take(answer)
        num_answers += 1
        yield index, answer


def _as_finished(answers: Iterator[Tuple[int, Row]], feed: "_Feed") -> Iterator[Row]:
    for _, answer in answers:
        feed.handed_out()
        yield answer


def _in_order(answers: Iterator[Tuple[int, Row]], feed: "_Feed") -> Iterator[Row]:
    waiting: Dict[int, Row] = {}
    next_index = 0
    for index, answer in answers:
        waiting[index] = answer
        while next_index in waiting:
            feed.handed_out()
            yield waiting.pop(next_index)
            next_index += 1


class _Feed(threading.Thread):
    """Sends rows: whoever reads answers must not wait for a pipe that is full."""

    def __init__(
        self, process: Process, rows: Iterable[Any], max_pending: int, lines_sent: int
    ) -> None:
        super().__init__(daemon=True)
        self._process = process
        self._rows = rows
        self._room = max_pending
        #: Of the process's life: it names what it cannot read by the line.
        self.lines_sent = lines_sent
        self._changed = threading.Condition()
        self._stopped = False
        # Rows under way, by their names; and names by their lines.
        self._pending: Dict[str, Tuple[int, int]] = {}
        self._names: Dict[int, str] = {}

    def run(self) -> None:
        try:
            index = 0
            for index, value in enumerate(self._rows, 1):
                row = row_of(value, index - 1)
                line = line_of(row)
                if not self._enter(name_of(row), index - 1):
                    return
                try:
                    self._process.write(line)
                except OSError:
                    # The process has ended, and the end of its rows says so.
                    return
            self._process.lines.put((_FED, index))
        except BaseException as error:
            # Raised again where the answers are taken.
            self._process.lines.put((_FAILED, error))

    def _enter(self, name: str, index: int) -> bool:
        """Waits for room, and for an earlier row of the same name: answers are told apart by it."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped or (self._room > 0 and name not in self._pending)
            )
            if self._stopped:
                return False
            self._room -= 1
            self.lines_sent += 1
            self._pending[name] = (index, self.lines_sent)
            self._names[self.lines_sent] = name
            return True

    def take(self, answer: Row) -> int:
        """The index of the row that was answered."""
        with self._changed:
            names: List[str] = names_of_answer(answer)
            if not names and answer.get("line") in self._names:
                # A row that could not be read: its line is all that is known of it.
                names = [self._names[answer["line"]]]
                answer["id"] = names[0]
            name = next((name for name in names if name in self._pending), None)
            if name is None:
                raise EngineError(f"vllm-batch: an answer to no row that was sent: {answer!r}")
            index, line = self._pending.pop(name)
            del self._names[line]
            self._changed.notify_all()
            return index

    def handed_out(self) -> None:
        """A row is out of the engine's hands."""
        with self._changed:
            self._room += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Ends the thread, as soon as `rows` gives it the next one."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
