//! Qwen3-ASR: Qwen3, and an encoder of convolutions over frames and mels, whose states see those of
//! some seconds. The encoder is Qwen3-Omni's, too.

use serde_json::json;

use super::hearing::{Projector, SOUND_TENSORS, SoundKeys, TOWER, sound_token_id};
use super::vision::{PlainLayer, text_part};
use super::whisper::{LAYER_NAMES, LAYER_NORM_EPS};
use crate::hf_config::HfConfig;
use crate::limits;
use crate::spec::{
    ConnectorSpec, ConnectorStep, DecoderSpec, Heard, LinearSpec, NormSpec, Sinusoids, SoundFront,
    SoundPositions, SoundTokensSpec, SoundTowerSpec, SquareConvs,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{Activation, SoundChunks};

/// Convolutions, each of every second frame and mel.
const NUM_CONVS: usize = 3;

/// Frames that are convolved together: those of a second.
const NUM_CONVOLVED: usize = 100;

/// Samples of the shortest recording that Qwen3-ASR hears; others have silence behind them.
const MIN_SAMPLES: usize = 8000;

/// What differs between the classes that have this encoder.
pub(super) struct QwenEncoder {
    /// Defaults of its width, its heads, its MLPs and its layers.
    pub(super) sizes: [usize; 4],
    /// Samples of the shortest recording.
    pub(super) min_samples: usize,
    /// A recording of less than a second is convolved without what is behind it.
    pub(super) is_cut: bool,
}

const QWEN3_ASR: QwenEncoder =
    QwenEncoder { sizes: [1024, 16, 4096, 24], min_samples: MIN_SAMPLES, is_cut: false };

/// The text part of Qwen3-ASR, with the defaults of its class.
pub(super) fn asr(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    config.text_part().assume(&[
        ("head_dim", json!(128)),
        ("hidden_size", json!(2048)),
        ("intermediate_size", json!(6144)),
        ("max_position_embeddings", json!(65_536)),
        ("num_attention_heads", json!(16)),
        ("num_hidden_layers", json!(28)),
        ("num_key_value_heads", json!(8)),
        ("vocab_size", json!(151_936)),
    ]);
    config.tie_text_part()?;
    // Its keys are this file's too.
    asr_tower(config)?;
    // Of the class that aligns words with times, and of published files.
    config.root().ignore(&[
        "audio_end_token_id",
        "audio_start_token_id",
        "support_languages",
        "timestamp_token_id",
        "token_classification_bias",
    ]);
    // Of experts, of which it has none.
    config.text_part().root().ignore(&[
        "decoder_sparse_step",
        "mlp_only_layers",
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_experts",
        "num_experts_per_tok",
        "output_router_logits",
    ]);
    ignore_turns(config);
    let mut spec = text_part(config, "qwen3", SOUND_TENSORS)?;
    // Tokens of sounds follow each other on all axes.
    spec.ropes.iter_mut().for_each(|rope| rope.axes.clear());
    Ok(spec)
}

/// Says that another name of turns of axes, which published files have, changes nothing.
pub(super) fn ignore_turns(config: &HfConfig) {
    for key in ["rope_parameters", "rope_scaling"] {
        if let Ok(Some(section)) = config.text_part().root().section(key) {
            section.ignore(&["interleaved"]);
        }
    }
}

/// The encoder of Qwen3-ASR.
pub(super) fn asr_tower(config: &HfConfig) -> Result<SoundTowerSpec, EngineError> {
    let tower = encoder(config, &QWEN3_ASR)?;
    let keys = SoundKeys::read(config)?;
    let activation = keys.activation(config, "activation_function")?;
    let out = keys.size(&["output_dim"], 3584)?;
    let projector =
        Projector { merged: tower.width(), inner: tower.width(), has_biases: true, activation };
    with_tokens(config, tower, projector.behind(Vec::new(), out), &QWEN3_ASR)
}

/// The tower with what makes embeddings of its states.
pub(super) fn with_tokens(
    config: &HfConfig,
    tower: SoundTowerSpec,
    connector: ConnectorSpec,
    class: &QwenEncoder,
) -> Result<SoundTowerSpec, EngineError> {
    let (out, hidden_size) = (connector.n(), config.text_part().hidden_size()?);
    if out != hidden_size {
        return Err(config.error(format!(
            "`output_dim` of {out} is no width of the text part, which is {hidden_size}"
        )));
    }
    let tokens = SoundTokensSpec {
        token_id: sound_token_id(config, 151_676)?,
        shape: tower.shape_of(1, Heard::Own),
        chunks: SoundChunks::Exact { num_frames: tower.num_frames, min_samples: class.min_samples },
        connector,
    };
    Ok(SoundTowerSpec { tokens: Some(tokens), ..tower })
}

/// The projector of Qwen3-Omni, which is within the tower, as Qwen3-ASR's is in published files.
pub(super) fn inner_projector(
    config: &HfConfig,
    tower: &SoundTowerSpec,
) -> Result<ConnectorSpec, EngineError> {
    let (keys, width) = (SoundKeys::read(config)?, tower.width());
    let linear =
        |part: &str, n| LinearSpec::new(format!("{TOWER}.{part}"), n, width).with_bias(true);
    let activation = keys.activation(config, "activation_function")?;
    let steps =
        vec![ConnectorStep::Linear(linear("proj1", width)), ConnectorStep::Activate(activation)];
    Ok(ConnectorSpec { steps, last: linear("proj2", keys.size(&["output_dim"], 3584)?) })
}

/// Positions that are computed, from zero on.
pub(super) fn positions(width: usize) -> SoundPositions {
    let sinusoids = Sinusoids { width, divisor: width / 2 - 1, offset: 0, zeros: None };
    SoundPositions::Computed(sinusoids)
}

/// The encoder, without what makes embeddings of its states.
pub(super) fn encoder(
    config: &HfConfig,
    class: &QwenEncoder,
) -> Result<SoundTowerSpec, EngineError> {
    let keys = SoundKeys::read(config)?;
    let [width, num_heads, inner, num_layers] = class.sizes;
    let width = keys.size(&["d_model", "hidden_size"], width)?;
    let num_heads = keys.size(&["encoder_attention_heads", "num_attention_heads"], num_heads)?;
    let inner = keys.size(&["encoder_ffn_dim", "intermediate_size"], inner)?;
    let num_layers = keys.size(&["encoder_layers", "num_hidden_layers"], num_layers)?;
    let num_mels = keys.size(&["num_mel_bins"], 128)?;
    let activation = keys.activation(config, "activation_function")?;
    // How much is convolved at a time; of training; what its class does not read.
    keys.ignore(&[
        "conv_chunksize",
        "encoder_layerdrop",
        "max_source_positions",
        "scale_embedding",
    ]);
    // Its processor counts tokens so.
    keys.expect("n_window", NUM_CONVOLVED / 2)?;
    let num_convolved = NUM_CONVOLVED;
    let num_frames = keys.size(&["n_window_infer"], 800)?;
    let num_channels = keys.size(&["downsample_hidden_size"], 480)?;
    limits::check_tower_layers(num_layers)
        .and_then(|()| limits::check_sounds(num_mels, num_frames))
        .and_then(|()| limits::check_sounds(num_channels, num_convolved))
        .map_err(|text| config.error(text))?;
    let num_places = num_convolved.div_ceil(1 << NUM_CONVS);
    keys.expect("max_position_embeddings", num_places)?;
    if !num_frames.is_multiple_of(num_convolved) {
        return Err(config.error(format!(
            "`n_window_infer` of {num_frames} frames is no multiple of {num_convolved}"
        )));
    }
    let heads = keys.heads(config, (width, num_heads))?;
    let plain = PlainLayer { width, inner, heads, eps: LAYER_NORM_EPS, activation };
    let conv = |index: usize| {
        let inputs = if index == 0 { 1 } else { num_channels };
        let name = format!("{TOWER}.conv2d{}", index + 1);
        LinearSpec::new(name, num_channels, 9 * inputs).with_bias(true).of_squares(3)
    };
    let num_left = num_mels.div_ceil(1 << NUM_CONVS);
    let out = LinearSpec::new(format!("{TOWER}.conv_out"), width, num_left * num_channels);
    Ok(SoundTowerSpec {
        num_mels,
        num_frames,
        front: SoundFront::Squares(SquareConvs {
            num_frames: num_convolved,
            convs: (0..NUM_CONVS).map(conv).collect(),
            // Whatever the layers have.
            activation: Activation::Gelu,
            out: out.by_channel(num_left),
            is_cut: class.is_cut,
        }),
        positions: Some(positions(width)),
        rope: None,
        layers: plain.named_layers(&format!("{TOWER}.layers"), num_layers, &LAYER_NAMES),
        final_norm: Some(NormSpec::layer(format!("{TOWER}.ln_post"), width, LAYER_NORM_EPS)),
        tokens: None,
        unused: &[],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::tests_of_towers::{shape_of, sound_tower_of};

    fn tower(sound: &str) -> Result<SoundTowerSpec, String> {
        sound_tower_of(&format!(
            r#"{{"architectures": ["Qwen3ASRForConditionalGeneration"],
            "audio_config": {{{sound} "output_dim": 64}}, "text_config": {{"hidden_size": 64,
            "num_hidden_layers": 1, "intermediate_size": 8}}}}"#
        ))
    }

    #[test]
    fn an_encoder_has_the_defaults_of_its_class_and_all_tensors() {
        let tower = tower("").unwrap();
        let shape = tower.shape();
        assert_eq!((tower.num_frames, shape.num_places(), tower.num_states()), (800, 13, 104));
        // A part of a second has as many states as it begins.
        let nums = [1, 8, 9, 99, 100, 101, 800, 803, 1650].map(|num| shape.num_tokens(num));
        assert_eq!(nums, [1, 1, 2, 13, 13, 14, 104, 105, 215]);
        let tensors = tower.tensors();
        assert_eq!(tensors.len(), 6 + 1 + 24 * 16 + 2 + 4);
        let shape = |name: &str| shape_of(&tensors, &format!("model.audio_tower.{name}"));
        assert_eq!(shape("conv2d1.weight"), [480, 1, 3, 3]);
        assert_eq!(shape("conv2d3.weight"), [480, 480, 3, 3]);
        assert_eq!(shape("conv_out.weight"), [1024, 480 * 16]);
    }

    #[test]
    fn convolutions_have_an_activation_of_their_own() {
        let tower = tower(r#""activation_function": "silu","#).unwrap();
        let SoundFront::Squares(squares) = &tower.front else { panic!("{:?}", tower.front) };
        assert_eq!(squares.activation, Activation::Gelu);
        let steps = &tower.connector().unwrap().steps;
        assert_eq!(steps.last(), Some(&ConnectorStep::Activate(Activation::Silu)));
    }

    #[test]
    fn what_its_class_does_not_compute_is_refused() {
        for (sound, expected) in [
            (r#""n_window_infer": 750,"#, "`n_window_infer` of 750 frames is no multiple of 100"),
            (r#""n_window": 25,"#, "`audio_config.n_window` of `25` is not supported; 50 is"),
            (r#""max_position_embeddings": 12,"#, "`audio_config.max_position_embeddings`"),
            (r#""output_dim": 32, "d_model": 64, "x": 1,"#, "`audio_config.x`"),
        ] {
            let error = tower(sound).unwrap_err();
            assert!(error.contains(expected), "{sound}: {error}");
        }
        let other = sound_tower_of(
            r#"{"architectures": ["Qwen3ASRForConditionalGeneration"], "text_config":
            {"hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 8}}"#,
        );
        let error = other.unwrap_err();
        assert!(error.contains("`output_dim` of 3584 is no width of the text part"), "{error}");
    }
}
