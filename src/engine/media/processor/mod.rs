//! Image processors: what `preprocessor_config.json` says, as values. Sizes give tokens, pixels
//! give patches; a family is a row of [`families`].

mod config;
mod families;
mod filled;
mod grid;
mod joined;
pub(crate) mod keys;
mod layout;
mod normalization;
mod padded;
mod patches;
mod sizes;

#[cfg(test)]
mod tests;

pub use config::ConfigError;
pub use joined::Joined;
pub use layout::{Layout, Lines, Marks, Middle};
pub use normalization::Normalization;
pub use patches::{PatchOrder, Patches};

use crate::error::MediaError;
use crate::header::ImageHeader;
use crate::resize::{Backend, Filter, resize, resize_between};
use crate::rgb::Rgb8;

use filled::Filled;
use grid::{Grid, GridChoice};
use padded::Padded;
use sizes::{Areas, Crops, Size, Splits};

/// Pixels that an image may have once it is resized: what a long and thin one would grow to.
const MAX_RESIZED_PIXELS: u64 = 1 << 26;

/// What the model's own configuration says of its vision tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tower {
    /// Pixels of a patch's side.
    pub patch_size: usize,
    /// Patches of the side of a square that becomes one token.
    pub merge_size: usize,
    /// The picture that tiles make together is made smaller to as many tokens as so many of them
    /// have, where it has more; None: never.
    pub max_tiles: Option<usize>,
}

/// Whether a prompt has other images, where that changes how an image is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Company {
    /// It has none, or it does not matter.
    None,
    /// It has (LLaVA-OneVision), or has many (DeepSeek-VL2).
    Others,
}

/// How an image gets the size that the tower sees.
#[derive(Clone, Debug, PartialEq)]
enum Sizing {
    /// Areas between two bounds, sides in whole tokens (Qwen, GLM-4.1V).
    Smart(Areas),
    /// One size, or the shorter side, with a crop from the centre (CLIP, SigLIP, Gemma 3, LLaVA).
    Fixed { size: Option<Side>, crop: Option<Size>, square: Option<[u8; 3]> },
    /// A longest side, and tiles beside the whole image (Idefics 3, SmolVLM).
    Tiles { longest: Option<usize>, tile: usize, is_split: bool },
    /// Tiles of one size, in a grid as wide or high as the image of those of so many tiles, beside
    /// the whole image (InternVL); or in the grid that it fits into (Command A Vision).
    Grid { tile: Size, grid: Grid },
    /// Tiles of one size behind the whole image (Ovis 2); None: the whole image alone.
    Behind { tile: Size, grid: Option<Grid> },
    /// Tiles of one size, in the grid of those that shows most of the image, which is in the middle
    /// of it; beside the whole image (LLaVA-NeXT). Of several images of a prompt each is a tile, in
    /// the middle of a square of this colour, where there is one (LLaVA-OneVision).
    AnyRes { tile: usize, grids: Vec<Splits>, square: Option<[u8; 3]> },
    /// Tiles of one size, in the grid of those that shows most of the image, which is in the middle
    /// of it on this colour; beside the whole image so in one tile. More than two images of a
    /// prompt have a grid of one tile each (DeepSeek-VL2).
    Views { tile: usize, grids: Vec<Splits>, colour: [u8; 3] },
    /// Areas between two bounds; beside tiles of one size, in a grid as wide or high as the image,
    /// where it has much more (LFM2-VL).
    Crops(Crops),
    /// Bounds of both sides, which are then rounded up to whole tokens (Pixtral).
    Bounded { size: Option<Size> },
    /// As many whole tokens as a budget has room for (Gemma 4).
    Budget { max_tokens: usize },
    /// The longer side is this, the other one at least that; in the middle of a square of this
    /// colour (DeepSeek-VL).
    Letterbox { side: usize, min_side: usize, colour: [u8; 3] },
    /// The whole tokens whose shape is nearest to the image's, at most so many (Muse Glimmer).
    NearGrid { max_tokens: usize },
    /// The largest scale at which the patches that an image fills or begins are so many at most
    /// (SigLIP 2).
    Patches { max_patches: usize },
    /// As it is, or smaller where it has too many patches; black beside and below it fills whole
    /// tokens (Kimi).
    Filled(Filled),
    /// Tiles of one size that overlap, in the grid that the image fits into by the least scale;
    /// behind the whole image (Molmo 2).
    Joined { tile: usize, max_tiles: usize, joined: Joined },
    /// Tiles of one size, as many as the image fills or begins, in whose upper left corner it is;
    /// beside the whole picture (Phi-4-multimodal).
    Padded(Padded),
}

/// A size that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Both(Size),
    Shortest(usize),
}

