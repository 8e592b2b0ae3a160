"""promptfoo, with its providers for OpenAI's API: answers and usage are those that the server gives."""

import json
import os
import subprocess
import tempfile
import urllib.request

from server import Missing, Server, real_model, tool

QUESTIONS = [(28, 94), (45, 45), (2, 3), (4, 4)]
QUIET = {
    "PROMPTFOO_DISABLE_TELEMETRY": "1",
    "PROMPTFOO_DISABLE_UPDATE": "1",
    "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
    "PROMPTFOO_DISABLE_SHARING": "1",
    "NO_COLOR": "1",
}


def node():
    found = os.environ.get("VLLM_BATCH_TEST_NODE", "node")
    try:
        version = subprocess.run([found, "--version"], capture_output=True, text=True).stdout.strip()
    except OSError:
        raise Missing("there is no node") from None
    if tuple(map(int, version.lstrip("v").split(".")[:2])) < (22, 22):
        raise Missing(f"it wants node 22.22 or newer, and {found} is {version}")
    return found


def asked(server, path, body):
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.base_url}{path}", json.dumps(body).encode(), head)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def check(binary):
    entry = tool("VLLM_BATCH_TEST_PROMPTFOO", "entry of promptfoo")
    with Server(binary, real_model(), "--max-model-len", "512") as server:
        with tempfile.TemporaryDirectory() as folder:
            evaluated(server, [node(), entry], folder)


def evaluated(server, command, folder):
    sampled = {"temperature": 0, "max_tokens": 16, "seed": 5}
    config = {"apiBaseUrl": server.base_url, "apiKey": "none", **sampled}
    right = {"type": "equals", "value": "{{expected}}"}
    tests = []
    for a, b in QUESTIONS:
        content = f"What is {a} plus {b}?"
        chat = {"messages": [{"role": "user", "content": content}], **sampled}
        chat = asked(server, "/chat/completions", chat)["choices"][0]["message"]["content"]
        text = asked(server, "/completions", {"prompt": content, **sampled})["choices"][0]["text"]
        tests.append({"vars": {"a": a, "b": b, "expected": chat}, "assert": [right]})
        tests[-1]["vars"]["completed"] = text
    name = server.name
    suite = {
        "prompts": ["What is {{a}} plus {{b}}?"],
        "providers": [
            {"id": f"openai:chat:{name}", "config": config},
            {"id": f"openai:chat:{name}", "label": "streamed", "config": {**config, "stream": True}},
            {"id": f"openai:completion:{name}", "label": "text", "config": config},
        ],
        "tests": tests,
    }
    file, out = os.path.join(folder, "suite.json"), os.path.join(folder, "out.json")
    with open(file, "w", encoding="utf-8") as opened:
        json.dump(suite, opened)
    done = subprocess.run(
        [*command, "eval", "-c", file, "-o", out, "--no-cache", "--no-write", "--no-table"],
        cwd=folder,
        env={**os.environ, **QUIET, "PROMPTFOO_CONFIG_DIR": folder},
        capture_output=True,
        text=True,
        timeout=600,
    )
    said = f"{done.stdout[-6000:]}{done.stderr[-4000:]}"
    assert os.path.exists(out), said
    with open(out, encoding="utf-8") as opened:
        results = json.load(opened)["results"]["results"]
    assert len(results) == 3 * len(QUESTIONS), said
    for result in results:
        wanted = "completed" if result["provider"].get("label") == "text" else "expected"
        answer = result["response"]
        assert "error" not in answer, answer
        assert answer["output"] == result["vars"][wanted], result
        if result["provider"].get("label") != "streamed":
            used = answer["tokenUsage"]
            assert used["total"] == used["prompt"] + used["completion"] > 0, result
