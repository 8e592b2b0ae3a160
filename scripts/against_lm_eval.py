#!/usr/bin/env python3
"""Likelihoods of choices: lm-evaluation-harness's `hf` model against vllm-batch.

    vllm-batch run --model M -i testdata/choices.jsonl -o out.jsonl \\
        --loglikelihood choices --dtype float32
    python scripts/against_lm_eval.py M out.jsonl

Needs "lm-eval[hf]==0.4.13". Exits with 1 where a prediction or `is_greedy` differs, or a sum by more
than 1e-3.
"""

import json
import sys
import time
from collections import defaultdict

import numpy
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

TOLERANCE = 1e-3


def asked(rows):
    """The requests of a multiple-choice task: `target_delimiter` stands before each choice."""
    for row in rows:
        for choice in row["choices"]:
            yield Instance("loglikelihood", {}, (row["question"], f" {choice}"), 0)


def main():
    model, output = sys.argv[1:]
    with open(output, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    torch.set_num_threads(1)
    harness = HFLM(model, device="cpu", dtype="float32", batch_size=1)
    start = time.monotonic()
    answers = iter(harness.loglikelihood(list(asked(rows)), disable_tqdm=True))
    seconds = time.monotonic() - start
    worst, greedy, predictions, right = 0.0, 0, 0, defaultdict(list)
    for row in rows:
        expected = [next(answers) for _ in row["choices"]]
        ours = row["choice_logprobs"]
        pairs = list(zip(ours, expected))
        worst = max([worst, *(abs(our["logprob"] - their[0]) for our, their in pairs)])
        greedy += sum(our["is_greedy"] != their[1] for our, their in pairs)
        chosen = int(numpy.argmax([our["logprob"] for our in ours]))
        predictions += chosen != int(numpy.argmax([their[0] for their in expected]))
        right[row["group"]].append(chosen == row["expected"])
    print(f"{len(rows)} questions; the harness took {seconds:.1f} s on one thread")
    print(f"predictions that differ: {predictions}; is_greedy that differs: {greedy}")
    print(f"largest difference of a sum: {worst:.2e}")
    for group, answers in right.items():
        print(f"acc of {group}: {sum(answers)} of {len(answers)}")
    return int(predictions + greedy > 0 or worst > TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
