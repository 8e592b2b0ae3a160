"""MiniMax M3: a token attends to the best blocks of tokens before it, of each K and V head its own."""

import torch
from torch import nn

from ..family import FULL, Family, Layout, dims, rope, small
from ..layouts import wrapped
from ..mistakes import Change, added, named, swapped, without, zeroed
from ..routing import biased_weights, swapped_gate_and_up, unbiased
from .sparse import indexers, with_attribute

CHOOSING = "minimax_m3_sparse"
INDEX, PUBLISHED_INDEX = ".self_attn.indexer.", ".self_attn.index_"
MOE, PUBLISHED_MOE = ".mlp.", ".block_sparse_moe."
BIAS = "e_score_correction_bias"


def publish(tensors: dict) -> dict:
    """Gate and up apart, experts one by one, and the names that published files have."""
    out = {}
    for name, tensor in tensors.items():
        of_moe = name.replace(MOE, PUBLISHED_MOE)
        if ".mlp.experts.gate_up_proj" in name:
            for index, both in enumerate(tensor):
                base = of_moe.removesuffix("gate_up_proj") + str(index)
                out[f"{base}.w1.weight"], out[f"{base}.w3.weight"] = both.chunk(2)
        elif ".mlp.experts.down_proj" in name:
            base = of_moe.removesuffix("down_proj")
            out |= {f"{base}{index}.w2.weight": one for index, one in enumerate(tensor)}
        elif name.endswith(BIAS):
            out[of_moe.replace(f"gate.{BIAS}", BIAS)] = tensor
        elif "gate_up_proj" in name:
            name = of_moe if ".shared_experts." in name else name
            for part, half in zip(("gate_proj", "up_proj"), tensor.chunk(2)):
                out[name.replace("gate_up_proj", part)] = half
        elif ".mlp.gate." in name or ".shared_experts." in name:
            out[of_moe] = tensor
        else:
            out[name.replace(INDEX, PUBLISHED_INDEX)] = tensor
    return {name: tensor.contiguous() for name, tensor in out.items()}


def restore(tensors: dict) -> dict:
    """The other way round."""
    out, experts = {}, {}
    for name, tensor in tensors.items():
        name = name.replace(PUBLISHED_INDEX, INDEX).replace(PUBLISHED_MOE, MOE)
        if ".mlp.experts." in name:
            base, _, rest = name.partition(".mlp.experts.")
            index, part, _ = rest.split(".")
            experts.setdefault(base, {})[int(index), part] = tensor
        elif name.endswith(BIAS):
            out[name.replace(BIAS, f"gate.{BIAS}")] = tensor
        elif ".mlp." in name and name.endswith("gate_proj.weight"):
            out[name.replace("gate_proj", "gate_up_proj")] = [tensor]
        elif ".mlp." in name and name.endswith("up_proj.weight"):
            out.setdefault(name.replace("up_proj", "gate_up_proj"), []).append(tensor)
        else:
            out[name] = tensor
    out = {n: torch.cat(t) if isinstance(t, list) else t for n, t in out.items()}
    for base, parts in experts.items():
        indices = range(1 + max(index for index, _ in parts))
        both = [torch.cat([parts[index, "w1"], parts[index, "w3"]]) for index in indices]
        out[f"{base}.mlp.experts.gate_up_proj"] = torch.stack(both)
        out[f"{base}.mlp.experts.down_proj"] = torch.stack([parts[i, "w2"] for i in indices])
    return out


def text(config: dict) -> dict:
    """The text part under vLLM's name."""
    keys = {key: value for key, value in config.items() if key != "rotary_dim"}
    return keys | dict(architectures=["MiniMaxM3SparseForCausalLM"])


# What published files have in the place of keys of the class.
SPARSE_KEYS = dict(
    index_n_heads="sparse_num_index_heads", index_head_dim="sparse_index_dim",
    index_block_size="sparse_block_size", index_topk_blocks="sparse_topk_blocks",
    index_local_blocks="sparse_local_block",
)


def multimodal(config: dict) -> dict:
    """The class that sees, with the keys of its text part as the class's own code reads them."""
    dropped = ("architectures", "transformers_version", "layer_types", "mlp_layer_types", *SPARSE_KEYS)
    keys = {key: value for key, value in config.items() if key not in dropped}
    sparse = {new: config[old] for old, new in SPARSE_KEYS.items()}
    choosing = [int(kind == CHOOSING) for kind in config["layer_types"]]
    sparse |= dict(
        use_sparse_attention=True, sparse_score_type="max", sparse_init_block=0,
        sparse_attention_freq=choosing, sparse_disable_index_value=choosing,
    )
    keys |= dict(
        sparse_attention_config=sparse, hidden_act="swigluoai", attention_output_gate=False,
        n_shared_experts=1, qk_norm_type="per_head", use_gemma_norm=True, num_mtp_modules=7,
        num_nextn_predict_layers=1,
        moe_layer_freq=[int(kind == "sparse") for kind in config["mlp_layer_types"]],
    )
    return dict(
        architectures=["MiniMaxM3SparseForConditionalGeneration"], dtype="bfloat16",
        image_seq_length=576, image_token_index=282, process_image_mode="dynamic_res", model_type="minimax_m3_vl", projector_hidden_size=32,
        text_config=keys, tie_word_embeddings=False,
        transformers_version=config["transformers_version"], video_token_index=283,
        vision_config=dict(
            hidden_size=16, image_size=28, intermediate_size=64, model_type="minimax_m3_vl_vision",
            num_attention_heads=2, num_hidden_layers=1, patch_size=14,
        ),
    )


