"""The cases of sweep_texts.py: name, class of transformers (of which config class, where that is
not its own), its config, and what is changed of it.
`family` has the first case of a class, and `case` one with other keys."""

CASES: list[tuple[str, str, dict, dict]] = []
BASES: dict[str, tuple[str, dict]] = {}


def family(base: str, cls: str, **keys) -> None:
    sizes = dict(
        vocab_size=288, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )
    is_wrapped = "text_config" in keys
    BASES[base] = (cls, {**({} if is_wrapped else sizes), **keys})
    case(base, "first")


def case(base: str, what: str, **changes) -> None:
    """Changed keys; a part of another in a key's name is behind two underscores."""
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    CASES.append((f"{base}-{what}", *BASES[base], changes))


def rope(theta: float, kind: str = "default", **more) -> dict:
    return dict(rope_type=kind, rope_theta=theta, **more)


YARN = rope(1e4, "yarn", factor=4.0, original_max_position_embeddings=64)
LLAMA3 = rope(
    1e4, "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
FULL, SLIDING = "full_attention", "sliding_attention"

family(
    "afmoe", "AfmoeForCausalLM", head_dim=16, num_experts=6, num_experts_per_tok=2,
    moe_intermediate_size=16, num_shared_experts=1, num_dense_layers=1, route_scale=2.5,
    sliding_window=8, mup_enabled=True, num_hidden_layers=5,
)
case("afmoe", "plain", mup_enabled=False, route_scale=1.0, num_shared_experts=2)
case("afmoe", "all-dense", num_dense_layers=5)
case("afmoe", "all-sparse", num_dense_layers=0, num_experts_per_tok=6)
case("afmoe", "pattern", global_attn_every_n_layers=2, sliding_window=3)
case("afmoe", "types", layer_types=[FULL, SLIDING, FULL, FULL, SLIDING])
case("afmoe", "tied", tie_word_embeddings=True)
case("afmoe", "bias", attention_bias=True)
case("afmoe", "act", hidden_act="gelu_pytorch_tanh", rms_norm_eps=1e-2)
case("afmoe", "kv", num_key_value_heads=None, head_dim=24)
case("afmoe", "yarn", rope_parameters=YARN)
case("afmoe", "llama3", rope_parameters=LLAMA3, num_key_value_heads=1)

LATENT = dict(
    num_key_value_heads=4, q_lora_rank=20, kv_lora_rank=24, qk_rope_head_dim=8,
    qk_nope_head_dim=12, v_head_dim=10, n_routed_experts=8, num_experts_per_tok=2,
    moe_intermediate_size=16, n_shared_experts=1, n_group=4, topk_group=2,
    routed_scaling_factor=2.5,
)
GROWTH = dict(YARN, llama_4_scaling_beta=0.3, original_max_position_embeddings=16)
family(
    "mistral4", "Mistral4ForCausalLM", **LATENT, first_k_dense_replace=0, rope_parameters=GROWTH
)
case("mistral4", "dense", first_k_dense_replace=2, n_shared_experts=2)
case("mistral4", "one-group", n_group=1, topk_group=1, norm_topk_prob=False)
case("mistral4", "q", q_lora_rank=None, rms_norm_eps=1e-2)
case("mistral4", "bias", attention_bias=True)
case("mistral4", "halves", rope_interleave=False)
case("mistral4", "mscale", rope_parameters=dict(GROWTH, mscale=1.0, mscale_all_dim=1.0))
case("mistral4", "mscales", rope_parameters=dict(GROWTH, mscale=0.7, mscale_all_dim=1.2))
case("mistral4", "part", rope_parameters=dict(GROWTH, partial_rotary_factor=0.4))
case("mistral4", "wide", qk_nope_head_dim=24, v_head_dim=32, qk_rope_head_dim=16)
case("mistral4", "tied", tie_word_embeddings=True)

family(
    "gemma4_unified", "Gemma4UnifiedForCausalLM", head_dim=16, global_head_dim=24, num_hidden_layers=4,
    sliding_window=8, layer_types=[SLIDING, FULL, SLIDING, FULL],
)
case("gemma4_unified", "shared", num_kv_shared_layers=2)
case("gemma4_unified", "double", num_kv_shared_layers=2, use_double_wide_mlp=True)
case("gemma4_unified", "k-is-v", attention_k_eq_v=True, num_global_key_value_heads=1)
case("gemma4_unified", "cap", final_logit_softcapping=4.0, tie_word_embeddings=False)
case("gemma4_unified", "all", use_bidirectional_attention="all")
case("gemma4_unified", "none", use_bidirectional_attention=None)
case("gemma4_unified", "bias", attention_bias=True)

family("hyperclovax", "HyperCLOVAXForCausalLM", embedding_multiplier=2.0, logits_scaling=0.5)
case("hyperclovax", "mup", attention_multiplier=0.1, residual_multiplier=0.4, logits_scaling=2.0)
case("hyperclovax", "plain", use_post_norm=False, attention_bias=True, mlp_bias=True)
case("hyperclovax", "tied", tie_word_embeddings=True, head_dim=16, num_key_value_heads=None)
case("hyperclovax", "rope", rope_parameters=LLAMA3, rms_norm_eps=1e-2, hidden_act="gelu")

family("nanochat", "NanoChatForCausalLM")
case("nanochat", "kv", num_key_value_heads=None, attention_bias=True)
case("nanochat", "uncapped", final_logit_softcapping=None, rms_norm_eps=1e-2)
case("nanochat", "act", hidden_act="silu", num_key_value_heads=1, final_logit_softcapping=3.0)
case("nanochat", "rope", rope_parameters=LLAMA3, head_dim=16)
case("nanochat", "tied", tie_word_embeddings=True, rope_parameters=YARN)

family(
    "axk1", "AXK1ForCausalLM", **LATENT, mlp_layer_types=["dense", "sparse", "sparse"],
    rope_parameters=YARN,
)
case("axk1", "types", mlp_layer_types=["sparse", "dense", "sparse"])
case("axk1", "all", mlp_layer_types=["sparse"] * 3, n_shared_experts=2, n_group=1, topk_group=1)
case("axk1", "bias", attention_bias=True, norm_topk_prob=False, rms_norm_eps=1e-2)
case("axk1", "mscale", rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0))
case("axk1", "halves", rope_interleave=False, tie_word_embeddings=True)

