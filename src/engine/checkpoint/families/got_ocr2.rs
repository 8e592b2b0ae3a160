//! GOT-OCR 2: Qwen2, and SAM's tower, whose scores have what the query says of distances in rows
//! and columns, in windows in most layers; four patches a side become a token by convolutions.

use serde_json::json;

use super::vision::{self, IMAGE_TENSORS, image_token_id, text_part};
use crate::hf_config::{HfConfig, Section};
use crate::limits;
use crate::spec::{
    ActivationSpec, AttentionSpec, BlockNorms, ConnectorSpec, ConnectorStep, ConvolutionSpec,
    DecoderSpec, GridFit, GridPositions, ImageText, LayerSpec, LinearSpec, MlpForm, MlpSpec,
    NormSpec, SquaresSpec, TokenId, TowerSpec, WindowsSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, QkvHeads};

/// Epsilon of the norms behind the layers, which no key names.
const NECK_EPS: f32 = 1e-6;

/// Its prompts, which no file has a template of: as `processing_got_ocr2.py` of transformers writes
/// them. A message without a text asks for plain text.
pub(super) const CHAT_TEMPLATE: &str = "\
{%- set system = namespace(text='You should follow the instructions carefully and explain your \
answers in detail.') -%}
{%- for message in messages if message.role == 'system' -%}
{%- set system.text = message.content -%}
{%- endfor -%}
{{- '<|im_start|>system\\n' + system.text + '<|im_end|>' -}}
{%- for message in messages if message.role != 'system' -%}
{{- '<|im_start|>' + message.role + '\\n' -}}
{%- if message.content is string -%}{{- message.content -}}{%- else -%}
{%- set words = namespace(text='', num_images=0) -%}
{%- for part in message.content if part.type == 'image' -%}
{%- set words.num_images = words.num_images + 1 -%}
{%- endfor -%}
{%- if words.num_images > 0 -%}{{- '<img>' -}}
{%- for part in message.content if part.type == 'image' -%}{{- '<imgpad>' -}}{%- endfor -%}
{{- '</img>\\n' -}}{%- endif -%}
{%- for part in message.content if part.type == 'text' -%}
{%- set words.text = words.text + part.text -%}
{%- endfor -%}
{%- if words.text == '' -%}{{- ' OCR: ' -}}{%- else -%}{{- words.text -}}{%- endif -%}
{%- endif -%}
{{- '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

/// The text part.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    tower(config)?;
    config.root().ignore(&["ignore_index", "image_seq_length"]);
    // The class's own, which is tied.
    config.text_part().assume(&[("tie_word_embeddings", json!(true))]);
    text_part(config, "qwen2", IMAGE_TENSORS)
}

fn name(part: &str) -> String {
    format!("model.vision_tower.{part}")
}

/// Sizes of SAM's tower.
struct Sam {
    width: usize,
    inner: usize,
    heads: QkvHeads,
    /// Channels behind the layers.
    channels: usize,
    num_layers: usize,
    patch_size: usize,
    /// Patches of the side of an image.
    grid: usize,
    window: usize,
    is_whole: Vec<bool>,
    eps: f32,
    activation: Activation,
    has_bias: bool,
}

impl Sam {
    /// Reads `vision_config`, with the defaults of `GotOcr2VisionConfig`.
    fn read(config: &HfConfig, keys: &Section<'_>) -> Result<Self, EngineError> {
        keys.expect("num_channels", 3)?;
        keys.expect("use_abs_pos", true)?;
        keys.expect("use_rel_pos", true)?;
        keys.ignore(&["attention_dropout", "initializer_range"]);
        let size = |key: &str, default: usize| keys.size_or(key, default);
        let (width, num_heads) = (size("hidden_size", 768)?, size("num_attention_heads", 12)?);
        let (image_size, patch_size) = (size("image_size", 1024)?, size("patch_size", 16)?);
        let num_layers = size("num_hidden_layers", 12)?;
        let wrong = "`global_attn_indexes` should be a list of layers";
        let whole = match keys.list("global_attn_indexes")? {
            None => vec![2, 5, 8, 11],
            Some(list) => {
                let index = |value: &serde_json::Value| value.as_u64().map(|at| at as usize);
                let list: Option<Vec<_>> = list.iter().map(index).collect();
                list.ok_or_else(|| config.error(wrong))?
            }
        };
        let sam = Self {
            width,
            inner: size("mlp_dim", 3072)?,
            heads: QkvHeads { num_heads, num_kv_heads: num_heads, head_dim: width / num_heads },
            channels: size("output_channels", 256)?,
            num_layers,
            patch_size,
            grid: image_size / patch_size,
            window: size("window_size", 14)?,
            is_whole: (0..num_layers).map(|layer| whole.contains(&layer)).collect(),
            eps: keys.number("layer_norm_eps")?.unwrap_or(1e-6) as f32,
            activation: config.activation_named_or(keys.text("hidden_act")?, Activation::Gelu)?,
            has_bias: keys.flag("qkv_bias")?.unwrap_or(true),
        };
        limits::check_tower_grid(patch_size, image_size, 4)
            .and_then(|()| limits::check_tower_layers(num_layers))
            .map_err(|text| config.error(text))?;
        let is_fit = width == num_heads * sam.heads.head_dim
            && image_size == patch_size * sam.grid
            && sam.grid.is_multiple_of(4)
            && (1..=sam.grid).contains(&sam.window);
        match is_fit {
            true => Ok(sam),
            false => Err(config.error(format!(
                "`vision_config` has {image_size} pixels in patches of {patch_size}, windows of \
                 {}, and a width of {width} with {num_heads} heads",
                sam.window
            ))),
        }
    }

    fn layer(&self, index: usize) -> LayerSpec {
        let Self { width, inner, heads, eps, .. } = *self;
        let part = |part: &str| name(&format!("layers.{index}.{part}"));
        let norm = |name| BlockNorms::before(NormSpec::layer(part(name), width, eps));
        let linear = |name, n, k| LinearSpec::new(part(name), n, k).with_bias(true);
        let side = if self.is_whole[index] { self.grid } else { self.window };
        let table = |name| (part(name), vec![2 * side - 1, heads.head_dim]);
        let squares = SquaresSpec {
            tables: ["attn.rel_pos_h", "attn.rel_pos_w"].map(table),
            grid: self.grid,
            side,
        };
        let qkv = linear("attn.qkv", 3 * width, width).with_bias(self.has_bias);
        let attention =
            AttentionSpec::new(norm("layer_norm1"), heads, qkv, linear("attn.proj", width, width));
        let mlp = MlpSpec {
            norms: norm("layer_norm2"),
            form: MlpForm::Plain,
            activation: ActivationSpec::Known(self.activation),
            up: linear("mlp.lin1", inner, width),
            down: linear("mlp.lin2", width, inner),
        };
        LayerSpec::new(AttentionSpec { squares: Some(squares), ..attention }, mlp)
    }

    /// The products behind the layers, and those that bring patches together, twice by halves.
    fn connector(&self, hidden_size: usize) -> ConnectorSpec {
        let Self { width, channels, grid, .. } = *self;
        let norm = |part| ConnectorStep::Norm(NormSpec::layer(name(part), channels, NECK_EPS));
        let convolution = |name: String, (n, k), (side, stride), by_token| {
            let linear = LinearSpec::new(name, n, 9 * k).of_squares(3);
            ConnectorStep::Convolve(ConvolutionSpec { linear, side, stride, by_token })
        };
        let projector = |part: &str| format!("model.multi_modal_projector.{part}");
        let first = LinearSpec::new(name("neck.conv1"), channels, width).of_squares(1);
        let last = LinearSpec::new(projector("multimodal_projector"), hidden_size, hidden_size);
        ConnectorSpec {
            steps: vec![
                ConnectorStep::Linear(first),
                norm("neck.layer_norm1"),
                convolution(name("neck.conv2"), (channels, channels), (grid, 1), Some(4)),
                norm("neck.layer_norm2"),
                convolution(
                    projector("conv_upsampler1"),
                    (2 * channels, channels),
                    (grid, 2),
                    None,
                ),
                convolution(
                    projector("conv_upsampler2"),
                    (hidden_size, 2 * channels),
                    (grid / 2, 2),
                    None,
                ),
            ],
            last: last.with_bias(true),
        }
    }
}

/// The tower.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let keys = vision::section(config)?;
    keys.expect("model_type", "got_ocr2_vision")?;
    let sam = Sam::read(config, &keys)?;
    let Sam { width, patch_size, grid, .. } = sam;
    let layers = (0..sam.num_layers).map(|index| sam.layer(index)).collect();
    // (1, side, side, width)
    let table = LinearSpec::of_stack(name("pos_embed"), 1, (grid * grid, width));
    let table = table.as_parameters().of_places(grid);
    let patches = LinearSpec::of_patches(name("patch_embed.projection"), width, patch_size);
    let image_token_id: TokenId = image_token_id(config, "image_token_index", 151_859)?;
    let hidden_size = config.text_part().hidden_size()?;
    Ok(TowerSpec {
        merge_size: 4,
        positions: Some(GridPositions { table, side: grid, fit: GridFit::OwnAlone }),
        windows: Some(WindowsSpec {
            side: sam.window,
            is_whole: sam.is_whole.clone(),
            is_filled: true,
        }),
        ..TowerSpec::new(
            image_token_id,
            ImageText::Bare,
            patch_size,
            patches.with_bias(true),
            layers,
            sam.connector(hidden_size),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::{shape_of, specs_of};

    fn specs(vision: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["GotOcr2ForConditionalGeneration"], "image_token_index": 8,
            "vision_config": {{{vision} "num_hidden_layers": 3}}, "text_config": {{
            "model_type": "qwen2", "hidden_size": 32, "intermediate_size": 64,
            "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 1,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
            "vocab_size": 9}}}}"#
        );
        specs_of(&text)
    }

    #[test]
    fn a_tower_has_the_defaults_of_its_class_and_all_tensors() {
        let (decoder, tower) = specs("").unwrap();
        assert!(decoder.output.lm_head.is_none());
        assert_eq!((tower.patch_size, tower.merge_size, tower.heads().head_dim), (16, 4, 64));
        let tensors = tower.tensors();
        let shape = |name: &str| shape_of(&tensors, &format!("model.{name}"));
        assert_eq!(shape("vision_tower.pos_embed"), [1, 64, 64, 768]);
        assert_eq!(shape("vision_tower.layers.1.attn.rel_pos_h"), [27, 64]);
        assert_eq!(shape("vision_tower.layers.2.attn.rel_pos_w"), [127, 64]);
        assert_eq!(shape("vision_tower.neck.conv1.weight"), [256, 768, 1, 1]);
        assert_eq!(shape("vision_tower.neck.conv2.weight"), [256, 256, 3, 3]);
        assert_eq!(shape("multi_modal_projector.conv_upsampler2.weight"), [32, 512, 3, 3]);
        assert_eq!(tensors.len(), 3 + 3 * 14 + 6 + 4);
    }

    #[test]
    fn what_no_tower_computes_is_refused() {
        for (vision, expected) in [
            (r#""use_rel_pos": false,"#, "`vision_config.use_rel_pos`"),
            (r#""window_size": 65,"#, "windows of 65"),
            (r#""image_size": 1000,"#, "1000 pixels in patches of 16"),
            (r#""num_attention_heads": 7,"#, "with 7 heads"),
            (r#""global_attn_indexes": ["all"],"#, "`global_attn_indexes` should be"),
        ] {
            let error = specs(vision).unwrap_err();
            assert!(error.contains(expected), "{vision}: {error}");
        }
    }
}
