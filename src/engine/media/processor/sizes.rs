//! Sizes of images after resizing, with the arithmetic of transformers: floats of 64 bits, `int`,
//! `round` to even.

use std::cmp::Ordering;
use std::fmt;

use super::{Lines, Middle};
use crate::error::MediaError;

/// Width and height in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) width: usize,
    pub(super) height: usize,
}

impl Size {
    /// The square of its longer side.
    pub(super) fn squared(self) -> Self {
        let side = self.width.max(self.height);
        Size { width: side, height: side }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.width, self.height)
    }
}

/// How many tiles an image is cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Splits {
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Splits {
    pub(super) const NONE: Self = Splits { rows: 0, columns: 0 };

    /// All of them together.
    pub(super) fn size(self, tile: Size) -> Size {
        Size { width: self.columns * tile.width, height: self.rows * tile.height }
    }
}

/// The longest side over the shortest that Qwen's processors take.
const MAX_RATIO: f64 = 200.0;

/// Pixels of an image, all its frames together, that `smart_resize` keeps within bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Areas {
    pub(super) min_pixels: usize,
    pub(super) max_pixels: usize,
    /// How many frames are counted: 1 by Qwen, those of a patch by GLM-4.1V.
    pub(super) num_frames: usize,
    /// Of images with a small side.
    pub(super) small: SmallSides,
}

/// What becomes of images with a side that is small, of itself or beside the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SmallSides {
    /// One side may be so many times the other (Qwen).
    Bounded,
    /// The same, once what is smaller than a token has grown to one (GLM-4.1V).
    Grown,
    /// The same of heights and then of widths, to the nearest pixel (PaddleOCR-VL).
    GrownInTurn,
    /// A side is a token at least (LFM2-VL).
    Raised,
}

/// When and how an image is cut into tiles beside the whole one (LFM2-VL).
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Crops {
    /// Of the whole image.
    pub(super) areas: Areas,
    /// Pixels of a tile's side.
    pub(super) tile: usize,
    /// Least and most tiles; None: it is never cut.
    pub(super) num_tiles: Option<(usize, usize)>,
    /// An image of so many times the largest area is cut.
    pub(super) tolerance: f64,
}

impl Crops {
    /// The tiles of an image: `_is_image_too_large` of transformers, and as many as InternVL has.
    pub(super) fn splits(&self, size: Size, token_side: usize) -> Splits {
        let near = |side: usize| {
            let step = token_side as f64;
            ((side as f64 / step).round_ties_even() * step).max(1.0)
        };
        let most = self.areas.max_pixels as f64 * self.tolerance;
        let tile = Size { width: self.tile, height: self.tile };
        match self.num_tiles {
            Some(bounds) if near(size.width) * near(size.height) > most => grid(size, tile, bounds),
            _ => Splits::NONE,
        }
    }
}

/// `smart_resize` of Qwen, of GLM-4.1V, of PaddleOCR-VL and of LFM2-VL: both sides are multiples of
/// `factor`, the area is within the bounds.
pub(super) fn smart(size: Size, factor: usize, areas: &Areas) -> Result<Size, MediaError> {
    let &Areas { min_pixels, max_pixels, num_frames, small } = areas;
    let (mut width, mut height) = (size.width as f64, size.height as f64);
    let step = factor as f64;
    if small == SmallSides::Grown && width.min(height) < step {
        let scale = (step / height).max(step / width);
        (width, height) = ((width * scale).trunc(), (height * scale).trunc());
    }
    if small == SmallSides::GrownInTurn {
        let grown = |side: f64, other: f64| (side * step / other).round_ties_even();
        (width, height) =
            if height < step { (grown(width, height), step) } else { (width, height) };
        (width, height) = if width < step { (step, grown(height, width)) } else { (width, height) };
    }
    if small != SmallSides::Raised && width.max(height) / width.min(height) > MAX_RATIO {
        return Err(MediaError::unsupported(format!(
            "the image is {size} pixels, and one side may be {MAX_RATIO} times the other; help: \
             cut it"
        )));
    }
    let sides = |of: &dyn Fn(f64) -> f64| Size {
        width: (of(width) * step) as usize,
        height: (of(height) * step) as usize,
    };
    let at_least = |side: usize| side.max(factor);
    let raised =
        |Size { width, height }: Size| Size { width: at_least(width), height: at_least(height) };
    let near = sides(&|side| (side / step).round_ties_even());
    let near = if small == SmallSides::Raised { raised(near) } else { near };
    let area = num_frames * near.width * near.height;
    let pixels = num_frames as f64 * height * width;
    if area > max_pixels {
        let beta = (pixels / max_pixels as f64).sqrt();
        return Ok(raised(sides(&|side| (side / beta / step).floor())));
    }
    if area < min_pixels {
        let beta = (min_pixels as f64 / pixels).sqrt();
        return Ok(sides(&|side| (side * beta / step).ceil()));
    }
    Ok(near)
}

