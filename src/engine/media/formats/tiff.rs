//! The first page of a TIFF: its directory, and how pixels are made of samples. Own code, since the
//! `tiff` crate reads no palettes and hides what extra samples are.

use super::palette::{Palette, unpack};
use super::tiff_chunks::Chunks;
use super::{Format, MediaError, damaged, unsupported};
use crate::header::Stored;
use crate::jpeg::rgb_of_cmyk;
use crate::orientation::Orientation;
use crate::rgb::{Rgb8, on_white};

pub(super) fn bad(what: impl std::fmt::Display) -> MediaError {
    damaged(Format::Tiff, what)
}

pub(super) fn unread(what: impl std::fmt::Display) -> MediaError {
    unsupported(Format::Tiff, what)
}

/// Tags that are read.
pub(super) mod tag {
    pub(in crate::formats) const WIDTH: u16 = 256;
    pub(in crate::formats) const HEIGHT: u16 = 257;
    pub(in crate::formats) const BITS: u16 = 258;
    pub(in crate::formats) const COMPRESSION: u16 = 259;
    pub(in crate::formats) const PHOTOMETRIC: u16 = 262;
    pub(in crate::formats) const FILL_ORDER: u16 = 266;
    pub(in crate::formats) const STRIP_OFFSETS: u16 = 273;
    pub(in crate::formats) const ORIENTATION: u16 = 274;
    pub(in crate::formats) const SAMPLES: u16 = 277;
    pub(in crate::formats) const ROWS_PER_STRIP: u16 = 278;
    pub(in crate::formats) const STRIP_BYTES: u16 = 279;
    pub(in crate::formats) const PLANAR: u16 = 284;
    pub(in crate::formats) const PREDICTOR: u16 = 317;
    pub(in crate::formats) const COLOUR_MAP: u16 = 320;
    pub(in crate::formats) const TILE_WIDTH: u16 = 322;
    pub(in crate::formats) const TILE_HEIGHT: u16 = 323;
    pub(in crate::formats) const TILE_OFFSETS: u16 = 324;
    pub(in crate::formats) const TILE_BYTES: u16 = 325;
    pub(in crate::formats) const EXTRA_SAMPLES: u16 = 338;
    pub(in crate::formats) const SAMPLE_FORMAT: u16 = 339;
}

/// The first directory of a file.
pub(super) struct Directory<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) is_big_endian: bool,
    /// Entries of twelve bytes.
    entries: &'a [[u8; 12]],
}

impl<'a> Directory<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, MediaError> {
        let mut directory =
            Directory { bytes, is_big_endian: bytes.starts_with(b"MM"), entries: &[] };
        let cut = || bad("its directory is not in it");
        let at = bytes.get(4..8).map(|at| directory.long(at) as usize).ok_or_else(cut)?;
        let rest = bytes.get(at..).ok_or_else(cut)?;
        let (count, rest) = rest.split_at_checked(2).ok_or_else(cut)?;
        let count = usize::from(directory.short(count));
        directory.entries = rest.as_chunks::<12>().0.get(..count).ok_or_else(cut)?;
        Ok(directory)
    }

    pub(super) fn short(&self, bytes: &[u8]) -> u16 {
        let bytes = [bytes[0], bytes[1]];
        if self.is_big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }
    }

    fn long(&self, bytes: &[u8]) -> u32 {
        let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if self.is_big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }

    /// Whole numbers of a tag; none where it is missing.
    pub(super) fn values(&self, tag: u16) -> Result<Vec<u32>, MediaError> {
        let Some(entry) = self.entries.iter().find(|entry| self.short(&entry[..]) == tag) else {
            return Ok(Vec::new());
        };
        let wrong = || bad(format!("the values of tag {tag}"));
        let size = match self.short(&entry[2..]) {
            1 => 1,
            3 => 2,
            4 => 4,
            _ => return Err(wrong()),
        };
        let len = (self.long(&entry[4..]) as usize).checked_mul(size).ok_or_else(wrong)?;
        let values = match len {
            0..=4 => &entry[8..8 + len],
            _ => {
                let at = self.long(&entry[8..]) as usize;
                let end = at.checked_add(len).ok_or_else(wrong)?;
                self.bytes.get(at..end).ok_or_else(wrong)?
            }
        };
        Ok(values
            .chunks_exact(size)
            .map(|value| match size {
                1 => u32::from(value[0]),
                2 => u32::from(self.short(value)),
                _ => self.long(value),
            })
            .collect())
    }

    /// The first number of a tag.
    pub(super) fn value(&self, tag: u16, default: u32) -> Result<u32, MediaError> {
        Ok(self.values(tag)?.first().copied().unwrap_or(default))
    }
}

