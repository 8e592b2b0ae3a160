"""`Process`: vllm-batch as a child, its three pipes, and how it ended. Knows no rows."""

import collections
import json
import logging
import os
import queue
import subprocess
import threading
import weakref
from typing import Any, Dict, List, Mapping, Optional, Tuple

LOGGER = logging.getLogger("vllm_batch")

# Lines of standard error that an exception shows.
TAIL = 30

# Exit codes of a process that did all it was asked: also with error rows, and without any row.
COMPLETE = (0, 3, 4)
# Ends that another try may not meet: killed, out of memory or disk, the device lost.
TRANSIENT = (5, 129, 130, 137, 141, 143)


class EngineError(RuntimeError):
    """The process ended before its rows. Its message has the last lines of standard error."""

    def __init__(self, message: str, returncode: Optional[int] = None, stderr: str = "") -> None:
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
    """A child that has loaded its model.

    `lines` has what it writes: bytes of a line, and None at its end.
    `writing` is held by whoever writes to it.
    """

    def __init__(self, words: List[str], env: Optional[Mapping[str, str]]) -> None:
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
        self.pid = self._child.pid
        self.lines: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self.writing = threading.Lock()
        self._ended = threading.Event()
        self._tail: "collections.deque[str]" = collections.deque(maxlen=TAIL)
        self._closing = threading.Event()
        self._errors = threading.Thread(
            target=_read_errors, args=(self._child.stderr, self._tail, self._closing), daemon=True
        )
        self._errors.start()
        self._rows = threading.Thread(
            target=_read_rows, args=(self._child.stdout, self.lines), daemon=True
        )
        self._rows.start()
        threads = (self._rows, self._errors)
        self._at_exit = weakref.finalize(
            self, _end, self._child, threads, self.writing, self._ended
        )
        try:
            with open(ready, "rb") as reader:
                line = reader.readline()
            if not line:
                raise self.error("the model was not loaded")
            #: What the ready line says: `version`, `max_model_len`.
            self.ready: Dict[str, Any] = json.loads(line)
        except BaseException:
            self.kill()
            raise

    def write(self, line: bytes) -> None:
        """Sends a line, by who holds `writing`. Raises OSError where the process reads no more."""
        if self._ended.is_set():
            raise BrokenPipeError("the process was ended")
        self._child.stdin.write(line)
        self._child.stdin.flush()

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
            self._child.stdin.close()
        except OSError:
            # It has ended before; the exit code says how.
            pass
        self._rows.join()
        code = self._child.wait()
        self._errors.join()
        self._child.stdout.close()
        self._child.stderr.close()
        self._at_exit.detach()
        if code not in COMPLETE:
            raise self.error("the process failed")

    def kill(self) -> None:
        """Ends it at once."""
        self._at_exit()
        for pipe in (self._child.stdout, self._child.stderr, self._child.stdin):
            try:
                pipe.close()
            except OSError:
                # What was not written yet cannot be any more.
                pass


def _end(
    child: "subprocess.Popen[bytes]",
    threads: Tuple[threading.Thread, ...],
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


def _read_rows(pipe: Any, lines: "queue.SimpleQueue[Any]") -> None:
    for line in pipe:
        lines.put(line)
    lines.put(None)


def _read_errors(pipe: Any, tail: "collections.deque[str]", closing: threading.Event) -> None:
    for line in pipe:
        text = line.decode("utf-8", "replace").rstrip()
        if text:
            tail.append(text)
            # After the last row there comes the summary, which is no warning.
            LOGGER.log(logging.INFO if closing.is_set() else logging.WARNING, "%s", text)
