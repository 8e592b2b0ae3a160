"""Step 3.5: gates of heads, heads and rotary embeddings by kind of layers, bounds of single layers.

Mistakes that these goldens catch: a gate left out; a bound left out, before the activation in place
of behind it, or of the other experts; w taken for 1 + w; the base of the other kind of layers; the
bias of the choice left out, or used in the weights; the factor of the experts.
"""

import torch
from torch import nn

from .. import step  # a class that transformers lacks
from ..family import FULL, SLIDING, Family, Layout, dims, small
from ..layouts import renamed
from ..mistakes import added, without, zeroed
from ..routing import biased_weights, routers, swapped_gate_and_up, unbiased

NAMES = [
    ("mlp.gate.weight", "moe.gate.weight"),
    ("mlp.gate.e_score_correction_bias", "moe.router_bias"),
    ("mlp.experts.down_proj", "moe.down_proj.weight"),
    ("mlp.shared_experts.", "share_expert."),
]


def published(config: dict) -> dict:
    """Keys as StepFun writes them, lists of layers with one that predicts further tokens."""
    config = dict(config)
    ropes, num = config.pop("rope_parameters"), config["num_hidden_layers"]
    types = config["layer_types"]
    of_layers = [ropes[kind] for kind in types] + [ropes[FULL]]
    sparse = [i for i, kind in enumerate(config.pop("mlp_layer_types")) if kind == "sparse"]
    for key in ("per_layer_config", "num_local_experts", "mtp_layer_types", "mtp_mlp_layer_types",
                "query_pre_attn_scalar", "num_nextn_predict_layers"):
        config.pop(key, None)
    groups = config.pop("num_key_value_heads")
    return config | dict(
        architectures=["Step3p5ForCausalLM"], model_type="step3p5", num_attention_groups=groups,
        attention_other_setting=dict(
            attention_type=SLIDING, num_attention_heads=config.pop("num_sliding_attention_heads"),
            num_attention_groups=groups, head_dim=config["head_dim"],
            true_head_dim=config["head_dim"],
        ),
        layer_types=types + [FULL], moe_layers_enum=",".join(map(str, sparse)),
        moe_num_experts=config.pop("n_routed_experts"), moe_top_k=config.pop("num_experts_per_tok"),
        num_nextn_predict_layers=1, moe_router_activation="sigmoid", use_moe_router_bias=True,
        norm_expert_weight=True, use_head_wise_attn_gate=True, need_fp32_gate=True,
        partial_rotary_factors=[of.get("partial_rotary_factor", 1.0) for of in of_layers],
        rope_theta=[of["rope_theta"] for of in of_layers], zero_centered=True,
        swiglu_limits=config["swiglu_limits"] + [0.0],
        swiglu_limits_shared=config["swiglu_limits_shared"] + [0.0], use_rope_layers=[],
    )


def publish(tensors: dict) -> dict:
    further = {f"model.layers.{LAYERS}.enorm.weight": tensors["model.norm.weight"].clone()}
    return own(tensors) | further


def own(tensors: dict) -> dict:
    """StepFun's names."""
    out = {}
    for name, tensor in renamed(NAMES, tensors).items():
        if name.endswith("mlp.experts.gate_up_proj"):
            block = name.removesuffix("mlp.experts.gate_up_proj")
            gate, up = tensor.chunk(2, dim=1)
            out[f"{block}moe.gate_proj.weight"] = gate.contiguous()
            out[f"{block}moe.up_proj.weight"] = up.contiguous()
        else:
            out[name] = tensor
    return out


def restore(tensors: dict) -> dict:
    kept = {k: v for k, v in tensors.items() if f".layers.{LAYERS}." not in k}
    for name in [name for name in kept if name.endswith("moe.gate_proj.weight")]:
        gate = kept.pop(name)
        up = kept.pop(name.replace("gate_proj", "up_proj"))
        block = name.removesuffix("moe.gate_proj.weight")
        kept[f"{block}mlp.experts.gate_up_proj"] = torch.cat([gate, up], dim=1)
    return renamed([(new, old) for old, new in NAMES], kept)


