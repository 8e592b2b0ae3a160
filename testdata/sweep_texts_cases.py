"""The cases of sweep_texts.py: name, class of transformers (of which config class, where that is
not its own), its config, and what is changed of it.
`family` has the first case of a class, and `case` one with other keys."""

CASES: list[tuple[str, str, dict, dict]] = []
BASES: dict[str, tuple[str, dict]] = {}

def family(base: str, cls: str, without: tuple[str, ...] = (), **keys) -> None:
    sizes = dict(
        vocab_size=288, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )
    is_wrapped = "text_config" in keys
    keys = {**({} if is_wrapped else sizes), **keys}
    BASES[base] = (cls, {key: value for key, value in keys.items() if key not in without})
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
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"

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
family(
    "minimax", "MiniMaxM2ForCausalLM", intermediate_size=24, head_dim=16, num_local_experts=6,
    num_experts_per_tok=2,
)
case("minimax", "rot8", rotary_dim=8)
case("minimax", "rot4", rotary_dim=4)
case("minimax", "tied", tie_word_embeddings=True)
case("minimax", "eps", rms_norm_eps=0.01)
case("minimax", "k1", num_experts_per_tok=1)
case("minimax", "all", num_experts_per_tok=6)
case("minimax", "mha", num_key_value_heads=4)
case("minimax", "yarn", rope_parameters=YARN)
case("minimax", "act", hidden_act="gelu")
case("minimax", "both", rope_parameters=rope(500.0, partial_rotary_factor=0.25), rotary_dim=8)
case("minimax", "odd", intermediate_size=13, num_local_experts=5)
case("minimax", "norope", rope_parameters=None)

family(
    "exaonemoe", "ExaoneMoeForCausalLM", num_hidden_layers=4, num_experts=8, num_experts_per_tok=2,
    moe_intermediate_size=16, sliding_window=8,
)
case("exaonemoe", "dense2", first_k_dense_replace=2)
case("exaonemoe", "dense0", first_k_dense_replace=0)
case("exaonemoe", "types", mlp_layer_types=["sparse", "dense", "sparse", "dense"])
case("exaonemoe", "shared2", num_shared_experts=2)
case("exaonemoe", "groups", n_group=4, topk_group=2)
case("exaonemoe", "noshare", norm_topk_prob=False)
case("exaonemoe", "scale1", routed_scaling_factor=1.0)
case("exaonemoe", "layers", layer_types=[FULL, SLIDING, FULL, SLIDING])
case("exaonemoe", "allslide", layer_types=[SLIDING] * 4)
case("exaonemoe", "allfull", layer_types=[FULL] * 4)
case("exaonemoe", "pat3", sliding_window_pattern=3)
case("exaonemoe", "tied", tie_word_embeddings=True)
case("exaonemoe", "eps", rms_norm_eps=0.01)
case("exaonemoe", "hd", head_dim=16)
case("exaonemoe", "norope", rope_parameters=None)
case("exaonemoe", "ll3", rope_parameters=LLAMA3)

family(
    "solaropen", "SolarOpenForCausalLM", num_hidden_layers=2, head_dim=16, n_routed_experts=8,
    num_experts_per_tok=2, moe_intermediate_size=16,
)
case("solaropen", "bias", attention_bias=True)
case("solaropen", "shared2", n_shared_experts=2)
case("solaropen", "groups", n_group=4, topk_group=2)
case("solaropen", "scale", routed_scaling_factor=2.5)
case("solaropen", "noshare", norm_topk_prob=False)
case("solaropen", "norope", rope_parameters=None)
case("solaropen", "yarn", rope_parameters=YARN)
case("solaropen", "tied", tie_word_embeddings=True)
case("solaropen", "eps", rms_norm_eps=0.01)

family(
    "hyv3", "HYV3ForCausalLM", head_dim=16, num_experts=6, num_experts_per_tok=2,
    moe_intermediate_size=16,
)
case("hyv3", "bias", attention_bias=True)
case("hyv3", "mlpbias", mlp_bias=True)
case("hyv3", "types", mlp_layer_types=["sparse", "dense", "sparse"])
case("hyv3", "allsparse", mlp_layer_types=["sparse"] * 3)
case("hyv3", "alldense", mlp_layer_types=["dense"] * 3)
case("hyv3", "shared2", num_shared_experts=2)
case("hyv3", "scale", router_scaling_factor=1.0)
case("hyv3", "tied", tie_word_embeddings=True)
case("hyv3", "norope", rope_parameters=None)
case("hyv3", "fp32", enable_moe_fp32_combine=False)
case("hyv3", "eps", rms_norm_eps=0.01)

