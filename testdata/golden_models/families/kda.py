"""Delta attention whose states' rows each decay, beside latent attention: Kimi Linear, Ling 3; and OLMo Hybrid's
delta nets, of a tensor for each part.

Every mistake that is listed with a family moves a golden logprob: `--check` says so.
"""

import torch
from torch import nn
from transformers.models.bailing_hybrid import modeling_bailing_hybrid
from transformers.models.kimi_linear import modeling_kimi_linear
from transformers.models.olmo_hybrid import modeling_olmo_hybrid

from ..family import FULL, Family, Layout, dims, rope, small
from ..layouts import renamed, same, stacked
from ..mistakes import added, filled, named, other_pairs, swapped, without, zeroed
from ..routing import swapped_gate_and_up, unbiased
from .delta import without_norms, without_scale
from .recurrent import oldest_tap_lost, taps_reversed

LINEAR = "linear_attention"
RULES = {
    modeling_kimi_linear: "chunk_kimi_delta_attention",
    modeling_bailing_hybrid: "chunk_kimi_delta_attention",
    modeling_olmo_hybrid: "torch_chunk_gated_delta_rule",
}


def ruled(label: str, rule):
    """Blocks compute `rule(the real one, arguments)`."""

    def change(model: nn.Module) -> None:
        nets = [m for m in model.modules() if type(m).__name__.endswith(("DeltaAttention", "DeltaNet"))]
        assert nets, "no delta nets"
        for net in nets:

            def forward(*args, inner=net.forward, **kwargs):
                before = {module: getattr(module, name) for module, name in RULES.items()}
                for module, name in RULES.items():
                    changed = lambda *a, real=before[module], **k: rule(real, *a, **k)
                    setattr(module, name, changed)
                try:
                    return inner(*args, **kwargs)
                finally:
                    for module, name in RULES.items():
                        setattr(module, name, before[module])

            net.forward = forward

    return named(label, change)


def by_head(real, *args, g, **kwargs):
    """The first row's decay for all rows."""
    return real(*args, g=g[..., :1].expand_as(g), **kwargs)


def without_decay(real, *args, g, **kwargs):
    return real(*args, g=torch.zeros_like(g), **kwargs)


def without_beta(real, *args, beta, **kwargs):
    return real(*args, beta=torch.ones_like(beta), **kwargs)


def half_beta(real, *args, beta, **kwargs):
    return real(*args, beta=beta / 2, **kwargs)


def silu_gate(model: nn.Module) -> None:
    for module in model.modules():
        if type(module).__name__.endswith("RMSNormGated"):
            module.activation = "silu"


def sigmoid_gate(model: nn.Module) -> None:
    for module in model.modules():
        if type(module).__name__.endswith("RMSNormGated"):

            def forward(hidden, gate, norm=module):
                mean = hidden.pow(2).mean(-1, keepdim=True)
                return norm.weight * hidden * torch.rsqrt(mean + norm.variance_epsilon) * gate.sigmoid()

            module.forward = forward


def tap_parts_swapped(model: nn.Module) -> None:
    """Taps of k for those of q."""
    for module in model.modules():
        if isinstance(module, nn.Conv1d):
            third = module.weight.shape[0] // 3
            module.weight.copy_(torch.cat([
                module.weight[third : 2 * third], module.weight[:third], module.weight[2 * third :],
            ]))


DELTA = [
    ruled("no decay", without_decay), ruled("no beta", without_beta),
    ruled("q and k are not normalized", without_norms), ruled("q is not scaled", without_scale),
    zeroed("A_log"), zeroed("dt_bias"), oldest_tap_lost, taps_reversed,
]
KDA = [*DELTA, ruled("a decay of the head", by_head), silu_gate, tap_parts_swapped]
MOE = [
    unbiased, swapped_gate_and_up, dict(num_experts_per_tok=1),
    zeroed("shared_experts.down_proj"), dict(routed_scaling_factor=1.0),
]
LATENT = dict(
    kv_lora_rank=20, qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=10,
    num_experts_per_tok=2, moe_intermediate_size=12,
)


def taps_of(tensors: dict) -> dict:
    """Taps as published: those of q, of k and of v apart. transformers cuts them into equal parts."""
    out = dict(tensors)
    for name in tensors:
        block, is_q, _ = name.partition(".q_conv1d.weight")
        if is_q:
            names = [f"{block}.{part}_conv1d.weight" for part in "qkv"]
            rows = [tensors[f"{block}.{part}_proj.weight"].shape[0] for part in "qkv"]
            parts = torch.cat([tensors[name] for name in names]).split(rows)
            out |= dict(zip(names, (part.contiguous() for part in parts), strict=True))
    return out


def joined_taps(tensors: dict) -> dict:
    out = {name: tensor for name, tensor in tensors.items() if "_conv1d." not in name}
    for name in tensors:
        block, is_q, _ = name.partition(".q_conv1d.weight")
        if is_q:
            parts = [tensors[f"{block}.{part}_conv1d.weight"] for part in "qkv"]
            out[f"{block}.conv1d.weight"] = torch.cat(parts)
    return out


