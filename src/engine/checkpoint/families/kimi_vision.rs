//! MoonViT, the tower of Kimi K2.5 and Kimi-VL, beside DeepSeek V3: images of any shape, learned
//! positions of a square that those of other grids are made of, and rotary embeddings of columns
//! and rows by turns. Squares of its patches go through a norm and an MLP.

use serde_json::json;

use super::deepseek;
use super::qwen_vision::merger;
use super::vision::{self, LayerNames, PlainLayer, axial_theta, image_token_id, side_of_square};
use crate::hf_config::{HfConfig, Section};
use crate::limits;
use crate::spec::{
    AxisFrequency, DecoderSpec, GridFit, GridPositions, ImageText, LayerSpec, LinearSpec, NormSpec,
    QkvHeads, RopeScaling, RopeSpec, RowOrder, TokenId, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;
use vllm_batch_base::layers::Activation;

/// Prefixes of tensors of images, for those who run the model for text alone.
const IMAGE_TENSORS: &[&str] =
    &["mm_projector.", "model.mm_projector.", "multi_modal_projector.", "vision_tower."];

/// Epsilon of all its norms, `LayerNorm` of torch.
const EPS: f32 = 1e-5;

/// The token of an image where a file names none.
const IMAGE_TOKEN: usize = 163_605;

const LAYER: LayerNames = LayerNames {
    norms: ["norm0", "norm1"],
    qkv: &["wqkv"],
    out: "wo",
    up: "mlp.fc0",
    down: "mlp.fc1",
};

/// The text part of Kimi K2.5.
pub(super) fn k25(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let kind = config.text_part().root().text("model_type")?.unwrap_or("deepseek_v3");
    if !["deepseek_v3", "kimi_k2"].contains(&kind) {
        return Err(config.error(format!("a text part of type {} is not supported", quoted(kind))));
    }
    // Its class says so, of all of the model.
    config.text_part().assume(&[("tie_word_embeddings", json!(true))]);
    // Its keys are this file's too.
    k25_tower(config)?;
    // Of videos, of what the tokenizer has, and of training.
    config.root().ignore(&[
        "ignore_index",
        "use_unified_vision_chunk",
        "video_placeholder",
        "video_token_id",
        "vision_end_token_id",
        "vision_start_token_id",
    ]);
    text_part(config)
}

/// The text part of Kimi-VL, Moonlight.
pub(super) fn vl(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.text_part().root().expect("model_type", "deepseek_v3")?;
    // Its keys are this file's too.
    vl_tower(config)?;
    config.root().ignore(&["ignore_index"]);
    text_part(config)
}

fn text_part(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = deepseek::v3(config.text_part())?;
    spec.embedding.of_media = IMAGE_TENSORS;
    Ok(spec)
}

/// The tower of Kimi K2.5. Its keys have one name in published files, and another one as
/// transformers saves them.
pub(super) fn k25_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let keys = vision::section(config)?;
    let vision = MoonVit::read(config, &keys)?;
    keys.expect("merge_type", "sd2_tpool")?;
    keys.expect("mm_projector_type", "patchmerger")?;
    keys.expect("pos_emb_type", "divided_fixed")?;
    keys.expect("projector_hidden_act", "gelu")?;
    keys.expect("mm_hidden_size", vision.width)?;
    keys.expect("text_hidden_size", config.text_part().hidden_size()?)?;
    // Of videos.
    keys.ignore(&["init_pos_emb_time", "pos_emb_time", "video_attn_type"]);
    let root = config.root();
    root.expect("projection_hidden_size", vision.width)?;
    let eps = keys.number("projector_ln_eps")?.or(root.number("projection_layer_norm_eps")?);
    let norm = norm("mm_projector.pre_norm", vision.width, eps.map_or(EPS, |eps| eps as f32));
    vision.tower(config, norm, ["mm_projector.proj.0", "mm_projector.proj.2"])
}

/// The tower of Kimi-VL.
pub(super) fn vl_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let keys = vision::section(config)?;
    keys.expect("model_type", "moonvit")?;
    let vision = MoonVit::read(config, &keys)?;
    let name = |part: &str| format!("multi_modal_projector.{part}");
    let norm = norm(&name("pre_norm"), vision.width, EPS);
    vision.tower(config, norm, [&name("linear_1"), &name("linear_2")])
}

fn norm(name: &str, width: usize, eps: f32) -> NormSpec {
    NormSpec::layer(name.to_owned(), width, eps)
}

/// Sizes of a tower that are within limits.
struct MoonVit {
    layer: PlainLayer,
    width: usize,
    num_layers: usize,
    patch_size: usize,
    merge_size: usize,
    /// Rows and columns of learned positions.
    side: usize,
    theta: f64,
    image_token_id: TokenId,
}

