//! Towers of CLIP's and SigLIP's shape: Gemma 3, Idefics 3 and SmolVLM, InternVL, LFM2-VL, LLaVA.

use serde_json::json;

use super::super::names::Parts;
use super::Sight;
use super::sizes::USUAL;

/// Layers of CLIP and SigLIP.
const CLIP_LAYER: Parts = &[
    ("ln1", "layer_norm1"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_out", "self_attn.out_proj"),
    ("ln2", "layer_norm2"),
    ("ffn_up", "mlp.fc1"),
    ("ffn_down", "mlp.fc2"),
];

/// SigLIP and a square of its patches, which becomes a token.
pub(super) fn gemma3(sight: &mut Sight<'_>) -> Result<(), String> {
    let sizes = sight.sizes(&USUAL)?;
    let made = sight.keys.shape("mm.input_projection.weight")?.last().copied();
    sight.check_width(made.unwrap_or(0) as u64)?;
    sight.keys.ignore(&["vision.projection_dim"]);
    let (side, inner) = (sight.image_size()?, sight.inner_width()?);
    sight.see("intermediate_size", inner);
    sight.see("model_type", "siglip_vision_model");
    sight.eps("layer_norm_eps")?;
    sight.activation(["gelu_pytorch_tanh", "gelu_pytorch_tanh"])?;
    let merge_size = sight.keys.optional_size("vision.projector.scale_factor")?.unwrap_or(4);
    let num_tokens = (side / sizes.patch / merge_size.max(1)).saturating_pow(2);
    sight.say("mm_tokens_per_image", num_tokens);
    for (key, text) in [
        ("image_token_index", "<image_soft_token>"),
        ("boi_token_index", "<start_of_image>"),
        ("eoi_token_index", "<end_of_image>"),
    ] {
        let id = sight.token(&[text])?;
        sight.say(key, id);
    }
    sight.set_processor("Gemma3ImageProcessor")?;
    sight.process("size", json!({"height": side, "width": side}));
    sight.names.layers = "model.vision_tower.vision_model.encoder.layers";
    sight.names.inner = CLIP_LAYER;
    sight.names.adds_one = &["mm.soft_emb_norm.weight"];
    sight.names.outer = &[
        ("v.patch_embd", "model.vision_tower.vision_model.embeddings.patch_embedding"),
        ("v.position_embd", "model.vision_tower.vision_model.embeddings.position_embedding"),
        ("v.post_ln", "model.vision_tower.vision_model.post_layernorm"),
        ("mm.soft_emb_norm", "model.multi_modal_projector.mm_soft_emb_norm"),
        ("mm.input_projection.weight", "model.multi_modal_projector.mm_input_projection_weight"),
    ];
    Ok(())
}

pub(super) fn idefics3(sight: &mut Sight<'_>) -> Result<(), String> {
    sight.sizes(&USUAL)?;
    sight.set_text_type()?;
    sight.check_product("mm.model.fc.weight")?;
    let (tile, inner) = (sight.image_size()?, sight.inner_width()?);
    sight.see("intermediate_size", inner);
    sight.eps("layer_norm_eps")?;
    sight.activation(["gelu_pytorch_tanh", "gelu_pytorch_tanh"])?;
    let merge_size = sight.keys.optional_size("vision.projector.scale_factor")?.unwrap_or(2);
    sight.say("scale_factor", merge_size);
    let token = sight.token(&["<image>"])?;
    sight.say("image_token_id", token);
    sight.set_processor("Idefics3ImageProcessor")?;
    let longest = sight.keys.optional_size("vision.preproc_image_size")?;
    sight.process("size", json!({"longest_edge": longest.unwrap_or(tile.saturating_mul(4))}));
    sight.process("max_image_size", json!({"longest_edge": tile}));
    sight.names.layers = "model.vision_model.encoder.layers";
    sight.names.inner = CLIP_LAYER;
    sight.names.outer = &[
        ("v.patch_embd", "model.vision_model.embeddings.patch_embedding"),
        ("v.position_embd", "model.vision_model.embeddings.position_embedding"),
        ("v.post_ln", "model.vision_model.post_layernorm"),
        ("mm.model.fc", "model.connector.modality_projection.proj"),
    ];
    Ok(())
}

/// LLaVA 1.5: CLIP up to one of its layers.
pub(super) fn llava(sight: &mut Sight<'_>) -> Result<(), String> {
    sight.sizes(&USUAL)?;
    sight.set_text_type()?;
    sight.check_width(sight.rows("mm.2.weight")?)?;
    // CLIP's own; and how images were cut at other places.
    sight.keys.ignore(&["vision.projection_dim", "vision.mm_projector_type"]);
    if sight.keys.has("v.image_newline") || sight.keys.has("model.image_newline") {
        return Err("LLaVA 1.6, whose images are cut into tiles, is not supported".to_owned());
    }
    let (side, inner) = (sight.image_size()?, sight.inner_width()?);
    sight.see("model_type", "clip_vision_model");
    sight.see("intermediate_size", inner);
    sight.eps("layer_norm_eps")?;
    sight.activation(["gelu", "quick_gelu"])?;
    // The layers behind the one that counts are not in the file.
    let num_layers = sight.keys.size("vision.block_count")?;
    let used = sight.keys.floats("vision.feature_layer")?;
    if used.is_some_and(|used| used != [num_layers as f32]) {
        return Err("`clip.vision.feature_layer` of other layers than the last".to_owned());
    }
    sight.say("vision_feature_layer", num_layers);
    sight.say("vision_feature_select_strategy", "default");
    let has_biases = sight.keys.has("mm.0.bias");
    sight.say("multimodal_projector_bias", has_biases);
    sight.say("projector_hidden_act", "gelu");
    let token = sight.token(&["<image>"])?;
    sight.say("image_token_index", token);
    sight.set_processor("CLIPImageProcessor")?;
    sight.process("size", json!({"shortest_edge": side}));
    sight.process("crop_size", json!({"height": side, "width": side}));
    sight.names.layers = "model.vision_tower.vision_model.encoder.layers";
    sight.names.inner = CLIP_LAYER;
    // The norm behind the last layer is not used.
    sight.names.repeated = &["v.post_ln.weight", "v.post_ln.bias"];
    sight.names.outer = &[
        ("v.class_embd", "model.vision_tower.vision_model.embeddings.class_embedding"),
        ("v.patch_embd", "model.vision_tower.vision_model.embeddings.patch_embedding"),
        ("v.position_embd", "model.vision_tower.vision_model.embeddings.position_embedding"),
        ("v.pre_ln", "model.vision_tower.vision_model.pre_layrnorm"),
        ("mm.0", "model.multi_modal_projector.linear_1"),
        ("mm.2", "model.multi_modal_projector.linear_2"),
    ];
    Ok(())
}

pub(super) fn internvl(sight: &mut Sight<'_>) -> Result<(), String> {
    sight.sizes(&USUAL)?;
    sight.set_text_type()?;
    sight.check_product("mm.model.mlp.3.weight")?;
    let (side, inner) = (sight.image_size()?, sight.inner_width()?);
    sight.see("model_type", "internvl_vision");
    sight.see("intermediate_size", inner);
    sight.eps("layer_norm_eps")?;
    sight.activation(["gelu", "quick_gelu"])?;
    for (key, tensor) in
        [("attention_bias", "v.blk.0.attn_q.bias"), ("use_qk_norm", "v.blk.0.attn_q_norm.weight")]
    {
        let has = sight.keys.has(tensor);
        sight.see(key, has);
    }
    let has_means = sight.keys.has("v.blk.0.ln1.bias");
    sight.see("norm_type", if has_means { "layer_norm" } else { "rms_norm" });
    sight.see("use_mean_pooling", true);
    let merge_size = sight.keys.optional_size("vision.projector.scale_factor")?.unwrap_or(2);
    sight.say("downsample_ratio", 1.0 / merge_size.max(1) as f64);
    let token = sight.token(&["<IMG_CONTEXT>"])?;
    sight.say("image_token_id", token);
    sight.set_processor("GotOcr2ImageProcessor")?;
    // Their own code cuts images, by Pillow.
    sight.processor.is_by_pillow = true;
    let [min, max] = [("min_tiles", 1), ("max_tiles", 12)].map(|(key, default)| {
        let given = sight.keys.optional_size(&format!("vision.preproc_{key}"));
        given.map(|given| given.unwrap_or(default))
    });
    let (min, max) = (min?, max?);
    sight.process("crop_to_patches", true);
    sight.process("min_patches", min);
    sight.process("max_patches", max);
    sight.process("size", json!({"height": side, "width": side}));
    name_internvl(sight);
    Ok(())
}

fn name_internvl(sight: &mut Sight<'_>) {
    sight.names.layers = "model.vision_tower.encoder.layer";
    sight.names.is_of_rank_3 = &["v.class_embd", "v.position_embd.weight"];
    sight.names.inner = &[
        ("ln1", "layernorm_before"),
        ("attn_q", "attention.q_proj"),
        ("attn_k", "attention.k_proj"),
        ("attn_v", "attention.v_proj"),
        ("attn_q_norm", "attention.q_norm"),
        ("attn_k_norm", "attention.k_norm"),
        ("attn_out", "attention.projection_layer"),
        ("ln2", "layernorm_after"),
        ("ls1.weight", "lambda_1"),
        ("ls2.weight", "lambda_2"),
        ("ffn_up", "mlp.fc1"),
        ("ffn_down", "mlp.fc2"),
    ];
    sight.names.outer = &[
        ("v.class_embd", "model.vision_tower.embeddings.cls_token"),
        ("v.patch_embd", "model.vision_tower.embeddings.patch_embeddings.projection"),
        ("v.position_embd.weight", "model.vision_tower.embeddings.position_embeddings"),
        ("mm.model.mlp.0", "model.multi_modal_projector.layer_norm"),
        ("mm.model.mlp.1", "model.multi_modal_projector.linear_1"),
        ("mm.model.mlp.3", "model.multi_modal_projector.linear_2"),
    ];
}

pub(super) fn lfm2(sight: &mut Sight<'_>) -> Result<(), String> {
    let sizes = sight.sizes(&USUAL)?;
    sight.check_product("mm.2.weight")?;
    // The side of a square that no image has to have.
    sight.keys.ignore(&["vision.image_size"]);
    let inner = sight.inner_width()?;
    sight.see("model_type", "siglip2_vision_model");
    sight.see("intermediate_size", inner);
    let num_positions = sight.rows("v.position_embd.weight")?;
    sight.see("num_patches", num_positions);
    sight.eps("layer_norm_eps")?;
    sight.activation(["gelu_pytorch_tanh", "gelu_pytorch_tanh"])?;
    let has_experts = sight.text_arch() == "lfm2moe";
    let kind = if has_experts { "lfm2_moe" } else { "lfm2" };
    sight.text_config.insert("model_type".to_owned(), json!(kind));
    let merge_size = sight.keys.optional_size("vision.projector.scale_factor")?.unwrap_or(2);
    sight.say("downsample_factor", merge_size);
    sight.say("projector_hidden_act", "gelu");
    let inner = sight.rows("mm.1.weight")?;
    sight.say("projector_hidden_size", inner);
    for (key, tensor) in
        [("projector_bias", "mm.1.bias"), ("projector_use_layernorm", "mm.input_norm.weight")]
    {
        let has = sight.keys.has(tensor);
        sight.say(key, has);
    }
    let token = sight.token(&["<image>"])?;
    sight.say("image_token_id", token);
    sight.set_processor("Lfm2VlImageProcessor")?;
    sight.set_patch_columns(sizes);
    sight.names.layers = "model.vision_tower.vision_model.encoder.layers";
    sight.names.inner = CLIP_LAYER;
    sight.names.outer = &[
        ("v.patch_embd", "model.vision_tower.vision_model.embeddings.patch_embedding"),
        ("v.position_embd", "model.vision_tower.vision_model.embeddings.position_embedding"),
        ("v.post_ln", "model.vision_tower.vision_model.post_layernorm"),
        ("mm.input_norm", "model.multi_modal_projector.layer_norm"),
        ("mm.1", "model.multi_modal_projector.linear_1"),
        ("mm.2", "model.multi_modal_projector.linear_2"),
    ];
    Ok(())
}

/// Areas of images of PaddleOCR-VL.
const PADDLE_AREAS: [u64; 2] = [147_384, 2_822_400];

/// SigLIP for images of any shape, which turns by rows and columns.
pub(super) fn paddleocr(sight: &mut Sight<'_>) -> Result<(), String> {
    let sizes = sight.sizes(&USUAL)?;
    sight.check_product("mm.2.weight")?;
    // The side of the largest image, not of the positions.
    sight.keys.ignore(&["vision.image_size"]);
    let side = sight.rows("v.position_embd.weight")?.isqrt() * sizes.patch;
    let inner = sight.inner_width()?;
    sight.see("image_size", side);
    sight.see("intermediate_size", inner);
    sight.eps("layer_norm_eps")?;
    sight.activation(["gelu_pytorch_tanh", "gelu_pytorch_tanh"])?;
    let merge_size = sight.keys.optional_size("vision.spatial_merge_size")?.unwrap_or(2);
    sight.see("spatial_merge_size", merge_size);
    // One flag for all, in ERNIE's words.
    let has_biases = sight.text_config.remove("attention_bias");
    sight.text_config.extend(has_biases.map(|has| ("use_bias".to_owned(), has)));
    sight.text_config.remove("mlp_bias");
    sight.set_axes(false)?;
    let token = sight.token(&["<|IMAGE_PLACEHOLDER|>"])?;
    sight.say("image_token_id", token);
    sight.set_processor("PaddleOCRVLImageProcessor")?;
    sight.process("merge_size", merge_size);
    sight.process("patch_size", sizes.patch);
    sight.set_areas(PADDLE_AREAS)?;
    sight.names.layers = "model.visual.vision_model.encoder.layers";
    sight.names.inner = CLIP_LAYER;
    sight.names.outer = &[
        ("v.patch_embd", "model.visual.vision_model.embeddings.patch_embedding"),
        ("v.position_embd", "model.visual.vision_model.embeddings.position_embedding"),
        ("v.post_ln", "model.visual.vision_model.post_layernorm"),
        ("mm.input_norm", "model.projector.pre_norm"),
        ("mm.1", "model.projector.linear_1"),
        ("mm.2", "model.projector.linear_2"),
    ];
    Ok(())
}
