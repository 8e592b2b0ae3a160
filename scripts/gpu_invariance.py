"""The invariance stage of scripts/gpu-check: one input in many batchings, every output byte-equal.

Rows differ in length, around the edges of tiles, blocks and splits, and in sampling; some begin
alike, so that the prefix cache has work. Logprobs are among the outputs: they show a changed bit
that the tokens would hide.
"""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EDGES = [1, 2, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 127, 128, 129, 255, 256, 257, 289, 384]
SAMPLING = [
    {"temperature": 0.0},
    {"temperature": 0.9, "top_p": 0.9, "seed": 11},
    {"temperature": 1.3, "top_k": 20, "min_p": 0.02, "logprobs": 3},
    {"temperature": 0.0, "repetition_penalty": 1.1, "frequency_penalty": 0.3, "logprobs": 1},
    {"temperature": 1.0, "presence_penalty": 0.5, "n": 2},
]


def rows(vocab_size, lengths, max_tokens, sampling):
    """Rows of random token ids; every third begins with the same tokens."""
    source = random.Random(7)
    ids = [source.randrange(8, vocab_size) for _ in range(max(lengths))]
    made = []
    for index, length in enumerate(lengths):
        prompt = [source.randrange(8, vocab_size) for _ in range(length)]
        if index % 3 == 0:
            kept = length - length // 4
            prompt[:kept] = ids[:kept]
        row = {"id": index, "prompt_token_ids": prompt, "max_tokens": source.choice(max_tokens)}
        made.append(row | sampling[index % len(sampling)])
    return made


def cases(quick):
    """Name, flags of the model, rows, blocks that hold few rows, flag lists or None for all."""
    demo = ["--model", ROOT / "testdata/demo", "--max-model-len", 512]
    lengths = EDGES + [random.Random(3).randrange(1, 400) for _ in range(60)]
    demo_rows = rows(448, lengths, [8, 24, 40, 70], SAMPLING)
    shape = ["--model", ROOT / "benches/shapes/llama-3.2-1b", "--load-format", "dummy"]
    shape += ["--tokenizer", ROOT / "benches/tokenizer", "--max-model-len", 1024]
    lengths = (
        EDGES
        + [513, 640, 767, 768, 769, 900]
        + [random.Random(4).randrange(1, 300) for _ in range(22)]
    )
    shape_rows = rows(49152, lengths, [4, 16, 33], [SAMPLING[0], SAMPLING[0], SAMPLING[1]])
    greedy = [row | {"temperature": 0.0} for row in rows(448, EDGES, [24, 40], [{}])]
    found = [
        ("demo bfloat16", demo + ["--dtype", "bfloat16"], demo_rows, 22),
        ("llama-3.2-1b bfloat16", shape + ["--dtype", "bfloat16"], shape_rows, 44),
        ("demo float32", demo + ["--dtype", "float32"], demo_rows, 22),
        ("demo float16, greedy", demo + ["--dtype", "float16"], greedy, 22),
    ]
    return found[:1] + found[2:3] if quick else found


def variants(few_blocks, quick):
    """Name and flags; the first is what the others are compared with."""
    pool = ["--num-gpu-blocks-override", 2048]
    few = ["--num-gpu-blocks-override", few_blocks, "--block-size", 32]
    small = ["--num-gpu-blocks-override", 2 * few_blocks, "--block-size", 16]
    found = [
        ("defaults", pool),
        ("eager", pool + ["--enforce-eager"]),
        ("few blocks", few),
        ("small chunks", pool + ["--max-num-batched-tokens", 48, "--max-num-seqs", 7]),
        (
            "all at once",
            small
            + [
                "--enforce-eager",
                "--no-enable-prefix-caching",
                "--max-num-seqs",
                5,
                "--max-num-batched-tokens",
                33,
            ],
        ),
        ("no prefix cache", pool + ["--no-enable-prefix-caching"]),
        ("blocks of 16", pool + ["--block-size", 16]),
        ("blocks of 64", pool + ["--block-size", 64]),
        ("large batches", pool + ["--max-num-seqs", 512, "--max-num-batched-tokens", 16384]),
        ("one by one", pool + ["--max-num-seqs", 1]),
        ("first 9 rows", pool + ["--limit", 9]),
        ("defaults again", pool),
    ]
    return found[:5] if quick else found


def check(run):
    """All variants of all cases, as many at a time as `--jobs`."""
    done = []
    for index, (name, flags, lines, few_blocks) in enumerate(cases(run.args.quick)):
        if run.left() < 8:
            problems = ["no time left"]
            done.append(
                dict(
                    name=name,
                    num_rows=len(lines),
                    num_equal=0,
                    num_variants=0,
                    num_preemptions=0,
                    problems=problems,
                    ok=None,
                )
            )
            continue
        done.append(check_case(run, index, name, flags, lines, few_blocks))
        run.results["stages"]["invariance"] = {"cases": done}
        run.save()
    if run.args.device != "cpu":
        done += [against_cpu(run)] if run.left() > 8 else []
    bad = [case for case in done if case["ok"] is False]
    notes = [f"{case['name']}: {case['problems'][0]}" for case in bad]
    ok = not bad and any(case["ok"] for case in done)
    note = "; ".join(notes)[:400] or ("" if ok else "no time left")
    return {"ok": ok, "note": note, "cases": done}


