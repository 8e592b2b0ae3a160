"""Calls whose answers survive: prompts in a file, and the program's journal beside the answers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Iterable, Iterator

from .calls import Call
from .engines import Engines
from .files import FileError, run_file
from .requests import Request
from .rows import Row, line_of

PROMPTS, ANSWERS = "prompts.jsonl", "answers.jsonl"


def answers_of(
    engines: Engines,
    call: Call,
    folder: Path,
    use_tqdm: bool,
) -> Iterator[tuple[Request, Row]]:
    """Each request with its answer, in their order. The process of `engines` is ended meanwhile:
    one of this call has the model.

    `folder`: has the prompts, the answers and the program's journal. The same requests go on where
    they were. One that has changed is computed again, and the others are kept.
    Raises FileError where the answers there are another model's, or of other arguments.
    """
    folder.mkdir(parents=True, exist_ok=True)
    asked = _write(folder, call.requests)
    with engines.alone(call.flags, call.adapters) as (flags, binary, env):
        options: dict[str, Any] = {"binary": binary, "env": env, "use_tqdm": use_tqdm, **flags}
        source, out = folder / PROMPTS, folder / ANSWERS
        options["model"] = engines.args.model
        try:
            run_file(source, out, **options)
        except FileError as error:
            # Complete, and of other rows: those that changed are computed, as before the end.
            if error.code != "output_complete":
                raise
            run_file(source, out, retry_failed=True, **options)
    with open(out, "rb") as lines:
        for request, line in zip(asked, lines):
            yield request, json.loads(line)


def _write(folder: Path, requests: Iterable[Request]) -> list[Request]:
    """Writes the prompts, as a whole or not at all."""
    asked: list[Request] = []
    part = folder / f"{PROMPTS}.{os.getpid()}"
    try:
        with open(part, "wb") as file:
            for request in requests:
                file.write(line_of(request.row))
                asked.append(request)
        os.replace(part, folder / PROMPTS)
    finally:
        part.unlink(missing_ok=True)
    return asked
