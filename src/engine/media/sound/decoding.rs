//! A recording that is decoded packet by packet.

use super::damaged;
use super::format::SoundFormat;
use super::packets::{Decoder, Packets};
use super::source::Source;
use crate::error::MediaError;

/// A recording of which some packets are decoded.
pub(super) struct Decoding<'a> {
    format: SoundFormat,
    packets: Packets<'a>,
    decoder: Decoder,
    /// Samples in front of the recording that are still to come.
    num_priming: usize,
    /// Samples that were given out.
    num_given: u64,
}

impl<'a> Decoding<'a> {
    /// Reads what is in front of the first packet.
    pub(super) fn new(format: SoundFormat, source: Source<'a>) -> Result<Self, MediaError> {
        let packets = Packets::new(format, source)?;
        let decoder = packets.decoder()?;
        let num_priming = packets.priming() as usize;
        Ok(Decoding { format, packets, decoder, num_priming, num_given: 0 })
    }

    pub(super) fn rate(&self) -> u32 {
        self.packets.rate()
    }

    /// Samples in the packets so far, as they say.
    pub(super) fn num_samples(&self) -> u64 {
        self.packets.num_samples()
    }

    /// Samples that were given out.
    pub(super) fn num_given(&self) -> u64 {
        self.num_given
    }

    /// Appends the samples of the next packet. False: there is none, and all of it was given out.
    pub(super) fn push_next(&mut self, values: &mut Vec<f32>) -> Result<bool, MediaError> {
        let Some(packet) = self.packets.next()? else {
            return match self.num_given == self.num_samples() {
                true => Ok(false),
                false => Err(self.other_length()),
            };
        };
        self.packets.count(&packet);
        let start = values.len();
        self.decoder.push(&packet, values)?;
        let num_priming = self.num_priming.min(values.len() - start);
        values.drain(start..start + num_priming);
        self.num_priming -= num_priming;
        self.num_given += (values.len() - start) as u64;
        match values[start..].iter().all(|value| value.is_finite()) {
            true => Ok(true),
            false => Err(damaged(self.format, "a sample is no number")),
        }
    }

    /// The error of data that are not as long as their packets say.
    pub(super) fn other_length(&self) -> MediaError {
        damaged(self.format, "its data have another length")
    }
}
