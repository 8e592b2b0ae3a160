"""vllm-batch in Ray Data: actors with a long-lived engine each.

    import ray
    from vllm_batch.ray import process

    rows = ray.data.read_parquet("prompts")          # with a column `id`
    answers = process(rows, "./model", workers=2, temperature=0, max_tokens=64)
    answers.write_parquet("answers")

A block is answered as a whole or again: a child or an actor that dies loses and doubles no row.
"""

from typing import Any, List, Optional, Tuple, Union

import pyarrow

from .engine import Engine
from .frames import with_answers
from .process import EngineError
from .rows import Row


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
        self._command = (options.get("command", "run"), options.get("out_field"))
        self._engine = Engine(model, **options)

    def __call__(self, table: pyarrow.Table) -> pyarrow.Table:
        rows = self._named(table)
        answers = self._answers(rows)
        return with_answers(table, answers, *self._command)

    def _named(self, table: pyarrow.Table) -> List[Row]:
        if self._id_column not in table.column_names:
            raise ValueError(
                f"no column {self._id_column!r} among {table.column_names}: rows need names that "
                "stay theirs, whichever actor gets them"
            )
        rows: List[Row] = table.to_pylist()
        for row in rows:
            name = row[self._id_column]
            if name is None or name == "" or isinstance(name, (bool, list, dict)):
                raise ValueError(f"column {self._id_column!r} has {name!r}, which names no row")
            if self._id_column != "id":
                row["id"] = name
        return rows

    def _answers(self, rows: List[Row]) -> List[Row]:
        for attempt in range(self._retries + 1):
            try:
                return list(self._engine.run(rows))
            except EngineError as error:
                if not error.is_transient or attempt == self._retries:
                    raise
        raise AssertionError("the last attempt returns or raises")


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
