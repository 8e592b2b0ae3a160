"""vllm-batch in Ray Data: actors with a long-lived engine each.

    import ray
    from vllm_batch.ray import process

    rows = ray.data.read_parquet("prompts")          # with a column `id`
    answers = process(rows, "./model", workers=2, temperature=0, max_tokens=64)
    answers.write_parquet("answers")

A block is answered as a whole or again: a child or an actor that dies loses and doubles no row.
"""

from typing import Any, Dict, List, Optional, Tuple, Union

import pyarrow  # type: ignore[import-untyped,unused-ignore]

from .engine import Engine
from .process import EngineError

# Columns whose type does not depend on the rows of a block.
_TYPES = {
    "response": pyarrow.string(),
    "finish_reason": pyarrow.string(),
    "reasoning": pyarrow.string(),
    "usage": pyarrow.struct(
        [("prompt_tokens", pyarrow.int64()), ("completion_tokens", pyarrow.int64())]
    ),
    "error": pyarrow.struct([("code", pyarrow.string()), ("message", pyarrow.string())]),
    "embedding": pyarrow.list_(pyarrow.float32()),
    "line": pyarrow.int64(),
    "input": pyarrow.string(),
}

# In every block of a command, so that all blocks have them.
_ALWAYS = {
    "run": ["response", "finish_reason", "usage", "error"],
    "embed": ["embedding", "usage", "error"],
}


class Processor:
    """For `Dataset.map_batches(..., batch_format="pyarrow")`: a table of rows becomes the same
    table with the columns of the answers behind its own.

    `model`, `options`: as of `Engine`.
    `id_column`: the column that names the rows. Ray divides and repeats blocks as it likes, so a
    row's place says nothing: a name that is missing or empty is an error.
    `retries`: how often a block is tried again after its engine was killed or ran out of memory.
    """

    def __init__(
        self, model: Any, *, id_column: str = "id", retries: int = 3, **options: Any
    ) -> None:
        self._id_column = id_column
        self._retries = retries
        self._command = options.get("command", "run")
        self._engine = Engine(model, **options)

    def __call__(self, table: pyarrow.Table) -> pyarrow.Table:
        rows = self._named(table)
        answers = self._answers(rows)
        return self._with_answers(table, answers)

    def _named(self, table: pyarrow.Table) -> List[Dict[str, Any]]:
        if self._id_column not in table.column_names:
            raise ValueError(
                f"no column {self._id_column!r} among {table.column_names}: rows need names that "
                "stay theirs, whichever actor gets them"
            )
        rows = table.to_pylist()
        for row in rows:
            name = row[self._id_column]
            if name is None or name == "" or isinstance(name, (bool, list, dict)):
                raise ValueError(f"column {self._id_column!r} has {name!r}, which names no row")
            if self._id_column != "id":
                row["id"] = name
        return rows

    def _answers(self, rows: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
        for attempt in range(self._retries + 1):
            try:
                return list(self._engine.run(rows))
            except EngineError as error:
                if not error.is_transient or attempt == self._retries:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _with_answers(
        self, table: pyarrow.Table, answers: List[Dict[str, Any]]
    ) -> pyarrow.Table:
        own = set(table.column_names) | {"id"}
        names = dict.fromkeys(_ALWAYS.get(self._command, ["usage", "error"]))
        for answer in answers:
            # An input column with one of our names came back as `input_NAME`.
            names.update(dict.fromkeys(name for name in answer if name not in own))
        renamed = [name for name in table.column_names if f"input_{name}" in names]
        for name in renamed:
            table = table.rename_columns(
                [f"input_{name}" if column == name else column for column in table.column_names]
            )
            names.pop(f"input_{name}")
            names[name] = None
        for name in names:
            values = [answer.get(name) for answer in answers]
            table = table.append_column(name, pyarrow.array(values, _TYPES.get(name)))
        return table


def process(
    dataset: Any,
    model: Any,
    *,
    workers: Union[int, Tuple[int, int]] = 1,
    batch_size: int = 1024,
    num_cpus: Optional[float] = None,
    num_gpus: Optional[float] = None,
    **options: Any,
) -> Any:
    """Answers the rows of a `ray.data.Dataset`. Lazy, as `map_batches` is.

    `workers`: actors, or the least and the most of them: Ray starts more while rows wait.
    `batch_size`: rows that an engine gets at once. It computes its last rows alone, so more of them
    cost less; they are also what is computed again after a crash.
    `num_cpus`: slots of an actor, 0.5 where no GPU is asked for. Actors that ask for every slot
    leave none for reading and writing, and the pipeline waits for ever.
    `num_gpus`: GPUs of an actor; Ray shows each its own.
    `options`: as of `Processor`. On CPUs give `threads`, a share of the machine's cores.
    """
    import ray

    if num_cpus is None and not num_gpus:
        num_cpus = 0.5
    if isinstance(workers, tuple):
        compute = ray.data.ActorPoolStrategy(min_size=workers[0], max_size=workers[1])
    else:
        compute = ray.data.ActorPoolStrategy(size=workers)
    return dataset.map_batches(
        Processor,
        fn_constructor_args=(model,),
        fn_constructor_kwargs=options,
        compute=compute,
        batch_size=batch_size,
        batch_format="pyarrow",
        num_cpus=num_cpus,
        num_gpus=num_gpus,
    )
