"""Ray Data: rows through two actors, of which one is killed in the middle, are those of one run.

VLLM_BATCH_TEST_ROWS is the number of rows.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import pyarrow
import pyarrow.parquet
import ray

from support import (
    DEMO,
    FLAGS,
    ROOT,
    WORDS,
    killed_once,
    plain_run,
    some_rows,
    was_killed,
    write_rows,
)
from vllm_batch.ray import Processor, process

NUM_ROWS = int(os.environ.get("VLLM_BATCH_TEST_ROWS", "3000"))
# More than the answers after which an engine is killed.
BATCH = max(64, NUM_ROWS // 40)


def table(rows):
    columns = ["id", "prompt", "max_tokens", "temperature"]
    return pyarrow.table({name: [row.get(name) for row in rows] for name in columns})


class Ray(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=200 << 20)
        ray.data.DataContext.get_current().enable_progress_bars = False

    @classmethod
    def tearDownClass(cls):
        ray.shutdown()

    def test_an_actor_is_killed_and_no_row_is_lost_or_doubled(self):
        rows = some_rows(NUM_ROWS)
        started = time.monotonic()
        expected = plain_run(rows, "--model", DEMO, *WORDS)
        of_one_run = time.monotonic() - started
        with tempfile.TemporaryDirectory() as folder:
            binary = killed_once(folder, with_parent=True)
            dataset = ray.data.from_arrow(table(rows)).repartition(20)
            answers = process(
                dataset, DEMO, workers=2, batch_size=BATCH, binary=binary, **FLAGS
            )
            started = time.monotonic()
            found = answers.take_all()
            of_actors = time.monotonic() - started
            self.assertTrue(was_killed(binary))
        seconds = f"{of_one_run:.1f} s one run, {of_actors:.1f} s two actors, one killed"
        print(f"{NUM_ROWS} rows: {seconds}")
        found.sort(key=lambda row: row["id"])
        for row in found:
            for name in [name for name, value in row.items() if value is None]:
                if name != "response":
                    del row[name]
        self.assertEqual(found, expected)

    def test_a_killed_engine_is_replaced_in_its_actor(self):
        rows = some_rows(200)
        processor = Processor(DEMO, **FLAGS)
        expected = processor(table(rows))
        timer = threading.Timer(0.0, os.kill, [processor._engine.pid, signal.SIGKILL])
        timer.start()
        self.assertTrue(processor(table(rows)).equals(expected))
        timer.join()

    def test_rows_need_names(self):
        processor = Processor(DEMO, **FLAGS)
        with self.assertRaisesRegex(ValueError, "no column 'id' among"):
            processor(pyarrow.table({"prompt": ["a"]}))
        with self.assertRaisesRegex(ValueError, "which names no row"):
            processor(pyarrow.table({"id": ["x", None], "prompt": ["a", "b"]}))

    def test_a_column_with_a_name_of_ours_is_kept(self):
        processor = Processor(DEMO, id_column="key", **FLAGS)
        rows = pyarrow.table({"key": ["x"], "prompt": ["1+1="], "response": ["mine"]})
        with self.assertLogs("vllm_batch", "WARNING"):
            answers = processor(rows)
        (row,) = answers.to_pylist()
        self.assertEqual((row["key"], row["input_response"]), ("x", "mine"))
        self.assertNotIn("id", answers.column_names)
        self.assertEqual(row["finish_reason"], plain_run(
            [{"id": "x", "prompt": "1+1="}], "--model", DEMO, *WORDS)[0]["finish_reason"])


class Example(unittest.TestCase):
    def test_the_example_runs(self):
        rows = some_rows(100)
        with tempfile.TemporaryDirectory() as folder:
            source, out = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out")
            write_rows(source, rows)
            words = [sys.executable, os.path.join(ROOT, "examples", "ray_data.py")]
            words += ["--model", DEMO, "--input", source, "--output", out, "--threads", "1"]
            words += ["--temperature", "0", "--max-tokens", "4"]
            subprocess.run(words, check=True)
            answers = pyarrow.parquet.read_table(out).to_pylist()
        expected = plain_run(rows, "--model", DEMO, "--temperature", "0", "--max-tokens", "4")
        found = {row["id"]: row["response"] for row in answers}
        self.assertEqual(found, {row["id"]: row["response"] for row in expected})


if __name__ == "__main__":
    unittest.main()
