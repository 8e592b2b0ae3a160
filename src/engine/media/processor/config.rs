//! Reads `preprocessor_config.json`, or the object `image_processor` of `processor_config.json`.

use std::fmt;

use serde_json::Value;

use super::families::{DEFAULT_TILE, DefaultSize, FAMILIES, Family, Kind, Squares};
use super::filled::Filled;
use super::keys::{Keys, Sides};
use super::sizes::{Areas, Crops, Size, SmallSides, Splits};
use super::{GridChoice, ImageProcessor, Normalization, PatchOrder, Side, Sizing, Tower};
use super::{grid, joined, padded};
use crate::resize::{Backend, Filter};
use vllm_batch_base::layers::MAX_SOFT_TOKENS;

/// Why a model's processor of media cannot be used. It does not name the file: the caller knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl ConfigError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        ConfigError(message.into())
    }

    /// Of images that keep their size, where that is not read.
    pub(super) fn not_resized() -> Self {
        ConfigError::new("`do_resize` is false, which is not read here")
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl std::error::Error for ConfigError {}

impl ImageProcessor {
    /// The processor that a configuration describes, before a tower.
    ///
    /// # Errors
    ///
    /// If the processor is of no known family, or a key of it is not read.
    pub fn from_config(
        config: &Value,
        tower: Tower,
        backend: Backend,
    ) -> Result<Self, ConfigError> {
        let mut keys = Keys::new(config)?;
        let family = family(&mut keys)?;
        if family.kind == Kind::FilledByChunk {
            let inner = keys.value("media_proc_cfg");
            let inner = inner.ok_or_else(|| ConfigError::new("`media_proc_cfg` is missing"))?;
            refuse_unread(&mut keys)?;
            keys = Keys::new(inner)?;
        }
        let backend = match family.kind {
            // Their code has no other.
            Kind::FilledByChunk | Kind::FilledOrRefused | Kind::PaddedByPillow => Backend::Pillow,
            _ => backend,
        };
        let size = size(&mut keys, family)?;
        let size = keys.flag("do_resize", true)?.then_some(size);
        let normalization = normalization(&mut keys, family, backend)?;
        let mut processor = ImageProcessor {
            sizing: Sizing::Bounded { size: None },
            filter: filter(&mut keys, family)?,
            backend,
            normalization,
            tower,
            order: PatchOrder::Rows,
            num_frames: 1,
        };
        processor.sizing = match family.kind {
            Kind::Smart | Kind::SmartOfFrames | Kind::SmartOfOne => {
                let default = if family.kind == Kind::SmartOfOne { 1 } else { 2 };
                processor.num_frames = keys.count("temporal_patch_size")?.unwrap_or(default);
                processor.order = PatchOrder::Merged;
                smart(&mut keys, size, (tower, family.kind, processor.num_frames))?
            }
            Kind::Crops => crops(&mut keys, tower)?,
            Kind::Fixed => fixed(&mut keys, family, size)?,
            Kind::Grid => grid::read(&mut keys, size, GridChoice::Shape)?,
            Kind::Canvas => canvas(&mut keys, size, tower)?,
            Kind::AnyRes => any_res(&mut keys, family, size)?,
            Kind::Tiles => tiles(&mut keys, size, tower)?,
            Kind::Bounded => bounded(&mut keys, size, tower)?,
            Kind::Budget => budget(&mut keys, size, tower)?,
            Kind::Patches => patches(&mut keys, size, tower)?,
            Kind::NearGrid => {
                processor.num_frames = keys.count("temporal_patch_size")?.unwrap_or(2);
                processor.order = PatchOrder::Merged;
                near_grid(&mut keys, size, tower)?
            }
            Kind::Views => views(&mut keys, family)?,
            Kind::Letterbox => letterbox(&mut keys, family, size)?,
            Kind::Filled | Kind::FilledByChunk | Kind::FilledOrRefused => {
                Sizing::Filled(Filled::read(&mut keys, (family.kind, size), tower)?)
            }
            Kind::Joined => joined::read(&mut keys, size, (tower, processor.filter))?,
            Kind::Covering => grid::read_behind(&mut keys, size)?,
            Kind::Padded | Kind::PaddedByPillow => {
                padded::read(&mut keys, size, (tower, processor.filter))?
            }
        };
        if family.kind != Kind::Fixed {
            keys.flag("do_pad", false)?;
        }
        refuse_unread(&mut keys)?;
        Ok(processor)
    }
}

fn family(keys: &mut Keys<'_>) -> Result<&'static Family, ConfigError> {
    // What processors were called before they were processors of images.
    let old = keys.text("feature_extractor_type")?;
    let name = keys.text("image_processor_type")?.or(old);
    // Of a class in a model's own code.
    let own = keys.value("auto_map").and_then(|map| map["AutoImageProcessor"].as_str());
    let name = name.or(own.and_then(|path| path.rsplit('.').next()));
    let name = name.ok_or_else(|| ConfigError::new("`image_processor_type` is missing"))?;
    let bare = ["Fast", "Pil"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name);
    let bare = &bare.replace("FeatureExtractor", "ImageProcessor");
    let family = FAMILIES.iter().find(|family| family.names.contains(&bare.as_str()));
    family.ok_or_else(|| {
        let known: Vec<&str> = FAMILIES.iter().flat_map(|family| family.names).copied().collect();
        ConfigError::new(format!(
            "`image_processor_type` {name} is not known; help: known are {}",
            known.join(", ")
        ))
    })
}

/// The size that is asked for, of any kind.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    Areas(usize, usize),
    Side(Side),
    Longest(usize),
}

/// Both sides of a size.
///
/// # Errors
/// Images keep theirs.
pub(super) fn both_sides(size: Option<Asked>) -> Result<Size, ConfigError> {
    match size {
        Some(Asked::Side(Side::Both(size))) => Ok(size),
        _ => Err(ConfigError::not_resized()),
    }
}

fn size(keys: &mut Keys<'_>, family: &Family) -> Result<Asked, ConfigError> {
    let is_square = matches!(family.size, DefaultSize::AlwaysSquare(_));
    let is_square = keys.flag("default_to_square", is_square)?;
    let single: &[&str] = match (family.kind, is_square) {
        (Kind::Fixed | Kind::AnyRes, false) => &["shortest_edge"],
        _ => &["width", "height"],
    };
    let sides = keys.sides("size", single)?;
    let square = |side| Side::Both(Size { width: side, height: side });
    let default = match family.size {
        DefaultSize::Areas(min, max) => Asked::Areas(min, max),
        DefaultSize::Square(side) | DefaultSize::AlwaysSquare(side) => Asked::Side(square(side)),
        DefaultSize::Shortest(side) => Asked::Side(Side::Shortest(side)),
        DefaultSize::Longest(side) => Asked::Longest(side),
    };
    let Some(sides) = sides else { return Ok(default) };
    let asked = match family.kind {
        Kind::Smart | Kind::SmartOfFrames | Kind::SmartOfOne => {
            sides.only(["shortest_edge", "longest_edge"]).map(|[min, max]| Asked::Areas(min, max))
        }
        Kind::Fixed | Kind::AnyRes => {
            let shortest = sides.only(["shortest_edge"]).map(|[side]| Side::Shortest(side));
            sides.both().map(Side::Both).or(shortest).map(Asked::Side)
        }
        Kind::Grid
        | Kind::Canvas
        | Kind::Crops
        | Kind::Letterbox
        | Kind::Joined
        | Kind::Covering
        | Kind::Padded
        | Kind::PaddedByPillow => sides.both().map(|size| Asked::Side(Side::Both(size))),
        Kind::Filled => {
            let sides = sides.only(["max_width", "max_height"]);
            sides.map(|[width, height]| Asked::Side(Side::Both(Size { width, height })))
        }
        // They have none.
        Kind::Budget
        | Kind::Patches
        | Kind::NearGrid
        | Kind::Views
        | Kind::FilledByChunk
        | Kind::FilledOrRefused => None,
        Kind::Tiles => sides.only(["longest_edge"]).map(|[side]| Asked::Longest(side)),
        Kind::Bounded => {
            let longest = sides.only(["longest_edge"]).map(|[side]| Asked::Longest(side));
            longest.or(sides.both().map(|size| Asked::Side(Side::Both(size))))
        }
    };
    asked.ok_or_else(|| strange_sides("size", &sides))
}

fn strange_sides(key: &str, sides: &Sides) -> ConfigError {
    ConfigError::new(format!("`{key}` has {}, which this processor does not read", sides.names()))
}

fn normalization(
    keys: &mut Keys<'_>,
    family: &Family,
    backend: Backend,
) -> Result<Normalization, ConfigError> {
    let rescale_factor = keys.number("rescale_factor")?.unwrap_or(1.0 / 255.0);
    let rescale_factor = keys.flag("do_rescale", true)?.then_some(rescale_factor);
    let (mean, std) = family.mean_and_std;
    // What its model does with what it is given.
    let is_centred = family.kind == Kind::Budget;
    let mean = keys.bands("image_mean")?.unwrap_or(mean);
    let std = keys.bands("image_std")?.unwrap_or(std);
    let mean_and_std = keys.flag("do_normalize", !is_centred)?.then_some((mean, std));
    Ok(Normalization { rescale_factor, mean_and_std, is_centred, backend })
}

/// Pillow's numbers of filters.
fn filter(keys: &mut Keys<'_>, family: &Family) -> Result<Filter, ConfigError> {
    match keys.count("resample")? {
        None => Ok(family.filter),
        Some(1) => Ok(Filter::Lanczos),
        Some(2) => Ok(Filter::Bilinear),
        Some(3) => Ok(Filter::Bicubic),
        Some(other) => Err(ConfigError::new(format!("`resample` {other} is not read"))),
    }
}

/// Of one of the three kinds, with so many frames of a patch.
fn smart(
    keys: &mut Keys<'_>,
    size: Option<Asked>,
    (tower, kind, num_frames): (Tower, Kind, usize),
) -> Result<Sizing, ConfigError> {
    same(keys, "patch_size", tower.patch_size)?;
    same(keys, "merge_size", tower.merge_size)?;
    let (min, max) = match kind {
        Kind::SmartOfFrames => (None, None),
        _ => (keys.count("min_pixels")?, keys.count("max_pixels")?),
    };
    let Some(Asked::Areas(min_size, max_size)) = size else {
        return Err(ConfigError::not_resized());
    };
    let (min_pixels, max_pixels) = (min.unwrap_or(min_size), max.unwrap_or(max_size));
    let (num_frames, small) = match kind {
        Kind::SmartOfFrames => (num_frames, SmallSides::Grown),
        Kind::SmartOfOne => (1, SmallSides::GrownInTurn),
        _ => (1, SmallSides::Bounded),
    };
    match min_pixels <= max_pixels {
        true => Ok(Sizing::Smart(Areas { min_pixels, max_pixels, num_frames, small })),
        false => Err(ConfigError::new("`min_pixels` is more than `max_pixels`")),
    }
}

/// A number that the model's own configuration has too.
pub(super) fn same(keys: &mut Keys<'_>, key: &'static str, own: usize) -> Result<(), ConfigError> {
    same_number(key, keys.count(key)?, own)
}

/// The same of what was read under a key.
pub(super) fn same_number(key: &str, found: Option<usize>, own: usize) -> Result<(), ConfigError> {
    match found {
        Some(number) if number != own => Err(ConfigError::new(format!(
            "`{key}` is {number}, and {own} in the model's config.json"
        ))),
        _ => Ok(()),
    }
}

fn fixed(keys: &mut Keys<'_>, family: &Family, size: Option<Asked>) -> Result<Sizing, ConfigError> {
    let size = match size {
        Some(Asked::Side(side)) => Some(side),
        _ => None,
    };
    let default = family.crop.map(|side| Size { width: side, height: side });
    let crop = match keys.sides("crop_size", &["width", "height"])? {
        Some(sides) => Some(sides.both().ok_or_else(|| strange_sides("crop_size", &sides))?),
        None => default,
    };
    let crop = match (keys.flag("do_center_crop", family.crop.is_some())?, crop) {
        (true, None) => return Err(ConfigError::new("`do_center_crop` without `crop_size`")),
        (is_cropped, crop) => crop.filter(|_| is_cropped),
    };
    let (mean, _) = family.mean_and_std;
    let mean = keys.bands("image_mean")?.unwrap_or(mean);
    let colour = mean.map(|mean| (mean * 255.0) as u8);
    let square = match (family.squares, keys.flag("do_pad", false)?) {
        (Squares::All, true) | (Squares::AmongOthers, _) => Some(colour),
        // There it fills batches up.
        (Squares::None, true) if family.kind == Kind::AnyRes => None,
        (Squares::None, true) => {
            return Err(ConfigError::new("`do_pad` is true, which is not read here"));
        }
        (_, false) => None,
    };
    if keys.flag("do_pan_and_scan", false)? {
        return Err(ConfigError::new("`do_pan_and_scan` is true, which is not read"));
    }
    // What these say is for pan and scan, or counted from the tower's patches.
    for key in [
        "image_seq_length",
        "pan_and_scan_max_num_crops",
        "pan_and_scan_min_crop_size",
        "pan_and_scan_min_ratio_to_activate",
    ] {
        keys.value(key);
    }
    Ok(Sizing::Fixed { size, crop, square })
}

/// Most tiles of an image; their grids are tried one after the other.
pub(super) const MAX_TILES: usize = 1 << 10;
/// Most pixels of the side of such a tile.
pub(super) const MAX_TILE_SIDE: usize = 1 << 14;

fn canvas(keys: &mut Keys<'_>, size: Option<Asked>, tower: Tower) -> Result<Sizing, ConfigError> {
    // Of tokens, not of pixels.
    let given = keys.count("patch_size")?;
    if let (Some(given), Some(Asked::Side(Side::Both(tile)))) = (given, size) {
        let side = tile.width / (tower.patch_size * tower.merge_size);
        if given != side {
            return Err(ConfigError::new(format!(
                "`patch_size` of {given} tokens is not that of tiles, {side}"
            )));
        }
    }
    grid::read(keys, size, GridChoice::LeastScale)
}

/// Grids of tiles where a configuration has none, as heights and widths.
const PINPOINTS: [[usize; 2]; 5] = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]];

