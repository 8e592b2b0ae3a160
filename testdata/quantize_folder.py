#!/usr/bin/env python3
"""A real model's folder in the layouts of GPTQ and AWQ, to measure what they cost.

    quantize_folder.py FOLDER OUT --format gptq|awq [--group 64] [--calibrate TEXT ...]

FOLDER has model.safetensors in float32 or bfloat16 (as shared/real/make_real.py makes it). The
linear layers of OUT are of 4 bits, groups along the inputs. With --calibrate, codes are searched
for as GPTQ and AWQ do, by the inputs that layers have on these texts (`calibrated.py`,
`calibrated_awq.py`). Else they are rounded to the nearest code, without the searches that both
formats are named after.
"""

import argparse
import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

import calibrated
import calibrated_awq
from golden_models.quantized.integers import Awq, Gptq

LAYERS = "model.layers."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--format", choices=["gptq", "awq"], required=True)
    parser.add_argument("--group", type=int, default=64)
    parser.add_argument("--calibrate", type=Path, nargs="+", metavar="TEXT")
    parser.add_argument("--chars", type=int, default=2000, help="of a piece of the texts")
    args = parser.parse_args()
    if args.format == "gptq":
        layout = Gptq(bits=4, group=args.group)
        config = dict(
            quant_method="gptq", bits=4, group_size=args.group, sym=True, desc_act=False,
            lm_head=False, checkpoint_format="gptq",
        )
    else:
        layout = Awq(group=args.group)
        config = dict(
            quant_method="awq", bits=4, group_size=args.group, zero_point=True, version="gemm",
        )
    args.out.mkdir(parents=True)
    source, inputs = load_file(args.folder / "model.safetensors"), {}
    if args.calibrate:
        text = "".join(path.read_text(encoding="utf-8") for path in args.calibrate)
        inputs = calibrated.inputs_of_layers(args.folder, text, args.chars)
        if args.format == "awq":
            source = calibrated_awq.scaled_and_clipped(source, inputs, args.group)
    tensors = {}
    for index, (name, tensor) in enumerate(source.items()):
        module = name.removesuffix(".weight")
        if name.startswith(LAYERS) and tensor.dim() == 2:
            if inputs and args.format == "gptq":
                coded = calibrated.gptq(tensor.float(), inputs[module].moments, args.group)
            else:
                coded = layout.pack(tensor.float(), index)
            for suffix, packed in coded.items():
                tensors[f"{module}.{suffix}"] = packed.contiguous()
        else:
            tensors[name] = tensor
    save_file(tensors, args.out / "model.safetensors", metadata={"format": "pt"})
    for path in args.folder.iterdir():
        if path.suffix in (".json", ".jinja") and path.name != "config.json":
            shutil.copy(path, args.out)
    model = json.loads((args.folder / "config.json").read_text(encoding="utf-8"))
    text = json.dumps({**model, "quantization_config": config}, indent=2)
    (args.out / "config.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
