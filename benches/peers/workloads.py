"""The rows of benches/workloads, and what a model has to compute for them."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NAMES = ("mixed", "prefill", "decode", "shared")
# Of `shared`, that all rows begin with.
SHARED_PREFIX = 384


class Workload:
    """Rows of token ids, each with its own `max_tokens`. `NAME:4` is of the first 4 rows, which
    are written to `folder`."""

    def __init__(self, name, folder=None, path=None):
        self.name, self.warm_up = name, True
        file, _, num_rows = name.partition(":")
        self.path = path or ROOT / "benches/workloads" / f"{file}.jsonl"
        lines = self.path.read_text().splitlines(keepends=True)
        if num_rows:
            lines = lines[: int(num_rows)]
            self.path = Path(folder, f"{file}-{num_rows}.jsonl")
            self.path.write_text("".join(lines))
        rows = [json.loads(line) for line in lines]
        self.max_tokens = [row["max_tokens"] for row in rows]
        self.num_rows = len(rows)
        self.prompt_lens = [len(row["prompt_token_ids"]) for row in rows]
        self.num_prompt = sum(self.prompt_lens)
        self.num_output = sum(self.max_tokens)
        self.shares_prefix = name == "shared"

    def num_tokens(self):
        return self.num_prompt + self.num_output

    def multiply_adds(self, model):
        """Of the linear layers and of attention: every token but the last of a row goes through the
        layers and attends to itself and all before it, the output layer runs once per generated
        token, a shared prefix counts once."""
        config = json.loads((ROOT / "benches/shapes" / model / "config.json").read_text())
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        kv_share = config["num_key_value_heads"] / config["num_attention_heads"]
        per_layer = hidden * hidden * (2 + 2 * kv_share) + 3 * hidden * inner
        cached = SHARED_PREFIX * (self.num_rows - 1) if self.shares_prefix else 0
        through_layers = self.num_tokens() - self.num_rows - cached
        output_layer = self.num_output * hidden * config["vocab_size"]
        in_layers = through_layers * per_layer + self.num_positions() * 2 * hidden
        return in_layers * config["num_hidden_layers"] + output_layer

    def num_positions(self):
        """Positions that all tokens attend to, those of a shared prefix once."""

        def of_first(num_tokens):
            return num_tokens * (num_tokens + 1) // 2

        rows = zip(self.prompt_lens, self.max_tokens)
        positions = sum(of_first(prompt + output - 1) for prompt, output in rows)
        shared = of_first(SHARED_PREFIX) if self.shares_prefix else 0
        return positions - (self.num_rows - 1) * shared


def one_token(folder):
    """A workload of one row and one token, for starting up."""
    first = (ROOT / "benches/workloads/decode.jsonl").read_text().split("\n", 1)[0]
    row = {"prompt_token_ids": json.loads(first)["prompt_token_ids"], "max_tokens": 1}
    path = Path(folder) / "one.jsonl"
    path.write_text(json.dumps(row) + "\n")
    workload = Workload("one", path=path)
    workload.warm_up = False
    return workload
