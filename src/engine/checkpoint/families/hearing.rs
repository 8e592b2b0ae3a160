//! Models that hear and write: a text model, and an encoder of Whisper's shape whose states go
//! through a projector, some together. Qwen2-Audio, Audio Flamingo 3, Voxtral.

use serde_json::{Value, json};

use super::llava::assume_defaults;
use super::vision::{text_part, token_id};
use super::whisper::Half;
use crate::hf_config::{HfConfig, Section};
use crate::limits;
use crate::spec::{
    ConnectorSpec, ConnectorStep, DecoderSpec, Heard, LinearSpec, QkvHeads, SoundTokensSpec,
    SoundTowerSpec, TokenId,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, SoundChunks};

/// Prefixes of tensors of the encoder and the projector, for those who run the text part alone.
pub(super) const SOUND_TENSORS: &[&str] = &[
    "audio_tower.",
    "model.audio_tower.",
    "model.multi_modal_projector.",
    "multi_modal_projector.",
];

/// What the names of the encoder's tensors begin with.
pub(super) const TOWER: &str = "model.audio_tower";

/// The chat template of Qwen2-Audio, which transformers has in its code alone.
pub(super) const QWEN2_AUDIO_TEMPLATE: &str = "\
{%- set sounds = namespace(count=0) -%}
{%- for message in messages -%}
{%- if loop.first and message.role != 'system' -%}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{%- endif -%}
{{- '<|im_start|>' ~ message.role ~ '\\n' -}}
{%- if message.content is string -%}{{- message.content -}}{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'audio' -%}
{%- set sounds.count = sounds.count + 1 -%}
{{- 'Audio ' ~ sounds.count ~ ': <|audio_bos|><|AUDIO|><|audio_eos|>\\n' -}}
{%- elif 'text' in part -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

/// The keys of an encoder, which a file may lack.
pub(super) struct SoundKeys<'a>(pub(super) Option<Section<'a>>);

impl<'a> SoundKeys<'a> {
    /// `audio_config`.
    pub(super) fn read(config: &'a HfConfig) -> Result<Self, EngineError> {
        config.root().section("audio_config").map(Self)
    }

    /// A size under one of these names.
    pub(super) fn size(&self, keys: &[&str], default: usize) -> Result<usize, EngineError> {
        self.0.as_ref().map_or(Ok(default), |section| section.size_of_or(keys, default))
    }

    /// Refuses another value than this.
    pub(super) fn expect(&self, key: &str, value: impl Into<Value>) -> Result<(), EngineError> {
        self.0.as_ref().map_or(Ok(()), |section| section.expect(key, value))
    }

    /// Says that keys change nothing here.
    pub(super) fn ignore(&self, keys: &[&str]) {
        self.0.iter().for_each(|section| section.ignore(keys));
    }

    /// An activation.
    pub(super) fn activation(
        &self,
        config: &HfConfig,
        key: &str,
    ) -> Result<Activation, EngineError> {
        let name = self.0.as_ref().map_or(Ok(None), |section| section.text(key))?;
        config.activation_named_or(name, Activation::Gelu)
    }

    /// Heads of so many, which make the width.
    pub(super) fn heads(
        &self,
        config: &HfConfig,
        (width, num_heads): (usize, usize),
    ) -> Result<QkvHeads, EngineError> {
        let head_dim = width / num_heads;
        let heads = config.checked(QkvHeads { num_heads, num_kv_heads: num_heads, head_dim })?;
        self.expect("num_key_value_heads", num_heads)?;
        self.expect("head_dim", head_dim)?;
        match width.is_multiple_of(num_heads) {
            true => Ok(heads),
            false => Err(config.error(format!(
                "a tower of sounds of width {width} has no {num_heads} equal heads"
            ))),
        }
    }
}

/// An encoder of Whisper's shape, under either spelling of its keys, and the width of its MLPs.
pub(super) fn encoder(config: &HfConfig) -> Result<(SoundTowerSpec, usize), EngineError> {
    let keys = SoundKeys::read(config)?;
    // Of tokens, of which it has none; of training; and what its class does not read.
    keys.ignore(&["encoder_layerdrop", "scale_embedding", "vocab_size"]);
    let width = keys.size(&["d_model", "hidden_size"], 1280)?;
    let num_heads = keys.size(&["encoder_attention_heads", "num_attention_heads"], 20)?;
    let num_layers = keys.size(&["encoder_layers", "num_hidden_layers"], 32)?;
    limits::check_tower_layers(num_layers).map_err(|text| config.error(text))?;
    let half = Half {
        name: TOWER,
        width,
        inner: keys.size(&["encoder_ffn_dim", "intermediate_size"], 5120)?,
        num_layers,
        heads: keys.heads(config, (width, num_heads))?,
        activation: keys.activation(config, "activation_function")?,
    };
    let num_mels = keys.size(&["num_mel_bins"], 128)?;
    let num_states = keys.size(&["max_source_positions"], 1500)?;
    Ok((half.tower(config, num_mels, num_states)?, half.inner))
}

