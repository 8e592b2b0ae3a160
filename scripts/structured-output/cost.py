#!/usr/bin/env python3
"""What masks cost: microseconds a token, and the throughput of rows with a constraint.

    scripts/structured-output/cost.py masks GRAMMARS TOKENIZER ..
    scripts/structured-output/cost.py rows BINARY MODEL [ROUNDS [FLAGS ..]]

`masks` replays answers through `examples/grammars.rs`. `rows` runs the same prompts to the same lengths,
in turn, with and without a constraint, ROUNDS (3) times, and prints ratios of the medians. CPU seconds are
for a machine that has other things to do. `--temperature 0` among the flags: greedy rows; the model's own
temperature otherwise.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PERSON = {
    "type": "object", "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "job": {"enum": ["teacher", "nurse", "engineer", "farmer", "other"]},
        "hobbies": {"type": "array", "items": {"type": "string", "maxLength": 30}, "maxItems": 4},
    },
    "required": ["name", "age", "job", "hobbies"],
}
NESTED = {
    "type": "object", "additionalProperties": False,
    "properties": {
        "id": {"type": "string", "format": "uuid"},
        "at": {"type": "string", "format": "date-time"},
        "title": {"type": "string"},
        "code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
        "price": {"type": "number", "minimum": 0, "maximum": 1000},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}},
    },
    "required": ["id", "at", "title", "code", "price", "parts"],
    "$defs": {"part": {"type": "object", "properties": {
        "name": {"type": "string"}, "number": {"type": "integer"}}, "required": ["name"]}},
}
TITLE = "A longer title, as people write them: \\\"quoted\\\", with größe and some numbers 12.5"
ANSWERS = {
    "strings with maxLength": ({"json": PERSON}, [
        '{"name": "Maria da Silva e Souza", "age": 42, "job": "engineer", '
        '"hobbies": ["old maps", "sci-fi novels", "long distance rowing"]}']),
    "nested, free strings, formats": ({"json": NESTED}, [
        '{"id": "123e4567-e89b-12d3-a456-426614174000", "at": "2026-11-22T10:20:30Z", "title": "'
        + TITLE + '", "code": "ABC-1234", "price": 199.95, "parts": [{"name": "a wheel", "number": 4},'
        ' {"name": "a frame of steel"}]}']),
    "json_object": ({"json_object": True}, [
        '{"answer": "yes", "why": "' + TITLE + '", "list": [1, 2.5, true, null, {"a": "b"}]}']),
    "regex of a date": ({"regex": "[0-9]{4}-[0-9]{2}-[0-9]{2}"}, ["2026-11-22"]),
    "choice of 5": ({"choice": ["teacher", "nurse", "engineer", "farmer", "none of them"]},
                    ["none of them"]),
}
# None comes to its end before max_tokens.
ENDLESS = {
    "objects": {"json": {"type": "array", "items": PERSON, "minItems": 1000}},
    "free strings": {"json": {"type": "array", "items": {"type": "string"}, "minItems": 1000}},
    "regex": {"regex": "([a-z]{1,12} ){1000,}"},
}
NUM_ROWS, MAX_TOKENS = 64, 256


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def masks(program, tokenizers):
    for tokenizer in tokenizers:
        lines = [json.dumps({"id": name, "structured_outputs": asked, "texts": texts})
                 for name, (asked, texts) in ANSWERS.items()]
        done = subprocess.run([program, tokenizer], input="\n".join(lines), text=True,
                              capture_output=True, check=True)
        everything = []
        for line in done.stdout.splitlines():
            found = json.loads(line)
            costs = [cost for text in found["texts"] for cost in text["mask_us"]]
            everything += costs
            print(f"{tokenizer}: {found['id']}: compiled in {found['compile_us'] / 1e3:.1f} ms, "
                  + shown(costs))
        print(f"{tokenizer}: all: {shown(everything)}")


def shown(costs):
    parts = [f"p{share}: {percentile(costs, share / 100):.1f}" for share in (50, 90, 99)]
    return f"{len(costs)} masks, us: {', '.join(parts)}, most: {max(costs):.1f}"


def run(binary, model, asked, max_tokens, flags):
    """CPU seconds of the process, and its tokens a second."""
    row = {"max_tokens": max_tokens, "ignore_eos": True}
    row |= {"structured_outputs": asked} if asked else {}
    with tempfile.TemporaryDirectory() as folder:
        path, stats = Path(folder, "in.jsonl"), Path(folder, "stats.json")
        path.write_text("".join(json.dumps({"id": str(index), "prompt": f"List {index}:", **row}) + "\n"
                                for index in range(NUM_ROWS)))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([binary, "run", "--model", model, "-i", path, "-o", Path(folder, "out.jsonl"),
                        "--stats", stats, "-qq", *flags], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = json.loads(stats.read_text())
        assert found["tokens"]["output"] == NUM_ROWS * max_tokens, found["tokens"]
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return seconds, found["output_tokens_per_second"]


def rows(binary, model, rounds, flags):
    kinds = ["plain", *ENDLESS]
    seconds, rates, firsts = ({kind: [] for kind in kinds} for _ in range(3))
    for _ in range(rounds):
        for kind in kinds:
            asked = ENDLESS.get(kind)
            first, _ = run(binary, model, asked, 1, flags)
            whole, rate = run(binary, model, asked, MAX_TOKENS, flags)
            firsts[kind].append(first)
            seconds[kind].append(whole - first)
            rates[kind].append(rate)
    middle = statistics.median
    for kind in kinds:
        print(f"{kind}: {middle(rates[kind]):.1f} tokens/s, {middle(rates[kind]) / middle(rates['plain']):.3f} "
              f"of plain rows; CPU of the tokens after the first: {middle(seconds[kind]):.2f} s, "
              f"{middle(seconds[kind]) / middle(seconds['plain']):.3f} of plain rows; start and first "
              f"tokens: {middle(firsts[kind]):.2f} s", flush=True)


def main():
    if sys.argv[1] == "masks":
        masks(sys.argv[2], sys.argv[3:])
    else:
        rows(sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 3, sys.argv[5:])


if __name__ == "__main__":
    main()
