"""The command line of an engine's process: where the program is, and flags from keywords."""

from __future__ import annotations

import json
import os
import shutil
import sysconfig
from typing import Any, Iterator, Mapping

from .kinds import is_list, is_mapping, path_of

COMMANDS = ("run", "embed", "classify", "reward", "score", "rerank")

# Switches that have an opposite. The tests compare them with the program's help.
OPPOSITES = {
    "chat": "--no-chat",
    "enable_prefix_caching": "--no-enable-prefix-caching",
    "normalize": "--no-normalize",
    "skip_special_tokens": "--no-skip-special-tokens",
    "use_activation": "--no-activation",
}

# The pipes are the engine's, and every row that is sent must come back.
OWNED = frozenset(
    "config delimiter encoding errors format help input journal limit no_header out output overwrite "
    "progress prompt quiet ready_fd retry_failed sample sample_seed shard stats unordered verbose".split()
)


def find_binary(binary: str | None = None) -> str:
    """The path of the program: the given one, that of this installation, or that of PATH.

    Raises FileNotFoundError where there is none.
    """
    if binary is not None:
        found = shutil.which(os.fspath(binary))
        if found is None:
            raise FileNotFoundError(f"no program {binary}")
        return found
    for scheme in (sysconfig.get_default_scheme(), os.name + "_user"):
        found = shutil.which(os.path.join(sysconfig.get_path("scripts", scheme), "vllm-batch"))
        if found is not None:
            return found
    # Where the package was installed with --target, the program is beside it.
    beside = os.path.join(os.path.dirname(os.path.dirname(__file__)), "bin", "vllm-batch")
    found = shutil.which(beside) or shutil.which("vllm-batch")
    if found is None:
        raise FileNotFoundError("no program vllm-batch in this environment or in PATH")
    return found


def arguments(flags: Mapping[str, Any], owned: frozenset[str] = OWNED) -> list[str]:
    """Flags as words: `max_tokens=5` is `--max-tokens 5`, `stop=["a", "b"]` is `--stop` twice.

    True is the switch alone. False is its opposite where there is one; like None it is no flag
    elsewhere. A mapping is JSON; of `structured_outputs` its items are the flags with a dot, and of
    `logit_bias` pairs.

    `owned`: flags that are whose process it is.

    Raises TypeError for one of `owned`, and for a value that no flag takes.
    """
    words: list[str] = []
    for name, value in _flat(flags):
        if name in owned:
            raise TypeError(f"{name} cannot be given: the process is not the caller's")
        flag = "--" + name.replace("_", "-")
        values = value if is_list(value) else [value]
        for item in values:
            if item is None or (item is False and name not in OPPOSITES):
                continue
            if item is True:
                words.append(flag)
            elif item is False:
                words.append(OPPOSITES[name])
            else:
                # One word, so that a value may begin with a dash.
                words.append(f"{flag}={_word(name, item)}")
    return words


def _flat(flags: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in flags.items():
        if name == "structured_outputs" and is_mapping(value):
            yield from ((f"{name}.{kind}", item) for kind, item in value.items())
        elif name == "logit_bias" and is_mapping(value):
            yield name, [f"{token_id}={bias}" for token_id, bias in value.items()]
        else:
            yield name, value


def _word(name: str, value: Any) -> str:
    value = value.tolist() if hasattr(value, "tolist") else value
    if is_mapping(value):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (str, int, float)):
        return str(value)
    if hasattr(value, "__fspath__"):
        return path_of(value)
    raise TypeError(f"{name}: a {type(value).__name__} is no value of a flag")