family(
    "flexolmo", "FlexOlmoForCausalLM", intermediate_size=16, num_experts=6, num_experts_per_tok=3,
)
case("flexolmo", "share", norm_topk_prob=True)
case("flexolmo", "bias", attention_bias=True)
case("flexolmo", "norope", rope_parameters=None)
case("flexolmo", "tied", tie_word_embeddings=True)
case("flexolmo", "mha", num_key_value_heads=None)
case("flexolmo", "k1", num_experts_per_tok=1)
case("flexolmo", "eps", rms_norm_eps=0.01)

family("vaultgemma", "VaultGemmaForCausalLM", head_dim=16, sliding_window=8)
case("vaultgemma", "caps", attn_logit_softcapping=3.0, final_logit_softcapping=5.0)
case("vaultgemma", "nocaps", attn_logit_softcapping=None, final_logit_softcapping=None)
case("vaultgemma", "scalar", query_pre_attn_scalar=10)
case("vaultgemma", "untied", tie_word_embeddings=False)
case("vaultgemma", "full", layer_types=[FULL] * 3)
case("vaultgemma", "bias", attention_bias=True)
case("vaultgemma", "act", hidden_activation="silu")
case("vaultgemma", "norope", rope_parameters=None)

family("jais2", "Jais2ForCausalLM", head_dim=16)
case("jais2", "nobias", attention_bias=False)
case("jais2", "nomlpbias", mlp_bias=False)
case("jais2", "act", hidden_act="gelu")
case("jais2", "tied", tie_word_embeddings=True)
case("jais2", "eps", layer_norm_eps=0.01)
case("jais2", "norope", rope_parameters=None)
case("jais2", "mha", num_key_value_heads=None)
case("jais2", "hd", head_dim=8)

family(
    "graniteswa", "GraniteSWAForCausalLM", num_hidden_layers=5, sliding_window=8,
    embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.6,
    logits_scaling=2.5,
)
case("graniteswa", "thetas", layer_rope_theta=[0, 100.0, 10000.0, 100.0, 0])
case("graniteswa", "allnope", layer_rope_theta=[0] * 5)
case("graniteswa", "ints", layer_rope_theta=[0, 100, 10000, 100, 0])
case("graniteswa", "full", layer_types=[FULL] * 5)
case("graniteswa", "types", layer_types=[SLIDING, FULL, SLIDING, FULL, SLIDING])
case("graniteswa", "win3", sliding_window=3)
case("graniteswa", "bias", attention_bias=True)
case("graniteswa", "ll3", rope_parameters=LLAMA3, layer_rope_theta=[0, 100.0, 10000.0, 100.0, 0])
case("graniteswa", "norope", rope_parameters=None)
case("graniteswa", "untied", tie_word_embeddings=False)
case("graniteswa", "tied", tie_word_embeddings=True)
case("graniteswa", "eps", rms_norm_eps=0.01)
case("graniteswa", "mlpbias", mlp_bias=True)

family(
    "granitemoeswa", "GraniteMoeSWAForCausalLM", num_hidden_layers=5, sliding_window=8,
    embedding_multiplier=3.0, attention_multiplier=0.3, residual_multiplier=0.6,
    logits_scaling=2.5, num_local_experts=5, num_experts_per_tok=2, shared_intermediate_size=20,
)
case("granitemoeswa", "thetas", layer_rope_theta=[0, 100.0, 10000.0, 100.0, 0])
case("granitemoeswa", "allnope", layer_rope_theta=[0] * 5)
case("granitemoeswa", "ints", layer_rope_theta=[0, 100, 10000, 100, 0])
case("granitemoeswa", "full", layer_types=[FULL] * 5)
case("granitemoeswa", "types", layer_types=[SLIDING, FULL, SLIDING, FULL, SLIDING])
case("granitemoeswa", "win3", sliding_window=3)
case("granitemoeswa", "bias", attention_bias=True)
case("granitemoeswa", "ll3", rope_parameters=LLAMA3, layer_rope_theta=[0, 100.0, 10000.0, 100.0, 0])
case("granitemoeswa", "norope", rope_parameters=None)
case("granitemoeswa", "untied", tie_word_embeddings=False)
case("granitemoeswa", "tied", tie_word_embeddings=True)
case("granitemoeswa", "eps", rms_norm_eps=0.01)
case("granitemoeswa", "noshared", shared_intermediate_size=0)