/// A projector of two products, of rows of this width.
pub(super) struct Projector {
    pub(super) merged: usize,
    /// Of the first product.
    pub(super) inner: usize,
    pub(super) has_biases: bool,
    pub(super) activation: Activation,
}

impl Projector {
    /// Its activation is that of the file.
    pub(super) fn read(
        config: &HfConfig,
        (merged, inner): (usize, usize),
        has_biases: bool,
    ) -> Result<Self, EngineError> {
        let activation = config.root().text("projector_hidden_act")?;
        let activation = config.activation_named_or(activation, Activation::Gelu)?;
        Ok(Self { merged, inner, has_biases, activation })
    }

    /// Behind these steps.
    pub(super) fn behind(&self, mut steps: Vec<ConnectorStep>, out: usize) -> ConnectorSpec {
        let linear = |part: &str, n, k| {
            let name = format!("model.multi_modal_projector.{part}");
            LinearSpec::new(name, n, k).with_bias(self.has_biases)
        };
        steps.push(ConnectorStep::Linear(linear("linear_1", self.inner, self.merged)));
        steps.push(ConnectorStep::Activate(self.activation));
        ConnectorSpec { steps, last: linear("linear_2", out, self.inner) }
    }
}

/// The token that stands for one of a sound's.
pub(super) fn sound_token_id(config: &HfConfig, default: usize) -> Result<TokenId, EngineError> {
    let root = config.root();
    let key =
        ["audio_token_index", "audio_token_id"].into_iter().find(|key| root.value(key).is_some());
    token_id(config, key.unwrap_or("audio_token_id"), default).map(TokenId::Known)
}

/// The text part of Qwen2-Audio, with the defaults of its class, which published files lack.
pub(super) fn qwen2_audio(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    let text = config.text_part();
    assume_defaults(text, "qwen2")?;
    text.root().expect("use_mrope", false)?;
    // Its keys are this file's too.
    qwen2_audio_tower(config)?;
    // Of training; that of the text part counts.
    config.root().ignore(&["ignore_index", "vocab_size"]);
    text_part(config, "qwen2", SOUND_TENSORS)
}

/// The encoder of Qwen2-Audio: means of two states, a norm and a product.
pub(super) fn qwen2_audio_tower(config: &HfConfig) -> Result<SoundTowerSpec, EngineError> {
    let (mut tower, _) = encoder(config)?;
    let norm = tower.final_norm.take().expect("Whisper has it");
    let name = "model.multi_modal_projector.linear".to_owned();
    let last = LinearSpec::new(name, config.text_part().hidden_size()?, tower.width());
    let steps = vec![ConnectorStep::MeanPool, ConnectorStep::Norm(norm)];
    tower.tokens = Some(SoundTokensSpec {
        token_id: sound_token_id(config, 151_646)?,
        shape: tower.shape_of(2, Heard::Own),
        chunks: SoundChunks::One,
        connector: ConnectorSpec { steps, last: last.with_bias(true) },
    });
    Ok(tower)
}

/// The text part of Audio Flamingo 3.
pub(super) fn audio_flamingo3(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    assume_defaults(config.text_part(), "qwen2")?;
    // Its keys are this file's too.
    audio_flamingo3_tower(config)?;
    text_part(config, "qwen2", SOUND_TENSORS)
}

/// The encoder of Audio Flamingo 3: means of two states, a norm and two products.
pub(super) fn audio_flamingo3_tower(config: &HfConfig) -> Result<SoundTowerSpec, EngineError> {
    let (mut tower, _) = encoder(config)?;
    let norm = tower.final_norm.take().expect("Whisper has it");
    let (width, out) = (tower.width(), config.text_part().hidden_size()?);
    let has_biases = config.root().flag("projector_bias")?.unwrap_or(true);
    let projector = Projector::read(config, (width, out), has_biases)?;
    let steps = vec![ConnectorStep::MeanPool, ConnectorStep::Norm(norm)];
    tower.tokens = Some(SoundTokensSpec {
        token_id: sound_token_id(config, 151_669)?,
        shape: tower.shape_of(2, Heard::Own),
        chunks: SoundChunks::Apart,
        connector: projector.behind(steps, out),
    });
    Ok(tower)
}

/// The text part of Voxtral, with the defaults of its class.
pub(super) fn voxtral(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.text_part().assume(&[
        ("head_dim", json!(128)),
        ("hidden_size", json!(3072)),
        ("intermediate_size", json!(8192)),
        ("max_position_embeddings", json!(131_072)),
        ("num_attention_heads", json!(32)),
        ("num_hidden_layers", json!(30)),
        ("num_key_value_heads", json!(8)),
        ("rms_norm_eps", json!(1e-5)),
        ("rope_theta", json!(1e8)),
        ("vocab_size", json!(131_072)),
    ]);
    // Its keys are this file's too.
    voxtral_tower(config)?;
    // Those of the text part count.
    config.root().ignore(&["hidden_size", "vocab_size"]);
    text_part(config, "llama", SOUND_TENSORS)
}

