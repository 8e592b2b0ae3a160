"""`Engine`: the program's rows through pipes, whatever happens to the process."""

import datetime
import importlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

from support import DEMO, FLAGS, ROOT, WORDS, plain_run, some_rows
from vllm_batch import Engine, EngineError, find_binary
from vllm_batch.command import COMMANDS, OPPOSITES, arguments
from vllm_batch.rows import line_of, name_of


class Number:
    """As NumPy's scalars: `json` does not know it."""

    def __init__(self, value):
        self.value = value

    def tolist(self):
        return self.value


class Pandas:
    """As a frame of pandas: its items are the names of its columns."""

    def __init__(self, names, values):
        self.columns, self.values = names, values

    def __iter__(self):
        return iter(self.columns)

    def itertuples(self, index, name):
        return iter(self.values)


class Polars:
    """As a frame of polars: its items are columns."""

    def __init__(self, names, values):
        self.columns, self.values = names, values

    def __iter__(self):
        return iter(self.columns)

    def iter_rows(self, named):
        return (dict(zip(self.columns, value)) for value in self.values)


class Arrow:
    """As a table of pyarrow."""

    def __init__(self, names, values):
        self.column_names, self.values = names, values

    def to_batches(self, max_chunksize):
        return [self]

    def to_pylist(self):
        return [dict(zip(self.column_names, value)) for value in self.values]


