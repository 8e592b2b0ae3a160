#!/usr/bin/env python3
"""Make the tiny golden models under testdata/golden/ with Hugging Face transformers.

Every folder is a complete checkpoint of one model family (config, tokenizer, random weights) plus
golden.json: what transformers computes for a handful of prompts. Greedy ids, logprobs, top-5 and
prompt logprobs come from full forward passes in float32 without a KV cache, so nothing here depends
on how a cache treats sliding windows. The families are in golden_models/families/.

    python testdata/generate_golden.py                  # all families, minutes on one core
    python testdata/generate_golden.py --only opt       # one family
    python testdata/generate_golden.py --check          # write nothing: reload what is saved,
                                                        # compare, and try the listed mistakes

testdata/README.md has the versions to run it with. Same versions, same bytes. Other versions may
pick other weights (torch's generator) or word config.json differently; --check must pass anyway.

A seed is rejected when any greedy step has its two best logits closer than MIN_GAP or when an
output is monotonous, so the goldens are unambiguous for any correct float32 implementation.
"""

import argparse
import os
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

from golden_models.check import check, check_mistakes
from golden_models.families import FAMILIES
from golden_models.files import SHARED_FOLDER
from golden_models.search import generate
from golden_models.tokenizer_kinds import write_shared


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=list(FAMILIES), metavar="NAME",
        help="families to make or check (default: all)",
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "golden", help="folder to write to"
    )
    parser.add_argument(
        "--check", action="store_true",
        help="compare what is saved with golden.json and write nothing",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if not args.check:
        write_shared(args.out / SHARED_FOLDER)
    for name in args.only or FAMILIES:
        if not args.check:
            generate(args.out, name)
        check(args.out / name, name)
        check_mistakes(args.out / name, name)
        print(f"{name}: ok", flush=True)


if __name__ == "__main__":
    main()
