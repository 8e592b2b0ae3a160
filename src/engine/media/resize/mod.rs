//! Antialiased resizing of 8-bit pixels, to the bit as torchvision and as Pillow do it. One thread
//! and whole numbers, so that an image's bytes depend on nothing beside it.

mod between;
mod cubic;
mod taps;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use crate::rgb::Rgb8;

pub(crate) use between::resize_between;
pub(crate) use cubic::cubic_numbers;
use taps::Taps;

/// What weighs the pixels around a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// A triangle.
    Bilinear,
    /// Cubic convolution with a = -0.5.
    Bicubic,
    /// A sinc within a sinc, of three lobes.
    Lanczos,
}

/// Whose arithmetic it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// `torchvision.transforms.v2.functional.resize` of a uint8 tensor on a CPU, as transformers
    /// takes it: weights of 16 bits, rows first.
    Torchvision,
    /// `Image.resize` of Pillow 13: weights of 22 bits; columns first where that is less work.
    Pillow,
}

/// An image of another size. A size that is the image's own leaves that axis as it is.
///
/// # Panics
///
/// If `width` or `height` is 0.
pub fn resize(image: &Rgb8, width: usize, height: usize, filter: Filter, backend: Backend) -> Rgb8 {
    assert!(width > 0 && height > 0, "an image has pixels");
    let horizontal =
        (width != image.width()).then(|| Taps::new(image.width(), width, filter, backend));
    let vertical =
        (height != image.height()).then(|| Taps::new(image.height(), height, filter, backend));
    let (lost_rows, lost_columns) =
        (image.height().saturating_sub(height), image.width() as i64 - width as i64);
    let is_vertical_first = backend == Backend::Pillow
        && height < image.height()
        && lost_rows as i64 > 2 * lost_columns;
    let mut pixels = vec![0; width * height * 3];
    let rows = pixels.chunks_exact_mut(width * 3);
    match (horizontal, vertical) {
        (None, None) => pixels.copy_from_slice(image.pixels()),
        (Some(horizontal), None) => {
            let from = image.pixels().chunks_exact(image.width() * 3);
            from.zip(rows).for_each(|(from, to)| horizontal.along_row(from, to));
        }
        (None, Some(vertical)) => down_columns(image, &vertical, rows),
        (Some(horizontal), Some(vertical)) if is_vertical_first => {
            columns_first(image, &horizontal, &vertical, rows);
        }
        (Some(horizontal), Some(vertical)) => rows_first(image, &horizontal, &vertical, rows),
    }
    Rgb8::new(width, height, pixels)
}

fn row(image: &Rgb8, y: usize) -> &[u8] {
    &image.pixels()[y * image.width() * 3..][..image.width() * 3]
}

fn down_columns<'a>(image: &Rgb8, vertical: &Taps, out: impl Iterator<Item = &'a mut [u8]>) {
    let mut sums = Vec::new();
    for (y, to) in out.enumerate() {
        let (first, weights) = vertical.at(y);
        let rows = (first..).map(|y| row(image, y));
        vertical.over_rows(weights.iter().zip(rows), &mut sums, to);
    }
}

fn columns_first<'a>(
    image: &Rgb8,
    horizontal: &Taps,
    vertical: &Taps,
    out: impl Iterator<Item = &'a mut [u8]>,
) {
    let (mut sums, mut between) = (Vec::new(), vec![0; image.width() * 3]);
    for (y, to) in out.enumerate() {
        let (first, weights) = vertical.at(y);
        let rows = (first..).map(|y| row(image, y));
        vertical.over_rows(weights.iter().zip(rows), &mut sums, &mut between);
        horizontal.along_row(&between, to);
    }
}

/// Rows are resized when they are first needed and dropped after their last use: a tall image that
/// becomes a wide one is never there at both sizes.
fn rows_first<'a>(
    image: &Rgb8,
    horizontal: &Taps,
    vertical: &Taps,
    out: impl Iterator<Item = &'a mut [u8]>,
) {
    let mut sums = Vec::new();
    let mut held: VecDeque<Vec<u8>> = VecDeque::new();
    let mut first_held = 0;
    for (y, to) in out.enumerate() {
        let (first, weights) = vertical.at(y);
        let mut spare = Vec::new();
        while first_held < first {
            spare.extend(held.pop_front());
            first_held += 1;
        }
        while first_held + held.len() < first + weights.len() {
            let mut resized = spare.pop().unwrap_or_else(|| vec![0; to.len()]);
            horizontal.along_row(row(image, first_held + held.len()), &mut resized);
            held.push_back(resized);
        }
        vertical.over_rows(weights.iter().zip(held.iter().map(Vec::as_slice)), &mut sums, to);
    }
}
