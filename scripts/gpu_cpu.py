"""The cpu stage of scripts/gpu-check: `vllm-batch bench --device cpu` by the number of threads, in
bfloat16 and int8, beside the floor that it measures itself, and torch's products beside ours.

A row's speed-up is over the same work on one thread, or on the fewest threads that it is run with;
the floor's own says what the machine allows: peaks of one core and of all differ.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
THREADS = [1, 2, 4, 8, 16]
# Shape: fewest threads, rows of decode, prompts and their length, steps.
WORK = {
    "smol135": (1, (64, 256), (32, 512), 24),
    "qwen05": (1, (64,), (16, 512), 16),
    "llama-3.1-8b": (8, (64,), (4, 512), 8),
}
TORCH = """
import json, sys, time, torch
found = []
for threads in json.loads(sys.argv[1]):
    torch.set_num_threads(threads)
    for rows, k, n in [(64, 4096, 4096), (256, 4096, 4096), (2048, 4096, 4096)]:
        x, w = (torch.randn(s, dtype=torch.bfloat16) for s in [(rows, k), (n, k)])
        for _ in range(3):
            torch.nn.functional.linear(x, w)
        num, start = 0, time.perf_counter()
        while time.perf_counter() - start < 0.5:
            torch.nn.functional.linear(x, w)
            num += 1
        seconds = (time.perf_counter() - start) / num
        found.append(dict(threads=threads, rows=rows, tflops=2e-12 * rows * k * n / seconds))
print("FOUND " + json.dumps(found))
"""


def work_list(args):
    """The most telling first: those of one number of threads together."""
    threads = [num for num in THREADS if num <= os.cpu_count()]
    for shape, (fewest, decodes, prompts, steps) in WORK.items():
        if args.rehearse and shape != args.rehearse:
            continue
        for dtype in ("bfloat16", "int8"):
            for num in threads:
                if num < min(fewest, threads[-1]):
                    continue
                for rows in decodes:
                    yield row(shape, dtype, num, "decode", rows, 64, steps)
                yield row(shape, dtype, num, "prefill", *prompts, 1)


def row(shape, dtype, threads, mode, num_rows, input_len, output_len):
    return dict(
        shape=shape, dtype=dtype, threads=threads, mode=mode, num_rows=num_rows,
        input_len=input_len, output_len=output_len,
    )


def check(run):
    rows = []
    for one in work_list(run.args):
        rows.append(one)
        if run.left() < 10:
            one["note"] = "no time left"
            continue
        bench_one(run, one)
        run.results["stages"]["cpu"] = {"rows": rows}
        run.save()
    add_speed_ups(rows)
    threads = sorted({one["threads"] for one in rows})
    done = run.command("cpu", [sys.executable, "-c", TORCH, json.dumps(threads)], run.left())
    found = [line for line in done["text"].splitlines() if line.startswith("FOUND ")]
    torch = json.loads(found[0].removeprefix("FOUND ")) if found else []
    failed = [one for one in rows if one.get("ok") is False]
    note = f"{len(failed)} of {len(rows)} failed" if failed else "" if torch else "no torch"
    return {"ok": not failed, "note": note, "rows": rows, "torch": torch, "cpu": cpu_flags()}


def bench_one(run, one):
    path = run.path("cpu.json")
    path.unlink(missing_ok=True)
    argv = [run.args.binary, "bench", "--mode", one["mode"], "--device", "cpu", "--load-format"]
    argv += ["dummy", "--model", ROOT / "benches/shapes" / one["shape"], "--dtype", "bfloat16"]
    argv += ["--tokenizer", ROOT / "benches/tokenizer", "--threads", one["threads"]]
    argv += ["--num-prompts", one["num_rows"], "--input-len", one["input_len"]]
    argv += ["--output-len", one["output_len"], "--num-warmups", 2, "--max-model-len", 1024]
    argv += ["--output-json", path, *(["--quantization", "int8"] if one["dtype"] == "int8" else [])]
    done = run.command("cpu", argv, min(120, run.left()))
    try:
        result = json.loads(path.read_text())
    except (OSError, ValueError):
        result = {}
    one["ok"] = done["rc"] == 0 and bool(result)
    if not one["ok"]:
        one["note"] = run.why(done)
        return
    is_decode = one["mode"] == "decode"
    seconds = result["decode"]["step_ms_median"] / 1e3 if is_decode else None
    num_tokens = one["num_rows"] * (1 if is_decode else one["input_len"])
    one["tokens_per_second"] = num_tokens / (seconds or result["steps"]["all"]["seconds"])
    one["kernel_set"] = result.get("engine", {}).get("kernel_set")
    if floor := result.get("floor"):
        one["share_of_floor"] = floor["share"]
        one["floor_tokens_per_second"] = one["tokens_per_second"] / floor["share"]


def add_speed_ups(rows):
    keys = ("shape", "dtype", "mode", "num_rows")
    for one in rows:
        same = [other for other in rows if all(other[key] == one[key] for key in keys)]
        first = next((other for other in same if other.get("tokens_per_second")), None)
        if first and one.get("tokens_per_second"):
            one["over"] = first["threads"]
            one["speed_up"] = one["tokens_per_second"] / first["tokens_per_second"]
            if "floor_tokens_per_second" in one and "floor_tokens_per_second" in first:
                allowed = one["floor_tokens_per_second"] / first["floor_tokens_per_second"]
                one["speed_up_of_floor"] = allowed


def cpu_flags():
    """What of the CPU's instructions matters here, and where its cores and memory are."""
    try:
        said = subprocess.run(["lscpu"], capture_output=True, text=True).stdout
    except OSError:
        return ""
    flags = {"amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni", "avx512f", "avx2"}
    kept = [line.strip() for line in said.splitlines() if line.startswith(("Model name", "NUMA", "Socket", "L3", "Thread"))]
    return "; ".join([*kept, " ".join(sorted(flags & set(said.split())))])


def lines(stage):
    rows = [one for one in stage.get("rows", []) if one.get("tokens_per_second")]
    if not rows:
        return []
    text = ["", f"CPU: {stage.get('cpu', '')}", ""]
    text += ["| CPU | threads | tokens/s | of the floor | speed-up | of the floor's |"]
    text += ["|---|---|---|---|---|---|"]
    for one in rows:
        name = f"{one['shape']} {one['dtype']}, {one['mode']} of {one['num_rows']}"
        share = f"{one['share_of_floor']:.0%}" if "share_of_floor" in one else "-"
        up = f"{one['speed_up']:.2f} over {one['over']}"
        allowed = one.get("speed_up_of_floor")
        of_allowed = f"{one['speed_up'] / allowed:.0%}" if allowed else "-"
        text.append(f"| {name} | {one['threads']} | {one['tokens_per_second']:.0f} | {share} | {up} | {of_allowed} |")
    for product in stage.get("torch", []):
        text.append(f"- torch, {product['rows']} x 4096 x 4096 in bf16, {product['threads']} threads: {product['tflops']:.2f} TFLOP/s")
    return text