fn any_res(
    keys: &mut Keys<'_>,
    family: &Family,
    size: Option<Asked>,
) -> Result<Sizing, ConfigError> {
    let (whole, crop, square) = match fixed(keys, family, size)? {
        Sizing::Fixed { size: Some(Side::Both(size)), crop, square } => (size, crop, square),
        Sizing::Fixed { size: Some(Side::Shortest(side)), crop, square } => {
            (Size { width: side, height: side }, crop, square)
        }
        _ => return Err(ConfigError::not_resized()),
    };
    let tile = whole.width;
    if whole.height != tile || crop.is_some_and(|crop| crop != whole) {
        return Err(ConfigError::new(format!(
            "`size` of {whole} and `crop_size` are not one square, which tiles are"
        )));
    }
    let pinpoints = keys.pairs("image_grid_pinpoints")?.unwrap_or(PINPOINTS.to_vec());
    let grids = grids("image_grid_pinpoints", &pinpoints, tile)?;
    Ok(Sizing::AnyRes { tile, grids, square })
}

/// Grids of tiles of this side, which a key has as heights and widths in pixels.
fn grids(key: &str, sizes: &[[usize; 2]], tile: usize) -> Result<Vec<Splits>, ConfigError> {
    let grid = |&[height, width]: &[usize; 2]| {
        let splits = Splits { rows: height / tile, columns: width / tile };
        let is_whole = splits.rows * tile == height && splits.columns * tile == width;
        let is_sensible = (1..=MAX_TILES).contains(&splits.rows.saturating_mul(splits.columns));
        (is_whole && is_sensible).then_some(splits).ok_or_else(|| {
            ConfigError::new(format!(
                "`{key}` has {height} by {width} pixels, which are no tiles of {tile}"
            ))
        })
    };
    let grids = sizes.iter().map(grid).collect::<Result<Vec<_>, _>>()?;
    match grids.is_empty() || grids.len() > MAX_TILES || tile > MAX_TILE_SIDE {
        true => Err(ConfigError::new(format!("`{key}` has no sensible number of grids"))),
        false => Ok(grids),
    }
}

