//! What an image becomes: tiles, patches, tokens, and what stands between tokens.

use super::Joined;
use super::sizes::{self, Size};

/// How many tiles, patches and tokens an image becomes. All tiles of an image have one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Rows of patches of a tile.
    pub rows: usize,
    /// Patches of such a row.
    pub columns: usize,
    /// Rows of tiles; 0 if the image is not cut.
    pub tile_rows: usize,
    /// Tiles of such a row; 0 if the image is not cut.
    pub tile_columns: usize,
    /// As in [`Tower`].
    pub merge_size: usize,
    /// What of the tiles is an image's; None: all tokens, one tile after the other.
    pub middle: Option<Middle>,
    /// Rows of patches of the whole image and patches of such a row, where these are others than
    /// those of the tiles before it (LFM2-VL).
    pub whole: Option<[usize; 2]>,
    /// The whole image stands before its tiles, and marks that are the image's own between tokens.
    pub marks: Option<Marks>,
}

/// Which marks an image has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// Those of tiles that overlap and share tokens (Molmo 2).
    Joined(Joined),
    /// Those of a grid: before the image, behind the whole image, behind a tile of a row, behind a
    /// row of tiles, behind all (Ovis 2).
    Grid,
}

impl Marks {
    /// How many kinds there are.
    pub fn num(self) -> usize {
        match self {
            Self::Joined(_) => Joined::NUM_MARKS,
            Self::Grid => 5,
        }
    }
}

/// The middle of the tiles, laid out as the picture that they are of. The tokens of an image are
/// those of the whole image, then those of the middle, row after row, with what `lines` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Middle {
    /// Rows of tokens above it.
    pub top: usize,
    /// Rows of tokens.
    pub rows: usize,
    /// Tokens of a row before it.
    pub left: usize,
    /// Tokens of a row.
    pub columns: usize,
    /// Rows and tokens of a row that it is made smaller to; None: it stays as it is.
    pub shrunk: Option<[usize; 2]>,
    /// Where there are newlines, and what else.
    pub lines: Lines,
}

/// What an image has besides its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// A newline behind each row of the middle.
    OfMiddle,
    /// One behind each row of the whole image too, and a separator behind all of these
    /// (DeepSeek-VL2).
    OfAll,
    /// The same with the middle first, then the separator, then the whole image. Of the picture
    /// only so many rows of patches, and patches of such a row, are of the image: no patch sees
    /// others (Phi-4-multimodal).
    WholeLast {
        /// Rows, and patches of one.
        patches: [usize; 2],
    },
}

impl Lines {
    /// Embeddings that are no tokens of tiles.
    pub fn num(self) -> usize {
        match self {
            Self::OfMiddle => 1,
            Self::OfAll | Self::WholeLast { .. } => 2,
        }
    }
}

impl Middle {
    /// All of a picture of so many tokens.
    pub(super) fn whole(tokens: Size, lines: Lines) -> Self {
        let Size { width: columns, height: rows } = tokens;
        Self { top: 0, rows, left: 0, columns, shrunk: None, lines }
    }

    /// Rows of tokens that an image has of it, and tokens of a row.
    fn shown(&self) -> [usize; 2] {
        self.shrunk.unwrap_or([self.rows, self.columns])
    }
}

impl Layout {
    /// Tiles row after row, and the whole image behind them.
    pub fn num_tiles(&self) -> usize {
        self.tile_rows * self.tile_columns + 1
    }

    /// Rows of patches of one of the tiles, and patches of such a row.
    pub fn grid(&self, tile: usize) -> (usize, usize) {
        match self.whole {
            Some([rows, columns]) if tile + 1 == self.num_tiles() => (rows, columns),
            _ => (self.rows, self.columns),
        }
    }

    /// Placeholder tokens of one of the tiles. What a template puts between them is not counted.
    pub fn tokens_of_tile(&self, tile: usize) -> usize {
        let (rows, columns) = self.grid(tile);
        rows.div_ceil(self.merge_size) * columns.div_ceil(self.merge_size)
    }

    /// The same of those before the whole image.
    pub fn tokens_per_tile(&self) -> usize {
        let [rows, columns] = self.sides();
        rows * columns
    }

    /// Rows of tokens of such a tile, and tokens of a row.
    pub(super) fn sides(&self) -> [usize; 2] {
        [self.rows, self.columns].map(|side| side.div_ceil(self.merge_size))
    }

    /// Tokens that a tower makes of the tiles.
    pub fn num_tile_tokens(&self) -> usize {
        if let Some(Marks::Joined(joined)) = self.marks {
            return joined.num_tile_tokens(self);
        }
        let last = self.num_tiles() - 1;
        last * self.tokens_per_tile() + self.tokens_of_tile(last)
    }

    /// Tokens of the image, and marks between them that are its own.
    pub fn num_tokens(&self) -> usize {
        match self.marks {
            Some(Marks::Joined(joined)) => return joined.num_tokens(self),
            Some(Marks::Grid) => {
                // Behind the last of the tiles is the end alone.
                let shared = usize::from(self.tile_rows > 0);
                return self.num_tile_tokens() + self.num_tiles() + 2 - shared;
            }
            None => {}
        }
        match self.middle {
            None => self.num_tile_tokens(),
            Some(middle) => {
                let [rows, columns] = middle.shown();
                let beside = match middle.lines {
                    Lines::OfMiddle => 0,
                    Lines::OfAll | Lines::WholeLast { .. } => self.sides()[0] + 1,
                };
                self.tokens_per_tile() + beside + rows * (columns + 1)
            }
        }
    }

