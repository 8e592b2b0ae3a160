//! Towers of Qwen2-VL and of what came after it: Qwen2.5-VL, EXAONE 4.5, Qwen3-VL, Qwen3.5,
//! GLM-4.1V to 4.6V, GLM-OCR. Images have any shape, and positions axes.

use super::super::names::Parts;
use super::Sight;
use super::sizes::{QWEN, Sizes};

/// Areas of images of Qwen2-VL and Qwen2.5-VL, and of those after them.
const QWEN_2_AREAS: [u64; 2] = [3136, 12_845_056];
const QWEN_3_AREAS: [u64; 2] = [65_536, 16_777_216];

/// Side of a window of Qwen2.5-VL in pixels, which no file says.
const WINDOW: u64 = 112;

/// What all of Qwen's have.
fn qwen(sight: &mut Sight<'_>, areas: [u64; 2], by_turns: bool) -> Result<Sizes, String> {
    let sizes = sight.sizes(&QWEN)?;
    sight.join_qkv("attn.qkv", sizes);
    sight.set_axes(by_turns)?;
    set_parts(sight, sizes, areas)?;
    Ok(sizes)
}

/// The same besides heads and axes.
fn set_parts(sight: &mut Sight<'_>, sizes: Sizes, areas: [u64; 2]) -> Result<(), String> {
    // Of the norms' class, whatever the file says: it has that of the text's. And the side of a
    // square that no image has to have.
    sight.keys.ignore(&["vision.attention.layer_norm_epsilon", "vision.image_size"]);
    let merge_size = sight.keys.optional_size("vision.spatial_merge_size")?.unwrap_or(2);
    sight.see("spatial_merge_size", merge_size);
    sight.set_processor("Qwen2VLImageProcessor")?;
    sight.process("merge_size", merge_size);
    sight.process("patch_size", sizes.patch);
    sight.set_areas(areas)?;
    sight.set_frames(sizes);
    let token = sight.token(&["<|image_pad|>"])?;
    sight.say("image_token_id", token);
    sight.names.layers = "model.visual.blocks";
    sight.check_product("mm.2.weight")
}

const QWEN_2_OUTER: Parts = &[
    ("v.patch_embd", "model.visual.patch_embed.proj"),
    ("v.post_ln", "model.visual.merger.ln_q"),
    ("mm.0", "model.visual.merger.mlp.0"),
    ("mm.2", "model.visual.merger.mlp.2"),
];

pub(super) fn qwen2_vl(sight: &mut Sight<'_>) -> Result<(), String> {
    let sizes = qwen(sight, QWEN_2_AREAS, false)?;
    sight.activation(["gelu_pytorch_tanh", "quick_gelu"])?;
    let (inner, width) = (sight.inner_width()?, sight.width()?);
    if !inner.is_multiple_of(sizes.width) {
        return Err(format!("an MLP of {inner} in a tower of {}", sizes.width));
    }
    sight.see("mlp_ratio", inner / sizes.width);
    sight.see("embed_dim", sizes.width);
    sight.see("hidden_size", width);
    sight.names.outer = QWEN_2_OUTER;
    sight.names.inner = &[
        ("ln1", "norm1"),
        ("attn_out", "attn.proj"),
        ("ln2", "norm2"),
        ("ffn_up", "mlp.fc1"),
        ("ffn_down", "mlp.fc2"),
    ];
    Ok(())
}

pub(super) fn qwen2_5_vl(sight: &mut Sight<'_>) -> Result<(), String> {
    qwen(sight, QWEN_2_AREAS, false)?;
    set_windows(sight)
}

/// Qwen2.5-VL's, whose heads share keys and values.
pub(super) fn exaone4_5(sight: &mut Sight<'_>) -> Result<(), String> {
    let num_heads = sight.keys.size("vision.attention.head_count")?;
    let num_kv = sight.keys.optional_size("vision.attention.head_count_kv")?.unwrap_or(num_heads);
    let head_dim = sight.keys.size("vision.embedding_length")? / num_heads.max(1);
    let sizes = sight.sizes_of_heads(&QWEN, [num_kv, head_dim])?;
    sight.see("num_key_value_heads", num_kv);
    set_parts(sight, sizes, QWEN_2_AREAS)?;
    set_windows(sight)
}

