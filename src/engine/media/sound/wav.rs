//! WAV: files whose writer did not know their length, as a pipe, or a server that sends speech
//! while it is made; and files of samples of our own.

use std::io;

use super::Samples;
use super::source::Source;

/// Where the first chunk is.
const FIRST_CHUNK: u64 = 12;

/// Chunks in front of the samples that are looked at.
const MAX_CHUNKS: usize = 1 << 12;

/// Bytes of all that is in front of the samples, but for the first eight.
const HEAD_BYTES: u32 = 36;

/// Has the length of the samples read as it is, where the file does not say it.
///
/// # Errors
/// The bytes cannot be read.
pub(super) fn correct(source: &mut Source<'_>) -> io::Result<()> {
    let mut at = FIRST_CHUNK;
    for _ in 0..MAX_CHUNKS {
        let Some([a, b, c, d, len @ ..]) = source.chunk::<8>(at)? else { break };
        let (len, num_left) = (u32::from_le_bytes(len), source.len() - (at + 8));
        if [a, b, c, d] == *b"data" {
            let is_open = [0, u32::MAX].contains(&len) && num_left > 0;
            if let Some(len) = u32::try_from(num_left).ok().filter(|_| is_open) {
                source.correct(at + 4, len.to_le_bytes());
                // What the whole says is not looked at where this is its largest.
                source.correct(4, u32::MAX.to_le_bytes());
            }
            return Ok(());
        }
        at = (at + 8 + u64::from(len)).next_multiple_of(2);
    }
    Ok(())
}

/// A file of samples: floats of 32 bits in one channel. None: it would have more than 4 GiB.
pub(super) fn of_samples(samples: &Samples) -> Option<Vec<u8>> {
    let (rate, values) = (samples.rate(), samples.values());
    let num_bytes = u32::try_from(values.len() * 4).ok()?;
    let num_whole = num_bytes.checked_add(HEAD_BYTES)?;
    let mut wav = Vec::with_capacity(num_whole as usize + 8);
    wav.extend(b"RIFF");
    wav.extend(num_whole.to_le_bytes());
    wav.extend(b"WAVEfmt \x10\0\0\0\x03\0\x01\0");
    wav.extend(rate.to_le_bytes());
    wav.extend(rate.saturating_mul(4).to_le_bytes());
    wav.extend(b"\x04\0\x20\0data");
    wav.extend(num_bytes.to_le_bytes());
    wav.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    Some(wav)
}
