"""Rows as lines of the protocol, and their names."""

import json
from typing import Any, Dict, Optional


class NoRow(TypeError):
    """What was given is no row."""


def row_of(value: Any, index: int) -> Dict[str, Any]:
    """The row of a mapping or a text. One without a name gets its index as `id`."""
    if isinstance(value, str):
        return {"id": index, "prompt": value}
    try:
        row = dict(value)
    except (TypeError, ValueError):
        kind = type(value).__name__
        raise NoRow(f"row {index} is a {kind}: rows are mappings or texts") from None
    if name_of(row) is None:
        if is_batch(row):
            raise NoRow(f"row {index} is a batch request without `custom_id`")
        row = {"id": index, **{name: row[name] for name in row if name != "id"}}
    return row


def is_batch(row: Dict[str, Any]) -> bool:
    """Whether a row is a request of a batch API, whose name is its `custom_id` alone."""
    return ("body" in row and ("custom_id" in row or "url" in row)) or (
        "params" in row and "custom_id" in row
    )


def name_of(row: Dict[str, Any]) -> Optional[str]:
    """What the program knows a row by: `id`, else `custom_id`, as text. 7 and "7" are one name."""
    if is_batch(row):
        return _text(row.get("custom_id"))
    return _text(row.get("id")) or _text(row.get("custom_id"))


def names_of_answer(row: Dict[str, Any]) -> "list[str]":
    """What a row of the output may be known by. An answer to a batch request has its own `id`."""
    return [text for text in (_text(row.get("custom_id")), _text(row.get("id"))) if text]


def _text(name: Any) -> Optional[str]:
    if isinstance(name, str):
        return name or None
    name = _plain(name) if hasattr(name, "tolist") else name
    if isinstance(name, bool) or not isinstance(name, (int, float)):
        return None
    return json.dumps(name)


def line_of(row: Dict[str, Any]) -> bytes:
    """A row as a line. Scalars and arrays of NumPy are numbers and lists, dates ISO 8601.

    Raises TypeError or ValueError, naming the row, for what JSON has no form for.
    """
    try:
        text = json.dumps(row, default=_plain, allow_nan=False, ensure_ascii=False)
        return text.encode("utf-8") + b"\n"
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"row {name_of(row)}: {error}") from None


def _plain(value: Any) -> Any:
    for method in ("tolist", "as_py", "isoformat"):
        if hasattr(value, method):
            return getattr(value, method)()
    raise TypeError(f"a {type(value).__name__} has no form in JSON")