/// The side of a tile is the first width.
fn views(keys: &mut Keys<'_>, family: &Family) -> Result<Sizing, ConfigError> {
    const KEY: &str = "candidate_resolutions";
    let missing = || ConfigError::new(format!("`{KEY}` is missing"));
    let sizes = keys.pairs(KEY)?.ok_or_else(missing)?;
    let tile = sizes.first().ok_or_else(missing)?[0];
    // Widths come first.
    let sizes: Vec<_> = sizes.into_iter().map(|[width, height]| [height, width]).collect();
    let (mean, _) = family.mean_and_std;
    let colour = mean.map(|mean| (mean * 255.0) as u8);
    Ok(Sizing::Views { tile, grids: grids(KEY, &sizes, tile)?, colour })
}

fn tiles(keys: &mut Keys<'_>, size: Option<Asked>, tower: Tower) -> Result<Sizing, ConfigError> {
    let longest = match size {
        Some(Asked::Longest(longest)) => Some(longest),
        _ => None,
    };
    let tile = match keys.sides("max_image_size", &["longest_edge"])? {
        Some(sides) => {
            let [tile] = sides
                .only(["longest_edge"])
                .ok_or_else(|| strange_sides("max_image_size", &sides))?;
            tile
        }
        None => DEFAULT_TILE,
    };
    if !tile.is_multiple_of(tower.patch_size * tower.merge_size) {
        return Err(ConfigError::new(format!(
            "`max_image_size` of {tile} has no whole number of tokens of {} patches of {} pixels",
            tower.merge_size, tower.patch_size
        )));
    }
    let is_split = keys.flag("do_image_splitting", true)?;
    Ok(Sizing::Tiles { longest, tile, is_split })
}

