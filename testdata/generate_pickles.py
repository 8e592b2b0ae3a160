"""Files of torch.save for the tests of the pickle reader: `python testdata/generate_pickles.py`.

Made with torch 2.15.0. Zip archives have fixed dates, so equal versions write equal bytes.
"""

import collections
import os
import pathlib

import torch

FOLDER = pathlib.Path(__file__).parent / "pickle"


class Command:
    """What a hostile file has in place of a tensor: a command that Python would run."""

    def __reduce__(self):
        return os.system, ("touch pwned",)


def save(name, value, **options):
    torch.save(value, FOLDER / name, **options)


def main():
    FOLDER.mkdir(exist_ok=True)
    base = torch.arange(12, dtype=torch.float32)
    matrix = base[:6].clone().reshape(2, 3)
    tensors = collections.OrderedDict(
        f32=matrix,
        f16=torch.tensor([0.5, -2.0], dtype=torch.float16),
        bf16=torch.tensor([[1.0], [-3.0]], dtype=torch.bfloat16),
        parameter=torch.nn.Parameter(torch.tensor([7.0])),
        tied=matrix,
        slice=base[4:10].reshape(3, 2),
        ints=torch.tensor([1, 2**40], dtype=torch.int64),
        scalar=torch.tensor(3.0),
        empty=torch.zeros(0, 4),
    )
    save("plain.bin", dict(tensors))
    save("protocol4.bin", dict(tensors), pickle_protocol=4)
    # As a module's state_dict: with versions set on the OrderedDict.
    save("module.bin", torch.nn.Linear(2, 1, bias=False).bfloat16().state_dict() | {"x": base})
    tensors._metadata = collections.OrderedDict({"": {"version": 1}})
    save("metadata.bin", tensors)
    save("transposed.bin", {"turned": matrix.t()})
    save("expanded.bin", {"wide": torch.ones(1).expand(4)})
    save("legacy.bin", {"f32": matrix}, _use_new_zipfile_serialization=False)
    save("epoch.bin", {"f32": matrix, "epoch": 3})
    save("nested.bin", {"state_dict": {"f32": matrix}})
    save("whole.bin", torch.nn.Linear(2, 1))
    save("command.bin", {"f32": matrix, "x": Command()})


if __name__ == "__main__":
    main()
