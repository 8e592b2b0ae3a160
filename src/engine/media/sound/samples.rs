//! Decoded samples of one channel.

use super::{resample, wav};

/// Samples of one channel, about -1 to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    rate: u32,
    values: Vec<f32>,
}

impl Samples {
    /// Samples at so many of a second.
    ///
    /// # Panics
    ///
    /// If the rate is 0.
    pub fn new(rate: u32, values: Vec<f32>) -> Self {
        assert!(rate > 0, "samples have a rate");
        Samples { rate, values }
    }

    /// Samples of a second.
    pub fn rate(&self) -> u32 {
        self.rate
    }

    /// The samples.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// A WAV file of them, whose samples are the same bits. None: it would have more than 4 GiB.
    pub fn to_wav(&self) -> Option<Vec<u8>> {
        wav::of_samples(self)
    }

    /// The same sound at another rate, as `torchaudio.functional.resample` makes it.
    pub fn at_rate(self, rate: u32) -> Self {
        match self.rate == rate {
            true => self,
            false => Samples { rate, values: resample::resample(&self.values, self.rate, rate) },
        }
    }
}
