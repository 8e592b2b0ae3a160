"""Spark's local mode: a task fails in the middle of its rows, and the lines are those of one run.

VLLM_BATCH_TEST_ROWS is the number of rows.
"""

import os
import subprocess
import sys
import tempfile
import time
import unittest

from support import DEMO, ROOT, WORDS, killed_once, some_rows, was_killed, write_rows
from vllm_batch import find_binary

NUM_ROWS = int(os.environ.get("VLLM_BATCH_TEST_ROWS", "3000"))


class Spark(unittest.TestCase):
    def test_a_task_is_killed_and_no_row_is_lost_or_doubled(self):
        with tempfile.TemporaryDirectory() as folder:
            path = lambda name: os.path.join(folder, name)  # noqa: E731
            write_rows(path("in.jsonl"), some_rows(NUM_ROWS))
            started = time.monotonic()
            words = [find_binary(), "run", "-m", DEMO, "-i", path("in.jsonl"), "-qq", *WORDS]
            self.assertEqual(subprocess.run([*words, "-o", path("one.jsonl")]).returncode, 3)
            of_one_run = time.monotonic() - started
            binary = killed_once(folder)
            started = time.monotonic()
            words = [sys.executable, os.path.join(ROOT, "examples", "spark_pipe.py")]
            words += ["--model", DEMO, "--input", path("in.jsonl"), "--output", path("out")]
            words += ["--partitions", "4", "--master", "local[2,4]"]
            words += ["--binary", binary, "--", *WORDS]
            subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
            of_spark = time.monotonic() - started
            self.assertTrue(was_killed(binary))
            seconds = f"{of_one_run:.1f} s one run, {of_spark:.1f} s Spark, a task killed"
            print(f"{NUM_ROWS} rows: {seconds}")
            found = []
            for name in os.listdir(path("out")):
                if name.startswith("part-"):
                    with open(os.path.join(path("out"), name), encoding="utf-8") as file:
                        found += file.readlines()
            with open(path("one.jsonl"), encoding="utf-8") as file:
                self.assertEqual(sorted(found), sorted(file))


if __name__ == "__main__":
    unittest.main()
