"""`Desk` and `Feed`: rows on their way to a process and back, for several runs at once."""

import collections
import json
import threading
from typing import Any, Dict, Iterable, List, Optional, Tuple

from .process import EngineError, Process
from .rows import line_of, name_of, names_of_answer, row_of

# What a feed has put among the lines of the process.
FED, FAILED, ANSWER = "fed", "failed", "answer"


class Desk:
    """Rows that a process has not answered yet, of all runs: answers are told apart by name."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._changed = threading.Condition()
        #: Of the process's life: it names what it cannot read by the line.
        self._lines_sent = 0
        # Rows under way, by their names; lines by names, and names by lines.
        self._pending: Dict[str, Tuple["Feed", int]] = {}
        self._lines: Dict[str, int] = {}
        self._names: Dict[int, str] = {}

    def send(self, feed: "Feed", name: str, index: int, line: bytes) -> bool:
        """Sends a row, as soon as there is room, and no earlier row of the same name is under way.
        False: the feed is stopped."""
        with self._changed:
            self._changed.wait_for(
                lambda: feed.stopped or (feed.room > 0 and name not in self._pending)
            )
            if feed.stopped:
                return False
            feed.room -= 1
            self._pending[name] = (feed, index)
        with self.process.writing:
            self._lines_sent += 1
            self._lines[name] = self._lines_sent
            self._names[self._lines_sent] = name
            self.process.write(line)
        return True

    def event_of(self, feed: "Feed") -> Optional[Tuple[str, Any]]:
        """The next event of a run: an answer with its index, or what its feed says. None: the
        process has ended. Those of other runs wait for whoever asks for them."""
        while not feed.events:
            event = self.process.lines.get()
            if event is None:
                # The others hear of it too.
                self.process.lines.put(None)
                return None
            owner, kind, value = event if isinstance(event, tuple) else self._take(event)
            if not owner.stopped:
                owner.events.append((kind, value))
        return feed.events.popleft()

    def _take(self, line: bytes) -> Tuple["Feed", str, Tuple[int, Dict[str, Any]]]:
        answer = json.loads(line)
        with self._changed:
            names: List[str] = names_of_answer(answer)
            if not names and answer.get("line") in self._names:
                # A row that could not be read: its line is all that is known of it.
                names = [self._names[answer["line"]]]
                answer["id"] = names[0]
            name = next((name for name in names if name in self._pending), None)
            if name is None:
                raise EngineError(f"vllm-batch: an answer to no row that was sent: {answer!r}")
            feed, index = self._pending.pop(name)
            del self._names[self._lines.pop(name)]
            self._changed.notify_all()
            return feed, ANSWER, (index, answer)

    def handed_out(self, feed: "Feed") -> None:
        """A row is out of the engine's hands."""
        with self._changed:
            feed.room += 1
            self._changed.notify_all()

    def stop(self, feed: "Feed") -> None:
        """Ends a feed, as soon as its rows give it the next one. Its answers are dropped."""
        with self._changed:
            feed.stopped = True
            feed.events.clear()
            self._changed.notify_all()


class Feed(threading.Thread):
    """Sends rows: whoever reads answers must not wait for a pipe that is full."""

    def __init__(self, desk: Desk, rows: Iterable[Any], max_pending: int) -> None:
        super().__init__(daemon=True)
        self.desk = desk
        self._rows = rows
        self.room = max_pending
        self.stopped = False
        #: What is there for the run and was read by another.
        self.events: "collections.deque[Tuple[str, Any]]" = collections.deque()

    def run(self) -> None:
        lines = self.desk.process.lines
        try:
            index = 0
            for index, value in enumerate(self._rows, 1):
                row = row_of(value, index - 1)
                try:
                    if not self.desk.send(self, name_of(row), index - 1, line_of(row)):
                        return
                except OSError:
                    # The process has ended, and the end of its rows says so.
                    return
            lines.put((self, FED, index))
        except BaseException as error:
            # Raised again where the answers are taken.
            lines.put((self, FAILED, error))