family(
    "sarvam_moe", "Glm4MoeForCausalLM of SarvamMoEConfig", head_dim=16, n_routed_experts=8,
    num_experts_per_tok=2, moe_intermediate_size=16,
)
case("sarvam_moe", "groups", n_group=4, topk_group=2, n_shared_experts=2, routed_scaling_factor=1.0)
case("sarvam_moe", "bias", attention_bias=True, use_qk_norm=False, first_k_dense_replace=2)
case("sarvam_moe", "sums", norm_topk_prob=False, first_k_dense_replace=0, tie_word_embeddings=True)
case("sarvam_moe", "part", rope_parameters=rope(1e4, partial_rotary_factor=0.5))
case("sarvam_moe", "yarn", rope_parameters=YARN, rms_norm_eps=1e-2, num_key_value_heads=1)

family("sarvam_mla", "DeepseekV3ForCausalLM of SarvamMLAConfig", **LATENT)
case("sarvam_mla", "q", q_lora_rank=None, n_group=1, topk_group=1)
case("sarvam_mla", "dense", first_k_dense_replace=0, rope_interleave=False)
case("sarvam_mla", "yarn", rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0))

ROPES = {FULL: rope(5e5, partial_rotary_factor=0.5), SLIDING: rope(1e4)}
family(
    "laguna", "LagunaForCausalLM", head_dim=16, num_experts=6, num_experts_per_tok=2,
    moe_intermediate_size=16, shared_expert_intermediate_size=24, sliding_window=8,
    num_hidden_layers=4, layer_types=[FULL, SLIDING, SLIDING, FULL],
    num_attention_heads_per_layer=[4, 8, 2, 6], rope_parameters=ROPES,
    moe_routed_scaling_factor=2.5,
)
case("laguna", "values", gating="per-element")
case("laguna", "heads", gating="per-head", num_attention_heads_per_layer=None)
case("laguna", "types", mlp_layer_types=["sparse", "dense", "sparse", "dense"])
case("laguna", "full", layer_types=None, tie_word_embeddings=True, rms_norm_eps=1e-2)
case("laguna", "default-ropes", rope_parameters=None)
case("laguna", "yarn", rope_parameters={**ROPES, FULL: dict(YARN, partial_rotary_factor=0.5)})
case("laguna", "whole", rope_parameters={FULL: rope(1e4), SLIDING: rope(1e5)})
case("laguna", "bias", attention_bias=True)
case("laguna", "scale", moe_routed_scaling_factor=1.0, num_key_value_heads=1, num_experts_per_tok=6)

