"""schemathesis: requests that OpenAI's description allows, and such as it does not, get an answer that
it describes. No server error but those of docs/SERVE.md, no status, form or field beside it."""

import json
import os
import subprocess
import sys
import tempfile

import openai

import description
from server import DEMO, ENCODER, Server

CHECKS = ",".join([
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
    "ignored_auth",
    "missing_required_header",
])
KEY = "sk-of-schemathesis"
# Requests of each operation.
EXAMPLES = int(os.environ.get("VLLM_BATCH_TEST_SCHEMATHESIS_EXAMPLES", "300"))


def asked(server, paths, folder, more, ids=()):
    file = os.path.join(folder, "openapi.json")
    description.write(file, paths, server.name, dict(ids))
    command = [os.path.join(os.path.dirname(sys.executable), "schemathesis"), "run", file]
    command += ["--url", server.base_url, "--header", f"Authorization:Bearer {KEY}"]
    command += ["--checks", CHECKS, "--max-examples", str(EXAMPLES), "--continue-on-failure"]
    command += ["--phases", "examples,coverage,fuzzing", "--suppress-health-check", "all"]
    command += ["--request-timeout", "120", "--no-color", "--warnings", "off"]
    command += ["--generation-codec", "utf-8", "--generation-database", "none", *more]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-60000:]}{done.stderr[-4000:]}"
    summary = [line for line in done.stdout.splitlines() if " generated" in line or "passed" in line]
    print(f"  {server.name}:", "; ".join(line.strip() for line in summary), flush=True)


def check(binary, more=()):
    for model, paths in ((DEMO, description.OF_TEXTS), (ENCODER, description.OF_VECTORS)):
        with tempfile.TemporaryDirectory() as folder:
            with Server(binary, model, "--api-key", KEY) as server:
                asked(server, paths, folder, more)
                assert server.metric("vllm:num_requests_running", key=KEY) == 0
                reason = 'vllm:request_success_total{finished_reason="%s"}'
                answered = sum(server.metric(reason % each, key=KEY) for each in ("stop", "length"))
                errors = server.metric(reason % "error", key=KEY)
                print(f"  {answered:.0f} rows answered, {errors:.0f} errors", flush=True)
                assert answered > 0 == errors
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--api-key", KEY, "--batch-dir", os.path.join(folder, "batches"))
        with Server(binary, DEMO, *flags) as server:
            asked(server, description.OF_FILES, folder, more, ids_of(server))


def ids_of(server):
    """Files that are sent, and batches of them: some are cancelled or deleted by what is asked then."""
    client = openai.OpenAI(base_url=server.base_url, api_key=KEY, max_retries=0)
    body = {"prompt": "a", "max_tokens": 4}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    contents = [json.dumps(line), "", "no JSON", json.dumps({**line, "body": {}})]
    files, batches = [], []
    for content in contents:
        file = client.files.create(file=("a.jsonl", content.encode()), purpose="batch")
        files.append(file.id)
        window = {"completion_window": "24h", "endpoint": "/v1/completions"}
        batches.append(client.batches.create(input_file_id=file.id, **window).id)
    return {"file_id": files, "batch_id": batches}