/// The encoder of Voxtral: as many states beside each other as are as wide as its MLPs, and two
/// products.
pub(super) fn voxtral_tower(config: &HfConfig) -> Result<SoundTowerSpec, EngineError> {
    let (mut tower, inner) = encoder(config)?;
    let (num_merged, out) = (inner / tower.width(), config.text_part().hidden_size()?);
    if num_merged == 0
        || !inner.is_multiple_of(tower.width())
        || !tower.num_states().is_multiple_of(num_merged)
    {
        return Err(config.error(format!(
            "`audio_config`: {} states of {} make no whole tokens of {inner}",
            tower.num_states(),
            tower.width()
        )));
    }
    let projector = Projector::read(config, (inner, out), false)?;
    tower.tokens = Some(SoundTokensSpec {
        token_id: sound_token_id(config, 24)?,
        shape: tower.shape_of(num_merged, Heard::All),
        chunks: SoundChunks::Joined,
        connector: projector.behind(vec![ConnectorStep::Merge], out),
    });
    Ok(tower)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::{shape_of, sound_tower_of};
    use crate::spec::SoundShape;

    /// A config with its defaults.
    fn tower(class: &str, top: &str, sound: &str) -> Result<SoundTowerSpec, String> {
        let audio = if sound == "none" {
            String::new()
        } else {
            format!(r#""audio_config": {{{sound}}},"#)
        };
        sound_tower_of(&format!(
            r#"{{"architectures": ["{class}ForConditionalGeneration"], {top} {audio}
            "text_config": {{"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
            "num_key_value_heads": 4, "intermediate_size": 8}}}}"#
        ))
    }

    /// Those of `config.json` of Qwen2-Audio-7B-Instruct, Audio Flamingo 3 and Voxtral Mini.
    #[test]
    fn encoders_have_the_defaults_of_their_classes_and_all_tensors() {
        for (class, num_merged, num_tokens, num_tensors, merged) in [
            ("Qwen2Audio", 2, 750, 5 + 32 * 15 + 2 + 2, 1280),
            ("AudioFlamingo3", 2, 750, 5 + 32 * 15 + 2 + 4, 1280),
            ("Voxtral", 4, 375, 5 + 32 * 15 + 2 + 2, 5120),
        ] {
            let tower = tower(class, "", "none").unwrap();
            assert_eq!((tower.num_mels, tower.num_frames, tower.width()), (128, 3000, 1280));
            assert_eq!(tower.shape().num_merged, num_merged, "{class}");
            assert_eq!(tower.shape().num_tokens(3000), num_tokens, "{class}");
            let tensors = tower.tensors();
            assert_eq!(tensors.len(), num_tensors, "{class}");
            let first = if class == "Qwen2Audio" { "linear" } else { "linear_1" };
            let shape = shape_of(&tensors, &format!("model.multi_modal_projector.{first}.weight"));
            assert_eq!(shape, [64, merged], "{class}");
        }
    }

    #[test]
    fn tokens_are_counted_as_by_the_processors() {
        let qwen = tower("Qwen2Audio", "", "none").unwrap().shape();
        let of_frames = |shape: SoundShape, nums: &[usize]| -> Vec<usize> {
            nums.iter().map(|num| shape.num_tokens(*num)).collect()
        };
        assert_eq!(
            of_frames(qwen, &[1, 2, 3, 4, 5, 7, 99, 100, 3000]),
            [0, 0, 1, 1, 1, 2, 25, 25, 750]
        );
        // Each piece by itself, the last of which has none.
        let flamingo = tower("AudioFlamingo3", "", "none").unwrap().shape();
        assert_eq!(of_frames(flamingo, &[3000, 3002, 3003, 6007]), [750, 750, 751, 1502]);
        let voxtral = tower("Voxtral", "", "none").unwrap().shape();
        assert_eq!(of_frames(voxtral, &[1, 3000, 3001]), [375, 375, 750]);
    }

    #[test]
    fn what_no_class_computes_is_refused() {
        for (class, top, sound, expected) in [
            (
                "Qwen2Audio",
                "",
                r#""d_model": 30, "encoder_attention_heads": 4"#,
                "no 4 equal heads",
            ),
            ("Qwen2Audio", "", r#""num_mel_bins": 80, "dither": 1"#, "`audio_config.dither`"),
            ("Qwen2Audio", r#""audio_token_index": 200000,"#, "", "`audio_token_index` of 200000"),
            ("Voxtral", "", r#""max_source_positions": 50"#, "make no whole tokens"),
            ("Voxtral", "", r#""head_dim": 32"#, "`audio_config.head_dim`"),
            ("AudioFlamingo3", r#""projector_hidden_act": "mish","#, "", "mish"),
        ] {
            let error = tower(class, top, sound).unwrap_err();
            assert!(error.contains(expected), "{class}: {error}");
        }
    }
}
