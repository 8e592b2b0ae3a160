"""Small things of vLLM that its examples use."""

from __future__ import annotations

import base64
import enum
import io
import itertools
import logging
import socket
import uuid
from typing import Any, Iterator, Sequence

from ..engine_args import model_name
from ..images import image_url
from ..kinds import library

__version__ = "0.32.0"


class UsageContext(str, enum.Enum):
    """Who asks. Nothing depends on it."""

    UNKNOWN_CONTEXT = "UNKNOWN_CONTEXT"
    LLM_CLASS = "LLM_CLASS"
    API_SERVER = "API_SERVER"
    ENGINE_CONTEXT = "ENGINE_CONTEXT"


class Counter:
    """Numbers, one after the other."""

    def __init__(self, start: int = 0) -> None:
        self._numbers = itertools.count(start)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return next(self._numbers)


def random_uuid() -> str:
    """A name that nobody has."""
    return uuid.uuid4().hex


def init_logger(name: str) -> logging.Logger:
    """A logger."""
    return logging.getLogger(name)


def get_ip() -> str:
    """An address of this machine."""
    return "127.0.0.1"


def get_open_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Nothing: a process ends with its `LLM`."""
    del shutdown_ray


def print_embeddings(values: Sequence[float], prefix: str = "Embeddings") -> None:
    """Prints the first numbers of a vector, and how many there are."""
    shown = str(values) if len(values) <= 4 else f"{str(values[:4])[:-1]}, ...]"
    print(f"{prefix}: {shown} (size={len(values)})")


def get_tokenizer(name: Any, **options: Any) -> Any:
    """A tokenizer of transformers."""
    return library("transformers").AutoTokenizer.from_pretrained(model_name(name), **options)


def encode_image_url(image: Any) -> str:
    """An image of Pillow as a `data:` URL."""
    return image_url(image)


def fetch_image(url: str) -> Any:
    """An image of Pillow from a `data:` URL or a file. Other URLs: NotImplementedError."""
    pillow = library("PIL.Image")
    if url.startswith("data:"):
        return pillow.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")
    if "://" in url and not url.startswith("file://"):
        raise NotImplementedError(f"fetch_image({url!r}) is not supported: give a file")
    return pillow.open(url.removeprefix("file://")).convert("RGB")
