//! Models, read from their files: a family is one file that turns config.json into a
//! `DecoderSpec` or an `EncoderSpec`; weights are matrices that are read row by row. Knows no
//! device and no op.
//!
//! Read first: [`spec::DecoderSpec`], [`hf_config::HfConfig`], [`weights::Checkpoint`].

#![warn(missing_docs, unreachable_pub)]

pub mod adapter;
pub mod encoders;
pub mod families;
pub mod gguf;
pub mod hf_config;
pub mod limits;
pub mod model_files;
pub mod own_head;
mod patterns;
pub mod quantization;
pub mod spec;
pub mod weights;

pub use encoders::{
    CLASSIFIERS, ENCODERS, IMAGE_CLASSIFIERS, REWARD_MODELS, classifier, encoder_spec,
    gguf_pooling, is_classifier, masked_lm, matryoshka_dimensions, row_words,
};
pub use families::ARCHITECTURES;
use families::{Architecture, Sight};
use hf_config::HfConfig;
use serde_json::Value;
use spec::{DecoderSpec, SoundTowerSpec, TowerSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;

/// The family of a model folder's config: the first that one of its names is known by.
fn family(config: &HfConfig) -> Result<Option<&'static Architecture>, EngineError> {
    Ok(config.architectures()?.iter().find_map(|name| families::find(name)))
}

/// The spec of a model folder's config.
///
/// # Errors
/// The architecture is unknown (the message has the nearest ones), or the config lacks something.
pub fn decoder_spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let Some(known) = family(config)? else {
        let names = config.architectures()?;
        if let Some(purpose) = names.iter().find_map(|name| encoders::purpose(name)) {
            let names = quoted(&names.join(", "));
            return Err(EngineError::Model(format!("architecture {names} {purpose}")));
        }
        return Err(EngineError::Model(format!(
            "architecture {} is not supported; {} are (docs/MODELS.md), {} among them; if it computes \
             what one of them does, `settings.hf_overrides` '{{\"architectures\": [NAME]}}' runs it",
            quoted(&names.join(", ")),
            ARCHITECTURES.len(),
            nearest(names[0]).join(", "),
        )));
    };
    // Before a spec has one value per layer.
    config.refuse_more_layers_than(limits::MAX_LAYERS)?;
    let spec = (known.spec)(config)?;
    config.refuse_unread()?;
    limits::check(&spec).map_err(|text| config.error(text))?;
    Ok(spec)
}

/// The spec of the vision tower of a model folder's config, whose [`decoder_spec`] was made; None:
/// the model is run for text alone.
///
/// # Errors
/// The config lacks something, or has a size that no tower has.
pub fn tower_spec(config: &HfConfig) -> Result<Option<TowerSpec>, EngineError> {
    let spec = match family(config)?.map_or(Sight::None, |known| known.tower) {
        Sight::None => {
            let of_encoder = encoders::tower(&config.architectures()?);
            of_encoder.map(|tower| tower(config)).transpose()?
        }
        Sight::All(tower) => Some(tower(config)?),
        Sight::Some(tower) => tower(config)?,
    };
    let Some(spec) = spec else { return Ok(None) };
    limits::check_tower(&spec).map_err(|text| config.error(text))?;
    let scale = match spec.scale {
        None => families::vision::image_scale(config.vlm_part())?,
        scale => scale,
    };
    Ok(Some(TowerSpec { scale, ..spec }))
}

/// The spec of what makes states of sounds, of a config whose [`decoder_spec`] was made; None: the
/// model hears nothing.
///
/// # Errors
/// The config lacks something, or has a size that no such tower has.
pub fn sound_tower_spec(config: &HfConfig) -> Result<Option<SoundTowerSpec>, EngineError> {
    let Some(build) = family(config)?.and_then(|known| known.sound_tower) else { return Ok(None) };
    let spec = build(config)?;
    limits::check_sound_tower(&spec).map_err(|text| config.error(text))?;
    Ok(Some(spec))
}

/// The configuration of its image processor, in the words of transformers, where config.json says
/// how images are cut; None: another file does.
///
/// # Errors
/// The config has a key of another value than are supported.
pub fn image_processor(config: &HfConfig) -> Result<Option<Value>, EngineError> {
    let known = family(config)?;
    known.and_then(|known| known.processor).map(|processor| processor(config)).transpose()
}

/// The chat template of a model whose files have none; None: there is none for its family.
///
/// # Errors
/// `architectures` is missing.
pub fn chat_template(config: &HfConfig) -> Result<Option<&'static str>, EngineError> {
    Ok(family(config)?.and_then(|known| known.chat_template))
}

/// Whether chats begin with BOS, or with EOS where there is none, whatever their template writes.
///
/// # Errors
/// `architectures` is missing.
pub fn begins_chats(config: &HfConfig) -> Result<bool, EngineError> {
    Ok(family(config)?.is_some_and(|known| known.begins_chats))
}