def kimi_published(config: dict) -> dict:
    """What is in `linear_attn_config` of published files, and their other keys."""
    config = dict(config)
    types = config.pop("layer_types")
    dense = config.pop("mlp_layer_types").count("dense")
    of = lambda kind: [index + 1 for index, name in enumerate(types) if name == kind]
    return config | dict(
        linear_attn_config=dict(
            full_attn_layers=of(FULL), kda_layers=of(LINEAR),
            head_dim=config.pop("linear_head_dim"), num_heads=config.pop("linear_num_heads"),
            short_conv_kernel_size=config.pop("linear_conv_kernel_dim"),
        ),
        first_k_dense_replace=dense, mla_use_nope=True, moe_layer_freq=1,
        moe_router_activation_func="sigmoid", num_nextn_predict_layers=0, rope_scaling=None,
        rope_theta=10000.0, use_grouped_topk=True,
    )


FORGETS = [
    (f"self_attn.{part}", f"self_attn.forget_gate.{part}")
    for part in ("f_a_proj", "f_b_proj", "f_proj", "dt_bias", "A_log")
]


def kimi_names(tensors: dict) -> dict:
    """The MLP of dense layers under its published name: transformers writes that of experts."""
    parts = ("gate", "up", "down")
    return renamed(
        [(f".block_sparse_moe.{part}_proj", f".mlp.{part}_proj") for part in parts], tensors
    )


def kimi_restored(tensors: dict) -> dict:
    parts = [(".w1.", ".gate_proj."), (".w3.", ".up_proj."), (".w2.", ".down_proj.")]
    names = [*FORGETS, (".block_sparse_moe.", ".mlp."), *parts]
    return stacked(renamed(names, joined_taps(tensors)))


def bailing_restored(tensors: dict) -> dict:
    names = [
        ("model.word_embeddings.", "model.embed_tokens."), (".attention.", ".self_attn."), *FORGETS,
        (".self_attn.dense.", ".self_attn.o_proj."), (".expert_bias", ".e_score_correction_bias"),
    ]
    return stacked(renamed(names, joined_taps(tensors)))


def olmo_names(tensors: dict) -> dict:
    """Taps cut by their widths; norms of attention layers under OLMo 3's names."""
    full = [name.removesuffix("self_attn.q_proj.weight") for name in tensors if "self_attn.q_proj." in name]
    names = [(f"{layer}feedforward_layer_norm", f"{layer}post_attention_layernorm") for layer in full]
    return taps_of(renamed(names, tensors))


def olmo_restored(tensors: dict) -> dict:
    names = [("attention_layer_norm", "input_layernorm"), ("feedforward_layer_norm", "post_attention_layernorm")]
    return renamed(names, joined_taps(tensors))


OLMO = Layout(same, olmo_names, olmo_restored)


FAMILIES: dict[str, Family] = {
    "kimi_linear": small(
        "KimiLinearConfig",
        dims(
            32, 40, 4, 4, 4, **LATENT, num_local_experts=4, linear_head_dim=12, linear_num_heads=3,
            layer_types=[LINEAR, LINEAR, FULL, LINEAR], rms_norm_eps=1e-3, routed_scaling_factor=2.5,
            mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
        ),
        [*KDA, *MOE, zeroed("f_b_proj"), zeroed("g_b_proj"), swapped("forget_gate.f_b_proj", "g_b_proj")],
        means={"A_log": -1.5}, layout=Layout(kimi_published, kimi_names, kimi_restored),
    ),
    "bailing_hybrid": small(
        "BailingHybridConfig",
        dims(
            32, 40, 4, 3, 3, **LATENT, num_local_experts=4, n_group=2, topk_group=1, head_dim=12,
            layer_group_size=2, first_k_dense_replace=1, rms_norm_eps=1e-3,
            short_conv_kernel_size=3, rope_theta=1000.0, rope_parameters=rope(1000.0),
        ),
        [
            *KDA, *MOE, dict(kda_lower_bound=-2.0), dict(kda_safe_gate=False), zeroed("f_proj"),
            dict(rope_parameters=rope(50.0)), filled("self_attn.g_proj", 0.0),
        ],
        means={"A_log": -0.5}, layout=Layout(same, dict, bailing_restored),
    ),
    "olmo_hybrid": small(
        "OlmoHybridConfig",
        dims(
            32, 48, 4, 4, 2, layer_types=[LINEAR, FULL, LINEAR, FULL], rms_norm_eps=1e-3,
            linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=10,
            linear_value_head_dim=12, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=None),
        ),
        [
            *DELTA, ruled("beta without its factor", half_beta), sigmoid_gate,
            dict(linear_allow_neg_eigval=False), dict(rope_parameters=rope(10000.0)),
            swapped("a_proj", "b_proj"), without("q_norm"), zeroed("g_proj"),
        ],
        means={"A_log": -1.5}, layout=OLMO,
    ),
    "olmo_hybrid_rope": small(
        "OlmoHybridConfig",
        dims(
            32, 48, 3, 4, 2, layer_types=[LINEAR, FULL, LINEAR], linear_num_key_heads=3,
            linear_num_value_heads=3, tie_word_embeddings=False, linear_conv_kernel_dim=3,
            linear_allow_neg_eigval=False, rope_parameters=rope(1000.0),
        ),
        [*DELTA, dict(rope_parameters=rope(100.0)), dict(linear_allow_neg_eigval=True)],
        means={"A_log": -1.5}, layout=OLMO,
    ),
}
