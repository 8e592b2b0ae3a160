"""The bench stage of scripts/gpu-check: `vllm-batch bench` on the shapes of benches/shapes, beside
the floor that it computes itself: products plus attention, at the rates that were measured.

  decode   a step of all rows: products, by operations or weights; and the K and V that are read
  prefill  the same of prompts, whose attention is operations
  queue    more rows than run at once, lengths mixed and not known beforehand

The rate of products is that of two seconds without a pause (`bf16_sustained`): a card at its power
limit is slower so, and a run lasts longer than a burst.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIG, SMALL, OTHER = "llama-3.1-8b", "llama-3.2-1b", "qwen2.5-7b"
# Mixtures of experts, of testdata/published_configs. The first one's are codes of 4 bits.
EXPERTS = ["gpt-oss-120b", "qwen3-30b-a3b", "glm-4.5-air"]

QUEUE = ["--random-range-ratio", 0.9, "--end-of-text"]
LONG = [*QUEUE, "--num-long-prompts", 16, "--long-input-len", 16000]
OPS = ["--time-ops"]
KV8 = ["--kv-cache-dtype", "fp8"]
PREFIX_LEN = 2000
# A pool of K and V of so many rows with the prefix, each with its own, needs such a card.
PREFIX_ROWS = [(120, 256), (0, 128)]


@dataclass
class Work:
    """One benchmark."""

    shape: str
    mode: str
    num_rows: int
    input_len: int
    output_len: int
    quantization: str | None = None
    flags: list = field(default_factory=list)
    # Names it for goals, and in the table.
    name: str = ""
    max_model_len: int = 4096

    def row(self):
        return asdict(self) | {"flags": [str(flag) for flag in self.flags]}


def bench_list(args, memory_gib):
    """The most telling first."""
    few = 4 if args.quick else 1
    # More tokens than steps that the prompts take: all rows must decode together for a while.
    steps = 112 if args.quick else 160
    rows = next(rows for least, rows in PREFIX_ROWS if memory_gib >= least)
    shared = ["--prefix-len", PREFIX_LEN]
    work = [
        Work(BIG, "decode", 256, 1024, steps, name="decode"),
        Work(BIG, "throughput", 4096 // few, 256, 128, flags=QUEUE, name="queue"),
        Work(BIG, "decode", 256, 1024, steps, flags=KV8, name="decode, kv8"),
        Work(BIG, "decode", rows, 200, steps, flags=shared, name="prefix, shared"),
        Work(BIG, "decode", rows, PREFIX_LEN + 200, steps, name="prefix, apart"),
        Work(SMALL, "throughput", 4096 // few, 256, 128, flags=QUEUE, name="queue"),
        Work(BIG, "prefill", 64 // few, 2048, 1, name="prefill"),
        Work(BIG, "throughput", 1024 // few, 256, 64, None, LONG, "long beside short", 20000),
        Work(EXPERTS[0], "decode", 256, 1024, steps, name="decode"),
        Work(EXPERTS[1], "decode", 256, 1024, steps, name="decode"),
        Work(EXPERTS[0], "prefill", 32 // few, 2048, 1, name="prefill"),
        Work(EXPERTS[1], "prefill", 32 // few, 2048, 1, name="prefill"),
        Work(SMALL, "decode", 256, 1024, steps, name="decode"),
        Work(BIG, "prefill", 64 // few, 2048, 1, "fp8", name="prefill, fp8"),
        Work(BIG, "throughput", 256 // few, 2048, 128),
        Work(BIG, "decode", 256, 1024, 40, flags=OPS, name="ops"),
        Work(BIG, "decode", 256, 1024, 40, flags=[*KV8, *OPS], name="ops"),
        Work(BIG, "prefill", 16, 2048, 1, flags=OPS, name="ops"),
        Work(BIG, "throughput", 512, 256, 128, flags=[*QUEUE, *OPS], name="ops"),
        Work(SMALL, "throughput", 512, 256, 128, flags=[*QUEUE, *OPS], name="ops"),
        Work(BIG, "decode", 256, 1024, steps, "fp8"),
        Work(EXPERTS[0], "decode", 256, 1024, 40, flags=OPS, name="ops"),
        Work(EXPERTS[1], "decode", 256, 1024, 40, flags=OPS, name="ops"),
        Work(EXPERTS[1], "prefill", 8, 2048, 1, flags=OPS, name="ops"),
        Work(EXPERTS[1], "decode", 256, 1024, steps, "fp8"),
        # 106 GB of weights leave room for fewer rows.
        Work(EXPERTS[2], "decode", 64, 1024, steps, "fp8"),
        # What the peer is measured on first.
        Work(BIG, "throughput", 64, 512, 64),
        Work(SMALL, "throughput", 1024 // few, 256, 64, None, LONG, "long beside short", 20000),
        Work(SMALL, "prefill", 64 // few, 2048, 1),
        Work(OTHER, "decode", 256, 1024, steps),
        Work(OTHER, "prefill", 64 // few, 2048, 1),
        Work(OTHER, "throughput", 256 // few, 2048, 128),
        Work(BIG, "decode", 256, 1024, steps, flags=["--enforce-eager"]),
        Work(BIG, "decode", 1, 1024, 64),
    ]
    models = args.models.split(",")
    # Any other shape is for trying this script, on a CPU perhaps.
    tried = [
        entry
        for name in models
        if name not in (BIG, SMALL, OTHER, *EXPERTS)
        for entry in [
            Work(name, "decode", 8, 32, 16, name="decode"),
            Work(name, "throughput", 24, 16, 8, flags=QUEUE, name="queue"),
            Work(name, "decode", 8, 16, 16, flags=["--prefix-len", 128], name="prefix, shared"),
            Work(name, "decode", 8, 144, 16, name="prefix, apart"),
            Work(name, "decode", 8, 32, 16, flags=OPS, name="ops"),
        ]
    ]
    chosen = [entry for entry in work if entry.shape in models] + tried
    return [rehearsed(entry, args) for entry in chosen] if args.rehearse else chosen


def rehearsed(work, args):
    """The same benchmark of a small shape, with few and short rows: its flags are tried, and what
    is made of its result."""
    # Numbers in flags are lengths, but for a share below 1.
    flags = [max(2, flag // 64) if isinstance(flag, int) else flag for flag in work.flags]
    quantization = work.quantization
    if args.device == "cpu":
        flags = [] if work.flags == KV8 else flags
        quantization = quantization and "int8"
    return replace(
        work,
        shape=args.rehearse,
        num_rows=min(work.num_rows, 8),
        input_len=max(4, work.input_len // 64),
        output_len=min(work.output_len, 16),
        quantization=quantization,
        flags=flags,
        max_model_len=1024,
    )


def memory_gib(run):
    """Of the GPU; 0 where it is not known."""
    gpu = run.results["stages"].get("machine", {}).get("gpu") or {}
    words = gpu.get("memory.total", "").split()
    return float(words[0]) / 1024 if words else 0


def check(run):
    rows, slowest = [], 20.0
    for work in bench_list(run.args, memory_gib(run)):
        row = work.row()
        rows.append(row)
        expected = 0.5 * slowest if rows[:-1] else 0
        if run.left() < max(8, expected):
            row["note"] = "no time left"
            continue
        bench_one(run, row)
        slowest = max(slowest, row.get("wall_seconds", 0)) if row.get("ok") else slowest
        run.results["stages"]["bench"] = {"rows": rows}
        run.save()
    failed = [row for row in rows if row.get("ok") is False]
    note = f"{len(failed)} of {len(rows)} failed" if failed else ""
    return {"ok": not failed and any(row.get("ok") for row in rows), "note": note, "rows": rows}


def rates(run, quantization):
    """Flags of the rates that were measured: bandwidth, TFLOP/s of products and of attention."""
    ceilings = run.results["stages"].get("ceilings", {})
    bandwidth, burst = ceilings.get("copy_gb_per_second"), ceilings.get("bf16_tflops")
    if not bandwidth or not burst:
        return []
    sustained = ceilings.get("bf16_sustained", {}).get("tflops") or burst
    products = sustained
    if quantization and ceilings.get("fp8_tflops"):
        products = ceilings["fp8_tflops"] * sustained / burst
    flags = ["--memory-bandwidth", bandwidth, "--peak-tflops", round(products, 1)]
    return [*flags, "--attention-tflops", sustained]


def folder_of(run, shape):
    """A folder with the shape's config.json."""
    own = ROOT / "benches/shapes" / shape
    if own.exists():
        return own
    folder = run.path(shape)
    folder.mkdir(exist_ok=True)
    published = ROOT / "testdata/published_configs" / f"{shape}.json"
    (folder / "config.json").write_text(published.read_text())
    return folder


