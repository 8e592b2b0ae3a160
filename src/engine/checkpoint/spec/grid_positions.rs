//! `GridPositions`: learned positions of a square of patches, and those of other grids that are
//! made of them.

use super::LinearSpec;

/// Learned positions of a square of patches, behind that of the class token if there is one.
#[derive(Clone, Debug, PartialEq)]
pub struct GridPositions {
    /// (side² and the class token, width), row after row; or what `fit` says.
    pub table: LinearSpec,
    /// Rows and columns of the square.
    pub side: usize,
    /// Those of other grids.
    pub fit: GridFit,
}

/// Positions of grids that are not the square.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GridFit {
    /// There are no such grids (CLIP).
    OwnAlone,
    /// Each patch has that at the same share of the way (Idefics 3).
    SameShare,
    /// Each patch has a mixture of the four around its place, where the corners of the grid are
    /// those of the square (Qwen3-VL).
    Between,
    /// Each patch has a mixture of the four around its place, where the middles of patches are at
    /// the same share of the way; beyond the edge are those at the edge (PaddleOCR-VL).
    BetweenMiddles,
    /// The same of the grid with rows for columns, whose places stand row after row as patches do;
    /// beyond the edge is nothing (Muse Glimmer).
    Turned,
    /// Each patch has a mixture of the sixteen around its place, where the middles of patches are
    /// at the same share of the way, by cubic convolution; beyond the edge are those at the edge
    /// (GLM-4.1V).
    Cubic,
    /// Each patch has a mixture of those that it covers, where the middles of patches are at the
    /// same share of the way: linear interpolation with antialiasing (LFM2-VL).
    Linear,
    /// Each patch has the sum of that of its column and that of its row: (2 * side, width), those
    /// of columns first (Gemma 4).
    ByAxis,
}

/// The rows of a table that the patches of a grid have mixtures of.
#[derive(Clone, Debug)]
pub struct Mixture {
    side: usize,
    /// Of each row of the grid, rows of the square with their shares.
    rows: Vec<Vec<(usize, f32)>>,
    /// The same of columns.
    columns: Vec<Vec<(usize, f32)>>,
    by_axis: bool,
    is_turned: bool,
}

impl Mixture {
    /// Rows of the table of a place of the grid, with their shares.
    pub fn of(&self, (row, column): (usize, usize)) -> impl Iterator<Item = (u32, f32)> + '_ {
        let (row, column) = match self.is_turned {
            false => (row, column),
            true => {
                let place = row * self.rows.len() + column;
                (place / self.columns.len(), place % self.columns.len())
            }
        };
        let (rows, columns) = (&self.rows[row][..], &self.columns[column][..]);
        let sides = self.by_axis.then(|| [columns, rows].into_iter().flatten().copied());
        let products = (!self.by_axis).then(|| {
            rows.iter().flat_map(move |(row, share_of_row)| {
                columns
                    .iter()
                    .map(move |(column, share)| (row * self.side + column, share_of_row * share))
            })
        });
        let parts = sides.into_iter().flatten().chain(products.into_iter().flatten());
        parts.map(|(row, share)| (row as u32, share))
    }
}

impl GridPositions {
    /// Rows of the table for the patches of a grid, row after row.
    ///
    /// transformers finds the same with floats: `bucketize` of i / rows among k / side. It is one
    /// too low where these are equal and their roundings differ, as in squares of its own side of
    /// 25 or 29, which no published tower has.
    pub fn of_grid(&self, rows: usize, columns: usize) -> impl Iterator<Item = u32> + use<> {
        let side = self.side;
        let place = move |row: usize, column: usize| {
            (row * side / rows * side + column * side / columns) as u32
        };
        (0..rows).flat_map(move |row| (0..columns).map(move |column| place(row, column)))
    }

    /// Patches have mixtures of rows of the table.
    pub fn are_mixed(&self) -> bool {
        !matches!(self.fit, GridFit::OwnAlone | GridFit::SameShare)
    }

    /// The mixtures of the patches of a grid.
    ///
    /// # Panics
    /// There are none.
    pub fn mix(&self, (rows, columns): (usize, usize)) -> Mixture {
        let side = self.side;
        let axis = |size: usize, first: usize| {
            let of_index = |index: usize| match self.fit {
                GridFit::OwnAlone | GridFit::SameShare => unreachable!("no mixtures"),
                GridFit::Between => between(index, (size, side)),
                GridFit::BetweenMiddles => between_middles(index, (size, side)),
                GridFit::Turned => within_middles(index, (size, side)),
                GridFit::Cubic => cubic(index, (size, side)),
                GridFit::Linear => linear(index, (size, side)),
                GridFit::ByAxis => vec![(first + index, 1.0)],
            };
            (0..size).map(of_index).collect()
        };
        let by_axis = self.fit == GridFit::ByAxis;
        let is_turned = self.fit == GridFit::Turned;
        let (rows, columns) = if is_turned { (columns, rows) } else { (rows, columns) };
        Mixture { side, rows: axis(rows, side), columns: axis(columns, 0), by_axis, is_turned }
    }
}