family(
    "bamba", "BambaForCausalLM", hidden_size=48, intermediate_size=40, num_hidden_layers=4,
    num_attention_heads=3, num_key_value_heads=1, mamba_n_heads=6, mamba_d_head=16,
    mamba_n_groups=2, mamba_d_state=12, mamba_chunk_size=8, attn_layer_indices=[1],
)
case("bamba", "none", attn_layer_indices=None)
case("bamba", "two", attn_layer_indices=[0, 3])
case("bamba", "auto", mamba_d_head="auto")
case("bamba", "projbias", mamba_proj_bias=True, mamba_conv_bias=False)
case("bamba", "bias", attention_bias=True, mlp_bias=True)
case("bamba", "tied", tie_word_embeddings=True)
case("bamba", "eps", rms_norm_eps=0.01)
case("bamba", "partial1", rope_parameters=rope(100.0, partial_rotary_factor=1.0))
case("bamba", "norope", rope_parameters=None)
case("bamba", "conv3", mamba_d_conv=3)
case("bamba", "z", z_loss_coefficient=0.1)
case("bamba", "act", hidden_act="gelu")

family(
    "nemotron3", "NemotronHForCausalLM", hidden_size=48, intermediate_size=64, head_dim=16,
    mamba_num_heads=6, mamba_head_dim=20, n_groups=3, ssm_state_size=12, chunk_size=8,
    layer_norm_epsilon=0.001, layers_block_type=[LINEAR, "moe", FULL, "moe", LINEAR],
    time_step_min=1e-30, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=24,
    moe_shared_expert_intermediate_size=40, routed_scaling_factor=2.5,
)
case("nemotron3", "latent", moe_latent_size=20)
case("nemotron3", "latent-wide", moe_latent_size=96)
case("nemotron3", "groups", num_experts_per_tok=2, n_group=4, topk_group=2)
case("nemotron3", "no-share", norm_topk_prob=False)
case("nemotron3", "bias", mlp_bias=True, moe_latent_size=16)
case("nemotron3", "all-kinds", layers_block_type=["moe", "mlp", FULL, LINEAR, "moe"])
case("nemotron3", "silu", mlp_hidden_act="silu")
case("nemotron3", "shared-2", n_shared_experts=2)
case(
    "nemotron3", "odd", moe_intermediate_size=13, moe_shared_expert_intermediate_size=11,
    moe_latent_size=19,
)
case("nemotron3", "mtp", num_nextn_predict_layers=1)
case("nemotron3", "all-experts", num_experts_per_tok=8)
case("nemotron3", "only", layers_block_type=[FULL, "moe"])
case("nemotron3", "usebias", use_bias=True, use_conv_bias=False)
case("nemotron3", "tied", tie_word_embeddings=True)

family(
    "mellum", "MellumForCausalLM", num_hidden_layers=4, head_dim=16, num_experts=6,
    num_experts_per_tok=2, moe_intermediate_size=16, sliding_window=8,
    layer_types=[SLIDING, FULL, SLIDING, FULL],
)
case("mellum", "ropes", rope_parameters={FULL: rope(5000.0), SLIDING: rope(100.0)})
case("mellum", "yarn", rope_parameters={FULL: YARN, SLIDING: rope(100.0)})
case("mellum", "allfull", layer_types=None)
case("mellum", "allslide", layer_types=[SLIDING] * 4)
case("mellum", "dense", mlp_layer_types=["dense", "sparse", "dense", "sparse"])
case("mellum", "noshare", norm_topk_prob=False)
case("mellum", "bias", attention_bias=True)
case("mellum", "tied", tie_word_embeddings=True)
case("mellum", "mtp", num_mtp_layers=1)
case("mellum", "eps", rms_norm_eps=0.01)

