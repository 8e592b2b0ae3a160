"""How many schemas that people have are taken, and whether answers to them are valid.

    python scripts/structured-output/schemas.py PROGRAM MODEL FOLDER [EVERY]

FOLDER holds schemas as JSON files, in folders or not: `data` of guidance-ai/jsonschemabench. EVERY
takes one of so many. Each schema is a row, sampled at temperature 1 with at most 300 tokens, so any
model will do, testdata/demo too. What is refused is counted by its message; of what ended each
answer is judged by Python's jsonschema.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from jsonschema.validators import validator_for


def main(program, model, folder, every="1"):
    files = sorted(Path(folder).rglob("*.json"))[:: int(every)]
    schemas = [json.loads(file.read_text()) for file in files]
    with tempfile.TemporaryDirectory() as work:
        rows = [json.dumps({"id": index, "prompt": "JSON:", "structured_outputs": {"json": schema}})
                for index, schema in enumerate(schemas)]
        Path(work, "in.jsonl").write_text("\n".join(rows))
        subprocess.run([program, "run", "-qq", "--model", model, "-i", f"{work}/in.jsonl", "-o",
                        f"{work}/out.jsonl", "--max-tokens", "300", "--temperature", "1"],
                       check=False)
        answers = [json.loads(line) for line in Path(work, "out.jsonl").read_text().splitlines()]
    counts, refused = Counter(), Counter()
    for file, schema, answer in zip(files, schemas, answers, strict=True):
        if error := answer.get("error"):
            counts[error["code"]] += 1
            if error["code"] != "schema_mismatch":
                refused[error["message"][:100]] += 1
        elif answer["finish_reason"] != "stop":
            counts[answer["finish_reason"]] += 1
        elif validator_for(schema)(schema).is_valid(json.loads(answer["response"])):
            counts["valid"] += 1
        else:
            counts["INVALID"] += 1
            print("INVALID", file, answer["response"])
    for message, count in refused.most_common(20):
        print(count, message)
    print(len(files), "schemas:", dict(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
