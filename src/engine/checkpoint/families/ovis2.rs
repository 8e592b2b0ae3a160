//! Ovis 2: a text model with RMSNorms and gated MLPs in its tower, whose tokens are words of a
//! visual vocabulary: mixtures of the rows of a table, by softmax. Marks around tiles are rows of
//! the same table.

use serde_json::json;

use super::vision::{self, VisionDefaults, VisionKeys, image_token_id, text_part};
use crate::hf_config::HfConfig;
use crate::spec::{
    ActivationSpec, AttentionSpec, BlockNorms, ConnectorSpec, ConnectorStep, DecoderSpec, GridFit,
    GridPositions, ImageText, LayerSpec, LinearSpec, MarksSpec, MlpForm, MlpSpec, NormSpec,
    TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Prefixes of tensors of the tower and of its words.
const IMAGE_TENSORS: &[&str] = &["model.visual_embeddings_table.", "model.vision_tower."];

const TOWER: &str = "model.vision_tower";
const TABLE: &str = "model.visual_embeddings_table";

/// Marks of an image: before it, behind its whole, behind tiles of a row, behind rows, behind all.
const NUM_MARKS: usize = 5;

/// Epsilon of the norm of logits, `LayerNorm` of torch.
const EPS: f32 = 1e-5;

/// Defaults of `Ovis2VisionConfig`.
const DEFAULTS: VisionDefaults = VisionDefaults {
    hidden_size: 1024,
    intermediate_size: 2816,
    num_layers: 24,
    num_heads: 8,
    image_size: 224,
    patch_size: 14,
    layer_norm_eps: 1e-5,
    activation: Activation::Silu,
};

/// The text part, whose class ties its output layer.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    tower(config)?;
    let (root, text) = (config.root(), config.text_part());
    text.assume(&[("tie_word_embeddings", json!(true))]);
    root.expect("hidden_size", text.hidden_size()?)?;
    // That of the text part counts.
    root.ignore(&["vocab_size"]);
    text_part(config, "qwen2", IMAGE_TENSORS)
}

/// The tower.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let keys = vision::section(config)?;
    vision::require_sizes(&keys)?;
    keys.expect("tokenize_function", "softmax")?;
    let merge_size = keys.size_or("hidden_stride", 1)?;
    let vision = VisionKeys::read(config, DEFAULTS, merge_size)?;
    let eps = keys.number("rms_norm_eps")?.unwrap_or(1e-5) as f32;
    let (has_qkv_bias, has_mlp_bias) =
        (keys.flag("qkv_bias")?.unwrap_or(false), keys.flag("mlp_bias")?.unwrap_or(false));
    let (side, width) = (vision.side(), vision.width);
    if !side.is_multiple_of(merge_size) {
        return Err(config.error(format!(
            "`hidden_stride` of {merge_size} makes no whole tokens of {side}x{side} patches"
        )));
    }
    keys.expect("num_visual_indicator_tokens", NUM_MARKS)?;
    let num_words = keys.size_or("vocab_size", 16_384)?;
    if num_words <= NUM_MARKS {
        return Err(config.error(format!("a visual vocabulary of {num_words} has no words")));
    }
    let name = |part: &str| format!("{TOWER}.transformer.{part}");
    let norm = |part: &str| NormSpec::rms(name(part), width, eps);
    let patches =
        LinearSpec::of_patches(name("embeddings.patch_embedding"), width, vision.patch_size);
    let table = LinearSpec::new(name("embeddings.position_embedding"), side * side, width);
    let layers = (0..vision.num_layers)
        .map(|index| layer(&vision, index, eps, (has_qkv_bias, has_mlp_bias)))
        .collect();
    let text = ImageText::Marked { shown: "<image>" };
    let image_token_id = image_token_id(config, "image_token_id", 151_665)?;
    let connector = connector(config, (width * merge_size * merge_size, num_words))?;
    Ok(TowerSpec {
        merge_size,
        patch_norm: Some(norm("embeddings.rms_norm")),
        positions: Some(GridPositions { table, side, fit: GridFit::OwnAlone }),
        final_norm: Some(norm("rms_norm")),
        marks: Some(marks(config, num_words)?),
        ..TowerSpec::new(
            image_token_id,
            text,
            vision.patch_size,
            patches.with_bias(true),
            layers,
            connector,
        )
    })
}

fn layer(
    vision: &VisionKeys,
    index: usize,
    eps: f32,
    (has_qkv_bias, has_mlp_bias): (bool, bool),
) -> LayerSpec {
    let VisionKeys { width, inner, heads, activation, .. } = *vision;
    let name = |part: &str| format!("{TOWER}.transformer.encoder.layers.{index}.{part}");
    let norm = |part| BlockNorms::before(NormSpec::rms(name(part), width, eps));
    let qkv = ["attention.q_proj", "attention.k_proj", "attention.v_proj"];
    let qkv = LinearSpec::stacked(qkv.map(|part| (name(part), width)), width);
    let out = LinearSpec::new(name("attention.out_proj"), width, width);
    let up = ["ffn.gate_proj", "ffn.up_proj"].map(|part| (name(part), inner));
    let mlp = MlpSpec {
        norms: norm("rms_norm2"),
        form: MlpForm::Gated,
        activation: ActivationSpec::Known(activation),
        up: LinearSpec::stacked(up, width).with_bias(has_mlp_bias),
        down: LinearSpec::new(name("ffn.down_proj"), width, inner).with_bias(has_mlp_bias),
    };
    let (qkv, out) = (qkv.with_bias(has_qkv_bias), out.with_bias(has_qkv_bias));
    LayerSpec::new(AttentionSpec::new(norm("rms_norm1"), heads, qkv, out), mlp)
}

