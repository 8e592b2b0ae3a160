//! What a file says of itself, and its pixels.

use crate::error::MediaError;
use crate::formats::{self, Format};
use crate::limits::Limits;
use crate::orientation::Orientation;
use crate::rgb::Rgb8;

/// What is known of an image before a pixel is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the first bytes say, whatever the file is called.
    pub format: Format,
    /// Pixels of a row, once the image stands upright.
    pub width: u32,
    /// Rows, once the image stands upright.
    pub height: u32,
}

/// A header as it is stored: before the image is turned.
pub(crate) struct Stored {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) orientation: Orientation,
}

/// Format and size, within the limits. The pixels may still be damaged.
///
/// # Errors
///
/// If the format is not known, its header is damaged, or the limits are exceeded.
pub fn probe(bytes: &[u8], limits: &Limits) -> Result<Header, MediaError> {
    let (format, stored) = stored(bytes, limits)?;
    let (width, height) = stored.orientation.size(stored.width, stored.height);
    Ok(Header { format, width, height })
}

fn stored(bytes: &[u8], limits: &Limits) -> Result<(Format, Stored), MediaError> {
    limits.check_bytes(bytes)?;
    let format = Format::of(bytes)?;
    let stored = formats::header(format, bytes)?;
    limits.check_size(stored.width, stored.height)?;
    Ok((format, stored))
}

/// The pixels: the first frame, upright, in 8-bit RGB, alpha on white. As
/// `ImageOps.exif_transpose` and `Image.convert("RGB")` of Pillow give them.
///
/// # Errors
///
/// As [`probe`], and if the pixels are damaged, cut or of a kind that is not read.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Rgb8, MediaError> {
    let (format, stored) = stored(bytes, limits)?;
    let pixels = formats::decode(format, bytes)?;
    let (width, height) = (stored.width as usize, stored.height as usize);
    if (pixels.width(), pixels.height()) != (width, height) {
        return Err(MediaError::decode(format!("the {format} image has another size in its data")));
    }
    Ok(pixels.oriented(stored.orientation))
}