family(
    "gptneo", "GPTNeoForCausalLM", num_hidden_layers=4, num_key_value_heads=None,
    attention_types=[[["global", "local"], 2]], window_size=8,
)
case("gptneo", "inner", intermediate_size=40)
case("gptneo", "types", attention_types=[[["global"], 1], [["local"], 2], [["global"], 1]])
case("gptneo", "act", activation_function="relu")
case("gptneo", "untied", tie_word_embeddings=False)
case("gptneo", "eps", layer_norm_epsilon=0.01)
case("gptneo", "win", window_size=3)

family(
    "ariatext", "AriaTextForCausalLM", intermediate_size=16, moe_num_experts=6, moe_topk=2,
    moe_num_shared_experts=2,
)
case("ariatext", "shared1", moe_num_shared_experts=1)
case("ariatext", "bias", attention_bias=True, mlp_bias=True)
case("ariatext", "top3", moe_topk=3)
case("ariatext", "tied", tie_word_embeddings=True)
case("ariatext", "square")
case("ariatext", "hd", head_dim=16)
case("ariatext", "norope", rope_parameters=None)

family(
    "modernbert_decoder", "ModernBertDecoderForCausalLM", ("num_key_value_heads",), local_attention=16, num_hidden_layers=4,
    pad_token_id=0, bos_token_id=1, cls_token_id=1, sep_token_id=2,
)
case("modernbert_decoder", "plain", decoder_bias=False, tie_word_embeddings=False)
case("modernbert_decoder", "unbiased", decoder_bias=False)
case("modernbert_decoder", "untied", tie_word_embeddings=False, norm_eps=1e-2)
case(
    "modernbert_decoder", "biases", norm_bias=True, attention_bias=True, mlp_bias=True,
    classifier_bias=True,
)
case("modernbert_decoder", "types", layer_types=[SLIDING, SLIDING, FULL, SLIDING])
case("modernbert_decoder", "acts", hidden_activation="silu", classifier_activation="relu")
case("modernbert_decoder", "every", global_attn_every_n_layers=2, local_attention=7)
case("modernbert_decoder", "ropes", rope_parameters={FULL: LLAMA3, SLIDING: rope(500.0)})

HALF = rope(1e5, partial_rotary_factor=0.5)
family(
    "mimo_v2", "MiMoV2FlashForCausalLM", head_dim=24, v_head_dim=16, n_routed_experts=8,
    num_experts_per_tok=2, moe_intermediate_size=16, sliding_window=8, num_hidden_layers=4,
    layer_types=[FULL, SLIDING, SLIDING, FULL],
    rope_parameters={FULL: HALF, SLIDING: rope(1e4, partial_rotary_factor=0.25)},
)
case("mimo_v2", "equal", v_head_dim=24, attention_value_scale=None)
case("mimo_v2", "scale", attention_value_scale=0.5, v_head_dim=10)
case("mimo_v2", "groups", n_group=4, topk_group=2, routed_scaling_factor=2.5)
case("mimo_v2", "sums", norm_topk_prob=False, routed_scaling_factor=None)
case("mimo_v2", "types", mlp_layer_types=["sparse", "dense", "sparse", "dense"])
case("mimo_v2", "default-layers", layer_types=None, num_hidden_layers=7, mlp_layer_types=None)
case("mimo_v2", "bias", attention_bias=True, tie_word_embeddings=True, rms_norm_eps=1e-2)
case("mimo_v2", "one", num_key_value_heads=1, num_experts_per_tok=8)
case("mimo_v2", "full", layer_types=[FULL] * 4, v_head_dim=8)
case("mimo_v2", "width-16", head_dim=16, v_head_dim=12, rope_parameters={FULL: HALF, SLIDING: HALF})
CONV = "conv"
family(
    "lfm3", "Lfm3ForCausalLM", head_dim=16, num_hidden_layers=5, sliding_window=8,
    layer_types=[CONV, FULL, SLIDING, CONV, FULL],
)
case("lfm3", "default-types", layer_types=None, num_hidden_layers=8)
case("lfm3", "no-norms", use_sandwich_norm=False)
case("lfm3", "no-gate", use_attention_gate=False)
case("lfm3", "bias", attention_bias=True, conv_bias=True)
case("lfm3", "taps", conv_L_cache=3, sliding_window=3)
case("lfm3", "attends", layer_types=[FULL, SLIDING] * 2 + [FULL])
case("lfm3", "conv", layer_types=[CONV] * 5)
case("lfm3", "eps", norm_eps=1e-2, num_key_value_heads=4)
case("lfm3", "untied", tie_word_embeddings=False)
case("lfm3", "ropes", rope_parameters={FULL: YARN, SLIDING: rope(50.0)})
case("lfm3", "part", rope_parameters={
    FULL: rope(500.0, "proportional", partial_rotary_factor=0.25), SLIDING: rope(50.0),
})

