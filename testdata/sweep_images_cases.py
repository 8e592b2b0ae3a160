"""The cases of sweep_images.py: name, golden folder, changed keys of its config, and of its image
processor. `saved`: the processor is saved as transformers 5 does."""

CASES: list[tuple[str, str, dict, dict]] = []

FOLDERS = [
    "aya_vision", "cohere2_vision", "deepseek_vl", "exaone4_5", "gemma3_multimodal", "gemma4_e2b", "gemma4_moe", "glm46v",
    "glm4v", "glm4v_moe", "glm_ocr",
    "granite_vision", "hyperclovax_vision", "idefics3", "internvl", "kimi_k25", "lfm2_vl", "lighton_ocr", "llava", "llava_next",
    "llava_onevision", "ministral3_multimodal", "mistral3", "muse_glimmer", "paddleocr_vl", "paligemma", "paligemma2", "pixtral", "qianfan_ocr",
    "granite_vision", "hyperclovax_vision", "idefics3", "internvl", "lfm2_vl", "lighton_ocr", "llava", "llava_next",
    "llava_onevision", "ministral3_multimodal", "mistral3", "molmo2", "molmo2_o", "muse_glimmer", "ovis2", "paddleocr_vl", "paligemma", "paligemma2",
    "phi4_multimodal", "phi4_multimodal_untied", "pixtral", "qianfan_ocr", "qwen2_5_vl", "qwen2_vl", "qwen3_5_moe_multimodal", "qwen3_5_multimodal", "qwen3_vl",
    "qwen3_vl_moe", "smolvlm", "vipllava",
]


def case(base: str, what: str, changes: dict | None = None, processor: dict | None = None) -> None:
    CASES.append((f"{base}-{what}", base, changes or {}, processor or {}))


def vision(**keys) -> dict:
    return {f"vision_config.{key}": value for key, value in keys.items()}


def text(**keys) -> dict:
    return {f"text_config.{key}": value for key, value in keys.items()}


def text_of(model_type: str, eos: int, **more) -> dict:
    """A text part of another family, whose class has all other keys."""
    keys = dict(
        model_type=model_type, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, vocab_size=301 if eos == 288 else 291,
        max_position_embeddings=512, eos_token_id=eos, bos_token_id=None, pad_token_id=None,
    )
    is_tied = model_type in ("cohere", "cohere2", "gemma", "gemma2", "gemma3_text")
    return {"text_config": keys | more, "tie_word_embeddings": is_tied}


SIGLIP = dict(
    model_type="siglip_vision_model", hidden_size=24, image_size=24, intermediate_size=40,
    num_attention_heads=3, num_hidden_layers=3, patch_size=8,
)
EXPERTS = dict(head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
MISTRAL4 = dict(
    num_key_value_heads=4, q_lora_rank=20, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8,
    v_head_dim=8, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
    rope_parameters=dict(
        rope_type="yarn", rope_theta=1e4, factor=8.0, original_max_position_embeddings=32,
        llama_4_scaling_beta=0.3,
    ),
)
# Without what transformers leaves out of logits where the text is of another class than its own.
TEXTS = {
    "cohere": dict(logit_scale=1.0), "cohere2": dict(logit_scale=1.0, sliding_window=8, head_dim=8),
    "gemma": dict(head_dim=8), "gemma3_text": dict(head_dim=8, sliding_window=8),
    "gemma2": dict(head_dim=8, query_pre_attn_scalar=8, final_logit_softcapping=None),
    "glm4": dict(head_dim=8),
    "gpt_oss": dict(head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=8),
    "granite": dict(embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.2),
    "llama": {}, "ministral3": dict(head_dim=8), "mistral": dict(sliding_window=8),
    "mistral4": MISTRAL4, "mixtral": dict(num_local_experts=4), "olmo2": {}, "olmo3": dict(sliding_window=8),
    "phi3": dict(pad_token_id=0), "qwen2": {}, "qwen3": dict(head_dim=8), "qwen3_moe": EXPERTS,
    "qwen2_moe": EXPERTS | dict(shared_expert_intermediate_size=24), "smollm3": {}, "stablelm": {},
    "starcoder2": {},
}
NOT_UNTIED = ("smollm3", "starcoder2")
PHI4_TILE = {"vision_config.image_size": 32, "vision_config.crop_size": 32}

for base in FOLDERS:
    case(base, "same")
    case(base, "saved", {}, {"saved": True})
    if base.startswith(("gemma4", "qwen")) or base == "molmo2_o":
        continue
    case(base, "activation", vision(hidden_act="gelu"))
for base in ("idefics3", "smolvlm"):
    case(base, "patch", {**vision(patch_size=4), "scale_factor": 4})
    case(base, "sizes", vision(hidden_size=40, num_attention_heads=5, num_hidden_layers=1))
    case(base, "eps", vision(layer_norm_eps=1e-3, intermediate_size=24))
    case(base, "whole", {}, {"do_image_splitting": False})
    case(base, "larger", {}, {"size": {"longest_edge": 96}})
    case(base, "numbers", {}, {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.3, 0.2]})
    case(base, "bicubic", {}, {"resample": 3})
    case(base, "tied", {"tie_word_embeddings": True, **text(tie_word_embeddings=True)})
    case(base, "text-qwen2", text_of("qwen2", 288))
