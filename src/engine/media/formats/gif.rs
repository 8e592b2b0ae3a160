//! The first frame of a GIF, on the canvas that Pillow gives it.

use gif::{ColorOutput, DecodeOptions, MemoryLimit};

use super::palette::Palette;
use super::{Format, MediaError, damaged};
use crate::header::Stored;
use crate::orientation::Orientation;
use crate::rgb::Rgb8;

fn bad(what: impl std::fmt::Display) -> MediaError {
    damaged(Format::Gif, what)
}

/// The screen, widened where the first frame stands out of it.
pub(super) fn header(bytes: &[u8]) -> Result<Stored, MediaError> {
    let cut = || bad("it ends before its first frame");
    let short = |at: usize| {
        let bytes = bytes.get(at..at + 2).ok_or_else(cut)?;
        Ok(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])))
    };
    let byte = |at: usize| bytes.get(at).copied().ok_or_else(cut);
    let colours = |flags: u8| if flags & 0x80 == 0 { 0 } else { 3 << (1 + (flags & 7)) };
    let (width, height) = (short(6)?, short(8)?);
    let mut at = 13 + colours(byte(10)?);
    loop {
        match byte(at)? {
            b',' => break,
            b'!' => {
                at += 2;
                while byte(at)? != 0 {
                    at += 1 + usize::from(byte(at)?);
                }
                at += 1;
            }
            b';' => return Err(bad("it has no frame")),
            _ => return Err(bad("a block of no known kind")),
        }
    }
    let (right, bottom) = (short(at + 1)? + short(at + 5)?, short(at + 3)? + short(at + 7)?);
    let (width, height) = (width.max(right), height.max(bottom));
    Ok(Stored { width, height, orientation: Orientation::UPRIGHT })
}

pub(super) fn decode(bytes: &[u8]) -> Result<Rgb8, MediaError> {
    let Stored { width, height, .. } = header(bytes)?;
    let (width, height) = (width as usize, height as usize);
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    // The header was within the limits of pixels.
    options.set_memory_limit(MemoryLimit::Unlimited);
    let mut decoder = options.read_info(bytes).map_err(bad)?;
    let global = decoder.global_palette().map(<[u8]>::to_vec);
    let frame = decoder.read_next_frame().map_err(bad)?.ok_or_else(|| bad("it has no frame"))?;
    let palette = match frame.palette.as_ref().or(global.as_ref()) {
        Some(colours) => Palette::new(colours, &[]),
        None => Palette::grey(),
    };
    let palette = match frame.transparent {
        Some(index) => palette.with_transparent(index),
        None => palette,
    };
    let [left, top, across, down] =
        [frame.left, frame.top, frame.width, frame.height].map(usize::from);
    if frame.buffer.len() != across * down || left + across > width || top + down > height {
        return Err(bad("a first frame of another size"));
    }
    let beside = palette.colour(frame.transparent.unwrap_or(0));
    let mut pixels = beside.repeat(width * height);
    for (row, indices) in frame.buffer.chunks_exact(across.max(1)).enumerate() {
        let first = ((top + row) * width + left) * 3;
        let to = pixels[first..first + across * 3].as_chunks_mut::<3>().0;
        to.iter_mut().zip(indices).for_each(|(to, &index)| *to = palette.colour(index));
    }
    Ok(Rgb8::new(width, height, pixels))
}
