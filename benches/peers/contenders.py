"""Who is measured by scripts/bench-peers, and how one of them takes its turn.

A contender is named `ours:DTYPE`, `ours:int8`, `openvino:WEIGHTS:HINT` or `vllm:DTYPE`; ours and
vLLM guess tokens with a third part, `guesses`. Ours and OpenVINO are a new process each turn. vLLM
loads for up to minutes: one process takes all turns of a model, and is stopped between them.
"""

import json
import os
import select
import subprocess
import tempfile
import time
from pathlib import Path

import machine

HERE = Path(__file__).resolve().parent


class TurnFailed(Exception):
    """A contender ended, or gave no answer in time."""


class Contender:
    """A name, what it stands for, and the settings of this session."""

    def __init__(self, name, settings):
        self.name, self.settings = name, settings
        self.kind, *self.parts = name.split(":")
        self.guesses = self.kind != "openvino" and self.parts[1:] == ["guesses"]
        if self.guesses:
            self.parts.pop()
        if len(self.parts) != {"ours": 1, "openvino": 2, "vllm": 1}.get(self.kind):
            raise SystemExit(f"{name}: not a contender\nhelp: see --help for their names")
        self.precision = "int8" if self.parts[0] == "int8" else "bf16"
        self.server = None
        self.version = ""

    def turn(self, model, workload):
        """Seconds without loading, tokens, CPU seconds and peak memory of one run."""
        run = {"ours": self.ours_turn, "openvino": self.process_turn, "vllm": self.server_turn}
        return run[self.kind](model, workload)

    def prepare(self, model):
        if self.kind == "vllm":
            self.server = Peer(self, model)
            self.version = self.server.answer(self.settings.patience_s)["version"]
            machine.pause(machine.process_tree(self.server.process.pid))

    def end(self):
        if self.server:
            self.server.kill()
            self.server = None

    def ours_argv(self, verb, model):
        model_dir = self.settings.peers_root / "models" / model
        flags = {"int8": ["--dtype", "bfloat16", "--quantization", "int8"]}
        argv = [self.settings.binary, verb, "--model", model_dir, "--device", "cpu", "-q"]
        argv += ["--threads", self.settings.threads]
        argv += ["--kv-cache-memory-bytes", f"{self.settings.kv_gib}GiB"]
        argv += flags.get(self.parts[0], ["--dtype", self.parts[0]])
        return [str(word) for word in argv + self.guessing() + self.settings.ours_flags]

    def guessing(self):
        """The flag that ours and vLLM's program have in common."""
        return ["--speculative-config", self.settings.speculative_config] if self.guesses else []

    def ours_turn(self, model, workload):
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "result.json"
            argv = self.ours_argv("bench", model) + ["--dataset", str(workload.path)]
            argv += ["--output-json", str(result)]
            # Limits that are given are not measured: memory's would show in the peak of memory.
            argv += ["--peak-tflops", "1", "--memory-bandwidth", "1"]
            usage = self.whole_process(argv)
            found = json.loads(result.read_text())
        self.version = f"vllm-batch {found['version']}, {found['engine']['kernel_set']}"
        if found["debug_build"]:
            raise SystemExit(f"{self.settings.binary}: a debug build\nhelp: build with --release")
        return {
            "seconds": round(found["elapsed_time"], 4),
            "tokens_ok": found["num_output_tokens"] == workload.num_output
            and found["num_prompt_tokens"] == workload.num_prompt,
            **usage,
        }

    def whole_process(self, argv):
        """Of a process from exec to exit; its errors are shown if it fails."""
        with tempfile.TemporaryFile() as errors:
            start = time.perf_counter()
            process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=errors)
            usage = wait_for(process)
            wall = time.perf_counter() - start
            if process.returncode:
                errors.seek(0)
                text = errors.read().decode(errors="replace")[-1500:]
                raise TurnFailed(f"{self.name} ended with {process.returncode}: {text}")
        return {**usage, "wall_s": wall}

    def start_up(self, model, workload):
        """From exec to exit, `workload` being of one row and one token."""
        if self.kind != "ours":
            turn = self.process_turn(model, workload)
            return {**turn, "seconds": turn["wall_s"]}
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out.jsonl"
            argv = self.ours_argv("run", model) + ["--max-tokens", "1"]
            usage = self.whole_process([*argv, "-i", str(workload.path), "-o", str(out)])
            row = json.loads(out.read_text())
        ok = workload.num_rows == 1 and "error" not in row
        return {"seconds": usage["wall_s"], "tokens_ok": ok, **usage}

    def process_turn(self, model, workload):
        """A peer that is started for this turn, and asked once."""
        start = time.perf_counter()
        peer = Peer(self, model)
        try:
            self.version = peer.answer(self.settings.patience_s)["version"]
            answer = peer.ask(workload)
            usage = peer.end()
            wall = time.perf_counter() - start
        finally:
            peer.kill()
        return {**checked(answer, workload), **usage, "wall_s": wall}

    def server_turn(self, model, workload):
        """A peer that has loaded before; its peak of memory begins anew."""
        pids = machine.process_tree(self.server.process.pid)
        machine.resume(pids)
        machine.reset_peak_rss(pids)
        start, cpu = time.perf_counter(), machine.cpu_seconds(pids)
        try:
            answer = self.server.ask(workload)
            usage = {
                "wall_s": time.perf_counter() - start,
                "cpu_s": machine.cpu_seconds(pids) - cpu,
                "peak_rss_mb": machine.peak_rss_mb(pids),
            }
        finally:
            machine.pause(pids)
        return {**checked(answer, workload), **usage}


