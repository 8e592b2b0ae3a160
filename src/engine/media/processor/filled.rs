//! Images of Kimi's models: none is enlarged, and black beside and below them fills whole tokens.

use super::Tower;
use super::config::{
    Asked, ConfigError, MAX_PATCHES, MAX_TILE_SIDE, both_sides, same, same_number,
};
use super::families::Kind;
use super::keys::Keys;
use super::sizes::Size;
use crate::error::MediaError;

/// Most patches of an image, and of its sides.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Filled {
    max_patches: usize,
    max_side: usize,
    long_sides: LongSides,
}

/// What becomes of images of which a side alone is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LongSides {
    /// They are made smaller (Kimi K2.5).
    Shrunk,
    /// They are refused, and so is a side that is as long as it may be (Kimi-VL).
    Refused,
}

/// Keys of videos, beside those of images.
const OF_VIDEOS: [&str; 7] = [
    "config_type",
    "in_patch_limit_each_frame",
    "in_patch_limit_video",
    "max_num_frames_each_video",
    "sample_fps",
    "temporal_merge_kernel_size",
    "timestamp_mode",
];

/// Patches of a side in Kimi-VL's code.
const MAX_SIDE: usize = 512;

impl Filled {
    /// What a configuration of one of the three kinds says, with this size.
    pub(super) fn read(
        keys: &mut Keys<'_>,
        (kind, size): (Kind, Option<Asked>),
        tower: Tower,
    ) -> Result<Self, ConfigError> {
        let size = both_sides(size)?;
        same(keys, "patch_size", tower.patch_size)?;
        let (merge, limit, default) = match kind {
            Kind::FilledByChunk => ("merge_kernel_size", "in_patch_limit", 16_384),
            Kind::FilledOrRefused => ("merge_kernel_size", "in_token_limit", 4096),
            _ => ("merge_size", "max_patches", 16_384),
        };
        same_number(merge, keys.square(merge)?, tower.merge_size)?;
        let mut filled = Self {
            max_patches: keys.count(limit)?.unwrap_or(default),
            max_side: size.width,
            long_sides: LongSides::Shrunk,
        };
        match kind {
            Kind::FilledByChunk => {
                filled.max_side = keys.count("patch_limit_on_one_side")?.unwrap_or(MAX_SIDE);
                for key in OF_VIDEOS {
                    keys.value(key);
                }
                if keys.value("fixed_output_tokens").is_some() {
                    return Err(ConfigError::new("`fixed_output_tokens` is not read here"));
                }
            }
            Kind::FilledOrRefused => {
                filled.long_sides = LongSides::Refused;
                // What its code does not read either.
                keys.value("num_pooled_tokens");
                if !keys.flag("pad_input", false)? {
                    return Err(ConfigError::new("`pad_input` is false, which is not read here"));
                }
            }
            _ if size.width != size.height => {
                return Err(ConfigError::new(format!("`size` of {size} patches is no square")));
            }
            _ => {}
        }
        match filled.max_patches <= MAX_PATCHES && filled.max_side <= MAX_TILE_SIDE {
            true => Ok(filled),
            false => Err(ConfigError::new(format!(
                "`{limit}` is {}, and {MAX_PATCHES} is the limit; of a side, {MAX_TILE_SIDE}",
                filled.max_patches
            ))),
        }
    }

    /// The size of an image, and that of the whole tokens around it: `navit_resize` of transformers
    /// and `rescale` of Kimi-VL.
    pub(super) fn sizes(&self, size: Size, tower: Tower) -> Result<(Size, Size), MediaError> {
        let Tower { patch_size, merge_size, .. } = tower;
        let longest = self.max_side * patch_size;
        let least = usize::from(self.long_sides == LongSides::Shrunk);
        let num = |side: usize| (side / patch_size).max(least) as f64;
        let num_patches = num(size.height) * num(size.width);
        let mut scale = (self.max_patches as f64 / num_patches).sqrt().min(1.0);
        if self.long_sides == LongSides::Shrunk {
            let of_side = |side: usize| longest as f64 / side as f64;
            scale = scale.min(of_side(size.height)).min(of_side(size.width));
        }
        let scaled = |side: usize| ((side as f64 * scale) as usize).max(1);
        let mut resized = Size { width: scaled(size.width), height: scaled(size.height) };
        let whole = |side: usize| side.next_multiple_of(patch_size * merge_size);
        if self.long_sides == LongSides::Shrunk {
            let Size { width, height } = resized;
            resized = Size { width: width.min(longest), height: height.min(longest) };
        } else if whole(resized.width.max(resized.height)) >= longest {
            return Err(MediaError::unsupported(format!(
                "the image of {size} pixels has a side of {} patches or more; help: cut it",
                self.max_side
            )));
        }
        let filled = Size { width: whole(resized.width), height: whole(resized.height) };
        Ok((resized, filled))
    }
}