impl MoonVit {
    fn read(config: &HfConfig, keys: &Section<'_>) -> Result<Self, EngineError> {
        // All files have these, and the text part has some of the same names.
        let width = keys.size_of(&["hidden_size", "vt_hidden_size"])?;
        let num_heads = keys.size_of(&["num_attention_heads", "vt_num_attention_heads"])?;
        let inner = keys.size_of(&["intermediate_size", "vt_intermediate_size"])?;
        let num_layers = keys.size_of(&["num_hidden_layers", "vt_num_hidden_layers"])?;
        let heads = QkvHeads { num_heads, num_kv_heads: num_heads, head_dim: width / num_heads };
        let side = keys.size_of_or(&["pos_emb_height", "init_pos_emb_height"], 64)?;
        let activation =
            config.activation_named_or(keys.text("hidden_act")?, Activation::GeluTanh)?;
        let token = config.root().optional_size("media_placeholder_token_id")?;
        let token = token.unwrap_or(IMAGE_TOKEN);
        let vision = Self {
            layer: PlainLayer { width, inner, heads, eps: EPS, activation },
            width,
            num_layers,
            patch_size: keys.size_or("patch_size", 14)?,
            merge_size: side_of_square(config, keys, "merge_kernel_size", 2)?,
            side,
            theta: axial_theta(keys, 10_000.0)?,
            image_token_id: image_token_id(config, "image_token_id", token)?,
        };
        if keys.size_of_or(&["pos_emb_width", "init_pos_emb_width"], 64)? != side {
            return Err(config.error("learned positions that are no square are not supported"));
        }
        let Self { patch_size, merge_size, .. } = vision;
        limits::check_tower_grid(patch_size, side.saturating_mul(patch_size), merge_size)
            .and_then(|()| limits::check_tower_layers(num_layers))
            .map_err(|text| config.error(text))?;
        match width == num_heads * heads.head_dim && heads.head_dim.is_multiple_of(4) {
            true => Ok(vision),
            false => Err(config.error(format!(
                "a tower of width {width} has no {num_heads} equal heads of rows and columns"
            ))),
        }
    }

    /// The tower, whose patches go through this norm and, squares of them, through an MLP of these
    /// parts.
    fn tower(
        self,
        config: &HfConfig,
        norm: NormSpec,
        projector: [&str; 2],
    ) -> Result<TowerSpec, EngineError> {
        let Self { width, patch_size, merge_size, side, .. } = self;
        let name = |part: &str| format!("vision_tower.{part}");
        let patches = LinearSpec::of_patches(name("patch_embed.proj"), width, patch_size);
        let merged = width * merge_size * merge_size;
        let hidden_size = config.text_part().hidden_size()?;
        let connector = merger(norm, projector.map(str::to_owned), (merged, hidden_size));
        // The table of a square, stored as one: (side, side, width).
        let table = LinearSpec::of_stack(name("patch_embed.pos_emb"), side, (side, width));
        Ok(TowerSpec {
            merge_size,
            positions: Some(GridPositions { table, side, fit: GridFit::Cubic }),
            rope: Some(self.rope()),
            final_norm: Some(NormSpec::layer(name("encoder.final_layernorm"), width, EPS)),
            ..TowerSpec::new(
                self.image_token_id,
                ImageText::Bare,
                patch_size,
                patches.with_bias(true),
                self.layers(),
                connector,
            )
        })
    }

    fn layers(&self) -> Vec<LayerSpec> {
        let heads = self.layer.heads;
        let name = "vision_tower.encoder.blocks";
        let mut layers = self.layer.named_layers(name, self.num_layers, &LAYER);
        for attention in layers.iter_mut().filter_map(|layer| layer.attention.as_mut()) {
            // Neighbours turn.
            attention.qkv.order = RowOrder::rotated_in_pairs(heads, heads.head_dim);
            attention.rope = Some(0);
        }
        layers
    }