def wait_for(process):
    """What a process used from exec to exit; it does not outlive us."""
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except BaseException:
        process.kill()
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    return {
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_rss_mb": round(usage.ru_maxrss / 1024),
    }


def checked(answer, workload):
    counts = answer.pop("num_output_tokens")
    return {**answer, "tokens_ok": counts == workload.max_tokens}


class Peer:
    """A process of run_openvino.py or run_vllm.py, in the environment made for it."""

    def __init__(self, contender, model):
        settings, self.contender = contender.settings, contender
        root = settings.peers_root
        environment = root / {"openvino": "ov-env", "vllm": "vllm-env"}[contender.kind]
        folder = root / "models" / model
        if contender.kind == "openvino":
            folder = root / "ovm" / f"{model}-{contender.parts[0]}"
        for path in (environment / "bin/python", folder):
            if not path.exists():
                raise TurnFailed(f"{contender.name}: no PEERS_ROOT/{path.relative_to(root)}")
        reading, writing = os.pipe()
        argv = [environment / "bin/python", HERE / f"run_{contender.kind}.py"]
        argv += ["--model-dir", folder, "--dtype", contender.parts[-1]]
        argv += ["--threads", settings.threads, "--kv-gib", settings.kv_gib]
        argv += ["--reply-fd", writing, *settings.peer_flags.get(contender.kind, [])]
        argv += contender.guessing()
        log = root / f"log-{contender.name.replace(':', '-')}.txt"
        with open(log, "w") as output:
            self.process = subprocess.Popen(
                [str(word) for word in argv],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[writing],
                env={**os.environ, **preloaded(contender.kind, root)},
                text=True,
            )
        os.close(writing)
        self.replies = os.fdopen(reading, "rb", buffering=0)
        self.log = log

    def ask(self, workload):
        request = {
            "dataset": str(workload.path),
            "shares_prefix": workload.shares_prefix,
            "warm_up": workload.warm_up,
        }
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.answer(self.contender.settings.patience_s)

    def answer(self, patience_s):
        """The next line, which is short: it comes in one piece."""
        ready, _, _ = select.select([self.replies], [], [], patience_s)
        line = self.replies.readline() if ready else b""
        if not line:
            why = "ended" if ready else f"gave no answer in {patience_s} s"
            tail = self.log.read_text(errors="replace")[-1500:]
            raise TurnFailed(f"{self.contender.name} {why}: {tail}")
        return json.loads(line)

    def end(self):
        """Closes its input, and what it used from exec to exit."""
        self.process.stdin.close()
        return wait_for(self.process)

    def kill(self):
        if self.process.returncode is None:
            pids = machine.process_tree(self.process.pid)
            machine.send(pids, 9)
            self.process.wait()
        self.replies.close()


def preloaded(kind, root):
    """vLLM's CPU guide preloads tcmalloc and Intel's OpenMP; both, where they are."""
    if kind != "vllm":
        return {}
    found = [*root.glob("keep/libtcmalloc*.so*"), *root.glob("vllm-env/lib/libiomp5.so")]
    return {"LD_PRELOAD": ":".join(str(path) for path in found)}
