//! PaliGemma 1 and 2: Gemma or Gemma 2, and SigLIP, of each of whose patches one product makes a
//! token. All tokens of a prompt with images see each other.

use serde_json::json;

use super::siglip::{self, SIGLIP};
use super::vision::{self, IMAGE_TENSORS, VisionKeys, image_token_id};
use super::{gemma, gemma2};
use crate::hf_config::HfConfig;
use crate::spec::{Bidirectional, ConnectorSpec, DecoderSpec, ImageText, LinearSpec, TowerSpec};
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;

/// Its prompts, which no file has a template of: as `processing_paligemma.py` of transformers puts
/// a prompt behind its images.
pub(super) const CHAT_TEMPLATE: &str = "\
{%- if messages | length != 1 or messages[0].role != 'user' -%}
{{- raise_exception('PaliGemma takes one user message, its task: no system and no answers') -}}
{%- endif -%}
{%- set content = messages[0].content -%}
{%- if content is string -%}{{- bos_token + content + '\\n' -}}{%- else -%}
{%- for part in content if part.type == 'image' -%}{{- '<image>' -}}{%- endfor -%}
{{- bos_token -}}
{%- for part in content if part.type == 'text' -%}{{- part.text -}}{%- endfor -%}
{{- '\\n' -}}
{%- endif -%}";

/// The text part, with the defaults of its class, which published files lack.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Its keys are this file's too.
    tower(config)?;
    // Of training, and what the text part says.
    config.root().ignore(&[
        "_vocab_size",
        "hidden_size",
        "ignore_index",
        "num_hidden_layers",
        "vocab_size",
    ]);
    let text = config.text_part();
    let defaults = [
        ("head_dim", json!(256)),
        ("max_position_embeddings", json!(8192)),
        ("num_attention_heads", json!(8)),
    ];
    let of_gemma2 = [("num_key_value_heads", json!(4)), ("sliding_window", json!(4096))];
    let keys = text.root();
    // Tokens of an image, which are counted.
    keys.ignore(&["num_image_tokens"]);
    let mut spec = match keys.text("model_type")? {
        None | Some("gemma") => {
            text.assume(&defaults);
            gemma::of_any_mask(text)?
        }
        Some("gemma2") => {
            text.assume(&[&defaults[..], &of_gemma2[..]].concat());
            gemma2::spec(text)?
        }
        Some(name) => {
            let name = quoted(name);
            return Err(config.error(format!("a text part of type {name} is not supported")));
        }
    };
    keys.expect("use_bidirectional_attention", true)?;
    spec.embedding.of_media = IMAGE_TENSORS;
    Ok(spec)
}

/// The tower.
pub(super) fn tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    let root = config.root();
    let keys = vision::section(config)?;
    keys.expect("model_type", "siglip_vision_model")?;
    // The head is never used, the others are counted, or what nobody reads.
    keys.ignore(&[
        "num_image_tokens",
        "projection_dim",
        "projector_hidden_act",
        "vision_use_head",
        "vocab_size",
    ]);
    vision::require_sizes(&keys)?;
    let vision = VisionKeys::read(config, SIGLIP, 1)?;
    let hidden_size = config.text_part().hidden_size()?;
    root.expect("projection_dim", hidden_size)?;
    let projector =
        LinearSpec::new("model.multi_modal_projector.linear", hidden_size, vision.width);
    let connector = ConnectorSpec { steps: Vec::new(), last: projector.with_bias(true) };
    let image_token_id = image_token_id(config, "image_token_index", 256_000)?;
    Ok(TowerSpec {
        bidirectional: Bidirectional::Prompt,
        final_norm: Some(siglip::final_norm(&vision)),
        ..siglip::tower(&vision, (image_token_id, ImageText::Bare), connector)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::specs_of;

    fn specs(top: &str, text: &str, vision: &str) -> Result<(DecoderSpec, TowerSpec), String> {
        let text = format!(
            r#"{{"architectures": ["PaliGemmaForConditionalGeneration"],
            "image_token_index": 8, "projection_dim": 32, {top} "vision_config": {{{vision}
            "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "patch_size": 14,
            "intermediate_size": 40}}, "text_config": {{{text} "hidden_size": 32,
            "intermediate_size": 64, "num_hidden_layers": 2, "num_key_value_heads": 1,
            "vocab_size": 9}}}}"#
        );
        specs_of(&text)
    }

    #[test]
    fn a_prompt_with_images_is_seen_whole() {
        let (decoder, tower) = specs("", "", "").unwrap();
        assert_eq!((decoder.heads().head_dim, decoder.max_model_len), (256, 8192));
        assert_eq!(tower.positions.as_ref().unwrap().side, 16);
        assert_eq!((tower.bidirectional, tower.least_step(100)), (Bidirectional::Prompt, (100, 0)));
        assert_eq!(tower.tensors().len(), 3 + 2 * 16 + 2 + 2);
        let (decoder, _) = specs("", r#""model_type": "gemma2","#, "").unwrap();
        let windows: Vec<_> = decoder.attentions().map(|block| block.reach.window()).collect();
        assert_eq!(windows, [Some(4096), None]);
    }

    #[test]
    fn what_no_class_computes_is_refused() {
        for (top, text, vision, expected) in [
            (r#""projection_dim": 16,"#, "", "", "`projection_dim` of `16`"),
            ("", r#""model_type": "gemma3_text","#, "", "a text part of type"),
            (
                "",
                r#""use_bidirectional_attention": false,"#,
                "",
                "`use_bidirectional_attention` of `false`",
            ),
            ("", "", r#""model_type": "clip_vision_model","#, "`vision_config.model_type`"),
        ] {
            let error = specs(top, text, vision).unwrap_err();
            assert!(error.contains(expected), "{top} {text} {vision}: {error}");
        }
    }
}
