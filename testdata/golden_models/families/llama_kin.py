"""Llama with something more or less: multipliers, layers without rope, biases, activations."""

from ..family import Family, dims, rope, small
from ..mistakes import activation, added, norm_before_rotation, other_pairs, without, zeroed

YARN = dict(factor=8.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0)
HUNYUAN_ROPE = rope(
    10000.0, "dynamic", alpha=50.0, beta_fast=32, beta_slow=1, factor=1.0, mscale=1.0,
    mscale_all_dim=1.0,
)

FAMILIES: dict[str, Family] = {
    "granite": small(
        "GraniteConfig",
        dims(
            48, 64, 3, 3, 1, tie_word_embeddings=True, rms_norm_eps=1e-5,
            rope_parameters=rope(10000.0), embedding_multiplier=3.0, attention_multiplier=0.1,
            residual_multiplier=0.6, logits_scaling=2.5,
        ),
        [
            dict(embedding_multiplier=1.0), dict(attention_multiplier=0.25),
            dict(residual_multiplier=1.0), dict(logits_scaling=1.0),
        ],
        head_std=0.04, final_norm_mean=26.0, old_config=True,
    ),
    "smollm3": small(
        "SmolLM3Config",
        dims(
            48, 64, 3, 3, 1, tie_word_embeddings=True, rms_norm_eps=1e-6,
            rope_parameters=rope(20000.0), no_rope_layers=[1, 0, 1], no_rope_layer_interval=2,
        ),
        [dict(no_rope_layers=[1, 1, 1]), dict(no_rope_layers=[0, 1, 0])],
        old_config=True,
    ),
    "seed_oss": small(
        "SeedOssConfig",
        dims(
            32, 64, 3, 4, 2, head_dim=16, attention_bias=True, attention_out_bias=False,
            rms_norm_eps=1e-6, rope_parameters=rope(10000.0),
        ),
        [zeroed("q_proj.bias"), zeroed("k_proj.bias"), zeroed("v_proj.bias")],
    ),
    "arcee": small(
        "ArceeConfig",
        dims(
            32, 64, 3, 4, 2, head_dim=16, rms_norm_eps=1e-5,
            rope_parameters=rope(10000.0, "yarn", mscale=1.0, **YARN),
        ),
        [
            activation("relu"), activation("silu"), dict(rope_parameters=rope(10000.0)),
            dict(rope_parameters=rope(10000.0, "yarn", attention_factor=1.0, **YARN)),
            dict(rope_parameters=rope(10000.0, "yarn", **{**YARN, "factor": 4.0})),
        ],
        old_config=True,
    ),
    "helium": small(
        "HeliumConfig",
        dims(48, 64, 3, 3, 1, head_dim=16, rms_norm_eps=1e-2, rope_parameters=rope(1000.0)),
        [other_pairs(16), dict(rms_norm_eps=1e-8), dict(rope_parameters=rope(10000.0))],
        old_config=True,
    ),
    "ernie4_5": small(
        "Ernie4_5Config",
        dims(
            32, 64, 3, 4, 2, head_dim=16, use_bias=True, tie_word_embeddings=True,
            rms_norm_eps=1e-5, rope_parameters=rope(5000.0),
        ),
        [other_pairs(16), zeroed("o_proj.bias"), zeroed("down_proj.bias"), zeroed("q_proj.bias")],
        old_config=True,
    ),
    "hunyuan_dense": small(
        "HunYuanDenseV1Config",
        dims(
            32, 64, 3, 4, 2, head_dim=16, tie_word_embeddings=True, rms_norm_eps=1e-5,
            rope_parameters=HUNYUAN_ROPE,
        ),
        [
            dict(rope_parameters=rope(10000.0)),
            dict(rope_parameters=dict(HUNYUAN_ROPE, alpha=10.0)),
            norm_before_rotation,
            without("query_layernorm"),
        ],
        model_class="HunYuanDenseV1ForCausalLM", old_config=True,
        old_keys=dict(
            rope_scaling={
                k if k != "rope_type" else "type": v
                for k, v in HUNYUAN_ROPE.items() if k != "rope_theta"
            }
        ),
    ),
    "gemma": small(
        "GemmaConfig",
        dims(
            32, 64, 3, 4, 1, head_dim=16, tie_word_embeddings=True, rms_norm_eps=1e-6,
            hidden_act="gelu_pytorch_tanh", rope_parameters=rope(10000.0),
        ),
        [activation("gelu"), activation("silu"), added("norm", 1.0), added("layernorm", -1.0)],
        norm_mean=0.0, final_norm_mean=2.5, shared="sentencepiece",
    ),
}