/// The shorter side becomes `shortest`.
pub(super) fn shortest_edge(size: Size, shortest: usize) -> Size {
    let (short, long) = (size.width.min(size.height), size.width.max(size.height));
    let long = (shortest as f64 * long as f64 / short as f64) as usize;
    match size.width <= size.height {
        true => Size { width: shortest, height: long },
        false => Size { width: long, height: shortest },
    }
}

/// The longer side becomes `longest`, the other one is at least `min_side`.
pub(super) fn longest_side(size: Size, longest: usize, min_side: usize) -> Size {
    let scale = longest as f64 / size.width.max(size.height) as f64;
    let scaled = |side: usize| {
        let side = (side as f64 * scale).round_ties_even() as usize;
        side.clamp(min_side, longest)
    };
    Size { width: scaled(size.width), height: scaled(size.height) }
}

/// Sides that no image of Idefics 3 exceeds.
const MAX_SIDE: usize = 4096;

/// The longer side becomes `longest`, the other one an even number.
pub(super) fn longest_edge(size: Size, longest: usize) -> Size {
    let aspect = size.width as f64 / size.height as f64;
    let even = |side: f64| {
        let side = side as usize;
        side + side % 2
    };
    let (mut width, mut height) = match size.width >= size.height {
        true => (longest, even(longest as f64 / aspect)),
        false => (even(longest as f64 * aspect), longest),
    };
    (width, height) = (width.max(1), height.max(1));
    let aspect = width as f64 / height as f64;
    if width >= height && width > MAX_SIDE {
        (width, height) = (MAX_SIDE, (MAX_SIDE as f64 / aspect) as usize);
    } else if height > width && height > MAX_SIDE {
        (width, height) = ((MAX_SIDE as f64 * aspect) as usize, MAX_SIDE);
    }
    Size { width: width.max(1), height: height.max(1) }
}

/// Tiles of an image that is widened to whole ones; none where it is one tile itself.
pub(super) fn splits(size: Size, tile: usize) -> Splits {
    let aspect = size.width as f64 / size.height as f64;
    let (columns, rows) = match size.width >= size.height {
        true => {
            let columns = size.width.div_ceil(tile);
            let height = ((columns * tile) as f64 / aspect) as usize;
            (columns, height.div_ceil(tile))
        }
        false => {
            let rows = size.height.div_ceil(tile);
            let width = ((rows * tile) as f64 * aspect) as usize;
            (width.div_ceil(tile), rows)
        }
    };
    match (rows, columns) {
        (0..=1, 0..=1) => Splits::NONE,
        _ => Splits { rows, columns },
    }
}

