"""Rows as lines of the protocol, and their names."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Iterable, Iterator

from .images import image_url
from .kinds import is_list, is_mapping

Row = Dict[str, Any]

# Rows of an Arrow table that are in memory as Python values at a time.
BATCH_ROWS = 1024

_FRAMES = "a pandas or polars DataFrame, or an Arrow table"


class NoRow(TypeError):
    """What was given is no row."""


def rows_of(rows: Any) -> Iterable[Any]:
    """The rows of what a caller gives: of a frame its records, of anything else its items.

    Raises TypeError for one row in the place of several, and for what has no items.
    """
    kind = type(rows).__name__
    if isinstance(rows, (str, bytes, bytearray, memoryview)):
        raise TypeError(
            f"rows are a {kind}, whose items are no rows: give a list, as [{rows!r:.40}]"
        )
    if is_mapping(rows):
        is_split = hasattr(rows, "column_names")
        remedy = "give one of its splits" if is_split else "give a list of rows"
        raise TypeError(f"rows are a {kind}, which is {'no' if is_split else 'one'} row: {remedy}")
    if hasattr(rows, "to_frame") or kind in ("ChunkedArray", "StringArray"):
        raise TypeError(f"rows are a {kind}, which is a column: give its frame, or list(column)")
    frame = _frame(rows)
    if frame is not None:
        return frame
    try:
        iter(rows)
    except TypeError:
        text = f"rows are a {kind}: give a list or an iterator of mappings or texts, or {_FRAMES}"
        raise TypeError(text) from None
    if is_list(rows):
        # They are all there, so what is none is said before the first is answered.
        for index, value in enumerate(rows):
            _check(value, index)
    items: Iterable[Any] = rows
    return items


def _frame(rows: Any) -> Iterator[Row] | None:
    """The records of a frame or a table, known by what they can do; None for anything else."""
    if hasattr(rows, "itertuples") and hasattr(rows, "columns"):
        names = _names(list(rows.columns))
        records = rows.itertuples(index=False, name=None)
        return (dict(zip(names, record)) for record in records)
    if hasattr(rows, "iter_rows") and hasattr(rows, "columns"):
        _names(list(rows.columns))
        named: Iterator[Row] = rows.iter_rows(named=True)
        return named
    if hasattr(rows, "to_batches") and hasattr(rows, "column_names"):
        _names(list(rows.column_names))
        batches = rows.to_batches(max_chunksize=BATCH_ROWS)
        return (row for batch in batches for row in batch.to_pylist())
    if hasattr(rows, "to_pylist") and hasattr(rows, "schema"):
        _names(list(rows.schema.names))
        starts = range(0, rows.num_rows, BATCH_ROWS)
        return (row for start in starts for row in rows.slice(start, BATCH_ROWS).to_pylist())
    if hasattr(rows, "collect") and hasattr(rows, "collect_schema"):
        raise TypeError(f"rows are a {type(rows).__name__}: give its frame, as rows.collect()")
    return None


def _names(names: list[Any]) -> list[str]:
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"a column is named {name!r}: the names of columns are texts")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TypeError(f"two columns are named {twice!r}")
    return names


def _check(value: Any, index: int) -> None:
    is_mapping = hasattr(value, "keys") and hasattr(value, "__getitem__")
    if not isinstance(value, str) and not is_mapping:
        kind = type(value).__name__
        raise NoRow(f"row {index} is a {kind}: rows are mappings or texts")


def row_of(value: Any, index: int) -> Row:
    """The row of a mapping or a text. One without a name gets its index as `id`."""
    _check(value, index)
    if isinstance(value, str):
        return {"id": index, "prompt": value}
    row = {name: value[name] for name in value.keys()}
    for name in row:
        if not isinstance(name, str):
            raise NoRow(f"row {index} has a field named {name!r}: the names of fields are texts")
    if name_of(row) is None:
        if is_batch(row):
            raise NoRow(f"row {index} is a batch request without `custom_id`")
        row = {"id": index, **{name: row[name] for name in row if name != "id"}}
    return row


def is_batch(row: Row) -> bool:
    """Whether a row is a request of a batch API, whose name is its `custom_id` alone."""
    return ("body" in row and ("custom_id" in row or "url" in row)) or (
        "params" in row and "custom_id" in row
    )


def name_of(row: Row) -> str | None:
    """What the program knows a row by: `id`, else `custom_id`, as text. 7 and "7" are one name."""
    if is_batch(row):
        return _text(row.get("custom_id"))
    return _text(row.get("id")) or _text(row.get("custom_id"))


def names_of_answer(row: Row) -> list[str]:
    """What a row of the output may be known by. An answer to a batch request has its own `id`."""
    return [text for text in (_text(row.get("custom_id")), _text(row.get("id"))) if text]


def _text(name: Any) -> str | None:
    if isinstance(name, str):
        return name or None
    name = _plain(name) if hasattr(name, "tolist") else name
    if isinstance(name, bool) or not isinstance(name, (int, float)) or not math.isfinite(name):
        return None
    return json.dumps(name)


def line_of(row: Row) -> bytes:
    """A row as a line. Scalars and arrays of NumPy are numbers and lists, dates ISO 8601. NaN is
    null, as frames mean it.

    Raises TypeError or ValueError, naming the row, for what JSON has no form for.
    """
    try:
        try:
            text = json.dumps(row, default=_plain, allow_nan=False, ensure_ascii=False)
        except ValueError:
            loose = json.dumps(row, default=_plain, ensure_ascii=False)
            plain = json.loads(loose, parse_constant=_constant)
            text = json.dumps(plain, allow_nan=False, ensure_ascii=False)
        return text.encode("utf-8") + b"\n"
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"row {name_of(row)}: {error}") from None


def _constant(word: str) -> None:
    if word != "NaN":
        raise ValueError(f"{word} has no form in JSON")


def _plain(value: Any) -> Any:
    # The nulls of pandas.
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if hasattr(value, "save") and hasattr(value, "mode"):
        # An image of Pillow, as data sets have them.
        return image_url(value)
    for method in ("tolist", "as_py", "isoformat"):
        if hasattr(value, method):
            return getattr(value, method)()
    raise TypeError(f"a {type(value).__name__} has no form in JSON")
