//! Features of a recording, as `WhisperFeatureExtractor` of transformers makes them: the logarithm
//! of the power in bands of the mel scale, frame after frame, in chunks of one length.

mod config;
mod filters;

use std::borrow::Cow;
use std::f64::consts::TAU;
use std::fmt;
use std::sync::Arc;

use rustfft::num_complex::Complex;
use rustfft::{Fft, FftPlannerScalar};

use super::{CUT_IT, Samples, resample};
use crate::error::MediaError;
use filters::Filter;
use vllm_batch_base::layers::SoundChunks;

/// The least power of a band.
const FLOOR: f64 = 1e-10;

/// How far below the loudest band others are heard, in tenths of its logarithm.
const RANGE: f32 = 8.0;

/// From samples to features, as one model wants them.
#[derive(Clone)]
pub struct SoundProcessor {
    rate: u32,
    hop_length: usize,
    /// Of a chunk.
    num_samples: usize,
    chunks: SoundChunks,
    max_chunks: usize,
    padding_value: f32,
    window: Vec<f64>,
    filters: Vec<Filter>,
    fft: Arc<dyn Fft<f64>>,
}

/// What a tower gets of a recording: chunks of one length, the last of which is filled up.
#[derive(Clone, Debug, PartialEq)]
pub struct Features {
    /// Frames of all chunks.
    pub num_frames: usize,
    /// The first of them, which the recording itself has.
    pub num_heard: usize,
    /// Bands of each frame.
    pub num_mels: usize,
    /// `[num_frames, num_mels]`, frame after frame.
    pub values: Vec<f32>,
}

impl fmt::Debug for SoundProcessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoundProcessor")
            .field("rate", &self.rate)
            .field("num_mels", &self.filters.len())
            .field("num_samples", &self.num_samples)
            .finish_non_exhaustive()
    }
}

impl SoundProcessor {
    fn new(
        (rate, num_mels): (u32, usize),
        (n_fft, hop_length): (usize, usize),
        num_samples: usize,
        padding_value: f32,
    ) -> Self {
        // Periodic, in float32 as PyTorch's.
        let window = |at: usize| 0.5 - 0.5 * (TAU * at as f64 / n_fft as f64).cos();
        SoundProcessor {
            rate,
            hop_length,
            num_samples,
            chunks: SoundChunks::One,
            max_chunks: 1,
            padding_value,
            window: (0..n_fft).map(|at| f64::from(window(at) as f32)).collect(),
            filters: filters::slaney(num_mels, n_fft, rate),
            // Of the scalar kind, so that no instruction set changes a bit.
            fft: FftPlannerScalar::new().plan_fft_forward(n_fft),
        }
    }

    /// Samples of a second that it wants.
    pub fn rate(&self) -> u32 {
        self.rate
    }

    /// Bands of a frame.
    pub fn num_mels(&self) -> usize {
        self.filters.len()
    }

    /// Samples of the longest recording, at [`Self::rate`].
    fn max_samples(&self) -> u64 {
        (self.num_samples as u64).saturating_mul(self.max_chunks as u64)
    }

    /// Frames of a chunk.
    pub fn num_frames(&self) -> usize {
        match self.chunks {
            SoundChunks::One | SoundChunks::Joined | SoundChunks::Apart => {
                self.num_samples / self.hop_length
            }
            SoundChunks::Trimmed(num_frames) | SoundChunks::Exact { num_frames, .. } => num_frames,
        }
    }

    /// Frames of the chunks of a recording of so many samples at [`Self::rate`], which is not too
    /// long.
    pub fn num_filled(&self, num_samples: u64) -> usize {
        self.num_heard(num_samples).max(1).next_multiple_of(self.num_frames())
    }

    /// Frames that such a recording has itself.
    pub fn num_heard(&self, num_samples: u64) -> usize {
        let hop_length = self.hop_length as u64;
        match self.chunks {
            SoundChunks::Exact { min_samples, .. } => {
                (num_samples.max(min_samples as u64) / hop_length) as usize
            }
            _ => num_samples.div_ceil(hop_length) as usize,
        }
    }

    /// Refuses a recording of so many samples at this processor's rate that is not heard.
    ///
    /// # Errors
    ///
    /// It is too long; or so short that nothing is heard of it.
    pub fn check(&self, num_samples: u64) -> Result<(), MediaError> {
        if let SoundChunks::Exact { min_samples, .. } = self.chunks
            && num_samples.max(min_samples as u64) <= self.window.len() as u64 / 2
        {
            return Err(MediaError::unsupported(format!(
                "it has {num_samples} samples, which are no frame; help: leave it out"
            )));
        }
        let (rate, most) = (u64::from(self.rate), self.max_samples());
        match num_samples > most {
            true => Err(MediaError::TooLarge(format!(
                "it has {:.1} seconds, and the model hears {}; help: {CUT_IT}",
                num_samples as f64 / rate as f64,
                most / rate
            ))),
            false => Ok(()),
        }
    }

