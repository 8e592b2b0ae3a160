#!/usr/bin/env python3
"""A model's folder with its first layers alone: a draft of its own for --speculative-config.

    truncate_model.py FOLDER OUT --layers 8

FOLDER has one model.safetensors, whose layers are named model.layers.N. OUT has the tensors of the
first ones and all others as they are; the other files are copied. Needs no package.
"""

import argparse
import json
import re
import shutil
import struct
from pathlib import Path

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True)
    for path in args.folder.iterdir():
        if path.is_file() and path.name not in (WEIGHTS, CONFIG):
            shutil.copyfile(path, args.out / path.name)
    config = json.loads((args.folder / CONFIG).read_text())
    if not 0 < args.layers <= config["num_hidden_layers"]:
        parser.error(f"--layers: the model has {config['num_hidden_layers']}")
    config["num_hidden_layers"] = args.layers
    (args.out / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    truncate(args.folder / WEIGHTS, args.out / WEIGHTS, args.layers)


def truncate(source: Path, out: Path, num_layers: int) -> None:
    """Copies the tensors that stay, one after the other in the order of the file."""
    with source.open("rb") as file, out.open("wb") as to:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        begin, end, kept = 8 + length, 0, {}
        header.pop("__metadata__", None)
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            layer = re.match(r"model\.layers\.(\d+)\.", name)
            if layer and int(layer[1]) >= num_layers:
                continue
            first, last = entry["data_offsets"]
            kept[name] = (first, last - first, {**entry, "data_offsets": [end, end + last - first]})
            end += last - first
        text = json.dumps({name: entry for name, (_, _, entry) in kept.items()}).encode()
        text += b" " * (-len(text) % 8)
        to.write(struct.pack("<Q", len(text)) + text)
        for first, size, _ in kept.values():
            file.seek(begin + first)
            to.write(file.read(size))


if __name__ == "__main__":
    main()
