"""What a value is, of those that any caller may give."""

from __future__ import annotations

import importlib
from typing import Any, Mapping, Sequence, TypeGuard


def is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether it has keys and values."""
    return isinstance(value, Mapping)


def is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether it is a list or a tuple."""
    return isinstance(value, (list, tuple))


def is_sequence(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether it has items in an order, and is no text."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def library(name: str) -> Any:
    """A library that is there where its objects are. Raises ImportError."""
    return importlib.import_module(name)


def mapping_of(value: Any) -> Mapping[str, Any]:
    """A mapping, or an empty one where there is none."""
    return value if is_mapping(value) else {}


def list_of(value: Any) -> Sequence[Any]:
    """A list, or an empty one where there is none."""
    return value if is_list(value) else ()


def path_of(value: Any) -> str:
    """A path as text. Raises TypeError for what is none."""
    found: Any = value.__fspath__() if hasattr(value, "__fspath__") else value
    if not isinstance(found, str):
        raise TypeError(f"a {type(value).__name__} is no path")
    return found
