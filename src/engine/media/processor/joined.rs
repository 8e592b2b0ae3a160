//! `Joined`: tiles that overlap and are parts of one picture, whose tokens are of patches of one or
//! of several of them (Molmo 2). The whole image comes first, with tokens of its own.

use super::config::{Asked, ConfigError, MAX_TILE_SIDE, MAX_TILES, both_sides, same};
use super::keys::Keys;
use super::sizes::Size;
use super::{Layout, Sizing, Tower};
use crate::resize::Filter;
use vllm_batch_base::layers::MAX_JOINED_TOKENS;

/// What tokens and marks an image of such tiles has. Marks are numbered; which tokens they are the
/// model's own configuration says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Patches at the first side of a tile, and at the last, that the picture has from the tile
    /// beside it.
    pub margins: [usize; 2],
    /// The whole image begins with a mark of its own.
    pub has_own_start: bool,
    /// Rows of tokens of the whole image end with a mark.
    pub ends_whole_rows: bool,
    /// Rows of tokens of the picture do.
    pub ends_rows: bool,
}

/// Numbers of marks.
impl Joined {
    /// Before the whole image.
    const WHOLE_START: usize = 0;
    /// Before the picture.
    const START: usize = 1;
    /// Behind a row of tokens.
    const ROW_END: usize = 2;
    /// Behind the whole image, and behind the picture.
    const END: usize = 3;
    /// How many there are.
    pub const NUM_MARKS: usize = 4;

    /// Patches of a side of a tile of so many that no other tile has.
    pub(super) fn window(&self, side: usize) -> usize {
        side - self.margins[0] - self.margins[1]
    }

    /// The same of a square tile, in pixels.
    pub(super) fn window_in_pixels(&self, tile: Size, patch_size: usize) -> Size {
        let window = self.window(tile.width / patch_size) * patch_size;
        Size { width: window, height: window }
    }

    /// The tile, and the place in it, of a row or column of the picture of so many tiles.
    fn place(&self, at: usize, (side, num_tiles): (usize, usize)) -> (usize, usize) {
        let window = self.window(side);
        let tile = (at.saturating_sub(self.margins[0]) / window).min(num_tiles - 1);
        (tile, at - tile * window)
    }

    /// Rows and columns of patches of the picture.
    fn picture(&self, layout: &Layout) -> [usize; 2] {
        let side = |tiles: usize, side: usize| {
            tiles * self.window(side) + self.margins[0] + self.margins[1]
        };
        [side(layout.tile_rows, layout.rows), side(layout.tile_columns, layout.columns)]
    }

    /// Tokens of the whole image and of the picture, which are those of patches.
    pub(super) fn num_tile_tokens(&self, layout: &Layout) -> usize {
        let num_tokens = |[rows, columns]: [usize; 2]| rows * columns;
        self.grids(layout).map(num_tokens).iter().sum()
    }

    /// Rows and columns of tokens of the whole image, and of the picture.
    fn grids(&self, layout: &Layout) -> [[usize; 2]; 2] {
        let patches = [[layout.rows, layout.columns], self.picture(layout)];
        patches.map(|sides| sides.map(|side| side.div_ceil(layout.merge_size)))
    }

    /// Tokens and marks of an image; numbers from `num_tile_tokens` on are marks.
    pub(super) fn sources(&self, layout: &Layout) -> Vec<u32> {
        let marks = self.num_tile_tokens(layout);
        let whole_start = if self.has_own_start { Self::WHOLE_START } else { Self::START };
        let ends = [(whole_start, self.ends_whole_rows), (Self::START, self.ends_rows)];
        let (mut sources, mut next) = (Vec::new(), 0);
        for ([rows, columns], (start, ends_rows)) in self.grids(layout).into_iter().zip(ends) {
            sources.push(marks + start);
            for _ in 0..rows {
                sources.extend(next..next + columns);
                next += columns;
                sources.extend(ends_rows.then_some(marks + Self::ROW_END));
            }
            sources.push(marks + Self::END);
        }
        sources.into_iter().map(|source| source as u32).collect()
    }

    /// How many `sources` there are.
    pub(super) fn num_tokens(&self, layout: &Layout) -> usize {
        let [[whole_rows, _], [rows, _]] = self.grids(layout);
        let of_rows = |rows: usize, ends: bool| 2 + if ends { rows } else { 0 };
        self.num_tile_tokens(layout)
            + of_rows(whole_rows, self.ends_whole_rows)
            + of_rows(rows, self.ends_rows)
    }

    /// The patches of each token, row after row: those of a square of the whole image, or of the
    /// picture. Squares that reach beyond the edge have as much behind the last patch as before the
    /// first, or one more, and fewer patches.
    pub(super) fn groups(&self, layout: &Layout) -> Vec<Vec<u32>> {
        let Layout { rows, columns, tile_rows, tile_columns, merge_size, .. } = *layout;
        let of_whole = |row: usize, column: usize| row * columns + column;
        let of_picture = |row: usize, column: usize| {
            let (tile_row, row) = self.place(row, (rows, tile_rows));
            let (tile_column, column) = self.place(column, (columns, tile_columns));
            let tile = 1 + tile_row * tile_columns + tile_column;
            (tile * rows + row) * columns + column
        };
        let [high, wide] = self.picture(layout);
        let mut groups = squares([rows, columns], merge_size, &of_whole);
        groups.extend(squares([high, wide], merge_size, &of_picture));
        groups
    }
}