LAYERS = 4


def multimodal(config: dict) -> dict:
    """As transformers would write the text part of the multimodal class."""
    text = {k: v for k, v in config.items() if k not in ("architectures", "transformers_version")}
    return dict(
        architectures=["Step3p7ForConditionalGeneration"], dtype="bfloat16", image_token_id=290,
        model_type="step3p7", projector_bias=False, text_config=text,
        transformers_version=config["transformers_version"], tie_word_embeddings=False,
        vision_config=dict(hidden_size=16, model_type="step3p5_vision"),
    )


def ungated(model: nn.Module) -> None:
    """Gates are halves."""
    for layer in model.model.layers:
        layer.self_attn.g_proj.weight.zero_()


def bounded_before(model: nn.Module) -> None:
    """Gates are bounded before the activation."""
    for layer in model.model.layers:
        if hasattr(layer.mlp, "experts"):
            experts = layer.mlp.experts

            def gate(x, experts=experts):
                gate, up = x.chunk(2, dim=-1)
                limit = experts.limit
                return experts.act_fn(gate.clamp(max=limit)) * up.clamp(min=-limit, max=limit)

            experts._apply_gate = gate


def plain_share(model: nn.Module) -> None:
    """Weights of experts are their scores."""
    for router in routers(model):
        forward = router.forward

        def scores(hidden, forward=forward):
            logits, _, chosen = forward(hidden)
            return logits, logits.sigmoid().gather(1, chosen), chosen

        router.forward = scores


ROPES = {
    FULL: dict(rope_type="default", rope_theta=50000.0, partial_rotary_factor=0.5),
    SLIDING: dict(rope_type="default", rope_theta=1000.0, partial_rotary_factor=1.0),
}
STEP = dims(
    32, 32, LAYERS, 2, 2, head_dim=16, num_sliding_attention_heads=4, sliding_window=8,
    layer_types=[FULL, SLIDING, SLIDING, FULL], n_routed_experts=5, num_experts_per_tok=2,
    mlp_layer_types=["dense", "sparse", "sparse", "sparse"], moe_intermediate_size=16,
    share_expert_dim=24, pad_token_id=0, moe_router_scaling_factor=2.5, swiglu_limits=[0.0, 0.0, 0.4, 0.3],
    swiglu_limits_shared=[0.3, 0.0, 0.5, 0.4], rms_norm_eps=1e-4, rope_parameters=ROPES,
)
MISTAKES = [
    unbiased, swapped_gate_and_up, dict(moe_router_scaling_factor=1.0), ungated, plain_share,
    dict(swiglu_limits=[0.0] * 4), dict(swiglu_limits_shared=[0.0] * 4), bounded_before,
    dict(swiglu_limits=[0.3, 0.0, 0.5, 0.4]), zeroed("shared_experts.down_proj"),
    without("q_norm"), without("k_norm"), dict(sliding_window=9), added("norm", -1.0),
    dict(rope_parameters={**ROPES, SLIDING: ROPES[FULL]}),
    dict(rope_parameters={**ROPES, FULL: ROPES[SLIDING]}),
]

FAMILIES: dict[str, Family] = {
    "step3p5": small(
        "Step3p7TextConfig", STEP, MISTAKES, model_class="Step3p7ForCausalLM",
        layout=Layout(published, publish, restore), norm_mean=0.0, final_norm_mean=1.0,
        oracle="transformers' text model of Step 3.7 with its output layer, in StepFun's names",
    ),
    "step3p7": small(
        "Step3p7TextConfig",
        {**STEP, "num_sliding_attention_heads": 2, "swiglu_limits": None,
         "layer_types": [SLIDING, FULL, SLIDING, FULL]},
        [dict(swiglu_limits_shared=[0.0] * 4), ungated, dict(sliding_window=9)],
        model_class="Step3p7ForCausalLM",
        layout=Layout(multimodal, own, restore), norm_mean=0.0, final_norm_mean=1.0,
        oracle="transformers' text model of Step 3.7 with its output layer, in StepFun's names",
    ),
}
