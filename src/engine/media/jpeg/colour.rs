//! Colours of components, and RGB of them: libjpeg's tables of 16 bits, Pillow's CMYK.

use super::frame::Frame;
use super::upsample::Upsampler;
use crate::rgb::Rgb8;

/// What the file says of its colours.
#[derive(Default)]
pub(super) struct Colours {
    pub(super) is_jfif: bool,
    /// Adobe's word for how components were transformed.
    adobe: Option<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    Grey,
    Rgb,
    YCbCr,
    Cmyk,
    Ycck,
}

impl Colours {
    pub(super) fn read_adobe(&mut self, segment: &[u8]) {
        if segment.len() >= 12 && segment.starts_with(b"Adobe") {
            self.adobe = Some(segment[11]);
        }
    }

    fn space(&self, frame: &Frame) -> Space {
        let ids: Vec<u8> = frame.components.iter().map(|component| component.id).collect();
        match (frame.components.len(), self.adobe) {
            (1, _) => Space::Grey,
            (4, None | Some(0)) => Space::Cmyk,
            (4, Some(_)) => Space::Ycck,
            (_, Some(0)) if !self.is_jfif => Space::Rgb,
            (_, None) if !self.is_jfif && ids == *b"RGB" => Space::Rgb,
            _ => Space::YCbCr,
        }
    }

    /// Pixels of planes of samples.
    pub(super) fn to_rgb(&self, frame: &Frame, planes: &[Vec<u8>]) -> Rgb8 {
        let (space, width) = (self.space(frame), frame.width);
        let parts = frame.components.iter().zip(planes);
        let mut upsamplers: Vec<_> =
            parts.map(|(part, samples)| Upsampler::new(frame, part, samples)).collect();
        let mut rows = vec![Vec::new(); planes.len()];
        let mut pixels = vec![0; width * frame.height * 3];
        for (y, out) in pixels.chunks_exact_mut(width * 3).enumerate() {
            for (upsampler, row) in upsamplers.iter_mut().zip(&mut rows) {
                upsampler.upsample(y, row);
            }
            let out = out.as_chunks_mut::<3>().0;
            match (space, rows.as_slice()) {
                (Space::Grey, [grey, ..]) => {
                    out.iter_mut().zip(grey).for_each(|(pixel, &grey)| *pixel = [grey; 3]);
                }
                (Space::Rgb, [r, g, b, ..]) => put(out, [r, g, b], |rgb| rgb),
                (Space::YCbCr, [y, cb, cr, ..]) => put(out, [y, cb, cr], rgb_of_ycc),
                (Space::Ycck, [y, cb, cr, k]) => {
                    put(out, [y, cb, cr], |ycc| rgb_of_ycc(ycc).map(|value| 255 - value));
                    put_cmyk(out, k);
                }
                (_, [c, m, y, k]) => {
                    put(out, [c, m, y], |cmy| cmy);
                    put_cmyk(out, k);
                }
                _ => unreachable!("a frame has 1, 3 or 4 components"),
            }
        }
        Rgb8::new(width, frame.height, pixels)
    }
}

fn put(out: &mut [[u8; 3]], rows: [&Vec<u8>; 3], convert: impl Fn([u8; 3]) -> [u8; 3]) {
    let [first, second, third] = rows;
    for (((pixel, &a), &b), &c) in out.iter_mut().zip(first).zip(second).zip(third) {
        *pixel = convert([a, b, c]);
    }
}

fn put_cmyk(out: &mut [[u8; 3]], black: &[u8]) {
    for (pixel, &k) in out.iter_mut().zip(black) {
        // Pillow takes every JPEG of four components as Adobe's, which are inverted.
        *pixel = rgb_of_cmyk(pixel.map(|value| 255 - value), 255 - k);
    }
}

/// As Pillow converts CMYK.
pub(crate) fn rgb_of_cmyk(cmy: [u8; 3], k: u8) -> [u8; 3] {
    let not_k = 255 - i32::from(k);
    cmy.map(|value| {
        let product = i32::from(value) * not_k + 128;
        (not_k - (((product >> 8) + product) >> 8)).clamp(0, 255) as u8
    })
}

/// As libjpeg's tables of 16 bits behind the point give it.
#[inline(always)]
fn rgb_of_ycc([y, cb, cr]: [u8; 3]) -> [u8; 3] {
    const HALF: i32 = 1 << 15;
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let r = y + ((91_881 * cr + HALF) >> 16);
    let g = y + ((-22_554 * cb - 46_802 * cr + HALF) >> 16);
    let b = y + ((116_130 * cb + HALF) >> 16);
    [r, g, b].map(|value| value.clamp(0, 255) as u8)
}
