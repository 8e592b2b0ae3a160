#!/usr/bin/env python3
"""Facts out of sentences by a real model: the share of answers of a schema, with and without it.

    scripts/structured-output/extraction.py BINARY MODEL [ROWS [FLAGS ..]]

ROWS is 200. For each way of whitespace: how many answers end by themselves, parse and validate, and how
many tokens they take. Needs the package `jsonschema`.
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import jsonschema

SCHEMA = {
    "type": "object", "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "city": {"type": "string", "maxLength": 40},
        "job": {"enum": ["teacher", "nurse", "engineer", "farmer", "other"]},
        "hobbies": {"type": "array", "items": {"type": "string", "maxLength": 30}, "maxItems": 4},
    },
    "required": ["name", "age", "city", "job", "hobbies"],
}
NAMES = ["Ada Park", "Jan Novak", "Maria Silva", "Tom O'Neill", "Li Wei", "Zoë Krüger", "Omar Aziz"]
CITIES = ["Oslo", "Porto", "Kyoto", "Lima", "Cork", "New York", "Łódź", "Nairobi"]
JOBS = ["teacher", "nurse", "engineer", "farmer", "pilot", "chemist"]
HOBBIES = ["chess", "hiking", "jazz", "baking", "rowing", "old maps", "sci-fi novels"]

FREE, BOUNDED = {"whitespace_pattern": "[ \\t\\n\\r]*"}, {}
WAYS = {
    "no schema": None,
    "up to 16 blanks (default)": BOUNDED,
    "up to 1 blank": {"whitespace_pattern": "[ \\n]?"},
    "no blanks": {"disable_any_whitespace": True},
    "any blanks": FREE,
}


def rows(number):
    source = random.Random(1)
    for index in range(number):
        name, city = source.choice(NAMES), source.choice(CITIES)
        job, age = source.choice(JOBS), source.randrange(18, 90)
        hobbies = " and ".join(source.sample(HOBBIES, source.randrange(1, 4)))
        text = source.choice([
            f"{name} is a {age}-year-old {job} from {city} who likes {hobbies}.",
            f"At {age}, {name} works as a {job} in {city}. Free time goes into {hobbies}.",
            f"My neighbour {name} ({age}) moved to {city} to be a {job}; {hobbies} came later.",
        ])
        asked = ("Extract the person from the text. Answer only with a JSON object with the keys "
                 "name, age (integer), city, job (one of teacher, nurse, engineer, farmer, other) "
                 f"and hobbies (list of strings).\n\nText: {text}")
        yield {"id": str(index), "messages": [{"role": "user", "content": asked}]}


def answers(binary, model, given, flags):
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
        path.write_text("".join(json.dumps(row) + "\n" for row in given))
        subprocess.run([binary, "run", "--model", model, "-i", path, "-o", out, "--temperature", "0",
                        "--max-tokens", "200", "-qq", *flags], check=True)
        return [json.loads(line) for line in out.read_text().split("\n") if line]


def is_valid(text):
    try:
        jsonschema.validate(json.loads(text), SCHEMA)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def parses(text):
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def main():
    binary, model = sys.argv[1:3]
    number = int(sys.argv[3]) if len(sys.argv) > 3 else 200
    given, is_wrong = list(rows(number)), False
    for name, options in WAYS.items():
        asked = given
        if options is not None:
            outputs = {"json": SCHEMA, **options}
            asked = [{**row, "structured_outputs": outputs} for row in given]
        done = answers(binary, model, asked, sys.argv[4:])
        ended = [row for row in done if row["finish_reason"] == "stop"]
        tokens = sum(row["usage"]["completion_tokens"] for row in done)
        parsed = sum(parses(row["response"]) for row in done)
        valid = sum(is_valid(row["response"]) for row in done)
        print(f"{name}: {len(ended)} of {len(done)} ended, {parsed} parse, {valid} validate, "
              f"{tokens / len(done):.1f} tokens each", flush=True)
        if options is not None:
            is_wrong |= not all(is_valid(row["response"]) for row in ended)
    sys.exit(1 if is_wrong else 0)


if __name__ == "__main__":
    main()
