#!/usr/bin/env python3
"""Hugging Face transformers on the work of scripts/gpu-check, as the peer at hand.

    peer_hf_continuous_batching.py '{"config": "benches/shapes/llama-3.1-8b/config.json", ...}'

The one argument is a JSON object (keys and defaults: DEFAULTS). Weights are random and made on the
device, prompts are random token ids, greedy, no end-of-sequence token: every row yields exactly
`output_len` tokens. Two ways of running are measured:

  continuous  transformers' continuous batching (what `generate_batch` uses) over a paged cache; the
              attention is the fastest that transformers finds (flash kernels), else the fallbacks
  static      `model.generate` over batches of `static_batch` rows: all rows are equally long, so
              nothing is lost to padding

Each measurement is appended to `out` at once: a run that is killed keeps what it had.
"""

import gc
import json
import logging
import sys
import time
import traceback
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.generation import ContinuousBatchingConfig
from transformers.generation.continuous_batching.utils import WorkloadHints

DEFAULTS = {
    "config": None,
    "out": None,
    "device": "cuda",
    "dtype": "bfloat16",
    "budget_s": 90.0,
    # Rows, prompt tokens, output tokens. The first is measured whole, the last as far as time goes.
    "workloads": [[64, 512, 64], [256, 2048, 128]],
    "ways": ["continuous", "static"],
    # Tried in this order until one runs; "sdpa" lets transformers switch to flash attention.
    "attention": ["sdpa", "paged|sdpa", "paged|eager"],
    "static_batch": 64,
    # Continuous batching with a materialized mask costs rows squared, so it starts with few.
    "first_rows": 16,
    "num_blocks": None,
    "max_batch_tokens": None,
    "seed": 0,
}


