//! What a file says of itself, and its pixels.

use crate::error::MediaError;
use crate::formats::{self, Format};
use crate::id::MediaKind;
use crate::limits::Limits;
use crate::orientation::Orientation;
use crate::rgb::Rgb8;
use crate::sound::{self, SoundHeader};

/// What is known of a medium before it is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// Of a picture.
    Image(ImageHeader),
    /// Of a recording.
    Sound(SoundHeader),
}

impl Header {
    /// What the bytes say of themselves, within the limits.
    pub(crate) fn of(kind: MediaKind, bytes: &[u8], limits: &Limits) -> Result<Self, MediaError> {
        match kind {
            MediaKind::Image => probe(bytes, limits).map(Header::Image),
            MediaKind::Sound => sound::probe(bytes, limits).map(Header::Sound),
        }
    }

    /// What the medium is.
    pub fn kind(&self) -> MediaKind {
        match self {
            Header::Image(_) => MediaKind::Image,
            Header::Sound(_) => MediaKind::Sound,
        }
    }

    /// That of an image; None: it is of something else.
    pub fn image(&self) -> Option<&ImageHeader> {
        match self {
            Header::Image(header) => Some(header),
            Header::Sound(_) => None,
        }
    }

    /// That of a recording; None: it is of something else.
    pub fn sound(&self) -> Option<&SoundHeader> {
        match self {
            Header::Sound(header) => Some(header),
            Header::Image(_) => None,
        }
    }
}

/// What is known of an image before a pixel is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageHeader {
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
pub fn probe(bytes: &[u8], limits: &Limits) -> Result<ImageHeader, MediaError> {
    let (format, stored) = stored(bytes, limits)?;
    let (width, height) = stored.orientation.size(stored.width, stored.height);
    Ok(ImageHeader { format, width, height })
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
