"""vllm-batch from Python: a process that loads a model once, and rows through its pipes.

    from vllm_batch import Engine

    with Engine("./model", temperature=0, max_tokens=64) as engine:
        for row in engine.run([{"id": 1, "prompt": "2+3="}]):
            print(row["response"])

`vllm_batch.ray` has the same for Ray Data, `vllm_batch.lm_eval` for lm-evaluation-harness.
docs/PROTOCOL.md writes down what goes through the pipes, docs/SCALE_OUT.md what to use when.
"""

from .command import find_binary
from .engine import Engine
from .process import EngineError

__all__ = ["Engine", "EngineError", "find_binary"]
