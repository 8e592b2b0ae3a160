//! What Qwen's vision towers have in common: keys of `vision_config`, patches of several frames,
//! and rotary embeddings of rows and columns.

use super::BuildSpec;
use super::vision::{self, axial_theta, image_token_id};
use crate::hf_config::{HfConfig, Section};
use crate::limits;
use crate::spec::{
    AttentionSpec, AxisFrequency, BlockNorms, ConnectorSpec, ConnectorStep, DecoderSpec, ImageText,
    LayerSpec, LinearSpec, NormSpec, RopeScaling, RopeSpec, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, QkvHeads};

/// Prefixes of the tower's tensors, for those who run the model for text alone.
const IMAGE_TENSORS: &[&str] = &["model.visual.", "visual."];

/// What the name of a tensor of a tower begins with, which early files have without `model`.
pub(super) fn name(part: &str) -> String {
    format!("model.visual.{part}")
}

/// Sizes of a tower that are within limits.
pub(super) struct QwenVision<'a> {
    /// Where they are.
    pub keys: Section<'a>,
    /// Width of its stream.
    pub width: usize,
    /// Layers.
    pub num_layers: usize,
    /// Patches of the side of a token.
    pub merge_size: usize,
    /// Pixels of a patch's side.
    pub patch_size: usize,
    /// Heads of a layer.
    pub heads: QkvHeads,
    /// The token of an image where the file names none.
    pub default_token: usize,
    /// A product behind what makes embeddings.
    pub projector: Option<LinearSpec>,
    num_frames: usize,
}

impl<'a> QwenVision<'a> {
    /// Reads `vision_config`, whose width has this name and default; the defaults of `patch_size`,
    /// `depth` and `num_heads` are given too.
    pub(super) fn read(
        config: &'a HfConfig,
        (width, default_width): (&str, usize),
        [patch_size, depth, num_heads]: [usize; 3],
    ) -> Result<Self, EngineError> {
        let keys = vision::section(config)?;
        let size = |key: &str, default: usize| keys.size_or(key, default);
        let (width, num_heads) = (size(width, default_width)?, size("num_heads", num_heads)?);
        let heads = QkvHeads { num_heads, num_kv_heads: num_heads, head_dim: width / num_heads };
        let vision = Self {
            width,
            num_layers: size("depth", depth)?,
            merge_size: size("spatial_merge_size", 2)?,
            patch_size: size("patch_size", patch_size)?,
            num_frames: size("temporal_patch_size", 2)?,
            heads,
            default_token: 151_655,
            projector: None,
            keys,
        };
        let keys = &vision.keys;
        // Its name in early files.
        keys.expect("in_chans", 3)?;
        keys.expect("in_channels", 3)?;
        // Of videos, of training, and what nobody reads.
        keys.ignore(&["tokens_per_second", "initializer_range", "spatial_patch_size"]);
        limits::check_tower_grid(vision.patch_size, limits::MAX_IMAGE_SIZE, vision.merge_size)
            .and_then(|()| limits::check_tower_layers(vision.num_layers))
            .and_then(|()| limits::check_tower_frames(vision.num_frames))
            .map_err(|text| config.error(text))?;
        match width == num_heads * heads.head_dim && heads.head_dim.is_multiple_of(4) {
            true => Ok(vision),
            false => Err(config.error(format!(
                "a tower of width {width} has no {num_heads} equal heads of rows and columns"
            ))),
        }
    }

    /// An attention block, whose tensors have this name.
    pub(super) fn attention(&self, prefix: &str, norms: BlockNorms) -> AttentionSpec {
        let linear = |part: &str, n| {
            LinearSpec::new(format!("{prefix}.{part}"), n, self.width).with_bias(true)
        };
        let num_rows = self.heads.q_width() + 2 * self.heads.kv_width();
        let (qkv, out) = (linear("attn.qkv", num_rows), linear("attn.proj", self.width));
        AttentionSpec { rope: Some(0), ..AttentionSpec::new(norms, self.heads, qkv, out) }
    }

