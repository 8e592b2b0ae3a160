"""`Process`: vllm-batch as a child, its three pipes, and how it ended. Knows no rows."""

from __future__ import annotations

import collections
import json
import logging
import os
import subprocess
import threading
import weakref
from typing import IO, Any, Callable, Deque, Mapping

LOGGER = logging.getLogger("vllm_batch")

# Lines of standard error that an exception shows.
TAIL = 30

# Exit codes of a process that did all it was asked: also with error rows, and without any row.
COMPLETE = (0, 3, 4)
# Ends that another try may not meet: killed, out of memory or disk, the device lost.
TRANSIENT = (5, 129, 130, 137, 141, 143)


class EngineError(RuntimeError):
    """The process ended before its rows. Its message has the last lines of standard error."""

    def __init__(self, message: str, returncode: int | None = None, stderr: str = "") -> None:
        super().__init__(message, returncode, stderr)
        self.message = message
        #: As of `subprocess.Popen`: below 0 for a signal.
        self.returncode = returncode
        #: The last lines of standard error.
        self.stderr = stderr

    def __str__(self) -> str:
        return f"{self.message}\n{self.stderr}" if self.stderr else self.message

    @property
    def is_transient(self) -> bool:
        """Whether the same rows may be answered by another process."""
        code = self.returncode
        return code is not None and (code < 0 or code in TRANSIENT)


class Process:
    """A child that has loaded its model. `read` says who takes what it writes.

    `writing` is held by whoever writes to it.
    """

    def __init__(self, words: list[str], env: Mapping[str, str] | None) -> None:
        ready, ready_of_child = os.pipe()
        try:
            self._child = subprocess.Popen(
                [*words, f"--ready-fd={ready_of_child}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[ready_of_child],
                env=None if env is None else {**os.environ, **env},
            )
        except BaseException:
            os.close(ready)
            raise
        finally:
            os.close(ready_of_child)
        assert self._child.stdin and self._child.stdout and self._child.stderr
        self._stdin, self._stdout, self._stderr = (
            self._child.stdin,
            self._child.stdout,
            self._child.stderr,
        )
        self.pid = self._child.pid
        self.writing = threading.Lock()
        self._ended = threading.Event()
        self._tail: Deque[str] = collections.deque(maxlen=TAIL)
        self._closing = threading.Event()
        self._errors = threading.Thread(
            target=_read_errors, args=(self._stderr, self._tail, self._closing), daemon=True
        )
        self._errors.start()
        self._threads = [self._errors]
        self._at_exit = weakref.finalize(
            self, _end, self._child, self._threads, self.writing, self._ended
        )
        try:
            with open(ready, "rb") as reader:
                line = reader.readline()
            if not line:
                raise self.error("the model was not loaded")
            #: What the ready line says: `version`, `max_model_len`.
            self.ready: dict[str, Any] = json.loads(line)
        except BaseException:
            self.kill()
            raise

    def read(self, take: Callable[[bytes], None], end: Callable[[], None]) -> None:
        """Gives each line that it writes to `take`, and calls `end` after the last, on a thread."""
        thread = threading.Thread(target=_read_rows, args=(self._stdout, take, end), daemon=True)
        thread.start()
        self._threads.append(thread)

    def write(self, line: bytes) -> None:
        """Sends a line, by who holds `writing`. Raises OSError where the process reads no more."""
        if self._ended.is_set():
            raise BrokenPipeError("the process was ended")
        self._stdin.write(line)
        self._stdin.flush()

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._child.poll() is None

    def error(self, what: str) -> EngineError:
        """Waits for its end, and says it."""
        code = self._child.wait()
        self._errors.join()
        end = f"signal {-code}" if code < 0 else f"exit code {code}"
        return EngineError(f"vllm-batch: {what} ({end})", code, "\n".join(self._tail))

    def close(self) -> None:
        """Sends the end of the rows, and waits for the process's.

        Raises EngineError where it did not end well.
        """
        self._closing.set()
        try:
            self._stdin.close()
        except OSError:
            # It has ended before; the exit code says how.
            pass
        for thread in self._threads:
            thread.join()
        code = self._child.wait()
        self._stdout.close()
        self._stderr.close()
        self._at_exit.detach()
        if code not in COMPLETE:
            raise self.error("the process failed")

    def kill(self) -> None:
        """Ends it at once."""
        self._at_exit()
        for pipe in (self._stdout, self._stderr, self._stdin):
            try:
                pipe.close()
            except OSError:
                # What was not written yet cannot be any more.
                pass


def _end(
    child: subprocess.Popen[bytes],
    threads: list[threading.Thread],
    writing: threading.Lock,
    ended: threading.Event,
) -> None:
    """Ends a process at once, also one that nobody closes, before the interpreter's exit: a thread
    that is at one of its pipes then would abort the interpreter."""
    child.kill()
    child.wait()
    for thread in threads:
        thread.join()
    with writing:
        ended.set()


def _read_rows(pipe: IO[bytes], take: Callable[[bytes], None], end: Callable[[], None]) -> None:
    try:
        for line in pipe:
            take(line)
    finally:
        end()


def _read_errors(pipe: IO[bytes], tail: Deque[str], closing: threading.Event) -> None:
    for line in pipe:
        text = line.decode("utf-8", "replace").rstrip()
        if text:
            tail.append(text)
            # After the last row there comes the summary, which is no warning.
            LOGGER.log(logging.INFO if closing.is_set() else logging.WARNING, "%s", text)
