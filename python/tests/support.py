"""What the tests share: the demo model, rows for it, and a plain run to compare with."""

import json
import os
import subprocess
import tempfile
from typing import Any, Dict, Iterator, List

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


def children_named(name: str) -> Iterator[int]:
    """Processes of a program, by the first word of their command lines."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if os.path.basename(words[0]).decode("utf-8", "replace") == name:
                yield int(entry)


def status(pid: int, field: str) -> str:
    """A field of a process's status; empty where it has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            lines = [line for line in file if line.startswith(field + ":")]
    except OSError:
        return ""
    return lines[0].split(":", 1)[1].strip() if lines else ""


def seconds_computed(pid: int) -> float:
    """Processor time that a process has taken."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
