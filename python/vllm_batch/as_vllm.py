"""Runs a script that was written for vLLM, unchanged.

    python -m vllm_batch.as_vllm [--model-map NAME=PATH] [--with NAME=VALUE] script.py [ARG...]
    python -m vllm_batch.as_vllm [...] -m MODULE [ARG...]

`import vllm` gives this package then. A module or a name of vLLM that is not here is an error.

`--model-map NAME=PATH`: the model of this name is at PATH; `*` is any name that is not given.
`--with NAME=VALUE`: an argument of every `LLM`, over the script's; a value of JSON, or a text.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from typing import Any

from . import engine_args


def main(words: list[str]) -> None:
    """Runs what the words of a command line say."""
    while words and words[0] in ("--model-map", "--with"):
        if len(words) < 2 or "=" not in words[1]:
            sys.exit(f"{words[0]} needs NAME=VALUE")
        name, _, value = words[1].partition("=")
        if words[0] == "--model-map":
            engine_args.MODEL_MAP[name] = value
        else:
            engine_args.OVERRIDES[name] = _value_of(value)
        words = words[2:]
    if not words or words[0] in ("-h", "--help"):
        print(__doc__)
        return
    from .vllm.modules import install

    install()
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
        runpy.run_path(words[0], run_name="__main__")


def _value_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


if __name__ == "__main__":
    main(sys.argv[1:])
