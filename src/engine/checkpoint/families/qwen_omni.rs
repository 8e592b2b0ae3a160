//! What reads and writes of Qwen2.5-Omni and Qwen3-Omni, which see and hear: Qwen2.5-VL with an
//! encoder of Whisper's shape over two seconds, and Qwen3-VL with experts and Qwen3-ASR's encoder.
//! What speaks is left unused.

use super::hearing::{SoundKeys, TOWER, encoder, sound_token_id};
use super::qwen_hearing::{self, QwenEncoder};
use super::qwen3_vl::{self, MergerNames};
use super::whisper::LAYER_NORM_EPS;
use super::{qwen2_5_vl, qwen2_vl, vision};
use crate::hf_config::HfConfig;
use crate::limits;
use crate::spec::{
    ConnectorSpec, ConnectorStep, DecoderSpec, Heard, LinearSpec, NormSpec, SoundFront,
    SoundTokensSpec, SoundTowerSpec, TowerSpec,
};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::SoundChunks;

/// Prefixes of tensors of what sees, hears and speaks, for those who run the text part alone.
const MEDIA_TENSORS: &[&str] = &[
    "audio_tower.",
    "code2wav.",
    "model.audio_tower.",
    "model.visual.",
    "talker.",
    "token2wav.",
    "visual.",
];

/// Prefixes of tensors of what speaks, and of tokens around sounds, which the table of words has.
const UNUSED: &[&str] = &[
    "audio_tower.audio_bos_eos_token.",
    "code2wav.",
    "model.audio_tower.audio_bos_eos_token.",
    "talker.",
    "token2wav.",
];

const QWEN3_MERGERS: MergerNames =
    MergerNames { deep: "merger_list", norm: "ln_q", first: "mlp.0", last: "mlp.2" };

const QWEN3_ENCODER: QwenEncoder =
    QwenEncoder { sizes: [1280, 20, 5120, 32], min_samples: 0, is_cut: true };

/// The text part of Qwen2.5-Omni.
pub(super) fn qwen2_5(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    // Their keys are this file's too.
    qwen2_5_tower(config)?;
    qwen2_5_sound_tower(config)?;
    ignore_keys(config);
    let mut spec = qwen2_vl::text_part(config)?;
    spec.embedding.of_media = MEDIA_TENSORS;
    Ok(spec)
}

/// The tower of Qwen2.5-Omni for images, whose queries, keys and values have names of their own.
pub(super) fn qwen2_5_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    // What nobody reads.
    vision::section(config)?.ignore(&["embed_dim"]);
    let mut tower = qwen2_5_vl::tower(config)?;
    for attention in tower.layers.iter_mut().filter_map(|layer| layer.attention.as_mut()) {
        let name = attention.qkv.parts[0].name.clone();
        let parts = ["q", "k", "v"].map(|part| {
            (name.replace("attn.qkv", &format!("attn.{part}")), attention.heads.q_width())
        });
        attention.qkv = LinearSpec::stacked(parts, attention.qkv.k).with_bias(true);
    }
    Ok(tower)
}

/// The tower of Qwen2.5-Omni for sounds: states see those of their seconds, and means of two are
/// tokens.
pub(super) fn qwen2_5_sound_tower(config: &HfConfig) -> Result<SoundTowerSpec, EngineError> {
    let keys = SoundKeys::read(config)?;
    let num_states = keys.size(&["n_window"], 100)?;
    limits::check_sounds(1, num_states).map_err(|text| config.error(text))?;
    let num_frames = 2 * num_states;
    let out = keys.size(&["output_dim"], 3584)?;
    let (mut tower, _) = encoder(config)?;
    let width = tower.width();
    if !num_frames.is_multiple_of(4) || out != config.text_part().hidden_size()? {
        return Err(config.error(format!(
            "`audio_config`: {num_frames} frames make no whole tokens of the text part's width"
        )));
    }
    let norm = NormSpec::layer(format!("{TOWER}.ln_post"), width, LAYER_NORM_EPS);
    let last = LinearSpec::new(format!("{TOWER}.proj"), out, width).with_bias(true);
    tower.num_frames = num_frames;
    if let SoundFront::Frames(frames) = &mut tower.front {
        frames.is_cut = true;
    }
    tower.positions = Some(qwen_hearing::positions(width));
    tower.final_norm = None;
    tower.unused = UNUSED;
    tower.tokens = Some(SoundTokensSpec {
        token_id: sound_token_id(config, 151_646)?,
        shape: tower.shape_of(2, Heard::Own),
        chunks: SoundChunks::Trimmed(num_frames),
        connector: ConnectorSpec {
            steps: vec![ConnectorStep::MeanPool, ConnectorStep::Norm(norm)],
            last,
        },
    });
    Ok(tower)
}

/// The text part of Qwen3-Omni.
pub(super) fn qwen3(config: &HfConfig) -> Result<DecoderSpec, EngineError> {
    qwen3_sound_tower(config)?;
    ignore_keys(config);
    let mut spec = qwen3_vl::experts_with_tower(config, &qwen3_tower(config)?)?;
    spec.embedding.of_media = MEDIA_TENSORS;
    Ok(spec)
}

/// The tower of Qwen3-Omni for images.
pub(super) fn qwen3_tower(config: &HfConfig) -> Result<TowerSpec, EngineError> {
    qwen3_vl::tower_named(config, &[8, 16, 24], QWEN3_MERGERS)
}

/// The tower of Qwen3-Omni for sounds.
pub(super) fn qwen3_sound_tower(config: &HfConfig) -> Result<SoundTowerSpec, EngineError> {
    let tower = qwen_hearing::encoder(config, &QWEN3_ENCODER)?;
    let connector = qwen_hearing::inner_projector(config, &tower)?;
    let tower = qwen_hearing::with_tokens(config, tower, connector, &QWEN3_ENCODER)?;
    Ok(SoundTowerSpec { unused: UNUSED, ..tower })
}

/// Tokens around media, and what is of videos and of training. Of an output layer the files decide.
fn ignore_keys(config: &HfConfig) {
    config.root().ignore(&[
        "audio_end_token_id",
        "audio_start_token_id",
        "ignore_index",
        "position_id_per_seconds",
        "seconds_per_chunk",
        "tie_word_embeddings",
        "user_token_id",
        "video_token_index",
    ]);
    qwen_hearing::ignore_turns(config);
}
