//! DeepSeek-VL: a text model, and SigLIP, whose patches go through an MLP. Images are squares with
//! bars beside them.

use serde_json::json;

use super::siglip::{self, SIGLIP};
use super::vision::{self, VisionKeys, image_token_id, text_part};
use crate::hf_config::HfConfig;
use crate::spec::{
    ConnectorSpec, ConnectorStep, DecoderSpec, ImageText, LinearSpec, NormSpec, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::Activation;

/// Prefixes of tensors of images, for those who run the model for text alone.
const IMAGE_TENSORS: &[&str] = &["model.aligner.", "model.vision_model."];

const PREFIX: &str = "model.vision_model.vision_model";

/// The head of SigLIP, which nobody reads.
const UNUSED: [&str; 2] = ["model.vision_model.head.", "model.vision_model.vision_model.head."];

/// The text part, of Llama if the file names no family.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its class says so, of all of the model.
    config.text_part().assume(&[("tie_word_embeddings", json!(true))]);
    // Its keys are this file's too.
    tower(config)?;
    text_part(config, "llama", IMAGE_TENSORS)
}

/// The tower.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let keys = vision::section(config)?;
    keys.expect("model_type", "siglip_vision_model")?;
    keys.ignore(&["vision_use_head"]);
    vision::require_sizes(&keys)?;
    let vision = VisionKeys::read(config, SIGLIP, 1)?;
    let hidden_size = config.text_part().hidden_size()?;
    let linear = |part: &str, k| {
        LinearSpec::new(format!("model.aligner.{part}"), hidden_size, k).with_bias(true)
    };
    let connector = ConnectorSpec {
        steps: vec![
            ConnectorStep::Linear(linear("linear1", vision.width)),
            ConnectorStep::Activate(Activation::Gelu),
        ],
        last: linear("linear2", hidden_size),
    };
    let place = (image_token_id(config, "image_token_id", 100_015)?, ImageText::Bare);
    let name = format!("{PREFIX}.post_layernorm");
    Ok(TowerSpec {
        final_norm: Some(NormSpec::layer(name, vision.width, vision.eps)),
        unused: UNUSED.map(str::to_owned).to_vec(),
        ..siglip::tower_at(PREFIX, &vision, place, connector)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::specs_of;

    fn specs(text: &str, vision: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["DeepseekVLForConditionalGeneration"], "image_token_id": 8,
            "vision_config": {{"hidden_size": 24, "num_hidden_layers": 2, {vision}
            "intermediate_size": 40, "num_attention_heads": 3, "patch_size": 8, "image_size": 32}},
            "text_config": {{{text} "hidden_size": 32, "intermediate_size": 48,
            "num_attention_heads": 4, "num_hidden_layers": 1, "max_position_embeddings": 64,
            "vocab_size": 9}}}}"#
        );
        specs_of(&text)
    }

    #[test]
    fn a_tower_has_all_tensors_and_its_text_is_tied() {
        let (decoder, tower) = specs("", "").unwrap();
        assert!(decoder.output.lm_head.is_none());
        let names: Vec<_> = tower.tensors().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), 3 + 2 * 16 + 2 + 4);
        assert!(names.contains(&"model.aligner.linear2.bias".to_owned()), "{names:?}");
        let (decoder, _) = specs(r#""tie_word_embeddings": false,"#, "").unwrap();
        assert!(decoder.output.lm_head.is_some());
    }

    #[test]
    fn another_tower_is_refused() {
        let error = specs("", r#""model_type": "clip_vision_model","#).unwrap_err();
        assert!(error.contains("`vision_config.model_type`"), "{error}");
    }
}