/// Rows and columns of tiles whose shape is nearest to an image's, `get_optimal_tiled_canvas` of
/// transformers; none where that is one tile. Of grids that are as near, one of more tiles is taken
/// if it has less than twice the image's area.
pub(super) fn grid(size: Size, tile: Size, (min, max): (usize, usize)) -> Splits {
    let aspect = size.width as f64 / size.height as f64;
    let area = (size.width * size.height) as f64;
    let of_tiles = |num: usize| {
        (1..=num)
            .filter(move |columns| num.is_multiple_of(*columns))
            .map(move |columns| (columns, num))
    };
    let (mut best, mut nearest) = (Splits { rows: 1, columns: 1 }, f64::INFINITY);
    for (columns, num) in (min..=max).flat_map(of_tiles) {
        let rows = num / columns;
        let distance = (aspect - columns as f64 / rows as f64).abs();
        let is_small = || area > 0.5 * tile.width as f64 * tile.height as f64 * num as f64;
        if distance < nearest || (distance == nearest && is_small()) {
            (best, nearest) = (Splits { rows, columns }, distance);
        }
    }
    match best {
        Splits { rows: 1, columns: 1 } => Splits::NONE,
        _ => best,
    }
}

/// Rows and columns of tiles that an image fits into by the least scale of at least 1, or else by
/// the largest: `get_optimal_tiled_canvas` of Cohere 2 Vision in transformers, which reads the
/// height of a tile for its width too. None where that is one tile.
pub(super) fn least_scale(size: Size, tile: Size, max: usize) -> Splits {
    let grids =
        (1..=max).flat_map(|columns| (1..=max / columns).map(move |rows| Splits { rows, columns }));
    let mut grids: Vec<_> = grids.collect();
    grids.sort_by_key(|grid| grid.rows * grid.columns);
    let scale = |grid: &Splits| {
        let of = |tiles: usize, side: usize| (tiles * tile.height) as f64 / side as f64;
        of(grid.columns, size.width).min(of(grid.rows, size.height))
    };
    let is_larger = |grid: &Splits| scale(grid) >= 1.0;
    // The first of equal ones.
    let best = match grids.iter().any(is_larger) {
        true => {
            grids.iter().filter(|grid| is_larger(grid)).min_by(|a, b| scale(a).total_cmp(&scale(b)))
        }
        false => grids.iter().rev().max_by(|a, b| scale(a).total_cmp(&scale(b))),
    };
    match best {
        None | Some(Splits { rows: 1, columns: 1 }) => Splits::NONE,
        Some(best) => *best,
    }
}

/// The grid of fewest tiles that show nine tenths of an image in full size, the one that shows most
/// of equal ones; or else the one that shows most: `get_min_tile_covering_grid` of transformers,
/// which takes the rows that it tries for columns. None where that is one tile.
pub(super) fn covering(size: Size, tile: Size, max: usize) -> Splits {
    const THRESHOLD: f64 = 0.9;
    let side = tile.height;
    let shown = |width: usize, height: usize| {
        let (long, short) = (width.max(height) as f64, width.min(height) as f64);
        match long > side as f64 {
            true => side as f64 * (short / long * side as f64),
            false => long * short,
        }
    };
    // Parts of a side, of which the last has what is left.
    let parts = |of: usize, num: usize| {
        let part = of / num;
        (0..num).map(move |at| if at + 1 == num { of - at * part } else { part })
    };
    let area = (size.width * size.height) as f64;
    let ratio = |first: usize, second: usize| {
        let rows = parts(size.height, first);
        let of_row = |height| parts(size.width, second).map(move |width| (width, height));
        rows.flat_map(of_row).map(|(width, height)| shown(width, height)).sum::<f64>() / area
    };
    let grids = (1..=max).flat_map(|first| (1..=max / first).map(move |second| (first, second)));
    let mut grids: Vec<_> =
        grids.map(|(first, second)| (first, second, ratio(first, second))).collect();
    grids.sort_by_key(|(first, second, _)| first * second);
    let num = |grid: &(usize, usize, f64)| grid.0 * grid.1;
    let covers = |grid: &&(usize, usize, f64)| grid.2 > THRESHOLD;
    let best = match grids.iter().find(covers) {
        Some(least) => {
            let alike = grids.iter().filter(covers).filter(|grid| num(grid) == num(least));
            alike.rev().max_by(|a, b| a.2.total_cmp(&b.2))
        }
        None => grids.iter().rev().max_by(|a, b| a.2.total_cmp(&b.2)),
    };
    match best {
        None | Some((1, 1, _)) => Splits::NONE,
        Some(&(columns, rows, _)) => Splits { rows, columns },
    }
}

