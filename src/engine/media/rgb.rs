//! Decoded pixels, and what all formats do to them at the end: alpha on white, orientation.

use crate::orientation::Orientation;

/// Pixels of 8-bit RGB, row after row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rgb8 {
    width: usize,
    height: usize,
    pixels: Vec<u8>, // [height, width, 3]
}

impl Rgb8 {
    /// Pixels in rows, three bytes each.
    ///
    /// # Panics
    ///
    /// If there are not `width * height * 3` of them, or none.
    pub fn new(width: usize, height: usize, pixels: Vec<u8>) -> Self {
        assert!(width > 0 && height > 0, "an image has pixels");
        assert_eq!(pixels.len(), width * height * 3, "{width} x {height}");
        Rgb8 { width, height, pixels }
    }

    /// Pixels of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// `[height, width, 3]`.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// `[height, width, 3]`, taken out.
    pub fn into_pixels(self) -> Vec<u8> {
        self.pixels
    }

    /// As the camera was held. Nothing is copied where it was held upright.
    pub(crate) fn oriented(self, orientation: Orientation) -> Self {
        if orientation == Orientation::UPRIGHT {
            return self;
        }
        let (width, height) = orientation.size(self.width, self.height);
        let mut pixels = Vec::with_capacity(self.pixels.len());
        for y in 0..height {
            for x in 0..width {
                let (from_x, from_y) = orientation.source(x, y, self.width, self.height);
                let at = (from_y * self.width + from_x) * 3;
                pixels.extend_from_slice(&self.pixels[at..at + 3]);
            }
        }
        Rgb8 { width, height, pixels }
    }
}

/// A sample over white, as Pillow pastes through a mask.
pub(crate) fn on_white(sample: u8, alpha: u8) -> u8 {
    let (sample, alpha) = (u32::from(sample), u32::from(alpha));
    let sum = 255 * (255 - alpha) + sample * alpha + 128;
    (((sum >> 8) + sum) >> 8) as u8
}
