"""Frames, tables and data sets with the columns of answers behind their own."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping

from .kinds import is_mapping, library, mapping_of
from .rows import Row

# In every answer of a command, so that each part of a data set has them. The first is the answer,
# which `out_field` renames; `score` has `score` or `scores`.
ALWAYS = {
    "run": ("response", "finish_reason", "usage", "error"),
    "embed": ("embedding", "usage", "error"),
    "classify": ("label", "probs", "usage", "error"),
    "reward": ("score", "usage", "error"),
    "score": ("usage", "error"),
    "rerank": ("results", "usage", "error"),
}
# Rows of a part of an `IterableDataset`.
BATCH_ROWS = 1024


class Answers:
    """Answers of rows, as columns. `own`: names of the columns of the rows. `field`: the program's
    `out_field`."""

    def __init__(
        self, own: Iterable[str], answers: list[Row], command: str, field: str | None
    ) -> None:
        always = ALWAYS[command]
        if field is not None:
            always = (field, *(always if command == "score" else always[1:]))
        own = list(own)
        taken = {*own, "id"}
        #: How the program counts tokens behind those of the prompt.
        self.count = "completion_tokens" if command == "run" else "total_tokens"
        names = dict.fromkeys(always)
        for answer in answers:
            # A column with one of our names came back as `input_NAME`.
            names.update(dict.fromkeys(name for name in answer if name not in taken))
        #: Columns of the rows that must give way, and their names then.
        self.renamed = {
            name: f"input_{name}" for name in own if name in always or f"input_{name}" in names
        }
        for name in self.renamed:
            names.pop(f"input_{name}", None)
            names[name] = None
        self.columns = {name: [answer.get(name) for answer in answers] for name in names}


def columns_of(frame: Any) -> list[str]:
    """The names of a frame's columns. Raises TypeError for what is no frame."""
    if is_dataset(frame) and not hasattr(frame, "num_rows"):
        return list(frame.column_names or [])
    for name in ("column_names", "columns"):
        if hasattr(frame, name):
            return [str(column) for column in getattr(frame, name)]
    if hasattr(frame, "schema"):
        return [str(column) for column in frame.schema.names]
    if is_mapping(frame):
        return [str(column) for column in frame]
    kind = type(frame).__name__
    raise TypeError(
        f"a {kind} is no frame: give a DataFrame of pandas or polars, an Arrow table, or a "
        "Dataset of datasets"
    )


def is_dataset(frame: Any) -> bool:
    """Whether it is of Hugging Face's datasets."""
    return type(frame).__module__.partition(".")[0] == "datasets" and hasattr(frame, "map")


def with_answers(frame: Any, answers: list[Row], command: str, field: str | None = None) -> Any:
    """A frame of the same kind with the columns of answers behind its own, which are untouched.

    `command`, `field`: of the program that made the answers, and its `out_field`.
    """
    found = Answers(columns_of(frame), answers, command, field)
    return _library_of(frame)(frame, found)


def _library_of(frame: Any) -> Callable[[Any, Answers], Any]:
    if is_dataset(frame):
        return _datasets
    if hasattr(frame, "itertuples"):
        return _pandas
    if hasattr(frame, "iter_rows"):
        return _polars
    if is_mapping(frame):
        return _mapping
    return _arrow


def _pandas(frame: Any, answers: Answers) -> Any:
    pandas = library("pandas")

    found = frame.rename(columns=answers.renamed)
    columns = {
        name: pandas.Series(values, index=found.index, dtype=None if values else object)
        for name, values in answers.columns.items()
    }
    return pandas.concat([found, pandas.DataFrame(columns, index=found.index)], axis=1)


def _polars(frame: Any, answers: Answers) -> Any:
    polars = library("polars")

    counts = polars.Struct({"prompt_tokens": polars.Int64, answers.count: polars.Int64})
    types: dict[str, Any] = {
        "response": polars.String,
        "finish_reason": polars.String,
        "reasoning": polars.String,
        "usage": counts,
        "error": polars.Struct({"code": polars.String, "message": polars.String}),
    }
    columns = [
        polars.Series(name, values, dtype=types.get(name), strict=False)
        for name, values in answers.columns.items()
    ]
    return frame.rename(answers.renamed).with_columns(columns)


def arrow_columns(answers: Answers) -> dict[str, Any]:
    """The columns of answers as arrays of Arrow, whose types do not depend on the rows."""
    pyarrow = library("pyarrow")

    text, count = pyarrow.string(), pyarrow.int64()
    types = {
        "response": text,
        "finish_reason": text,
        "reasoning": text,
        "usage": pyarrow.struct([("prompt_tokens", count), (answers.count, count)]),
        "error": pyarrow.struct([("code", text), ("message", text)]),
        "embedding": pyarrow.list_(pyarrow.float32()),
        "line": count,
        "input": text,
    }
    nested = (one[0] for one in answers.columns.get("embedding", []) if one)
    if isinstance(next(nested, 0.0), list):
        types["embedding"] = pyarrow.list_(types["embedding"])
    return {
        name: pyarrow.array(values, types.get(name)) for name, values in answers.columns.items()
    }


def _arrow(frame: Any, answers: Answers) -> Any:
    pyarrow = library("pyarrow")

    is_batch = isinstance(frame, pyarrow.RecordBatch)
    table = pyarrow.Table.from_batches([frame]) if is_batch else frame
    names = [answers.renamed.get(name, name) for name in table.column_names]
    table = table.rename_columns(names)
    for name, array in arrow_columns(answers).items():
        table = table.append_column(name, array)
    if not is_batch:
        return table
    arrays = [column.combine_chunks() for column in table.columns]
    return pyarrow.RecordBatch.from_arrays(
        [array.chunk(0) if hasattr(array, "num_chunks") else array for array in arrays],
        schema=table.schema,
    )


def _datasets(frame: Any, answers: Answers) -> Any:
    datasets = library("datasets")
    pyarrow = library("pyarrow")

    columns = datasets.Dataset(pyarrow.table(arrow_columns(answers)))
    own = frame.rename_columns(answers.renamed) if answers.renamed else frame
    return datasets.concatenate_datasets([own.with_format(None), columns], axis=1)


def _mapping(frame: Mapping[str, Any], answers: Answers) -> dict[str, Any]:
    """Columns of a batch, as `datasets.map` has them: without nested nulls, of which it would take
    the type of the first batch for that of all."""
    found = {answers.renamed.get(name, name): values for name, values in frame.items()}
    for name, values in answers.columns.items():
        if name == "error":
            found[name] = [
                "" if one is None else f"{one['code']}: {one['message']}" for one in values
            ]
        elif name == "usage":
            for count in ("prompt_tokens", answers.count):
                found[count] = [mapping_of(one).get(count, 0) for one in values]
        else:
            found[name] = values
    return found


def records_of(frame: Any) -> Iterable[Row]:
    """The rows of a batch of columns."""
    names = list(frame)
    return (dict(zip(names, values)) for values in zip(*(frame[name] for name in names)))
