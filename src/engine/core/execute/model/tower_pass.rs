//! `Pass`: one step of a vision tower around its layers, from the bytes of patches to the stream,
//! and from the stream to embeddings.

use std::borrow::Cow;
use std::ops::Range;

use super::connector::ConnectorBuffers;
use super::shown::Shown;
use super::stream::Stream;
use super::tower::{Tower, Weights};
use super::windows::Windows;
use vllm_batch_base::EngineError;
use vllm_batch_checkpoint::spec::GridPositions;
use vllm_batch_device::{Device, Precision, Tensor};
use vllm_batch_media::{Layout, PatchOrder, Patches};
use vllm_batch_ops as ops;
use vllm_batch_ops::{BandTables, MixedRows, PatchScratch, Step};

/// A tile of the step in hand.
#[derive(Debug)]
pub(super) struct PlacedTile<'a> {
    pub image: &'a Patches,
    /// Which image it is of.
    pub of_image: usize,
    /// Which of its tiles.
    pub index: usize,
    pub windows: Option<&'a Windows>,
    /// Of a tile that is not all of the image.
    pub shown: Option<Shown>,
    /// Its first row of the stream.
    pub first: usize,
    /// Tokens before its patches.
    pub num_class_tokens: usize,
    /// One row is made of it.
    pub is_one_row: bool,
    /// The first of those tokens is all that counts of it.
    pub is_class_token: bool,
}

impl PlacedTile<'_> {
    /// Rows of the stream that are its patches.
    pub(super) fn num_patches(&self) -> usize {
        let of_tile = || self.image.num_patches_of(self.index);
        self.shown.as_ref().map_or_else(of_tile, |shown| shown.patches.len())
    }

    /// The samples of its patches, in the order of the stream: zeros where it has numbers.
    fn bytes(&self) -> Cow<'_, [u8]> {
        let layout = self.image.layout;
        let of_patch = 3 * self.image.patch_size.pow(2);
        if self.image.numbers_of(self.index).is_some() {
            return Cow::Owned(vec![0; self.num_patches() * of_patch]);
        }
        let (rows, columns) = layout.grid(self.index);
        let first = self.index * layout.rows * layout.columns * of_patch;
        let bytes = &self.image.samples[first..first + rows * columns * of_patch];
        match (&self.shown, self.windows) {
            (Some(shown), _) => Cow::Owned(shown.ordered(bytes, of_patch)),
            (None, Some(windows)) => Cow::Owned(windows.ordered(bytes)),
            (None, None) => Cow::Borrowed(bytes),
        }
    }

    /// The numbers that it has in place of these, and their first row of the stream.
    fn numbers(&self) -> Option<(usize, Vec<f32>)> {
        let numbers = self.image.numbers_of(self.index)?;
        let of_patch = 3 * self.image.patch_size.pow(2);
        let numbers = match &self.shown {
            None => numbers.to_vec(),
            Some(shown) => shown.ordered(numbers, of_patch),
        };
        Some((self.first + self.num_class_tokens, numbers))
    }

    /// Rows of the stream that are its patches, those of a token beside each other; or the one that
    /// counts.
    pub(super) fn by_token(&self) -> Vec<u32> {
        if self.is_class_token {
            return vec![self.first as u32];
        }
        let Patches { layout, order, .. } = *self.image;
        let first = (self.first + self.num_class_tokens) as u32;
        if layout.shares_tokens() {
            // Groups say which of them are a token's.
            return (first..).take(self.image.num_patches_of(self.index)).collect();
        }
        match (&self.shown, self.windows) {
            (Some(shown), _) => {
                let by_token = patches_by_token((layout, self.index), order, 0);
                let rows = shown.rows(first);
                by_token.into_iter().map(|patch| rows[patch as usize]).collect()
            }
            (None, Some(windows)) => windows.rows(first),
            (None, None) => patches_by_token((layout, self.index), order, first),
        }
    }
}

/// What is around the layers of a step.
pub(super) struct Pass<'a> {
    pub device: &'a Device,
    /// Of a patch.
    pub num_frames: usize,
    /// Of embeddings.
    pub scale: Option<f32>,
    pub weights: &'a Weights,
    /// Patches by tokens are the rows that it wants.
    pub step: Step<'a>,
    pub tiles: &'a [PlacedTile<'a>],
}

