#!/usr/bin/env python3
"""What one GPU gives through PyTorch, as JSON: the ceilings that scripts/gpu-check divides by.

  copy_gb_per_second       device-to-device copy, bytes read plus bytes written
  bf16_tflops, fp8_tflops  8192 x 8192 x 8192 products of random data
  bf16_sustained           the same bf16 product for two seconds without a pause: TFLOP/s, and the
                           clock and power near its end. A card at its power limit is slower so
  layer_gemms              the products of one layer of Llama-3.1-8B, bf16, by rows: what cuBLAS
                           reaches when it may choose an algorithm for every number of rows

Medians of CUDA events, after a warm-up. With an argument, writes there too after each figure.
"""

import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path

import torch

COPY_BYTES = 8_000_000_000
SIZE = 8192
# (N, K) of qkv, output, gate and up, down.
LAYER = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
ROWS = [1, 64, 256, 2048, 8192]


def median_ms(function, repeats=20, warm_ups=3):
    for _ in range(warm_ups):
        function()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        function()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def copy_gb_per_second():
    # Bytes that are not all alike: some memories compress.
    source = torch.randint(0, 2**31, (COPY_BYTES // 4,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / median_ms(lambda: target.copy_(source)) / 1e6


def random_matrix(rows, columns):
    return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)


def bf16_tflops():
    a, b = random_matrix(SIZE, SIZE), random_matrix(SIZE, SIZE)
    out = torch.empty_like(a)
    return 2 * SIZE**3 / median_ms(lambda: torch.mm(a, b.t(), out=out)) / 1e9


def bf16_sustained():
    a, b = random_matrix(SIZE, SIZE), random_matrix(SIZE, SIZE)
    out = torch.empty_like(a)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    count = 1100
    start.record()
    for _ in range(count):
        torch.mm(a, b.t(), out=out)
    end.record()
    # The queue is shorter than that: most of the work is done by now, some is left.
    query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader"]
    state = subprocess.run(query, capture_output=True, text=True, timeout=10).stdout.strip()
    end.synchronize()
    tflops = count * 2 * SIZE**3 / start.elapsed_time(end) / 1e9
    return {"tflops": round(tflops, 1), "state": state}


def fp8_tflops():
    a = random_matrix(SIZE, SIZE).to(torch.float8_e4m3fn)
    b = random_matrix(SIZE, SIZE).to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")

    def product():
        torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    return 2 * SIZE**3 / median_ms(product) / 1e9


def rotating_gemm_ms(x, copies):
    turn = itertools.cycle(copies)
    return median_ms(lambda: torch.mm(x, next(turn).t()), repeats=15)


def layer_gemms():
    """Per number of rows: ms of each product of a layer, and TFLOP/s over all of them."""
    # Several copies of the weights, so that they come from memory and not from the cache.
    weights = [[random_matrix(n, k) for _ in range(3)] for n, k in LAYER]
    figures = {}
    for rows in ROWS:
        times = []
        for copies in weights:
            times.append(rotating_gemm_ms(random_matrix(rows, copies[0].shape[1]), copies))
        flops = sum(2 * rows * n * k for n, k in LAYER)
        figures[rows] = {
            "ms": [round(time, 4) for time in times],
            "tflops": round(flops / sum(times) / 1e9, 1),
        }
    return figures


def main():
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "errors": {}}
    for measure in (copy_gb_per_second, bf16_tflops, bf16_sustained, fp8_tflops, layer_gemms):
        try:
            value = measure()
            result[measure.__name__] = round(value, 1) if isinstance(value, float) else value
        except Exception as error:
            result["errors"][measure.__name__] = f"{type(error).__name__}: {error}"[:400]
        torch.cuda.empty_cache()
        if len(sys.argv) > 1:
            Path(sys.argv[1]).write_text(json.dumps(result))
    print(json.dumps(result, indent=1))
    return 1 if "copy_gb_per_second" in result["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
