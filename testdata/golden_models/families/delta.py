"""Gated delta nets beside gated attention: Qwen3-Next, Qwen3.5.

Mistakes that these goldens catch, beside those of experts: a state that does not decay, or is
begun anew at every token; what a state knows of a key not taken from the value; beta, A_log or
dt_bias not read; q and k not normalized, or q not scaled; heads of k that serve v heads by turns
and not in runs; the gated norm with its gate before it, or with 1 + w; norms of q and k or of the
stream without the 1; q and gate of attention by turns taken for halves, and the gate left out; a
rotary embedding of another part of the head; the oldest tap lost, taps in another order; fused
rows in another order.
"""

from contextlib import contextmanager

import torch
from torch import nn
from transformers.models.qwen3_5 import modeling_qwen3_5
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe
from transformers.models.qwen3_next import modeling_qwen3_next

from ..family import FULL, Family, Layout, dims, rope, small
from ..layouts import of_tower, stacked, wrapped
from ..mistakes import added, named, rows_swapped, swapped, zeroed
from ..routing import swapped_gate_and_up, ungated
from .qwen_vision import QWEN3_VISION_CONFIG, VISION_TOKENS, qwen3_tower
from .recurrent import oldest_tap_lost, taps_reversed

LINEAR = "linear_attention"
MODULES = (modeling_qwen3_next, modeling_qwen3_5, modeling_qwen3_5_moe)
RULE = "torch_chunk_gated_delta_rule"


def nets(model: nn.Module) -> list[nn.Module]:
    found = [module for module in model.modules() if type(module).__name__.endswith("DeltaNet")]
    assert found, "no delta nets"
    return found


@contextmanager
def other_rule(rule):
    """The modules compute `rule(the real one, arguments)` meanwhile."""
    before = [getattr(module, RULE) for module in MODULES]
    for module, real in zip(MODULES, before):
        setattr(module, RULE, lambda *args, real=real, **kwargs: rule(real, *args, **kwargs))
    try:
        yield
    finally:
        for module, real in zip(MODULES, before):
            setattr(module, RULE, real)


def ruled(label: str, rule):
    """Delta nets by another rule."""

    def change(model: nn.Module) -> None:
        for net in nets(model):

            def forward(*args, inner=net.forward, **kwargs):
                with other_rule(rule):
                    return inner(*args, **kwargs)

            net.forward = forward

    return named(label, change)


def without_decay(real, *args, g, **kwargs):
    return real(*args, g=torch.zeros_like(g), **kwargs)


def without_beta(real, *args, beta, **kwargs):
    return real(*args, beta=torch.ones_like(beta), **kwargs)


def without_norms(real, *args, use_qk_l2norm_in_kernel, **kwargs):
    return real(*args, use_qk_l2norm_in_kernel=False, **kwargs)


def without_scale(real, query, *args, **kwargs):
    out, state = real(query, *args, **kwargs)
    return out * query.shape[-1] ** 0.5, state


def by_turns(real, query, key, value, **kwargs):
    times = value.shape[2] // key.shape[2]
    query, key = (x.repeat(1, 1, times, 1) for x in (query, key))
    return real(query, key, value, **kwargs)


def begun_anew(real, query, key, value, g, beta, **kwargs):
    """Every token alone."""
    parts = [x.split(1, dim=1) for x in (query, key, value, g, beta)]
    outs = [real(q, k, v, g=g, beta=b, **kwargs)[0] for q, k, v, g, b in zip(*parts, strict=True)]
    return torch.cat(outs, dim=1), None


def without_delta(real, query, key, value, g, beta, **kwargs):
    """Plain linear attention: what the state knows of the key already stays in the value."""
    times = value.shape[2] // key.shape[2]
    query, key = (x.repeat_interleave(times, dim=2) for x in (query, key))
    query, key = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (query, key))
    state = torch.zeros(*key.shape[:1], *key.shape[2:], value.shape[-1])
    outs = []
    for t in range(key.shape[1]):
        new = (value * beta[..., None])[:, t, :, None, :] * key[:, t, :, :, None]
        state = state * g[:, t].exp()[..., None, None] + new
        outs.append((state * query[:, t, :, :, None]).sum(-2) * key.shape[-1] ** -0.5)
    return torch.stack(outs, dim=1), None


def gate_before_norm(model: nn.Module) -> None:
    for net in nets(model):
        norm = net.norm

        def forward(hidden, gate, norm=norm):
            hidden = hidden * nn.functional.silu(gate)
            mean = hidden.pow(2).mean(-1, keepdim=True)
            return norm.weight * hidden * torch.rsqrt(mean + norm.variance_epsilon)

        norm.forward = forward


def attentions(model: nn.Module) -> list[nn.Module]:
    return [module for name, module in model.named_modules() if name.endswith("self_attn")]


def ungated_attention(model: nn.Module) -> None:
    for attention in attentions(model):
        weight = attention.q_proj.weight.unflatten(0, (-1, 2, attention.head_dim))
        weight[:, 1] = 0.0


def gates_as_halves(model: nn.Module) -> None:
    """All of q, and then all gates."""
    for attention in attentions(model):
        weight = attention.q_proj.weight
        halves = weight.view(2, -1, attention.head_dim, weight.shape[-1])
        weight.copy_(halves.transpose(0, 1).reshape(weight.shape))


MISTAKES = [
    ruled("no decay", without_decay), ruled("no beta", without_beta),
    ruled("q and k are not normalized", without_norms), ruled("q is not scaled", without_scale),
    ruled("heads of k serve by turns", by_turns), ruled("every token begins anew", begun_anew),
    ruled("no delta", without_delta), gate_before_norm, ungated_attention, gates_as_halves,
    added("linear_attn.norm", 1.0), added("q_norm", -1.0), added("k_norm", -1.0),
    added("input_layernorm", -1.0), zeroed("A_log"), zeroed("dt_bias"), oldest_tap_lost,
    taps_reversed,
]
MEANS = {"linear_attn.norm": 1.0, "A_log": -1.5}


