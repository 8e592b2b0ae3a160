//! Models that compare pictures and texts token by token (ColPali, ColQwen, ColSmol): a family that
//! sees, with a projection behind each of its states. A row is a text, which is a query, or one
//! image; each has words around it.

use super::modernbert;
use crate::families::siglip::{self, SIGLIP};
use crate::families::vision::{self, VisionKeys};
use crate::families::{self, Sight};
use crate::hf_config::HfConfig;
use crate::limits;
use crate::spec::{
    ConnectorSpec, ConnectorStep, EncoderSpec, HeadLayer, HeadSpec, ImageText, LinearSpec,
    NormSpec, TokenId, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;

/// What `embedding_dim` is where nothing says it, and in the classes of colpali-engine.
const WIDTH: usize = 128;

/// Families by the `model_type` of `vlm_config`.
const SEEING: &[(&str, &str)] = &[
    ("paligemma", "PaliGemmaForConditionalGeneration"),
    ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
    ("qwen2_vl", "Qwen2VLForConditionalGeneration"),
];

const QWEN_IMAGE: &str = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|>\
     <|endoftext|>";

/// Words around the rows of a model, and what the files of its processor may say in their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowWords {
    /// Stands before what `visual_prompt_prefix` says.
    before_image: &'static str,
    /// `visual_prompt_prefix`; with the image in it, or behind it.
    image: &'static str,
    /// Stand behind it.
    behind_image: &'static str,
    /// BOS stands before what either key says.
    is_begun: bool,
    /// `query_prefix`
    query: &'static str,
    /// Stands behind a query, ten times; None: the tokenizer's token of padding.
    augmentation: Option<&'static str>,
    /// Stands behind those.
    behind_query: &'static str,
    /// A file of the processor may say others.
    is_of_file: bool,
}

/// ColPali, as `processing_colpali.py` of transformers writes rows.
const COLPALI: RowWords = RowWords {
    before_image: "<image>",
    image: "Describe the image.",
    behind_image: "\n",
    is_begun: true,
    query: "Question: ",
    augmentation: None,
    behind_query: "\n",
    is_of_file: true,
};

/// ColQwen2, as `processing_colqwen2.py` of transformers writes rows.
const COLQWEN2: RowWords = RowWords {
    before_image: "",
    image: QWEN_IMAGE,
    behind_image: "",
    is_begun: false,
    query: "Query: ",
    ..COLPALI
};

/// ColQwen2 and 2.5, as the classes of colpali-engine 0.3.18 write rows.
const OF_ENGINE: RowWords = RowWords {
    behind_image: "",
    query: "",
    augmentation: Some("<|endoftext|>"),
    behind_query: "",
    is_of_file: false,
    ..COLQWEN2
};

/// ColIdefics3, likewise.
const COLIDEFICS3: RowWords = RowWords {
    image: "<|im_start|>User:<image>Describe the image.<end_of_utterance>\nAssistant:",
    augmentation: Some("<end_of_utterance>"),
    ..OF_ENGINE
};

/// ColModernVBert, as `processing_colmodernvbert.py` of transformers writes rows.
const COLMODERNVBERT: RowWords = RowWords {
    image: "<|begin_of_text|>User:<image>Describe the image.<end_of_utterance>\nAssistant:",
    is_of_file: true,
    ..COLIDEFICS3
};

/// The words of the first class of these names that has some.
pub(crate) fn row_words(names: &[&str]) -> Option<RowWords> {
    let words = |name: &&str| match *name {
        "ColModernVBertForRetrieval" => Some(COLMODERNVBERT),
        "ColPaliForRetrieval" => Some(COLPALI),
        "ColQwen2ForRetrieval" => Some(COLQWEN2),
        "ColQwen2" | "ColQwen2_5" => Some(OF_ENGINE),
        "ColIdefics3" => Some(COLIDEFICS3),
        _ => None,
    };
    names.iter().find_map(words)
}

impl RowWords {
    /// A file of the processor may say others.
    pub fn are_of_file(&self) -> bool {
        self.is_of_file
    }