/// From decoded images to patches, as one model wants them.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageProcessor {
    sizing: Sizing,
    filter: Filter,
    backend: Backend,
    normalization: Normalization,
    tower: Tower,
    order: PatchOrder,
    /// How often each patch stands behind itself in the tower's input.
    num_frames: usize,
}

/// The sizes an image goes through.
struct Steps {
    /// The padding to a square, before all else.
    padded: Size,
    resized: Size,
    /// The size of each tile, where the image is not one itself.
    tile: Size,
    splits: Splits,
}

impl ImageProcessor {
    /// What an image is among so many of a prompt.
    pub fn company(&self, num_images: usize) -> Company {
        match self.sizing {
            Sizing::AnyRes { square: Some(_), .. } if num_images > 1 => Company::Others,
            Sizing::Views { .. } if num_images > 2 => Company::Others,
            _ => Company::None,
        }
    }

    /// The layout of an image of which only the header is known.
    ///
    /// # Errors
    ///
    /// If an image of this shape cannot be resized as the model wants it.
    pub fn tokens(&self, header: &ImageHeader, company: Company) -> Result<Layout, MediaError> {
        let size = Size { width: header.width as usize, height: header.height as usize };
        Ok(self.layout(size, &self.steps(size, company)?))
    }

    fn layout(&self, size: Size, steps: &Steps) -> Layout {
        let Tower { patch_size, merge_size, max_tiles } = self.tower;
        let layout = Layout {
            rows: steps.tile.height / patch_size,
            columns: steps.tile.width / patch_size,
            tile_rows: steps.splits.rows,
            tile_columns: steps.splits.columns,
            merge_size,
            middle: None,
            whole: None,
            marks: None,
        };
        let [height, width] = layout.sides();
        let whole = Size { width: layout.tile_columns * width, height: layout.tile_rows * height };
        match self.sizing {
            // Among others it has one newline, behind all of it.
            Sizing::AnyRes { .. } if layout.tile_rows == 0 => {
                let nothing = Middle::whole(Size { width: 0, height: 1 }, Lines::OfMiddle);
                Layout { middle: Some(nothing), ..layout }
            }
            Sizing::AnyRes { .. } => {
                let middle = sizes::unpadded(size, whole);
                let most = max_tiles.map(|num| num * layout.tokens_per_tile());
                let shrunk = most.and_then(|most| sizes::shrunk(&middle, most));
                Layout { middle: Some(Middle { shrunk, ..middle }), ..layout }
            }
            Sizing::Views { .. } => {
                Layout { middle: Some(Middle::whole(whole, Lines::OfAll)), ..layout }
            }
            Sizing::Crops(_) if layout.tile_rows > 0 => {
                let Size { width, height } = steps.resized;
                Layout { whole: Some([height / patch_size, width / patch_size]), ..layout }
            }
            Sizing::Behind { .. } => Layout { marks: Some(Marks::Grid), ..layout },
            Sizing::Joined { joined, .. } => {
                Layout { marks: Some(Marks::Joined(joined)), ..layout }
            }
            Sizing::Padded(_) => {
                Layout { middle: Some(Padded::middle(steps, self.tower)), ..layout }
            }
            _ => layout,
        }
    }

    fn steps(&self, size: Size, company: Company) -> Result<Steps, MediaError> {
        let token_side = self.tower.patch_size * self.tower.merge_size;
        let steps = self.unchecked_steps((size, company), token_side)?;
        steps.check(size)?;
        if steps.tile.width < token_side || steps.tile.height < token_side {
            return Err(MediaError::unsupported(format!(
                "the image of {size} pixels is smaller than a token of {token_side}"
            )));
        }
        Ok(steps)
    }