for base in ("llava", "llava_next"):
    for layers in (-1, 2, [-2, -1, 1], [0, -1]):
        case(base, f"layers{layers}".replace(" ", ""), {"vision_feature_layer": layers})
    case(base, "projector", {"projector_hidden_act": "silu", "multimodal_projector_bias": False})
    case(base, "patch", vision(patch_size=4, layer_norm_eps=1e-3))
    full = {"vision_config": SIGLIP, "vision_feature_select_strategy": "full"}
    case(base, "siglip", full)
    granite = text_of("granite", 288, **TEXTS["granite"])
    case(base, "siglip-layers", {**full, **granite, "vision_feature_layer": [-3, 1, -1]})
    for family, more in TEXTS.items():
        if base == "llava" or family not in NOT_UNTIED:
            case(base, f"text-{family}", text_of(family, 288, **more))
for tiles in (1, 3, 9):
    case("llava_onevision", f"tiles{tiles}", {"vision_aspect_ratio": f"anyres_max_{tiles}"})
case("llava_onevision", "layers", {"vision_feature_layer": [-2, 1]})
case("llava_onevision", "projector", {"projector_hidden_act": "silu"})
case("llava_onevision", "square", {}, {"image_mean": [0.1, 0.2, 0.3]})
for family in ("llama", "qwen3"):
    case("llava_onevision", f"text-{family}", text_of(family, 288, **TEXTS[family]))
for base in ("mistral3", "ministral3_multimodal", "pixtral"):
    case(base, "layer", {"vision_feature_layer": -2})
    theta = dict(rope_theta=100.0, rope_parameters=dict(rope_theta=100.0, rope_type="default"))
    case(base, "theta", vision(**theta))
    case(base, "larger", {}, {"size": {"longest_edge": 64}})
    case(base, "projector", {"projector_hidden_act": "relu"})
    case(base, "eps", text(rms_norm_eps=1e-2))
    if base != "pixtral":
        case(base, "merge", {"spatial_merge_size": 1})
        case(base, "text-qwen2", text_of("qwen2", 287))
        case(base, "text-mistral4", text_of("mistral4", 287, **TEXTS["mistral4"]))
case("cohere2_vision", "factor", {"downsample_factor": 1}, {"patch_size": 4})
case("cohere2_vision", "aligned", {"alignment_intermediate_size": 20})
case("cohere2_vision", "tiles", {}, {"max_patches": 12})
case("cohere2_vision", "whole", {}, {"crop_to_patches": False})
case("aya_vision", "layer", {"vision_feature_layer": -2})
case("aya_vision", "factor", {"downsample_factor": 1, "adapter_layer_norm_eps": 1e-2})
case("aya_vision", "aligned", {"alignment_intermediate_size": 20})
case("aya_vision", "tiles", {}, {"max_patches": 6})
case("aya_vision", "text-llama", text_of("llama", 287, vocab_size=302) | {"tie_word_embeddings": False})
case("lighton_ocr", "theta", vision(rope_parameters=dict(rope_theta=100.0, rope_type="default")))
case("lighton_ocr", "larger", {}, {"size": {"longest_edge": 64}})
case("lighton_ocr", "eps", text(rms_norm_eps=1e-2))
case("lighton_ocr", "untied", {"tie_word_embeddings": False, **text(tie_word_embeddings=False)})
for merge in (1, 3):
    case("lighton_ocr", f"merge{merge}", {"spatial_merge_size": merge})
case("lighton_ocr", "text-qwen2", text_of("qwen2", 287))
for base in ("glm4v", "glm4v_moe", "qwen2_vl"):
    case(base, "merge", vision(spatial_merge_size=1), {"merge_size": 1})
