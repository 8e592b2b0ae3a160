//! How a model reads recordings that are longer than what its tower hears at once.

/// Where the features of a recording end, and what becomes of one that is longer than a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoundChunks {
    /// It is filled up with silence to a chunk; a longer one is refused (Whisper, Qwen2-Audio).
    One,
    /// It is filled up to whole chunks, and its features are cut: those of a chunk know of the next
    /// one (Voxtral).
    Joined,
    /// Its samples are cut, and each piece is filled up and has features by itself (Audio
    /// Flamingo 3).
    Apart,
    /// As [`Self::One`], of which the frames behind the recording are zeros, up to whole chunks
    /// of so many (Qwen2.5-Omni).
    Trimmed(usize),
    /// It has no silence behind it, once it has so many samples. Its frames are cut into chunks of
    /// so many, the last of which is filled up with zeros (Qwen3-ASR).
    Exact {
        /// Frames of a chunk.
        num_frames: usize,
        /// Of the shortest one.
        min_samples: usize,
    },
}