RECURRENT = dict(num_hidden_layers=3, layer_norm_epsilon=1e-5, state_size=16)
NO_MLP = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings")
family("mamba", "MambaForCausalLM", NO_MLP, **RECURRENT)
case("mamba", "untied", tie_word_embeddings=False, hidden_size=40)
case("mamba", "rank", time_step_rank=7, state_size=5)
case("mamba", "wide", state_size=136, expand=1)
case("mamba", "bias", use_bias=True, use_conv_bias=False)
case("mamba", "taps", conv_kernel=2, hidden_act="gelu")
case("mamba", "expand", expand=5, hidden_size=24)
family("falcon_mamba", "FalconMambaForCausalLM", NO_MLP, **RECURRENT)
case("falcon_mamba", "eps", mixer_rms_eps=0.1, tie_word_embeddings=False)
case("falcon_mamba", "rank", time_step_rank=3, state_size=9, use_bias=True)
case("falcon_mamba", "width", expand=16, intermediate_size=72)
family(
    "jamba", "JambaForCausalLM", num_hidden_layers=5, num_experts=4, attn_layer_period=2,
    attn_layer_offset=1,
)
case("jamba", "dense", num_experts=1, num_experts_per_tok=1)
case("jamba", "periods", attn_layer_period=3, attn_layer_offset=2, expert_layer_period=3)
case("jamba", "no-attention", attn_layer_period=8, attn_layer_offset=6)
case("jamba", "all-sparse", expert_layer_period=1, expert_layer_offset=0, num_experts_per_tok=4)
case("jamba", "bias", mamba_proj_bias=True, mamba_conv_bias=False, mamba_d_conv=3)
case("jamba", "sizes", mamba_d_state=24, mamba_expand=3, mamba_dt_rank=9)
case("jamba", "tied", tie_word_embeddings=True, rms_norm_eps=1e-2)
case("jamba", "act", hidden_act="gelu", num_key_value_heads=1)
family(
    "llama4", "Llama4ForCausalLM", head_dim=16, intermediate_size=24, intermediate_size_mlp=40,
    num_local_experts=5, attention_chunk_size=9, floor_scale=7, attn_scale=0.4, num_hidden_layers=4,
)
case("llama4", "dense", moe_layers=[], no_rope_layers=[0, 1, 1, 0])
case("llama4", "some", interleave_moe_layer_step=2, num_local_experts=3, use_qk_norm=False)
case("llama4", "listed", moe_layers=[0, 3], num_local_experts=8, attention_chunk_size=1)
case("llama4", "long-chunks", attention_chunk_size=64, num_key_value_heads=1)
case("llama4", "no-chunks", attention_chunk_size=None)
case("llama4", "types", layer_types=[FULL, "chunked_attention", FULL, "chunked_attention"])
case("llama4", "constant", attn_temperature_tuning=False, no_rope_layer_interval=2)
case("llama4", "bias", attention_bias=True, rms_norm_eps=1e-3)
case("llama4", "llama3", rope_parameters=LLAMA3, tie_word_embeddings=True)
case("llama4", "yarn", rope_parameters=YARN, head_dim=24)

