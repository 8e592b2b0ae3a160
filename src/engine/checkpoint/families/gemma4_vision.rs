//! Gemma 4: its text model, and a tower with positions by column and by row, norms of q, k and v,
//! and rotary embeddings of columns and rows. Patches are averaged by squares. Tokens of an image
//! attend to all of it in layers with a window (26B, 31B). Linear layers of the tower have bounds,
//! and tokens of images the inputs of padding (E2B, E4B). Sounds are left out.

use super::vision::{axial_theta, image_token_id, token_id};
use super::{gemma4, multimodal};
use crate::hf_config::{HfConfig, Section};
use crate::limits;
use crate::spec::{
    ActivationSpec, AttentionSpec, AxisFrequency, Bidirectional, BlockNorms, ConnectorSpec,
    ConnectorStep, DecoderSpec, GridFit, GridPositions, ImageText, LayerSpec, LinearSpec, MlpForm,
    MlpSpec, NormSpec, QkNormSpec, QkvHeads, RopeScaling, RopeSpec, RowOrder, TokenId, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Prefixes of the tower's tensors, for those who run the model for text alone, and of those for
/// sounds.
const IMAGE_TENSORS: &[&str] =
    &["model.embed_vision.", "model.vision_tower.", SOUND_TENSORS[0], SOUND_TENSORS[1]];
const SOUND_TENSORS: [&str; 2] = ["model.audio_tower.", "model.embed_audio."];

/// The text part.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    if tower(config)?.is_none() {
        return multimodal::gemma4(config);
    }
    // Of sounds and videos, which no row has; tokens of an image, which are counted.
    config.root().ignore(&[
        "audio_config",
        "audio_token_id",
        "boa_token_id",
        "eoa_token_id",
        "eoa_token_index",
        "video_token_id",
        "vision_soft_tokens_per_image",
    ]);
    let mut spec = gemma4::spec(config.text_part())?;
    spec.embedding.of_media = IMAGE_TENSORS;
    Ok(spec)
}

/// The tower; None: there is none.
pub(super) fn tower(config: &HfConfig) -> Result<Option<TowerSpec>, EngineError> {
    let root = config.root();
    let Some(keys) = root.section("vision_config")? else { return Ok(None) };
    Sizes::read(config, keys)?.tower(config).map(Some)
}

/// Sizes of a tower that are within limits.
struct Sizes<'a> {
    keys: Section<'a>,
    width: usize,
    inner: usize,
    num_layers: usize,
    patch_size: usize,
    merge_size: usize,
    heads: QkvHeads,
    eps: f32,
    activation: Activation,
    is_bounded: bool,
}

fn name(part: &str) -> String {
    format!("model.vision_tower.{part}")
}

