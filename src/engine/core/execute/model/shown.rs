//! `Shown`: the patches of a tile that are of its image first, and behind them those beside the
//! image that are of a token with one of these. Others have no place in a tower's stream.

use super::tower_pass::NO_PATCH;
use vllm_batch_media::{Layout, PatchOrder};

/// Where the patches of a tile are in a tower's stream, which sees the first of them alone.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    /// Of each row of the stream, which patch it is, row after row of them.
    pub patches: Vec<u32>,
    /// How many rows are seen.
    pub num_seen: usize,
    /// Rows of those that are of the image, and patches of one.
    pub grid: (usize, usize),
    num_patches: usize,
}

impl Shown {
    /// Those of a tile, where its patches are not all of the image.
    pub(super) fn new((layout, tile): (Layout, usize), order: PatchOrder) -> Option<Self> {
        let [rows, columns] = layout.shown(tile)?;
        assert_eq!(order, PatchOrder::Rows, "patches are row after row");
        let (high, wide) = layout.grid(tile);
        let whole = |side: usize| side.next_multiple_of(layout.merge_size);
        let (last_row, last_column) = (whole(rows).min(high), whole(columns).min(wide));
        let is_seen = |row: usize, column: usize| row < rows && column < columns;
        let places =
            || (0..last_row).flat_map(|row| (0..last_column).map(move |column| (row, column)));
        let patches = |seen: bool| {
            let places = places().filter(move |(row, column)| is_seen(*row, *column) == seen);
            places.map(|(row, column)| (row * wide + column) as u32)
        };
        Some(Self {
            patches: patches(true).chain(patches(false)).collect(),
            num_seen: rows * columns,
            grid: (rows, columns),
            num_patches: high * wide,
        })
    }

    /// Of each patch, its row of the stream, in which the tile begins at `first`; or none.
    pub(super) fn rows(&self, first: u32) -> Vec<u32> {
        let mut rows = vec![NO_PATCH; self.num_patches];
        for (row, patch) in (first..).zip(&self.patches) {
            rows[*patch as usize] = row;
        }
        rows
    }

    /// What patches have, in the order of the stream; `len` of each.
    pub(super) fn ordered<T: Copy>(&self, values: &[T], len: usize) -> Vec<T> {
        let of_patch = |patch: &u32| &values[*patch as usize * len..][..len];
        self.patches.iter().flat_map(of_patch).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_media::{Lines, Middle};

    #[test]
    fn patches_of_the_image_are_first_and_those_of_its_tokens_behind() {
        let layout = |patches: [usize; 2]| {
            let lines = Lines::WholeLast { patches };
            let [rows, columns] = patches.map(|side| side.div_ceil(2));
            let middle = Middle { top: 0, rows, left: 0, columns, shrunk: None, lines };
            Layout {
                rows: 4,
                columns: 4,
                tile_rows: 2,
                tile_columns: 1,
                merge_size: 2,
                middle: Some(middle),
                whole: None,
                marks: None,
            }
        };
        let shown = |patches, tile| Shown::new((layout(patches), tile), PatchOrder::Rows).unwrap();
        let first = shown([5, 3], 0);
        assert_eq!((first.grid, first.num_seen), ((4, 3), 12));
        assert_eq!(first.patches, [0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 3, 7, 11, 15]);
        let second = shown([5, 3], 1);
        assert_eq!((second.num_seen, &second.patches[..]), (3, &[0, 1, 2, 3, 4, 5, 6, 7][..]));
        assert_eq!(second.rows(9)[..9], [9, 10, 11, 12, 13, 14, 15, 16, NO_PATCH]);
        assert_eq!(second.ordered(&[0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7], 2).len(), 16);
        let few = shown([6, 2], 1);
        assert_eq!((few.num_seen, &few.patches[..]), (4, &[0, 1, 4, 5][..]));
        assert_eq!(few.rows(0)[..6], [0, 1, NO_PATCH, NO_PATCH, 2, 3]);
        // All of the whole image.
        assert_eq!(shown([5, 3], 2).num_seen, 16);
    }
}
