//! PNG: chunks are walked by own code, pixels are inflated by the `png` crate.

use std::io::Cursor;

use png::{BitDepth, ColorType, Decoder, Limits};

use super::palette::{Palette, unpack};
use super::{Format, MediaError, damaged};
use crate::header::Stored;
use crate::orientation::Orientation;
use crate::rgb::{Rgb8, on_white};

/// Memory of text and profiles, none of which is used.
const MAX_ANCILLARY_BYTES: usize = 16 << 20;

fn bad(what: impl std::fmt::Display) -> MediaError {
    damaged(Format::Png, what)
}

/// Kinds and data of all chunks.
struct Chunks<'a>(&'a [u8]);

impl<'a> Iterator for Chunks<'a> {
    type Item = ([u8; 4], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (len, rest) = self.0.split_first_chunk::<4>()?;
        let (kind, rest) = rest.split_first_chunk::<4>()?;
        let len = u32::from_be_bytes(*len) as usize;
        let data = rest.get(..len)?;
        self.0 = rest.get(len.checked_add(4)?..).unwrap_or_default();
        Some((*kind, data))
    }
}

pub(super) fn header(bytes: &[u8]) -> Result<Stored, MediaError> {
    let mut chunks = Chunks(&bytes[8..]);
    let Some((kind, [w3, w2, w1, w0, h3, h2, h1, h0, ..])) = chunks.next() else {
        return Err(bad("it ends in its header"));
    };
    if &kind != b"IHDR" {
        return Err(bad("it does not begin with its header"));
    }
    let (width, height) = ([*w3, *w2, *w1, *w0], [*h3, *h2, *h1, *h0]);
    let (mut exif, mut xmp) = (None, None);
    for (kind, data) in chunks {
        match &kind {
            b"eXIf" => exif = Some(data),
            b"iTXt" => xmp = uncompressed_xmp(data).or(xmp),
            _ => (),
        }
    }
    Ok(Stored {
        width: u32::from_be_bytes(width),
        height: u32::from_be_bytes(height),
        orientation: Orientation::read(exif, xmp),
    })
}

/// XMP, as everyone writes it: without compression.
fn uncompressed_xmp(data: &[u8]) -> Option<&[u8]> {
    let rest = data.strip_prefix(b"XML:com.adobe.xmp\0\0")?;
    // The method, a language and the keyword in it stand before the text.
    let mut parts = rest.get(1..)?.splitn(3, |&byte| byte == 0);
    parts.nth(2)
}

pub(super) fn decode(bytes: &[u8]) -> Result<Rgb8, MediaError> {
    let limits = Limits { bytes: MAX_ANCILLARY_BYTES };
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(bad)?;
    let size = reader.output_buffer_size().ok_or_else(|| bad("its size"))?;
    let mut data = vec![0; size];
    let output = reader.next_frame(&mut data).map_err(bad)?;
    let info = reader.info();
    let (width, height) = (info.width as usize, info.height as usize);
    if (output.width as usize, output.height as usize) != (width, height) {
        return Err(bad("a first frame that is smaller than the image"));
    }
    // The crate drops the high bytes of a key, which Pillow compares too.
    let trns = Chunks(&bytes[8..]).find(|(kind, _)| kind == b"tRNS").map(|(_, data)| data);
    let mut pixels = Vec::with_capacity(width * height * 3);
    let rows = data.chunks_exact(output.line_size).take(height);
    let is_wide = output.bit_depth == BitDepth::Sixteen;
    match output.color_type {
        ColorType::Indexed => {
            let colours = info.palette.as_deref().ok_or_else(|| bad("no palette"))?;
            let palette = Palette::new(colours, trns.unwrap_or_default());
            let indices = rows.flat_map(|row| unpack(row, output.bit_depth as u32).take(width));
            indices.for_each(|index| pixels.extend(palette.colour(index)));
        }
        ColorType::Grayscale if is_wide => {
            // Values above 255 are white: Pillow's I;16 is cut, and not scaled.
            let samples = rows.flat_map(|row| row.as_chunks::<2>().0);
            samples.for_each(|&sample| {
                pixels.extend([u16::from_be_bytes(sample).min(255) as u8; 3]);
            });
        }
        ColorType::Grayscale => {
            let bits = output.bit_depth as u32;
            let scale = 255 / (0xff_u8 >> (8 - bits));
            let transparent = trns.and_then(transparent_grey);
            let samples = rows.flat_map(|row| unpack(row, bits).take(width));
            samples.for_each(|sample| {
                let grey = sample * scale;
                let is_transparent = transparent == Some(u16::from(grey));
                pixels.extend([if is_transparent { 255 } else { grey }; 3]);
            });
        }
        ColorType::Rgb => {
            let transparent = trns.and_then(transparent_rgb);
            each(rows, is_wide, |[r, g, b]| {
                let is_transparent = transparent == Some([r, g, b].map(u16::from));
                pixels.extend(if is_transparent { [255; 3] } else { [r, g, b] });
            });
        }
        ColorType::GrayscaleAlpha => {
            each(rows, is_wide, |[grey, alpha]| pixels.extend([on_white(grey, alpha); 3]));
        }
        ColorType::Rgba => each(rows, is_wide, |[r, g, b, alpha]| {
            pixels.extend([r, g, b].map(|sample| on_white(sample, alpha)));
        }),
    }
    match pixels.len() == width * height * 3 {
        true => Ok(Rgb8::new(width, height, pixels)),
        false => Err(bad("rows of another length")),
    }
}

/// Pixels of `N` samples, of which the high byte is taken.
fn each<'a, const N: usize>(
    rows: impl Iterator<Item = &'a [u8]>,
    is_wide: bool,
    mut put: impl FnMut([u8; N]),
) {
    let step = if is_wide { 2 } else { 1 };
    for row in rows {
        for pixel in row.chunks_exact(N * step) {
            let mut samples = [0; N];
            samples.iter_mut().zip(pixel.iter().step_by(step)).for_each(|(to, from)| *to = *from);
            put(samples);
        }
    }
}

/// The grey that stands for nothing. Pillow compares it with samples of 8 bits.
fn transparent_grey(trns: &[u8]) -> Option<u16> {
    trns.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn transparent_rgb(trns: &[u8]) -> Option<[u16; 3]> {
    let &[r1, r0, g1, g0, b1, b0, ..] = trns else { return None };
    Some([[r1, r0], [g1, g0], [b1, b0]].map(u16::from_be_bytes))
}
