"""Latent attention: K and V of all heads are made of one latent per token."""

from torch import nn

from ..family import Family, dims, rope, small
from ..mistakes import named, rows_swapped, without
from ..ropes import fixed_at

SHORT, LONG = [1.0, 1.1, 1.4, 2.0], [1.0, 1.7, 3.1, 6.0]
LONGROPE = rope(
    10000.0, "longrope", short_factor=SHORT, long_factor=LONG, original_max_position_embeddings=256
)
YARN = rope(
    10000.0, "yarn", factor=8.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0,
    mscale=1.0, mscale_all_dim=0.7,
)


def latent_eps(eps: float):
    """Norms of latents with the epsilon of the other norms."""

    def change(model: nn.Module) -> None:
        for name, module in model.named_modules():
            if name.endswith(("q_a_layernorm", "kv_a_layernorm")):
                module.variance_epsilon = eps

    return named(f"latents' eps {eps}", change)


def scaled_by(factor: float):
    """Attention scores with another factor."""

    def change(model: nn.Module) -> None:
        for module in model.modules():
            if hasattr(module, "kv_b_proj"):
                module.scaling *= factor

    return named(f"scores * {factor}", change)


def turning_first(model: nn.Module) -> None:
    """The part that turns taken from the front of q's heads and of what leads to the latent."""
    for module in model.modules():
        if not hasattr(module, "kv_b_proj"):
            continue
        still, turning = module.qk_nope_head_dim, module.qk_rope_head_dim
        q = (module.q_b_proj if module.q_lora_rank else module.q_proj).weight
        heads = q.view(-1, still + turning, q.shape[1])
        q.copy_(heads.roll(turning, 1).reshape(q.shape))
        kv = module.kv_a_proj_with_mqa.weight
        kv.copy_(kv.roll(turning, 0))


def values_first(nope: int, v: int):
    return rows_swapped("kv_b_proj.weight", [nope, v])


YOUTU = dict(
    qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=10, kv_lora_rank=24, rms_norm_eps=1e-2,
)

FAMILIES: dict[str, Family] = {
    "minicpm3": small(
        "MiniCPM3Config",
        dims(
            48, 64, 3, 3, 3, tie_word_embeddings=True, rms_norm_eps=1e-2, q_lora_rank=20,
            kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=16,
            scale_emb=3.0, scale_depth=1.4, dim_model_base=24, rope_parameters=LONGROPE,
        ),
        [
            dict(scale_emb=1.0), dict(scale_depth=1.0), dict(dim_model_base=48),
            dict(_fix=fixed_at(257)), dict(rope_parameters=rope(10000.0)),
            without("q_a_layernorm"), without("kv_a_layernorm"), latent_eps(1e-2),
            scaled_by((20 / 32) ** 0.5), turning_first, values_first(12, 16),
        ],
        head_std=0.04, final_norm_mean=21.0, old_config=True,
        old_drop=("head_dim", "qk_head_dim", "v_head_dim", "mlp_bias", "tie_word_embeddings"),
        old_keys=dict(rope_scaling={k: v for k, v in LONGROPE.items() if k != "rope_theta"}),
    ),
    "youtu": small(
        "YoutuConfig",
        dims(
            48, 64, 3, 3, 3, tie_word_embeddings=True, q_lora_rank=20, rope_parameters=YARN, **YOUTU
        ),
        [
            dict(rope_interleave=False), dict(rope_parameters=rope(10000.0)),
            dict(rope_parameters=dict(YARN, mscale_all_dim=0.0, mscale=0.0)),
            without("q_a_layernorm"), without("kv_a_layernorm"), latent_eps(1e-2),
            scaled_by((20 / 32) ** 0.5), turning_first, values_first(12, 10),
        ],
    ),
    "youtu_plain_q": small(
        "YoutuConfig",
        dims(
            48, 64, 3, 3, 3, tie_word_embeddings=False, q_lora_rank=None, rope_interleave=False,
            rope_parameters=rope(1000.0), **YOUTU,
        ),
        [
            dict(rope_interleave=True), dict(rope_parameters=rope(10000.0)),
            without("kv_a_layernorm"), latent_eps(1e-2), turning_first, values_first(12, 10),
        ],
    ),
}
