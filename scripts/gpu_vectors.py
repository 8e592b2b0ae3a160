"""The vectors stage of scripts/gpu-check: `embed` on a GPU.

Invariance: one input in several batchings, every matrix byte-equal; and its rows beside those of
the CPU. Speed: rows of `benches/shapes` models beside a floor, which is the operations of their
layers over the GEMM rate. Weights are random, text is random ids, vectors go into a matrix.
"""

import array
import json
import random
from pathlib import Path

import gpu_invariance

ROOT = Path(__file__).resolve().parent.parent
EDGES = gpu_invariance.EDGES
# 1 - cosine to the CPU's vector at most. Rounding moves random models more than trained ones.
FARTHEST = {"float32": 1e-6, "bfloat16": 5e-2}
# Shape and type of the checks of invariance.
CASES = [
    ("minilm-l6", "bfloat16"),
    ("minilm-l6", "float32"),
    ("qwen3-embedding-0.6b", "bfloat16"),
]
# Shape, rows, tokens of a row at least and at most; the most telling first.
WORK = [
    ("minilm-l6", 40000, 8, 256),
    ("bge-large", 8192, 16, 512),
    ("qwen3-embedding-0.6b", 4096, 512, 512),
]


def rows(vocab_size, lengths):
    """Rows of random token ids."""
    source = random.Random(11)
    ids = lambda length: [source.randrange(8, vocab_size) for _ in range(length)]
    return [{"id": i, "prompt_token_ids": ids(length)} for i, length in enumerate(lengths)]


def write_rows(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def config(shape):
    return json.loads((ROOT / "benches/shapes" / shape / "config.json").read_text())


def model_flags(shape):
    flags = ["--model", ROOT / "benches/shapes" / shape, "--load-format", "dummy"]
    return flags + ["--tokenizer", ROOT / "benches/tokenizer", "--max-model-len", 512]


def embed(run, name, source, flags, device):
    """`vllm-batch embed`: the bytes of the matrix, or None and why; and what `--stats` says."""
    out, stats = run.path(f"vectors-{name}.npy"), run.path(f"vectors-{name}.json")
    for path in (out, stats):
        path.unlink(missing_ok=True)
    argv = [run.args.binary, "embed", "--input", source, "--out", out, "--overwrite"]
    argv += ["--stats", stats, "--device", device, "--on-bad-row", "fail", "--progress", "none"]
    done = run.command("vectors", argv + flags, 100)
    if done["rc"] or not out.exists():
        return {"matrix": None, "why": run.why(done), "stats": {}}
    return {"matrix": out.read_bytes(), "why": "", "stats": json.loads(stats.read_text())}


def variants():
    """Name and flags; the first is what the others are compared with."""
    return [
        ("defaults", []),
        ("one by one", ["--max-num-seqs", 1]),
        ("few", ["--max-num-seqs", 3, "--max-num-batched-tokens", 600]),
        ("all at once", ["--max-num-seqs", 512, "--max-num-batched-tokens", 32768]),
        ("first 9 rows", ["--limit", 9]),
        ("defaults again", []),
    ]


def vectors(matrix, width):
    """The rows of a matrix of NumPy's."""
    start = 10 + int.from_bytes(matrix[8:10], "little")
    values = array.array("f", matrix[start:])
    return [values[i : i + width] for i in range(0, len(values), width)]


def distance(a, b):
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))
    return 1 - dot(a, b) / max((dot(a, a) * dot(b, b)) ** 0.5, 1e-30)


def check_invariance(run, shape, dtype):
    case = dict(name=f"{shape} {dtype}", num_equal=0, num_variants=0, problems=[], ok=False)
    width = config(shape)["hidden_size"]
    lengths = EDGES + [random.Random(5).randrange(1, 512) for _ in range(40)]
    lines = rows(config(shape)["vocab_size"], lengths)
    source = write_rows(run.path(f"vectors-{shape}.jsonl"), lines)
    case["num_rows"] = len(lines)
    flags = model_flags(shape) + ["--dtype", dtype]
    expected = None
    for name, more in variants():
        found = embed(run, "one", source, flags + more, run.args.device)
        if found["matrix"] is None:
            case["problems"].append(f"{name}: {found['why']}")
            return case
        found = vectors(found["matrix"], width)
        expected = expected or found
        case["num_variants"] += 1
        if found == expected[: len(found)]:
            case["num_equal"] += 1
        else:
            other = [i for i, pair in enumerate(zip(found, expected)) if pair[0] != pair[1]]
            case["problems"].append(f"{name}: {len(other)} rows differ, first row {other[0]}")
    cpu = embed(run, "cpu", source, flags, "cpu")
    if cpu["matrix"] is None:
        case["problems"].append(f"CPU: {cpu['why']}")
        return case
    pairs = zip(expected, vectors(cpu["matrix"], width))
    case["farthest_from_cpu"] = max(distance(a, b) for a, b in pairs)
    if not case["farthest_from_cpu"] < FARTHEST[dtype]:
        case["problems"].append(f"1 - cosine to the CPU is {case['farthest_from_cpu']:.2g}")
    case["ok"] = not case["problems"]
    return case


