"""lm-evaluation-harness over three kinds of tasks, which are files here: no network.

Where transformers and torch are installed too, the harness's own model is the oracle.
"""

import importlib.util
import json
import math
import os
import tempfile
import unittest

import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager

import vllm_batch.lm_eval
from support import DEMO, ROOT
from vllm_batch.lm_eval import VllmBatch

TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{ data_files: {{ test: {data} }} }}
test_split: test
num_fewshot: 0
"""
GENERATES = """
output_type: generate_until
doc_to_text: "{{prompt}}"
doc_to_target: "{{answer}}"
generation_kwargs: { until: ["\\n"], max_gen_toks: 8, do_sample: false, temperature: 0.0 }
metric_list: [{ metric: exact_match, aggregation: mean, higher_is_better: true }]
"""
CHOOSES = """
output_type: multiple_choice
doc_to_text: "{{prompt}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
metric_list: [{ metric: acc, aggregation: mean, higher_is_better: true }]
"""
READS = """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{prompt}}{{answer}}"
metric_list:
  - { metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false }
"""
# The demo's chat template, filled in.
ASKED = "<|bos|><|user|>{}<|end|><|assistant|>"


def documents():
    with open(os.path.join(ROOT, "testdata", "eval.jsonl"), encoding="utf-8") as file:
        rows = [json.loads(line) for line in file][:40]
    answers = [row["answer"] for row in rows]
    for index, row in enumerate(rows):
        others = sorted({answer for answer in answers if answer != row["answer"]})
        choices = [row["answer"], others[index % len(others)], others[(index + 5) % len(others)]]
        shift = index % 3
        choices = choices[-shift:] + choices[:-shift] if shift else choices
        yield {
            "prompt": ASKED.format(row["messages"][0]["content"]),
            "answer": row["answer"],
            "choices": choices,
            "label": choices.index(row["answer"]),
        }


class Harness(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        data = os.path.join(cls.folder.name, "docs.jsonl")
        with open(data, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in documents())
        for name, text in [("generates", GENERATES), ("chooses", CHOOSES), ("reads", READS)]:
            with open(os.path.join(cls.folder.name, name + ".yaml"), "w", encoding="utf-8") as file:
                file.write(TASK.format(name="vb_" + name, data=data) + text)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def results(self, model, arguments, names=("vb_generates", "vb_chooses", "vb_reads")):
        manager = TaskManager(include_path=self.folder.name, include_defaults=False)
        found = lm_eval.simple_evaluate(
            model=model,
            model_args=arguments,
            tasks=list(names),
            task_manager=manager,
            bootstrap_iters=0,
            random_seed=None,
            numpy_random_seed=None,
            torch_random_seed=None,
        )
        return {
            (task, metric): value
            for task, metrics in found["results"].items()
            for metric, value in metrics.items()
            if isinstance(value, float) and "stderr" not in metric
        }

    def test_three_kinds_of_tasks(self):
        found = self.results("vllm-batch", f"pretrained={DEMO},threads=1")
        print(found)
        self.assertGreater(found["vb_generates", "exact_match,none"], 0.8)
        self.assertGreater(found["vb_chooses", "acc,none"], 0.8)
        self.assertTrue(math.isfinite(found["vb_reads", "word_perplexity,none"]))
        if not all(map(importlib.util.find_spec, ["torch", "transformers", "accelerate"])):
            self.skipTest("no transformers and torch to compare with")
        of_harness = self.results("hf", f"pretrained={DEMO},dtype=float32,device=cpu")
        self.assertEqual(found.keys(), of_harness.keys())
        for key, value in of_harness.items():
            self.assertAlmostEqual(found[key] / value, 1, delta=0.02, msg=str(key))


def requests(kind, arguments):
    return [Instance(kind, {}, args, index) for index, args in enumerate(arguments)]


class Requests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = VllmBatch(DEMO, threads=1)

    @classmethod
    def tearDownClass(cls):
        cls.model._engine.close()

    def test_a_text_is_as_likely_as_its_parts(self):
        asked = ASKED.format("What is 2 plus 3?")
        # An empty context is the BOS.
        bare = asked[len("<|bos|>") :]
        pairs = [(asked, "5"), ("", bare), ("", bare + "5")]
        part, begin, whole = self.model.loglikelihood(requests("loglikelihood", pairs))
        self.assertAlmostEqual(part[0] + begin[0], whole[0], places=3)
        self.assertTrue(part[1])
        (rolled,) = self.model.loglikelihood_rolling(
            requests("loglikelihood_rolling", [(bare + "5",)])
        )
        self.assertAlmostEqual(rolled, whole[0], places=3)

    def test_a_text_longer_than_the_context_is_read_in_windows(self):
        text = "the red bird sings. " * 200
        self.assertGreater(len(self.model.tok_encode(text)), 2 * self.model.max_length)
        (rolled,) = self.model.loglikelihood_rolling(requests("loglikelihood_rolling", [(text,)]))
        self.assertTrue(-math.inf < rolled < 0)

    def test_chats_generate_and_have_no_likelihood(self):
        chat = self.model.apply_chat_template([{"role": "user", "content": "2+3="}])
        options = {"until": ["\n"], "max_gen_toks": 4}
        texts = self.model.generate_until(requests("generate_until", [(chat, options)]))
        self.assertEqual(len(texts), 1)
        with self.assertRaisesRegex(NotImplementedError, "need texts"):
            self.model.loglikelihood(requests("loglikelihood", [(chat, "5")]))
        with self.assertRaisesRegex(NotImplementedError, "gen_prefix"):
            self.model.apply_chat_template([], add_generation_prompt=False)

    def test_what_is_not_known_is_refused_by_name(self):
        for options in ({"num_beams": 4}, {"until": "x", "guidance": 2}):
            with self.assertRaisesRegex(ValueError, "generation_kwargs (num_beams|guidance)"):
                self.model.generate_until(requests("generate_until", [("2+3=", options)]))
        with self.assertRaisesRegex(ValueError, "GGUF"):
            VllmBatch(os.path.join(ROOT, "testdata", "gguf", "llama.gguf"))

    def test_samples_of_one_prompt_differ(self):
        options = {"do_sample": True, "temperature": 1.5, "max_gen_toks": 16, "ignore_eos": True}
        asked = [("the", options)] * 8
        texts = self.model.generate_until(requests("generate_until", asked))
        self.assertGreater(len(set(texts)), 1)


if __name__ == "__main__":
    unittest.main()
