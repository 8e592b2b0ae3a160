//! Muse Glimmer: its text model, and a tower with windows and rotary embeddings of columns and
//! rows, whose squares of patches go through an MLP. The text's norm of embeddings is theirs too.

use super::muse_glimmer;
use super::qwen_vision::axial_rope;
use super::vision::{self, LayerNames, VisionDefaults, VisionKeys, image_token_id};
use crate::hf_config::{HfConfig, Section};
use crate::spec::{
    ConnectorSpec, ConnectorStep, DecoderSpec, GridFit, GridPositions, ImageText, LinearSpec,
    NormSpec, TokenId, TowerSpec, WindowsSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Prefixes of tensors of images, for those who run the model for text alone.
const IMAGE_TENSORS: &[&str] =
    &["model.vision_adapter.", "model.vision_projection.", "model.vision_tower."];

/// Epsilon of the norms of layers.
const EPS: f32 = 1e-5;

const LAYER: LayerNames = LayerNames {
    norms: ["norm1", "norm2"],
    qkv: &["attn.q_proj", "attn.k_proj", "attn.v_proj"],
    out: "attn.proj",
    up: "mlp.fc1",
    down: "mlp.fc2",
};

/// The text part.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = muse_glimmer::spec(config.text_part())?;
    // Its keys are this file's too.
    tower(config)?;
    // Of videos.
    config.root().ignore(&["video_token_id"]);
    spec.embedding.of_media = IMAGE_TENSORS;
    Ok(spec)
}

/// The tower.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let keys = vision::section(config)?;
    let (patch_size, side) = (keys.size_or("patch_size", 14)?, keys.size_or("pos_emb_height", 32)?);
    keys.expect("pos_emb_width", side)?;
    // What the sides of the table are.
    keys.ignore(&["max_position_embeddings"]);
    let defaults = VisionDefaults {
        hidden_size: 1536,
        intermediate_size: 8960,
        num_layers: 50,
        num_heads: 16,
        image_size: side.saturating_mul(patch_size),
        patch_size,
        layer_norm_eps: EPS,
        activation: Activation::Gelu,
    };
    let merge_size = keys.size_or("merge_size", 2)?;
    let vision = VisionKeys::read(config, defaults, merge_size)?;
    let (width, head_dim, num_frames) =
        (vision.width, vision.heads.head_dim, keys.size_or("patch_temporal", 2)?);
    crate::limits::check_tower_frames(num_frames).map_err(|text| config.error(text))?;
    if !head_dim.is_multiple_of(4) {
        return Err(config.error(format!("heads of {head_dim} have no rows and columns")));
    }
    let name = |part: &str| format!("model.vision_tower.{part}");
    let samples = 3 * num_frames * patch_size * patch_size;
    let patches = LinearSpec::new(name("patch_embedder.patch_embedding"), width, samples);
    let table =
        LinearSpec::new(name("patch_embedder.position_embedding_table"), side * side, width);
    let mut layer = vision.plain_layer();
    layer.eps = EPS;
    let mut layers = layer.named_layers(&name("layers"), vision.num_layers, &LAYER);
    let attentions = layers.iter_mut().filter_map(|layer| layer.attention.as_mut());
    attentions.for_each(|attention| attention.rope = Some(0));
    let mut rope = axial_rope(&keys, head_dim)?;
    // Columns come first.
    rope.axes.iter_mut().for_each(|pair| pair.axis = 1 - pair.axis);
    let norm = |part| Some(NormSpec::layer(name(part), width, vision.eps));
    let token = image_token_id(config, "image_token_id", 200_092)?;
    let text = ImageText::Enclosed {
        start: TokenId::OfText("<|image_start|>"),
        end: TokenId::OfText("<|image_end|>"),
    };
    let connector = connector(config, width, merge_size)?;
    Ok(TowerSpec {
        merge_size,
        positions: Some(GridPositions { table, side, fit: GridFit::Turned }),
        rope: Some(rope),
        embed_norm: norm("ln_pre"),
        windows: Some(windows(config, &keys, (side, merge_size, vision.num_layers))?),
        final_norm: norm("ln_post"),
        ..TowerSpec::new(token, text, patch_size, patches.by_frame(num_frames), layers, connector)
    })
}