case("qwen2_vl", "frames", vision(temporal_patch_size=1), {"temporal_patch_size": 1})
case("qwen2_vl", "sizes", vision(depth=1, embed_dim=16, num_heads=4, mlp_ratio=3))
for base in ("qwen2_vl", "qwen2_5_vl"):
    small = dict(spatial_merge_size=4, patch_size=4)
    case(base, "merge4", vision(**small), {"merge_size": 4, "patch_size": 4})
    sections = {"type": "mrope", "mrope_section": [1, 5, 2]}
    case(base, "sections", {"rope_scaling": sections, "tie_word_embeddings": True})
case("got_ocr2", "window", vision(window_size=5, layer_norm_eps=1e-6))
case("got_ocr2", "even", vision(window_size=4, global_attn_indexes=[]))
case("got_ocr2", "whole", vision(global_attn_indexes=[0, 1, 2], qkv_bias=False))
case("got_ocr2", "sizes", vision(hidden_size=32, num_attention_heads=2, output_channels=20, mlp_dim=8))
case("got_ocr2", "larger", vision(image_size=96), {"size": {"height": 96, "width": 96}})
case("got_ocr2", "tiles", {}, {"crop_to_patches": True})
case("dots_ocr", "bias", vision(use_bias=True, post_norm=False))
case("dots_ocr", "merge", vision(spatial_merge_size=1, rms_norm_eps=1e-5), {"merge_size": 1})
case("dots_ocr", "sizes", vision(embed_dim=32, num_attention_heads=2, num_hidden_layers=1))
case("dots_ocr", "patch", vision(patch_size=4, intermediate_size=12), {"patch_size": 4})
case("qwen2_5_vl", "window", vision(window_size=16))
case("qwen2_5_vl", "whole", vision(fullatt_block_indexes=[0, 1, 2]))
case("qwen2_5_vl", "windows", vision(fullatt_block_indexes=[]))
for base in ("qwen3_vl", "qwen3_vl_moe"):
    case(base, "shallow", vision(deepstack_visual_indexes=[]))
    case(base, "table", vision(num_position_embeddings=81))
    case(base, "merge", vision(spatial_merge_size=1), {"merge_size": 1})
    case(base, "bias", text(attention_bias=True))
for base in ("qwen3_5_multimodal", "qwen3_5_moe_multimodal"):
    case(base, "table", vision(num_position_embeddings=49))
    case(base, "merge", vision(spatial_merge_size=1), {"merge_size": 1})
case("gemma3_multimodal", "tokens", {"mm_tokens_per_image": 4})
case("gemma3_multimodal", "window", text(sliding_window=3))
case("gemma3_multimodal", "heads", text(num_key_value_heads=4, attention_bias=True))
case("gemma3_multimodal", "cap", text(attn_logit_softcapping=3.0))
case("gemma4_e2b", "unbounded", vision(use_clipped_linears=False, standardize=True))
case("gemma4_e2b", "padding", text(pad_token_id=0))
case("gemma4_e2b", "own_kv", text(num_kv_shared_layers=0))
case("gemma4_moe", "plain", vision(standardize=False))
case("gemma4_moe", "pool", vision(pooling_kernel_size=3), {"pooling_kernel_size": 3})
case("gemma4_moe", "forward", text(use_bidirectional_attention=None))
case("gemma4_moe", "dense", text(enable_moe_block=False))
case("gemma4_moe", "heads", vision(num_key_value_heads=1, head_dim=16, global_head_dim=16))
case("deepseek_vl", "larger", vision(image_size=48, num_hidden_layers=1), {"size": {"height": 48, "width": 48}, "min_size": 20})
case("deepseek_vl", "mean", {}, {"image_mean": [0.5, 0.3, 0.1]})
case("deepseek_vl", "tied", {"tie_word_embeddings": True})
for base in ("deepseek_vl2", "deepseek_vl2_tiny"):
    case(base, "golden")
    sizes = [[32 * width, 32 * height] for width, height in ([1, 1], [1, 4], [3, 2], [2, 3])]
    case(base, "even", vision(image_size=32) | {"candidate_resolutions": sizes})
    case(base, "one", {"candidate_resolutions": [[26, 26]]})
    sizes = [[45, 45], [45, 90], [90, 45]]
    wide = dict(width=40, heads=5, layers=3, mlp_ratio=3.7362, image_size=45, patch_size=9)
    deep = {"projector_config.input_dim": 40, "projector_config.depth": 4, "projector_config.mlp_ratio": 3}
    case(base, "wide", vision(**wide) | deep | {"candidate_resolutions": sizes})
    narrow = {"projector_config.input_dim": 16, "projector_config.depth": 2}
    case(base, "narrow", vision(width=16, heads=2, layers=1) | narrow)