fn crops(keys: &mut Keys<'_>, tower: Tower) -> Result<Sizing, ConfigError> {
    same(keys, "encoder_patch_size", tower.patch_size)?;
    same(keys, "downsample_factor", tower.merge_size)?;
    // Those of tiles and tokens say it; of answers that no model reads.
    for key in ["max_num_patches", "return_row_col_info"] {
        keys.value(key);
    }
    let token_side = tower.patch_size * tower.merge_size;
    let area = |num_tokens: usize| num_tokens.saturating_mul(token_side * token_side);
    let (min_pixels, max_pixels) = (
        area(keys.count("min_image_tokens")?.unwrap_or(64)),
        area(keys.count("max_image_tokens")?.unwrap_or(256)),
    );
    let tile = keys.count("tile_size")?.unwrap_or(512);
    let (min, max) =
        (keys.count("min_tiles")?.unwrap_or(2), keys.count("max_tiles")?.unwrap_or(10));
    let is_split = keys.flag("do_image_splitting", true)? && (min, max) != (1, 1);
    if !keys.flag("use_thumbnail", true)? {
        return Err(ConfigError::new("`use_thumbnail` is false, which is not read here"));
    }
    let are_tiles = (2..=max).contains(&min) && max <= MAX_TILES;
    if is_split && !(are_tiles && tile.is_multiple_of(token_side) && tile <= MAX_TILE_SIDE) {
        return Err(ConfigError::new(format!(
            "`min_tiles` of {min} to `max_tiles` of {max} of {tile} pixels are no tiles"
        )));
    }
    let tolerance = keys.number("max_pixels_tolerance")?.unwrap_or(2.0);
    let areas = Areas { min_pixels, max_pixels, num_frames: 1, small: SmallSides::Raised };
    match min_pixels <= max_pixels {
        true => Ok(Sizing::Crops(Crops {
            areas,
            tile,
            num_tiles: is_split.then_some((min, max)),
            tolerance,
        })),
        false => Err(ConfigError::new("`min_image_tokens` is more than `max_image_tokens`")),
    }
}