/// Rows and columns of tiles that overlap, where each side of an image has so many pixels of each
/// tile, and margins besides: `select_tiling` of Molmo 2 in transformers, in f32 as there. An image
/// that is smaller than the margins has sides below 0 there too.
pub(super) fn overlapping(
    size: Size,
    (window, margin): (usize, usize),
    max_tiles: usize,
) -> Splits {
    let side = |pixels: usize| (pixels as i64 - margin as i64) as f32;
    let scale = |grid: &Splits| {
        let of = |tiles: usize, pixels: usize| (tiles * window) as f32 / side(pixels);
        of(grid.rows, size.height).min(of(grid.columns, size.width))
    };
    let grids = (1..=max_tiles)
        .flat_map(|rows| (1..=max_tiles / rows).map(move |columns| Splits { rows, columns }));
    let mut grids: Vec<_> = grids.collect();
    grids.sort_by_key(|grid| (grid.rows * grid.columns, grid.rows));
    // The first of equal ones.
    let is_larger = |grid: &Splits| scale(grid) >= 1.0;
    let best = match grids.iter().any(is_larger) {
        true => {
            grids.iter().filter(|grid| is_larger(grid)).min_by(|a, b| scale(a).total_cmp(&scale(b)))
        }
        false => grids.iter().rev().max_by(|a, b| scale(a).total_cmp(&scale(b))),
    };
    *best.expect("one tile at least")
}

/// The grid that shows most pixels of an image without another shape, and of these the one with the
/// least beside it: `select_best_resolution` of transformers.
pub(super) fn any_res(size: Size, tile: usize, grids: &[Splits]) -> Splits {
    let area = size.width * size.height;
    let (mut best, mut most, mut least) = (Splits { rows: 1, columns: 1 }, 0, usize::MAX);
    for grid in grids {
        let Size { width, height } = grid.size(Size { width: tile, height: tile });
        let scale = (width as f64 / size.width as f64).min(height as f64 / size.height as f64);
        let scaled = |side: usize| (side as f64 * scale) as usize;
        let shown = (scaled(size.width) * scaled(size.height)).min(area);
        let wasted = width * height - shown;
        if shown > most || (shown == most && wasted < least) {
            (best, most, least) = (*grid, shown, wasted);
        }
    }
    best
}

/// The largest size of an image's shape within another, rounded up: `get_patch_output_size` of
/// transformers.
pub(super) fn within(size: Size, bounds: Size) -> Size {
    let (width, height) = (size.width as f64, size.height as f64);
    let (by_width, by_height) = (bounds.width as f64 / width, bounds.height as f64 / height);
    match by_width < by_height {
        true => {
            let height = ((height * by_width).ceil() as usize).min(bounds.height);
            Size { width: bounds.width, height }
        }
        false => {
            let width = ((width * by_height).ceil() as usize).min(bounds.width);
            Size { width, height: bounds.height }
        }
    }
}

/// The largest size of an image's shape within another: `ImageOps.contain` of Pillow.
pub(super) fn contained(size: Size, bounds: Size) -> Result<Size, MediaError> {
    let (width, height) = (size.width as f64, size.height as f64);
    let (most, high) = (bounds.width as f64, bounds.height as f64);
    let mut found = bounds;
    match (width / height).total_cmp(&(most / high)) {
        Ordering::Greater => found.height = (height / width * most).round_ties_even() as usize,
        Ordering::Less => found.width = (width / height * high).round_ties_even() as usize,
        Ordering::Equal => {}
    }
    match found.width > 0 && found.height > 0 {
        true => Ok(found),
        false => Err(MediaError::unsupported(format!(
            "the image of {size} pixels would have no pixel in {bounds}; help: cut it"
        ))),
    }
}

