//! Formats, by their first bytes. Each has a file: what its header says, and its pixels as they are
//! stored.

mod bmp;
mod gif;
mod palette;
mod png;
mod tiff;
mod tiff_chunks;
mod webp;

#[cfg(test)]
mod tests;

use std::fmt;

use vllm_batch_base::contained::contain;

use crate::error::MediaError;
use crate::header::Stored;
use crate::jpeg;
use crate::rgb::Rgb8;

/// A format that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Portable Network Graphics; of an animation the default image.
    Png,
    /// Baseline, extended and progressive JPEG of 8 bits.
    Jpeg,
    /// Lossy and lossless WebP; of an animation the first frame.
    WebP,
    /// The first frame of a GIF.
    Gif,
    /// A Windows bitmap.
    Bmp,
    /// The first page of a TIFF.
    Tiff,
}

/// Formats that are known and not read: where their mark stands, and the mark.
const UNREAD: &[(&str, usize, &[u8])] = &[
    ("AVIF", 4, b"ftypavif"),
    ("BigTIFF", 0, b"II+\0"),
    ("BigTIFF", 0, b"MM\0+"),
    ("HEIC", 4, b"ftyphei"),
    ("HEIC", 4, b"ftypmif1"),
    ("JPEG 2000", 4, b"jP  "),
    ("JPEG XL", 0, b"\xff\x0a"),
    ("JPEG XL", 4, b"JXL "),
    ("PDF", 0, b"%PDF-"),
    ("Photoshop", 0, b"8BPS"),
    ("SVG", 0, b"<svg"),
    ("icon", 0, b"\0\0\x01\0"),
];

impl Format {
    /// The format of bytes, by the first of them.
    ///
    /// # Errors
    ///
    /// If it is not known, or not read.
    pub fn of(bytes: &[u8]) -> Result<Self, MediaError> {
        let starts = |mark: &[u8]| bytes.starts_with(mark);
        Ok(match () {
            () if starts(b"\x89PNG\r\n\x1a\n") => Format::Png,
            () if starts(b"\xff\xd8\xff") => Format::Jpeg,
            () if starts(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") => Format::WebP,
            () if starts(b"GIF87a") || starts(b"GIF89a") => Format::Gif,
            () if starts(b"BM") => Format::Bmp,
            () if starts(b"II*\0") || starts(b"MM\0*") => Format::Tiff,
            () => return Err(unknown(bytes)),
        })
    }
}

fn unknown(bytes: &[u8]) -> MediaError {
    const READ: &str = "PNG, JPEG, WebP, GIF, BMP and TIFF are read";
    if bytes.is_empty() {
        return MediaError::decode("the image has no bytes");
    }
    let has = |(_, at, mark): &&(&str, usize, &[u8])| {
        bytes.get(*at..).is_some_and(|rest| rest.starts_with(mark))
    };
    match UNREAD.iter().find(has) {
        Some((name, ..)) => {
            MediaError::unsupported(format!("the image is {name}; help: convert it: {READ}"))
        }
        None => MediaError::decode(format!("the bytes are no image of a known format; {READ}")),
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Png => "PNG",
            Format::Jpeg => "JPEG",
            Format::WebP => "WebP",
            Format::Gif => "GIF",
            Format::Bmp => "BMP",
            Format::Tiff => "TIFF",
        })
    }
}

pub(crate) fn header(format: Format, bytes: &[u8]) -> Result<Stored, MediaError> {
    contained(format, || match format {
        Format::Png => png::header(bytes),
        Format::Jpeg => jpeg::header(bytes),
        Format::WebP => webp::header(bytes),
        Format::Gif => gif::header(bytes),
        Format::Bmp => bmp::header(bytes),
        Format::Tiff => tiff::header(bytes),
    })
}

/// The pixels as they are stored. The header was within the limits.
pub(crate) fn decode(format: Format, bytes: &[u8]) -> Result<Rgb8, MediaError> {
    contained(format, || match format {
        Format::Png => png::decode(bytes),
        Format::Jpeg => jpeg::decode(bytes),
        Format::WebP => webp::decode(bytes),
        Format::Gif => gif::decode(bytes),
        Format::Bmp => bmp::decode(bytes),
        Format::Tiff => tiff::decode(bytes),
    })
}

/// Decoders of others panic on some damaged files (image-webp 0.2.4 on a frame without columns).
/// That costs the image.
fn contained<T>(
    format: Format,
    read: impl FnOnce() -> Result<T, MediaError>,
) -> Result<T, MediaError> {
    contain(read).unwrap_or_else(|| Err(damaged(format, "its decoder failed on it")))
}

fn damaged(format: Format, what: impl fmt::Display) -> MediaError {
    MediaError::decode(format!("the {format} image is damaged: {what}"))
}

fn unsupported(format: Format, what: impl fmt::Display) -> MediaError {
    MediaError::unsupported(format!("the {format} image has {what}, which is not read"))
}