/// Layers with windows, and MLPs with gates.
fn set_windows(sight: &mut Sight<'_>) -> Result<(), String> {
    sight.activation(["gelu_pytorch_tanh", "silu"])?;
    let (inner, width) = (sight.inner_width()?, sight.width()?);
    sight.see("intermediate_size", inner);
    sight.see("out_hidden_size", width);
    let window = sight.keys.optional_size("vision.window_size")?.unwrap_or(WINDOW);
    sight.see("window_size", window);
    let (pattern, num_layers) =
        (sight.keys.size("vision.n_wa_pattern")?, sight.keys.size("vision.block_count")?);
    // Each last one of so many layers sees whole images.
    let is_whole = |layer: &u64| pattern == 0 || (layer + 1).is_multiple_of(pattern);
    let whole: Vec<u64> = (0..num_layers.min(1 << 12)).filter(is_whole).collect();
    sight.see("fullatt_block_indexes", whole);
    sight.names.outer = QWEN_2_OUTER;
    sight.names.inner = &[
        ("ln1", "norm1"),
        ("attn_qkv", "attn.qkv"),
        ("attn_out", "attn.proj"),
        ("ln2", "norm2"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ];
    Ok(())
}

pub(super) fn qwen3_vl(sight: &mut Sight<'_>) -> Result<(), String> {
    qwen(sight, QWEN_3_AREAS, true)?;
    sight.activation(["gelu_pytorch_tanh", "quick_gelu"])?;
    let (inner, width) = (sight.inner_width()?, sight.width()?);
    sight.see("intermediate_size", inner);
    sight.see("out_hidden_size", width);
    let num_positions = sight.rows("v.position_embd.weight")?;
    sight.see("num_position_embeddings", num_positions);
    let num_layers = sight.keys.size("vision.block_count")?.min(1 << 12);
    let is_deep = sight.keys.pattern("vision.is_deepstack_layers", num_layers)?;
    let is_deep = is_deep.unwrap_or_default().into_iter().zip(0..);
    let deep: Vec<u64> = is_deep.filter_map(|(is_deep, layer)| is_deep.then_some(layer)).collect();
    let taken = sight.text_number("n_deepstack_layers").unwrap_or(0);
    if taken != deep.len() as u64 {
        return Err(format!("it gives {} layers more, and the model takes {taken}", deep.len()));
    }
    sight.see("deepstack_visual_indexes", deep.clone());
    let of_deep: Parts = &[("norm", "norm"), ("fc1", "linear_fc1"), ("fc2", "linear_fc2")];
    sight.names.deep = ("model.visual.deepstack_merger_list", of_deep, deep);
    sight.names.outer = &[
        ("v.patch_embd", "model.visual.patch_embed.proj"),
        ("v.position_embd", "model.visual.pos_embed"),
        ("v.post_ln", "model.visual.merger.norm"),
        ("mm.0", "model.visual.merger.linear_fc1"),
        ("mm.2", "model.visual.merger.linear_fc2"),
    ];
    sight.names.inner = &[
        ("ln1", "norm1"),
        ("attn_qkv", "attn.qkv"),
        ("attn_out", "attn.proj"),
        ("ln2", "norm2"),
        ("ffn_up", "mlp.linear_fc1"),
        ("ffn_down", "mlp.linear_fc2"),
    ];
    Ok(())
}

/// Areas of images of GLM-4.1V and GLM-4.5V, of two frames.
const GLM_AREAS: [u64; 2] = [12_544, 9_633_792];

/// Qwen's tower with learned positions, and a merger of its own.
pub(super) fn glm4v(sight: &mut Sight<'_>) -> Result<(), String> {
    let sizes = sight.sizes(&QWEN)?;
    sight.check_product("mm.down.weight")?;
    sight.eps("rms_norm_eps")?;
    sight.activation(["gelu", "silu"])?;
    let (width, side) = (sight.width()?, sight.image_size()?);
    sight.see("out_hidden_size", width);
    // GLM-OCR has norms of q and k, and no learned positions.
    let inner = match sight.keys.has("v.blk.0.attn_q_norm.weight") {
        true => {
            sight.class = Some("GlmOcrForConditionalGeneration");
            sight.inner_width()?
        }
        false => sight.rows("mm.up.weight")?,
    };
    sight.see("image_size", side);
    sight.see("intermediate_size", inner);
    let has_biases = sight.keys.has("v.blk.0.attn_qkv.bias");
    sight.see("attention_bias", has_biases);
    let merge_size = sight.keys.optional_size("vision.spatial_merge_size")?.unwrap_or(2);
    sight.see("spatial_merge_size", merge_size);
    sight.set_axes(false)?;
    let token = sight.token(&["<|image|>"])?;
    sight.say("image_token_id", token);
    sight.set_processor("Glm4vImageProcessor")?;
    sight.process("merge_size", merge_size);
    sight.process("patch_size", sizes.patch);
    sight.set_areas(GLM_AREAS)?;
    sight.set_frames(sizes);
    sight.join_qkv("attn.qkv", sizes);
    sight.names.layers = "model.visual.blocks";
    sight.names.inner = &[
        ("ln1", "norm1"),
        ("attn_qkv", "attn.qkv"),
        ("attn_q_norm", "attn.q_norm"),
        ("attn_k_norm", "attn.k_norm"),
        ("attn_out", "attn.proj"),
        ("ln2", "norm2"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ];
    sight.names.outer = &[
        ("v.patch_embd", "model.visual.patch_embed.proj"),
        ("v.norm_embd", "model.visual.post_conv_layernorm"),
        ("v.position_embd", "model.visual.embeddings.position_embedding"),
        ("v.post_ln", "model.visual.post_layernorm"),
        ("mm.patch_merger", "model.visual.downsample"),
        ("mm.model.fc", "model.visual.merger.proj"),
        ("mm.post_norm", "model.visual.merger.post_projection_norm"),
        ("mm.gate", "model.visual.merger.gate_proj"),
        ("mm.up", "model.visual.merger.up_proj"),
        ("mm.down", "model.visual.merger.down_proj"),
    ];
    Ok(())
}
