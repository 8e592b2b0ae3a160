"""lm-evaluation-harness over three kinds of tasks, which are files here, by the server and by our own
model of the harness (`python/vllm_batch/lm_eval.py`): no prediction differs."""

import json
import os
import sys
import tempfile

from server import DEMO, ROOT, Server

sys.path.insert(0, os.path.join(ROOT, "python"))

TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{ data_files: {{ test: {data} }} }}
test_split: test
num_fewshot: 0
"""
OPTIONS = "generation_kwargs: { until: UNTIL, max_gen_toks: 8, do_sample: false, temperature: 0.0 }"
TASKS = {
    "serve_generates": """
output_type: generate_until
doc_to_text: "{{prompt}}"
doc_to_target: "{{answer}}"
metric_list: [{ metric: exact_match, aggregation: mean, higher_is_better: true }]
"""
    + OPTIONS.replace("UNTIL", r'["\n", "4", "Q:", "</s>", "\n\n"]'),
    "serve_chats": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
metric_list: [{ metric: exact_match, aggregation: mean, higher_is_better: true }]
"""
    + OPTIONS.replace("UNTIL", r'["\n"]'),
    "serve_chooses": """
output_type: multiple_choice
doc_to_text: "{{prompt}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
metric_list: [{ metric: acc, aggregation: mean, higher_is_better: true }]
""",
    "serve_reads": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - { metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false }
""",
}
# The demo's chat template, filled in.
ASKED = "<|bos|><|user|>{}<|end|><|assistant|>"
# The harness keeps a place for the token that it does not read.
SERVED_LENGTH = 512
OURS = {"pretrained": DEMO, "threads": 1, "max_model_len": SERVED_LENGTH - 1}


def documents():
    with open(os.path.join(ROOT, "testdata", "eval.jsonl"), encoding="utf-8") as file:
        rows = [json.loads(line) for line in file][:40]
    answers = sorted({row["answer"] for row in rows})
    for index, row in enumerate(rows):
        question, answer = row["messages"][0]["content"], row["answer"]
        others = [other for other in answers if other != answer]
        choices = [others[index % len(others)], others[(index + 5) % len(others)]]
        choices.insert(index % 3, answer)
        prompt = ASKED.format(question)
        yield {
            "question": question,
            "prompt": prompt,
            "answer": answer,
            "choices": choices,
            "label": choices.index(answer),
            # One is read in several windows.
            "text": (question + answer) * (60 if index == 7 else 1),
        }


def write_tasks(folder):
    data = os.path.join(folder, "docs.jsonl")
    with open(data, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in documents())
    for name, text in TASKS.items():
        with open(os.path.join(folder, name + ".yaml"), "w", encoding="utf-8") as file:
            file.write(TASK.format(name=name, data=data) + text)


def results(folder, model, arguments, tasks, **options):
    """Metrics of tasks, and the answers to each of their requests."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    found = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=tasks,
        task_manager=TaskManager(include_path=folder, include_defaults=False),
        bootstrap_iters=0,
        random_seed=None,
        numpy_random_seed=None,
        torch_random_seed=None,
        **options,
    )
    metrics = {
        (task, metric): value
        for task, metrics in found["results"].items()
        for metric, value in metrics.items()
        if isinstance(value, float) and "stderr" not in metric
    }
    answers = {
        task: [(sample["doc_id"], sample["resps"]) for sample in samples]
        for task, samples in found["samples"].items()
    }
    return metrics, answers


def check_equal(ours, theirs):
    """Answers to the same requests are equal: texts, and likelihoods to the last bit."""
    (metrics, answers), (other_metrics, other_answers) = ours, theirs
    assert answers.keys() == other_answers.keys()
    for task, found in answers.items():
        assert len(found) == 40, task
        for mine, other in zip(sorted(found), sorted(other_answers[task]), strict=True):
            assert mine == other, (task, mine, other)
    assert metrics == other_metrics, (metrics, other_metrics)


def check(binary):
    os.environ.setdefault("TQDM_DISABLE", "1")
    # The harness's own model of a server is asked for a key.
    os.environ.setdefault("OPENAI_API_KEY", "none")
    os.environ["PATH"] = os.path.dirname(binary) + os.pathsep + os.environ["PATH"]
    import vllm_batch.lm_eval  # noqa: F401

    texts = [name for name in TASKS if name != "serve_chats"]
    with tempfile.TemporaryDirectory() as folder, Server(binary) as server:
        write_tasks(folder)
        ours = results(folder, "vllm-batch", OURS, texts)
        print(ours[0])
        common = {
            "model": server.name,
            "max_retries": 1,
            # The harness takes BOS for none where its id is 0, as the demo's is.
            "custom_prefix_token_id": 0,
            "max_length": SERVED_LENGTH,
        }
        completions = {"base_url": f"{server.url}/v1/completions", **common}
        for more in (
            {"tokenizer_backend": "remote"},
            {"batch_size": 8},
            {"num_concurrent": 8},
        ):
            check_equal(results(folder, "local-completions", completions | more, texts), ours)
        chats = {"apply_chat_template": True}
        ours = results(folder, "vllm-batch", OURS, ["serve_chats"], **chats)
        print(ours[0])
        asked = {"base_url": f"{server.url}/v1/chat/completions", **common, "num_concurrent": 8}
        check_equal(
            results(folder, "local-chat-completions", asked, ["serve_chats"], **chats), ours
        )