class Rows(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.engine = Engine(DEMO, **FLAGS)

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()

    def test_rows_are_those_of_one_run_in_their_order(self):
        rows = some_rows(300)
        expected = plain_run(rows, "--model", DEMO, *WORDS)
        self.assertEqual(list(self.engine.run(rows)), expected)
        # Of the same process again, and from the end to the beginning: nothing but the row counts.
        self.assertEqual(list(self.engine.run(rows[::-1])), expected[::-1])

    def test_rows_as_they_finish_are_the_same_rows(self):
        rows = [{"id": "long", "prompt": "a", "max_tokens": 400, "ignore_eos": True}]
        rows += some_rows(60)
        expected = list(self.engine.run(rows))
        found = list(self.engine.run(rows, ordered=False))
        self.assertNotEqual(found[0]["id"], "long")
        key = lambda row: str(row["id"])  # noqa: E731
        self.assertEqual(sorted(found, key=key), sorted(expected, key=key))

    def test_rows_without_names_get_their_index(self):
        rows = ["1+1=", {"prompt": "2+2=", "x": 5}, {"id": None, "text": "a"}]
        answers = list(self.engine.run(rows))
        self.assertEqual([row["id"] for row in answers], [0, 1, 2])
        self.assertEqual(answers[1]["x"], 5)
        named = list(self.engine.run([{"id": 0, "prompt": "1+1="}]))
        self.assertEqual(answers[0], named[0])

    def test_values_that_json_does_not_know(self):
        row = {"id": Number(7), "prompt": "1+1=", "max_tokens": Number(2), "list": [Number([1, 2])]}
        row["when"] = datetime.date(2026, 11, 23)
        (answer,) = self.engine.run([row])
        self.assertEqual((answer["id"], answer["max_tokens"]), (7, 2))
        self.assertEqual((answer["list"], answer["when"]), ([[1, 2]], "2026-11-23"))
        refused = [(float("inf"), ValueError), (b"bytes", TypeError), ("\ud800", ValueError)]
        for value, error in refused:
            with self.assertRaisesRegex(error, "row 5: "):
                list(self.engine.run([{"id": 5, "prompt": "a", "field": value}]))
        for kind, item in [("int", 3), ("bytes", b"a"), ("list", ["ab", "cd"]), ("NoneType", None)]:
            with self.assertRaisesRegex(TypeError, f"row 1 is a {kind}"):
                self.engine.run(["a", item])
            with self.assertRaisesRegex(TypeError, f"row 1 is a {kind}"):
                list(self.engine.run(iter(["a", item])))
        with self.assertRaisesRegex(TypeError, "a field named 7"):
            list(self.engine.run([{7: "a"}]))

    def test_nan_is_null(self):
        nan = float("nan")
        row = {"id": nan, "prompt": "1+1=", "temperature": nan, "x": [1, Number(nan)]}
        (answer,) = self.engine.run([row])
        expected = {"id": 0, "prompt": "1+1=", "temperature": None, "x": [1, None]}
        self.assertEqual({name: answer[name] for name in expected}, expected)

    def test_what_is_no_list_of_rows_is_refused_at_once(self):
        for kind, rows in [
            ("str", "2+3="),
            ("bytes", b"2+3="),
            ("bytearray", bytearray(b"2+3=")),
            ("dict", {"prompt": "2+3="}),
            ("int", 7),
            ("NoneType", None),
        ]:
            with self.assertRaisesRegex(TypeError, f"rows are a {kind}"):
                self.engine.run(rows)

    def test_the_records_of_frames_are_rows(self):
        records = [{"id": "a", "prompt": "1+1="}, {"id": "b", "prompt": "2+2="}]
        expected = list(self.engine.run(records))
        names, values = ["id", "prompt"], [tuple(row.values()) for row in records]
        for frame in (Pandas(names, values), Polars(names, values), Arrow(names, values)):
            self.assertEqual(list(self.engine.run(frame)), expected, type(frame).__name__)
        with self.assertRaisesRegex(TypeError, "a column is named 0"):
            self.engine.run(Pandas([0], [("a",)]))
        with self.assertRaisesRegex(TypeError, "two columns are named 'a'"):
            self.engine.run(Pandas(["a", "a"], [("a", "b")]))

    def test_frames_of_the_libraries_that_are_there(self):
        columns = {"id": ["a", "b"], "prompt": ["1+1=", "2+2="], "x": [1.0, None]}
        rows = [{"id": "a", "prompt": "1+1=", "x": 1.0}, {"id": "b", "prompt": "2+2=", "x": None}]
        expected = list(self.engine.run(rows))
        for library, make in [
            ("pandas", lambda module: module.DataFrame(columns)),
            ("polars", lambda module: module.DataFrame(columns)),
            ("pyarrow", lambda module: module.table(columns)),
            ("pyarrow", lambda module: module.RecordBatch.from_pydict(columns)),
        ]:
            with self.subTest(library=library):
                try:
                    module = importlib.import_module(library)
                except ImportError:
                    self.skipTest(f"{library} is not installed")
                self.assertEqual(list(self.engine.run(make(module))), expected)

    def test_two_rows_of_one_name_are_answered_one_after_the_other(self):
        rows = [{"id": 7, "prompt": f"{i % 10}+1="} for i in range(12)]
        rows += [{"id": "7", "prompt": "3+3="}]
        answers = list(self.engine.run(rows))
        self.assertEqual([row["prompt"] for row in answers], [row["prompt"] for row in rows])

    def test_a_row_that_cannot_be_read_is_found_by_its_line(self):
        deep = value = []
        for _ in range(200):
            value.append([])
            value = value[0]
        rows = [{"id": "a", "prompt": "1+1="}, {"id": "deep", "prompt": "a", "x": deep}, "2+2="]
        answers = list(self.engine.run(rows))
        self.assertEqual([row["id"] for row in answers], ["a", "deep", 2])
        self.assertEqual(answers[1]["error"]["code"], "bad_json")

    def test_batch_requests_are_known_by_custom_id(self):
        body = {"model": "m", "prompt": "1+1=", "max_tokens": 2}
        request = {"method": "POST", "url": "/v1/completions", "body": body}
        with Engine(DEMO, **FLAGS) as engine:
            rows = [{"custom_id": name, **request} for name in ("b", "a", "c")]
            answers = list(engine.run(rows))
            self.assertEqual([row["custom_id"] for row in answers], ["b", "a", "c"])
            with self.assertRaisesRegex(TypeError, "without `custom_id`"):
                list(engine.run([request]))

    def test_more_than_the_pipes_hold_goes_through(self):
        rows = [{"id": i, "prompt": "1+1=", "text": "x" * 3000} for i in range(2000)]
        count = sum(len(row["text"]) == 3000 for row in self.engine.run(rows))
        self.assertEqual(count, 2000)

    def test_an_error_of_the_rows_is_raised_where_answers_are_taken(self):
        def rows():
            yield "1+1="
            raise OSError("the dataset is gone")

        with self.assertRaisesRegex(OSError, "the dataset is gone"):
            list(self.engine.run(rows()))
        self.assertEqual(len(list(self.engine.run(["1+1="]))), 1, "another process does it")
        self.assertEqual(list(self.engine.run([])), [])

    def test_a_run_that_is_left_ends_its_process(self):
        answers = self.engine.run(some_rows(500))
        next(answers)
        before = self.engine.pid
        answers.close()
        self.assertIsNone(self.engine.pid)
        self.assertEqual(len(list(self.engine.run(["1+1="]))), 1)
        self.assertNotEqual(self.engine.pid, before)

    def test_runs_of_one_thread_are_taken_in_turns(self):
        rows = some_rows(40)
        expected = list(self.engine.run(rows))
        before = self.engine.pid
        for ordered in (True, False):
            outer, seen = self.engine.run(rows), []
            for index, row in enumerate(outer):
                seen.append(row)
                if index % 10 == 0:
                    # Rows of the same names, and of others.
                    inner = self.engine.run(rows, ordered=ordered)
                    self.assertIn(next(inner), expected)
                    (asked,) = self.engine.run([{"id": "q", "prompt": row["prompt"]}])
                    self.assertEqual(asked["prompt"], row["prompt"])
                    self.assertEqual(len(list(inner)), len(rows) - 1)
                    # Left before its end.
                    left = self.engine.run(rows)
                    self.assertEqual(next(left), expected[0])
                    left.close()
            self.assertEqual(seen, expected)
        # One that was begun and is never read on is in nobody's way.
        half = self.engine.run(rows)
        next(half)
        self.assertEqual(list(self.engine.run(rows)), expected)
        self.assertEqual(list(half), expected[1:])
        self.assertEqual(self.engine.pid, before)

    def test_threads_run_rows_at_once(self):
        rows = some_rows(60)
        expected = list(self.engine.run(rows))
        outer, found = self.engine.run(rows), {}
        next(outer)

        def run(thread):
            named = [{**row, "id": f"{thread}-{row['id']}", "seed": 5} for row in rows]
            found[thread] = [row.get("response") for row in self.engine.run(named)]

        threads = [threading.Thread(target=run, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(list(outer), expected[1:])
        self.assertEqual([found[index] for index in range(4)], [found[0]] * 4)
        self.assertEqual(len(found[0]), len(rows))

    def test_a_process_that_ends_ends_the_runs_of_all_threads(self):
        begun, killed, ends = threading.Barrier(4), threading.Event(), []
        with Engine(DEMO, **FLAGS) as engine:

            def rows(thread):
                yield {"id": f"{thread}-first", "prompt": "1+1="}
                killed.wait()
                yield {"id": f"{thread}-last", "prompt": "1+1="}

            def run(thread):
                answers = engine.run(rows(thread))
                next(answers)
                begun.wait()
                try:
                    next(answers)
                except EngineError as error:
                    ends.append(error.returncode)

            threads = [threading.Thread(target=run, args=(index,)) for index in range(3)]
            for thread in threads:
                thread.start()
            begun.wait()
            os.kill(engine.pid, signal.SIGKILL)
            while engine.pid is not None:
                pass
            killed.set()
            for thread in threads:
                thread.join()
            self.assertEqual(ends, [-signal.SIGKILL] * 3)
            self.assertEqual(len(list(engine.run(["1+1="]))), 1)


class Memory(unittest.TestCase):
    def test_rows_are_read_only_so_far_ahead(self):
        taken = []

        def rows():
            for index in range(1000):
                taken.append(index)
                yield {"id": index, "prompt": "1+1=", "max_tokens": 1}

        with Engine(DEMO, max_pending=10, **FLAGS) as engine:
            answers = engine.run(rows())
            for number in range(1, 1001):
                next(answers)
                # Handed out, under way, and the one that waits to be sent.
                self.assertLessEqual(len(taken), number + 10 + 1)
            self.assertEqual(list(answers), [])


class Ends(unittest.TestCase):
    def test_a_killed_process_is_an_error_that_another_try_may_not_meet(self):
        rows = some_rows(400)
        expected = plain_run(rows, "--model", DEMO, *WORDS)
        with Engine(DEMO, **FLAGS) as engine:
            answers = engine.run(rows)
            next(answers)
            os.kill(engine.pid, signal.SIGKILL)
            with self.assertRaises(EngineError) as caught:
                list(answers)
            self.assertEqual(caught.exception.returncode, -signal.SIGKILL)
            self.assertTrue(caught.exception.is_transient)
            self.assertIn("signal 9", str(caught.exception))
            self.assertEqual(list(engine.run(rows)), expected)

    def test_a_model_that_cannot_be_loaded_is_an_error_with_the_reason(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertLogs("vllm_batch"), self.assertRaises(EngineError) as caught:
                Engine(folder)
            self.assertEqual(caught.exception.returncode, 7)
            self.assertFalse(caught.exception.is_transient)
            self.assertIn("config.json", str(caught.exception))
        with self.assertLogs("vllm_batch"), self.assertRaises(EngineError) as caught:
            Engine(DEMO, temprature=1)
        self.assertEqual(caught.exception.returncode, 2)
        self.assertIn("a similar flag", str(caught.exception))

    def test_a_run_that_gives_up_is_an_error(self):
        with Engine(DEMO, max_errors=3, **FLAGS) as engine:
            rows = [{"id": index, "prompt": 5} for index in range(10)]
            with self.assertLogs("vllm_batch"), self.assertRaises(EngineError) as caught:
                list(engine.run([{"id": "first", "prompt": "a"}, *rows]))
            self.assertEqual(caught.exception.returncode, 5)

    def test_an_engine_that_is_closed_runs_nothing(self):
        engine = Engine(DEMO)
        self.assertGreater(engine.max_model_len, 1)
        self.assertRegex(engine.version, r"^\d+\.\d+\.\d+")
        engine.close()
        engine.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            engine.run(["a"])

    def test_an_interpreter_ends_well_with_an_engine_that_nobody_closed(self):
        begin = f"import sys, vllm_batch; engine = vllm_batch.Engine({DEMO!r}, max_tokens=4)\n"
        rows = "rows = ({'prompt': f'{i}+1=', 'x': 'y' * 9999} for i in range(100000))\n"
        for code, expected in [
            ("list(engine.run(['1+1=']))", 0),
            ("", 0),
            ("answers = engine.run(rows); next(answers)", 0),
            ("answers = engine.run(rows); next(answers); sys.exit(9)", 9),
            ("engine.me = engine; answers = engine.run(rows); next(answers)", 0),
            ("next(engine.run(rows)); print(1 / 0)", 1),
        ]:
            words = [sys.executable, "-c", begin + rows + code]
            ended = subprocess.run(words, capture_output=True, text=True, timeout=60)
            self.assertEqual(ended.returncode, expected, (code, ended.stderr))
            self.assertNotIn("Fatal Python error", ended.stderr)

    def test_no_thread_and_no_process_is_left(self):
        before = threading.active_count()
        with Engine(DEMO, **FLAGS) as engine:
            pid = engine.pid
            list(engine.run(["1+1="]))
        self.assertEqual(threading.active_count(), before)
        with self.assertRaises(ProcessLookupError):
            os.kill(pid, 0)


class Commands(unittest.TestCase):
    def test_other_commands_speak_the_protocol(self):
        model = os.path.join(ROOT, "testdata", "golden_embeddings", "bert")
        rows = [{"id": index, "text": "red bird " * index} for index in range(1, 20)]
        expected = plain_run(rows, "--model", model, command="embed")
        with Engine(model, command="embed") as engine:
            self.assertEqual(list(engine.run(rows)), expected)
        with self.assertRaisesRegex(ValueError, "no command"):
            Engine(model, command="merge")

    def test_flags(self):
        flags = {"max_tokens": 5, "stop": ["a", "-b"], "enforce_eager": True, "logprobs": None}
        words = ["--max-tokens=5", "--stop=a", "--stop=-b", "--enforce-eager"]
        self.assertEqual(arguments(flags), words)
        self.assertEqual(arguments({"enforce_eager": False, "chat": False}), ["--no-chat"])
        flags = {"chat_template_kwargs": {"a": False}, "logit_bias": {5: -1.5}}
        words = ['--chat-template-kwargs={"a": false}', "--logit-bias=5=-1.5"]
        self.assertEqual(arguments(flags), words)
        outputs = {"structured_outputs": {"choice": ["a", "b"], "regex": None}}
        self.assertEqual(
            arguments(outputs), ["--structured-outputs.choice=a", "--structured-outputs.choice=b"]
        )
        for value in (b"a", {1, 2}, object()):
            with self.assertRaisesRegex(TypeError, "stop: a "):
                arguments({"stop": value})
        for model in (None, 7, "", ["a"]):
            with self.assertRaisesRegex(TypeError, "model is "):
                Engine(model)
        with self.assertRaisesRegex(TypeError, "shard cannot be given"):
            Engine(DEMO, shard="0/2")

    def test_flags_that_have_an_opposite_are_known(self):
        found = set()
        # Of a table without a header: there is no flag that says the opposite.
        alone = {"header"}
        for command in COMMANDS:
            words = [find_binary(), command, "--help", "-v"]
            text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            found.update(re.findall(r"^ +(?:-\w, )?--no-([a-z-]+)", text, re.M))
        self.assertEqual({f"--no-{name}" for name in found - alone}, set(OPPOSITES.values()))

    def test_names(self):
        self.assertEqual(name_of({"id": 7}), name_of({"id": "7"}))
        self.assertEqual(name_of({"id": "", "custom_id": "x"}), "x")
        self.assertEqual(name_of({"id": 1, "custom_id": "x", "body": {}}), "x")
        for row in ({}, {"id": None}, {"id": True}, {"id": [1]}):
            self.assertIsNone(name_of(row))
        line = '{"id": 1, "prompt": "é\\n"}\n'.encode("utf-8")
        self.assertEqual(line_of({"id": 1, "prompt": "é\n"}), line)


if __name__ == "__main__":
    unittest.main()
