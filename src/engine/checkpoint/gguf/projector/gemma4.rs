//! Gemma 4's tower.

use serde_json::{Value, json};

use super::Sight;
use super::sizes::USUAL;

/// Positions by column and by row; sounds are left out.
pub(super) fn gemma4(sight: &mut Sight<'_>) -> Result<(), String> {
    let (q, k) = (sight.rows("v.blk.0.attn_q.weight")?, sight.rows("v.blk.0.attn_k.weight")?);
    let num_heads = sight.keys.size("vision.attention.head_count")?;
    let head_dim = q.checked_div(num_heads).filter(|width| *width > 0);
    let head_dim = head_dim.ok_or("its heads have no width")?;
    let sizes = sight.sizes_of_heads(&USUAL, [k / head_dim, head_dim])?;
    sight.see("head_dim", head_dim);
    sight.see("num_key_value_heads", k / head_dim);
    sight.check_product("mm.input_projection.weight")?;
    // No image has to have this side.
    sight.keys.ignore(&["vision.image_size"]);
    let (inner, num_positions) = (
        sight.inner_width()?,
        sight.keys.shape("v.position_embd.weight")?.get(1).copied().unwrap_or(0),
    );
    sight.see("model_type", "gemma4_vision");
    sight.see("intermediate_size", inner);
    sight.see("position_embedding_size", num_positions);
    sight.eps("rms_norm_eps")?;
    sight.activation(["gelu_pytorch_tanh", "gelu_pytorch_tanh"])?;
    let activation = sight.vision.remove("hidden_act");
    sight.vision.extend(activation.map(|name| ("hidden_activation".to_owned(), name)));
    let pool = sight.keys.optional_size("vision.projector.scale_factor")?.unwrap_or(3);
    sight.see("pooling_kernel_size", pool);
    for (key, tensor) in
        [("standardize", "v.std_scale"), ("use_clipped_linears", "v.blk.0.attn_q.input_max")]
    {
        let has = sight.keys.has(tensor);
        sight.see(key, has);
    }
    set_tokens(sight)?;
    sight.set_processor("Gemma4ImageProcessor")?;
    sight.process("patch_size", sizes.patch);
    sight.process("pooling_kernel_size", pool);
    sight.set_patch_columns(sizes);
    set_names(sight);
    Ok(())
}

fn set_names(sight: &mut Sight<'_>) {
    sight.names.layers = "model.vision_tower.encoder.layers";
    sight.names.inner = &[
        ("ln1", "input_layernorm"),
        ("attn_q", "self_attn.q_proj.linear"),
        ("attn_k", "self_attn.k_proj.linear"),
        ("attn_v", "self_attn.v_proj.linear"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("attn_out", "self_attn.o_proj.linear"),
        ("attn_post_norm", "post_attention_layernorm"),
        ("ln2", "pre_feedforward_layernorm"),
        ("ffn_gate", "mlp.gate_proj.linear"),
        ("ffn_up", "mlp.up_proj.linear"),
        ("ffn_down", "mlp.down_proj.linear"),
        ("ffn_post_norm", "post_feedforward_layernorm"),
    ];
    sight.names.outer = &[
        ("v.patch_embd", "model.vision_tower.patch_embedder.input_proj"),
        ("v.position_embd.weight", "model.vision_tower.patch_embedder.position_embedding_table"),
        ("v.std_bias", "model.vision_tower.std_bias"),
        ("v.std_scale", "model.vision_tower.std_scale"),
        ("mm.input_projection", "model.embed_vision.embedding_projection"),
    ];
}

/// What the text part and its tokens say of images.
fn set_tokens(sight: &mut Sight<'_>) -> Result<(), String> {
    // Models with inputs of each layer read images forward only.
    let inputs = sight.text_config.get("hidden_size_per_layer_input").and_then(Value::as_u64);
    if inputs.unwrap_or(0) == 0 {
        sight.text_config.insert("use_bidirectional_attention".to_owned(), json!("vision"));
    }
    if let Some(id) = sight.padding_id()? {
        sight.text_config.insert("pad_token_id".to_owned(), json!(id));
    }
    for (key, text) in [
        ("image_token_id", "<|image|>"),
        ("boi_token_id", "<|image>"),
        ("eoi_token_id", "<image|>"),
    ] {
        let id = sight.token(&[text])?;
        sight.say(key, id);
    }
    Ok(())
}
