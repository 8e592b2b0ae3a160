#!/usr/bin/env python3
"""The JSON Schema Test Suite, beside what llguidance's own runner says of each of its tests.

    scripts/structured-output/suite.py TESTS BASELINE GRAMMARS [TOKENIZER]

TESTS is the folder `tests/draft2020-12` of the suite (`json/` in the source package of Python's
jsonschema), BASELINE is `expected_json_schema_test_suite.json` of llguidance's source package, GRAMMARS
the program `examples/grammars.rs`. Prints the counts of each, and every test that differs; ends with 1
if an answer is accepted that neither schema nor baseline accepts.
"""

import collections
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def cases(tests):
    """Name, schema and instances of each group."""
    for path in sorted(Path(tests).rglob("*.json")):
        name = str(path.relative_to(tests).with_suffix(""))
        for group in json.loads(path.read_text()):
            yield (name, group["description"]), group["schema"], group["tests"]


def checked(program, tokenizer, groups):
    lines = [json.dumps({"id": index, "structured_outputs": {"json": schema, "strict": True},
                         "texts": [compact(test["data"]) for test in tests]})
             for index, (_, schema, tests) in enumerate(groups)]
    done = subprocess.run([program, tokenizer], input="\n".join(lines), text=True,
                          capture_output=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def category(result, tests, index):
    """In the words of llguidance's runner."""
    if error := result.get("error"):
        if "Unimplemented keys" in error or "not supported" in error:
            return "skip_compile"
        is_any_valid = any(test["valid"] for test in tests)
        return "compile_error_valid" if is_any_valid else "compile_error_all_invalid"
    accepted = result["texts"][index].get("accepted", False)
    if accepted == tests[index]["valid"]:
        return "pass"
    return "false_positive" if accepted else "false_negative"


def main():
    tests, baseline, program = sys.argv[1:4]
    tokenizer = sys.argv[4] if len(sys.argv) > 4 else ROOT / "testdata/tokenizers/gpt2"
    baseline = json.loads(Path(baseline).read_text())["draft2020-12"]
    groups = list(cases(tests))
    counts, differences, num_unknown = collections.Counter(), collections.Counter(), 0
    is_bad = False
    for (name, _, of_group), result in zip(groups, checked(program, tokenizer, groups), strict=True):
        for index, test in enumerate(of_group):
            found = category(result, of_group, index)
            counts[found] += 1
            expected = baseline.get(name[0], {}).get(name[1], {}).get(test["description"])
            if expected is None:
                num_unknown += 1
            elif expected != found:
                differences[expected, found] += 1
                is_bad |= found == "false_positive"
                why = result.get("error", compact(test["data"])[:80])
                print(f"{name[0]}: {name[1]}: {test['description']}: {expected} -> {found}: {why}")
    print(f"{sum(counts.values())} tests: {dict(counts)}")
    print(f"{num_unknown} are not in the baseline; {sum(differences.values())} differ from it: "
          f"{ {' -> '.join(pair): number for pair, number in differences.items()} }")
    sys.exit(1 if is_bad else 0)


if __name__ == "__main__":
    main()
