//! Pixtral's tower, of Pixtral, Mistral 3 and LightOnOCR.

use serde_json::json;

use super::Sight;
use super::sizes::USUAL;

/// Pixtral, and Mistral 3, whose squares of patches are merged.
pub(super) fn pixtral(sight: &mut Sight<'_>) -> Result<(), String> {
    sight.set_text_type()?;
    let merge_size = pixtral_tower(sight)?;
    let token = sight.token(&["[IMG]"])?;
    sight.say("image_token_index", token);
    match sight.keys.has("mm.patch_merger.weight") {
        true => sight.say("spatial_merge_size", merge_size),
        false if merge_size == 1 => {
            sight.class = Some("LlavaForConditionalGeneration");
            sight.say("vision_feature_select_strategy", "full");
        }
        false => return Err("it has no tensor mm.patch_merger.weight".to_owned()),
    }
    let side = sight.image_size()?;
    sight.process("size", json!({"longest_edge": side}));
    sight.names.repeated = &["v.token_embd.img_break"];
    sight.names.layers = "model.vision_tower.transformer.layers";
    sight.names.outer = &[
        ("v.patch_embd", "model.vision_tower.patch_conv"),
        ("v.pre_ln", "model.vision_tower.ln_pre"),
        ("mm.input_norm", "model.multi_modal_projector.norm"),
        ("mm.patch_merger", "model.multi_modal_projector.patch_merger.merging_layer"),
        ("mm.1", "model.multi_modal_projector.linear_1"),
        ("mm.2", "model.multi_modal_projector.linear_2"),
    ];
    Ok(())
}

pub(super) fn lighton_ocr(sight: &mut Sight<'_>) -> Result<(), String> {
    sight.set_text_type()?;
    let merge_size = pixtral_tower(sight)?;
    sight.say("spatial_merge_size", merge_size);
    let token = sight.token(&["<|image_pad|>"])?;
    sight.say("image_token_id", token);
    let side = sight.image_size()?;
    let longest = sight.keys.optional_size("vision.preproc_image_size")?.unwrap_or(side);
    sight.process("size", json!({"longest_edge": longest}));
    sight.names.layers = "model.vision_encoder.transformer.layers";
    sight.names.outer = &[
        ("v.patch_embd", "model.vision_encoder.patch_conv"),
        ("v.pre_ln", "model.vision_encoder.ln_pre"),
        ("mm.input_norm", "model.vision_projection.norm"),
        ("mm.patch_merger", "model.vision_projection.patch_merger.merging_layer"),
        ("mm.1", "model.vision_projection.linear_1"),
        ("mm.2", "model.vision_projection.linear_2"),
    ];
    Ok(())
}

/// What both have; patches of the side of a token.
fn pixtral_tower(sight: &mut Sight<'_>) -> Result<u64, String> {
    let sizes = sight.sizes(&USUAL)?;
    sight.check_product("mm.2.weight")?;
    let inner = sight.inner_width()?;
    sight.see("model_type", "pixtral");
    sight.see("intermediate_size", inner);
    sight.see("head_dim", sizes.width / sizes.num_heads);
    sight.eps("layer_norm_eps")?;
    sight.activation(["gelu", "quick_gelu"])?;
    sight.set_pairs(sizes)?;
    let has_biases = sight.keys.has("mm.1.bias");
    sight.say("multimodal_projector_bias", has_biases);
    sight.say("projector_hidden_act", "gelu");
    sight.say("vision_feature_layer", -1);
    sight.set_processor("PixtralImageProcessor")?;
    sight.names.inner = &[
        ("ln1", "attention_norm"),
        ("attn_q", "attention.q_proj"),
        ("attn_k", "attention.k_proj"),
        ("attn_v", "attention.v_proj"),
        ("attn_out", "attention.o_proj"),
        ("ln2", "ffn_norm"),
        ("ffn_gate", "feed_forward.gate_proj"),
        ("ffn_up", "feed_forward.up_proj"),
        ("ffn_down", "feed_forward.down_proj"),
    ];
    Ok(sight.keys.optional_size("vision.spatial_merge_size")?.unwrap_or(1))
}
