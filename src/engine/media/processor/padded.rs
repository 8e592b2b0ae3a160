//! `Padded`: an image that is enlarged to tiles of one size, in their upper left corner, with white
//! beside it; behind them the whole picture in one tile, whose numbers lie between those of bytes
//! (Phi-4-multimodal).

use super::config::{Asked, ConfigError, MAX_TILE_SIDE, MAX_TILES, both_sides, same};
use super::keys::Keys;
use super::patches::placed;
use super::sizes::{self, Size, Splits};
use super::{Lines, Middle, Normalization, Patches, Sizing, Steps, Tower};
use crate::error::MediaError;
use crate::resize::Filter;
use crate::rgb::Rgb8;

/// Tiles that an image may have.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Padded {
    tile: usize,
    max_tiles: usize,
}

/// Pixels that each side of an image has at least once it is resized.
const MIN_SIDE: usize = 10;

/// Keys of sounds, beside those of images.
const OF_SOUNDS: [&str; 3] =
    ["audio_compression_rate", "audio_downsample_rate", "audio_feat_stride"];

/// What is beside an image.
const WHITE: [u8; 3] = [255; 3];

/// The sizing of such tiles, as a configuration has it.
///
/// # Errors
/// It asks for what is not read here.
pub(super) fn read(
    keys: &mut Keys<'_>,
    size: Option<Asked>,
    (tower, filter): (Tower, Filter),
) -> Result<Sizing, ConfigError> {
    same(keys, "patch_size", tower.patch_size)?;
    for key in OF_SOUNDS {
        keys.value(key);
    }
    let Size { width: tile, height } = both_sides(size)?;
    let token_side = tower.patch_size * tower.merge_size;
    if tile != height || !tile.is_multiple_of(token_side) || tile > MAX_TILE_SIDE {
        return Err(ConfigError::new(format!(
            "`size` of {tile} by {height} is no square of tokens of {token_side} pixels"
        )));
    }
    // Of the whole picture alone.
    if filter != Filter::Bicubic {
        return Err(ConfigError::new("`resample` is other than 3, which is not read here"));
    }
    let max_tiles = keys.count("dynamic_hd")?.unwrap_or(36);
    match max_tiles <= MAX_TILES {
        true => Ok(Sizing::Padded(Padded { tile, max_tiles })),
        false => {
            Err(ConfigError::new(format!("`dynamic_hd` of {max_tiles} is no number of tiles")))
        }
    }
}

impl Padded {
    /// `dynamic_preprocess` of transformers: as many tiles as the image fills or begins, or those
    /// of the nearest shape.
    pub(super) fn steps(&self, size: Size) -> Result<Steps, MediaError> {
        let tile = Size { width: self.tile, height: self.tile };
        let begun = Splits {
            rows: size.height.div_ceil(self.tile),
            columns: size.width.div_ceil(self.tile),
        };
        let splits = match begun.rows.saturating_mul(begun.columns) > self.max_tiles {
            false => begun,
            true => match sizes::grid(size, tile, (1, self.max_tiles)) {
                Splits::NONE => Splits { rows: 1, columns: 1 },
                splits => splits,
            },
        };
        let bounds = splits.size(tile);
        let (width, height) = (size.width as f64, size.height as f64);
        let (by_width, by_height) = (bounds.width as f64 / width, bounds.height as f64 / height);
        let resized = match by_width < by_height {
            true => Size { width: bounds.width, height: (height * by_width) as usize },
            false => Size { width: (width * by_height) as usize, height: bounds.height },
        };
        let is_seen = |shown: usize, bound: usize| shown >= MIN_SIDE && bound - shown < self.tile;
        match is_seen(resized.width, bounds.width) && is_seen(resized.height, bounds.height) {
            true => Ok(Steps { padded: size, resized, tile, splits }),
            false => Err(MediaError::unsupported(format!(
                "the image of {size} pixels would be {resized} in tiles of {bounds}; help: cut it"
            ))),
        }
    }

    /// What of the picture of tiles is the image: patches of which a pixel is, and tokens of these.
    pub(super) fn middle(steps: &Steps, tower: Tower) -> Middle {
        let bounds = steps.splits.size(steps.tile);
        let num = |bound: usize, shown: usize| {
            bound / tower.patch_size - (bound - shown) / tower.patch_size
        };
        let patches =
            [num(bounds.height, steps.resized.height), num(bounds.width, steps.resized.width)];
        let [height, width] = patches.map(|side| side.div_ceil(tower.merge_size));
        Middle::whole(Size { width, height }, Lines::WholeLast { patches })
    }
}