def hybrid(*sizes, **more) -> dict:
    """Two key heads of 8, four value heads of 12; a quarter of a head of 16 turns."""
    values = dict(
        head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
        linear_value_head_dim=12, linear_conv_kernel_dim=4, rms_norm_eps=1e-4,
        rope_parameters=rope(10000.0, partial_rotary_factor=0.25), tie_word_embeddings=False,
    )
    return dims(*sizes, **{**values, **more})


def mtp(hidden: int) -> dict[str, tuple[int, ...]]:
    """Tensors that predict the token after the next one, as published files have them."""
    return {"mtp.fc.weight": (hidden, 2 * hidden), "mtp.norm.weight": (hidden,)}


def conditional(architecture: str, model_type: str):
    """The text part's config inside of a multimodal one, as in the published files."""

    def config(config: dict) -> dict:
        text = {
            k: v for k, v in config.items() if k not in ("architectures", "transformers_version")
        }
        text |= dict(
            model_type=f"{model_type}_text", attn_output_gate=True, full_attention_interval=2,
            mamba_ssm_dtype="float32", mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False,
            output_gate_type="swish",
        )
        text["rope_parameters"] |= dict(mrope_interleaved=True, mrope_section=[1, 1, 0])
        tied = text.pop("tie_word_embeddings")
        return dict(
            architectures=[architecture], model_type=model_type, **VISION_TOKENS,
            language_model_only=False, text_config=text, tie_word_embeddings=tied,
            transformers_version=config["transformers_version"],
            vision_config=dict(
                QWEN3_VISION_CONFIG, model_type=model_type, out_hidden_size=config["hidden_size"],
                num_position_embeddings=16,
            ),
        )

    return config


def with_images(architecture: str, model_type: str, hidden: int):
    tower = {k: v for k, v in qwen3_tower(hidden, 4).items() if "deepstack" not in k}
    return wrapped(
        "model.language_model.", "lm_head.", tower | mtp(hidden),
        conditional(architecture, model_type), of_tower,
    )


def with_stacks(layout: Layout) -> Layout:
    """The same with experts as published files of Qwen3.5 have them: in two tensors a layer."""
    return Layout(layout.config, lambda tensors: layout.publish(stacked(tensors)), layout.restore)


OTHER_ROPES = [
    dict(rope_parameters=rope(10000.0, partial_rotary_factor=0.5)),
    dict(rope_parameters=rope(1000000.0, partial_rotary_factor=0.25)),
]

FAMILIES: dict[str, Family] = {
    "qwen3_next": small(
        "Qwen3NextConfig",
        hybrid(
            32, 40, 4, 4, 2, layer_types=[LINEAR, LINEAR, FULL, LINEAR], num_experts=5,
            num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=24,
            norm_topk_prob=True, mlp_only_layers=[1],
        ),
        [
            *MISTAKES, *OTHER_ROPES, swapped_gate_and_up, ungated("shared_expert_gate"),
            rows_swapped("in_proj_ba.weight", [2, 2]), rows_swapped("in_proj_qkvz.weight", [8, 8]),
            dict(num_experts_per_tok=3), dict(norm_topk_prob=False),
        ],
        norm_mean=0.0, means=MEANS, old_config=True, old_keys=dict(full_attention_interval=3),
    ),
    "qwen3_5": small(
        "Qwen3_5TextConfig",
        hybrid(
            48, 64, 4, 3, 1, linear_num_value_heads=6, linear_key_head_dim=20,
            linear_conv_kernel_dim=3, layer_types=[LINEAR, LINEAR, LINEAR, FULL],
            attention_bias=True,
        ),
        [
            *MISTAKES, *OTHER_ROPES, zeroed("q_proj.bias"), zeroed("o_proj.bias"),
            swapped("in_proj_a", "in_proj_b"),
        ],
        norm_mean=0.0, means=MEANS,
    ),
    "qwen3_5_multimodal": small(
        "Qwen3_5TextConfig",
        hybrid(32, 48, 4, 4, 2, layer_types=[LINEAR, FULL, LINEAR, FULL]),
        [ruled("no decay", without_decay), *OTHER_ROPES],
        norm_mean=0.0, means=MEANS,
        layout=with_images("Qwen3_5ForConditionalGeneration", "qwen3_5", 32),
        oracle="transformers Qwen3_5ForCausalLM, inside of a multimodal checkpoint",
        shared="images",
    ),
    "qwen3_5_moe": small(
        "Qwen3_5MoeTextConfig",
        hybrid(
            32, 16, 3, 4, 1, layer_types=[FULL, LINEAR, LINEAR], num_experts=5,
            num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=24,
        ),
        [
            ruled("no delta", without_delta), swapped_gate_and_up, ungated("shared_expert_gate"),
            dict(num_experts_per_tok=3),
        ],
        norm_mean=0.0, means=MEANS,
    ),
    "qwen3_5_moe_multimodal": small(
        "Qwen3_5MoeTextConfig",
        hybrid(
            32, 16, 2, 4, 2, layer_types=[LINEAR, FULL], num_experts=5, num_experts_per_tok=2,
            moe_intermediate_size=16, shared_expert_intermediate_size=16,
        ),
        [ruled("no decay", without_decay), swapped_gate_and_up, *OTHER_ROPES],
        norm_mean=0.0, means=MEANS,
        layout=with_stacks(with_images("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", 32)),
        oracle="transformers Qwen3_5MoeForCausalLM, inside of a multimodal checkpoint",
        shared="images",
    ),
}
