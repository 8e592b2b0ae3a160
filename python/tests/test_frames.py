"""Frames and data sets: the same kind comes back, with the columns of the answers."""

import math
import os
import pickle
import tempfile
import unittest

from support import DEMO, FLAGS, ROOT, plain_run
from vllm_batch import LLM, Engine, SamplingParams

COLUMNS = {
    "id": ["a", "b", "c"],
    "prompt": ["1+1=", "2+2=", None],
    "x": [1.0, None, 2.5],
    "response": ["mine", "yours", "his"],
}
ROWS = [dict(zip(COLUMNS, values)) for values in zip(*COLUMNS.values())]
WORDS = ["--model", DEMO, "--temperature", "1", "--max-tokens", "8", "--threads", "1"]


def library(name):
    """A library, or a test that says why it is left out."""
    try:
        return __import__(name)
    except ImportError:
        print(f"SKIP {name}: it is not installed")
        raise unittest.SkipTest(f"{name} is not installed") from None


class Frames(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.engine = Engine(DEMO, **FLAGS)
        cls.expected = plain_run(ROWS, *WORDS)
        cls.responses = [row.get("response") for row in cls.expected]

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()

    def test_the_expected_rows(self):
        self.assertEqual(self.responses[:2], ["2", "4"])
        self.assertEqual(self.expected[2]["error"]["code"], "row_shape")
        self.assertEqual(self.expected[0]["input_response"], "mine")

    def test_pandas(self):
        pandas = library("pandas")
        frame = pandas.DataFrame(COLUMNS, index=[7, 8, 9])
        found = self.engine.run_frame(frame)
        self.assertIs(type(found), pandas.DataFrame)
        self.assertEqual(list(found.index), [7, 8, 9])
        self.assertEqual(list(found["response"])[:2], self.responses[:2])
        self.assertTrue(pandas.isna(found["response"].iloc[2]))
        self.assertEqual(found["error"].iloc[2]["code"], "row_shape")
        self.assertEqual(found["usage"].iloc[0], self.expected[0]["usage"])
        own = found[["id", "prompt", "x"]]
        pandas.testing.assert_frame_equal(own, frame[["id", "prompt", "x"]])
        self.assertEqual(list(found["input_response"]), COLUMNS["response"])
        self.assertEqual(list(frame.columns), list(COLUMNS), "the caller's is as it was")
        self.assertEqual(list(self.engine.run_frame(frame[:0]).columns), list(found.columns))

    def test_what_is_missing_and_what_is_no_number(self):
        pandas, numpy = library("pandas"), library("numpy")
        frame = pandas.DataFrame({"id": [1, 2], "prompt": ["1+1=", "2+2="]})
        frame["nan"] = [numpy.nan, 1.0]
        frame["na"] = pandas.array([None, 5], dtype="Int64")
        frame["when"] = pandas.to_datetime(["2026-11-23", None])
        found = self.engine.run_frame(frame)
        pandas.testing.assert_frame_equal(found[list(frame.columns)], frame)
        self.assertEqual(list(found["response"]), ["2", "4"])
        (row, _) = self.engine.run(frame)
        self.assertEqual((row["nan"], row["na"]), (None, None))

    def test_polars(self):
        polars = library("polars")
        frame = polars.DataFrame({**COLUMNS, "nan": [math.nan, None, 1.0]})
        found = self.engine.run_frame(frame)
        self.assertIsInstance(found, polars.DataFrame)
        self.assertEqual(found["response"].to_list(), self.responses)
        self.assertEqual(found["error"].struct.field("code").to_list(), [None, None, "row_shape"])
        self.assertEqual(found["input_response"].to_list(), COLUMNS["response"])
        # A number that is none stays one, and what is missing stays missing.
        self.assertTrue(found["nan"].equals(frame["nan"], null_equal=True))
        self.assertEqual(found["nan"].null_count(), 1)
        self.assertEqual(found["usage"].dtype, self.engine.run_frame(frame[:0])["usage"].dtype)

    def test_arrow(self):
        pyarrow = library("pyarrow")
        table = pyarrow.table(COLUMNS)
        found = self.engine.run_frame(table)
        self.assertIsInstance(found, pyarrow.Table)
        self.assertEqual(found.column("response").to_pylist(), self.responses)
        self.assertEqual(
            found.column("error").to_pylist(), [row.get("error") for row in self.expected]
        )
        self.assertEqual(found.schema, self.engine.run_frame(table[:0]).schema)
        batch = self.engine.run_frame(table.to_batches()[0])
        self.assertIsInstance(batch, pyarrow.RecordBatch)
        self.assertEqual(batch.to_pylist(), found.to_pylist())

    def test_data_sets(self):
        datasets = library("datasets")
        data = datasets.Dataset.from_dict(COLUMNS)
        found = self.engine.run_frame(data)
        self.assertIsInstance(found, datasets.Dataset)
        self.assertEqual(found["response"][:], self.responses)
        self.assertEqual(found["x"][:], COLUMNS["x"])
        self.assertEqual(found["error"][2]["code"], "row_shape")
        with self.assertRaisesRegex(TypeError, "give one of its splits"):
            self.engine.run(datasets.DatasetDict(train=data))

    def test_data_sets_that_are_read_once(self):
        datasets = library("datasets")
        data = datasets.Dataset.from_dict(COLUMNS).to_iterable_dataset()
        found = self.engine.run_frame(data)
        self.assertIsInstance(found, datasets.IterableDataset)
        rows = list(found)
        self.assertEqual([row["response"] for row in rows], self.responses)
        self.assertEqual([row["error"][:9] for row in rows], ["", "", "row_shape"])

    def test_maps_of_data_sets(self):
        datasets = library("datasets")
        datasets.disable_progress_bars()
        prompts = [f"{index}+1=" for index in range(9)]
        data = datasets.Dataset.from_dict({"prompt": prompts})
        options = {"batched": True, "batch_size": 4, "with_indices": True}
        # The random numbers of a row are those of its place in the whole, whatever the batches.
        rows = [{"id": index, "prompt": prompt} for index, prompt in enumerate(prompts)]
        expected = [row["response"] for row in plain_run(rows, *WORDS)]
        for kind in (None, "arrow", "pandas"):
            if kind == "pandas":
                library("pandas")
            found = data.with_format(kind).map(self.engine.batch, **options).with_format(None)
            self.assertEqual(found["response"][:], expected, kind)
        self.assertEqual(data.map(self.engine.batch, **options)["completion_tokens"][0], 2)
        with self.assertRaisesRegex(ValueError, "with_indices=True"):
            self.engine.batch({"prompt": prompts})

    def test_columns_and_other_things_are_no_rows(self):
        for name, make in [
            ("pandas", lambda module: module.Series(["1+1="])),
            ("polars", lambda module: module.Series(["1+1="])),
            ("pyarrow", lambda module: module.chunked_array([["1+1="]])),
        ]:
            with self.subTest(library=name):
                column = make(library(name))
                with self.assertRaisesRegex(TypeError, "which is a column: give its frame"):
                    self.engine.run(column)
        for wrong in ("text", 7, [1]):
            with self.assertRaisesRegex(TypeError, "is no frame"):
                self.engine.run_frame(wrong)

    def test_columns_are_prompts(self):
        with LLM(DEMO) as llm:
            for name in ("pandas", "polars"):
                with self.subTest(library=name):
                    frame = library(name).DataFrame({"prompt": ["1+1=", "2+2="]})
                    outputs = llm.generate(
                        frame["prompt"], SamplingParams(temperature=0), use_tqdm=False
                    )
                    self.assertEqual([one.outputs[0].text for one in outputs], ["2", "4"])
                    with self.assertRaisesRegex(TypeError, "one of its columns"):
                        llm.generate(frame)

    def test_vectors_have_a_type(self):
        pyarrow = library("pyarrow")
        model = os.path.join(ROOT, "testdata", "golden_embeddings", "bert")
        with Engine(model, command="embed") as engine:
            table = engine.run_frame(pyarrow.table({"id": [1, 2], "text": ["a cat", "x"]}))
            empty = engine.run_frame(pyarrow.table({"id": [], "text": []}))
        self.assertEqual(table.schema.field("embedding").type, pyarrow.list_(pyarrow.float32()))
        self.assertEqual(table.schema.names, empty.schema.names)
        self.assertEqual(len(table.column("embedding")[0].as_py()), 32)

    def test_answers_of_another_name(self):
        pyarrow = library("pyarrow")
        with Engine(DEMO, out_field="sum", **FLAGS) as engine:
            table = engine.run_frame(pyarrow.table({"id": [1], "prompt": ["1+1="]}))
            names = ["id", "prompt", "sum", "finish_reason", "usage", "error"]
            self.assertEqual(table.schema.names, names)

    def test_an_engine_is_sent_to_other_processes(self):
        copy = pickle.loads(pickle.dumps(self.engine))
        self.assertIsNone(copy.pid)
        self.assertEqual(list(copy.run(ROWS)), self.expected)
        self.assertNotEqual(copy.pid, self.engine.pid)
        copy.close()

    def test_images_of_data_sets(self):
        image = library("PIL.Image").Image.new("RGB", (8, 8), "red")
        model = os.path.join(ROOT, "testdata", "demo-vision")
        rows = [{"id": 1, "prompt": "What colour?", "image": image}]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.png")
            image.save(path)
            words = ["--model", model, "--allowed-local-media-path", folder]
            (expected,) = plain_run([{**rows[0], "image": path}], *words)
        with Engine(model) as engine:
            (found,) = engine.run(rows)
        self.assertEqual(found["response"], expected["response"])
        self.assertIn("response", found)
        self.assertNotIn("error", found)
        # And in a chat of `LLM`.
        text = {"type": "text", "text": "What colour?"}
        content = [{"type": "image_pil", "image_pil": image}, text]
        with LLM(model) as llm:
            params = SamplingParams(temperature=0)
            messages = [{"role": "user", "content": content}]
            (output,) = llm.chat(messages, params, use_tqdm=False)
            (other,) = llm.chat([{"role": "user", "content": [text]}], params, use_tqdm=False)
        self.assertEqual(output.outputs[0].text, expected["response"])
        self.assertGreater(len(output.prompt_token_ids), len(other.prompt_token_ids))


if __name__ == "__main__":
    unittest.main()
