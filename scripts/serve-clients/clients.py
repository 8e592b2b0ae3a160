#!/usr/bin/env python3
"""Real clients against `vllm-batch serve`: what they send is answered, what they read is whole.

    cargo build
    python3 -m venv ENV && ENV/bin/python -m pip install -r scripts/serve-clients/requirements.txt
    ENV/bin/python scripts/serve-clients/clients.py [--binary target/debug/vllm-batch] [CLIENT...]

Without a name: all of CLIENTS. Each starts servers of its own on free ports of 127.0.0.1; nothing
goes over the network. Ends with 1 at the first client that is answered wrongly.
"""

import argparse
import importlib
import os
import sys
import time

from server import ROOT

CLIENTS = {
    "openai": "openai_client",
    "anthropic": "anthropic_client",
    "batches": "batches_client",
    "kills": "kills",
    "litellm": "litellm_client",
    "lm-eval": "harness",
    "inspect": "inspect_client",
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
        importlib.import_module(CLIENTS[name]).check(os.path.abspath(arguments.binary))
        print(f"{name}: ok, {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