    /// The chat template that writes a row with these words: a user's message is a query or one
    /// image. `said`: `visual_prompt_prefix` and `query_prefix` of the processor's file;
    /// `pad_token`: that of the tokenizer.
    ///
    /// # Errors
    /// The tokenizer has no token of padding, and queries have it.
    pub fn template(
        &self,
        [image, query]: [Option<&str>; 2],
        pad_token: Option<&str>,
    ) -> Result<String, String> {
        let text = |text: &str| serde_json::Value::from(text).to_string();
        let given = |said: Option<&str>, own: &str| {
            let said = said.filter(|said| !said.is_empty() || self.is_begun);
            said.unwrap_or(own).to_owned()
        };
        let token = self.augmentation.or(pad_token).ok_or_else(|| {
            "the tokenizer has no `pad_token`, which stands behind queries; help: copy \
             tokenizer_config.json from the model's repository"
                .to_owned()
        })?;
        let image = given(image, self.image);
        let begun = |words: &str| match self.is_begun {
            true => format!("bos_token + {}", text(words)),
            false => text(words),
        };
        let image = begun(&format!("{image}{}", self.behind_image));
        let image = format!("{} + {image}", text(self.before_image));
        let before = begun(&given(query, self.query));
        let behind = text(&format!("{}{}", token.repeat(10), self.behind_query));
        Ok(format!(
            "{{%- if messages | length != 1 or messages[0].role != 'user' -%}}\
             {{{{- raise_exception('a row is a query or one image: no system and no answers') -}}}}\
             {{%- endif -%}}\
             {{%- set content = messages[0].content -%}}\
             {{%- if content is string -%}}{{{{- {before} + content + {behind} -}}}}\
             {{%- else -%}}{{%- set row = namespace(sees=false) -%}}\
             {{%- for part in content if part.type == 'image' -%}}\
             {{%- set row.sees = true -%}}{{{{- {image} -}}}}{{%- endfor -%}}\
             {{%- if not row.sees -%}}{{{{- {before} -}}}}\
             {{%- for part in content if part.type == 'text' -%}}{{{{- part.text -}}}}{{%- endfor -%}}\
             {{{{- {behind} -}}}}{{%- endif -%}}{{%- endif -%}}"
        ))
    }
}

/// ColPali, all of whose tokens see each other.
pub(super) fn colpali(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    of(config, family_of_vlm(config, &["paligemma"])?, "embedding_proj_layer", false)
}

/// ColQwen2. transformers 5.24 computes images in it with the positions of texts, on one axis.
pub(super) fn colqwen2(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    let family = family_of_vlm(config, &["qwen2_vl", "qwen2_5_vl"])?;
    let mut spec = of(config, family, "embedding_proj_layer", true)?;
    spec.ropes.iter_mut().for_each(|rope| rope.axes.clear());
    Ok(spec)
}

/// ColModernVBert: ModernBERT, and SigLIP's tower, whose patches are brought together by squares.
pub(super) fn colmodernvbert(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    // Its keys are this spec's too.
    colmodernvbert_tower(config)?;
    let vlm = config.vlm_part();
    // Of heads, and of training.
    vlm.root().ignore(&[
        "classifier_bias",
        "classifier_dropout",
        "classifier_pooling",
        "initializer_cutoff_factor",
        "tie_word_embeddings",
    ]);
    let text = vlm.text_part();
    text.root().expect("model_type", "modernbert")?;
    text.root().ignore(&["tie_word_embeddings"]);
    let spec = EncoderSpec { of_heads: OF_IMAGES, ..modernbert::spec(text)? };
    projected(config, spec, "embedding_proj_layer")
}

/// What no state of a text depends on.
const OF_IMAGES: &[&str] = &["connector.", "vision_model."];

/// Its tower.
pub(super) fn colmodernvbert_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let vlm = config.vlm_part();
    vlm.root().expect("model_type", "modernvbert")?;
    let keys = vision::section(vlm)?;
    keys.expect("model_type", "siglip_vision_model")?;
    keys.ignore(&["vision_use_head"]);
    let merge_size = vlm.root().size_or("pixel_shuffle_factor", 4)?;
    let vision = VisionKeys::read(vlm, SIGLIP, merge_size)?;
    let VisionKeys { width, eps, .. } = vision;
    let (merged, hidden_size) = (merge_size * merge_size * width, vlm.text_part().hidden_size()?);
    let connector = ConnectorSpec {
        steps: vec![ConnectorStep::Merge],
        last: LinearSpec::new("model.connector.modality_projection", hidden_size, merged),
    };
    let image_token_id = vlm.root().size_or("image_token_id", 50_407)? as u32;
    let place = (TokenId::Known(image_token_id), ImageText::Tiles);
    let prefix = "model.vision_model";
    Ok(TowerSpec {
        merge_size,
        final_norm: Some(NormSpec::layer(format!("{prefix}.post_layernorm"), width, eps)),
        unused: vec!["vision_model.head.".to_owned()],
        ..siglip::tower_at(prefix, &vision, place, connector)
    })
}

