//! SigLIP's vision tower: patches with biases, learned positions, no class token.

use super::vision::{self, VisionDefaults, VisionKeys};
use crate::hf_config::HfConfig;
use crate::spec::{
    ConnectorSpec, GridFit, GridPositions, ImageText, LinearSpec, NormSpec, TokenId, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Defaults of `SiglipVisionConfig`.
pub(crate) const SIGLIP: VisionDefaults = VisionDefaults {
    hidden_size: 768,
    intermediate_size: 3072,
    num_layers: 12,
    num_heads: 12,
    image_size: 224,
    patch_size: 16,
    layer_norm_eps: 1e-6,
    activation: Activation::GeluTanh,
};

/// The head, which makes one vector of an image. Decoders do not read it.
const HEAD: [&str; 4] = [
    "model.vision_tower.head.",
    "model.vision_tower.vision_model.head.",
    "vision_tower.head.",
    "vision_tower.vision_model.head.",
];

/// What the names of its tensors begin with.
pub(super) const PREFIX: &str = "model.vision_tower.vision_model";

/// A tensor of it.
pub(super) fn name(part: &str) -> String {
    format!("{PREFIX}.{part}")
}

/// The norm behind the last layer.
pub(super) fn final_norm(vision: &VisionKeys) -> NormSpec {
    NormSpec::layer(name("post_layernorm"), vision.width, vision.eps)
}

/// The tower up to its last layer, each of whose patches is a token.
pub(super) fn tower(
    vision: &VisionKeys,
    (image_token_id, text): (TokenId, ImageText),
    connector: ConnectorSpec,
) -> TowerSpec {
    let unused = HEAD.map(str::to_owned).to_vec();
    TowerSpec { unused, ..tower_at(PREFIX, vision, (image_token_id, text), connector) }
}

/// The same whose tensors have this prefix, without a head.
pub(crate) fn tower_at(
    prefix: &str,
    vision: &VisionKeys,
    (image_token_id, text): (TokenId, ImageText),
    connector: ConnectorSpec,
) -> TowerSpec {
    let VisionKeys { patch_size, width, num_layers, .. } = *vision;
    let name = |part: &str| format!("{prefix}.{part}");
    let side = vision.side();
    let patches = LinearSpec::of_patches(name("embeddings.patch_embedding"), width, patch_size);
    let patches = patches.with_bias(true);
    let layers = vision.layers(&name("encoder.layers"), num_layers);
    let table = LinearSpec::new(name("embeddings.position_embedding"), side * side, width);
    TowerSpec {
        positions: Some(GridPositions { table, side, fit: GridFit::OwnAlone }),
        ..TowerSpec::new(image_token_id, text, patch_size, patches, layers, connector)
    }
}

/// Keys of the second one's tower, which has images of any shape, and the side of its square of
/// positions.
pub(crate) fn second_keys(
    config: &HfConfig,
    merge_size: usize,
) -> Result<(VisionKeys, usize), EngineError> {
    let keys = vision::section(config)?;
    keys.expect("model_type", "siglip2_vision_model")?;
    let num_positions = keys.size_or("num_patches", 256)?;
    let (side, patch_size) = (num_positions.isqrt(), keys.size_or("patch_size", 16)?);
    if side * side != num_positions {
        return Err(config.error(format!("`num_patches` of {num_positions} is no square")));
    }
    let defaults = VisionDefaults { image_size: side.saturating_mul(patch_size), ..SIGLIP };
    Ok((VisionKeys::read(config, defaults, merge_size)?, side))
}

/// The same tower as the second one has it, with positions of this square for images of any shape.
pub(crate) fn second(prefix: &str, tower: TowerSpec, side: usize) -> TowerSpec {
    let (width, k) = (tower.width(), tower.patches.k);
    let patches = LinearSpec::new(format!("{prefix}.embeddings.patch_embedding"), width, k);
    let table = format!("{prefix}.embeddings.position_embedding");
    let table = LinearSpec::new(table, side * side, width);
    TowerSpec {
        // Bands of a pixel are stored beside each other.
        patches: patches.with_bias(true).by_channel(3),
        positions: Some(GridPositions { table, side, fit: GridFit::Linear }),
        ..tower
    }
}
