"""LongCat Flash: two attentions and two MLPs in a layer, and experts beside the first MLP, some of
which give what they read."""

import torch
from torch import nn

from ..family import Family, Layout, dims, rope, small
from ..layouts import with_experts_one_by_one
from ..mistakes import swapped, zeroed
from ..routing import biased_weights, swapped_gate_and_up, unbiased
from .latent import latent_eps, scaled_by, turning_first

NUM_EXPERTS, NUM_IDENTITIES = 5, 3


def publish(tensors: dict) -> dict:
    """Without the rows that the class has of experts that give what they read."""

    def is_there(name: str) -> bool:
        expert, _, _ = name.removesuffix(".weight").rpartition(".")
        return ".mlp.experts." not in expert or f"{expert}.down_proj.weight" in tensors

    return {name: tensor for name, tensor in tensors.items() if is_there(name)}


def restore(tensors: dict) -> dict:
    out = dict(tensors)
    for name, tensor in tensors.items():
        if ".mlp.experts.0." in name and "down_proj" not in name:
            for index in range(NUM_EXPERTS, NUM_EXPERTS + NUM_IDENTITIES):
                out[name.replace(".experts.0.", f".experts.{index}.")] = torch.zeros_like(tensor)
    return out


def published(config: dict) -> dict:
    keys = dict(
        attention_method="MLA", mla_scale_q_lora=True, mla_scale_kv_lora=True,
        zero_expert_type="identity", router_bias=False,
    )
    return config | keys


def layer_forward(added_first: bool, reads_second: bool):
    """The experts' sum added behind the first MLP, or reading what the second MLP reads."""

    def change(model: nn.Module) -> None:
        for layer in model.model.layers:

            def forward(hidden, layer=layer, **kwargs):
                late = None
                for half in range(2):
                    normed = layer.input_layernorm[half](hidden)
                    hidden = hidden + layer.self_attn[half](hidden_states=normed, **kwargs)[0]
                    normed = layer.post_attention_layernorm[half](hidden)
                    if half == int(reads_second):
                        late = layer.mlp(normed)
                    hidden = hidden + layer.mlps[half](normed)
                    if half == 1 or added_first:
                        hidden = hidden + (late if late is not None else 0.0)
                        late = None
                return hidden

            layer.forward = forward

    change.__name__ = f"{added_first = }, {reads_second = }"
    return change


def without_identities(model: nn.Module) -> None:
    """Experts that give what they read give nothing."""
    for layer in model.model.layers:
        layer.mlp.experts.identity_expert.forward = torch.zeros_like


def unscaled(part: str):
    """Latents that are not multiplied."""

    def change(model: nn.Module) -> None:
        for layer in model.model.layers:
            for attention in layer.self_attn:
                assert hasattr(attention, part)
                setattr(attention, part, 1.0)

    change.__name__ = f"{part} = 1"
    return change


FAMILIES: dict[str, Family] = {
    "longcat_flash": small(
        "LongcatFlashConfig",
        dict(
            hidden_size=32, num_layers=2, num_attention_heads=3, max_position_embeddings=256,
            ffn_hidden_size=24, expert_ffn_hidden_size=12, q_lora_rank=12, kv_lora_rank=20,
            qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=10, head_dim=8, moe_topk=3,
            n_routed_experts=NUM_EXPERTS, zero_expert_num=NUM_IDENTITIES, rms_norm_eps=1e-2,
            routed_scaling_factor=2.5, rope_parameters=rope(20000.0),
        ),
        [
            layer_forward(True, False), layer_forward(False, True), without_identities,
            unscaled("mla_scale_q_lora"), unscaled("mla_scale_kv_lora"), unbiased, biased_weights,
            dict(routed_scaling_factor=6.0), dict(moe_topk=2), swapped_gate_and_up,
            swapped("mlps.0", "mlps.1"), zeroed("mlps.1.down_proj"), latent_eps(1e-2),
            scaled_by((20 / 32) ** 0.5), turning_first,
        ],
        layout=with_experts_one_by_one(Layout(published, publish, restore)),
    ),
}
