"""guidellm: its load of made up prompts, in each of its ways to ask, has no request that failed."""

import json
import os
import subprocess
import tempfile

from server import DEMO, Server, real_model, tool

NUM = 40


def check(binary):
    executable = tool("VLLM_BATCH_TEST_GUIDELLM", "executable of guidellm")
    for model in dict.fromkeys((DEMO, real_model())):
        flags = () if model == DEMO else ("--max-model-len", "512")
        with Server(binary, model, *flags) as server, tempfile.TemporaryDirectory() as folder:
            for at, request in enumerate(("/v1/chat/completions", "/v1/completions")):
                loaded(executable, server, request, os.path.join(folder, f"{at}.json"))


def loaded(executable, server, request, out):
    # The tokenizer is the tool's, to make prompts of about so many tokens.
    data = "kind=synthetic_text,prompt_tokens=32,output_tokens=24"
    done = subprocess.run(
        [executable, "run", "--disable-console-interactive"]
        + ["--backend", f"kind=openai_http,target={server.url},model={server.name},request_format={request}"]
        + ["--profile", "kind=concurrent,streams=8", "--constraint", f"kind=max_requests,count={NUM}"]
        + ["--tokenizer", f"kind=huggingface_auto,model={DEMO}", "--data", data]
        + ["--output", f"kind=json,path={out}"],
        cwd=os.path.dirname(out),
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    said = f"{done.stdout[-8000:]}{done.stderr[-8000:]}"
    assert done.returncode == 0 and os.path.exists(out), said
    with open(out, encoding="utf-8") as file:
        (benchmark,) = json.load(file)["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert totals["successful"] == NUM and totals["errored"] == 0, (totals, said)