/// In f32, as `get_vision_interpolation_indices_and_weights` of transformers has it.
fn between(index: usize, (size, side): (usize, usize)) -> Vec<(usize, f32)> {
    let last = side - 1;
    let place = index as f32 * last as f32 / (size - 1).max(1) as f32;
    let (low, share) = (place.floor() as usize, place - place.floor());
    vec![(low.min(last), 1.0 - share), ((low + 1).min(last), share)]
}

/// The same with the middles of patches, as PaddleOCR-VL asks it.
fn between_middles(index: usize, (size, side): (usize, usize)) -> Vec<(usize, f32)> {
    let clamped = |(tap, share): (i64, f32)| (tap.clamp(0, side as i64 - 1) as usize, share);
    around_middle(index, (size, side)).map(clamped).to_vec()
}

/// The same where there is nothing beyond the edge, as Muse Glimmer asks it.
fn within_middles(index: usize, (size, side): (usize, usize)) -> Vec<(usize, f32)> {
    let taps = around_middle(index, (size, side)).into_iter();
    let within = taps.filter(|(tap, _)| (0..side as i64).contains(tap));
    within.map(|(tap, share)| (tap as usize, share)).collect()
}

fn around_middle(index: usize, (size, side): (usize, usize)) -> [(i64, f32); 2] {
    let place = (index as f32 + 0.5) * side as f32 / size as f32 - 0.5;
    let (low, share) = (place.floor(), place - place.floor());
    [(low as i64, 1.0 - share), (low as i64 + 1, share)]
}

/// In f32, as `grid_sample` of torch has it of what `Glm4vVisionEmbeddings` of transformers asks.
fn cubic(index: usize, (size, side): (usize, usize)) -> Vec<(usize, f32)> {
    const A: f32 = -0.75;
    let near = |x: f32| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f32| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let place = (index as f32 + 0.5) / size as f32 * 2.0 - 1.0;
    let place = ((place + 1.0) * side as f32 - 1.0) / 2.0;
    let (low, share) = (place.floor(), place - place.floor());
    let shares = [far(share + 1.0), near(share), near(1.0 - share), far(2.0 - share)];
    let taps = (low as i64 - 1..).zip(shares);
    taps.map(|(tap, share)| (tap.clamp(0, side as i64 - 1) as usize, share)).collect()
}