DELTA_LATENT = dict(
    num_key_value_heads=4, kv_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=10,
    num_local_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
)
family(
    "kimi_linear", "KimiLinearForCausalLM", **DELTA_LATENT, linear_head_dim=8, linear_num_heads=3,
    layer_types=[LINEAR, FULL, LINEAR],
)
case("kimi_linear", "wide", linear_head_dim=80, linear_num_heads=1)
case("kimi_linear", "default-types", layer_types=None, num_hidden_layers=6)
case("kimi_linear", "dense", mlp_layer_types=["dense"] * 3)
case("kimi_linear", "sparse", mlp_layer_types=["sparse"] * 3, n_shared_experts=2)
case("kimi_linear", "groups", n_group=3, topk_group=2, norm_topk_prob=False)
case("kimi_linear", "q", q_lora_rank=20, rms_norm_eps=1e-2)
case("kimi_linear", "taps", linear_conv_kernel_dim=2)
case("kimi_linear", "delta", layer_types=[LINEAR] * 3)
case("kimi_linear", "latent", layer_types=[FULL] * 3)
family(
    "bailing_hybrid", "BailingHybridForCausalLM", **DELTA_LATENT, head_dim=8, layer_group_size=2,
    n_group=2, topk_group=1, first_k_dense_replace=1, num_hidden_layers=4,
)
case("bailing_hybrid", "unbounded", kda_safe_gate=False)
case("bailing_hybrid", "bound", kda_lower_bound=-1.5, short_conv_kernel_size=2)
case("bailing_hybrid", "types", layer_types=[FULL, LINEAR, LINEAR, FULL])
case("bailing_hybrid", "dense", first_k_dense_replace=4)
case("bailing_hybrid", "q", q_lora_rank=20, rms_norm_eps=1e-2)
case("bailing_hybrid", "wide", head_dim=72, num_attention_heads=2, num_key_value_heads=2)
case("bailing_hybrid", "rope", rope_parameters=rope(100.0), n_group=1)
case("bailing_hybrid", "yarn", rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0))
family(
    "olmo_hybrid", "OlmoHybridForCausalLM", num_hidden_layers=4,
    rope_parameters=dict(rope_type="default", rope_theta=None),
)
case("olmo_hybrid", "rope", rope_parameters=rope(100.0))
case("olmo_hybrid", "yarn", rope_parameters=YARN)
case("olmo_hybrid", "beta", linear_allow_neg_eigval=False)
case("olmo_hybrid", "heads", linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=9)
case("olmo_hybrid", "wide", linear_value_head_dim=80, linear_conv_kernel_dim=2)
case("olmo_hybrid", "types", layer_types=[FULL, LINEAR, LINEAR, FULL], attention_bias=True)
case("olmo_hybrid", "tied", tie_word_embeddings=True, rms_norm_eps=1e-2)
family(
    "gemma3n", "Gemma3nForCausalLM", head_dim=16, hidden_size_per_layer_input=8, laurel_rank=8,
    num_kv_shared_layers=2, sliding_window=8, num_hidden_layers=5, vocab_size_per_layer_input=288,
    layer_types=[SLIDING, FULL, SLIDING, SLIDING, FULL], altup_num_inputs=4,
    activation_sparsity_pattern=[0.95, 0.95, 0.0, 0.0, 0.0],
)
case("gemma3n", "two", altup_num_inputs=2, altup_active_idx=1)
case("gemma3n", "three", altup_num_inputs=3, altup_correct_scale=False, laurel_rank=1)
case("gemma3n", "own-kv", num_kv_shared_layers=0, head_dim=24)
case("gemma3n", "short-table", vocab_size_per_layer_input=100, num_key_value_heads=1)
case("gemma3n", "all-sparse", activation_sparsity_pattern=[0.5, 0.6, 0.7, 0.8, 0.99])
case("gemma3n", "widths", intermediate_size=[16, 32, 48, 64, 80], final_logit_softcapping=5.0)
case("gemma3n", "ropes", rope_parameters={FULL: LLAMA3, SLIDING: rope(50.0)}, rms_norm_eps=1e-2)
case("gemma3n", "default-types", layer_types=None, num_hidden_layers=12, activation_sparsity_pattern=None,
     num_kv_shared_layers=5)
case("gemma3n", "act", hidden_activation="silu", attention_bias=False, tie_word_embeddings=False)

DSA = dict(LATENT, index_topk=256, index_n_heads=2, index_head_dim=12)
family("deepseek-v32", "DeepseekV32ForCausalLM", **DSA)
case("deepseek-v32", "dense", first_k_dense_replace=3, rope_parameters=YARN)
case("deepseek-v32", "sparse", first_k_dense_replace=0, n_group=2, topk_group=1)
case("deepseek-v32", "shared", n_shared_experts=2, num_experts_per_tok=3)
case("deepseek-v32", "few", index_topk=6, rope_parameters=YARN)
case("deepseek-v32", "one", index_topk=1, index_n_heads=1)
case("deepseek-v32", "wide", index_topk=17, index_n_heads=7, index_head_dim=48)
case("deepseek-v32", "two-blocks", index_topk=33, index_n_heads=5, index_head_dim=9)
family("glm-moe-dsa", "GlmMoeDsaForCausalLM", **{**DSA, "n_group": 1, "topk_group": 1})
case("glm-moe-dsa", "shared", indexer_types=["full", "shared", "shared"], first_k_dense_replace=1)
case("glm-moe-dsa", "bias", attention_bias=True, rope_parameters=rope(1e6))
case("glm-moe-dsa", "few", index_topk=7, indexer_types=["full", "full", "shared"])
case("glm-moe-dsa", "every-second", index_topk=10, index_topk_freq=2, num_hidden_layers=5)
case("glm-moe-dsa", "pattern", index_topk=5, index_topk_pattern="FSF", index_head_dim=20)

