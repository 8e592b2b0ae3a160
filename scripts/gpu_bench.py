"""The bench stage of scripts/gpu-check: `vllm-batch bench` on the shapes of benches/shapes, beside
floors that follow from the shape and the measured ceilings.

  decode      bytes of all weights and of the KV cache over the copy bandwidth
  prefill     operations over the GEMM rate
  throughput  both: operations of all tokens, and bytes of all decode steps
"""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class Shape:
    """Operations and bytes of a model, from its config.json."""

    def __init__(self, path, quantization):
        config = json.loads(Path(path).read_text())
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        head_dim = config.get("head_dim", hidden // heads)
        self.num_layers = config["num_hidden_layers"]
        attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
        self.layers = self.num_layers * (attention + 3 * hidden * inner)
        self.head = hidden * config["vocab_size"]
        self.q_width = heads * head_dim
        self.kv_bytes = self.num_layers * 2 * kv_heads * head_dim * 2
        self.fp8 = quantization == "fp8"

    def weight_bytes(self):
        """Read by each step. With fp8 the output layer stays in 16 bits."""
        return self.layers * (1 if self.fp8 else 2) + self.head * 2

    def linear_flops(self, num_tokens):
        return 2.0 * self.layers * num_tokens

    def other_flops(self, start, end, num_heads):
        """Attention of the tokens from start to end, and the output layer `num_heads` times."""
        positions = (end * (end + 1) - start * (start + 1)) / 2
        return 4.0 * self.q_width * self.num_layers * positions + 2.0 * self.head * num_heads


def bench_list(args):
    """(shape, mode, rows, tokens in and out, quantization, flags), the most telling first."""
    big, small, other = "llama-3.1-8b", "llama-3.2-1b", "qwen2.5-7b"
    few = 4 if args.quick else 1
    # More tokens than steps that the prompts take: all rows must decode together for a while.
    steps = 112 if args.quick else 160
    work = [
        (big, "decode", 256, 1024, steps, None, []),
        (big, "prefill", 64 // few, 2048, 1, None, []),
        (big, "throughput", 256 // few, 2048, 128, None, []),
        (big, "prefill", 64 // few, 2048, 1, "fp8", []),
        (big, "decode", 256, 1024, steps, "fp8", []),
        (big, "decode", 256, 1024, steps, None, ["--kv-cache-dtype", "fp8"]),
        # What the peer is measured on first.
        (big, "throughput", 64, 512, 64, None, []),
        (small, "decode", 256, 1024, steps, None, []),
        (small, "prefill", 64 // few, 2048, 1, None, []),
        (small, "throughput", 256 // few, 2048, 128, None, []),
        (other, "decode", 256, 1024, steps, None, []),
        (other, "prefill", 64 // few, 2048, 1, None, []),
        (other, "throughput", 256 // few, 2048, 128, None, []),
        (big, "decode", 256, 1024, steps, None, ["--enforce-eager"]),
        (big, "decode", 1, 1024, 64, None, []),
        (big, "prefill", 64 // few, 2048, 1, None, ["--max-num-batched-tokens", 16384]),
    ]
    return [entry for entry in work if entry[0] in args.models.split(",")]


def check(run):
    rows, slowest = [], 20.0
    for entry in bench_list(run.args):
        row = dict(
            zip(
                ("shape", "mode", "num_rows", "input_len", "output_len", "quantization", "flags"),
                entry,
            )
        )
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


def bench_one(run, row):
    path = run.path("bench.json")
    path.unlink(missing_ok=True)
    argv = [run.args.binary, "bench", "--mode", row["mode"], "--device", run.args.device]
    argv += ["--model", ROOT / "benches/shapes" / row["shape"], "--load-format", "dummy"]
    argv += ["--tokenizer", ROOT / "benches/tokenizer", "--dtype", "bfloat16"]
    argv += ["--num-prompts", row["num_rows"], "--input-len", row["input_len"]]
    argv += ["--output-len", row["output_len"], "--num-warmups", min(8, row["num_rows"])]
    argv += ["--max-model-len", 4096, "--output-json", path]
    argv += ["--quantization", row["quantization"]] if row["quantization"] else []
    bandwidth = run.ceiling("copy_gb_per_second")
    rate = run.ceiling("fp8_tflops" if row["quantization"] else "bf16_tflops")
    argv += ["--memory-bandwidth", bandwidth] if bandwidth else []
    argv += ["--peak-tflops", rate] if rate else []
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
    measure_against_floor(run, row)


def find(result, *names):
    """The first of these keys, at any depth."""
    for name in names:
        if isinstance(result.get(name), (int, float)):
            return float(result[name])
    for value in result.values():
        if isinstance(value, dict) and (found := find(value, *names)) is not None:
            return found
    return None


def measure_against_floor(run, row):
    """`measured` and `floor` in seconds (decode: ms a step), and the goal's figure."""
    shape = Shape(ROOT / "benches/shapes" / row["shape"] / "config.json", row["quantization"])
    if "--kv-cache-dtype" in row["flags"]:
        shape.kv_bytes //= 2
    rows, start, length = row["num_rows"], row["input_len"], row["output_len"]
    bandwidth = (run.ceiling("copy_gb_per_second") or 0) * 1e9
    bf16 = (run.ceiling("bf16_tflops") or 0) * 1e12
    rate = (run.ceiling("fp8_tflops") or 0) * 1e12 if row["quantization"] else bf16
    seconds = find(row["result"], "elapsed_time")
    if seconds:
        row["tokens_per_second"] = round(rows * (start + length) / seconds, 1)
    context = start + length / 2
    kv_bytes = find(row["result"], "kv_bytes_per_step") or rows * context * shape.kv_bytes
    step_bytes = shape.weight_bytes() + kv_bytes
    flops = rows * shape.other_flops(0, start + length - 1, length)
    linear = shape.linear_flops(rows * (start + length - 1))
    if row["mode"] == "decode":
        row["measured"] = find(row["result"], "step_ms_median", "step_ms_mean")
        if row["measured"]:
            row["tokens_per_second"] = round(1e3 * rows / row["measured"], 1)
        row["unit"] = "ms/step"
        row["floor"] = 1e3 * step_bytes / bandwidth if bandwidth else None
        row["gigabytes_per_step"] = round(step_bytes / 1e9, 2)
    else:
        decode_bytes = step_bytes * (length - 1) if row["mode"] == "throughput" else 0
        row["measured"], row["unit"] = seconds, "s"
        if rate and bandwidth:
            row["floor"] = linear / rate + flops / bf16 + decode_bytes / bandwidth
        row["tflop"] = round((linear + flops) / 1e12, 1)
    if row.get("measured") and row.get("floor"):
        row["over_floor"] = round(row["measured"] / row["floor"], 3)
        row["floor"] = round(row["floor"], 3)
        row["measured"] = round(row["measured"], 3)


def goal(row, rows):
    """What the issue asks of a row, and whether it is met."""
    over = row.get("over_floor")
    if row["shape"] != "llama-3.1-8b" or row["flags"] or not over or row["num_rows"] == 1:
        return ""
    if row["quantization"]:
        plain = [
            r
            for r in rows
            if r["mode"] == row["mode"] and not r["quantization"] and r.get("measured")
        ]
        if row["mode"] != "prefill" or not plain:
            return ""
        times = plain[0]["measured"] / row["measured"] * row["num_rows"] / plain[0]["num_rows"]
        return f"{times:.2f}x bf16, goal 1.5 {'ok' if times >= 1.5 else 'MISSED'}"
    if row["mode"] == "throughput" and row["input_len"] == 2048:
        return f"goal 1.4x {'ok' if over <= 1.4 else 'MISSED'}"
    least = {"decode": 80, "prefill": 70}.get(row["mode"])
    return f"goal {least}% {'ok' if 100 / over >= least else 'MISSED'}" if least else ""