def bench_one(run, row):
    path = run.path("bench.json")
    path.unlink(missing_ok=True)
    argv = [run.args.binary, "bench", "--mode", row["mode"], "--device", run.args.device]
    argv += ["--model", folder_of(run, row["shape"]), "--load-format", "dummy"]
    argv += ["--tokenizer", ROOT / "benches/tokenizer", "--dtype", "bfloat16"]
    argv += ["--num-prompts", row["num_rows"], "--input-len", row["input_len"]]
    argv += ["--output-len", row["output_len"], "--num-warmups", min(8, row["num_rows"])]
    argv += ["--max-model-len", row["max_model_len"], "--output-json", path]
    argv += ["--quantization", row["quantization"]] if row["quantization"] else []
    argv += rates(run, row["quantization"])
    done = run.command("bench", argv + row["flags"], min(100, run.left()))
    row["wall_seconds"] = done["seconds"]
    try:
        row["result"] = json.loads(path.read_text())
    except (OSError, ValueError):
        row["result"] = {}
    row["ok"] = done["rc"] == 0 and bool(row["result"])
    if not row["ok"]:
        row["note"] = run.why(done)
        print(f"bench {row['shape']} {row['mode']}: {row['note']}", flush=True)
        return
    measure_against_floor(row)


def measure_against_floor(row):
    """`measured` and `floor` in seconds (decode: ms a step), and tokens a second."""
    result = row["result"]
    is_decode = row["mode"] == "decode"
    scale, row["unit"] = (1e3, "ms/step") if is_decode else (1.0, "s")
    if is_decode:
        step_ms = result["decode"]["step_ms_median"]
        row["tokens_per_second"] = round(1e3 * row["num_rows"] / step_ms, 1)
    else:
        row["tokens_per_second"] = round(result["tokens_per_second"], 1)
    row["measured"] = round(step_ms if is_decode else result["steps"]["all"]["seconds"], 3)
    if floor := result.get("floor"):
        parts = [scale * floor[f"{part}_seconds"] for part in ("products", "attention")]
        row["floor_parts"] = [round(part, 3) for part in parts]
        row["floor"] = round(sum(parts), 3)
        row["over_floor"] = round(1 / floor["share"], 3)


