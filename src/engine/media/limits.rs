//! What a medium may cost, asked before anything is allocated for it.

use crate::error::MediaError;
use crate::sound::CUT_IT;

/// Bounds of one medium. The defaults are vLLM's, and the side is libjpeg's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the encoded file.
    pub max_bytes: u64,
    /// Width times height.
    pub max_pixels: u64,
    /// Width, and height.
    pub max_side: u32,
    /// Seconds of a recording.
    pub max_seconds: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { max_bytes: 256 << 20, max_pixels: 178_956_970, max_side: 65_500, max_seconds: 600 }
    }
}

impl Limits {
    pub(crate) fn check_bytes(&self, bytes: &[u8]) -> Result<(), MediaError> {
        let (len, max) = (bytes.len() as u64, self.max_bytes);
        match len > max {
            true => Err(MediaError::TooLarge(format!(
                "it has {len} bytes, and {max} are the most; help: make it smaller"
            ))),
            false => Ok(()),
        }
    }

    pub(crate) fn check_size(&self, width: u32, height: u32) -> Result<(), MediaError> {
        if width == 0 || height == 0 {
            return Err(MediaError::decode(format!("the image is {width} by {height} pixels")));
        }
        let pixels = u64::from(width) * u64::from(height);
        let (max_pixels, max_side) = (self.max_pixels, self.max_side);
        let most = match (pixels > max_pixels, width.max(height) > max_side) {
            (true, _) => format!("{max_pixels} pixels are the most"),
            (false, true) => format!("a side of {max_side} is the longest"),
            (false, false) => return Ok(()),
        };
        Err(MediaError::TooLarge(format!(
            "the image is {width} by {height} pixels, and {most}; help: make it smaller"
        )))
    }

    /// Refuses more samples of a channel than the seconds allow. They are counted, so a file that
    /// says less than it has is found out.
    pub(crate) fn check_samples(&self, num_samples: u64, rate: u32) -> Result<(), MediaError> {
        let max_seconds = self.max_seconds;
        match num_samples > u64::from(max_seconds) * u64::from(rate) {
            true => Err(MediaError::TooLarge(format!(
                "it is longer than {max_seconds} seconds; help: {CUT_IT}"
            ))),
            false => Ok(()),
        }
    }
}
