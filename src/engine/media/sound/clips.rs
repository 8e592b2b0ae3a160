//! Clips of a long recording, cut where it is quiet. It is decoded as it is read: no more of it is
//! in memory than a clip.

use std::fmt;
use std::ops::Range;

use super::decoding::Decoding;
use super::format::SoundFormat;
use super::quiet::{quietest, step};
use super::source::{Seekable, Source};
use super::{Samples, contained, damaged};
use crate::error::MediaError;
use crate::limits::Limits;

/// Seconds of the longest recording that is cut.
const MAX_SECONDS: u32 = 24 * 3600;

/// The part of a clip at whose end a pause is looked for, as a divisor.
const REACH: usize = 6;

/// Bytes that say what a recording is.
const HEAD_BYTES: usize = 1024;

/// The clips of a recording, one behind the other: together they are all of its samples.
///
/// What is damaged is found when it is reached. It is the last item then.
pub struct Clips(Option<Cutter>);

/// A piece of a recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Clip {
    /// The sample of the recording that is its first.
    pub first: u64,
    /// Its samples, at the rate of the recording.
    pub samples: Samples,
}

impl Clip {
    /// Its place in the recording, in milliseconds.
    pub fn milliseconds(&self) -> Range<u64> {
        let rate = u64::from(self.samples.rate());
        let time = |sample: u64| (sample * 1000 + rate / 2) / rate;
        time(self.first)..time(self.first + self.samples.values().len() as u64)
    }
}

impl Clips {
    /// Opens a recording whose clips have at most so many seconds. `source`: all of its bytes.
    ///
    /// # Errors
    /// The bytes cannot be read, or are no recording that is read.
    ///
    /// # Panics
    /// A clip would have no second.
    pub fn open(source: impl Seekable + 'static, max_seconds: u32) -> Result<Self, MediaError> {
        assert!(max_seconds > 0, "a clip has a length");
        let mut source = Source::new(source).map_err(|error| MediaError::unreadable(&error))?;
        let head = source.bytes(0, HEAD_BYTES).map_err(|error| MediaError::unreadable(&error))?;
        let format = SoundFormat::of_untagged(&head)?;
        let cutter = contained(format, || Cutter::new(format, source, max_seconds))?;
        Ok(Clips(Some(cutter)))
    }
}

impl fmt::Debug for Clips {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clips").finish_non_exhaustive()
    }
}

impl Iterator for Clips {
    type Item = Result<Clip, MediaError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut cutter = self.0.take()?;
        let clip = contained(cutter.format, || cutter.next_clip());
        if clip.is_ok() && !(cutter.has_ended && cutter.values.is_empty()) {
            self.0 = Some(cutter);
        }
        Some(clip)
    }
}

/// A recording that is decoded as far as a clip needs it.
struct Cutter {
    format: SoundFormat,
    decoding: Decoding<'static>,
    /// Decoded samples that are in no clip yet.
    values: Vec<f32>,
    /// Samples of the longest clip.
    max_len: usize,
    has_ended: bool,
}

impl Cutter {
    fn new(
        format: SoundFormat,
        source: Source<'static>,
        max_seconds: u32,
    ) -> Result<Self, MediaError> {
        let decoding = Decoding::new(format, source)?;
        let max_len = max_seconds as usize * decoding.rate() as usize;
        Ok(Cutter { format, decoding, values: Vec::new(), max_len, has_ended: false })
    }

