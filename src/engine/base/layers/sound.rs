//! How a model reads recordings that are longer than what its tower hears at once.

/// What becomes of a recording that is longer than a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoundChunks {
    /// It is refused (Whisper, Qwen2-Audio).
    One,
    /// Its features are cut: those of a chunk know of the next one (Voxtral).
    Joined,
    /// Its samples are cut: each piece has features by itself (Audio Flamingo 3).
    Apart,
}