    /// A tower of these layers.
    pub(super) fn tower(
        &self,
        config: &HfConfig,
        layers: Vec<LayerSpec>,
        mut connector: ConnectorSpec,
    ) -> Result<TowerSpec, EngineError> {
        if let Some(projector) = self.projector.clone() {
            let last = std::mem::replace(&mut connector.last, projector);
            connector.steps.push(ConnectorStep::Linear(last));
        }
        let patches = LinearSpec::of_patches(name("patch_embed.proj"), self.width, self.patch_size);
        let patches = patches.of_frames(self.num_frames);
        // Its other name is Qwen2.5-Omni's.
        let is_there = |key: &&str| config.root().value(key).is_some();
        let key = ["image_token_id", "image_token_index"].into_iter().find(is_there);
        let image_token_id =
            image_token_id(config, key.unwrap_or("image_token_id"), self.default_token)?;
        let text = ImageText::Bare;
        let tower = TowerSpec {
            merge_size: self.merge_size,
            rope: Some(axial_rope(&self.keys, self.heads.head_dim)?),
            ..TowerSpec::new(image_token_id, text, self.patch_size, patches, layers, connector)
        };
        let hidden_size = config.text_part().hidden_size()?;
        match tower.connector.n() == hidden_size {
            true => Ok(tower),
            false => Err(config.error(format!(
                "`vision_config` makes embeddings of {}, and `hidden_size` is {hidden_size}",
                tower.connector.n()
            ))),
        }
    }
}

/// Every second frequency of a head, of the row and then of the column.
pub(super) fn axial_rope(keys: &Section<'_>, head_dim: usize) -> Result<RopeSpec, EngineError> {
    let (theta, rotary_dim) = (axial_theta(keys, 10_000.0)?, head_dim);
    let axes = AxisFrequency::rows_and_columns(rotary_dim / 2, [0, 0]);
    Ok(RopeSpec { theta, rotary_dim, scaling: RopeScaling::None, axes })
}

/// What makes embeddings of patches that are normalized: an MLP, of these parts, of those of a
/// token together.
pub(super) fn merger(
    norm: NormSpec,
    [first, last]: [String; 2],
    (merged, hidden_size): (usize, usize),
) -> ConnectorSpec {
    let linear = |part: String, n| LinearSpec::new(part, n, merged).with_bias(true);
    ConnectorSpec {
        steps: vec![
            ConnectorStep::Norm(norm),
            ConnectorStep::Merge,
            ConnectorStep::Linear(linear(first, merged)),
            ConnectorStep::Activate(Activation::Gelu),
        ],
        last: linear(last, hidden_size),
    }
}

/// The text part as a family has it, with these axes where the file does not say. The tower's keys
/// are the same file's: whoever asks for this has read them.
pub(super) fn text_part(
    config: &HfConfig,
    build: BuildSpec,
    axes: &[AxisFrequency],
) -> Result<DecoderSpec, EngineError> {
    let mut spec = text_part_without_axes(config, build)?;
    set_axes(config.text_part(), &mut spec, axes)?;
    Ok(spec)
}

/// The same where positions have one axis.
pub(super) fn text_part_without_axes(
    config: &HfConfig,
    build: BuildSpec,
) -> Result<DecoderSpec, EngineError> {
    ignore_tokens(config);
    let mut spec = build(config.text_part())?;
    spec.embedding.of_media = IMAGE_TENSORS;
    Ok(spec)
}

/// Gives the decoder's rotary embedding the axes that its class has where the file does not say.
fn set_axes(
    config: &HfConfig,
    spec: &mut DecoderSpec,
    axes: &[AxisFrequency],
) -> Result<(), EngineError> {
    for rope in spec.ropes.iter_mut().filter(|rope| rope.axes.is_empty()) {
        if rope.rotary_dim != 2 * axes.len() {
            return Err(config.error("`mrope_section` is missing"));
        }
        rope.axes = axes.to_vec();
    }
    Ok(())
}

/// What says nothing of the text, and nothing of images; some files have it in their text part too.
fn ignore_tokens(config: &HfConfig) {
    for keys in [config.root(), config.text_part().root()] {
        keys.ignore(&[
            "video_token_id",
            "vision_end_token_id",
            "vision_start_token_id",
            "vision_token_id",
        ]);
    }
}