/// What the samples of a pixel are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Photometric {
    Grey { is_inverted: bool },
    Rgb,
    Palette,
    Cmyk,
}

/// What the samples behind a pixel's colours are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extra {
    None,
    Ignored,
    Alpha,
    Premultiplied,
}

struct Page<'a> {
    directory: Directory<'a>,
    width: usize,
    height: usize,
    bits: u32,
    samples: usize,
    photometric: Photometric,
    extra: Extra,
}

fn parse(bytes: &[u8]) -> Result<Page<'_>, MediaError> {
    let directory = Directory::parse(bytes)?;
    let (width, height) = (directory.value(tag::WIDTH, 0)?, directory.value(tag::HEIGHT, 0)?);
    let samples = directory.value(tag::SAMPLES, 1)?;
    let all_bits = directory.values(tag::BITS)?;
    let bits = all_bits.first().copied().unwrap_or(1);
    if all_bits.iter().any(|&other| other != bits) || ![1, 2, 4, 8, 16].contains(&bits) {
        return Err(unread(format!("samples of {all_bits:?} bits")));
    }
    if directory.values(tag::SAMPLE_FORMAT)?.iter().any(|&format| format != 1) {
        return Err(unread("samples that are no whole numbers from 0"));
    }
    if directory.value(tag::FILL_ORDER, 1)? != 1 {
        return Err(unread("the lowest bit first"));
    }
    let photometric = directory.value(tag::PHOTOMETRIC, 0)?;
    let (photometric, colours) = match (photometric, bits) {
        (0, 1..=8) => (Photometric::Grey { is_inverted: true }, 1),
        (1, _) => (Photometric::Grey { is_inverted: false }, 1),
        (2, 8 | 16) => (Photometric::Rgb, 3),
        (3, 1..=8) => (Photometric::Palette, 1),
        (5, 8) => (Photometric::Cmyk, 4),
        _ => return Err(unread(format!("colours of kind {photometric} in {bits} bits"))),
    };
    let extra = match (samples.checked_sub(colours), &*directory.values(tag::EXTRA_SAMPLES)?) {
        (Some(0), _) => Extra::None,
        (Some(1), [0]) => Extra::Ignored,
        (Some(1), [] | [2]) if photometric == Photometric::Rgb => Extra::Alpha,
        (Some(1), [1]) if photometric == Photometric::Rgb => Extra::Premultiplied,
        (Some(1), [2]) if colours == 1 && bits == 8 => Extra::Alpha,
        _ => return Err(unread(format!("{samples} samples for each pixel"))),
    };
    let samples = samples as usize;
    if samples > 1 && directory.value(tag::PLANAR, 1)? != 1 {
        return Err(unread("a plane for each sample"));
    }
    let (width, height) = (width as usize, height as usize);
    Ok(Page { directory, width, height, bits, samples, photometric, extra })
}

pub(super) fn header(bytes: &[u8]) -> Result<Stored, MediaError> {
    let directory = Directory::parse(bytes)?;
    let orientation = directory.value(tag::ORIENTATION, 1).unwrap_or(1);
    Ok(Stored {
        width: directory.value(tag::WIDTH, 0)?,
        height: directory.value(tag::HEIGHT, 0)?,
        orientation: Orientation::of_value(orientation),
    })
}

