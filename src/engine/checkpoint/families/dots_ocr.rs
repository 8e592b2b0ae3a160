//! dots.ocr: Qwen2, and a tower of Qwen2-VL's shape with RMSNorms, one of them behind the patches,
//! MLPs with gates, and no biases in its layers.

use super::qwen_vision::{axial_rope, merger};
use super::qwen2;
use super::vision::{self, image_token_id};
use crate::hf_config::{HfConfig, Section};
use crate::limits;
use crate::spec::{
    ActivationSpec, AttentionSpec, BlockNorms, DecoderSpec, ImageText, LayerSpec, LinearSpec,
    MlpForm, MlpSpec, NormSpec, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, QkvHeads};

/// Epsilon of the norm of what makes embeddings, which no key names.
const MERGER_EPS: f32 = 1e-6;

fn name(part: &str) -> String {
    format!("vision_tower.{part}")
}

/// The text part, whose keys are at the top.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    tower(config)?;
    let root = config.root();
    root.ignore(&["video_token_id"]);
    // What Qwen2 always has.
    root.expect("attention_bias", true)?;
    let mut spec = qwen2::spec(config)?;
    spec.embedding.of_media = &["vision_tower."];
    Ok(spec)
}

/// Sizes of a tower.
struct Dots {
    width: usize,
    inner: usize,
    heads: QkvHeads,
    num_layers: usize,
    patch_size: usize,
    merge_size: usize,
    eps: f32,
    has_bias: bool,
    has_norm: bool,
}

impl Dots {
    /// Reads `vision_config`, with the defaults of `DotsVisionConfig`.
    fn read(config: &HfConfig, keys: &Section<'_>) -> Result<Self, EngineError> {
        keys.expect("model_type", "dots_vit")?;
        keys.expect("num_channels", 3)?;
        keys.expect("is_causal", false)?;
        // Of training, and of how attention is computed.
        keys.ignore(&[
            "attn_implementation",
            "gradient_checkpointing",
            "init_merger_std",
            "initializer_range",
        ]);
        let size = |key: &str, default: usize| keys.size_or(key, default);
        let (width, num_heads) = (size("embed_dim", 1536)?, size("num_attention_heads", 12)?);
        let dots = Self {
            width,
            inner: size("intermediate_size", 4224)?,
            heads: QkvHeads { num_heads, num_kv_heads: num_heads, head_dim: width / num_heads },
            num_layers: size("num_hidden_layers", 42)?,
            patch_size: size("patch_size", 14)?,
            merge_size: size("spatial_merge_size", 2)?,
            eps: keys.number("rms_norm_eps")?.unwrap_or(1e-5) as f32,
            has_bias: keys.flag("use_bias")?.unwrap_or(false),
            has_norm: keys.flag("post_norm")?.unwrap_or(true),
        };
        limits::check_tower_grid(dots.patch_size, limits::MAX_IMAGE_SIZE, dots.merge_size)
            .and_then(|()| limits::check_tower_layers(dots.num_layers))
            .map_err(|text| config.error(text))?;
        let (num_frames, out) = (size("temporal_patch_size", 1)?, size("hidden_size", 1536)?);
        let hidden_size = config.text_part().hidden_size()?;
        let is_fit = width == num_heads * dots.heads.head_dim
            && dots.heads.head_dim.is_multiple_of(4)
            && out == hidden_size
            && num_frames == 1;
        match is_fit {
            true => Ok(dots),
            false => Err(config.error(format!(
                "`vision_config` has patches of {num_frames} frames, a width of {width} with \
                 {num_heads} heads, and embeddings of {out} where `hidden_size` is {hidden_size}"
            ))),
        }
    }