    /// Of each token of the image, which of the tiles' it is, where they are not all of these; the
    /// number behind the last is the newline, that behind it the separator if there is one, or they
    /// are marks; those behind are mixtures.
    pub fn sources(&self) -> Option<Vec<u32>> {
        match self.marks {
            Some(Marks::Joined(joined)) => return Some(joined.sources(self)),
            Some(Marks::Grid) => return Some(self.sources_of_grid()),
            None => {}
        }
        let middle = self.middle?;
        let (of_tile, newline) = (self.tokens_per_tile(), self.num_tile_tokens());
        let [rows, columns] = middle.shown();
        let first_mixture = newline + middle.lines.num();
        let place = |row, column| match middle.shrunk {
            None => self.place(middle.top + row, middle.left + column),
            Some(_) => first_mixture + row * columns + column,
        };
        let whole: Vec<_> = (newline - of_tile..newline).collect();
        let in_lines = || {
            let rows = whole.chunks(self.sides()[1]);
            rows.flat_map(|row| row.iter().copied().chain([newline])).collect::<Vec<_>>()
        };
        let row = |row| (0..columns).map(move |column| place(row, column));
        let rows = (0..rows).flat_map(|at| row(at).chain([newline])).collect::<Vec<_>>();
        let separator = vec![newline + 1];
        let sources = match middle.lines {
            Lines::OfMiddle => [whole, rows].concat(),
            Lines::OfAll => [in_lines(), separator, rows].concat(),
            Lines::WholeLast { .. } => [rows, separator, in_lines()].concat(),
        };
        Some(sources.into_iter().map(|source| source as u32).collect())
    }

    /// Rows of patches of a tile that are of the image, and patches of such a row, where there are
    /// others; those that are first.
    pub fn shown(&self, tile: usize) -> Option<[usize; 2]> {
        let Lines::WholeLast { patches: [rows, columns] } = self.middle?.lines else { return None };
        if tile + 1 == self.num_tiles() {
            return Some([self.rows, self.columns]);
        }
        let of_tile = |at: usize, all: usize, side: usize| (all - at * side).min(side);
        Some([
            of_tile(tile / self.tile_columns, rows, self.rows),
            of_tile(tile % self.tile_columns, columns, self.columns),
        ])
    }

    /// Tokens of the whole image and of its tiles, with the marks of a grid.
    fn sources_of_grid(&self) -> Vec<u32> {
        let (of_tile, marks) = (self.tokens_per_tile(), self.num_tile_tokens());
        let [start, whole, column, row, end] = std::array::from_fn(|mark| marks + mark);
        let tile = |index: usize| index * of_tile..(index + 1) * of_tile;
        let mut sources = vec![start];
        sources.extend(tile(0));
        sources.push(whole);
        for index in 1..self.num_tiles() {
            sources.extend(tile(index));
            match (index.is_multiple_of(self.tile_columns), index + 1 == self.num_tiles()) {
                (_, true) => {}
                (true, false) => sources.push(row),
                (false, false) => sources.push(column),
            }
        }
        sources.push(end);
        sources.into_iter().map(|source| source as u32).collect()
    }

    /// Whether tiles share tokens.
    pub fn shares_tokens(&self) -> bool {
        matches!(self.marks, Some(Marks::Joined(_)))
    }

    /// The patches of each token, where tiles share tokens.
    pub fn groups(&self) -> Option<Vec<Vec<u32>>> {
        match self.marks {
            Some(Marks::Joined(joined)) => Some(joined.groups(self)),
            Some(Marks::Grid) | None => None,
        }
    }

    /// Mixtures of tokens of tiles that the image has, row after row: which of the tiles', with
    /// their shares. `interpolate(mode="bilinear")` of torch.
    pub fn mixtures(&self) -> Vec<[(u32, f32); 4]> {
        let Some(Middle { top, rows, left, columns, shrunk: Some(shrunk), .. }) = self.middle
        else {
            return Vec::new();
        };
        let of_axis = |size: usize, shrunk: usize| {
            (0..shrunk).map(move |at| sizes::between(at, (size, shrunk))).collect::<Vec<_>>()
        };
        let (of_rows, of_columns) = (of_axis(rows, shrunk[0]), of_axis(columns, shrunk[1]));
        let mixture = |row: &[(usize, f32); 2], column: &[(usize, f32); 2]| {
            [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(r, c)| {
                let ((row, of_row), (column, of_column)) = (row[r], column[c]);
                (self.place(top + row, left + column) as u32, of_row * of_column)
            })
        };
        let of_row = |row| of_columns.iter().map(move |column| mixture(row, column));
        of_rows.iter().flat_map(of_row).collect()
    }

    /// Which of the tiles' tokens is at a place of the picture that they are of.
    fn place(&self, row: usize, column: usize) -> usize {
        let [height, width] = self.sides();
        let tile = row / height * self.tile_columns + column / width;
        tile * self.tokens_per_tile() + row % height * width + column % width
    }

    /// Patches of the image.
    pub fn num_patches(&self) -> usize {
        let last = self.num_tiles() - 1;
        let (rows, columns) = self.grid(last);
        last * self.rows * self.columns + rows * columns
    }
}