    fn next_clip(&mut self) -> Result<Clip, MediaError> {
        let (reach, rate) = (self.max_len / REACH, self.decoding.rate());
        // What is left behind a cut is no shorter than this.
        let least = reach.min(rate as usize);
        while !self.has_ended && self.values.len() < self.max_len + least {
            self.has_ended = !self.decoding.push_next(&mut self.values)?;
            let limits = Limits { max_seconds: MAX_SECONDS, ..Limits::default() };
            limits.check_samples(self.decoding.num_samples(), rate)?;
        }
        let first = self.decoding.num_given() - self.values.len() as u64;
        let len = match self.values.len() {
            0 => return Err(damaged(self.format, "it has no samples")),
            len if len <= self.max_len => len,
            len => {
                let end = self.max_len.min(len - least);
                let start = (end - reach).next_multiple_of(step(rate)).min(end);
                start + quietest(&self.values[start..end], rate)
            }
        };
        let rest = self.values.split_off(len);
        let values = std::mem::replace(&mut self.values, rest);
        Ok(Clip { first, samples: Samples::new(rate, values) })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::goldens::sounds;
    use crate::sound::decode;

    fn clips(bytes: Vec<u8>, max_seconds: u32) -> Vec<Result<Clip, MediaError>> {
        Clips::open(Cursor::new(bytes), max_seconds).expect("a recording").collect()
    }

    /// All samples of clips that follow each other, none of which is too long.
    fn joined(clips: Vec<Result<Clip, MediaError>>, max_seconds: u32) -> Vec<f32> {
        let mut values = Vec::new();
        for clip in clips {
            let Clip { first, samples } = clip.expect("a clip");
            assert_eq!(first, values.len() as u64);
            assert!(samples.values().len() <= (max_seconds * samples.rate()) as usize);
            values.extend(samples.values());
        }
        values
    }

    /// Noise of so many seconds at 1000 samples, with a pause of 200 samples in each second.
    fn speech(num_samples: usize) -> Samples {
        let sample = |at: usize| match at % 1000 {
            400..600 => 0.0,
            at => {
                if at * 7 % 5 < 2 {
                    0.5
                } else {
                    -0.25
                }
            }
        };
        Samples::new(1000, (0..num_samples).map(sample).collect())
    }

    fn wav(samples: &Samples) -> Vec<u8> {
        samples.to_wav().expect("a file")
    }

    #[test]
    fn clips_of_every_format_are_all_of_its_samples() {
        for line in sounds::lines("decoded.jsonl") {
            let name = line["file"].as_str().expect("a name");
            let bytes = sounds::file(name);
            let whole = decode(&bytes, &Limits::default()).expect("samples");
            let mut tagged = b"ID3\x04\0\0\0\0\0\x05hello".to_vec();
            tagged.extend(&bytes);
            for bytes in [bytes, tagged] {
                for max_seconds in [1, 30] {
                    let found = joined(clips(bytes.clone(), max_seconds), max_seconds);
                    assert!(found == whole.values(), "{name}");
                }
            }
        }
    }

    #[test]
    fn a_recording_is_cut_in_its_pauses() {
        let times = |num_samples, max_seconds| {
            let clips = clips(wav(&speech(num_samples)), max_seconds);
            clips
                .into_iter()
                .map(|clip| clip.unwrap().milliseconds())
                .map(|at| (at.start, at.end))
                .collect::<Vec<_>>()
        };
        assert_eq!(times(70_000, 30), [(0, 29_500), (29_500, 59_450), (59_450, 70_000)]);
        assert_eq!(times(30_000, 30), [(0, 30_000)]);
        assert_eq!(times(30_001, 30), [(0, 28_500), (28_500, 30_001)], "no clip is a moment");
        assert_eq!(times(7, 30), [(0, 7)]);
        assert_eq!(
            times(1400, 1),
            [(0, 920), (920, 1400)],
            "without a pause it is cut all the same"
        );
    }

    #[test]
    fn clips_in_front_of_damage_are_there() {
        let bytes = wav(&speech(70_000));
        let found = clips(bytes[..bytes.len() - 100].to_vec(), 30);
        let codes = found.iter().map(|clip| clip.as_ref().map(|clip| clip.first));
        let codes: Vec<_> = codes.map(|clip| clip.map_err(MediaError::code)).collect();
        assert_eq!(codes, [Ok(0), Ok(29_500), Err("media_decode")]);
        let mut bytes = bytes;
        let place = bytes.len() - 4 * 5_000;
        bytes[place..place + 4].copy_from_slice(&f32::NAN.to_le_bytes());
        assert_eq!(clips(bytes, 30)[2].as_ref().unwrap_err().code(), "media_decode");
        for (bytes, code) in [
            (Vec::new(), "media_decode"),
            (b"OggS and then".to_vec(), "media_unsupported"),
            (wav(&speech(9))[..50].to_vec(), "media_decode"),
        ] {
            let error = Clips::open(Cursor::new(bytes), 30).map(|mut clips| clips.next());
            let error = error.and_then(|clip| clip.expect("an item")).unwrap_err();
            assert_eq!(error.code(), code, "{error}");
        }
    }

    #[test]
    fn a_length_that_its_writer_did_not_know_is_found() {
        let speech = speech(40_000);
        for len in [0, u32::MAX] {
            let mut bytes = wav(&speech);
            bytes[40..44].copy_from_slice(&len.to_le_bytes());
            assert!(joined(clips(bytes, 30), 30) == speech.values());
        }
    }
}
