//! `Windows`: the patches of a tile by squares of tokens, whose patches see each other alone in
//! some layers of a vision tower.

use vllm_batch_media::Layout;

/// Where the patches of a tile are in a tower's stream, which has those of a window beside each
/// other.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    /// Of each row of the stream, which patch it is; patches are those of a token beside each
    /// other, tokens row after row.
    pub patches: Vec<u32>,
    /// Rows of the stream up to the last of each window.
    pub ends: Vec<u32>,
}

impl Windows {
    /// Windows of so many tokens a side, row after row, as their tokens are. Those at the right and
    /// at the bottom may be smaller.
    pub(super) fn new(layout: Layout, side: usize) -> Self {
        let Layout { rows, columns, merge_size, .. } = layout;
        let (rows, columns, num_patches) =
            (rows / merge_size, columns / merge_size, merge_size * merge_size);
        let mut windows = Self { patches: Vec::new(), ends: Vec::new() };
        for top in (0..rows).step_by(side) {
            for left in (0..columns).step_by(side) {
                for row in top..rows.min(top + side) {
                    let first = row * columns + left;
                    let last = row * columns + columns.min(left + side);
                    let patches = first * num_patches..last * num_patches;
                    windows.patches.extend(patches.map(|patch| patch as u32));
                }
                windows.ends.push(windows.patches.len() as u32);
            }
        }
        windows
    }

    /// Of each patch, its row of the stream, in which the tile begins at `first`.
    pub(super) fn rows(&self, first: u32) -> Vec<u32> {
        let mut rows = vec![0; self.patches.len()];
        for (row, patch) in (first..).zip(&self.patches) {
            rows[*patch as usize] = row;
        }
        rows
    }

    /// What patches have, in the order of the stream.
    pub(super) fn ordered(&self, bytes: &[u8]) -> Vec<u8> {
        let len = bytes.len() / self.patches.len();
        let of_patch = |patch: &u32| &bytes[*patch as usize * len..][..len];
        self.patches.iter().flat_map(of_patch).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `get_vision_window_index` of transformers 5.24 for these grids.
    #[test]
    fn windows_are_row_after_row_and_may_be_ragged() {
        let layout = |rows, columns| Layout {
            rows,
            columns,
            tile_rows: 0,
            tile_columns: 0,
            merge_size: 1,
            middle: None,
            whole: None,
            marks: None,
        };
        let windows = Windows::new(layout(3, 5), 2);
        assert_eq!(windows.patches, [0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14]);
        assert_eq!(windows.ends, [4, 8, 10, 12, 14, 15]);
        assert_eq!(windows.rows(7)[..6], [7, 8, 11, 12, 15, 9]);
        let bytes: Vec<u8> = (0..30).collect();
        assert_eq!(windows.ordered(&bytes)[..6], [0, 1, 2, 3, 10, 11]);

        let merged = Windows::new(Layout { merge_size: 2, ..layout(4, 6) }, 2);
        let tokens: Vec<_> = merged.patches.iter().step_by(4).map(|patch| patch / 4).collect();
        assert_eq!(tokens, [0, 1, 3, 4, 2, 5]);
        assert_eq!(merged.ends, [16, 24]);
        assert!(merged.patches.chunks(4).all(|token| token[3] == token[0] + 3));
    }
}