fn bounded(keys: &mut Keys<'_>, size: Option<Asked>, tower: Tower) -> Result<Sizing, ConfigError> {
    // Mistral 3 has its tower's patch here, and its processor multiplies it.
    let token_side = tower.patch_size * tower.merge_size;
    if let Some(sides) = keys.sides("patch_size", &["width", "height"])? {
        let size = sides.both().ok_or_else(|| strange_sides("patch_size", &sides))?;
        let is_own = [tower.patch_size, token_side].contains(&size.width);
        if size.width != size.height || !is_own {
            return Err(ConfigError::new(format!(
                "`patch_size` is {size}, and {} in the model's config.json",
                tower.patch_size
            )));
        }
    }
    if keys.flag("do_center_crop", false)? {
        return Err(ConfigError::new("`do_center_crop` is true, which is not read here"));
    }
    keys.value("crop_size");
    let size = match size {
        Some(Asked::Longest(side)) => Some(Size { width: side, height: side }),
        Some(Asked::Side(Side::Both(size))) => Some(size),
        _ => None,
    };
    Ok(Sizing::Bounded { size })
}

fn budget(keys: &mut Keys<'_>, size: Option<Asked>, tower: Tower) -> Result<Sizing, ConfigError> {
    same(keys, "patch_size", tower.patch_size)?;
    same(keys, "pooling_kernel_size", tower.merge_size)?;
    // What is counted of each image.
    keys.value("image_seq_length");
    let max_tokens = keys.count("max_soft_tokens")?.unwrap_or(280);
    match size {
        None => Err(ConfigError::not_resized()),
        Some(_) if max_tokens > MAX_SOFT_TOKENS => Err(ConfigError::new(format!(
            "`max_soft_tokens` is {max_tokens}, and {MAX_SOFT_TOKENS} is the limit"
        ))),
        Some(_) => Ok(Sizing::Budget { max_tokens }),
    }
}