impl<'a> Sizes<'a> {
    fn read(config: &HfConfig, keys: Section<'a>) -> Result<Self, EngineError> {
        keys.expect("model_type", "gemma4_vision")?;
        keys.expect("attention_bias", false)?;
        // What its class does not read, or what is counted of each image.
        keys.ignore(&["default_output_length", "global_head_dim", "max_position_embeddings"]);
        let sizes = Self {
            // All files have these, and the text part has some of the same names.
            width: keys.size("hidden_size")?,
            inner: keys.size("intermediate_size")?,
            num_layers: keys.size("num_hidden_layers")?,
            patch_size: keys.size_or("patch_size", 16)?,
            merge_size: keys.size_or("pooling_kernel_size", 3)?,
            heads: QkvHeads {
                num_heads: keys.size("num_attention_heads")?,
                num_kv_heads: keys.size("num_key_value_heads")?,
                head_dim: keys.size("head_dim")?,
            },
            eps: keys.number("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            activation: config
                .activation_named_or(keys.text("hidden_activation")?, Activation::GeluTanh)?,
            is_bounded: keys.flag("use_clipped_linears")?.unwrap_or(false),
            keys,
        };
        config.check_kv_heads(sizes.heads.num_heads, sizes.heads.num_kv_heads)?;
        limits::check_tower_grid(sizes.patch_size, limits::MAX_IMAGE_SIZE, sizes.merge_size)
            .and_then(|()| limits::check_tower_layers(sizes.num_layers))
            .map_err(|text| config.error(text))?;
        match sizes.heads.head_dim.is_multiple_of(4) {
            true => Ok(sizes),
            false => Err(config.error(format!(
                "heads of {} values are not turned by columns and rows",
                sizes.heads.head_dim
            ))),
        }
    }

    fn tower(&self, config: &HfConfig) -> Result<TowerSpec, EngineError> {
        let Self { keys, width, patch_size, merge_size, heads, .. } = self;
        let (width, side) = (*width, keys.size_or("position_embedding_size", 10_240)?);
        limits::check_tower_positions(side).map_err(|text| config.error(text))?;
        let patches =
            LinearSpec::new(name("patch_embedder.input_proj"), width, 3 * patch_size * patch_size);
        let seen = config.text_part().root().text("use_bidirectional_attention")?;
        let mut axes = AxisFrequency::rows_and_columns(heads.head_dim / 2, [0, 0]);
        axes.rotate_left(heads.head_dim / 4);
        let image_token_id = image_token_id(config, "image_token_id", 258_880)?;
        let text = ImageText::Enclosed {
            start: TokenId::Known(token_id(config, "boi_token_id", 255_999)?),
            end: TokenId::Known(token_id(config, "eoi_token_id", 258_882)?),
        };
        // Bands of a pixel are stored beside each other.
        let patches = patches.by_channel(3);
        let (layers, connector) = (self.layers(), self.connector(config)?);
        let inputs_width =
            config.text_part().root().optional_size("hidden_size_per_layer_input")?;
        let table_token = match inputs_width.unwrap_or(256) {
            0 => None,
            _ => Some(padding_id(config)?),
        };
        Ok(TowerSpec {
            table_token,
            unused: SOUND_TENSORS.map(str::to_owned).into(),
            merge_size: *merge_size,
            bidirectional: match seen {
                Some("vision") => Bidirectional::Image,
                _ => Bidirectional::None,
            },
            positions: Some(positions(side, width)),
            rope: Some(RopeSpec {
                theta: axial_theta(keys, 100.0)?,
                rotary_dim: heads.head_dim,
                scaling: RopeScaling::None,
                axes,
            }),
            ..TowerSpec::new(image_token_id, text, *patch_size, patches, layers, connector)
        })
    }

    fn layers(&self) -> Vec<LayerSpec> {
        let Self { width, inner, heads, eps, activation, is_bounded, .. } = *self;
        let bounded = |linear: LinearSpec| match is_bounded {
            false => linear,
            true => {
                let modules = linear.parts.iter().map(|part| {
                    part.name.strip_suffix(".linear").expect("a part of a module").to_owned()
                });
                let modules = modules.collect();
                linear.bounded_by(modules)
            }
        };
        // One for all: it has a value per row.
        let order = RowOrder::rotated_in_halves(heads);
        let of_head = RowOrder::head_in_halves(heads.head_dim);
        let layer = |index: usize| {
            let name = |part: &str| name(&format!("encoder.layers.{index}.{part}"));
            let norm = |part: &str, width| NormSpec::rms(name(part), width, eps);
            let norms = |before, after| BlockNorms {
                before: Some(norm(before, width)),
                after: Some(norm(after, width)),
                ..BlockNorms::default()
            };
            let (q, kv) = (heads.q_width(), heads.kv_width());
            let qkv = [("q_proj", q), ("k_proj", kv), ("v_proj", kv)];
            let qkv = qkv.map(|(part, n)| (name(&format!("self_attn.{part}.linear")), n));
            let out = LinearSpec::new(name("self_attn.o_proj.linear"), width, q);
            let norms_of_heads = ["self_attn.q_norm", "self_attn.k_norm"]
                .map(|part| NormSpec { order: of_head.clone(), ..norm(part, heads.head_dim) });
            let [q_norm, k_norm] = norms_of_heads;
            let up = ["mlp.gate_proj.linear", "mlp.up_proj.linear"].map(|part| (name(part), inner));
            let mlp = MlpSpec {
                norms: norms("pre_feedforward_layernorm", "post_feedforward_layernorm"),
                form: MlpForm::Gated,
                activation: ActivationSpec::Known(activation),
                up: bounded(LinearSpec::stacked(up, width)),
                down: bounded(LinearSpec::new(name("mlp.down_proj.linear"), width, inner)),
            };
            let attention = AttentionSpec::new(
                norms("input_layernorm", "post_attention_layernorm"),
                heads,
                bounded(LinearSpec::stacked(qkv, width).in_order(order.clone())),
                bounded(out),
            );
            let attention = AttentionSpec {
                qk_norm: Some(QkNormSpec::per_head(q_norm, k_norm)),
                v_norm: Some(norm("self_attn.v_norm", heads.head_dim).without_weight()),
                rope: Some(0),
                scale: 1.0,
                ..attention
            };
            LayerSpec::new(attention, mlp)
        };
        (0..self.num_layers).map(layer).collect()
    }

    /// Means, standardized if the file says so, through a norm without a weight.
    fn connector(&self, config: &HfConfig) -> Result<ConnectorSpec, EngineError> {
        let Self { keys, width, eps, .. } = self;
        let factor = (*width as f32).sqrt();
        let of_channels = |part| (name(part), vec![*width]);
        let mut steps = vec![ConnectorStep::MeanPool];
        // Without it the factor changes what the norm adds under its root alone.
        let is_standardized = keys.flag("standardize")?.unwrap_or(false);
        let eps = if is_standardized { *eps } else { eps / *width as f32 };
        if is_standardized {
            let (shift, scale) = (of_channels("std_bias"), of_channels("std_scale"));
            steps.push(ConnectorStep::Standardize { factor, shift, scale });
        }
        let embed = |part: &str| format!("model.embed_vision.{part}");
        let norm = NormSpec::rms(embed("embedding_pre_projection_norm"), *width, eps);
        steps.push(ConnectorStep::Norm(norm.without_weight()));
        let hidden_size = config.text_part().hidden_size()?;
        let last = LinearSpec::new(embed("embedding_projection"), hidden_size, *width);
        Ok(ConnectorSpec { steps, last })
    }
}

/// The token of padding, whose inputs of layers tokens of images have.
fn padding_id(config: &HfConfig) -> Result<u32, EngineError> {
    let text = config.text_part();
    let (id, vocab_size) =
        (text.root().optional_size("pad_token_id")?.unwrap_or(0), text.vocab_size()?);
    match u32::try_from(id) {
        Ok(found) if (found as usize) < vocab_size => Ok(found),
        _ => Err(config.error(format!("`text_config.pad_token_id` of {id} is no token"))),
    }
}

/// Those of columns and those of rows, in one tensor.
fn positions(side: usize, width: usize) -> GridPositions {
    let tensor = name("patch_embedder.position_embedding_table");
    let table = LinearSpec::of_stack(tensor, 2, (side, width)).as_parameters();
    GridPositions { table, side, fit: GridFit::ByAxis }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::shape_of;
    use crate::{decoder_spec, tower_spec};

    fn specs(top: &str, vision: &str) -> Result<(DecoderSpec, Option<TowerSpec>), String> {
        let text = format!(
            r#"{{"architectures": ["Gemma4ForConditionalGeneration"], "image_token_id": 8,
            "boi_token_id": 6, "eoi_token_id": 7, {top} "vision_config": {{{vision}
            "model_type": "gemma4_vision", "hidden_size": 24, "num_hidden_layers": 2,
            "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 12,
            "intermediate_size": 40}}, "text_config": {{"model_type": "gemma4_text",
            "use_bidirectional_attention": "vision", "hidden_size_per_layer_input": 0,
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"], "vocab_size": 9}}}}"#
        );
        let config = HfConfig::parse(&text, "config.json").unwrap();
        let decoder = decoder_spec(&config).map_err(|error| error.to_string())?;
        Ok((decoder, tower_spec(&config).map_err(|error| error.to_string())?))
    }

    #[test]
    fn a_tower_has_all_tensors_and_layers_without_a_window_are_causal() {
        let (decoder, tower) = specs("", r#""standardize": true,"#).unwrap();
        let tower = tower.expect("a tower");
        let are_causal: Vec<_> = decoder.attentions().map(|block| block.is_causal).collect();
        assert_eq!((are_causal, tower.bidirectional), (vec![false, true], Bidirectional::Image));
        assert_eq!((tower.least_step(1).0, tower.patch_size, tower.merge_size), (1120, 16, 3));
        assert_eq!(
            tower.text,
            ImageText::Enclosed { start: TokenId::Known(6), end: TokenId::Known(7) }
        );
        let tensors = tower.tensors();
        let shape = |name: &str| shape_of(&tensors, name);
        let table = "model.vision_tower.patch_embedder.position_embedding_table";
        assert_eq!(shape(table), [2, 10_240, 24]);
        assert_eq!(shape("model.vision_tower.patch_embedder.input_proj.weight"), [24, 768]);
        assert_eq!(shape("model.vision_tower.std_scale"), [24]);
        assert_eq!(tensors.len(), 2 + 2 * 13 + 2 + 1);
        assert!(tensors.iter().all(|(name, _)| {
            decoder.embedding.of_media.iter().any(|prefix| name.starts_with(prefix))
        }));
    }

    #[test]
    fn layers_have_bounds_and_what_is_not_known_is_refused() {
        let (_, tower) =
            specs(r#""audio_config": {},"#, r#""use_clipped_linears": true,"#).unwrap();
        let tower = tower.expect("a tower");
        assert!(tower.layers.iter().all(LayerSpec::is_bounded) && tower.table_token.is_none());
        let of_q = "model.vision_tower.encoder.layers.1.self_attn.q_proj.input_min";
        assert!(tower.tensors().contains(&(of_q.to_owned(), Vec::new())));
        assert_eq!(tower.tensors().len(), 2 + 2 * (13 + 7 * 4) + 1);
        for (vision, expected) in [
            (r#""attention_bias": true,"#, "`vision_config.attention_bias`"),
            (r#""position_embedding_size": 99999,"#, "positions of a vision tower"),
            (r#""pooling_kernel_size": 90,"#, "token in patches of 90"),
            (r#""qk_scale": 2,"#, "`vision_config.qk_scale` is not known"),
        ] {
            let error = specs("", vision).unwrap_err();
            assert!(error.contains(expected), "{vision}: {error}");
        }
    }
}
