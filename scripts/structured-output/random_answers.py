#!/usr/bin/env python3
"""Answers at temperature 2 over models of random weights, all of which must match what was asked.

    scripts/structured-output/random_answers.py BINARY [ROWS [SEED]]

ROWS (10000) are spread over one golden model per tokenizer and the demo model. Schemas, regular
expressions and choices are drawn by SEED. Python's jsonschema and re judge the answers that ended by
themselves; those that max_tokens cut are counted. Needs the package `jsonschema[format]`.
"""

import collections
import hashlib
import json
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import jsonschema

ROOT = Path(__file__).resolve().parents[2]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "email"]
PATTERNS = ["^[A-Z]{2}[0-9]{3}$", "^(ab|cd)+$", "^\\w{1,4}$", "[0-9]", "^$", "^[äöü]{1,3}$"]
REGEXES = ["[0-9]{4}-[0-9]{2}-[0-9]{2}", "(yes|no)[.!]?", "[a-zé]{1,5}( [a-z]{1,5}){0,2}", "",
           "[0-9]{1,3}(\\.[0-9]{1,3}){3}", "(a|b){2,6}c*d", "[^\\n\\r]{3,9}", "#[0-9a-f]{6}", ".{0,4}"]
WORDS = ["red", "green", "blue", "New York", "ok", "not \"ok\"", "größer", "日本", "a\nb", "1", ""]
NODE = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"},
        {"type": "null"}]}}, "required": ["next"], "additionalProperties": False}


def schema(source, depth=0):
    """A schema whose answers are short as a rule."""
    kinds = ["integer", "number", "string", "enum", "const", "boolean", "null", "pattern", "format"]
    kinds += ["object", "object", "array", "any_of", "ref"] if depth < 3 else []
    kind = "object" if depth == 0 and source.random() < 0.7 else source.choice(kinds)
    low = source.randrange(-50, 50)
    high = low + source.randrange(60)
    if kind in ("integer", "number"):
        bounds = source.choice([{}, {"minimum": low}, {"minimum": low, "maximum": high},
                                {"exclusiveMinimum": low, "exclusiveMaximum": high + 2}])
        return {"type": kind, **bounds}
    if kind == "string":
        return {"type": "string", "minLength": source.randrange(3),
                "maxLength": source.randrange(3, 12)}
    if kind == "enum":
        return {"enum": source.sample([*WORDS, 1, -2.5, None, True, ["x"], {"k": 1}], 4)}
    if kind == "const":
        return {"const": source.choice(WORDS)}
    if kind == "pattern":
        return {"type": "string", "pattern": source.choice(PATTERNS), "maxLength": 12}
    if kind == "format":
        return {"type": "string", "format": source.choice(FORMATS)}
    if kind == "array":
        return {"type": "array", "items": schema(source, depth + 1),
                "minItems": source.randrange(3), "maxItems": source.randrange(3, 5)}
    if kind == "any_of":
        return {"anyOf": [schema(source, depth + 1) for _ in range(source.randrange(1, 4))]}
    if kind == "ref":
        return {"$ref": "#/$defs/node"}
    if kind == "object":
        names = source.sample(["name", "size", "kind", "a b", "größe", "q\"", "x"], 3)
        made = {name: schema(source, depth + 1) for name in names}
        required = source.sample(names, source.randrange(4))
        return {"type": "object", "properties": made, "required": required,
                "additionalProperties": source.choice([False, False, {"type": "integer"}])}
    return {"type": kind}


def constraint(source):
    """What vLLM's `structured_outputs` is asked."""
    kind = source.random()
    if kind < 0.15:
        return {"regex": source.choice(REGEXES)}
    if kind < 0.25:
        return {"choice": source.sample(WORDS[:-1], source.randrange(1, 5))}
    asked = {"json": {**schema(source), "$defs": {"node": NODE}}}
    if source.random() < 0.3:
        asked["disable_any_whitespace"] = True
    return asked


def is_format(checker, name, text):
    """llguidance allows the second 60 at any minute and February 29 in any year, Python does not."""
    if name in ("date", "time", "date-time"):
        text = re.sub(r"(:\d\d):60", r"\1:59", text).replace("-02-29", "-02-28")
    return checker.conforms(text, name)


def format_checker():
    checker, python = jsonschema.FormatChecker(()), jsonschema.Draft202012Validator.FORMAT_CHECKER
    for name in FORMATS:
        checker.checks(name)(lambda value, name=name: not isinstance(value, str)
                             or is_format(python, name, value))
    return checker


def is_right(asked, text):
    if "regex" in asked:
        return re.fullmatch(asked["regex"], text) is not None
    if "choice" in asked:
        return text in asked["choice"]
    value = json.loads(text)
    jsonschema.Draft202012Validator(asked["json"], format_checker=format_checker()).validate(value)
    return True


def models():
    """The demo model, and a golden one for each tokenizer that can end an answer."""
    found = {}
    for folder in [ROOT / "testdata/demo", *sorted((ROOT / "testdata/golden").iterdir())]:
        tokenizer = folder / "tokenizer.json"
        if tokenizer.exists():
            key = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
            found.setdefault(key, folder)
    return list(found.values())


def answers(binary, model, asked):
    rows = [{"id": str(index), "prompt": "a 1", "temperature": 2, "structured_outputs": one}
            for index, one in enumerate(asked)]
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
        given.write_text("".join(json.dumps(row) + "\n" for row in rows))
        flags = ["--device", "cpu", "--max-tokens", "200", "--max-num-seqs", "64", "--seed", "1",
                 "--kv-cache-memory-bytes", "64MiB", "--no-skip-special-tokens", "-qq"]
        subprocess.run([binary, "run", "--model", model, "-i", given, "-o", out, *flags])
        return [json.loads(line) for line in out.read_text().split("\n") if line]


def main():
    binary = sys.argv[1]
    num_rows = int(sys.argv[2]) if len(sys.argv) > 2 else 10000
    source = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    chosen, total, wrong = models(), collections.Counter(), 0
    for index, model in enumerate(chosen):
        share = num_rows * (index + 1) // len(chosen) - num_rows * index // len(chosen)
        asked = [constraint(source) for _ in range(share)]
        counts = collections.Counter()
        for one, row in zip(asked, answers(binary, model, asked), strict=True):
            if row.get("error"):
                end = row["error"]["code"]
                print(f"  {model.name}: {json.dumps(one)}: {row['error']['message']}")
            else:
                end = row["finish_reason"]
            counts[end] += 1
            if end != "stop":
                continue
            try:
                right, why = is_right(one, row["response"]), ""
            except (ValueError, jsonschema.ValidationError) as error:
                right, why = False, str(error).splitlines()[0]
            if not right:
                wrong += 1
                print(f"WRONG {model.name} {json.dumps(one)}: {row['response']!r} {why}")
        print(f"{model.name}: {dict(counts)}", flush=True)
        total += counts
    print(f"{sum(total.values())} rows: {dict(total)}; {wrong} of {total['stop']} are wrong")
    sys.exit(1 if wrong or not total["stop"] else 0)


if __name__ == "__main__":
    main()