pub(super) fn decode(bytes: &[u8]) -> Result<Rgb8, MediaError> {
    let page = parse(bytes)?;
    let (width, height) = (page.width, page.height);
    let chunks = Chunks::new(&page.directory, (width, height), page.bits, page.samples)?;
    let painter = Painter::new(&page)?;
    let mut pixels = vec![0; width * height * 3];
    let mut data = Vec::new();
    for index in 0..chunks.count() {
        let area = chunks.decode(index, &mut data)?;
        for (row, samples) in data.chunks_exact(chunks.row_bytes()).take(area.height).enumerate() {
            let first = ((area.y + row) * width + area.x) * 3;
            let to = pixels[first..first + area.width * 3].as_chunks_mut::<3>().0;
            painter.paint(samples, to);
        }
    }
    Ok(Rgb8::new(width, height, pixels))
}

/// Makes pixels of a row of samples.
struct Painter<'a> {
    page: &'a Page<'a>,
    palette: Palette,
}

impl<'a> Painter<'a> {
    fn new(page: &'a Page<'a>) -> Result<Self, MediaError> {
        let palette = match page.photometric {
            Photometric::Palette => {
                let map = page.directory.values(tag::COLOUR_MAP)?;
                let num_colours = 1 << page.bits;
                if map.len() != 3 * num_colours {
                    return Err(bad("a palette of another size"));
                }
                let colours: Vec<u8> = (0..num_colours)
                    .flat_map(|index| [0, 1, 2].map(|band| band * num_colours + index))
                    .map(|at| (map[at] / 256) as u8)
                    .collect();
                Palette::new(&colours, &[])
            }
            _ => Palette::grey(),
        };
        Ok(Painter { page, palette })
    }

    fn paint(&self, row: &[u8], to: &mut [[u8; 3]]) {
        let Page { bits, samples, photometric, .. } = *self.page;
        let wide = |at: usize| self.page.directory.short(&row[at * 2..]);
        match (photometric, bits) {
            // Values above 255 are white: Pillow's I;16 is cut, and not scaled.
            (Photometric::Grey { .. }, 16) => {
                let grey = |at: usize| wide(at * samples).min(255) as u8;
                to.iter_mut().enumerate().for_each(|(at, pixel)| *pixel = [grey(at); 3]);
            }
            (Photometric::Grey { is_inverted }, _) => {
                let scale = 255 / (0xff_u8 >> (8 - bits));
                let inversion = if is_inverted { 255 } else { 0 };
                self.paint_single(row, to, |sample| [(sample * scale) ^ inversion; 3]);
            }
            (Photometric::Palette, _) => {
                self.paint_single(row, to, |sample| self.palette.colour(sample));
            }
            (Photometric::Cmyk, _) => {
                for (pixel, ink) in to.iter_mut().zip(row.chunks_exact(samples)) {
                    *pixel = rgb_of_cmyk([ink[0], ink[1], ink[2]], ink[3]);
                }
            }
            (Photometric::Rgb, _) => {
                let sample = |at: usize| match bits {
                    16 => (wide(at) >> 8) as u8,
                    _ => row[at],
                };
                for (at, pixel) in to.iter_mut().enumerate() {
                    let first = at * samples;
                    let rgb = [0, 1, 2].map(|band| sample(first + band));
                    *pixel = match self.page.extra {
                        Extra::None | Extra::Ignored => rgb,
                        Extra::Alpha => rgb.map(|value| on_white(value, sample(first + 3))),
                        Extra::Premultiplied => {
                            let alpha = sample(first + 3);
                            rgb.map(|value| on_white(divided(value, alpha), alpha))
                        }
                    };
                }
            }
        }
    }

    /// Pixels of one sample, with or without another behind it.
    fn paint_single(&self, row: &[u8], to: &mut [[u8; 3]], colour: impl Fn(u8) -> [u8; 3]) {
        let Page { bits, samples, extra, .. } = *self.page;
        let values: Vec<u8> = unpack(row, bits).take(to.len() * samples).collect();
        for (pixel, values) in to.iter_mut().zip(values.chunks_exact(samples)) {
            *pixel = colour(values[0]);
            if extra == Extra::Alpha {
                *pixel = pixel.map(|value| on_white(value, values[1]));
            }
        }
    }
}

/// A colour that was multiplied by its alpha, as Pillow divides it.
fn divided(value: u8, alpha: u8) -> u8 {
    match alpha {
        0 => 0,
        _ => (255 * u32::from(value) / u32::from(alpha)).min(255) as u8,
    }
}
