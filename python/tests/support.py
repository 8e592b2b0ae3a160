"""What the tests share: the demo model, rows for it, and a plain run to compare with."""

import json
import os
import subprocess
import tempfile
from typing import Any, Dict, List

from vllm_batch import find_binary

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEMO = os.path.join(ROOT, "testdata", "demo")
# Sampled, so that an answer depends on its row's name.
FLAGS = {"temperature": 1, "max_tokens": 8, "threads": 1}
WORDS = ["--temperature", "1", "--max-tokens", "8", "--threads", "1"]


def some_rows(count: int) -> List[Dict[str, Any]]:
    """Rows of different lengths; every 50th cannot be asked."""
    rows = []
    for index in range(count):
        row: Dict[str, Any] = {"id": index, "prompt": f"{index % 10}+{index % 7}="}
        if index % 10 == 3:
            row["max_tokens"] = 40
        if index % 50 == 7:
            row["temperature"] = -1
        rows.append(row)
    return rows


def write_rows(path: str, rows: List[Dict[str, Any]]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")


def read_rows(path: str) -> List[Dict[str, Any]]:
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def plain_run(
    rows: List[Dict[str, Any]], *words: str, command: str = "run"
) -> List[Dict[str, Any]]:
    """The rows of one run of the program, from file to file."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
        write_rows(source, rows)
        files = ["--input", source, "--out", out, "-qq"]
        code = subprocess.run([find_binary(), command, *files, *words]).returncode
        assert code in (0, 3), code
        return read_rows(out)


# The program, but the first one whose rows are answered in part dies, and who is named with it.
KILLED_ONCE = """#!/bin/bash
if mkdir "$0.killed" 2>/dev/null; then
    "{binary}" "$@" | head -n 20
    kill -9 {parent} $$
fi
exec "{binary}" "$@"
"""


def killed_once(folder: str, *, with_parent: bool = False) -> str:
    """A script in a folder that is the program, but the first process dies after 20 answers.

    `with_parent`: the process that started it dies too. `was_killed` says whether it happened.
    """
    path = os.path.join(folder, "killed-once")
    parent = "$PPID" if with_parent else ""
    with open(path, "w", encoding="utf-8") as file:
        file.write(KILLED_ONCE.format(binary=find_binary(), parent=parent))
    os.chmod(path, 0o755)
    return path


def was_killed(script: str) -> bool:
    """Whether the script of `killed_once` has killed its first process."""
    return os.path.exists(script + ".killed")