    /// Every second frequency of a head, each of the column and then of the row.
    fn rope(&self) -> RopeSpec {
        let rotary_dim = self.layer.heads.head_dim;
        let pair =
            |index: u16| AxisFrequency { axis: 1 - (index % 2) as u8, frequency: index & !1 };
        let axes = (0..rotary_dim as u16 / 2).map(pair).collect();
        RopeSpec { theta: self.theta, rotary_dim, scaling: RopeScaling::None, axes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::{shape_of, specs_of};

    fn specs(class: &str, top: &str, vision: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["{class}"], "media_placeholder_token_id": 8, {top}
            "vision_config": {{{vision} "patch_size": 14}}, "text_config": {{"hidden_size": 32,
            "model_type": "deepseek_v3", "intermediate_size": 48, "num_attention_heads": 2,
            "num_key_value_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 64,
            "vocab_size": 9, "kv_lora_rank": 16, "q_lora_rank": null, "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "n_shared_experts": 1,
            "num_experts_per_tok": 2, "moe_intermediate_size": 8, "n_group": 1, "topk_group": 1,
            "norm_topk_prob": true, "routed_scaling_factor": 2.0, "first_k_dense_replace": 1,
            "rms_norm_eps": 1e-5, "rope_theta": 800000, "tie_word_embeddings": false}}}}"#
        );
        specs_of(&text)
    }

    /// As Kimi-VL has them.
    const SIZES: &str = r#""hidden_size": 1152, "intermediate_size": 4304,
        "num_attention_heads": 16, "num_hidden_layers": 27,"#;

    fn k25(top: &str, vision: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        specs("Kimi_K25ForConditionalGeneration", top, vision)
    }

    #[test]
    fn a_tower_has_the_defaults_of_its_class_and_all_tensors() {
        let (_, tower) = k25("", SIZES).unwrap();
        assert_eq!((tower.patch_size, tower.merge_size, tower.layers.len()), (14, 2, 27));
        let tensors = tower.tensors();
        let shape = |name: &str| shape_of(&tensors, name);
        assert_eq!(shape("vision_tower.patch_embed.pos_emb.weight"), [64, 64, 1152]);
        assert_eq!(shape("vision_tower.encoder.blocks.26.wqkv.bias"), [3 * 1152]);
        assert_eq!(shape("mm_projector.proj.2.weight"), [32, 4 * 1152]);
        assert_eq!(tensors.len(), 3 + 27 * 12 + 2 + 6);
        let moonvit = format!(r#""model_type": "moonvit", {SIZES}"#);
        let (_, other) = specs("KimiVLForConditionalGeneration", "", &moonvit).unwrap();
        let tensors = other.tensors();
        assert_eq!(shape_of(&tensors, "multi_modal_projector.linear_1.weight"), [4608, 4608]);
        assert_eq!(TowerSpec { connector: tower.connector.clone(), ..other }, tower);
    }

    #[test]
    fn published_names_of_keys_mean_the_same() {
        let published = r#""init_pos_emb_height": 6, "init_pos_emb_width": 6, "vt_hidden_size": 16,
            "init_pos_emb_time": 4, "vt_num_attention_heads": 2, "vt_num_hidden_layers": 1,
            "vt_intermediate_size": 24, "merge_kernel_size": [2, 2], "merge_type": "sd2_tpool",
            "mm_hidden_size": 16, "mm_projector_type": "patchmerger", "projector_ln_eps": 1e-3,
            "pos_emb_type": "divided_fixed", "projector_hidden_act": "gelu",
            "text_hidden_size": 32, "video_attn_type": "spatial_temporal","#;
        let saved = r#""pos_emb_height": 6, "pos_emb_width": 6, "pos_emb_time": 4,
            "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1,
            "intermediate_size": 24, "merge_kernel_size": [2, 2],"#;
        let top = r#""projection_layer_norm_eps": 1e-3, "projection_hidden_size": 16,"#;
        let (_, tower) = k25("", published).unwrap();
        assert_eq!(tower, k25(top, saved).unwrap().1);
        let axes = tower.rope.unwrap().axes;
        let pairs: Vec<_> = axes.iter().map(|pair| (pair.axis, pair.frequency)).collect();
        assert_eq!(pairs, [(1, 0), (0, 0), (1, 2), (0, 2)]);
    }

    #[test]
    fn what_no_class_computes_is_refused() {
        let heads = SIZES.replace("16", "64");
        let narrow = SIZES.replace(r#""hidden_size": 1152,"#, "");
        for (top, sizes, vision, expected) in [
            ("", SIZES, r#""pos_emb_height": 4,"#, "no square"),
            ("", SIZES, r#""merge_kernel_size": [2, 3],"#, "two that are equal"),
            ("", &heads, "", "no 64 equal heads"),
            ("", SIZES, r#""pos_emb_type": "rope","#, "`vision_config.pos_emb_type`"),
            ("", SIZES, r#""vt_hidden_size": 24,"#, "disagree"),
            ("", &narrow, "", "`vision_config.hidden_size` is missing"),
            (r#""projection_hidden_size": 16,"#, SIZES, "", "`projection_hidden_size` of `16`"),
        ] {
            let vision = &format!("{sizes}{vision}");
            let error = k25(top, vision).unwrap_err();
            assert!(error.contains(expected), "{top} {vision}: {error}");
        }
        let other = r#""model_type": "siglip_vision_model","#;
        let error = specs("KimiVLForConditionalGeneration", "", other).unwrap_err();
        assert!(error.contains("`vision_config.model_type`"), "{error}");
    }
}
