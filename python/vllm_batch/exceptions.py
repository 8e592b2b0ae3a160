"""Errors of the surface that scripts written for vLLM use. `EngineError` is of the process."""

from __future__ import annotations

from typing import Any


class VLLMError(Exception):
    """Any error that vLLM has a class for."""


class VLLMClientError(VLLMError):
    """What is asked cannot be done."""


class VLLMValidationError(VLLMClientError, ValueError):
    """A parameter has a wrong value. `parameter` and `value` say which, where it is one."""

    def __init__(self, message: str, *, parameter: str | None = None, value: Any = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.value = value


class RowError(VLLMValidationError):
    """A prompt that cannot be answered.

    `index`: its place among the prompts of the call, from 0.
    `request_id`: the request's.
    `code`: an error code of docs/OUTPUT.md, as `context_length`.
    `message`: the program's sentence.
    """

    def __init__(self, index: int, request_id: str, code: str, message: str) -> None:
        super().__init__(f"prompt {index}: {message} ({code})")
        self.index = index
        self.request_id = request_id
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return RowError, (self.index, self.request_id, self.code, self.message)
