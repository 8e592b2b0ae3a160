"""All families, by folder."""

from ..family import Family
from . import (
    alibi, bailing, blocks, cohere_vision, delta, experts, first, gated, gemma3_vision, gemma4,
    glm_vision, gpt, internvl, latent, later, lfm2_vl, llama4, llama_kin, longcat, newer, paligemma,
    parallel, parts, peri_norm, phi3, pixtral, post_norm, quantized, qwen_vision, recurrent,
    renamed, selective, towers, paddleocr_vl, kda, altup, zamba, step, sparse, kimi_vision,
    deepseek_vl2, molmo2, ovis2, phi4_multimodal, elder, dots_ocr, got_ocr2,
)

FAMILIES: dict[str, Family] = {}
MODULES = (
    first, llama_kin, post_norm, phi3, parallel, gpt, alibi, later, latent, recurrent, renamed,
    quantized, experts, gemma4, delta, towers, qwen_vision, gemma3_vision, internvl, pixtral,
    glm_vision, paligemma, lfm2_vl, cohere_vision, gated, newer,
    bailing, blocks, longcat, peri_norm, parts, selective, llama4, paddleocr_vl, kda, altup, zamba, step, sparse,
    kimi_vision, deepseek_vl2, molmo2, ovis2, phi4_multimodal, elder, dots_ocr, got_ocr2,
)
for _module in MODULES:
    FAMILIES.update(_module.FAMILIES)