impl Pass<'_> {
    /// residual = norm(norm(products of patches), and class tokens, + positions)
    pub(super) fn embed(
        &self,
        (tables, mixed): (&BandTables, &MixedRows),
        (scratch, samples): (&mut PatchScratch, &mut Tensor),
        stream: &mut Stream,
    ) -> Result<(), EngineError> {
        let Self { device, num_frames, weights, step, tiles, .. } = *self;
        stream.begin(step);
        stream.loras.begin(device, step.num_rows(), 0);
        let Stream { residual, delta, .. } = stream;
        // Through `delta`, whose type a GPU's linear layers write.
        let bytes = self.bytes(samples.width() / num_frames);
        for (chunk, bytes) in
            bytes.chunks(Tower::STEP_PATCHES * samples.width() / num_frames).enumerate()
        {
            ops::patch_values(device, (bytes, scratch), (tables, num_frames), samples);
            self.replace_numbers(chunk * Tower::STEP_PATCHES, samples)?;
            let out = delta.rows_from_mut(chunk * Tower::STEP_PATCHES);
            let num_rows = samples.num_rows();
            ops::linear_rows(device, samples.rows_from(0), &weights.patches, out, num_rows);
        }
        ops::fill_zero(device, residual, step.num_rows());
        ops::add(device, residual, delta);
        if let Some(norm) = &weights.patch_norm {
            ops::norm_in_place(device, residual, norm);
        }
        if let Some(token) = &weights.class_token {
            for tile in tiles {
                let out = residual.rows_from_mut(tile.first);
                ops::replace_rows(device, token.rows_from(0), out, 1);
            }
        }
        match &weights.positions {
            None => {}
            Some(table) if mixed.is_empty() => {
                ops::add_rows_of(device, step.positions(), 0, table, residual);
            }
            Some(table) => ops::add_mixed_rows(device, mixed, table, residual),
        }
        if let Some(norm) = &weights.embed_norm {
            ops::norm_in_place(device, residual, norm);
        }
        Ok(())
    }

    /// Numbers in the place of samples, whose first row is this one of the stream.
    fn replace_numbers(&self, first: usize, samples: &mut Tensor) -> Result<(), EngineError> {
        let (width, end) = (samples.width(), first + samples.num_rows());
        for (row, numbers) in self.tiles.iter().filter_map(PlacedTile::numbers) {
            assert_eq!(self.num_frames, 1, "numbers are of one frame");
            let rows = row.max(first)..(row + numbers.len() / width).min(end);
            if rows.is_empty() {
                continue;
            }
            let own = &numbers[(rows.start - row) * width..(rows.end - row) * width];
            let own = self.device.upload_as(own, width, Precision::Activation)?;
            let out = samples.rows_from_mut(rows.start - first);
            ops::replace_rows(self.device, own.rows_from(0), out, rows.len());
            // What is on the device is read before it goes.
            self.device.check()?;
        }
        Ok(())
    }

    /// The samples of all rows, so many of each; class tokens have zeros, and are replaced.
    fn bytes(&self, row_bytes: usize) -> Cow<'_, [u8]> {
        match self.tiles {
            [tile] if tile.num_class_tokens == 0 => tile.bytes(),
            tiles => {
                let mut all = Vec::with_capacity(row_bytes * self.step.batch.num_tokens());
                for tile in tiles {
                    all.resize(all.len() + row_bytes * tile.num_class_tokens, 0);
                    all.extend_from_slice(&tile.bytes());
                }
                Cow::Owned(all)
            }
        }
    }

    /// Which of the rows that it wants are those of each tile.
    fn rows_of_tiles(&self) -> Vec<Range<usize>> {
        let mut end = 0;
        let rows = self.tiles.iter().map(|tile| {
            let start = end;
            let Patches { layout, .. } = *tile.image;
            end += match tile.is_class_token {
                true => 1,
                false => layout.tokens_of_tile(tile.index) * layout.merge_size.pow(2),
            };
            start..end
        });
        rows.collect()
    }

    /// Rows of images, of this kind, = what its connector makes of the patches of their tokens.
    pub(super) fn connect(
        &self,
        kind: usize,
        (stream, groups): (&Tensor, &MixedRows),
        buffers: &mut ConnectorBuffers,
        rows: &mut [Tensor],
    ) {
        let Self { device, weights, step, tiles, .. } = *self;
        let by_token = step.logits_indices();
        let of_tiles = self.rows_of_tiles();
        let connector = &weights.connectors[kind];
        let tokens = connector.run(device, (stream, by_token), (&of_tiles, groups), buffers);
        if let Some(factor) = self.scale {
            ops::scale(device, tokens, factor);
        }
        let mut from = 0;
        for tile in tiles {
            let layout = tile.image.layout;
            let (of_tile, per_tile, num_tokens) = match (tile.is_one_row, layout.shares_tokens()) {
                (true, _) => (1, 1, layout.num_tiles()),
                // The first has all of the image, which is in the step.
                (false, true) if tile.index > 0 => continue,
                (false, true) => (layout.num_tile_tokens(), 0, layout.num_tile_tokens()),
                (false, false) => (
                    layout.tokens_of_tile(tile.index),
                    layout.tokens_per_tile(),
                    layout.num_tile_tokens(),
                ),
            };
            let first = kind * num_tokens + tile.index * per_tile;
            let out = rows[tile.of_image].rows_from_mut(first);
            ops::replace_rows(device, tokens.rows_from(from), out, of_tile);
            from += of_tile;
        }
    }
}