/// Appends the tiles of an image that has its size there, and the whole picture.
pub(super) fn push(
    patches: &mut Patches,
    resized: &Rgb8,
    steps: &Steps,
    normalization: &Normalization,
) {
    let picture = placed(resized, steps.splits.size(steps.tile), (0, 0), WHITE);
    patches.push_tiles(&picture, steps.splits, steps.tile);
    let sides = (steps.tile.width, patches.patch_size);
    patches.whole = whole(&picture, &normalization.tables(), sides);
}

/// The numbers of the whole picture in a square of this side, as the patches of a tile are:
/// `[num_patches, 3, patch_size, patch_size]`.
fn whole(picture: &Rgb8, tables: &[[f32; 256]; 3], (side, patch_size): (usize, usize)) -> Vec<f32> {
    let planes = crate::resize::cubic_numbers(picture, tables, side);
    let patches = side / patch_size;
    let mut numbers = Vec::with_capacity(planes.len());
    for (row, column) in (0..patches).flat_map(|row| (0..patches).map(move |column| (row, column)))
    {
        for plane in planes.chunks_exact(side * side) {
            for y in row * patch_size..(row + 1) * patch_size {
                let first = y * side + column * patch_size;
                numbers.extend_from_slice(&plane[first..first + patch_size]);
            }
        }
    }
    numbers
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Company, ImageProcessor};
    use super::*;
    use crate::formats::Format;
    use crate::header::ImageHeader;
    use crate::resize::Backend;

    fn processor(key: &str, value: Value) -> Result<ImageProcessor, ConfigError> {
        let mut config = json!({"image_processor_type": "Phi4MultimodalImageProcessor",
            "patch_size": 8, "size": {"height": 48, "width": 48}, "dynamic_hd": 4});
        config[key] = value;
        let tower = Tower { patch_size: 8, merge_size: 2, max_tiles: None };
        ImageProcessor::from_config(&config, tower, Backend::Torchvision)
    }

    /// `image_processing_phi4_multimodal.py`: 96 x 84 pixels of 2 x 2 tiles, 11 of 12 rows of
    /// patches.
    #[test]
    fn tokens_are_those_of_patches_that_the_image_has_and_then_of_the_whole_picture() {
        let processor = processor("dynamic_hd", json!(4)).unwrap();
        let header = |width, height| ImageHeader { format: Format::Png, width, height };
        let layout = processor.tokens(&header(90, 79), Company::None).unwrap();
        assert_eq!((layout.num_tiles(), layout.num_tokens()), (5, 6 * 7 + 1 + 3 * 4));
        assert_eq!((layout.shown(1), layout.shown(3)), (Some([6, 6]), Some([5, 6])));
        assert_eq!(layout.shown(4), Some([6, 6]));
        let sources = layout.sources().unwrap();
        // Tokens of a tile, of the one beside it, and the newline.
        assert_eq!(sources[..7], [0, 1, 2, 9, 10, 11, 45]);
        assert_eq!(sources[7 * 6..7 * 6 + 5], [46, 36, 37, 38, 45]);
        let error = processor.tokens(&header(1, 40), Company::None).expect_err("too thin");
        assert_eq!(error.code(), "media_unsupported");
    }

    #[test]
    fn what_is_not_read_is_refused() {
        for (key, value, expected) in [
            ("size", json!({"height": 48, "width": 32}), "`size` of 32 by 48"),
            ("size", json!({"height": 40, "width": 40}), "no square of tokens of 16"),
            ("dynamic_hd", json!(5000), "`dynamic_hd` of 5000"),
            ("resample", json!(2), "`resample`"),
            ("patch_size", json!(14), "`patch_size`"),
            ("do_resize", json!(false), "`do_resize`"),
        ] {
            let error = processor(key, value).expect_err(key).to_string();
            assert!(error.contains(expected), "{key}: {error}");
        }
        for key in OF_SOUNDS {
            assert!(processor(key, json!(1)).is_ok(), "{key}");
        }
    }
}
