//! Reads `preprocessor_config.json` of a model that hears, or the object `feature_extractor` of
//! `processor_config.json`.

use serde_json::Value;

use super::SoundProcessor;
use crate::processor::ConfigError;
use crate::processor::keys::Keys;
use crate::sound::RATES;
use vllm_batch_base::layers::SoundChunks;

/// Keys that say nothing of features: the class makes its own filters, and gives no masks.
const HARMLESS: &[&str] = &[
    "auto_map",
    "feature_extractor_class",
    "mel_filters",
    "processor_class",
    "return_attention_mask",
    "return_tensors",
];

/// Seconds of the longest chunk.
const MAX_SECONDS: usize = 600;

/// Seconds of the longest recording whose chunks are read apart, unless a file says another number.
const USUAL_SECONDS: usize = 600;

impl SoundProcessor {
    /// The processor that a configuration describes, of a model that reads chunks so.
    ///
    /// # Errors
    ///
    /// If it is of no known family, or a key of it is not read.
    pub fn from_config(config: &Value, chunks: SoundChunks) -> Result<Self, ConfigError> {
        let mut keys = Keys::with_harmless(config, HARMLESS)?;
        let name = keys.text("feature_extractor_type")?;
        let name = name.ok_or_else(|| ConfigError::new("`feature_extractor_type` is missing"))?;
        match (name, chunks) {
            ("WhisperFeatureExtractor", _) => {}
            // The same features; the frames of a chunk are the tower's too, which is told.
            ("Qwen3ASRFeatureExtractor", SoundChunks::Exact { min_samples, .. }) => {
                keys.value("n_window");
                same(&mut keys, "min_length", min_samples)?;
            }
            _ => {
                return Err(ConfigError::new(format!(
                    "`feature_extractor_type` {name} is not known; help: known is \
                     WhisperFeatureExtractor"
                )));
            }
        }
        let mut count = |key, default| Ok(keys.count(key)?.unwrap_or(default));
        let num_mels = count("feature_size", 80)?;
        let rate = count("sampling_rate", 16_000)?;
        let hop_length = count("hop_length", 160)?;
        let n_fft = count("n_fft", 400)?;
        let num_seconds = count("chunk_length", 30)?;
        let sensible = [
            ("feature_size", num_mels, 1..=1024),
            ("sampling_rate", rate, *RATES.start() as usize..=*RATES.end() as usize),
            ("n_fft", n_fft, 16..=1 << 14),
            ("hop_length", hop_length, 1..=n_fft),
            ("chunk_length", num_seconds, 1..=MAX_SECONDS),
        ];
        for (key, value, range) in sensible {
            if !range.contains(&value) {
                return Err(ConfigError::new(format!("`{key}` of {value} is not sensible")));
            }
        }
        let num_samples = num_seconds * rate;
        same(&mut keys, "n_samples", num_samples)?;
        same(&mut keys, "nb_max_frames", num_samples / hop_length)?;
        if !n_fft.is_multiple_of(2) || !num_samples.is_multiple_of(hop_length) {
            return Err(ConfigError::new("`n_fft` is odd, or `hop_length` does not fill the clip"));
        }
        let padding_value = number(&mut keys, "padding_value")?;
        if number(&mut keys, "dither")? != 0.0 {
            return Err(ConfigError::new("`dither` is not 0: it is noise, and is not made here"));
        }
        if keys.flag("do_normalize", false)? {
            return Err(ConfigError::new("`do_normalize` is true, which is not read here"));
        }
        if let Some(side) = keys.text("padding_side")?.filter(|side| *side != "right") {
            return Err(ConfigError::new(format!("`padding_side` is {side}, and not right")));
        }
        let max_chunks = match chunks {
            SoundChunks::One | SoundChunks::Trimmed(_) => 1,
            // The limits of media are enough.
            SoundChunks::Joined | SoundChunks::Exact { .. } => usize::MAX,
            SoundChunks::Apart => {
                keys.count("max_audio_len")?.unwrap_or(USUAL_SECONDS) / num_seconds
            }
        };
        let unread = keys.unread();
        if !unread.is_empty() {
            return Err(ConfigError::new(format!(
                "`{}` is not read, and may change features; help: a model with it cannot hear yet",
                unread.join("`, `")
            )));
        }
        let shape = (rate as u32, num_mels);
        let one =
            SoundProcessor::new(shape, (n_fft, hop_length), num_samples, padding_value as f32);
        Ok(SoundProcessor { chunks, max_chunks, ..one })
    }
}

/// Refuses a number that follows from others, if it is another one.
fn same(keys: &mut Keys<'_>, key: &'static str, wanted: usize) -> Result<(), ConfigError> {
    match keys.count(key)? {
        Some(value) if value != wanted => {
            Err(ConfigError::new(format!("`{key}` is {value}, and {wanted} follows from the rest")))
        }
        _ => Ok(()),
    }
}

fn number(keys: &mut Keys<'_>, key: &'static str) -> Result<f64, ConfigError> {
    let wrong = |value| ConfigError::new(format!("`{key}` is {value}, which is no number"));
    keys.value(key).map_or(Ok(0.0), |value| value.as_f64().ok_or_else(|| wrong(value)))
}