def named(rows, row, name):
    """The measured row of this name, of the same shape."""
    found = [r for r in rows if r.get("name") == name and r["shape"] == row["shape"]]
    return found[0] if found and found[0].get("measured") else None


def times_goal(row, rows, name, least, what):
    """Against another row, by its time for each row."""
    other = named(rows, row, name)
    if not other:
        return ""
    times = other["measured"] / row["measured"] * row["num_rows"] / other["num_rows"]
    return f"{times:.2f}x {what}, goal {least} {'ok' if times >= least else 'MISSED'}"


def goal(row, rows):
    """What the issue asks of a row, and whether it is met."""
    name, over = row.get("name", ""), row.get("over_floor")
    if not row.get("measured"):
        return ""
    if name == "decode, kv8":
        return times_goal(row, rows, "decode", 1.3, "bf16's")
    if name == "prefix, shared":
        return times_goal(row, rows, "prefix, apart", 1.7, "apart")
    if name == "prefill, fp8":
        return times_goal(row, rows, "prefill", 1.5, "bf16")
    least = {"decode": 80, "queue": 75, "prefill": 70}.get(name)
    if not least or not over:
        return ""
    return f"goal {least}% {'ok' if 100 / over >= least else 'MISSED'}"


def lines(rows):
    """Of the table: the rows, then what kernels take."""
    text = [
        "",
        "| shape | work | measured | floor: products + attention | of floor | tok/s | goal |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        work = described(row)
        if "measured" not in row:
            note = " ".join(str(row.get("note", "")).replace("|", " ").split())[:120]
            text.append(f"| {row['shape']} | {work} | {note} | | | | |")
            continue
        share = ""
        if "over_floor" in row:
            share = f"{100 / row['over_floor']:.0f}% ({row['over_floor']:.2f}x)"
        floor = " + ".join(f"{part:.3f}" for part in row.get("floor_parts", []))
        text.append(
            f"| {row['shape']} | {work} | {row['measured']:.3f} {row['unit']} "
            f"| {floor or row.get('floor', '')} | {share} "
            f"| {row.get('tokens_per_second', 0):.0f} | {goal(row, rows)} |"
        )
    return text + op_lines(rows) if rows else []


def described(row):
    work = f"{row['mode']} {row['num_rows']} x {row['input_len']}/{row['output_len']}"
    work += f" {row['quantization']}" if row["quantization"] else ""
    work += f" {' '.join(str(flag) for flag in row['flags'])}" if row["flags"] else ""
    return work + (f" ({row['name']})" if row.get("name") else "")


def op_lines(rows):
    """What a step's kernels take where they were timed, the longest first."""
    text = []
    for row in rows:
        result = row.get("result", {})
        if row.get("name") != "ops" or not result.get("ops"):
            continue
        num_steps, all_ms = result["num_steps"], 1e3 * result["steps"]["all"]["seconds"]
        what = f"{row['shape']}, {described(row)}"
        text += ["", f"Kernels, {what}, ms a step of {all_ms / num_steps:.3f}:"]
        for op in result["ops"][:14]:
            milliseconds = 1e3 * op["seconds"] / num_steps
            calls = op["calls"] / num_steps
            text.append(f"- {op['name']}: {milliseconds:.3f}, {calls:.1f} calls")
    return text