/// Squares as large as the table of positions.
fn windows(
    config: &HfConfig,
    keys: &Section<'_>,
    (side, merge_size, num_layers): (usize, usize, usize),
) -> Result<WindowsSpec, EngineError> {
    if !side.is_multiple_of(merge_size) {
        return Err(config.error(format!("windows of {side} patches have no whole tokens")));
    }
    let is_whole = |index: usize| (index + 1).is_multiple_of(4) || index + 1 == num_layers;
    let is_whole = match keys.texts("layer_types")? {
        None => (0..num_layers).map(is_whole).collect::<Vec<_>>(),
        Some(types) => {
            config.layers_that_attend(&types, &["full_attention"], &["window_attention"])?
        }
    };
    match is_whole.len() == num_layers {
        true => Ok(WindowsSpec { side: side / merge_size, is_whole, is_filled: false }),
        false => Err(config.error("`vision_config.layer_types` has not one type per layer")),
    }
}

/// The values of a channel of all patches of a token beside each other, through an MLP that ends
/// with its activation, and a product.
fn connector(
    config: &HfConfig,
    width: usize,
    merge_size: usize,
) -> Result<ConnectorSpec, EngineError> {
    let root = config.root();
    let num_merged = merge_size * merge_size;
    let merged = width * num_merged;
    root.expect("out_hidden_size", merged)?;
    let inner = root.size_or("projector_hidden_size", 4096)?;
    let activation =
        config.activation_named_or(root.text("projector_hidden_act")?, Activation::Gelu)?;
    let linear = |part: &str, k| LinearSpec::new(format!("model.vision_adapter.{part}"), inner, k);
    let hidden_size = config.text_part().hidden_size()?;
    Ok(ConnectorSpec {
        steps: vec![
            ConnectorStep::Merge,
            ConnectorStep::Linear(linear("fc1", merged).by_channel(num_merged)),
            ConnectorStep::Activate(activation),
            ConnectorStep::Linear(linear("fc2", inner)),
            ConnectorStep::Activate(activation),
        ],
        last: LinearSpec::new("model.vision_projection", hidden_size, inner),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::{shape_of, specs_of};

    fn specs(top: &str, vision: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["MuseGlimmerForConditionalGeneration"], "image_token_id": 8,
            {top} "vision_config": {{{vision} "hidden_size": 24, "num_attention_heads": 3}},
            "text_config": {{"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
            "num_key_value_heads": 2, "num_hidden_layers": 4, "max_position_embeddings": 64,
            "vocab_size": 9}}}}"#
        );
        specs_of(&text)
    }

    #[test]
    fn a_tower_has_the_defaults_of_its_class_and_all_tensors() {
        let (_, tower) = specs(r#""out_hidden_size": 96,"#, "").unwrap();
        let windows = tower.windows.as_ref().unwrap();
        let whole: Vec<_> = (0..50).filter(|index| windows.is_whole[*index]).collect();
        assert_eq!((windows.side, whole), (16, (3..48).step_by(4).chain([49]).collect()));
        assert_eq!((tower.patch_size, tower.num_frames(), tower.merge_size), (14, 2, 2));
        let axes: Vec<_> = tower.rope.as_ref().unwrap().axes.iter().map(|of| of.axis).collect();
        assert_eq!(axes, [1, 1, 0, 0]);
        let tensors = tower.tensors();
        let shape = |name: &str| shape_of(&tensors, name);
        assert_eq!(shape("model.vision_tower.patch_embedder.patch_embedding.weight"), [24, 1176]);
        assert_eq!(shape("model.vision_adapter.fc1.weight"), [4096, 96]);
        assert_eq!(tensors.len(), 2 + 2 * 2 + 50 * 16 + 3);
    }

    #[test]
    fn what_no_tower_computes_is_refused() {
        for (top, vision, expected) in [
            (r#""out_hidden_size": 24,"#, "", "`out_hidden_size`"),
            ("", r#""pos_emb_width": 16,"#, "`vision_config.pos_emb_width`"),
            ("", r#""merge_size": 3,"#, "no whole tokens"),
            ("", r#""layer_types": ["full_attention"],"#, "one type per layer"),
            ("", r#""layer_types": ["linear_attention"],"#, "neither full_attention"),
            ("", r#""patch_temporal": 17,"#, "frames of an image's patch of 17"),
        ] {
            let error = specs(top, vision).unwrap_err();
            assert!(error.contains(expected), "{top} {vision}: {error}");
        }
    }
}