    fn unchecked_steps(
        &self,
        (size, company): (Size, Company),
        token_side: usize,
    ) -> Result<Steps, MediaError> {
        let whole = |padded, resized, tile| Steps { padded, resized, tile, splits: Splits::NONE };
        Ok(match &self.sizing {
            Sizing::Fixed { size: wanted, crop, square } => {
                let padded = if square.is_some() { size.squared() } else { size };
                let resized = match wanted {
                    Some(Side::Both(size)) => *size,
                    &Some(Side::Shortest(shortest)) => sizes::shortest_edge(padded, shortest),
                    None => padded,
                };
                whole(padded, resized, crop.unwrap_or(resized))
            }
            &Sizing::Tiles { longest, tile, is_split } => {
                let resized = match longest {
                    Some(longest) => sizes::longest_edge(size, longest),
                    None => size,
                };
                let square = Size { width: tile, height: tile };
                match is_split {
                    true => {
                        let splits = sizes::splits(resized, tile);
                        Steps { padded: size, resized, tile: square, splits }
                    }
                    false => whole(size, resized, square),
                }
            }
            &Sizing::Grid { tile, grid } | &Sizing::Behind { tile, grid: Some(grid) } => {
                let splits = grid.splits(size, tile);
                Steps { padded: size, resized: size, tile, splits }
            }
            &Sizing::Behind { tile, grid: None } => whole(size, size, tile),
            Sizing::AnyRes { .. } | Sizing::Views { .. } => self.in_a_grid(size, company)?,
            &Sizing::Joined { tile, max_tiles, joined } => {
                let square = Size { width: tile, height: tile };
                let window = joined.window_in_pixels(square, self.tower.patch_size);
                let margin = tile - window.width;
                let splits = sizes::overlapping(size, (window.width, margin), max_tiles);
                let Size { width, height } = splits.size(window);
                let resized = Size { width: width + margin, height: height + margin };
                Steps { padded: size, resized, tile: square, splits }
            }
            Sizing::Crops(crops) => {
                let resized = sizes::smart(size, token_side, &crops.areas)?;
                let splits = crops.splits(size, token_side);
                match splits {
                    Splits::NONE => whole(size, resized, resized),
                    _ => {
                        let tile = Size { width: crops.tile, height: crops.tile };
                        Steps { padded: size, resized, tile, splits }
                    }
                }
            }
            Sizing::Padded(padded) => padded.steps(size)?,
            Sizing::Filled(filled) => {
                let (resized, tile) = filled.sizes(size, self.tower)?;
                whole(size, resized, tile)
            }
            &Sizing::Letterbox { side, min_side, .. } => {
                let square = Size { width: side, height: side };
                whole(size, sizes::longest_side(size, side, min_side), square)
            }
            Sizing::Smart(_)
            | Sizing::Bounded { .. }
            | Sizing::Patches { .. }
            | Sizing::Budget { .. }
            | Sizing::NearGrid { .. } => {
                let resized = self.size_of_one(size, token_side)?;
                whole(size, resized, resized)
            }
        })
    }

    /// Tiles in the grid that shows most of the image, in the middle of it.
    fn in_a_grid(&self, size: Size, company: Company) -> Result<Steps, MediaError> {
        let (Sizing::AnyRes { tile, grids, .. } | Sizing::Views { tile, grids, .. }) = &self.sizing
        else {
            unreachable!("of no grids")
        };
        let square = Size { width: *tile, height: *tile };
        let is_any_res = matches!(self.sizing, Sizing::AnyRes { .. });
        let splits = match company {
            Company::None => sizes::any_res(size, *tile, grids),
            Company::Others if is_any_res => {
                let (padded, splits) = (size.squared(), Splits::NONE);
                return Ok(Steps { padded, resized: square, tile: square, splits });
            }
            Company::Others => Splits { rows: 1, columns: 1 },
        };
        let resized = match is_any_res {
            true => sizes::within(size, splits.size(square)),
            false => {
                sizes::contained(size, square)?;
                sizes::contained(size, splits.size(square))?
            }
        };
        Ok(Steps { padded: size, resized, tile: square, splits })
    }

    /// The size of an image that is one tile of any shape.
    fn size_of_one(&self, size: Size, token_side: usize) -> Result<Size, MediaError> {
        Ok(match &self.sizing {
            Sizing::Smart(areas) => sizes::smart(size, token_side, areas)?,
            Sizing::Bounded { size: Some(bounds) } => sizes::bounded(size, *bounds, token_side),
            &Sizing::Patches { max_patches } => sizes::patches(size, token_side, max_patches),
            &Sizing::Budget { max_tokens } => sizes::budget(size, token_side, max_tokens)?,
            &Sizing::NearGrid { max_tokens } => sizes::near_grid(size, token_side, max_tokens),
            _ => size,
        })
    }

    /// Bytes of the patches of an image.
    pub fn num_patch_bytes(&self, layout: Layout) -> usize {
        let of_patch = 3 * self.tower.patch_size.pow(2);
        let (rows, columns) = layout.grid(layout.num_tiles() - 1);
        match self.sizing {
            Sizing::Padded(_) => {
                let of_whole = rows * columns * size_of::<f32>();
                (layout.num_patches() - rows * columns + of_whole) * of_patch
            }
            _ => layout.num_patches() * of_patch,
        }
    }

    /// The tiles of an image, if it is cut.
    fn push_split(&self, image: &Rgb8, (steps, tile): (&Steps, Size), patches: &mut Patches) {
        if steps.splits.rows > 0 {
            let split = self.resized(image, steps.splits.size(tile));
            patches.push_tiles(&split, steps.splits, tile);
        }
    }