def check_case(run, index, name, flags, lines, few_blocks):
    source = run.path(f"rows-{index}.jsonl")
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    every = variants(few_blocks, run.args.quick)
    # The first alone: it fills the caches of compiled kernels and of tuned products.
    first = run_once(run, f"{index}-0", source, flags + every[0][1], run.args.device)
    case = dict(
        name=name,
        num_rows=len(lines),
        num_equal=0,
        num_variants=0,
        num_preemptions=0,
        problems=[],
        skipped=[],
        ok=False,
        seconds=[first["seconds"]],
    )
    if first["output"] is None:
        case["problems"].append(f"{every[0][0]}: {first['why']}")
        return case

    def one(numbered):
        number, (variant, more) = numbered
        if run.left() < 3:
            return variant, None
        return variant, run_once(run, f"{index}-{number}", source, flags + more, run.args.device)

    with ThreadPoolExecutor(run.args.jobs) as pool:
        others = list(pool.map(one, enumerate(every[1:], 1)))
    for variant, other in others:
        judge(case, variant, first, other)
    case["ok"] = not case["problems"] and (case["num_equal"] > 0 or None)
    return case


def judge(case, variant, first, other):
    if other is None or other["unknown_flag"]:
        case["skipped"].append(f"{variant}: " + ("no time left" if other is None else other["why"]))
        return
    case["num_variants"] += 1
    case["num_preemptions"] += other["num_preemptions"]
    case["seconds"].append(other["seconds"])
    if other["output"] is None:
        case["problems"].append(f"{variant}: {other['why']}")
        return
    expected = first["output"]
    if variant.startswith("first "):
        expected = expected[: len(other["output"])]
    if other["output"] == expected:
        case["num_equal"] += 1
    else:
        case["problems"].append(f"{variant}: {first_difference(expected, other['output'])}")


def run_once(run, name, source, flags, device):
    """`vllm-batch run`: the lines of the output, or None and why."""
    out, stats = run.path(f"out-{name}.jsonl"), run.path(f"stats-{name}.json")
    argv = [
        run.args.binary,
        "run",
        "--input",
        source,
        "--out",
        out,
        "--overwrite",
        "--stats",
        stats,
    ]
    argv += ["--device", device, "--output-format", "full", "--ignore-eos", "--on-bad-row", "fail"]
    argv += ["--progress", "none", *flags]
    done = run.command("invariance", argv, 90)
    lines = out.read_bytes().splitlines() if done["rc"] == 0 and out.exists() else None
    unknown_flag = done["rc"] == 2 and "unexpected argument" in done["text"]
    last = [line for line in done["text"].splitlines() if "rror" in line or "panicked" in line]
    reason = (
        "cut off" if done["timed_out"] else f"exit {done['rc']}: {(last or [''])[0].strip()[:200]}"
    )
    numbers = json.loads(stats.read_text()) if stats.exists() and lines is not None else {}
    return {
        "output": lines,
        "why": reason,
        "unknown_flag": unknown_flag,
        "num_preemptions": numbers.get("num_preemptions") or 0,
        "seconds": done["seconds"],
    }


def first_difference(expected, found):
    """The first row that differs, and where in it."""
    if len(expected) != len(found):
        return f"{len(found)} rows instead of {len(expected)}"
    different = [i for i, (a, b) in enumerate(zip(expected, found)) if a != b]
    row = different[0]
    where = difference_in(json.loads(expected[row]), json.loads(found[row]))
    return f"{len(different)} of {len(expected)} rows differ, first row {row}: {where}"


def difference_in(a, b, path=""):
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        # Token ids say more than the text made of them.
        for key in sorted(a, key=lambda key: (key == "response", key == "text")):
            if a[key] != b[key]:
                return difference_in(a[key], b[key], f"{path}.{key}")
    if isinstance(a, list) and isinstance(b, list):
        for index, (x, y) in enumerate(zip(a, b)):
            if x != y:
                return difference_in(x, y, f"{path}[{index}]")
        return f"{path} has {len(b)} items instead of {len(a)}"
    return f"{path} {str(a)[:60]!r} -> {str(b)[:60]!r}"


def against_cpu(run):
    """Greedy float32 rows of the demo model on the GPU and on the CPU: not the same bytes (other
    kernels), but nearly always the same tokens."""
    flags = ["--model", ROOT / "testdata/demo", "--dtype", "float32", "--max-model-len", 512]
    flags += ["--num-gpu-blocks-override", 2048]
    lines = rows(448, EDGES, [24, 40], [SAMPLING[0]])
    source = run.path("rows-cpu.jsonl")
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    case = dict(
        name="demo float32, GPU against CPU",
        num_rows=len(lines),
        num_equal=0,
        num_variants=1,
        num_preemptions=0,
        problems=[],
        ok=False,
    )
    ours = run_once(run, "gpu", source, flags, run.args.device)
    cpu = run_once(run, "cpu", source, flags, "cpu")
    if ours["output"] is None or cpu["output"] is None:
        case["problems"].append((ours if ours["output"] is None else cpu)["why"])
        return case
    tokens = lambda line: json.loads(line)["outputs"][0]["token_ids"]
    pairs = [(tokens(a), tokens(b)) for a, b in zip(cpu["output"], ours["output"])]
    same = sum(a == b for a, b in pairs)
    case["ok"] = same >= 0.9 * len(pairs)
    case["num_equal"] = int(case["ok"])
    case["rows_with_equal_tokens"] = same
    if same < len(pairs):
        different = [i for i, (a, b) in enumerate(pairs) if a != b]
        note = f"{same} of {len(pairs)} rows have the same tokens, first other row {different[0]}"
        case["problems"].append(note)
    return case
