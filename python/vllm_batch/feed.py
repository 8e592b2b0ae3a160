"""`Desk` and `Feed`: rows on their way to a process and back, for several runs at once."""

from __future__ import annotations

import json
import queue
import threading
from typing import Any, Iterable, Iterator

from .process import Process
from .rows import Row, line_of, name_of, names_of_answer, row_of

# What there is for a run to hear of.
FED, FAILED, ANSWER, ENDED = "fed", "failed", "answer", "ended"


class Desk:
    """Rows that a process has not answered yet, of all runs: answers are told apart by name."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._changed = threading.Condition()
        self._feeds: set[Feed] = set()
        self._ended = False
        #: Of the process's life: it names what it cannot read by the line.
        self._lines_sent = 0
        # Rows under way, by their names; lines by names, and names by lines.
        self._pending: dict[str, tuple[Feed, int]] = {}
        self._lines: dict[str, int] = {}
        self._names: dict[int, str] = {}
        process.read(self._take, self._end)

    def open(self, feed: Feed) -> None:
        """Begins a feed, which hears of its answers and of the process's end."""
        with self._changed:
            self._feeds.add(feed)
            if self._ended:
                feed.events.put((ENDED, None))

    def send(self, feed: Feed, name: str, index: int, line: bytes) -> bool:
        """Sends a row, as soon as there is room, and no earlier row of the same name is under way.
        False: the feed is stopped."""
        with self._changed:
            while not feed.stopped and (feed.room <= 0 or name in self._pending):
                self._changed.wait()
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

    def handed_out(self, feed: Feed) -> None:
        """A row is out of the engine's hands."""
        with self._changed:
            feed.room += 1
            if feed.room == 1:
                self._changed.notify_all()

    def stop(self, feed: Feed) -> None:
        """Ends a feed, as soon as its rows give it the next one. Its answers are dropped."""
        with self._changed:
            feed.stopped = True
            self._feeds.discard(feed)
            self._changed.notify_all()

    def _take(self, line: bytes) -> None:
        answer: Row = json.loads(line)
        with self._changed:
            names = names_of_answer(answer)
            if not names and answer.get("line") in self._names:
                # A row that could not be read: its line is all that is known of it.
                names = [self._names[answer["line"]]]
                answer["id"] = names[0]
            name = next((name for name in names if name in self._pending), None)
            assert name is not None, f"an answer to no row that was sent: {answer!r}"
            feed, index = self._pending.pop(name)
            del self._names[self._lines.pop(name)]
            self._changed.notify_all()
        if not feed.stopped:
            feed.events.put((ANSWER, (index, answer)))

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            for feed in self._feeds:
                feed.events.put((ENDED, None))


class Feed(threading.Thread):
    """Sends rows: whoever reads answers must not wait for a pipe that is full."""

    def __init__(self, desk: Desk, rows: Iterable[Any], max_pending: int) -> None:
        super().__init__(daemon=True)
        self.desk = desk
        self._rows = rows
        self.room = max_pending
        self.stopped = False
        #: What there is for the run: a kind, and what goes with it.
        self.events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def run(self) -> None:
        try:
            index = 0
            for index, value in enumerate(self._rows, 1):
                row = row_of(value, index - 1)
                name = name_of(row)
                assert name is not None, "row_of names every row"
                try:
                    if not self.desk.send(self, name, index - 1, line_of(row)):
                        return
                except OSError:
                    # The process has ended, and the end of its rows says so.
                    return
            self.events.put((FED, index))
        except BaseException as error:
            # Raised again where the answers are taken.
            self.events.put((FAILED, error))

    def answers(self) -> Iterator[tuple[int, Row]]:
        """Index and answer of each row, as they finish. Raises EngineError where the process ends
        before them, and what reading the rows has raised."""
        num_rows, num_answers = None, 0
        while num_rows is None or num_answers < num_rows:
            kind, value = self.events.get()
            if kind == ENDED:
                raise self.desk.process.error("the process ended before its rows")
            if kind == FAILED:
                raise value
            if kind == FED:
                num_rows = value
                continue
            num_answers += 1
            yield value
