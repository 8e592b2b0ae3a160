//! WebP by the `image-webp` crate.

use std::io::Cursor;

use image_webp::WebPDecoder;

use super::{Format, MediaError, damaged};
use crate::header::Stored;
use crate::orientation::Orientation;
use crate::rgb::{Rgb8, on_white};

/// Memory of EXIF and XMP.
const MAX_METADATA_BYTES: usize = 16 << 20;

fn bad(what: impl std::fmt::Display) -> MediaError {
    damaged(Format::WebP, what)
}

fn open(bytes: &[u8]) -> Result<WebPDecoder<Cursor<&[u8]>>, MediaError> {
    // libwebp refuses what ends before it says; the crate decodes what there is.
    let len = bytes.get(4..8).map_or(0, |len| u32::from_le_bytes([len[0], len[1], len[2], len[3]]));
    if bytes.len() as u64 - 8 < u64::from(len) {
        return Err(bad("it ends too early"));
    }
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(bad)?;
    decoder.set_memory_limit(MAX_METADATA_BYTES);
    Ok(decoder)
}

pub(super) fn header(bytes: &[u8]) -> Result<Stored, MediaError> {
    let mut decoder = open(bytes)?;
    let (width, height) = decoder.dimensions();
    let exif = decoder.exif_metadata().ok().flatten();
    let xmp = decoder.xmp_metadata().ok().flatten();
    let orientation = Orientation::read(exif.as_deref(), xmp.as_deref());
    Ok(Stored { width, height, orientation })
}

/// Whether no lossy frame among these chunks is larger than the canvas: the crate makes room for a
/// frame before it compares them.
fn frames_fit(mut chunks: &[u8], canvas: (u32, u32)) -> bool {
    while let Some((kind, rest)) = chunks.split_first_chunk::<4>() {
        let Some((len, rest)) = rest.split_first_chunk::<4>() else { return true };
        let len = (u32::from_le_bytes(*len) as usize).min(rest.len());
        let data = &rest[..len];
        let is_fitting = match (kind, data) {
            (b"VP8 ", [_, _, _, 0x9d, 1, 0x2a, w0, w1, h0, h1, ..]) => {
                let side = |low: u8, high: u8| u32::from(u16::from_le_bytes([low, high]) & 0x3fff);
                side(*w0, *w1) <= canvas.0 && side(*h0, *h1) <= canvas.1
            }
            (b"ANMF", data) => frames_fit(data.get(16..).unwrap_or_default(), canvas),
            _ => true,
        };
        if !is_fitting {
            return false;
        }
        chunks = rest.get(len + len % 2..).unwrap_or_default();
    }
    true
}

pub(super) fn decode(bytes: &[u8]) -> Result<Rgb8, MediaError> {
    let mut decoder = open(bytes)?;
    let (width, height) = decoder.dimensions();
    if !frames_fit(&bytes[12..], (width, height)) {
        return Err(bad("a frame that is larger than the image"));
    }
    let (width, height) = (width as usize, height as usize);
    let size = decoder.output_buffer_size().ok_or_else(|| bad("its size"))?;
    let mut data = vec![0; size];
    decoder.read_image(&mut data).map_err(bad)?;
    if decoder.has_alpha() {
        let pixels = data
            .as_chunks::<4>()
            .0
            .iter()
            .flat_map(|&[r, g, b, alpha]| [r, g, b].map(|sample| on_white(sample, alpha)));
        data = pixels.collect();
    }
    match data.len() == width * height * 3 {
        true => Ok(Rgb8::new(width, height, data)),
        false => Err(bad("rows of another length")),
    }
}
