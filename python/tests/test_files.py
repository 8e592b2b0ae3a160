"""Jobs from file to file, and calls with a journal: both go on after a kill."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from support import DEMO, plain_run, read_rows, some_rows, write_rows
from vllm_batch import LLM, FileError, RowError, SamplingParams, run_file

ROWS = [
    {"id": index, "prompt": f"{index % 10}+1=", "max_tokens": 40, "ignore_eos": True}
    for index in range(1500)
]

JOB = """
import vllm_batch
vllm_batch.run_file({source!r}, {out!r}, model={model!r}, threads=1, use_tqdm=False)
"""

CALL = """
import json, vllm_batch
with vllm_batch.LLM({model!r}, threads=1) as llm:
    prompts = [f"{{index % 10}}+1=" for index in range(1500)]
    params = vllm_batch.SamplingParams(temperature=2.0, max_tokens=40, ignore_eos=True)
    outputs = llm.generate(prompts, params, journal={out!r}, use_tqdm=False)
with open({out!r} + "/done.json", "w") as file:
    json.dump([output.outputs[0].token_ids for output in outputs], file)
"""


def size_of(path):
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0


def kill_while_it_works(code, journal, growth):
    """Runs Python until the journal has grown, and kills it. False: it came to its end before."""
    child = subprocess.Popen([sys.executable, "-c", code])
    goal = size_of(journal) + growth
    deadline = time.monotonic() + 60
    while size_of(journal) < goal and child.poll() is None:
        assert time.monotonic() < deadline, "the journal does not grow"
    killed = child.poll() is None
    child.send_signal(signal.SIGKILL)
    child.wait()
    return killed


@contextlib.contextmanager
def folder_with(rows):
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "in.jsonl")
        write_rows(source, rows)
        yield folder, source, os.path.join(folder, "out.jsonl")


class Files(unittest.TestCase):
    def test_rows_are_those_of_the_program(self):
        rows = some_rows(200)
        with folder_with(rows) as (_, source, out):
            summary = run_file(source, out, model=DEMO, max_tokens=8, use_tqdm=False)
            self.assertEqual(read_rows(out), plain_run(rows, "--model", DEMO, "--max-tokens", "8"))
            self.assertEqual((summary.rows, summary.ok, summary.failed), (200, 196, 4))
            self.assertEqual((summary.output, summary.stats["exit_code"]), (out, 3))
            self.assertGreater(summary.output_tokens, 200)
            # There is nothing to do.
            again = run_file([source], out, model=DEMO, max_tokens=8, use_tqdm=False)
            self.assertEqual((again.rows, again.reused), (200, 200))
            with self.assertRaises(FileError) as caught:
                run_file(source, out, model=DEMO, max_tokens=9, use_tqdm=False)
            self.assertEqual(
                (caught.exception.code, caught.exception.returncode), ("output_complete", 6)
            )
            self.assertIn("--overwrite", str(caught.exception))

    def test_flags_that_are_the_call_s_own(self):
        for name in ("input", "out", "progress", "unordered"):
            with self.assertRaises(TypeError):
                run_file("a", "b", **{name: "x"}, model=DEMO)
        with self.assertRaisesRegex(ValueError, "no command 'merge'"):
            run_file("a", "b", command="merge")
        with self.assertRaises(FileError) as caught:
            run_file("/no/such/file.jsonl", "/no/out.jsonl", model=DEMO, use_tqdm=False)
        self.assertEqual(caught.exception.returncode, 2)

    def test_a_job_goes_on_after_a_kill(self):
        with folder_with(ROWS) as (_, source, out):
            code = JOB.format(source=source, out=out, model=DEMO)
            kills = sum(kill_while_it_works(code, out + ".journal", 20000) for _ in range(2))
            self.assertGreater(kills, 0)
            summary = run_file(source, out, model=DEMO, threads=1, use_tqdm=False)
            self.assertGreater(summary.reused, 0)
            self.assertEqual(read_rows(out), plain_run(ROWS, "--model", DEMO))


class Journals(unittest.TestCase):
    def test_a_call_goes_on_after_a_kill(self):
        with tempfile.TemporaryDirectory() as folder:
            whole, killed = os.path.join(folder, "whole"), os.path.join(folder, "killed")
            subprocess.run([sys.executable, "-c", CALL.format(model=DEMO, out=whole)], check=True)
            code = CALL.format(model=DEMO, out=killed)
            journal = os.path.join(killed, "answers.jsonl.journal")
            kills = sum(kill_while_it_works(code, journal, 20000) for _ in range(2))
            self.assertGreater(kills, 0)
            subprocess.run([sys.executable, "-c", code], check=True)
            for name in ("answers.jsonl", "done.json"):
                with open(os.path.join(whole, name), "rb") as one:
                    with open(os.path.join(killed, name), "rb") as other:
                        self.assertEqual(one.read(), other.read(), name)

    def test_what_has_changed_is_computed_again(self):
        params = SamplingParams(temperature=0, max_tokens=4)
        prompts = ["1+1=", "2+2=", "3+3="]
        with tempfile.TemporaryDirectory() as journal, LLM(DEMO, threads=1) as llm:

            def ask(prompts, params=params, **options):
                outputs = llm.generate(prompts, params, journal=journal, use_tqdm=False, **options)
                return [output.outputs[0].text for output in outputs]

            plain = llm.generate(prompts, params, use_tqdm=False)
            self.assertEqual(ask(prompts), [output.outputs[0].text for output in plain])
            self.assertEqual(ask(prompts), ["2", "4", "6"])
            self.assertEqual(ask(["1+1=", "5+2=", "3+3="]), ["2", "7", "6"])
            self.assertEqual(ask(["1+1=", "5+2=", "3+3=", "4+4="]), ["2", "7", "6", "8"])
            one = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, logprobs=1)
            (output,) = llm.generate(["5+2="], one, journal=journal + "/one", use_tqdm=False)
            self.assertEqual((output.prompt, len(output.outputs[0].logprobs)), ("5+2=", 1))
            with self.assertRaises(RowError):
                llm.generate(["a" * 3000], one, journal=journal + "/bad", use_tqdm=False)
            self.assertEqual(ask(["1+1=", "5+2=", "3+3=", "4+4="], errors="return")[3], "8")
            with LLM(DEMO, dtype="float32") as other, self.assertRaises(FileError) as caught:
                other.generate(prompts, params, journal=journal, use_tqdm=False)
            self.assertIn("dtype", str(caught.exception))
            # The process of other calls is there again.
            self.assertEqual(llm.generate("6+1=", params, use_tqdm=False)[0].outputs[0].text, "7")

    def test_chats(self):
        messages = [{"role": "user", "content": "2+3="}]
        params = SamplingParams(temperature=0)
        with tempfile.TemporaryDirectory() as journal, LLM(DEMO) as llm:
            (kept,) = llm.chat(messages, params, journal=journal, use_tqdm=False)
            (plain,) = llm.chat(messages, params, use_tqdm=False)
            self.assertEqual(kept.outputs, plain.outputs)
            with open(os.path.join(journal, "prompts.jsonl"), encoding="utf-8") as file:
                self.assertEqual(json.loads(file.readline())["messages"], messages)
            self.assertEqual(
                sorted(os.listdir(journal)),
                ["answers.jsonl", "answers.jsonl.meta.json", "prompts.jsonl"],
            )


if __name__ == "__main__":
    unittest.main()
