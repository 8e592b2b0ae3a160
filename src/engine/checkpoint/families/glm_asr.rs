//! GLM-ASR: Llama, and an encoder with rotary embeddings, four of whose states are a token.

use serde_json::json;

use super::hearing::{Projector, SOUND_TENSORS, SoundKeys, TOWER, sound_token_id};
use super::vision::{LayerNames, PlainLayer, text_part};
use super::whisper::{Half, LAYER_NORM_EPS, STRIDE, drop_key_bias};
use crate::hf_config::HfConfig;
use crate::limits;
use crate::spec::{
    ConnectorStep, DecoderSpec, Heard, LayerSpec, NormSpec, RopeScaling, RopeSpec, SoundTokensSpec,
    SoundTowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::SoundChunks;

/// States of a token.
const NUM_MERGED: usize = 4;

const LAYER_NAMES: LayerNames = LayerNames {
    norms: ["input_layernorm", "post_attention_layernorm"],
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    out: "self_attn.o_proj",
    up: "mlp.fc1",
    down: "mlp.fc2",
};

/// The text part, with the defaults of its class.
pub(super) fn spec(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.tie_text_part()?;
    config.text_part().assume(&[
        ("hidden_size", json!(2048)),
        ("intermediate_size", json!(6144)),
        ("max_position_embeddings", json!(8192)),
        ("num_attention_heads", json!(16)),
        ("num_hidden_layers", json!(28)),
        ("num_key_value_heads", json!(4)),
        ("rms_norm_eps", json!(1e-5)),
        ("vocab_size", json!(59_264)),
    ]);
    // Its keys are this file's too.
    tower(config)?;
    text_part(config, "llama", SOUND_TENSORS)
}

/// The encoder. It hears the silence that its chunks are filled up with.
pub(super) fn tower(config: &HfConfig) -> Result<SoundTowerSpec, EngineError> {
    let keys = SoundKeys::read(config)?;
    let width = keys.size(&["hidden_size"], 1280)?;
    let inner = keys.size(&["intermediate_size"], 5120)?;
    let num_layers = keys.size(&["num_hidden_layers"], 32)?;
    let num_mels = keys.size(&["num_mel_bins"], 128)?;
    let num_states = keys.size(&["max_position_embeddings"], 1500)?;
    limits::check_tower_layers(num_layers)
        .and_then(|()| limits::check_sounds(num_mels, num_states))
        .map_err(|text| config.error(text))?;
    let heads = keys.heads(config, (width, keys.size(&["num_attention_heads"], 20)?))?;
    let activation = keys.activation(config, "hidden_act")?;
    if inner != NUM_MERGED * width || !num_states.is_multiple_of(NUM_MERGED) {
        return Err(config.error(format!(
            "`audio_config`: {num_states} states of {width} make no whole tokens of {inner}"
        )));
    }
    let half = Half { name: TOWER, width, inner, num_layers, heads, activation };
    let plain = PlainLayer { width, inner, heads, eps: LAYER_NORM_EPS, activation };
    let mut layers = plain.named_layers(&format!("{TOWER}.layers"), num_layers, &LAYER_NAMES);
    layers.iter_mut().for_each(of_layer);
    let mut tower = SoundTowerSpec {
        num_mels,
        num_frames: num_states * STRIDE,
        front: half.front(num_mels),
        positions: None,
        rope: Some(rope(config, &keys, heads.head_dim)?),
        layers,
        final_norm: Some(NormSpec::layer(format!("{TOWER}.norm"), width, LAYER_NORM_EPS)),
        tokens: None,
        unused: &[],
    };
    let out = config.text_part().hidden_size()?;
    let projector = Projector::read(config, (inner, 2 * out), true)?;
    tower.tokens = Some(SoundTokensSpec {
        token_id: sound_token_id(config, 59_260)?,
        shape: tower.shape_of(NUM_MERGED, Heard::AllWithoutTokens),
        chunks: SoundChunks::Apart,
        connector: projector.behind(vec![ConnectorStep::Merge], out),
    });
    Ok(tower)
}

/// Keys have no bias, and places are turned.
fn of_layer(layer: &mut LayerSpec) {
    drop_key_bias(layer);
    layer.attention.as_mut().expect("each has one").rope = Some(0);
}

/// The first half of each head is turned, unless the file says another part.
fn rope(config: &HfConfig, keys: &SoundKeys<'_>, head_dim: usize) -> Result<RopeSpec, EngineError> {
    let parameters = match &keys.0 {
        Some(keys) => keys.section("rope_parameters")?,
        None => None,
    };
    let number = |key: &str, default: f64| match &parameters {
        Some(parameters) => parameters.number(key).map(|given| given.unwrap_or(default)),
        None => Ok(default),
    };
    if let Some(parameters) = &parameters {
        parameters.expect("rope_type", "default")?;
    }
    let part = number("partial_rotary_factor", 0.5)?;
    let rotary_dim = (head_dim as f64 * part) as usize;
    // The class turns one value more of an odd part.
    if !(0.0..=1.0).contains(&part) || rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
        return Err(config.error(format!(
            "`audio_config`: a `partial_rotary_factor` of {part} turns no pairs of the {head_dim} \
             values of a head"
        )));
    }
    let theta = number("rope_theta", 10_000.0)?;
    if !theta.is_finite() || theta <= 0.0 {
        return Err(config.error(format!("`audio_config`: a `rope_theta` of {theta} is none")));
    }
    Ok(RopeSpec { theta, rotary_dim, scaling: RopeScaling::None, axes: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::{shape_of, sound_tower_of};

    fn tower(sound: &str) -> Result<SoundTowerSpec, String> {
        sound_tower_of(&format!(
            r#"{{"architectures": ["GlmAsrForConditionalGeneration"], "audio_config": {{{sound}}},
            "text_config": {{"hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 8}}}}"#
        ))
    }

    #[test]
    fn an_encoder_has_the_defaults_of_its_class_and_all_tensors() {
        let tower = tower("").unwrap();
        assert_eq!(tower.rope.as_ref().map(|rope| rope.rotary_dim), Some(32));
        let nums = [6, 7, 8, 3000, 3009].map(|num| tower.shape().num_tokens(num));
        assert_eq!(nums, [0, 1, 1, 375, 376]);
        let tensors = tower.tensors();
        assert_eq!(tensors.len(), 4 + 32 * 15 + 2 + 4);
        let shape = shape_of(&tensors, "model.multi_modal_projector.linear_1.weight");
        assert_eq!(shape, [128, 5120]);
    }

    #[test]
    fn what_its_class_does_not_compute_so_is_refused() {
        let rope =
            |part: &str| format!(r#""rope_parameters": {{"partial_rotary_factor": {part}}}"#);
        for (sound, expected) in [
            (rope("0.02"), "turns no pairs of the 64 values"),
            (rope("0"), "turns no pairs"),
            (rope("-0.5"), "turns no pairs"),
            (r#""intermediate_size": 1280"#.to_owned(), "make no whole tokens of 1280"),
            (r#""rope_parameters": {"rope_type": "yarn"}"#.to_owned(), "rope_type"),
            (r#""rope_parameters": {"rope_theta": 0}"#.to_owned(), "a `rope_theta` of 0 is none"),
        ] {
            let error = tower(&sound).unwrap_err();
            assert!(error.contains(expected), "{sound}: {error}");
        }
    }
}