/// The patches of each square of so many, by rows and columns of a grid.
fn squares(
    [rows, columns]: [usize; 2],
    merge_size: usize,
    patch: &dyn Fn(usize, usize) -> usize,
) -> Vec<Vec<u32>> {
    let spans = |size: usize| {
        let num = size.div_ceil(merge_size);
        let before = (num * merge_size - size) / 2;
        let place = move |at: usize| at.saturating_sub(before).min(size);
        (0..num).map(move |at| place(at * merge_size)..place((at + 1) * merge_size))
    };
    let of_span = |rows: std::ops::Range<usize>, columns: std::ops::Range<usize>| {
        let of_row = |row| columns.clone().map(move |column| patch(row, column) as u32);
        rows.flat_map(of_row).collect::<Vec<_>>()
    };
    spans(rows)
        .flat_map(|rows| spans(columns).map(move |columns| (rows.clone(), columns)))
        .map(|(rows, columns)| of_span(rows, columns))
        .collect()
}

/// The sizing of tiles that overlap, as a configuration has it.
///
/// # Errors
/// It asks for what is not read here.
pub(super) fn read(
    keys: &mut Keys<'_>,
    size: Option<Asked>,
    (tower, filter): (Tower, Filter),
) -> Result<Sizing, ConfigError> {
    same(keys, "patch_size", tower.patch_size)?;
    let [high, wide] = keys.two("pooling_size")?.unwrap_or([2, 2]);
    if (high, wide) != (tower.merge_size, tower.merge_size) {
        return Err(ConfigError::new(format!(
            "`pooling_size` is {high} by {wide}, and {0} by {0} is read",
            tower.merge_size
        )));
    }
    let Size { width: tile, height } = both_sides(size)?;
    let margins = keys.two("overlap_margins")?.unwrap_or([4, 4]);
    let side = tile / tower.patch_size;
    let is_square = tile == height && tile.is_multiple_of(tower.patch_size);
    if !is_square || tile > MAX_TILE_SIDE || margins[0].saturating_add(margins[1]) >= side {
        return Err(ConfigError::new(format!(
            "`size` of {tile} by {height} and `overlap_margins` of {margins:?} patches make no tiles"
        )));
    }
    if filter != Filter::Bilinear {
        return Err(ConfigError::new("`resample` is other than 2, which is not read here"));
    }
    // Of the whole processor.
    let ends_rows = keys.flag("image_use_col_tokens", true)?;
    let joined = Joined {
        margins,
        has_own_start: keys.flag("use_single_crop_start_token", true)?,
        ends_whole_rows: keys.flag("use_single_crop_col_tokens", ends_rows)?,
        ends_rows,
    };
    let max_tiles = keys.count("max_crops")?.unwrap_or(8);
    // A column of tiles has most.
    let tokens = |tiles: usize| {
        (tiles * joined.window(side) + margins[0] + margins[1]).div_ceil(tower.merge_size)
    };
    let of_whole = (side + 1).pow(2);
    match max_tiles <= MAX_TILES
        && (tokens(max_tiles) + 2) * (side + 1) + of_whole <= MAX_JOINED_TOKENS
    {
        true => Ok(Sizing::Joined { tile, max_tiles, joined }),
        false => Err(ConfigError::new(format!(
            "`max_crops` of {max_tiles} makes more tokens of an image than {MAX_JOINED_TOKENS}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Marks;
    use super::*;

    const JOINED: Joined =
        Joined { margins: [2, 1], has_own_start: true, ends_whole_rows: false, ends_rows: true };

    fn layout(joined: Joined) -> Layout {
        Layout {
            rows: 5,
            columns: 5,
            tile_rows: 1,
            tile_columns: 2,
            merge_size: 2,
            middle: None,
            whole: None,
            marks: Some(Marks::Joined(joined)),
        }
    }

    /// `_build_overlapping_crops` and `arange_for_pooling` of `image_processing_molmo2.py`: of rows
    /// of 7 patches the first 4 are of the first tile, and those behind of the second.
    #[test]
    fn a_token_has_patches_of_one_tile_or_of_two() {
        let layout = layout(JOINED);
        let groups = layout.groups().expect("groups");
        assert_eq!((groups.len(), layout.num_tile_tokens()), (9 + 3 * 4, 21));
        assert_eq!(groups[..3], [vec![0, 1, 5, 6], vec![2, 3, 7, 8], vec![4, 9]]);
        assert_eq!((&groups[6][..], &groups[8][..]), (&[20, 21][..], &[24][..]));
        // The picture: 25 patches of the first tile from 25 on, of the second from 50 on.
        assert_eq!(groups[9], [25, 26, 30, 31]);
        assert_eq!(groups[10], [27, 28, 32, 33]);
        assert_eq!(groups[11], [52, 53, 57, 58]);
        assert_eq!(groups[12], [54, 59]);
        let odd = Layout { columns: 4, ..layout };
        let groups = odd.groups().expect("groups");
        // Rows of 5 patches, of which 3 are of the first tile.
        assert_eq!(groups[6..9], [vec![20, 21, 24, 25], vec![22, 42, 26, 46], vec![43, 47]]);
    }

    #[test]
    fn marks_stand_before_behind_and_between() {
        let sources = |joined| layout(joined).sources().expect("sources");
        let found = sources(JOINED);
        assert_eq!(found[..5], [21, 0, 1, 2, 3]);
        assert_eq!(found[10..18], [24, 22, 9, 10, 11, 12, 23, 13]);
        assert_eq!(found[found.len() - 2..], [23, 24]);
        for joined in [
            JOINED,
            Joined { has_own_start: false, ends_whole_rows: true, ..JOINED },
            Joined { ends_rows: false, ..JOINED },
        ] {
            assert_eq!(sources(joined).len(), layout(joined).num_tokens());
        }
        assert_eq!(sources(Joined { has_own_start: false, ..JOINED })[0], 22);
    }
}
