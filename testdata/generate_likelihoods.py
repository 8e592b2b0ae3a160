"""How likely texts are: writes `likelihoods.json` by lm-evaluation-harness's `hf` model.

    pip install "lm-eval[hf]==0.4.13" "transformers==5.23.0" "torch==2.15.0"
    python testdata/generate_likelihoods.py
"""

import json
import re
from pathlib import Path

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

HERE = Path(__file__).parent
# Folders, and the context that they are given: some texts do not fit.
MODELS = {"demo": 64, "golden/llama2": 48, "golden/llama3": 48, "golden/gpt2": 48}

QUESTIONS = [
    ("What is 2+3?", ["5", "6", "seven", "five hundred"]),
    # White space at the end goes over to the choices.
    ("Answer: ", ["yes", "no"]),
    ("Two\n\n", ["lines", " spaced"]),
    # Nothing is before the first token.
    ("", ["red", "a red house"]),
    ("Caf\u00e9 ", ["na\u00efve", "\u65e5\u672c", "\U0001f600"]),
    # The beginning is cut off.
    ("the quick brown fox jumps over the lazy dog " * 9, ["again", "and stops here"]),
]
CHAT = ([{"role": "user", "content": "What is 2+3?"}], ["5", "6"])
TEXTS = [
    "One plus one is two.",
    " Spaces  at both\tends \n",
    "the quick brown fox jumps over the lazy dog, and " * 12,
]


def likelihoods(model, requests):
    instances = [
        Instance("loglikelihood", {}, arguments, index)
        for index, arguments in enumerate(requests)
    ]
    answers = model.loglikelihood(instances, disable_tqdm=True)
    return [list(answer) for answer in answers]


def of_model(name, max_length):
    model = HFLM(
        str(HERE / name), device="cpu", dtype="float32", batch_size=1, max_length=max_length
    )
    rows = []
    for prompt, choices in QUESTIONS:
        expected = likelihoods(model, [(prompt, f" {choice}") for choice in choices])
        rows.append({"prompt": prompt, "choices": choices, "expected": expected})
    if model.tokenizer.chat_template:
        messages, choices = CHAT
        prompt = model.apply_chat_template(messages)
        expected = likelihoods(model, [(prompt, choice) for choice in choices])
        rows.append({"messages": messages, "choices": choices, "expected": expected})
    instances = [Instance("loglikelihood_rolling", {}, (text,), 0) for text in TEXTS]
    totals = model.loglikelihood_rolling(instances, disable_tqdm=True)
    for text, total in zip(TEXTS, totals):
        # As its tasks count words.
        num_words = len(re.split(r"\s+", text))
        rows.append({"text": text, "num_words": num_words, "expected": total})
    return {"model": name, "max_model_len": max_length, "rows": rows}


def main():
    torch.set_num_threads(1)
    models = [of_model(*model) for model in MODELS.items()]
    lines = []
    for model in models:
        rows = [json.dumps(row, ensure_ascii=False) for row in model.pop("rows")]
        lines.append(json.dumps(model)[:-1] + ', "rows": [\n' + ",\n".join(rows) + "]}")
    text = "[" + ",\n".join(lines) + "]\n"
    (HERE / "likelihoods.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