    fn layer(&self, index: usize) -> LayerSpec {
        let Self { width, inner, heads, eps, has_bias, .. } = *self;
        let part = |part: &str| name(&format!("blocks.{index}.{part}"));
        let norm = |name| BlockNorms::before(NormSpec::rms(part(name), width, eps));
        let linear = |name, n, k| LinearSpec::new(part(name), n, k).with_bias(has_bias);
        let qkv = linear("attn.qkv", 3 * width, width);
        let attention =
            AttentionSpec::new(norm("norm1"), heads, qkv, linear("attn.proj", width, width));
        let up = ["mlp.fc1", "mlp.fc3"].map(|name| (part(name), inner));
        let mlp = MlpSpec {
            norms: norm("norm2"),
            form: MlpForm::Gated,
            activation: ActivationSpec::Known(Activation::Silu),
            up: LinearSpec::stacked(up, width).with_bias(has_bias),
            down: linear("mlp.fc2", width, inner),
        };
        LayerSpec::new(AttentionSpec { rope: Some(0), ..attention }, mlp)
    }
}

/// The tower.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let keys = vision::section(config)?;
    let dots = Dots::read(config, &keys)?;
    let Dots { width, patch_size, merge_size, eps, .. } = dots;
    let layers = (0..dots.num_layers).map(|index| dots.layer(index)).collect();
    let norm = NormSpec::layer(name("merger.ln_q"), width, MERGER_EPS);
    let merged = width * merge_size * merge_size;
    let parts = ["merger.mlp.0", "merger.mlp.2"].map(name);
    let connector = merger(norm, parts, (merged, config.text_part().hidden_size()?));
    let patches = LinearSpec::of_patches(name("patch_embed.patchifier.proj"), width, patch_size);
    let patches = patches.with_bias(true);
    let place = (image_token_id(config, "image_token_id", 151_665)?, ImageText::Bare);
    let final_norm = NormSpec::rms(name("post_trunk_norm"), width, eps);
    Ok(TowerSpec {
        merge_size,
        rope: Some(axial_rope(&keys, dots.heads.head_dim)?),
        patch_norm: Some(NormSpec::rms(name("patch_embed.patchifier.norm"), width, eps)),
        final_norm: dots.has_norm.then_some(final_norm),
        ..TowerSpec::new(place.0, place.1, patch_size, patches, layers, connector)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::{shape_of, specs_of};

    fn specs(top: &str, vision: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["DotsOCRForCausalLM"], "image_token_id": 8, {top}
            "vision_config": {{{vision} "hidden_size": 32, "num_hidden_layers": 2}},
            "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
            "num_hidden_layers": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
            "rope_theta": 1000000, "vocab_size": 9}}"#
        );
        specs_of(&text)
    }

    #[test]
    fn a_tower_has_the_defaults_of_its_class_and_all_tensors() {
        let (decoder, tower) = specs("", "").unwrap();
        assert!(decoder.attentions().all(|block| block.qkv.bias && !block.out.bias));
        assert!(decoder.ropes[0].axes.is_empty());
        assert_eq!((tower.patch_size, tower.merge_size, tower.num_frames()), (14, 2, 1));
        assert_eq!((tower.heads().head_dim, tower.connector.n()), (128, 32));
        let tensors = tower.tensors();
        let shape = |name: &str| shape_of(&tensors, name);
        assert_eq!(shape("vision_tower.patch_embed.patchifier.proj.weight"), [1536, 3, 14, 14]);
        assert_eq!(shape("vision_tower.blocks.1.mlp.fc3.weight"), [4224, 1536]);
        assert_eq!(tensors.len(), 3 + 2 * 7 + 1 + 6);
        let (_, tower) = specs("", r#""post_norm": false, "use_bias": true,"#).unwrap();
        assert_eq!((tower.final_norm.is_none(), tower.tensors().len()), (true, 3 + 2 * 12 + 6));
    }

    #[test]
    fn what_no_class_computes_is_refused() {
        for (top, vision, expected) in [
            (r#""attention_bias": false,"#, "", "`attention_bias`"),
            ("", r#""temporal_patch_size": 2,"#, "patches of 2 frames"),
            ("", r#""embed_dim": 30,"#, "a width of 30 with 12 heads"),
            ("", r#""is_causal": true,"#, "`vision_config.is_causal`"),
        ] {
            let error = specs(top, vision).unwrap_err();
            assert!(error.contains(expected), "{top} {vision}: {error}");
        }
    }
}
