"""The tokenizer of a model, as scripts for vLLM use it: transformers'."""

from __future__ import annotations

from typing import Any

from .engines import Engines
from .kinds import library
from .models import is_gguf


def tokenizer_of(engines: Engines) -> Any:
    """A tokenizer of transformers. Raises ImportError where that is not installed."""
    args = engines.args
    try:
        AutoTokenizer = library("transformers").AutoTokenizer
    except ImportError:
        raise ImportError("get_tokenizer needs transformers: pip install transformers") from None
    if args.tokenizer is not None:
        return AutoTokenizer.from_pretrained(args.tokenizer)
    folder = engines.folder
    name = str(folder) if folder is not None else args.model
    if is_gguf(args.model):
        file = args.model.replace(":", "/").rpartition("/")[2]
        return AutoTokenizer.from_pretrained(name, gguf_file=file)
    return AutoTokenizer.from_pretrained(name, revision=args.revision)