VISION = dict(
    hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, patch_size=4,
    pos_emb_height=4, pos_emb_width=4,
)
TEXT = dict(
    vocab_size=288, hidden_size=32, intermediate_size=48, num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=256,
    bos_token_id=None, eos_token_id=None, pad_token_id=None,
)
family(
    "muse_glimmer", "MuseGlimmerForConditionalGeneration", vision_config=VISION,
    text_config=TEXT | dict(sliding_window=8), image_token_id=287, out_hidden_size=64,
    projector_hidden_size=16,
)
case("muse_glimmer", "types", text_config__layer_types=[SLIDING, FULL, SLIDING, SLIDING])
case("muse_glimmer", "thetas", text_config__layer_rope_theta=[0, 1e4, 0, 1e4])
case("muse_glimmer", "eps", text_config__post_norm_eps=1e-2, text_config__rms_norm_eps=1e-3)
case("muse_glimmer", "factors", text_config__qk_scale_factor=1.5, text_config__output_multiplier=0.5)
case("muse_glimmer", "cap", text_config__final_logit_softcapping=3.0)
case("muse_glimmer", "bias", text_config__attention_bias=True)
case("muse_glimmer", "rope", text_config__rope_parameters=LLAMA3, text_config__hidden_activation="gelu")
case("muse_glimmer", "tied", tie_word_embeddings=True, text_config__tie_word_embeddings=True)

family(
    "cohere2_moe", "Cohere2MoeForCausalLM", head_dim=16, sliding_window=8, num_experts=6,
    num_experts_per_tok=2, num_hidden_layers=5, logit_scale=0.3,
)
case("cohere2_moe", "shared", num_shared_experts=2)
case("cohere2_moe", "sum", num_shared_experts=1, shared_expert_combination_strategy="sum")
case("cohere2_moe", "sigmoid", expert_selection_fn="sigmoid", num_experts_per_tok=3)
case("cohere2_moe", "sums", expert_selection_fn="sigmoid", norm_topk_prob=False, num_shared_experts=1)
case("cohere2_moe", "dense", first_k_dense_replace=2, prefix_dense_intermediate_size=40)
case("cohere2_moe", "prefix", first_k_dense_replace=3, prefix_dense_sliding_window_pattern=2)
case("cohere2_moe", "pattern", sliding_window_pattern=2, attention_bias=True, rms_norm_eps=1e-3)
case("cohere2_moe", "types", mlp_layer_types=["sparse", "dense", "sparse", "dense", "sparse"])
case("cohere2_moe", "untied", tie_word_embeddings=False, layer_norm_eps=1e-2, num_key_value_heads=1)
case("cohere2_moe", "rope", rope_parameters=LLAMA3, hidden_act="gelu")

family("exaone", "LlamaForCausalLM of ExaoneConfig")
case("exaone", "tied", tie_word_embeddings=True, rms_norm_eps=1e-3, rope_parameters=LLAMA3)