class Peer:
    """One model, its measurements, and the time that is left."""

    def __init__(self, options):
        self.options = {**DEFAULTS, **options}
        self.started = time.monotonic()
        self.device = torch.device(self.options["device"])
        self.result = {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu",
            "budget_s": self.options["budget_s"],
            "measurements": [],
            "errors": [],
        }

    def left(self):
        return self.options["budget_s"] - (time.monotonic() - self.started)

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def save(self):
        text = json.dumps(self.result, indent=1)
        if self.options["out"]:
            Path(self.options["out"]).write_text(text)
        return text

    def note_error(self, what):
        lines = traceback.format_exc().strip().splitlines()
        self.result["errors"].append(f"{what}: {lines[-1][:400]}")
        print(f"{what} failed\n" + "\n".join(lines), file=sys.stderr, flush=True)
        self.save()

    def load(self):
        config_path = Path(self.options["config"])
        config = AutoConfig.from_pretrained(
            config_path.parent if config_path.is_file() else config_path
        )
        config.eos_token_id = None
        torch.manual_seed(self.options["seed"])
        started = time.monotonic()
        dtype = getattr(torch, self.options["dtype"])
        with self.device:
            model = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation="sdpa"
            )
        self.model = model.eval()
        self.model.generation_config.eos_token_id = None
        self.synchronize()
        self.result["load_s"] = round(time.monotonic() - started, 2)
        self.result["num_parameters"] = sum(p.numel() for p in model.parameters())
        self.save()

    def prompts(self, num_rows, input_len):
        shape = (num_rows, input_len)
        return torch.randint(
            1, self.model.config.vocab_size, shape, generator=torch.Generator().manual_seed(1)
        )

    def generation_config(self, output_len, eos_token_id):
        return GenerationConfig(
            max_new_tokens=output_len, do_sample=False, eos_token_id=eos_token_id, pad_token_id=0
        )

    def continuous(self, num_rows, input_len, output_len):
        """Seconds from the first request to the last result, and the tokens yielded. What
        `generate_batch` does, but with the pool, graphs and thread made before the clock starts."""
        wanted = {
            "num_blocks": self.options["num_blocks"],
            "max_batch_tokens": self.options["max_batch_tokens"],
            # Rows are random: a prefix cache could only cost.
            "allow_block_sharing": False,
        }
        wanted = {name: value for name, value in wanted.items() if value is not None}
        hints = WorkloadHints(
            max_prompt_length=input_len, max_generated_length=output_len, num_requests=num_rows
        )
        manager = self.model.continuous_batching_context_manager(
            generation_config=self.generation_config(output_len, -1),
            continuous_batching_config=ContinuousBatchingConfig(**wanted),
            workload_hints=hints,
            timeout=5,
            warmup=self.device.type == "cuda",
        )
        inputs = self.prompts(num_rows, input_len).tolist()
        with manager as manager:
            self.attention_used = self.model.config._attn_implementation
            self.results(manager, inputs[:1], 2)
            self.synchronize()
            started = time.monotonic()
            results = self.results(manager, inputs, output_len)
            seconds = time.monotonic() - started
        errors = sorted({str(result.error) for result in results if result.error})
        if errors:
            raise RuntimeError(f"continuous batching: {errors[0][:300]}")
        return seconds, sum(len(result.generated_tokens) for result in results)

    def results(self, manager, inputs, output_len):
        manager.add_requests(inputs=inputs, max_new_tokens=output_len)
        results = []
        while len(results) < len(inputs):
            result = manager.get_result(timeout=0.5)
            if result is not None and result.is_finished():
                results.append(result)
            elif result is None and not manager.is_running():
                status = getattr(manager, "background_thread_status", None)
                raise RuntimeError(
                    f"the generation thread ended: {getattr(status, 'fatal_error', None)}"
                )
        return results

    def static(self, num_rows, input_len, output_len):
        """Seconds of `generate` over all rows, `static_batch` at a time, and the tokens yielded."""
        inputs = self.prompts(num_rows, input_len)
        num_tokens = 0
        self.synchronize()
        started = time.monotonic()
        for batch in inputs.split(self.options["static_batch"]):
            batch = batch.to(self.device)
            outputs = self.model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                generation_config=self.generation_config(output_len, None),
            )
            num_tokens += outputs.numel() - batch.numel()
        self.synchronize()
        return time.monotonic() - started, num_tokens

    def measure(self, way, num_rows, input_len, output_len, warm_up=False):
        """Seconds, or None if it failed."""
        what = f"{way} {num_rows} x {input_len}/{output_len}"
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        try:
            with torch.no_grad():
                seconds, num_output = getattr(self, way)(num_rows, input_len, output_len)
            if num_output != num_rows * output_len:
                raise RuntimeError(f"{num_output} tokens instead of {num_rows * output_len}")
        except Exception:  # out of memory, or a version that lacks something: the next way may run
            self.note_error(what)
            return None
        finally:
            # A manager and its pool are a cycle of references.
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        if warm_up:
            return seconds
        row = {
            "way": way,
            "attention": self.attention_used if way == "continuous" else "sdpa",
            "num_rows": num_rows,
            "input_len": input_len,
            "output_len": output_len,
            "seconds": round(seconds, 3),
            "total_tokens_per_second": round(num_rows * (input_len + output_len) / seconds, 1),
            "output_tokens_per_second": round(num_output / seconds, 1),
        }
        if way == "static":
            row["batch"] = min(num_rows, self.options["static_batch"])
        if self.device.type == "cuda":
            row["peak_memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 1)
        self.result["measurements"].append(row)
        self.save()
        print(json.dumps(row), flush=True)
        return seconds

    def choose_attention(self):
        """The first attention that continuous batching runs with at all, or None."""
        for attention in self.options["attention"]:
            try:
                self.model.set_attn_implementation(attention)
            except Exception:
                self.note_error(f"attention {attention}")
                continue
            if self.measure("continuous", 4, 64, 4, warm_up=True) is not None:
                return attention
        return None

    def grow(self, way, workload, first, growth):
        """The workload with more and more of its rows, while the next try is likely to end in time.
        `growth`: how seconds grow when rows double; 1: they are proportional to the rows."""
        num_rows, input_len, output_len = workload
        rows = min(first, num_rows)
        while rows:
            seconds = self.measure(way, rows, input_len, output_len)
            if seconds is None and way == "static" and rows > 16:
                # Most likely out of memory.
                rows = self.options["static_batch"] = rows // 2
                continue
            if seconds is None or rows == num_rows:
                return
            if growth == 1:
                # Batches are alike: straight to all rows that fit.
                fit = int(0.9 * self.left() / seconds) * rows
                rows = min(num_rows, fit) if fit > rows else 0
            else:
                rows = min(2 * rows, num_rows) if self.left() > growth * seconds else 0

    def run(self):
        self.load()
        small, large = self.options["workloads"][0], self.options["workloads"][-1]
        ways = self.options["ways"]
        if "static" in ways and self.measure("static", 4, 64, 4, warm_up=True) is not None:
            self.measure("static", *small)
        paged = self.choose_attention() if "continuous" in ways else None
        if paged:
            self.measure("continuous", *small)
        if "static" in ways and self.left() > 0:
            self.model.set_attn_implementation("sdpa")
            self.grow("static", large, self.options["static_batch"], 1)
        if paged and self.left() > 0:
            self.model.set_attn_implementation(paged)
            self.grow("continuous", large, self.options["first_rows"], 4)


def main():
    logging.basicConfig(level=logging.WARNING)
    # The attention and graphs that transformers chooses are in its own log.
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.INFO)
    peer = Peer(json.loads(sys.argv[1]))
    try:
        peer.run()
    except Exception:
        peer.note_error("peer")
    print(peer.save())
    return 0 if peer.result["measurements"] else 1


if __name__ == "__main__":
    sys.exit(main())
