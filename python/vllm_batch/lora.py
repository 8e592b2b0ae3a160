"""`LoRARequest`: the adapter that a request is computed with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence, Union


@dataclass(eq=False)
class LoRARequest:
    """An adapter by name: a folder as PEFT saves it, or a Hugging Face id. docs/LORA.md has what
    is read. Two requests of one name are the same adapter.

    `lora_int_id`: above 0. The name is what counts.
    `base_model_name`, `load_inplace`, `is_3d_lora_weight`: nothing depends on the first; the others
    are refused where they are true.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False

    def __post_init__(self) -> None:
        if self.lora_int_id < 1:
            raise ValueError(f"lora_int_id is {self.lora_int_id}: give a number above 0")
        if not self.lora_path:
            raise ValueError(f"lora_path of {self.lora_name!r} is empty: give the adapter's folder")
        for name in ("load_inplace", "is_3d_lora_weight"):
            if getattr(self, name):
                raise NotImplementedError(f"LoRARequest.{name} is not supported: leave it out")

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def path(self) -> str:
        return self.lora_path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoRARequest) and self.lora_name == other.lora_name

    def __hash__(self) -> int:
        return hash(self.lora_name)


#: An adapter for all requests of a call, or one or None for each.
Loras = Union[LoRARequest, Sequence[Union[LoRARequest, None]], None]


def adapters_in(loras: Loras) -> list[LoRARequest]:
    """The adapters that any request of a call names."""
    if isinstance(loras, LoRARequest):
        return [loras]
    return [lora for lora in loras or () if lora is not None]