/// What of a picture of so many tokens an image of this size is, the same on both sides of what is
/// beside it: `unpad_image` of transformers.
pub(super) fn unpadded(size: Size, tokens: Size) -> Middle {
    let (width, height) = (size.width as f64, size.height as f64);
    let (columns, rows) = (tokens.width as f64, tokens.height as f64);
    // `int(round(side, 7))`
    let whole = |side: f64| match (side - side.round()).abs() < 5e-8 {
        true => side.round() as usize,
        false => side as usize,
    };
    let (top, left) = match width / height > columns / rows {
        true => ((tokens.height - whole(height * (columns / width))) / 2, 0),
        false => (0, (tokens.width - whole(width * (rows / height))) / 2),
    };
    let (rows, columns) = (tokens.height - 2 * top, tokens.width - 2 * left);
    Middle { top, rows, left, columns, shrunk: None, lines: Lines::OfMiddle }
}

/// Rows and columns of about so many tokens in the shape of a picture that has more, as
/// `pack_image_features` of LLaVA-OneVision in transformers has them.
pub(super) fn shrunk(middle: &Middle, most: usize) -> Option<[usize; 2]> {
    let ratio = ((middle.rows * middle.columns) as f64 / most as f64).sqrt();
    // `side // ratio`
    let shrunk = |side: usize| {
        let side = side as f64;
        (((side - side % ratio) / ratio).round() as usize).max(1)
    };
    (ratio > 1.1).then(|| [middle.rows, middle.columns].map(shrunk))
}

/// The two places that a place of a row or column that is made smaller is of, with their shares:
/// in f32, with the middles of places at the same share of the way.
pub(super) fn between(at: usize, (size, shrunk): (usize, usize)) -> [(usize, f32); 2] {
    let place = (size as f32 / shrunk as f32 * (at as f32 + 0.5) - 0.5).max(0.0);
    let first = (place as usize).min(size - 1);
    let share = (place - first as f32).clamp(0.0, 1.0);
    [(first, 1.0 - share), ((first + 1).min(size - 1), share)]
}

/// The largest whole tokens in the shape of the image that so many have room for,
/// `get_aspect_ratio_preserving_size` of transformers.
pub(super) fn budget(size: Size, token_side: usize, max_tokens: usize) -> Result<Size, MediaError> {
    let (width, height) = (size.width as f64, size.height as f64);
    let side = token_side as f64;
    let num_pixels = (max_tokens * token_side * token_side) as f64;
    let factor = (num_pixels / (height * width)).sqrt();
    let tokens = |length: f64| (factor * length / side).floor() as usize;
    let (columns, rows) = match (tokens(width), tokens(height)) {
        // Neither can be: so many tokens are at least one.
        (columns, 0) if columns > 0 => (((width / height).floor() as usize).min(max_tokens), 1),
        (0, rows) if rows > 0 => (1, ((height / width).floor() as usize).min(max_tokens)),
        both => both,
    };
    match columns * rows {
        0 => Err(MediaError::unsupported(format!("the image of {size} pixels has no token"))),
        num if num > max_tokens => Err(MediaError::unsupported(format!(
            "the image of {size} pixels would have {num} tokens, and {max_tokens} is the limit"
        ))),
        _ => Ok(Size { width: columns * token_side, height: rows * token_side }),
    }
}