family(
    "longcat-flash", "LongcatFlashForCausalLM",
    without=("intermediate_size", "num_hidden_layers", "num_key_value_heads"),
    num_layers=2, ffn_hidden_size=40, expert_ffn_hidden_size=16, q_lora_rank=20, kv_lora_rank=24,
    qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=10, head_dim=8, moe_topk=3,
    n_routed_experts=4, zero_expert_num=2, bos_token_id=None,
)
case("longcat-flash", "none", zero_expert_num=0)
case("longcat-flash", "all", moe_topk=6, routed_scaling_factor=1.0)
case("longcat-flash", "one-layer", num_layers=1, zero_expert_num=5, moe_topk=2)
case("longcat-flash", "yarn", rope_parameters=YARN, rms_norm_eps=1e-2, num_attention_heads=3)

CHOOSING = "minimax_m3_sparse"
family(
    "minimax-m3", "MiniMaxM3VLForCausalLM", head_dim=16, dense_intermediate_size=40,
    shared_intermediate_size=24, intermediate_size=16, num_local_experts=4, num_experts_per_tok=2,
    layer_types=[FULL, CHOOSING, CHOOSING], mlp_layer_types=["dense", "sparse", "sparse"],
    index_n_heads=2, index_head_dim=12, index_block_size=16, index_topk_blocks=2,
    rope_parameters=rope(1e4, partial_rotary_factor=0.5),
)
case("minimax-m3", "own-block", index_topk_blocks=1, index_block_size=32)
case("minimax-m3", "wide", index_head_dim=40, index_block_size=48, rms_norm_eps=1e-2)
case(
    "minimax-m3", "kv", num_key_value_heads=4, index_n_heads=4, index_head_dim=16,
    rope_parameters=rope(1e6),
)
case("minimax-m3", "one", num_key_value_heads=1, index_n_heads=1, index_topk_blocks=3)
case("minimax-m3", "all-sparse", mlp_layer_types=["sparse"] * 3, layer_types=[CHOOSING] * 3)
case("minimax-m3", "act", swiglu_limit=0.8, swiglu_alpha=1.1, routed_scaling_factor=0.7)
case("minimax-m3", "yarn", rope_parameters=YARN, index_head_dim=20, tie_word_embeddings=True)

family(
    "zamba2", "Zamba2ForCausalLM", num_hidden_layers=5, num_key_value_heads=4, mamba_d_state=12,
    n_mamba_heads=4, adapter_rank=6, layers_block_type=[LINEAR, "hybrid", LINEAR, "hybrid", "hybrid"],
)
case("zamba2", "blocks", num_mem_blocks=2)
case("zamba2", "more-blocks", num_mem_blocks=4, use_shared_attention_adapter=True)
case("zamba2", "rope", use_mem_rope=True, rope_parameters=rope(100.0))
case("zamba2", "bias", add_bias_linear=True, hidden_act="silu")
case("zamba2", "groups", rms_norm_eps=1e-2, mamba_ngroups=2)
case("zamba2", "sizes", mamba_d_conv=3, mamba_expand=3, n_mamba_heads=6, intermediate_size=None)
case("zamba2", "begins", layers_block_type=["hybrid"] * 2 + [LINEAR] * 3)
case("zamba2", "none", layers_block_type=[LINEAR] * 5)
STEP_VISION = dict(
    hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
    image_size=56, patch_size=14, max_position_embeddings=16,
)
family(
    "step3p7", "Step3p7ForConditionalGeneration", vision_config=STEP_VISION, image_token_id=287,
    text_config=dict(
        vocab_size=288, hidden_size=32, intermediate_size=48, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=256,
        bos_token_id=None, eos_token_id=None, pad_token_id=0, sliding_window=8,
        num_sliding_attention_heads=6, layer_types=[FULL, SLIDING, SLIDING, FULL],
        n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, share_expert_dim=24,
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"], moe_router_scaling_factor=3.0,
        swiglu_limits=[0.0, 0.0, 0.3, 0.5], swiglu_limits_shared=[0.2, 0.4, 0.0, 0.3],
    ),
)
case("step3p7", "unbounded", text_config__swiglu_limits=None, text_config__swiglu_limits_shared=None)
case("step3p7", "all-sparse", text_config__mlp_layer_types=["sparse"] * 4)
case("step3p7", "full", text_config__layer_types=[FULL] * 4, text_config__num_key_value_heads=1)
case("step3p7", "ropes", text_config__rope_parameters={
    FULL: rope(5e4, partial_rotary_factor=0.5), SLIDING: rope(1e3),
})
case("step3p7", "llama3", text_config__rope_parameters={FULL: LLAMA3, SLIDING: rope(1e4)})
case("step3p7", "bias", text_config__attention_bias=True, text_config__rms_norm_eps=1e-2)
case("step3p7", "scale", text_config__query_pre_attn_scalar=40, text_config__num_experts_per_tok=6)

