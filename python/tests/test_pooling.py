"""Vectors, classes and scores through `LLM`: the program's numbers, as vLLM's objects."""

import importlib.util
import os
import struct
import unittest

from support import DEMO, ROOT, plain_run
from vllm_batch import LLM, PoolingParams, RowError
from vllm_batch.pooler_config import PoolerConfig

BERT = os.path.join(ROOT, "testdata", "golden_embeddings", "bert")
CROSS = os.path.join(ROOT, "testdata", "golden_scores", "bert")
CLASSES = os.path.join(ROOT, "testdata", "golden_classifiers")
TEXTS = ["a red bird", "two cats", "x", "the cat sits outside"]


def widened(values):
    """Numbers of the output as 32-bit floats."""
    return [struct.unpack("f", struct.pack("f", value))[0] for value in values]


def written(command, model, *words, rows=None):
    rows = rows or [{"id": str(i), "text": text} for i, text in enumerate(TEXTS)]
    return plain_run(rows, "--model", model, *words, command=command)


class Vectors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(BERT, runner="pooling")

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()

    def test_vectors_are_the_program_s(self):
        outputs = self.llm.embed(TEXTS, use_tqdm=False)
        expected = [widened(row["embedding"]) for row in written("embed", BERT)]
        self.assertEqual([output.outputs.embedding for output in outputs], expected)
        self.assertEqual(outputs[0].outputs.hidden_size, 32)
        params = PoolingParams(use_activation=False)
        (raw,) = self.llm.embed(TEXTS[0], pooling_params=params, use_tqdm=False)
        (row,) = written("embed", BERT, "--no-normalize", rows=[{"id": 0, "text": TEXTS[0]}])
        self.assertEqual(raw.outputs.embedding, widened(row["embedding"]))

    def test_token_ids(self):
        (output,) = self.llm.embed([[2, 5, 6]], use_tqdm=False)
        self.assertEqual(output.prompt_token_ids, [2, 5, 6])
        (output,) = self.llm.embed("a", use_tqdm=False)
        with self.assertRaisesRegex(NotImplementedError, "get_tokenizer"):
            output.prompt_token_ids
        self.assertIn("EmbeddingOutput", repr(output))

    def test_the_first_of_one_process_and_another(self):
        # One process at a time, for whichever command is asked for.
        before = self.llm.embed(TEXTS, use_tqdm=False)
        scores = self.llm.score(TEXTS[0], TEXTS, use_tqdm=False)
        self.assertAlmostEqual(scores[0].outputs.score, 1.0, places=6)
        after = self.llm.embed(TEXTS, use_tqdm=False)
        self.assertEqual(
            [one.outputs.embedding for one in after], [one.outputs.embedding for one in before]
        )

    def test_texts_that_cannot_be_answered(self):
        with self.assertRaises(RowError) as caught:
            self.llm.embed(["a", [10**9]], use_tqdm=False)
        self.assertEqual((caught.exception.index, caught.exception.code), (1, "invalid_prompt"))
        with self.assertRaisesRegex(ValueError, "this model makes vectors"):
            self.llm.classify("a")
        with self.assertRaisesRegex(ValueError, "makes no text"):
            self.llm.generate("a")
        with self.assertRaisesRegex(NotImplementedError, "PoolingParams.step_tag_id"):
            self.llm.embed("a", pooling_params=PoolingParams(step_tag_id=3))
        with self.assertRaisesRegex(ValueError, "pooling_task is None: give one of embed"):
            self.llm.encode("a")

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "numpy is not installed")
    def test_tensors(self):
        (whole,) = self.llm.encode("a red bird", pooling_task="embed", use_tqdm=False)
        (tokens,) = self.llm.encode("a red bird", pooling_task="token_embed", use_tqdm=False)
        self.assertEqual(
            (tuple(whole.outputs.data.shape), tokens.outputs.data.shape[1]), ((32,), 32)
        )
        (same,) = self.llm.embed("a red bird", use_tqdm=False)
        self.assertEqual(whole.outputs.data.tolist(), same.outputs.embedding)


