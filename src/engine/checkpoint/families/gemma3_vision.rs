//! Gemma 3 from 4B on: its text model, and SigLIP, whose patches are averaged by squares and
//! normalized before one product makes tokens of them. Tokens of an image attend to all of it.

use super::gemma3;
use super::siglip::{self, SIGLIP};
use super::vision::{self, IMAGE_TENSORS, VisionKeys, token_id};
use crate::hf_config::HfConfig;
use crate::spec::{
    Bidirectional, ConnectorSpec, ConnectorStep, DecoderSpec, ImageText, LinearSpec, NormSpec,
    TokenId, TowerSpec,
};
use vllm_batch_base::EngineError;

/// The text part.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let mut spec = gemma3::spec(config.text_part())?;
    // Its keys are this file's too.
    tower(config)?;
    spec.embedding.of_media = IMAGE_TENSORS;
    Ok(spec)
}

/// The tower.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let root = config.root();
    let keys = vision::section(config)?;
    keys.expect("model_type", "siglip_vision_model")?;
    // The head is never used, whether it is there or not.
    keys.ignore(&["vision_use_head"]);
    vision::require_sizes(&keys)?;
    let vision = VisionKeys::read(config, SIGLIP, 1)?;
    let VisionKeys { width, eps, .. } = vision;
    let (side, num_tokens) = (vision.side(), root.optional_size("mm_tokens_per_image")?);
    let merge_size = merge_size(side, num_tokens.unwrap_or(256)).ok_or_else(|| {
        config.error(format!("`mm_tokens_per_image` is no square that {side}x{side} patches make"))
    })?;
    let token_of = |keys: [&str; 2], default| match root.value(keys[1]).is_some() {
        true => token_id(config, keys[1], default),
        false => token_id(config, keys[0], default),
    };
    let token = token_of(["image_token_index", "image_token_id"], 262_144)?;
    let projector = |part: &str| format!("model.multi_modal_projector.{part}");
    let hidden_size = config.text_part().hidden_size()?;
    let norm = NormSpec::rms(projector("mm_soft_emb_norm"), width, eps).with_weight_offset(1.0);
    let last = LinearSpec::new(projector("mm_input_projection_weight"), hidden_size, width);
    let text = ImageText::Paragraph {
        start: token_of(["boi_token_index", "boi_token_id"], 255_999)?,
        end: token_of(["eoi_token_index", "eoi_token_id"], 256_000)?,
    };
    let connector = ConnectorSpec {
        steps: vec![ConnectorStep::MeanPool, ConnectorStep::Norm(norm)],
        last: last.transposed().as_parameters(),
    };
    Ok(TowerSpec {
        merge_size,
        bidirectional: Bidirectional::Image,
        final_norm: Some(siglip::final_norm(&vision)),
        ..siglip::tower(&vision, (TokenId::Known(token), text), connector)
    })
}

/// Patches of the side of a token, where so many tokens are made of a square of patches.
fn merge_size(side: usize, num_tokens: usize) -> Option<usize> {
    let of_tokens = num_tokens.isqrt();
    let is_whole = of_tokens * of_tokens == num_tokens && num_tokens > 0;
    (is_whole && side.is_multiple_of(of_tokens)).then(|| side / of_tokens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::{shape_of, specs_of};

    fn specs(top: &str, vision: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["Gemma3ForConditionalGeneration"], "image_token_index": 8, {top}
            "vision_config": {{{vision} "hidden_size": 24, "num_hidden_layers": 2,
            "num_attention_heads": 3, "patch_size": 8, "image_size": 48, "intermediate_size": 40}},
            "text_config": {{"model_type": "gemma3_text", "hidden_size": 32,
            "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 9}}}}"#
        );
        specs_of(&text)
    }

    const IDS: &str = r#""boi_token_index": 6, "eoi_token_id": 7,"#;

    #[test]
    fn tokens_are_squares_of_patches_between_two_others() {
        let (decoder, tower) = specs(&format!(r#"{IDS} "mm_tokens_per_image": 9,"#), "").unwrap();
        let least_step = tower.least_step(1).0;
        assert_eq!(
            (tower.merge_size, tower.positions.as_ref().unwrap().side, least_step),
            (2, 6, 9)
        );
        assert_eq!(tower.text, ImageText::Paragraph { start: 6, end: 7 });
        assert_eq!((tower.connector.n(), decoder.hidden_size()), (32, 32));
        let tensors = tower.tensors();
        let shape = |name: &str| shape_of(&tensors, name);
        assert_eq!(shape("model.multi_modal_projector.mm_input_projection_weight"), [24, 32]);
        assert_eq!(shape("model.multi_modal_projector.mm_soft_emb_norm.weight"), [24]);
        assert_eq!(tensors.len(), 3 + 2 * 16 + 2 + 2);
    }

    #[test]
    fn what_no_tower_computes_is_refused() {
        for (top, vision, expected) in [
            (r#""mm_tokens_per_image": 8,"#, "", "`mm_tokens_per_image`"),
            (r#""mm_tokens_per_image": 16,"#, "", "`mm_tokens_per_image`"),
            (r#""mm_tokens_per_image": 0,"#, "", "`mm_tokens_per_image`"),
            ("", r#""model_type": "clip_vision_model","#, "`vision_config.model_type`"),
            (r#""mm_tokens_per_image": 9, "boi_token_id": 9,"#, "", "`boi_token_id` of 9"),
        ] {
            let error = specs(&format!("{IDS} {top}"), vision).unwrap_err();
            assert!(error.contains(expected), "{top} {vision}: {error}");
        }
    }
}
