#!/usr/bin/env python3
"""Adds to golden models that see the vectors that transformers makes of prompts with images.

    python testdata/generate_image_vectors.py            # after generate_images.py
    python testdata/generate_image_vectors.py --check    # writes nothing: compares
    python testdata/generate_image_vectors.py --only qwen3_vl

Writes `image_vectors.json` into each folder: the state of the last token behind the last norm, of
a length of 1, in float32. `null` stands for the text of an image alone.

Made with the versions of generate_images.py.
"""

import argparse
import json

import torch
import transformers
from PIL import Image, ImageOps

import generate_images as images

MODELS = ["gemma3_multimodal", "qwen3_vl", "smolvlm"]
QUESTION = "What is this?"
ROWS = [(["wide2.png"], QUESTION), (["thin.png"], None), (["rgb.png", "exif6.jpg"], QUESTION)]


@torch.no_grad()
def record(model, processor, files: list[str], text: str | None) -> dict:
    pictures = [Image.open(images.TESTDATA / "media" / file) for file in files]
    pictures = [ImageOps.exif_transpose(picture).convert("RGB") for picture in pictures]
    shown = images.shown(type(processor.image_processor))
    is_qwen = isinstance(processor, images.Qwen2VLProcessor)
    mark = f"{images.BRACKET}{shown}{images.BRACKET}" if is_qwen else shown
    asked = f"User:{mark * len(files)}{text or ''}<end_of_utterance>\nAssistant:"
    inputs = processor(text=asked, images=[pictures], return_tensors="pt")
    ids = inputs["input_ids"]
    more = {k: v for k, v in inputs.items() if k.startswith(("pixel", "image_"))}
    is_image = ids == model.config.image_token_id
    if is_qwen:
        more["mm_token_type_ids"] = is_image.int()
    if isinstance(processor, images.Gemma3Processor):
        more["token_type_ids"] = is_image.long()
    states = model.model(input_ids=ids, use_cache=False, **more).last_hidden_state[0]
    vector = torch.nn.functional.normalize(states[-1], dim=0)
    vector = [round(float(value), 7) for value in vector]
    return dict(images=files, text=text, token_ids=ids[0].tolist(), vector=vector)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    parser.add_argument("--only", nargs="+", choices=MODELS, metavar="NAME", default=MODELS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    of_name = {name: rest for name, *rest in images.MODELS}
    for name in args.only:
        folder = images.TESTDATA / "golden" / name
        image_processor, _, tile = of_name[name]
        config = json.loads((folder / "config.json").read_text())
        model = images.load_model(folder, config)
        processor = images.make_processor(folder, config, image_processor, tile)
        rows = [record(model, processor, *row) for row in ROWS]
        path = folder / "image_vectors.json"
        if args.check:
            for old, new in zip(json.loads(path.read_text())["rows"], rows, strict=True):
                far = images.distance(old.pop("vector"), new.pop("vector"))
                assert far < images.MAX_DISTANCE and old == new, (name, far, new)
        else:
            lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
            version = transformers.__version__
            path.write_text(f'{{\n  "transformers": "{version}",\n  "rows": [\n{lines}\n  ]\n}}\n')
        print(f"{name}: {[len(row['token_ids']) for row in rows]} tokens, ok")


if __name__ == "__main__":
    main()