/// The architectures whose names are nearest to one that is not there.
fn nearest(name: &str) -> Vec<&'static str> {
    const NUM_NEAREST: usize = 3;
    let name: String = name.chars().take(64).collect();
    let distance = |known: &str| strsim::damerau_levenshtein(&name, known);
    let mut known: Vec<_> = ARCHITECTURES.iter().map(|known| known.name).collect();
    known.sort_by_cached_key(|known| distance(known));
    known.truncate(NUM_NEAREST);
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_architecture_is_refused_with_the_nearest_known_ones() {
        let config = HfConfig::parse(r#"{"architectures": ["Qwen9ForCausalLM"]}"#, "config.json");
        let error = decoder_spec(&config.unwrap()).unwrap_err().to_string();
        assert!(error.contains("`Qwen9ForCausalLM` is not supported"), "{error}");
        assert!(error.contains("Qwen3ForCausalLM, "), "{error}");
    }

    #[test]
    fn a_class_that_writes_no_texts_is_refused_with_the_command_that_runs_it() {
        for (class, command) in [
            ("BertModel", "makes vectors: use `embed`"),
            ("DistilBertForMaskedLM", "makes vectors: use `embed`"),
            ("Qwen3Model", "makes vectors: use `embed`"),
            ("BertForSequenceClassification", "makes classes or scores: use `classify`"),
            ("ModernBertForTokenClassification", "makes classes or scores: use `classify`"),
            ("Qwen3ForSequenceClassification", "makes classes or scores: use `classify`"),
            ("InternLM2ForRewardModel", "scores answers: use `reward`"),
        ] {
            let config = HfConfig::parse(&format!(r#"{{"architectures": ["{class}"]}}"#), "c");
            let error = decoder_spec(&config.unwrap()).unwrap_err().to_string();
            assert!(error.contains(&format!("`{class}` {command}")), "{error}");
        }
    }

    #[test]
    fn a_text_part_takes_what_the_top_says_of_it() {
        let spec = |top: &str, text: &str| {
            let text = format!(
                r#"{{"architectures": ["Mistral3ForConditionalGeneration"], {top}
                "vision_config": {{"model_type": "pixtral", "hidden_act": "silu"}},
                "image_token_index": 8, "text_config": {{{text}
                "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
                "num_hidden_layers": 1, "max_position_embeddings": 64, "vocab_size": 9}}}}"#
            );
            let config = HfConfig::parse(&text, "config.json").unwrap();
            decoder_spec(&config).map_err(|error| error.to_string())
        };
        let is_tied = |top, text| spec(top, text).map(|spec| spec.output.lm_head.is_none());
        let (tied, untied) =
            (r#""tie_word_embeddings": true,"#, r#""tie_word_embeddings": false,"#);
        assert_eq!(is_tied("", ""), Ok(false));
        assert_eq!(is_tied(tied, ""), Ok(true));
        // Said twice; or by the class at the top alone, as transformers writes Mistral 3.
        assert_eq!((is_tied(tied, tied), is_tied(tied, untied)), (Ok(true), Ok(true)));
        assert_eq!(is_tied(r#""vocab_size": 9,"#, ""), Ok(false));
        let ministral = r#""model_type": "ministral3", "rope_parameters": {"rope_type": "yarn",
            "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 4,
            "llama_4_scaling_beta": 0.1},"#;
        for (text, has_scale) in [("", false), (ministral, true)] {
            let spec = spec("", text).unwrap();
            assert!(spec.attentions().all(|a| a.position_scale.is_some() == has_scale));
        }
        for (top, text, key) in [
            ("", r#""model_type": "opt","#, "`opt`"),
            (untied, tied, "`tie_word_embeddings`"),
            (r#""vocab_size": 8,"#, "", "`vocab_size`"),
            (r#""hidden_act": "gelu","#, "", "`hidden_act`"),
            ("", r#""image_token_id": 3,"#, "`image_token_id`"),
        ] {
            let error = spec(top, text).unwrap_err();
            assert!(error.contains(key), "{error}");
        }
    }

    #[test]
    fn early_names_are_of_families_that_are_there() {
        for (early, now) in families::EARLY_NAMES {
            assert!(ARCHITECTURES.iter().all(|known| known.name != *early), "{early} is a family");
            assert_eq!(families::find(early).map(|known| known.name), Some(*now));
        }
    }

    #[test]
    fn families_that_are_saved_with_the_classes_of_others_are_there() {
        for (class, kind, own) in hf_config::CLASSES_OF_OTHERS {
            let text = format!(r#"{{"architectures": ["{class}"], "model_type": "{kind}"}}"#);
            let config = HfConfig::parse(&text, "config.json").unwrap();
            assert_eq!(config.architectures().unwrap(), [*own]);
            assert!(families::find_body(class).is_some() && families::find_body(own).is_some());
        }
    }

    #[test]
    fn missing_and_mistyped_keys_are_named() {
        let error = |text: &str| {
            let config = HfConfig::parse(text, "m/config.json").unwrap();
            decoder_spec(&config).unwrap_err().to_string()
        };
        let missing = error(r#"{"architectures": ["LlamaForCausalLM"]}"#);
        assert!(missing.starts_with("m/config.json: `") && missing.ends_with("` is missing"));
        let wrong = error(r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": "x"}"#);
        assert!(wrong.contains("`hidden_size` should be a count"), "{wrong}");
    }
}
