"""What one folder of golden/ is: a value, from which everything else is made."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from tokenizers import Tokenizer

from .quantized import Misread, Quantized

FULL, SLIDING = "full_attention", "sliding_attention"

# A plausible mistake: config changes that it amounts to, or a change of the model.
# Every mistake must move a golden logprob: a golden that a mistake does not touch tests nothing.
Mistake = dict | Misread | Callable[[torch.nn.Module], None]


@dataclass
class Layout:
    """A checkpoint that is not what save_pretrained writes: published names, fused tensors,
    or a family whose code is not in transformers and whose oracle is another class."""

    config: Callable[[dict], dict]  # of the oracle's config.json: the published one
    publish: Callable[[dict], dict]  # of the oracle's tensors: the published ones
    restore: Callable[[dict], dict]  # the other way round; what is left over is dropped


@dataclass
class Family:
    """How a folder's tokenizer, config, weights and prompts are made."""

    config_class: str
    config: dict
    tokenizer: Callable[[], Tokenizer] | None = None  # None: the one that `shared` names
    tokenizer_config: dict = field(default_factory=dict)
    first_prompt: str = ""  # the prompt that is one token long
    extra_prompts: list[str] = field(default_factory=list)
    shared: str | None = None  # a kind of tokenizer_kinds.SHARED; such folders are small ones
    model_class: str | None = None  # where it is not the config's name + ForCausalLM
    layout: Layout | None = None
    quantized: Quantized | None = None  # how linear layers are stored
    oracle: str | None = None  # in golden.json's head, where it is not the family's own class
    fix: Callable[[torch.nn.Module], None] | None = None  # of the oracle, once it is made
    rounded: Callable[[torch.nn.Module], None] | None = None  # its weights, once they are random
    mistakes: list[Mistake] = field(default_factory=list)
    pad_vocab_to: int = 1  # embedding rows are rounded up to this, as Qwen does
    dtype: torch.dtype = torch.float32  # as stored; goldens use it widened to float32
    shard_size: str | None = None
    head_std: float = 0.4  # of lm_head, or of the embedding when tied
    norm_mean: float = 1.0  # 0 where the model computes (1 + w)
    post_norm_mean: float | None = None  # of norms after attention and MLP, if there are any
    final_norm_mean: float | None = None  # with tied embeddings it sets the spread of the logits
    means: dict[str, float] = field(default_factory=dict)  # by a part of a tensor's name
    bias_std: float = 0.3
    # config.json and tensors as published, which its class reads
    published: Callable[[dict, dict], tuple[dict, dict]] | None = None
    old_config: bool = False  # write config.json as transformers 4 did
    both_configs: bool = False  # write config_v4.json beside it: as transformers 4 did
    old_keys: dict[str, Any] = field(default_factory=dict)  # more of what transformers 4 wrote
    old_drop: tuple[str, ...] = ()  # and what it did not write
    chat_in_config: bool = False  # chat template in tokenizer_config.json, not in a .jinja file
    chat_template: str | None = None
    generation_config: dict = field(default_factory=dict)
    first_seed: int = 0  # where seeds before it are known to fail
    slow_files: bool = False  # also vocab.json and merges.txt, all that OPT checkpoints have

    @property
    def max_new_tokens(self) -> int:
        return 16 if self.shared else 24

    @property
    def min_distinct(self) -> int:
        """Distinct ids of every output."""
        return 6 if self.shared else 8


def dims(hidden, inter, layers, heads, kv, **more) -> dict:
    """The sizes as most config classes name them."""
    return dict(
        hidden_size=hidden, intermediate_size=inter, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv,
        **{"max_position_embeddings": 256, **more},
    )


def fast(**more) -> dict:
    """A tokenizer_config.json without a class of its own."""
    return dict(
        tokenizer_class="PreTrainedTokenizerFast", clean_up_tokenization_spaces=False,
        model_max_length=256, **more,
    )


def rope(theta: float, kind: str = "default", **more) -> dict:
    """rope_parameters of transformers 5."""
    return dict(rope_type=kind, rope_theta=theta, **more)


def small(config_class: str, config: dict, mistakes: list[Mistake], **more) -> Family:
    """A family of tens of kilobytes: shared tokenizer, bfloat16, four prompts of 16 tokens."""
    more.setdefault("shared", "byte_level")
    more.setdefault("dtype", torch.bfloat16)
    if config.get("tie_word_embeddings"):
        more.setdefault("head_std", 0.12)
        more.setdefault("final_norm_mean", 3.5)
    return Family(config_class, config, mistakes=mistakes, **more)
