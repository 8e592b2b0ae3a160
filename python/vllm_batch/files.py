"""`run_file`: a job from file to file, which goes on after a kill."""

from __future__ import annotations

import collections
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Callable, Mapping, Sequence

from .command import COMMANDS, arguments, find_binary
from .kinds import mapping_of
from .process import COMPLETE, TAIL, EngineError
from .progress import FileProgress

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .flags import FileFlags, Path

# What the call itself says of the process.
OWNED = frozenset("config input out output progress quiet ready_fd unordered verbose".split())
# How long a call waits for the end of a process whose Python was killed, in tries of a second.
LOCKED_TRIES = 30


@dataclass(frozen=True)
class RunSummary:
    """What a job did. `stats` has the keys of docs/JOBS.md.

    `rows`: all; of them `ok`, `failed`, and `reused` from an earlier run.
    `input_tokens`, `output_tokens`: of all rows. `elapsed_time`: seconds of this run.
    """

    output: str
    rows: int
    ok: int
    failed: int
    reused: int
    input_tokens: int
    output_tokens: int
    elapsed_time: float
    stats: dict[str, Any]

    @classmethod
    def of(cls, output: str, stats: dict[str, Any]) -> RunSummary:
        """A summary of the last event of `--progress json`."""
        rows, tokens = mapping_of(stats.get("rows")), mapping_of(stats.get("tokens"))
        return cls(
            output,
            rows.get("total", 0),
            rows.get("ok", 0),
            rows.get("failed", 0),
            rows.get("reused", 0),
            tokens.get("input", 0),
            tokens.get("output", 0),
            stats.get("elapsed_time", 0.0),
            stats,
        )


class FileError(EngineError):
    """A job that did not come to its end. `code` is the program's, as `output_locked`."""

    def __init__(
        self, message: str, returncode: int | None = None, stderr: str = "", code: str = ""
    ) -> None:
        super().__init__(message, returncode, stderr)
        self.code = code


def run_file(
    input: Path | Sequence[Path],
    output: Path,
    *,
    command: str = "run",
    binary: str | None = None,
    env: Mapping[str, str] | None = None,
    use_tqdm: bool = True,
    **flags: Unpack[FileFlags],
) -> RunSummary:
    """Answers the rows of files, and writes them in their order to `output`, which appears when it
    is complete. The same call after a kill, of Python or of the process, goes on where it was.

    `input`: files or patterns, as `--input` has them. `output`: as `--out`.
    `command`: `run`, `embed`, `classify`, `reward`, `score` or `rerank`.
    `flags`: those of the command, with underscores: `model="./model"`, `max_tokens=64`.
    `use_tqdm`: a bar, where tqdm is installed; else the logger `vllm_batch` hears of it.

    Rows that cannot be answered are error rows, and counted in the summary.
    Raises FileError where the job is refused or stopped: its message says what to do.
    """
    if command not in COMMANDS:
        raise ValueError(f"no command {command!r}: one of {', '.join(COMMANDS)}")
    paths = [input] if isinstance(input, (str, os.PathLike)) else list(input)
    words = [find_binary(binary), command, f"--out={os.fspath(output)}"]
    words += [f"--input={os.fspath(path)}" for path in paths]
    words += ["--progress=json", "--quiet", "--color=never", *arguments(flags, OWNED)]
    with FileProgress(use_tqdm, os.fspath(output)) as progress:
        for attempt in range(LOCKED_TRIES):
            try:
                return RunSummary.of(os.fspath(output), _run(words, env, progress.heard))
            except FileError as error:
                # The process of a Python that was killed writes what it has, and ends.
                if error.code != "output_locked" or attempt == LOCKED_TRIES - 1:
                    raise
                threading.Event().wait(1.0)
    raise AssertionError("the last attempt returns or raises")


def _run(
    words: list[str],
    env: Mapping[str, str] | None,
    heard: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """The last event of a process. Raises FileError where it did not end well."""
    child = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=None if env is None else {**os.environ, **env},
        # Ctrl-C is Python's, which hands it on.
        start_new_session=True,
        preexec_fn=_dies_with(os.getpid()),
    )
    assert child.stderr is not None
    try:
        result, tail = _listen(child.stderr, heard)
        code = child.wait()
    except BaseException:
        # What has finished is written, and the same call goes on.
        child.send_signal(signal.SIGINT)
        child.wait()
        raise
    finally:
        child.stderr.close()
    if code in COMPLETE:
        return result
    error = mapping_of(result.get("error"))
    end = f"signal {-code}" if code < 0 else f"exit code {code}"
    lines = [*tail, error.get("message", ""), f"help: {error['help']}" if error.get("help") else ""]
    text = "\n".join(line for line in lines if line)
    raise FileError(f"vllm-batch: the job stopped ({end})", code, text, error.get("code", ""))


def _listen(
    pipe: IO[bytes], heard: Callable[[dict[str, Any]], None]
) -> tuple[dict[str, Any], list[str]]:
    """The result, and the last lines that are no events."""
    result: dict[str, Any] = {}
    tail: collections.deque[str] = collections.deque(maxlen=TAIL)
    for line in pipe:
        text = line.decode("utf-8", "replace").rstrip()
        event = _event_of(text)
        if event is None:
            tail.append(text)
        elif event["event"] == "result":
            result = event
        else:
            heard(event)
    return result, list(tail)


def _event_of(text: str) -> dict[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        event = json.loads(text)
    except ValueError:
        return None
    return event if "event" in event else None


def _dies_with(parent: int) -> Callable[[], None] | None:
    """What a child does first, so that it does not go on when its Python is killed: it would hold
    the files that the same call needs. Linux alone can."""
    if not sys.platform.startswith("linux"):
        return None
    # Found before the fork: between it and the program nothing may be loaded.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    set_death_signal, stop = 1, int(signal.SIGTERM)

    def begin() -> None:
        prctl(set_death_signal, stop, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(143)

    return begin
