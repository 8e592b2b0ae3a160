//! Windows bitmaps, those that Pillow reads.

use super::palette::{Palette, unpack};
use super::{Format, MediaError, damaged, unsupported};
use crate::header::Stored;
use crate::orientation::Orientation;
use crate::rgb::{Rgb8, on_white};

fn bad(what: impl std::fmt::Display) -> MediaError {
    damaged(Format::Bmp, what)
}

fn unread(what: impl std::fmt::Display) -> MediaError {
    unsupported(Format::Bmp, what)
}

/// How pixels are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Indices of 1, 4 or 8 bits.
    Indexed(u32),
    /// Indices of 4 or 8 bits, in runs.
    Runs(u32),
    /// Two bytes, with so many bits of green.
    Short(u32),
    /// Bytes of a pixel, and where red, green, blue and alpha are in it.
    Bytes(usize, [usize; 3], Option<usize>),
}

struct Info<'a> {
    width: usize,
    height: usize,
    is_top_down: bool,
    layout: Layout,
    /// Entries of the palette, and the bytes of each.
    colours: (&'a [u8], usize),
    data: &'a [u8],
}

/// Masks of red, green, blue and alpha that Pillow knows, and where the bytes are.
const MASKS: &[([u32; 4], [usize; 3], Option<usize>)] = &[
    ([0xff_0000, 0xff00, 0xff, 0], [2, 1, 0], None),
    ([0xff00_0000, 0xff_0000, 0xff00, 0], [3, 2, 1], None),
    ([0xff00_0000, 0xff00, 0xff, 0], [3, 1, 0], None),
    ([0xff00_0000, 0xff_0000, 0xff00, 0xff], [3, 2, 1], Some(0)),
    ([0xff, 0xff00, 0xff_0000, 0xff00_0000], [0, 1, 2], Some(3)),
    ([0xff_0000, 0xff00, 0xff, 0xff00_0000], [2, 1, 0], Some(3)),
    ([0xff00_0000, 0xff00, 0xff, 0xff_0000], [3, 1, 0], Some(2)),
    ([0, 0, 0, 0], [2, 1, 0], Some(3)),
];

fn parse(bytes: &[u8]) -> Result<Info<'_>, MediaError> {
    let cut = || bad("it ends in its header");
    let short = |at: usize| {
        let bytes = bytes.get(at..at + 2).ok_or_else(cut)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    };
    let long = |at: usize| {
        let bytes = bytes.get(at..at + 4).ok_or_else(cut)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let (data_at, header_len) = (long(10)? as usize, long(14)? as usize);
    let is_core = header_len == 12;
    if !is_core && ![40, 52, 56, 64, 108, 124].contains(&header_len) {
        return Err(unread(format!("a header of {header_len} bytes")));
    }
    let (width, height, bits, compression, num_colours) = match is_core {
        true => {
            let (width, height) = (short(18)?, short(20)?);
            (i64::from(width), i64::from(height), short(24)?, 0, 0)
        }
        false => {
            let (width, height) = (i64::from(long(18)? as i32), i64::from(long(22)? as i32));
            (width, height, short(28)?, long(30)?, long(46)? as usize)
        }
    };
    let (Ok(width), is_top_down) = (usize::try_from(width), height < 0) else {
        return Err(bad("a width below 0"));
    };
    // 40 bytes have their masks behind the header, longer ones in it: at the same place.
    let masks = || {
        let alpha = if header_len >= 56 { long(66)? } else { 0 };
        Ok([long(54)?, long(58)?, long(62)?, alpha])
    };
    let layout = layout(bits, compression, masks)?;
    let masks_len = if compression == 3 && header_len == 40 { 12 } else { 0 };
    let colours_at = 14 + header_len + masks_len;
    let entry = if is_core { 3 } else { 4 };
    let colours = match layout {
        Layout::Indexed(bits) | Layout::Runs(bits) => {
            let num_colours = if num_colours == 0 { 1 << bits } else { num_colours };
            if num_colours > 1 << 16 {
                return Err(bad("a palette of too many colours"));
            }
            bytes.get(colours_at..colours_at + num_colours * entry).ok_or_else(cut)?
        }
        _ => &[],
    };
    let data = bytes.get(data_at..).ok_or_else(cut)?;
    let height = height.unsigned_abs() as usize;
    Ok(Info { width, height, is_top_down, layout, colours: (colours, entry), data })
}

fn layout(
    bits: u16,
    compression: u32,
    masks: impl Fn() -> Result<[u32; 4], MediaError>,
) -> Result<Layout, MediaError> {
    Ok(match (compression, bits) {
        (0, 1 | 4 | 8) => Layout::Indexed(u32::from(bits)),
        (0, 16) => Layout::Short(5),
        (0, 24) => Layout::Bytes(3, [2, 1, 0], None),
        (0, 32) => Layout::Bytes(4, [2, 1, 0], None),
        (1, 8) | (2, 4) => Layout::Runs(u32::from(bits)),
        (3, 16) => match masks()?[..3] {
            [0xf800, 0x7e0, 0x1f] => Layout::Short(6),
            [0x7c00, 0x3e0, 0x1f] => Layout::Short(5),
            _ => return Err(unread("masks of no known kind")),
        },
        (3, 24) if masks()?[..3] == [0xff_0000, 0xff00, 0xff] => Layout::Bytes(3, [2, 1, 0], None),
        (3, 32) => {
            let masks = masks()?;
            let known = MASKS.iter().find(|(known, ..)| *known == masks);
            let (_, rgb, alpha) = known.ok_or_else(|| unread("masks of no known kind"))?;
            Layout::Bytes(4, *rgb, *alpha)
        }
        _ => return Err(unread(format!("{bits} bits in compression {compression}"))),
    })
}

