"""`Engines`: the process behind an `LLM`, one at a time, for whichever command is asked for."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any, Generator, Iterable, Mapping

from .engine import Engine
from .engine_args import EngineArgs
from .kinds import is_mapping, mapping_of
from .lora import LoRARequest
from .models import folder_of, is_gguf, read_config

# What the rows of `LLM` need of a process, by its command.
_OURS: dict[str, dict[str, Any]] = {
    # Texts are as the model made them: calls in them are the caller's to read.
    "run": {"output_format": "full", "tool_call_parser": "none", "allow_empty_prompts": True},
    "embed": {"allow_empty_prompts": True},
    "classify": {"allow_empty_prompts": True},
    "score": {"allow_empty_prompts": True},
}

Flags = tuple[tuple[str, Any], ...]


class Engines:
    """A process with a loaded model. One that is asked for another command, or an adapter that it
    does not have, is ended when its rows are answered, and another is started."""

    def __init__(
        self, args: EngineArgs, binary: str | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.args = args
        self._binary = binary
        self._env = dict(env or {})
        if isinstance(args.hf_token, str):
            self._env["HF_TOKEN"] = args.hf_token
        self._changed = threading.Condition()
        self._engine: Engine | None = None
        self._kind: tuple[str, Flags] | None = None
        self._users = 0
        self._closed = False
        # Adapters that were asked for, and those of the process.
        self._adapters: dict[str, str] = adapters_of(args.lora_modules)
        self._loaded: dict[str, str] = {}

    @classmethod
    def with_model(
        cls, args: EngineArgs, binary: str | None, env: Mapping[str, str] | None
    ) -> Engines:
        """One whose model is loaded, for `run`. Raises EngineError where it cannot be."""
        engines = cls(args, binary, env)
        with engines.use("run"):
            return engines

    @property
    def folder(self) -> Path | None:
        """The model's folder. None of an id that is not in the cache."""
        return folder_of(
            self.args.model,
            revision=self.args.revision,
            cache=self.args.download_dir,
            env={**os.environ, **self._env},
        )

    def config(self, name: str = "config.json") -> dict[str, Any] | None:
        """A JSON file of the model's folder. None where it is not there, and of GGUF files."""
        found = None if is_gguf(self.args.model) else read_config(self.folder, name)
        if name == "config.json" and found is not None:
            found.update(mapping_of(self.args.hf_overrides))
        return found

    @contextlib.contextmanager
    def use(
        self, command: str, flags: Flags = (), adapters: Iterable[LoRARequest] = ()
    ) -> Generator[Engine, None, None]:
        """The process for a command, for as long as its rows are under way.

        Waits while rows of another command are. Raises EngineError where it cannot be started.
        """
        with self._changed:
            self._learn(adapters)
            while self._users > 0 and not self._fits(command, flags):
                self._changed.wait()
            if not self._fits(command, flags):
                self._start(command, flags)
            self._users += 1
            engine = self._engine
        assert engine is not None
        try:
            yield engine
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(
        self, flags: Flags = (), adapters: Iterable[LoRARequest] = ()
    ) -> Generator[tuple[dict[str, Any], str | None, dict[str, str]], None, None]:
        """Flags, program and variables of a process that the caller starts to complete prompts.

        Waits until no rows are under way, and ends the process: others wait for the caller.
        """
        with self._changed:
            self._learn(adapters)
            while self._users > 0:
                self._changed.wait()
            self._stop()
            self._kind = None
            self._users += 1
            given = self._flags("run", flags)
        try:
            yield given, self._binary, self._env
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()

    def max_model_len(self) -> int:
        """Longest prompt plus output, in tokens: of the process that is there, whatever it does."""
        with self._changed:
            engine = self._engine
            if engine is not None:
                return engine.max_model_len
        with self.use("run") as engine:
            return engine.max_model_len

    def close(self) -> None:
        """Ends the process."""
        with self._changed:
            self._closed = True
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _learn(self, adapters: Iterable[LoRARequest]) -> None:
        for adapter in adapters:
            known = self._adapters.setdefault(adapter.lora_name, adapter.lora_path)
            if known != adapter.lora_path:
                raise ValueError(
                    f"adapter {adapter.lora_name!r} is {known!r} already: give "
                    f"{adapter.lora_path!r} another name"
                )

    def _fits(self, command: str, flags: Flags) -> bool:
        same = self._engine is not None and self._kind == (command, flags)
        return same and self._loaded == self._adapters

    def _start(self, command: str, flags: Flags) -> None:
        self._stop()
        given = self._flags(command, flags)
        self._engine = Engine(
            self.args.model, command=command, binary=self._binary, env=self._env, **given
        )
        self._kind, self._loaded = (command, flags), dict(self._adapters)

    def _stop(self) -> None:
        if self._closed:
            raise ValueError("the LLM is closed")
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _flags(self, command: str, flags: Flags) -> dict[str, Any]:
        given = {**_OURS[command], **self.args.flags(command), **dict(flags)}
        if self._adapters:
            given["lora_modules"] = [f"{name}={path}" for name, path in self._adapters.items()]
        return given


def template_flags(args: EngineArgs, chat_template: str | None) -> Flags:
    """Flags of a process with the chat template of a call, where it is another than the model's."""
    if chat_template is None or chat_template == args.chat_template:
        return ()
    return (("chat_template", chat_template),)


def adapters_of(modules: Any) -> dict[str, str]:
    """Folders of adapters by name, of a mapping or of texts `NAME=DIR`."""
    if is_mapping(modules):
        return {str(name): os.fspath(path) for name, path in modules.items()}
    texts = [modules] if isinstance(modules, str) else list(modules or [])
    return {name: path for name, _, path in (text.partition("=") for text in texts)}