DBRX = dict(
    d_model=32,
    attn_config=dict(kv_n_heads=2, clip_qkv=1.0, rope_theta=1e4), rope_parameters=rope(1e4),
    ffn_config=dict(ffn_hidden_size=24, moe_num_experts=6, moe_top_k=3),
)
OWN_NAMES = ("intermediate_size", "num_key_value_heads")
family("dbrx", "DbrxForCausalLM", ("hidden_size", *OWN_NAMES), **DBRX)
case("dbrx", "sums", ffn_config__moe_normalize_expert_weights=None, ffn_config__moe_top_k=1)
case("dbrx", "all", ffn_config__moe_top_k=6, attn_config__kv_n_heads=4)
case("dbrx", "act", ffn_config__ffn_act_fn=dict(name="gelu"), attn_config__clip_qkv=0.3)
case("dbrx", "yarn", rope_parameters=YARN, attn_config__kv_n_heads=1)
case("dbrx", "sizes", d_model=40, num_attention_heads=2, attn_config__clip_qkv=8)

family("openai-gpt", "OpenAIGPTLMHeadModel", OWN_NAMES)
case("openai-gpt", "untied", tie_word_embeddings=False, num_attention_heads=2)
case("openai-gpt", "act", afn="silu", layer_norm_epsilon=1e-2)
case("openai-gpt", "relu", afn="relu", num_hidden_layers=1, hidden_size=48)

family("xglm", "XGLMForCausalLM", OWN_NAMES, ffn_dim=48)
case("xglm", "unscaled", scale_embedding=False, tie_word_embeddings=False)
case("xglm", "padded", pad_token_id=11, activation_function="relu")
case("xglm", "sizes", hidden_size=56, num_attention_heads=2, ffn_dim=24, num_hidden_layers=1)

family("biogpt", "BioGptForCausalLM", ("num_key_value_heads",))
case("biogpt", "unscaled", scale_embedding=False, tie_word_embeddings=False)
case("biogpt", "act", hidden_act="relu", layer_norm_eps=1e-1, max_position_embeddings=90)
case("biogpt", "sizes", hidden_size=56, num_attention_heads=2, num_hidden_layers=1)

family("gpt-neox-japanese", "GPTNeoXJapaneseForCausalLM", OWN_NAMES)
case("gpt-neox-japanese", "untied", tie_word_embeddings=False, intermediate_multiple_size=3)
case("gpt-neox-japanese", "part", rope_parameters=rope(5e3, partial_rotary_factor=0.25))
case("gpt-neox-japanese", "act", hidden_act="relu", layer_norm_eps=1e-2, num_hidden_layers=1)
case("gpt-neox-japanese", "yarn", rope_parameters=YARN, hidden_size=48, num_attention_heads=2)

family("ctrl", "CTRLLMHeadModel", OWN_NAMES, dff=48)
case("ctrl", "untied", tie_word_embeddings=False, num_attention_heads=2)
case("ctrl", "sizes", hidden_size=40, dff=20, num_hidden_layers=1, layer_norm_epsilon=1e-1)
