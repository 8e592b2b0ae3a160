"""`Session`: requests that come one by one, through one run of the process."""

from __future__ import annotations

import collections
import queue
import threading
from dataclasses import dataclass
from typing import Any, Callable, Deque, Iterator

from .engines import Engines
from .lora import LoRARequest
from .requests import Request
from .rows import Row

# What hears of a request: its answer, or what has ended all of them.
Deliver = Callable[[Request, Any], None]


@dataclass
class _Waiting:
    """A request that is under way. Nobody waits for one that was dropped."""

    request: Request
    deliver: Deliver | None


@dataclass
class _Run:
    """A run of the process that goes on while there are requests."""

    rows: queue.SimpleQueue[Row | None]
    # By id. Behind one that was dropped there may be another of its id, which is sent after it.
    waiting: dict[str, Deque[_Waiting]]


class Session:
    """Requests that are added at any time by any thread. The process is held only while some are
    under way. An answer is delivered on a thread of the session: a row of the output, or an
    exception that ended the process."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._guard = threading.Lock()
        # By the adapter of their requests: one that is new needs another process.
        self._runs: dict[str | None, _Run] = {}

    def add(self, request: Request, deliver: Deliver) -> None:
        """Sends a request. Raises ValueError where one of its id is under way."""
        lora = request.lora_request
        key = None if lora is None else lora.lora_name
        with self._guard:
            if self._find(request.request_id) is not None:
                raise ValueError(f"request {request.request_id!r} is under way already")
            run = self._runs.get(key)
            if run is None:
                run = self._runs[key] = _Run(queue.SimpleQueue(), {})
                threading.Thread(target=self._answer, args=(key, run, lora), daemon=True).start()
            waiting = run.waiting.setdefault(request.request_id, collections.deque())
            waiting.append(_Waiting(request, deliver))
            run.rows.put(request.row)

    def forget(self, request_id: str) -> Callable[[Any], None] | None:
        """Drops a request: its answer is not delivered. Returns what would have delivered it; None:
        nobody waits for it."""
        with self._guard:
            found = self._find(request_id)
            if found is None:
                return None
            deliver, found.deliver = found.deliver, None
        assert deliver is not None
        return lambda answer: deliver(found.request, answer)

    def _find(self, request_id: str) -> _Waiting | None:
        for run in self._runs.values():
            for waiting in run.waiting.get(request_id, ()):
                if waiting.deliver is not None:
                    return waiting
        return None

    def _answer(self, key: str | None, run: _Run, lora: LoRARequest | None) -> None:
        adapters = [] if lora is None else [lora]
        try:
            with self._engines.use("run", adapters=adapters) as engine:
                for answer in engine.run(self._rows(run), ordered=False):
                    waiting = self._take(key, run, answer["id"])
                    if waiting.deliver is not None:
                        waiting.deliver(waiting.request, answer)
        except BaseException as error:
            with self._guard:
                self._end(key, run)
                left = [one for several in run.waiting.values() for one in several]
            for waiting in left:
                if waiting.deliver is not None:
                    waiting.deliver(waiting.request, error)

    def _take(self, key: str | None, run: _Run, request_id: str) -> _Waiting:
        with self._guard:
            several = run.waiting[request_id]
            found = several.popleft()
            if not several:
                del run.waiting[request_id]
            if not run.waiting:
                # The next request begins another run.
                self._end(key, run)
        return found

    def _end(self, key: str | None, run: _Run) -> None:
        if self._runs.get(key) is run:
            del self._runs[key]
            run.rows.put(None)

    @staticmethod
    def _rows(run: _Run) -> Iterator[Row]:
        while True:
            row = run.rows.get()
            if row is None:
                return
            yield row
