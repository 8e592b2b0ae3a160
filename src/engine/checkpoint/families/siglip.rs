//! SigLIP's vision tower: patches with biases, learned positions, no class token.

use super::vision::{VisionDefaults, VisionKeys};
use crate::spec::{
    ConnectorSpec, GridFit, GridPositions, ImageText, LinearSpec, NormSpec, TokenId, TowerSpec,
};
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
const PREFIX: &str = "model.vision_tower.vision_model";

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
