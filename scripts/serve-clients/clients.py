#!/usr/bin/env python3
"""Real clients against `vllm-batch serve`: what they send is answered, what they read is whole.

    cargo build
    python3 -m venv ENV && ENV/bin/python -m pip install -r scripts/serve-clients/requirements.txt
    ENV/bin/python scripts/serve-clients/clients.py [--binary target/debug/vllm-batch] [CLIENT...]

Without a name: all of CLIENTS. Each starts servers of its own on free ports of 127.0.0.1; nothing
goes over the network. Ends with 1 at the first client that is answered wrongly. Those of other tools
than requirements.txt print SKIP and what is missing:

    promptfoo     VLLM_BATCH_TEST_PROMPTFOO: its entry, node_modules/promptfoo/dist/src/main.js; and
                  VLLM_BATCH_TEST_NODE: node 22.22 or newer, where `node` is older
    vllm-bench    VLLM_BATCH_TEST_VLLM_RS: the executable `vllm/vllm-rs` of vLLM's wheel
    guidellm      VLLM_BATCH_TEST_GUIDELLM: the executable of guidellm 0.8.1 in an environment with torch

`VLLM_BATCH_TEST_REAL_DIR`, where it is set, is the folder of SmolLM2-135M-Instruct.Q4_1.gguf, which load
is put on in place of testdata/demo.
"""

import argparse
import importlib
import os
import sys
import time

from server import ROOT, Missing

CLIENTS = {
    "openai": "openai_client",
    "anthropic": "anthropic_client",
    "batches": "batches_client",
    "kills": "kills",
    "litellm": "litellm_client",
    "lm-eval": "harness",
    "inspect": "inspect_client",
    "schemathesis": "schemathesis_client",
    "promptfoo": "promptfoo_client",
    "vllm-bench": "vllm_bench_client",
    "guidellm": "guidellm_client",
    "hang-ups": "hang_ups",
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default=os.path.join(ROOT, "target", "debug", "vllm-batch"))
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=", ".join(CLIENTS))
    arguments = parser.parse_args()
    # Servers are on this machine.
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"
    for name in arguments.clients or CLIENTS:
        started = time.monotonic()
        try:
            importlib.import_module(CLIENTS[name]).check(os.path.abspath(arguments.binary))
        except Missing as missing:
            print(f"{name}: SKIP, {missing}", flush=True)
            continue
        print(f"{name}: ok, {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
