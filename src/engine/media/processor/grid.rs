//! `Grid`: tiles of one size beside the whole image, or behind it, and which grid of them it has.

use super::config::{Asked, ConfigError, MAX_TILE_SIDE, MAX_TILES, both_sides};
use super::keys::Keys;
use super::sizes::{self, Size, Splits};
use super::{Side, Sizing};

/// Which grid of tiles an image has, and of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    min_tiles: usize,
    max_tiles: usize,
    choice: GridChoice,
}

/// Which of these grids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GridChoice {
    /// The one of the nearest shape.
    Shape,
    /// The one that it fits into by the least scale.
    LeastScale,
    /// The one of fewest tiles that show most of it in full size.
    Covering,
}

impl Grid {
    /// Rows and columns of the tiles of an image.
    pub(super) fn splits(self, size: Size, tile: Size) -> Splits {
        let Self { min_tiles, max_tiles, choice } = self;
        match choice {
            GridChoice::Shape => sizes::grid(size, tile, (min_tiles, max_tiles)),
            GridChoice::LeastScale => sizes::least_scale(size, tile, max_tiles),
            GridChoice::Covering => sizes::covering(size, tile, max_tiles),
        }
    }
}

/// Tiles beside the whole image, or the whole image alone.
pub(super) fn read(
    keys: &mut Keys<'_>,
    size: Option<Asked>,
    choice: GridChoice,
) -> Result<Sizing, ConfigError> {
    // Some whole processors say so of their images, whatever these' own says.
    let whole = keys.text("processor_class")?;
    const SPLITS: [&str; 3] = ["AyaVisionProcessor", "InternVLProcessor", "QianfanOCRProcessor"];
    let splits = whole.is_some_and(|whole| SPLITS.contains(&whole));
    // And another one that they are not.
    let is_whole = whole == Some("GotOcr2Processor");
    let is_asked = keys.flag("crop_to_patches", choice == GridChoice::LeastScale)?;
    let is_split = splits || is_asked && !is_whole;
    let (tile, grid) = tiles_of_grids(keys, size, choice)?;
    Ok(match is_split {
        true => Sizing::Grid { tile, grid },
        false => Sizing::Fixed { size: Some(Side::Both(tile)), crop: None, square: None },
    })
}

/// Tiles behind the whole image.
pub(super) fn read_behind(keys: &mut Keys<'_>, size: Option<Asked>) -> Result<Sizing, ConfigError> {
    let is_split = keys.flag("crop_to_patches", false)?;
    let covers = keys.flag("use_covering_area_grid", true)?;
    let choice = if covers { GridChoice::Covering } else { GridChoice::Shape };
    if keys.flag("do_center_crop", false)? {
        return Err(ConfigError::new("`do_center_crop` is true, which is not read here"));
    }
    let (tile, grid) = tiles_of_grids(keys, size, choice)?;
    if tile.width != tile.height {
        return Err(ConfigError::new(format!("`size` of {tile} is no square, which tiles are")));
    }
    Ok(Sizing::Behind { tile, grid: (is_split && grid.max_tiles > 1).then_some(grid) })
}

/// The size of a tile, and how many there are.
fn tiles_of_grids(
    keys: &mut Keys<'_>,
    size: Option<Asked>,
    choice: GridChoice,
) -> Result<(Size, Grid), ConfigError> {
    let min_tiles = keys.count("min_patches")?.unwrap_or(1);
    let max_tiles = keys.count("max_patches")?.unwrap_or(12);
    let tile = both_sides(size)?;
    if tile.width.max(tile.height) > MAX_TILE_SIDE {
        return Err(ConfigError::new(format!("`size` of {tile} is no tile's")));
    }
    if !(1..=MAX_TILES).contains(&max_tiles) || !(1..=max_tiles).contains(&min_tiles) {
        return Err(ConfigError::new(format!(
            "`min_patches` of {min_tiles} to `max_patches` of {max_tiles} is no number of tiles"
        )));
    }
    Ok((tile, Grid { min_tiles, max_tiles, choice }))
}