/// The row of a patch that is beyond the edge of a tile.
pub(super) const NO_PATCH: u32 = u32::MAX;

/// Rows of the stream of a tile that begins at `first`: the patches of each token beside each
/// other, row after row, as tokens are.
fn patches_by_token((layout, tile): (Layout, usize), order: PatchOrder, first: u32) -> Vec<u32> {
    let (rows, columns) = layout.grid(tile);
    match order {
        PatchOrder::Merged => (first..).take(rows * columns).collect(),
        PatchOrder::Rows => {
            let row = |(row, column)| match row < rows && column < columns {
                true => first + (row * columns + column) as u32,
                false => NO_PATCH,
            };
            let side = layout.merge_size;
            let whole = (rows.next_multiple_of(side), columns.next_multiple_of(side));
            places_of(whole, side).map(row).collect()
        }
    }
}

/// Positions of the patches of a tile that are of its image; mixtures of them are added to `mixed`.
pub(super) fn positions_of(
    positions: &GridPositions,
    (image, tile): (&Patches, usize),
    shown: Option<&Shown>,
    mixed: &mut MixedRows,
) -> impl Iterator<Item = u32> + use<> {
    let Patches { layout, order, .. } = *image;
    let (rows, columns) = shown.map_or_else(|| layout.grid(tile), |shown| shown.grid);
    let is_mixed = positions.are_mixed();
    if is_mixed {
        let mix = positions.mix((rows, columns));
        places((layout, tile), order).for_each(|place| mixed.push(mix.of(place)));
    } else {
        assert_eq!(order, PatchOrder::Rows, "positions are row after row");
    }
    let rows = if is_mixed { 0 } else { rows };
    positions.of_grid(rows, columns)
}

/// Row and column of each patch of a tile, in this order of them.
pub(super) fn places(
    (layout, tile): (Layout, usize),
    order: PatchOrder,
) -> impl Iterator<Item = (usize, usize)> {
    let side = match order {
        PatchOrder::Rows => 1,
        PatchOrder::Merged => layout.merge_size,
    };
    places_of(layout.grid(tile), side)
}

/// The same of a grid of so many rows and columns, squares of this side one after the other.
fn places_of((rows, columns): (usize, usize), side: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows * columns).map(move |patch| {
        let (square, within) = (patch / (side * side), patch % (side * side));
        let (row, column) = (square / (columns / side), square % (columns / side));
        (row * side + within / side, column * side + within % side)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patches_of_a_token_are_a_square_row_after_row() {
        let layout = Layout {
            rows: 4,
            columns: 6,
            tile_rows: 0,
            tile_columns: 0,
            merge_size: 2,
            middle: None,
            whole: None,
            marks: None,
        };
        let of_token = |token: usize| {
            patches_by_token((layout, 0), PatchOrder::Rows, 100)[4 * token..][..4].to_vec()
        };
        assert_eq!(of_token(0), [100, 101, 106, 107]);
        assert_eq!(of_token(2), [104, 105, 110, 111]);
        assert_eq!(of_token(3), [112, 113, 118, 119]);
        assert_eq!(patches_by_token((layout, 0), PatchOrder::Rows, 0).len(), 24);
        // Patches that stand so from the start are where they are.
        let merged = patches_by_token((layout, 0), PatchOrder::Merged, 100);
        assert!(merged.iter().copied().eq(100..124));
        let places = places((layout, 0), PatchOrder::Merged);
        let rows = patches_by_token((layout, 0), PatchOrder::Rows, 0);
        assert!(places.map(|(row, column)| (row * 6 + column) as u32).eq(rows));
        // Squares may stand out over the edge.
        let layout = Layout { rows: 3, columns: 3, ..layout };
        let of_token = |token: usize| {
            patches_by_token((layout, 0), PatchOrder::Rows, 100)[4 * token..][..4].to_vec()
        };
        assert_eq!(layout.num_tokens(), 4);
        assert_eq!(of_token(0), [100, 101, 103, 104]);
        assert_eq!(of_token(1), [102, NO_PATCH, 105, NO_PATCH]);
        assert_eq!(of_token(3), [108, NO_PATCH, NO_PATCH, NO_PATCH]);
    }
}