    /// The patches of an image.
    ///
    /// # Errors
    ///
    /// As [`ImageProcessor::tokens`].
    pub fn patches(&self, image: &Rgb8, company: Company) -> Result<Patches, MediaError> {
        let size = Size { width: image.width(), height: image.height() };
        let steps = self.steps(size, company)?;
        let layout = self.layout(size, &steps);
        let mut patches = Patches::new(layout, self.tower.patch_size, self.order, self.num_frames);
        let padded = match &self.sizing {
            Sizing::Fixed { square: Some(colour), .. }
            | Sizing::AnyRes { square: Some(colour), .. }
                if steps.padded != size =>
            {
                &patches::padded(image, steps.padded, *colour)
            }
            _ => image,
        };
        let resized = self.resized(padded, steps.resized);
        match &self.sizing {
            Sizing::Tiles { is_split: true, tile, .. } => {
                let Splits { rows, columns } = steps.splits;
                let split = Size { width: columns.max(1) * tile, height: rows.max(1) * tile };
                let split = self.resized(&resized, split);
                patches.push_tiles(&split, steps.splits, steps.tile);
                patches.push_tile(&self.resized(&split, steps.tile), (0, 0));
            }
            Sizing::Grid { tile, .. } => {
                self.push_split(image, (&steps, *tile), &mut patches);
                patches.push_tile(&self.resized(image, *tile), (0, 0));
            }
            Sizing::Crops(_) if steps.splits != Splits::NONE => {
                let split = self.resized(image, steps.splits.size(steps.tile));
                patches.push_tiles(&split, steps.splits, steps.tile);
                patches.push_grid(&resized, (0, 0), layout.grid(layout.num_tiles() - 1));
            }
            Sizing::AnyRes { .. } if steps.splits != Splits::NONE => {
                let split = patches::padded(&resized, steps.splits.size(steps.tile), [0; 3]);
                patches.push_tiles(&split, steps.splits, steps.tile);
                patches.push_tile(&self.resized(image, steps.tile), (0, 0));
            }
            Sizing::Views { colour, .. } => {
                let split = steps.splits.size(steps.tile);
                let split = patches::in_the_middle(&resized, split, *colour);
                patches.push_tiles(&split, steps.splits, steps.tile);
                let whole = self.resized(image, sizes::contained(size, steps.tile)?);
                let whole = patches::in_the_middle(&whole, steps.tile, *colour);
                patches.push_tile(&whole, (0, 0));
            }
            Sizing::Behind { tile, .. } => {
                patches.push_tile(&self.resized(image, *tile), (0, 0));
                self.push_split(image, (&steps, *tile), &mut patches);
            }
            Sizing::Joined { joined, .. } => {
                patches.push_tile(&self.resized(image, steps.tile), (0, 0));
                let window = joined.window_in_pixels(steps.tile, self.tower.patch_size);
                patches.push_tiles(&resized, steps.splits, window);
            }
            Sizing::Padded(_) => padded::push(&mut patches, &resized, &steps, self.normalization()),
            Sizing::Letterbox { colour, .. } => {
                patches.push_tile(&patches::padded(&resized, steps.tile, *colour), (0, 0));
            }
            Sizing::Filled(_) => {
                let filled = patches::placed(&resized, steps.tile, (0, 0), [0; 3]);
                patches.push_tile(&filled, (0, 0));
            }
            Sizing::Tiles { is_split: false, .. } => {
                patches.push_tile(&self.resized(&resized, steps.tile), (0, 0));
            }
            _ if steps.tile != steps.resized => {
                patches.push_tile(&patches::cropped(&resized, steps.tile, self.backend), (0, 0));
            }
            _ => patches.push_tile(&resized, (0, 0)),
        }
        Ok(patches)
    }

    fn resized(&self, image: &Rgb8, size: Size) -> Rgb8 {
        match self.sizing {
            Sizing::Joined { .. } => resize_between(image, size.width, size.height),
            Sizing::Padded(_) => {
                resize(image, size.width, size.height, Filter::Bilinear, self.backend)
            }
            _ => resize(image, size.width, size.height, self.filter, self.backend),
        }
    }

    /// What makes numbers of the patches' bytes.
    pub fn normalization(&self) -> &Normalization {
        &self.normalization
    }
}

impl Steps {
    /// No step may have more pixels than are sensible.
    fn check(&self, size: Size) -> Result<(), MediaError> {
        for step in [self.padded, self.resized, self.splits.size(self.tile)] {
            let pixels = step.width as u64 * step.height as u64;
            if step != size && pixels > MAX_RESIZED_PIXELS {
                return Err(MediaError::TooLarge(format!(
                    "the image of {size} pixels would be resized to {step}; help: its sides are \
                     too different"
                )));
            }
        }
        Ok(())
    }
}
