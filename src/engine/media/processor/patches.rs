//! Patches of bytes, in the order of a tower's input.

use super::sizes::{Size, Splits};
use super::{Layout, Normalization};
use crate::resize::Backend;
use crate::rgb::Rgb8;

/// In which order the patches of a tile stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchOrder {
    /// Row after row.
    Rows,
    /// Those of a token beside each other, tokens row after row.
    Merged,
}

/// The patches of an image, not normalised yet: a byte for each sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Patches {
    /// Tiles, patches and tokens.
    pub layout: Layout,
    /// Pixels of a patch's side.
    pub patch_size: usize,
    /// How patches of a tile stand.
    pub order: PatchOrder,
    /// Frames that the tower's patches have; all are this one.
    pub num_frames: usize,
    /// `[num_patches, 3, patch_size, patch_size]`
    pub samples: Vec<u8>,
    /// Numbers of the last tile, where it has these in the place of bytes; else empty.
    pub whole: Vec<f32>,
}

impl Patches {
    pub(super) fn new(
        layout: Layout,
        patch_size: usize,
        order: PatchOrder,
        num_frames: usize,
    ) -> Self {
        let samples = Vec::with_capacity(layout.num_patches() * patch_size * patch_size * 3);
        Patches { layout, patch_size, order, num_frames, samples, whole: Vec::new() }
    }

    /// Bytes that it takes.
    pub fn num_bytes(&self) -> usize {
        self.samples.len() + size_of_val(&self.whole[..])
    }

    /// The numbers of one of the tiles, where it has these.
    pub fn numbers_of(&self, tile: usize) -> Option<&[f32]> {
        let is_whole = tile + 1 == self.layout.num_tiles() && !self.whole.is_empty();
        is_whole.then_some(&self.whole[..])
    }

    /// Patches of one of the tiles.
    pub fn num_patches_of(&self, tile: usize) -> usize {
        let (rows, columns) = self.layout.grid(tile);
        rows * columns
    }

    /// Appends all tiles of a picture of tiles of this size, row after row.
    pub(super) fn push_tiles(&mut self, image: &Rgb8, splits: Splits, tile: Size) {
        for at in 0..splits.rows * splits.columns {
            let (row, column) = (at / splits.columns, at % splits.columns);
            self.push_tile(image, (row * tile.height, column * tile.width));
        }
    }

    /// Appends the tile whose first row and column these are.
    pub(super) fn push_tile(&mut self, image: &Rgb8, (top, left): (usize, usize)) {
        let Layout { rows, columns, .. } = self.layout;
        self.push_grid(image, (top, left), (rows, columns));
    }

    /// Appends so many rows of patches, and patches of a row, from there on.
    pub(super) fn push_grid(
        &mut self,
        image: &Rgb8,
        (top, left): (usize, usize),
        (rows, columns): (usize, usize),
    ) {
        let group = match self.order {
            PatchOrder::Rows => 1,
            PatchOrder::Merged => self.layout.merge_size,
        };
        for (row, column) in
            (0..rows / group).flat_map(|row| (0..columns / group).map(move |column| (row, column)))
        {
            for within in 0..group * group {
                let row = row * group + within / group;
                let column = column * group + within % group;
                self.push_patch(
                    image,
                    (top + row * self.patch_size, left + column * self.patch_size),
                );
            }
        }
    }

    fn push_patch(&mut self, image: &Rgb8, (top, left): (usize, usize)) {
        for band in 0..3 {
            for y in top..top + self.patch_size {
                let first = (y * image.width() + left) * 3;
                let row = image.pixels()[first..first + self.patch_size * 3].as_chunks::<3>().0;
                self.samples.extend(row.iter().map(|pixel| pixel[band]));
            }
        }
    }

    /// The tower's input, `[num_patches, 3, num_frames, patch_size, patch_size]`: what packing of
    /// the bytes is compared with.
    pub fn floats(&self, normalization: &Normalization) -> Vec<f32> {
        let tables = normalization.tables();
        let len = self.patch_size * self.patch_size;
        let mut floats = Vec::with_capacity(self.samples.len() * self.num_frames);
        for (at, band) in self.samples.chunks_exact(len).enumerate() {
            let table = &tables[at % 3];
            for _ in 0..self.num_frames {
                floats.extend(band.iter().map(|&sample| table[usize::from(sample)]));
            }
        }
        floats.extend_from_slice(&self.whole);
        floats
    }
}

/// The image in the middle of a larger one.
pub(super) fn padded(image: &Rgb8, size: Size, colour: [u8; 3]) -> Rgb8 {
    let left = (size.width - image.width()) / 2;
    let top = (size.height - image.height()) / 2;
    placed(image, size, (top, left), colour)
}

/// The same as Pillow's `ImageOps.pad` has it: halves of pixels go to the even side.
pub(super) fn in_the_middle(image: &Rgb8, size: Size, colour: [u8; 3]) -> Rgb8 {
    let before = |missing: usize| (missing as f64 * 0.5).round_ties_even() as usize;
    let left = before(size.width - image.width());
    let top = before(size.height - image.height());
    placed(image, size, (top, left), colour)
}

/// The image at this row and column of a larger one.
pub(super) fn placed(
    image: &Rgb8,
    size: Size,
    (top, left): (usize, usize),
    colour: [u8; 3],
) -> Rgb8 {
    let mut pixels = colour.repeat(size.width * size.height);
    for (y, row) in image.pixels().chunks_exact(image.width() * 3).enumerate() {
        pixels[((top + y) * size.width + left) * 3..][..row.len()].copy_from_slice(row);
    }
    Rgb8::new(size.width, size.height, pixels)
}

/// The middle of an image, with black where it is too small.
pub(super) fn cropped(image: &Rgb8, size: Size, backend: Backend) -> Rgb8 {
    let grown =
        Size { width: image.width().max(size.width), height: image.height().max(size.height) };
    let image = match grown == (Size { width: image.width(), height: image.height() }) {
        true => image,
        false => {
            // The odd row is below with torchvision, and above without.
            let before = |missing: usize| match backend {
                Backend::Torchvision => missing / 2,
                Backend::Pillow => missing.div_ceil(2),
            };
            let top = before(grown.height - image.height());
            let left = before(grown.width - image.width());
            &placed(image, grown, (top, left), [0; 3])
        }
    };
    let (top, left) = ((grown.height - size.height) / 2, (grown.width - size.width) / 2);
    let mut pixels = Vec::with_capacity(size.width * size.height * 3);
    for y in top..top + size.height {
        let first = (y * grown.width + left) * 3;
        pixels.extend_from_slice(&image.pixels()[first..first + size.width * 3]);
    }
    Rgb8::new(size.width, size.height, pixels)
}
