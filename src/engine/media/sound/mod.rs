//! Recordings: bytes in, features of a model out. A file is read packet by packet, and its channels
//! are one from then on.

mod clips;
mod decoding;
mod format;
mod mp4;
mod packets;
mod processor;
mod quiet;
mod resample;
mod samples;
mod source;
mod wav;

#[cfg(test)]
mod tests;

use std::io::Cursor;

use vllm_batch_base::contained::contain;

use crate::error::MediaError;
use crate::limits::Limits;

pub use clips::{Clip, Clips};
pub use format::SoundFormat;
pub use processor::{Features, SoundProcessor};
pub use samples::Samples;
pub use source::Seekable;

use decoding::Decoding;
use packets::Packets;
use source::Source;

/// Rates that are read, in samples of a second.
const RATES: std::ops::RangeInclusive<u32> = 1_000..=192_000;

/// What to do about a recording that is too long.
pub(crate) const CUT_IT: &str =
    "cut it into pieces, as `settings.max_audio_clip_s` does with files of the input";

/// Channels of the widest recording.
const MAX_CHANNELS: usize = 64;

/// What is known of a recording before it is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoundHeader {
    /// What the first bytes say, whatever the file is called.
    pub format: SoundFormat,
    /// Samples of a second.
    pub sample_rate: u32,
    /// Channels, which become one.
    pub num_channels: u32,
    /// Samples of each channel, as many as are decoded.
    pub num_samples: u64,
}

impl SoundHeader {
    /// Samples that there are at another rate, as [`Samples::at_rate`] makes them.
    pub fn num_samples_at(&self, rate: u32) -> u64 {
        resample::num_samples(self.num_samples, self.sample_rate, rate)
    }
}

/// Format, rate and length, within the limits. The packets are counted, and none is decoded: what
/// they hold may still be damaged.
///
/// # Errors
///
/// If the format is not known, the file is cut or damaged, or the limits are exceeded.
pub fn probe(bytes: &[u8], limits: &Limits) -> Result<SoundHeader, MediaError> {
    limits.check_bytes(bytes)?;
    let format = SoundFormat::of(bytes)?;
    contained(format, || {
        let mut packets = Packets::new(format, source(bytes)?)?;
        while let Some(packet) = packets.next()? {
            packets.count(&packet);
            limits.check_samples(packets.num_samples(), packets.rate())?;
        }
        match packets.num_samples() {
            0 => Err(damaged(format, "it has no samples")),
            num_samples => Ok(SoundHeader {
                format,
                sample_rate: packets.rate(),
                num_channels: packets.num_channels() as u32,
                num_samples,
            }),
        }
    })
}

/// The samples: the mean of all channels, at the rate of the file.
///
/// # Errors
///
/// As [`probe`], and if a packet is damaged or holds what is no number.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Samples, MediaError> {
    let header = probe(bytes, limits)?;
    let SoundHeader { format, sample_rate, num_samples, .. } = header;
    contained(format, || {
        let mut decoding = Decoding::new(format, source(bytes)?)?;
        // Within the limits, since it was counted.
        let mut values = Vec::with_capacity(num_samples as usize);
        while decoding.push_next(&mut values)? {
            if decoding.num_given() > num_samples {
                return Err(decoding.other_length());
            }
        }
        Ok(Samples::new(sample_rate, values))
    })
}

/// A recording in memory.
fn source(bytes: &[u8]) -> Result<Source<'_>, MediaError> {
    Source::new(Cursor::new(bytes)).map_err(|error| MediaError::unreadable(&error))
}

/// Decoders of others may panic on a damaged file. That costs the recording.
fn contained<T>(
    format: SoundFormat,
    read: impl FnOnce() -> Result<T, MediaError>,
) -> Result<T, MediaError> {
    contain(read).unwrap_or_else(|| Err(damaged(format, "its decoder failed on it")))
}

fn damaged(format: SoundFormat, what: impl std::fmt::Display) -> MediaError {
    MediaError::decode(format!("the {format} recording is damaged: {what}"))
}

fn unsupported(format: SoundFormat, what: impl std::fmt::Display) -> MediaError {
    MediaError::unsupported(format!("the {format} recording has {what}, which is not read"))
}