/// The whole tokens, each side rounded up or down, whose shape is nearest to the image's:
/// `smart_resize` of Muse Glimmer in transformers. Of grids that are as near, the first in the
/// order in which a set of Python has them.
pub(super) fn near_grid(size: Size, token_side: usize, max_tokens: usize) -> Size {
    let (width, height, side) = (size.width as f64, size.height as f64, token_side as f64);
    let (mut rows, mut columns) = (height / side, width / side);
    if rows * columns > max_tokens as f64 {
        let ratio = columns / rows;
        rows = (max_tokens as f64 / ratio).powf(0.5);
        columns = rows * ratio;
    }
    let of_rows = [rows.floor(), rows.ceil()];
    let grids = of_rows.into_iter().flat_map(|rows| {
        [columns.floor(), columns.ceil()].map(|columns| [rows as u64, columns as u64])
    });
    let fits = |[rows, columns]: &[u64; 2]| {
        (1..=max_tokens as u64).contains(&rows.saturating_mul(*columns))
    };
    let distance =
        |[rows, columns]: &[u64; 2]| (*rows as f64 / *columns as f64 - height / width).abs();
    let grids = in_order_of_a_set(grids).into_iter().filter(fits);
    let nearest = grids.min_by(|a, b| distance(a).total_cmp(&distance(b)));
    let whole = |tokens: f64| (tokens.round_ties_even() as u64).max(1);
    let [rows, columns] = nearest.unwrap_or([whole(rows), whole(columns)]);
    Size { width: columns as usize * token_side, height: rows as usize * token_side }
}

/// At most four pairs of small numbers, each once, in the order of a set of CPython that they were
/// put into one after the other.
fn in_order_of_a_set(pairs: impl Iterator<Item = [u64; 2]>) -> Vec<[u64; 2]> {
    let mut slots: [Option<[u64; 2]>; 8] = [None; 8];
    for pair in pairs {
        let hash = hash_of_tuple(pair);
        let (mut slot, mut perturb) = ((hash & 7) as usize, hash);
        while slots[slot].is_some_and(|other| other != pair) {
            perturb >>= 5;
            slot = (slot * 5 + 1 + (perturb & 7) as usize) & 7;
        }
        slots[slot] = Some(pair);
    }
    slots.into_iter().flatten().collect()
}

/// `tuplehash` of CPython from 3.8 on, of two numbers that are their own hashes.
fn hash_of_tuple(pair: [u64; 2]) -> u64 {
    const PRIMES: [u64; 3] =
        [11_400_714_785_074_694_791, 14_029_467_366_897_019_727, 2_870_177_450_012_600_261];
    let step = |hash: u64, lane: u64| {
        let hash = hash.wrapping_add(lane.wrapping_mul(PRIMES[1]));
        hash.rotate_left(31).wrapping_mul(PRIMES[0])
    };
    let hash = pair.into_iter().fold(PRIMES[2], step);
    hash.wrapping_add(2 ^ (PRIMES[2] ^ 3_527_539))
}

/// Sides rounded up to whole patches, at the largest scale that so many patches have room for: the
/// bisection of `get_image_size_for_max_num_patches` of transformers.
pub(super) fn patches(size: Size, side: usize, max_patches: usize) -> Size {
    const EPS: f64 = 1e-5;
    let scaled = |scale: f64| {
        let whole = |length: usize| (length as f64 * scale / side as f64).ceil().max(1.0) as usize;
        Size { width: whole(size.width), height: whole(size.height) }
    };
    let (mut low, mut high) = (EPS / 10.0, 100.0);
    while high - low >= EPS {
        let scale = (low + high) / 2.0;
        let Size { width, height } = scaled(scale);
        *(if width * height <= max_patches { &mut low } else { &mut high }) = scale;
    }
    let Size { width, height } = scaled(low);
    Size { width: width * side, height: height * side }
}

/// Neither side exceeds its bound, and both are rounded up to whole tokens.
pub(super) fn bounded(size: Size, bounds: Size, token_side: usize) -> Size {
    let (width, height) = (size.width as f64, size.height as f64);
    let ratio = (height / bounds.height as f64).max(width / bounds.width as f64);
    let shrunk = |side: usize| match ratio > 1.0 {
        true => (side as f64 / ratio).floor() as usize,
        false => side,
    };
    // A side of 0 is one token, as (side - 1) // n + 1 is 0 there, and torch refuses it.
    let whole = |side: usize| shrunk(side).max(1).div_ceil(token_side) * token_side;
    Size { width: whole(size.width), height: whole(size.height) }
}