fn near_grid(
    keys: &mut Keys<'_>,
    size: Option<Asked>,
    tower: Tower,
) -> Result<Sizing, ConfigError> {
    same(keys, "patch_size", tower.patch_size)?;
    same(keys, "merge_size", tower.merge_size)?;
    let max_tokens = keys.count("max_image_tokens")?.unwrap_or(4096);
    match size {
        None => Err(ConfigError::not_resized()),
        Some(_) if max_tokens > MAX_PATCHES => Err(ConfigError::new(format!(
            "`max_image_tokens` is {max_tokens}, and {MAX_PATCHES} is the limit"
        ))),
        Some(_) => Ok(Sizing::NearGrid { max_tokens }),
    }
}

fn letterbox(
    keys: &mut Keys<'_>,
    family: &Family,
    size: Option<Asked>,
) -> Result<Sizing, ConfigError> {
    let Size { width: side, height } = both_sides(size)?;
    let min_side = keys.count("min_size")?.unwrap_or(14);
    if side != height || min_side > side || side > MAX_TILE_SIDE {
        return Err(ConfigError::new(format!(
            "`size` of {side} by {height} and `min_size` of {min_side} make no square"
        )));
    }
    if !keys.flag("do_pad", true)? {
        return Err(ConfigError::new("`do_pad` is false, which is not read here"));
    }
    // The class makes it of the mean, whatever a file says.
    keys.value("background_color");
    let (mean, _) = family.mean_and_std;
    let mean = keys.bands("image_mean")?.unwrap_or(mean);
    Ok(Sizing::Letterbox { side, min_side, colour: mean.map(|mean| (mean * 255.0) as u8) })
}

/// Most patches of an image; their sides are tried one after the other.
pub(super) const MAX_PATCHES: usize = 1 << 16;

fn patches(keys: &mut Keys<'_>, size: Option<Asked>, tower: Tower) -> Result<Sizing, ConfigError> {
    same(keys, "patch_size", tower.patch_size)?;
    let max_patches = keys.count("max_num_patches")?.unwrap_or(256);
    match size {
        None => Err(ConfigError::not_resized()),
        Some(_) if max_patches > MAX_PATCHES => Err(ConfigError::new(format!(
            "`max_num_patches` is {max_patches}, and {MAX_PATCHES} is the limit"
        ))),
        Some(_) => Ok(Sizing::Patches { max_patches }),
    }
}

fn refuse_unread(keys: &mut Keys<'_>) -> Result<(), ConfigError> {
    let unread = keys.unread();
    match unread.is_empty() {
        true => Ok(()),
        false => Err(ConfigError::new(format!(
            "`{}` is not read, and may change pixels; help: a model with it cannot see images yet",
            unread.join("`, `")
        ))),
    }
}