/// From the values of the patches of a token to its embedding: shares of words, and their mixture.
fn connector(
    config: &HfConfig,
    (width, num_words): (usize, usize),
) -> Result<ConnectorSpec, EngineError> {
    let hidden = config.text_part().hidden_size()?;
    let num_words_of_patches = num_words - NUM_MARKS;
    let name = |part: &str| format!("{TOWER}.{part}");
    let table = LinearSpec::new(TABLE, hidden, num_words).transposed();
    let steps = vec![
        ConnectorStep::Merge,
        ConnectorStep::Linear(LinearSpec::new(name("head_linear"), num_words_of_patches, width)),
        ConnectorStep::Norm(NormSpec::layer(name("head_norm"), num_words_of_patches, EPS)),
        ConnectorStep::Softmax,
    ];
    Ok(ConnectorSpec { steps, last: table.of_first_columns(num_words_of_patches) })
}

/// The marks of an image, which are the last rows of the table of words.
fn marks(config: &HfConfig, num_words: usize) -> Result<MarksSpec, EngineError> {
    const DEFAULT: [u32; NUM_MARKS] = [151_666, 151_667, 151_668, 151_669, 151_670];
    let wrong = || config.error("`visual_indicator_token_ids` should be 5 tokens");
    let ids = match config.root().list("visual_indicator_token_ids")? {
        None => DEFAULT.to_vec(),
        Some(ids) => {
            let ids = ids.iter().map(|id| u32::try_from(id.as_u64()?).ok());
            ids.collect::<Option<Vec<_>>>()
                .filter(|ids| ids.len() == NUM_MARKS)
                .ok_or_else(wrong)?
        }
    };
    let vocab_size = config.text_part().vocab_size()?;
    if ids.iter().any(|id| *id as usize >= vocab_size) {
        return Err(wrong());
    }
    let table = LinearSpec::new(TABLE, num_words, config.text_part().hidden_size()?);
    let rows = num_words - NUM_MARKS..num_words;
    Ok(MarksSpec { table: table.of_rows(rows), ids, is_added: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::{shape_of, specs_of};

    fn specs(top: &str, vision: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["Ovis2ForConditionalGeneration"], "hidden_size": 32, {top}
            "image_token_id": 40, "visual_indicator_token_ids": [41, 42, 43, 44, 45],
            "vision_config": {{{vision} "hidden_size": 24, "intermediate_size": 40,
            "num_attention_heads": 3, "num_hidden_layers": 2, "image_size": 32, "patch_size": 8,
            "vocab_size": 30}}, "text_config": {{"model_type": "qwen2",
            "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
            "num_hidden_layers": 1, "max_position_embeddings": 64, "vocab_size": 50}}}}"#
        );
        specs_of(&text)
    }

    #[test]
    fn words_and_marks_are_of_one_table() {
        let (decoder, tower) = specs("", r#""hidden_stride": 2,"#).unwrap();
        let tensors = tower.tensors();
        let shape = |name: &str| shape_of(&tensors, name);
        assert_eq!(shape("model.vision_tower.head_linear.weight"), [25, 96]);
        assert_eq!(shape("model.visual_embeddings_table.weight"), [30, 32]);
        assert_eq!((tower.connector.last.n(), tower.connector.last.k), (32, 25));
        let marks = tower.marks.as_ref().unwrap();
        assert_eq!((marks.table.n(), &marks.ids[..]), (5, &[41, 42, 43, 44, 45][..]));
        assert_eq!(tensors.len(), 3 + 2 * 9 + 2 + 3 + 1);
        assert!(decoder.output.lm_head.is_none());
        assert!(tensors.iter().all(|(name, _)| {
            decoder.embedding.of_media.iter().any(|prefix| name.starts_with(prefix))
        }));
    }

    #[test]
    fn what_no_tower_computes_is_refused() {
        for (top, vision, expected) in [
            ("", r#""tokenize_function": "gumbel_argmax","#, "`vision_config.tokenize_function`"),
            ("", r#""hidden_stride": 3,"#, "no whole tokens"),
            ("", r#""num_visual_indicator_tokens": 4,"#, "num_visual_indicator_tokens"),
            ("", r#""qk_norm": true,"#, "`vision_config.qk_norm` is not known"),
            (r#""other": 1,"#, "", "`other` is not known"),
        ] {
            let error = specs(top, vision).unwrap_err();
            assert!(error.contains(expected), "{top} {vision}: {error}");
        }
    }
}