case("exaone4_5", "heads", vision(num_key_value_heads=3, window_size=16))
case("exaone4_5", "whole", vision(fullatt_block_indexes=[0, 1, 2], num_heads=6, num_key_value_heads=2))
case("exaone4_5", "merge", vision(spatial_merge_size=1), {"merge_size": 1})
case("hyperclovax_vision", "plain", text(use_post_norm=False, embedding_multiplier=1.0, logits_scaling=2.0))
case("hyperclovax_vision", "width", vision(out_hidden_size=36, window_size=16))
case("hyperclovax_vision", "tied", {"tie_word_embeddings": True, "text_config.tie_word_embeddings": True})
case("muse_glimmer", "frames", vision(patch_temporal=1, layer_types=None), {"temporal_patch_size": 1})
case("muse_glimmer", "merge", vision(merge_size=1) | {"out_hidden_size": 16}, {"merge_size": 1})
case("muse_glimmer", "table", vision(pos_emb_height=6, pos_emb_width=6, num_hidden_layers=2, layer_types=None))
case("muse_glimmer", "tokens", {"projector_hidden_size": 28, "projector_hidden_act": "silu"}, {"max_image_tokens": 200})
case("muse_glimmer", "few", {}, {"max_image_tokens": 3})
case("kimi_k25", "merge", vision(merge_kernel_size=[1, 1]), {"merge_size": 1})
case("kimi_k25", "merge3", vision(merge_kernel_size=[3, 3], patch_size=4), {"merge_size": 3, "patch_size": 4})
case("kimi_k25", "table", vision(pos_emb_height=9, pos_emb_width=9, num_attention_heads=6))
case("kimi_k25", "table1", vision(pos_emb_height=1, pos_emb_width=1, num_hidden_layers=1))
theta = dict(rope_type="axial", rope_theta=10000.0)
case("kimi_k25", "theta", vision(rope_parameters=theta, num_attention_heads=3))
case("kimi_k25", "sizes", vision(hidden_size=40, num_attention_heads=5, intermediate_size=24) | {"projection_hidden_size": 40})
case("kimi_k25", "many", {}, {"max_patches": 400, "size": {"max_height": 64, "max_width": 64}})
case("kimi_k25", "few", {}, {"max_patches": 5})
case("kimi_k25", "narrow", {}, {"size": {"max_height": 2, "max_width": 2}})
case("kimi_k25", "numbers", {}, {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.3, 0.2]})
case("qianfan_ocr", "rms", vision(norm_type="rms_norm", layer_norm_eps=1e-2))
case("qianfan_ocr", "ratio1", vision(attention_bias=False) | {"downsample_ratio": 1.0})
for base in ("molmo2", "molmo2_o"):
    case(base, "crops", {}, {"max_crops": 9, "overlap_margins": [1, 1]})
    case(base, "crop", {}, {"max_crops": 1, "overlap_margins": [0, 2]})
    case(base, "margins", {}, {"overlap_margins": [0, 0]})
    case(base, "numbers", {}, {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.3, 0.2]})
    case(base, "layers", {"adapter_config.vision_feature_layer": [0, 2, 1], "adapter_config.vit_layers": [0, 2, 1]})
    case(base, "layer", {"adapter_config.vision_feature_layer": [-1], "adapter_config.vit_layers": [-1]})
    case(base, "heads", {"adapter_config.num_key_value_heads": 4, "adapter_config.head_dim": 6, "adapter_config.attention_bias": False})
    case(base, "projector", {"adapter_config.hidden_act": "gelu", "adapter_config.mlp_bias": True})
