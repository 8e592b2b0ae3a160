"""vLLM's own load generator (`vllm-rs bench serve`, which is in its wheel): every request of each of its
backends succeeds, and its sums are those of the server."""

import json
import os
import subprocess
import tempfile

from server import DEMO, ENCODER, Server, real_model, tool

NUM = 48
LENGTH = 24


def bench(executable, server, folder, *flags):
    result = os.path.join(folder, "result.json")
    command = [executable, "bench", "serve", "--base-url", server.url, "--save-result"]
    command += ["--result-dir", folder, "--result-filename", "result.json", "--disable-tqdm"]
    command += ["--num-prompts", str(NUM), "--max-concurrency", "16", "--no-steady-state", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    said = f"{' '.join(command)}\n{done.stdout[-8000:]}{done.stderr[-8000:]}"
    assert done.returncode == 0, said
    with open(result, encoding="utf-8") as file:
        found = json.load(file)
    os.remove(result)
    assert found["completed"] == NUM and not found.get("failed"), (said, found)
    return found


def check_texts(executable, server, folder, is_its_tokenizer):
    """Questions of a file; and random ids, since random bytes of a small vocabulary are no text."""
    asked = ["--dataset-name", "custom", "--dataset-path", questions(folder)]
    asked += ["--custom-output-len", str(LENGTH), "--seed", "7", "--ignore-eos", "--tokenizer", DEMO]
    generated = "vllm:generation_tokens_total"
    for backend in ("openai", "vllm", "openai-chat"):
        for more in ([], ["--logprobs", "2", "--temperature", "0.7"]):
            before = server.metric(generated)
            found = bench(executable, server, folder, "--backend", backend, *asked, *more)
            assert found["total_output_tokens"] == LENGTH * NUM, found
            # One more may be asked to see whether the server is there.
            assert server.metric(generated) - before >= LENGTH * NUM
            assert found["mean_ttft_ms"] > 0 and found["mean_tpot_ms"] > 0, found
    if is_its_tokenizer:
        flags = ["--backend", "openai", "--tokenizer", DEMO, "--prompt-token-ids", "--ignore-eos"]
        lengths = ["--random-input-len", "40", "--random-output-len", str(LENGTH)]
        found = bench(executable, server, folder, *flags, *lengths)
        assert found["total_input_tokens"] in (39 * NUM, 40 * NUM), found


def check(binary):
    executable = tool("VLLM_BATCH_TEST_VLLM_RS", "executable `vllm-rs` of vLLM's wheel")
    with tempfile.TemporaryDirectory() as folder:
        with Server(binary) as server:
            check_texts(executable, server, folder, is_its_tokenizer=True)
        if real_model() != DEMO:
            # The file has no folder of a tokenizer; the tool needs any, to count what it sends.
            with Server(binary, real_model(), "--max-model-len", "512") as server:
                check_texts(executable, server, folder, is_its_tokenizer=False)
        with Server(binary, ENCODER) as server:
            flags = ["--backend", "openai-embeddings", "--tokenizer", DEMO, "--random-input-len", "9"]
            bench(executable, server, folder, *flags)


def questions(folder):
    path = os.path.join(folder, "questions.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        for index in range(NUM):
            file.write(json.dumps({"prompt": f"What is {index} plus {index + 7}?"}) + "\n")
    return path