class Classes(unittest.TestCase):
    def test_classes_are_the_program_s(self):
        model = os.path.join(CLASSES, "bert")
        with LLM(model, tokenizer=BERT) as llm:
            outputs = llm.classify(TEXTS, use_tqdm=False)
            raw = llm.classify(
                TEXTS, pooling_params=PoolingParams(use_activation=False), use_tqdm=False
            )
        expected = [
            widened(row["probs"]) for row in written("classify", model, "--tokenizer", BERT)
        ]
        self.assertEqual([output.outputs.probs for output in outputs], expected)
        self.assertEqual(outputs[0].outputs.num_classes, 3)
        self.assertNotEqual(raw[0].outputs.probs, outputs[0].outputs.probs)

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "numpy is not installed")
    def test_rewards_and_tokens(self):
        with LLM(os.path.join(CLASSES, "qwen2_reward"), tokenizer=BERT) as llm:
            (output,) = llm.reward("a red bird", use_tqdm=False)
        self.assertEqual(tuple(output.outputs.data.shape), (1,))
        with LLM(os.path.join(CLASSES, "bert_tokens"), tokenizer=BERT) as llm:
            (output,) = llm.encode("a red bird", pooling_task="token_classify", use_tqdm=False)
            self.assertEqual(output.outputs.data.shape[1], 4)
            labels = llm.llm_engine.vllm_config.model_config.hf_config.id2label
            self.assertEqual(len(labels), 4)
            with self.assertRaisesRegex(ValueError, "the model does the other"):
                llm.encode("a red bird", pooling_task="classify")


class Scores(unittest.TestCase):
    def test_scores_are_the_program_s(self):
        rows = [{"id": str(i), "text_1": "a cat", "text_2": text} for i, text in enumerate(TEXTS)]
        expected = [row["score"] for row in written("score", CROSS, rows=rows)]
        with LLM(CROSS, runner="pooling") as llm:
            found = llm.score("a cat", TEXTS, use_tqdm=False)
            self.assertEqual([one.outputs.score for one in found], widened(expected))
            found = llm.score(["a cat"] * 4, TEXTS, use_tqdm=False)
            self.assertEqual([one.outputs.score for one in found], widened(expected))
            for pair in (["a", "b"], TEXTS), (["a", "b"], ["c"]):
                with self.assertRaisesRegex(ValueError, "give one to many, or as many"):
                    llm.score(*pair)

    def test_a_language_model_as_a_reranker(self):
        template = os.path.join(ROOT, "docs", "templates", "qwen3_reranker.jinja")
        options = {"classifier_from_token": "0,1", "chat_template": template}
        rows = [{"id": "0", "text_1": "a cat", "text_2": "a dog"}]
        words = ["--classifier-from-token", "0,1", "--chat-template", template]
        (row,) = written("score", DEMO, *words, rows=rows)
        with LLM(DEMO, convert="classify", **options) as llm:
            (found,) = llm.score("a cat", "a dog", use_tqdm=False)
        self.assertEqual([found.outputs.score], widened([row["score"]]))
        # The template of a call.
        with LLM(DEMO, convert="classify", classifier_from_token="0,1") as llm:
            (same,) = llm.score("a cat", "a dog", use_tqdm=False, chat_template=template)
        self.assertEqual(same.outputs.score, found.outputs.score)

    def test_late_interaction_by_a_pooler(self):
        rows = [{"id": "0", "text_1": "a cat", "text_2": "a dog"}]
        (row,) = written("score", BERT, "--pooling-type", "ALL", rows=rows)
        with LLM(BERT, pooler_config=PoolerConfig(task="token_embed")) as llm:
            (found,) = llm.score("a cat", "a dog", use_tqdm=False)
        self.assertEqual([found.outputs.score], widened([row["score"]]))
        with self.assertRaisesRegex(NotImplementedError, "PoolerConfig.logit_mean"):
            PoolerConfig(logit_mean=1.0)
        with self.assertRaisesRegex(ValueError, "pooling_type is 'STEP'"):
            LLM(BERT, pooler_config={"pooling_type": "STEP"})


if __name__ == "__main__":
    unittest.main()