/// The tower of either.
pub(super) fn tower_of_vlm(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let all: Vec<_> = SEEING.iter().map(|(model_type, _)| *model_type).collect();
    tower(config.vlm_part(), family_of_vlm(config, &all)?)
}

/// ColQwen2 in the layout of colpali-engine.
pub(super) fn engine_colqwen2(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    of(config, "Qwen2VLForConditionalGeneration", "custom_text_proj", true)
}

/// Its tower.
pub(super) fn engine_colqwen2_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    tower(config, "Qwen2VLForConditionalGeneration")
}

/// ColQwen2.5 in that layout.
pub(super) fn engine_colqwen2_5(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    of(config, "Qwen2_5_VLForConditionalGeneration", "custom_text_proj", true)
}

/// Its tower.
pub(super) fn engine_colqwen2_5_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    tower(config, "Qwen2_5_VLForConditionalGeneration")
}

/// ColIdefics3 in that layout: ColSmol.
pub(super) fn engine_colidefics3(config: &HfConfig) -> Result<EncoderSpec, EngineError> {
    of(config, "Idefics3ForConditionalGeneration", "linear", true)
}

/// Its tower.
pub(super) fn engine_colidefics3_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    tower(config, "Idefics3ForConditionalGeneration")
}

/// The family of `vlm_config`, which is one of these types.
fn family_of_vlm(config: &HfConfig, types: &[&str]) -> Result<&'static str, EngineError> {
    let model_type = config.vlm_part().root().text("model_type")?.unwrap_or_default();
    let known = SEEING.iter().find(|(known, _)| *known == model_type && types.contains(known));
    known.map(|(_, family)| *family).ok_or_else(|| {
        config.error(format!(
            "`vlm_config` of type {} is not supported; {} are",
            quoted(model_type),
            types.join(", ")
        ))
    })
}

fn of(
    config: &HfConfig,
    family: &str,
    projection: &str,
    is_causal: bool,
) -> Result<EncoderSpec, EngineError> {
    let vlm = config.vlm_part();
    let family = families::find(family).expect("a family of the registry");
    let decoder = (family.spec)(vlm)?;
    limits::check(&decoder).map_err(|text| vlm.error(text))?;
    let spec = EncoderSpec::of_decoder(decoder, is_causal)
        .map_err(|part| vlm.error(format!("{part} is not supported in models of vectors")))?;
    projected(config, spec, projection)
}

/// The same with a projection of this name behind each state.
fn projected(
    config: &HfConfig,
    spec: EncoderSpec,
    projection: &str,
) -> Result<EncoderSpec, EngineError> {
    let root = config.root();
    let width = root.size_or("embedding_dim", WIDTH)?;
    if config.is_wrapped() {
        // Those of the inner class, which nobody asks.
        config.vlm_part().root().ignore(&["architectures", "vocab_size"]);
        root.ignore(&["initializer_range"]);
    }
    let projection = LinearSpec::new(projection, width, spec.hidden_size()).with_bias(true);
    let projection = Some(HeadSpec { layers: vec![HeadLayer::new(projection)] });
    Ok(EncoderSpec { projection, compares_tokens: true, ..spec })
}

fn tower(vlm: &HfConfig, family: &str) -> Result<TowerSpec, EngineError> {
    match families::find(family).expect("a family of the registry").tower {
        Sight::All(tower) => tower(vlm),
        Sight::None | Sight::Some(_) => unreachable!("these families see"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_file_or_of_the_class() {
        let own = COLQWEN2.template([None, None], Some("<pad>")).unwrap();
        assert!(own.contains(r#""Query: " + content + "<pad><pad>"#), "{own}");
        assert!(own.contains("Describe the image."), "{own}");
        let said = COLQWEN2.template([Some("<|image_pad|>!"), Some("Q\"")], Some("<pad>")).unwrap();
        assert!(said.contains(r#""Q\"" + content"#) && said.contains(r#""<|image_pad|>!""#));
        let begun = COLPALI.template([None, Some("")], Some("<pad>")).unwrap();
        assert!(begun.contains(r#"bos_token + "" + content"#), "{begun}");
        assert!(COLPALI.template([None, None], None).unwrap_err().contains("`pad_token`"));
        assert!(COLIDEFICS3.template([None, None], None).is_ok());
    }

    #[test]
    fn another_model_within_is_refused() {
        let text = r#"{"architectures": ["ColQwen2ForRetrieval"],
            "vlm_config": {"model_type": "paligemma"}}"#;
        let config = HfConfig::parse(text, "config.json").unwrap();
        let error = crate::encoder_spec(&config).unwrap_err().to_string();
        assert!(error.contains("`vlm_config` of type `paligemma`"), "{error}");
    }
}