def flops(shape, lengths):
    """Operations of the layers over texts of these lengths."""
    found = config(shape)
    hidden, inner = found["hidden_size"], found["intermediate_size"]
    heads = found["num_attention_heads"]
    head_dim = found.get("head_dim", hidden // heads)
    kv_heads = found.get("num_key_value_heads", heads)
    gated = 3 if found["hidden_act"] == "silu" else 2
    weights = hidden * head_dim * (2 * heads + 2 * kv_heads) + gated * hidden * inner
    is_causal = found["architectures"][0].endswith("ForCausalLM")
    scores = sum(length * length for length in lengths) / (2 if is_causal else 1)
    of_attention = 4.0 * heads * head_dim * scores
    return found["num_hidden_layers"] * (2.0 * weights * sum(lengths) + of_attention)


def measure(run, shape, num_rows, least, most, quantization):
    num_rows = num_rows // 8 if run.args.quick else num_rows
    source = random.Random(3)
    lengths = [source.randint(least, most) for _ in range(num_rows)]
    lines = rows(config(shape)["vocab_size"], lengths)
    path = write_rows(run.path("vectors-speed.jsonl"), lines)
    flags = model_flags(shape) + ["--dtype", "bfloat16", "--max-num-batched-tokens", 16384]
    flags += ["--max-num-seqs", 1024]
    flags += ["--quantization", quantization] if quantization else []
    found = embed(run, "speed", path, flags, run.args.device)
    name = f"{shape} {quantization or 'bfloat16'}, {num_rows} x {least} to {most}"
    row = dict(name=name, ok=found["matrix"] is not None, note=found["why"])
    if row["ok"]:
        row["seconds"] = found["stats"]["elapsed_time"]
        row["tokens_per_second"] = round(found["stats"]["tokens_per_second"])
        row["rows_per_second"] = round(found["stats"]["requests_per_second"])
        rate = run.ceiling("fp8_tflops" if quantization else "bf16_tflops")
        row["floor"] = flops(shape, lengths) / (rate * 1e12) if rate else None
    return row


def check(run):
    cases, speeds = [], []
    result = {"cases": cases, "speeds": speeds}
    for shape, dtype in CASES[:1] if run.args.quick else CASES:
        if run.left() > 10:
            cases.append(check_invariance(run, shape, dtype))
    for shape, num_rows, least, most in WORK:
        for quantization in (None, "fp8") if run.args.device != "cpu" else (None,):
            if run.left() > 10:
                speeds.append(measure(run, shape, num_rows, least, most, quantization))
    bad = [entry for entry in cases + speeds if not entry["ok"]]
    notes = [(entry.get("problems") or [entry.get("note")])[0] for entry in bad]
    note = "; ".join(f"{entry['name']}: {why}" for entry, why in zip(bad, notes))[:400]
    note = note or ("" if cases else "no time left")
    return result | {"ok": not bad and bool(cases), "note": note}


def lines(stage):
    """Of the table that gpu-check prints."""
    shown = []
    for case in stage.get("cases", []):
        shown.append(
            f"- {case['name']}: {case.get('num_rows', 0)} rows, {case['num_equal']} of "
            f"{case['num_variants']} variants equal, 1 - cosine to the CPU at most "
            f"{case.get('farthest_from_cpu', float('nan')):.2g}"
            + "".join(f"; {problem[:200]}" for problem in case["problems"][:3])
        )
    speeds = stage.get("speeds", [])
    if speeds:
        shown += ["", "| vectors | seconds | floor | rows/s | tokens/s |", "|---|---|---|---|---|"]
    for row in speeds:
        if not row["ok"]:
            shown.append(f"| {row['name']} | {row['note'][:90]} | | | |")
            continue
        floor = f"{row['floor']:.3f}" if row["floor"] else ""
        shown.append(
            f"| {row['name']} | {row['seconds']:.3f} | {floor} "
            f"| {row['rows_per_second']} | {row['tokens_per_second']} |"
        )
    return ["", "Vectors:"] + shown if shown else []
