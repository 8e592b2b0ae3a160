"""The recipes of examples/ for shards, with a worker killed in its middle: the bytes of one run.

Slurm and Kubernetes are not there: what they give a task is its environment, and that is set here.
"""

import os
import signal
import subprocess
import tempfile
import time
import unittest

from support import DEMO, ROOT, WORDS, some_rows, write_rows
from vllm_batch import find_binary

# A run of so many takes many times as long as a look at its journal.
NUM_ROWS = 4000
SRUN = """#!/bin/bash
# As srun --ntasks=4: a task of its own environment for each number.
while [[ $1 == --* ]]; do shift; done
for task in 0 1 2 3; do
    SLURM_PROCID=$task SLURM_STEP_NUM_TASKS=4 "$@" & tasks+=($!)
done
rc=0
for task in "${tasks[@]}"; do wait "$task" || rc=$?; done
exit "$rc"
"""


class Recipes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        write_rows(self.path("in.jsonl"), some_rows(NUM_ROWS))
        bin_folder = os.path.dirname(find_binary())
        self.variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLURM")},
            "PATH": f"{self.folder}:{bin_folder}:{os.environ['PATH']}",
            "MODEL": DEMO,
            "INPUT": self.path("in.jsonl"),
            "OUT": self.path("out.jsonl"),
            "FLAGS": " ".join([*WORDS, "-qq"]),
            "SOURCE_DATE_EPOCH": "1767225600",
        }
        words = [find_binary(), "run", "--model", DEMO, "--input", self.path("in.jsonl")]
        words += ["--out", self.path("whole.jsonl"), "-qq", *WORDS]
        self.assertEqual(subprocess.run(words, env=self.variables).returncode, 3)

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, words, **variables):
        return subprocess.Popen(
            words, env={**self.variables, **variables}, start_new_session=True
        )

    def run_to_its_end(self, words, code=0, **variables):
        self.assertEqual(self.start(words, **variables).wait(), code)

    def kill_in_the_middle(self, words, journal, **variables):
        """Ends a worker and all it has started, when some of its rows are finished."""
        worker = self.start(words, **variables)
        while not (os.path.exists(journal) and os.path.getsize(journal) > 2_000):
            self.assertIsNone(worker.poll(), "it has ended before its middle")
            time.sleep(0.001)
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        self.assertTrue(os.path.exists(journal), "it has ended before it was killed")

    def assert_equal_to_one_run(self):
        with open(self.path("out.jsonl"), "rb") as out, open(self.path("whole.jsonl"), "rb") as one:
            self.assertEqual(out.read(), one.read())

    def merge(self):
        shards = [name for name in os.listdir(self.folder) if name.startswith("out.jsonl.shard-")]
        shards = [self.path(name) for name in shards if name.endswith(".jsonl")]
        words = [find_binary(), "merge", "--verify", "--out", self.path("out.jsonl"), "-q"]
        self.run_to_its_end([*words, *shards])

    def test_slurm_steps(self):
        with open(self.path("srun"), "w", encoding="utf-8") as file:
            file.write(SRUN)
        os.chmod(self.path("srun"), 0o755)
        script = ["bash", os.path.join(ROOT, "examples/slurm/steps.sbatch")]
        # What a batch script sees itself.
        variables = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "ENVIRONMENT": "BATCH"}
        journal = self.path("out.jsonl.shard-00002.jsonl.journal")
        self.kill_in_the_middle(script, journal, **variables)
        self.run_to_its_end(script, **variables)
        self.assert_equal_to_one_run()

    def test_slurm_array(self):
        script = ["bash", os.path.join(ROOT, "examples/slurm/array.sbatch")]
        array = {"SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "0"}
        journal = self.path("out.jsonl.shard-00001.jsonl.journal")
        self.kill_in_the_middle(script, journal, SLURM_ARRAY_TASK_ID="1", **array)
        for task in "02":
            self.run_to_its_end(script, SLURM_ARRAY_TASK_ID=task, **array)
        # One of them alone, later: it still knows which rows are its own.
        alone = {"SLURM_ARRAY_TASK_COUNT": "1", "SLURM_ARRAY_TASK_MIN": "1", "SHARDS": "3"}
        self.run_to_its_end(script, SLURM_ARRAY_TASK_ID="1", **alone)
        self.merge()
        self.assert_equal_to_one_run()

    def test_kubernetes(self):
        with open(os.path.join(ROOT, "examples/kubernetes/job.yaml"), encoding="utf-8") as file:
            lines = [line.strip() for line in file]
        start = lines.index("- >-") + 1
        command = ["sh", "-c", " ".join(lines[start : lines.index("env:")])]
        of_job = next(line for line in lines if line.startswith("completions:"))
        completions = int(of_job.split()[1])
        self.assertIn(f"--shard auto/{completions} ", command[2])
        journal = self.path("out.jsonl.shard-3.jsonl.journal")
        self.kill_in_the_middle(command, journal, JOB_COMPLETION_INDEX="3")
        for index in range(completions):
            self.run_to_its_end(command, JOB_COMPLETION_INDEX=str(index))
        self.merge()
        self.assert_equal_to_one_run()
        # An end that no other try can cure is one of those that fail the job.
        self.run_to_its_end(command, 2, JOB_COMPLETION_INDEX="0", MODEL="./none", OUT="x")
        rules = [line for line in lines if line.startswith("values:")]
        self.assertEqual(rules[0], "values: [1, 2, 4, 6, 7]")


class Wheel(unittest.TestCase):
    def test_man_page_and_completions_are_installed(self):
        share = os.path.join(os.path.dirname(os.path.dirname(find_binary())), "share")
        for name, word in [
            ("man/man1/vllm-batch.1", ".TH"),
            ("bash-completion/completions/vllm-batch", "complete "),
            ("zsh/site-functions/_vllm-batch", "#compdef vllm-batch"),
            ("fish/vendor_completions.d/vllm-batch.fish", "complete -c vllm-batch"),
        ]:
            with open(os.path.join(share, name), encoding="utf-8") as file:
                self.assertIn(word, file.read(), name)


if __name__ == "__main__":
    unittest.main()