WRAPPED = wrapped(
    "language_model.model.", "language_model.lm_head.",
    {
        "vision_tower.vision_model.pre_layrnorm.weight": (16,),
        "multi_modal_projector.linear_1.weight": (32, 16),
        "patch_merge_mlp.linear_1.weight": (32, 128),
    },
    multimodal,
)


def of_first_head(model: nn.Module) -> None:
    """All heads take the choice of the first one."""
    for indexer in indexers(model):
        forward = indexer.forward
        indexer.forward = lambda *args, f=forward, **kwargs: (lambda all: all[:, :1].expand_as(all))(
            f(*args, **kwargs)
        )


def attends_to_all(model: nn.Module) -> None:
    for module in model.modules():
        if getattr(module, "indexer", None) is not None:
            module.indexer = None


def means(model: nn.Module) -> None:
    """Blocks by the mean of their scores."""

    def mean(values: torch.Tensor, dim: int = -1) -> torch.Tensor:
        seen = values > float("-inf")
        sums = torch.where(seen, values, 0.0).sum(dim)
        return torch.where(seen.any(dim), sums / seen.sum(dim).clamp(min=1), float("-inf"))

    for indexer in indexers(model):
        indexer.forward = with_attribute(indexer.forward, torch.Tensor, "amax", mean)


def of_indexers(change: Change) -> Change:
    """A change of the indexers alone."""

    def apply(model: nn.Module) -> None:
        for indexer in indexers(model):
            change(indexer)

    return named(f"indexers: {change.__name__}", apply)


COMMON = dict(head_dim=16, rms_norm_eps=1e-3, num_local_experts=4, num_experts_per_tok=2)
OF_BOTH = [
    of_indexers(without("q_norm")), of_indexers(without("k_norm")),
    of_indexers(added("k_norm", 1.0)), means, dict(index_local_blocks=0), unbiased, biased_weights,
    dict(routed_scaling_factor=1.0), dict(swiglu_limit=7.0), dict(swiglu_alpha=1.0),
    swapped_gate_and_up, zeroed("shared_experts.down_proj"), added("input_layernorm", 1.0),
    attends_to_all,
]

FAMILIES: dict[str, Family] = {
    "minimax_m3": small(
        "MiniMaxM3VLTextConfig",
        dims(
            32, 16, 3, 4, 2, dense_intermediate_size=40, shared_intermediate_size=24,
            swiglu_limit=1.1, swiglu_alpha=1.3, routed_scaling_factor=1.7,
            layer_types=[FULL, CHOOSING, CHOOSING], mlp_layer_types=["dense", "sparse", "sparse"],
            index_n_heads=2, index_head_dim=12, index_block_size=16, index_topk_blocks=3,
            rope_parameters=rope(20000.0, partial_rotary_factor=0.5), **COMMON,
        ),
        [
            of_first_head, dict(index_topk_blocks=2), dict(index_topk_blocks=4),
            dict(index_block_size=32), dict(rope_parameters=rope(20000.0)),
            swapped("q_norm", "k_norm"), *OF_BOTH,
        ],
        model_class="MiniMaxM3VLForCausalLM", layout=Layout(text, publish, restore), norm_mean=0.0,
    ),
    "minimax_m3_wrapped": small(
        "MiniMaxM3VLTextConfig",
        dims(
            32, 16, 3, 3, 1, dense_intermediate_size=24, shared_intermediate_size=16,
            swiglu_limit=1.4, swiglu_alpha=1.6, routed_scaling_factor=1.4,
            layer_types=[CHOOSING, FULL, CHOOSING], mlp_layer_types=["sparse", "dense", "sparse"],
            index_n_heads=1, index_head_dim=16, index_block_size=48, index_topk_blocks=2,
            rope_parameters=rope(10000.0), **COMMON,
        ),
        [dict(index_topk_blocks=1), dict(index_topk_blocks=3), dict(index_block_size=16), *OF_BOTH],
        model_class="MiniMaxM3VLForCausalLM", norm_mean=0.0,
        layout=Layout(
            multimodal, lambda tensors: WRAPPED.publish(publish(tensors)),
            lambda tensors: restore(WRAPPED.restore(tensors)),
        ),
        oracle="transformers' text model with its output layer, inside of a multimodal checkpoint",
    ),
}