case("molmo2", "side", vision(image_size=[32, 32], num_position_embeddings=16), {"size": {"height": 32, "width": 32}, "overlap_margins": [1, 1]})
case("molmo2", "sizes", vision(num_attention_heads=4, num_key_value_heads=4, head_dim=12, attention_bias=False, layer_norm_eps=1e-2))
case("molmo2", "olmo", text(qk_norm_type="olmo", norm_after=True))
linear = dict(rope_type="linear", rope_theta=1e4, factor=4.0)
case("molmo2", "rope", text(rope_parameters=linear, rope_scaling_layers=[1]))
case("ovis2", "stride", vision(hidden_stride=1))
case("ovis2", "bias", vision(qkv_bias=False, mlp_bias=True, rms_norm_eps=1e-2))
case("ovis2", "words", vision(vocab_size=200))
case("ovis2", "tiles", {}, {"max_patches": 12})
case("ovis2", "shape", {}, {"use_covering_area_grid": False, "max_patches": 6})
case("ovis2", "whole", {}, {"crop_to_patches": False})
case("ovis2", "text-llama", text_of("llama", 288, vocab_size=296) | {"vocab_size": 296})
case("vipllava", "layer", {"vision_feature_layers": -3})
case("vipllava", "layers", {"vision_feature_layers": [1, -1], "projector_hidden_act": "silu"})
case("paddleocr_vl", "bias", {"use_bias": True, "tie_word_embeddings": True})
case("paddleocr_vl", "merge", vision(spatial_merge_size=1), {"merge_size": 1})
case("paddleocr_vl", "table", vision(image_size=72, num_attention_heads=2))
case("paddleocr_vl", "table1", vision(image_size=8))
case("paddleocr_vl", "patch", vision(patch_size=4, layer_norm_eps=1e-2), {"patch_size": 4})
case("glm_ocr", "bias", vision(attention_bias=False, rms_norm_eps=1e-2))
case("glm_ocr", "merge", vision(spatial_merge_size=1), {"merge_size": 1})
case("glm_ocr", "patch", vision(patch_size=4, temporal_patch_size=1), {"patch_size": 4, "temporal_patch_size": 1})
half = dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5, mrope_section=[1, 2, 1])
case("glm_ocr", "half", text(rope_parameters=half, num_key_value_heads=1))
case("glm_ocr", "whole", text(rope_parameters=dict(rope_type="default", rope_theta=1e3, mrope_section=[2, 3, 3])))
for base in ("glm46v", "glm4v", "glm4v_moe"):
    case(base, "bias", vision(attention_bias=True, rms_norm_eps=1e-2))
    case(base, "table", vision(image_size=56))
    case(base, "table1", vision(image_size=8))
    case(base, "inner", vision(intermediate_size=24))
    case(base, "patch", vision(patch_size=4), {"patch_size": 4})
case("internvl", "qk-norm", vision(use_qk_norm=True, norm_type="rms_norm"))
case("internvl", "bias", vision(attention_bias=False, use_mean_pooling=False))
case("internvl", "ratio1", {"downsample_ratio": 1.0})
case("internvl", "ratio4", {"downsample_ratio": 0.25})
case("internvl", "projector", {"projector_hidden_act": "relu"})
case("internvl", "tiles", {}, {"crop_to_patches": True, "max_patches": 6})
for family in ("gpt_oss", "llama", "qwen3", "qwen3_moe"):
    case("internvl", f"text-{family}", text_of(family, 287, **TEXTS[family]))
case("lfm2_vl", "factor", {"downsample_factor": 1}, {"downsample_factor": 1})
case("lfm2_vl", "bias", {"projector_bias": False, "projector_use_layernorm": False})
case("lfm2_vl", "projector", {"projector_hidden_act": "silu", "projector_hidden_size": 20})
case("lfm2_vl", "table", vision(num_patches=49))
for base in ("paligemma", "paligemma2"):
    case(base, "sizes", vision(hidden_size=32, num_attention_heads=4, num_hidden_layers=1))
for base in ("phi4_multimodal", "phi4_multimodal_untied"):
    tile = {"size": {"height": 32, "width": 32}}
    case(base, "small", PHI4_TILE, tile)
    case(base, "patch4", {**PHI4_TILE, **vision(patch_size=4)}, {**tile, "patch_size": 4})
    large = {"vision_config.image_size": 112, "vision_config.crop_size": 112}
    case(base, "large", large, {"size": {"height": 112, "width": 112}})
    published = {"vision_config.image_size": 448, "vision_config.crop_size": 448, "vision_config.patch_size": 14}
    context = {"max_position_embeddings": 2048, "original_max_position_embeddings": 2048}
    sizes = {"size": {"height": 448, "width": 448}, "patch_size": 14}
    case(base, "published", {**published, **context}, sizes)
    for num in (1, 2, 3, 12):
        case(base, f"tiles{num}", PHI4_TILE, {**tile, "dynamic_hd": num})
    for layer in (-1, 1, 2):
        case(base, f"layer{layer}", vision(feature_layer=layer))
    case(base, "sizes", vision(hidden_size=40, num_attention_heads=5, intermediate_size=24))
    case(base, "numbers", {}, {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.3, 0.2]})
    case(base, "tied", {"tie_word_embeddings": base.endswith("untied")})
