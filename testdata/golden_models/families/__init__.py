"""All families, by folder."""

from ..family import Family
from . import alibi, first, gpt, later, llama_kin, parallel, phi3, post_norm, renamed

FAMILIES: dict[str, Family] = {}
for _module in (first, llama_kin, post_norm, phi3, parallel, gpt, alibi, later, renamed):
    FAMILIES.update(_module.FAMILIES)