pub(super) fn header(bytes: &[u8]) -> Result<Stored, MediaError> {
    let Info { width, height, .. } = parse(bytes)?;
    let side = |side: usize| u32::try_from(side).unwrap_or(u32::MAX);
    let orientation = Orientation::UPRIGHT;
    Ok(Stored { width: side(width), height: side(height), orientation })
}

pub(super) fn decode(bytes: &[u8]) -> Result<Rgb8, MediaError> {
    let info = parse(bytes)?;
    let (width, height) = (info.width, info.height);
    let bits = match info.layout {
        Layout::Runs(bits) => return runs(&info, bits),
        Layout::Indexed(bits) => bits as usize,
        Layout::Short(_) => 16,
        Layout::Bytes(num_bytes, ..) => num_bytes * 8,
    };
    let stride = (width * bits).div_ceil(32) * 4;
    // The last row may lack what fills it up.
    let needed = stride * (height - 1) + (width * bits).div_ceil(8);
    if info.data.len() < needed {
        return Err(bad("it ends too early"));
    }
    let palette = info.palette();
    let mut pixels = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        let stored = if info.is_top_down { y } else { height - 1 - y };
        let row = &info.data[stored * stride..][..(width * bits).div_ceil(8)];
        match info.layout {
            Layout::Short(green) => {
                let shorts = row.as_chunks::<2>().0.iter();
                shorts.for_each(|short| pixels.extend(rgb_of_short(*short, green)));
            }
            Layout::Bytes(num_bytes, rgb, alpha) => {
                for pixel in row.chunks_exact(num_bytes) {
                    let alpha = alpha.map_or(255, |at| pixel[at]);
                    pixels.extend(rgb.map(|at| on_white(pixel[at], alpha)));
                }
            }
            _ => {
                let indices = unpack(row, bits as u32).take(width);
                indices.for_each(|index| pixels.extend(palette.colour(index)));
            }
        }
    }
    Ok(Rgb8::new(width, height, pixels))
}

impl Info<'_> {
    fn palette(&self) -> Palette {
        let (colours, entry) = self.colours;
        let rgb: Vec<u8> = colours
            .chunks_exact(entry)
            .flat_map(|colour| [colour[2], colour[1], colour[0]])
            .collect();
        Palette::new(&rgb, &[])
    }
}

fn rgb_of_short(short: [u8; 2], green: u32) -> [u8; 3] {
    let value = u32::from(u16::from_le_bytes(short));
    let max_green = (1 << green) - 1;
    let (red, blue) = ((value >> (5 + green)) & 31, value & 31);
    [red * 255 / 31, ((value >> 5) & max_green) * 255 / max_green, blue * 255 / 31]
        .map(|value| value as u8)
}

/// Runs of indices; what they leave out is index 0.
fn runs(info: &Info<'_>, bits: u32) -> Result<Rgb8, MediaError> {
    let (width, height) = (info.width, info.height);
    let mut indices = vec![0; width * height];
    let (mut x, mut y) = (0, 0);
    let mut data = info.data.iter().copied();
    let mut next = || data.next().ok_or_else(|| bad("it ends too early"));
    let mut put = |x: &mut usize, y: usize, index: u8| {
        if *x < width && y < height {
            indices[y * width + *x] = index;
        }
        *x += 1;
    };
    let nibble = |byte: u8, place: usize| match bits {
        8 => byte,
        _ if place.is_multiple_of(2) => byte >> 4,
        _ => byte & 15,
    };
    while y < height {
        match (next()?, next()?) {
            (0, 0) => (x, y) = (0, y + 1),
            (0, 1) => break,
            (0, 2) => {
                x += usize::from(next()?);
                y += usize::from(next()?);
            }
            (0, count) => {
                let count = usize::from(count);
                let num_bytes = (count * bits as usize).div_ceil(8);
                let mut byte = 0;
                for place in 0..count {
                    if bits == 8 || place.is_multiple_of(2) {
                        byte = next()?;
                    }
                    put(&mut x, y, nibble(byte, place));
                }
                if num_bytes % 2 == 1 {
                    next()?;
                }
            }
            (count, byte) => {
                (0..usize::from(count)).for_each(|place| put(&mut x, y, nibble(byte, place)));
            }
        }
    }
    let palette = info.palette();
    let mut pixels = Vec::with_capacity(width * height * 3);
    for row in 0..height {
        let stored = if info.is_top_down { row } else { height - 1 - row };
        let row = &indices[stored * width..][..width];
        row.iter().for_each(|&index| pixels.extend(palette.colour(index)));
    }
    Ok(Rgb8::new(width, height, pixels))
}
