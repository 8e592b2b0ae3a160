//! A small picture of an image, for people to look at.

use crate::resize::{Backend, Filter, resize};
use crate::rgb::Rgb8;

/// A PNG of an image, at most `longest` pixels on its longer side. None is larger than its image.
///
/// # Panics
///
/// If `longest` is 0, or the memory for the bytes cannot be had.
pub fn thumbnail(image: &Rgb8, longest: usize) -> Vec<u8> {
    let longer = image.width().max(image.height());
    let side = |length: usize| match longer > longest {
        true => ((length * longest + longer / 2) / longer).max(1),
        false => length,
    };
    let (width, height) = (side(image.width()), side(image.height()));
    let small = resize(image, width, height, Filter::Bilinear, Backend::Pillow);
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width as u32, height as u32);
    encoder.set_color(png::ColorType::Rgb);
    let written = encoder.write_header().and_then(|mut png| png.write_image_data(small.pixels()));
    written.expect("a vector takes all bytes");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, decode};

    #[test]
    fn a_thumbnail_has_the_shape_of_its_image() {
        for ((width, height), expected) in [
            ((400, 100), (96, 24)),
            ((100, 400), (24, 96)),
            ((96, 96), (96, 96)),
            ((5, 3), (5, 3)),
            ((2000, 1), (96, 1)),
        ] {
            let image = Rgb8::new(width, height, vec![200; width * height * 3]);
            let small = decode(&thumbnail(&image, 96), &Limits::default()).unwrap();
            assert_eq!((small.width(), small.height()), expected);
            assert!(small.pixels().iter().all(|value| *value == 200));
        }
    }
}