/// In f32, as `resize_positional_embeddings` of transformers' SigLIP 2 has it.
fn linear(index: usize, (size, side): (usize, usize)) -> Vec<(usize, f32)> {
    let scale = side as f32 / size as f32;
    let center = (index as f32 + 0.5) * scale - 0.5;
    let share = |place: usize| (1.0 - (place as f32 - center).abs() / scale.max(1.0)).max(0.0);
    let sum: f32 = (0..side).map(share).sum();
    let shares = (0..side).map(|place| (place, share(place) / sum));
    shares.filter(|(_, share)| *share > 0.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_has_the_positions_of_the_square_at_the_same_share_of_the_way() {
        let positions = |side: usize| {
            let table = LinearSpec::new("positions", side * side, 8);
            GridPositions { table, side, fit: GridFit::SameShare }
        };
        let of = |side, rows, columns| positions(side).of_grid(rows, columns).collect::<Vec<_>>();
        for side in [1, 2, 27, 32] {
            assert_eq!(of(side, side, side), (0..(side * side) as u32).collect::<Vec<_>>());
        }
        // `SmolVLMVisionEmbeddings` of transformers 5.24 with these sides and masks.
        assert_eq!(of(5, 2, 3), [0, 1, 3, 10, 11, 13]);
        assert_eq!(of(5, 4, 1), [0, 5, 10, 15]);
        assert_eq!(of(3, 4, 5), [0, 0, 1, 1, 2, 0, 0, 1, 1, 2, 3, 3, 4, 4, 5, 6, 6, 7, 7, 8]);
    }

    /// `get_vision_interpolation_indices_and_weights` of transformers 5.24 with these sides.
    #[test]
    fn positions_between_are_mixtures_of_those_around_them() {
        let positions = |side: usize| {
            let table = LinearSpec::new("positions", side * side, 8);
            GridPositions { table, side, fit: GridFit::Between }
        };
        let place = |side, grid, place| positions(side).mix(grid).of(place).collect::<Vec<_>>();
        assert_eq!(place(3, (3, 3), (1, 2))[..2], [(5, 1.0), (5, 0.0)]);
        assert_eq!(place(3, (5, 2), (1, 0)), [(0, 0.5), (1, 0.0), (3, 0.5), (4, 0.0)]);
        assert_eq!(place(3, (5, 2), (1, 1)), [(2, 0.5), (2, 0.0), (5, 0.5), (5, 0.0)]);
        assert_eq!(place(4, (1, 3), (0, 1)), [(1, 0.5), (2, 0.5), (5, 0.0), (6, 0.0)]);
    }

    #[test]
    fn positions_between_middles_are_those_at_the_edge_beyond_it() {
        assert_eq!(between_middles(0, (4, 2)), [(0, 0.25), (0, 0.75)]);
        assert_eq!(between_middles(1, (4, 2)), [(0, 0.75), (1, 0.25)]);
        assert_eq!(between_middles(3, (4, 2)), [(1, 0.75), (1, 0.25)]);
        assert_eq!(between_middles(1, (2, 5)), [(3, 0.75), (4, 0.25)]);
    }

    /// `get_vision_interpolation_indices_and_weights` of transformers 5.24 with a grid of 2 x 3.
    #[test]
    fn turned_positions_stand_as_patches_do_and_are_nothing_beyond_the_edge() {
        let table = LinearSpec::new("positions", 9, 8);
        let positions = GridPositions { table, side: 3, fit: GridFit::Turned };
        let mixture = positions.mix((2, 3));
        let place = |place| mixture.of(place).collect::<Vec<_>>();
        assert_eq!(place((0, 1))[..2], [(1, 0.25), (2, 0.75)]);
        assert_eq!(place((0, 2))[..2], [(3, 0.75), (4, 0.25)]);
        assert_eq!(place((1, 2))[..2], [(7, 0.25), (8, 0.75)]);
        assert_eq!(within_middles(0, (4, 2)), [(0, 0.75)]);
        assert_eq!(within_middles(3, (4, 2)), [(1, 0.75)]);
    }

    /// The weights of `F.grid_sample(mode="bicubic", padding_mode="border")` of torch 2.15.
    #[test]
    fn positions_by_cubic_convolution_are_those_at_the_edge_beyond_it() {
        let table = LinearSpec::new("positions", 25, 8);
        let positions = GridPositions { table, side: 5, fit: GridFit::Cubic };
        let cases: [(_, _, &[(usize, f32)]); 4] = [
            (
                (3, 8),
                (0, 0),
                &[
                    (0, 0.748794),
                    (1, -0.063609),
                    (5, 0.404754),
                    (6, -0.034383),
                    (10, -0.060714),
                    (11, 0.005158),
                ],
            ),
            (
                (3, 8),
                (2, 5),
                &[
                    (11, 0.000153),
                    (12, -0.002913),
                    (13, -0.055085),
                    (14, 0.002289),
                    (16, -0.001017),
                    (17, 0.019418),
                    (18, 0.367228),
                    (19, -0.015259),
                    (21, -0.001882),
                    (22, 0.035924),
                    (23, 0.679372),
                    (24, -0.028229),
                ],
            ),
            ((5, 5), (1, 2), &[(7, 1.0)]),
            ((9, 2), (4, 1), &[(12, -0.105469), (13, 0.878906), (14, 0.226562)]),
        ];
        for (grid, place, expected) in cases {
            let mut shares = [0.0; 25];
            positions.mix(grid).of(place).for_each(|(row, share)| shares[row as usize] += share);
            for (row, share) in shares.into_iter().enumerate() {
                let expected = expected.iter().find(|(of_row, _)| *of_row == row);
                let expected = expected.map_or(0.0, |(_, share)| *share);
                assert!((share - expected).abs() < 2e-6, "{grid:?} {place:?} {row}: {share}");
            }
        }
    }

    /// `F.interpolate(mode="bilinear", antialias=True)` of torch 2.15.
    #[test]
    fn linear_positions_are_of_all_that_a_patch_covers() {
        let close = |got: Vec<(usize, f32)>, expected: &[(usize, f32)]| {
            assert_eq!(got.len(), expected.len(), "{got:?}");
            for ((place, share), expected) in got.into_iter().zip(expected) {
                assert!(place == expected.0 && (share - expected.1).abs() < 1e-6, "{expected:?}");
            }
        };
        close(linear(0, (2, 5)), &[(0, 0.3181818), (1, 0.4090909), (2, 0.2272727), (3, 0.0454545)]);
        close(linear(3, (8, 5)), &[(1, 0.3125), (2, 0.6875)]);
        close(linear(2, (4, 4)), &[(2, 1.0)]);
        close(linear(1, (3, 6)), &[(1, 0.125), (2, 0.375), (3, 0.375), (4, 0.125)]);
    }
}