    /// The features of a recording of any rate.
    ///
    /// # Errors
    ///
    /// It is too long.
    pub fn features(&self, samples: &Samples) -> Result<Features, MediaError> {
        let values = samples.values();
        self.check(resample::num_samples(values.len() as u64, samples.rate(), self.rate))?;
        let values = match samples.rate() == self.rate {
            true => Cow::Borrowed(values),
            false => Cow::Owned(resample::resample(values, samples.rate(), self.rate)),
        };
        let (num_samples, num_mels) = (values.len() as u64, self.num_mels());
        let (num_frames, num_heard) = (self.num_filled(num_samples), self.num_heard(num_samples));
        let mut features = Vec::with_capacity(num_frames * num_mels);
        let mut frame = Frame::new(self);
        match self.chunks {
            SoundChunks::One | SoundChunks::Joined => {
                let end = num_frames * self.hop_length;
                frame.push_all(&values, (end, num_frames), &mut features);
            }
            SoundChunks::Apart => {
                let num_frames = self.num_frames();
                for chunk in values.chunks(self.num_samples) {
                    frame.push_all(chunk, (self.num_samples, num_frames), &mut features);
                }
            }
            SoundChunks::Trimmed(_) => {
                let all = self.num_samples / self.hop_length;
                frame.push_all(&values, (self.num_samples, all), &mut features);
                features.truncate(num_heard * num_mels);
            }
            SoundChunks::Exact { min_samples, .. } => {
                let end = values.len().max(min_samples);
                frame.push_all(&values, (end, num_heard), &mut features);
            }
        }
        // Zeros: of the others all frames are there.
        features.resize(num_frames * num_mels, 0.0);
        Ok(Features { num_frames, num_heard, num_mels, values: features })
    }
}

/// Room for the numbers of a frame.
struct Frame<'a> {
    processor: &'a SoundProcessor,
    spectrum: Vec<Complex<f64>>,
    scratch: Vec<Complex<f64>>,
    power: Vec<f64>,
}

impl<'a> Frame<'a> {
    fn new(processor: &'a SoundProcessor) -> Self {
        let n_fft = processor.window.len();
        let scratch = processor.fft.get_inplace_scratch_len();
        Frame {
            processor,
            spectrum: vec![Complex::default(); n_fft],
            scratch: vec![Complex::default(); scratch],
            power: vec![0.0; n_fft / 2 + 1],
        }
    }

    /// Appends so many frames of samples that are filled up to `end`.
    fn push_all(
        &mut self,
        values: &[f32],
        (end, num_frames): (usize, usize),
        features: &mut Vec<f32>,
    ) {
        let SoundProcessor { window, hop_length, padding_value, .. } = self.processor;
        let first = features.len();
        // Padding is one frame again and again, and most of a short recording.
        let num_other = match padding_value {
            0.0 => num_frames.min((values.len() + window.len()).div_ceil(*hop_length)),
            _ => num_frames,
        };
        for at in 0..num_other {
            self.push((values, end), at, features);
        }
        features.resize(first + num_frames * self.processor.num_mels(), FLOOR.log10() as f32);
        let features = &mut features[first..];
        let loudest = features.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for value in features {
            *value = (value.max(loudest - RANGE) + 4.0) / 4.0;
        }
    }

    /// Appends the logarithms of the bands of a frame of samples that are filled up to `end`.
    fn push(&mut self, (values, end): (&[f32], usize), at: usize, features: &mut Vec<f32>) {
        let SoundProcessor { window, hop_length, padding_value, .. } = self.processor;
        let start = (at * hop_length) as isize - window.len() as isize / 2;
        let end = end as isize - 1;
        for ((index, number), weight) in (start..).zip(&mut self.spectrum).zip(window) {
            // What there is is reflected at its ends.
            let index = index.abs();
            let index = if index > end { 2 * end - index } else { index };
            let sample = values.get(index as usize).copied().unwrap_or(*padding_value);
            *number = Complex::new(f64::from(sample) * weight, 0.0);
        }
        self.processor.fft.process_with_scratch(&mut self.spectrum, &mut self.scratch);
        for (power, number) in self.power.iter_mut().zip(&self.spectrum) {
            *power = number.norm_sqr();
        }
        features.extend(self.processor.filters.iter().map(|filter| {
            let sum = filter.sum(&self.power);
            sum.max(FLOOR).log10() as f32
        }));
    }
}
