//! Image processors of transformers by name, and what they take where a configuration is silent.

use crate::resize::Filter;

/// How a family finds the size of an image; the values are in its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Smart,
    SmartOfFrames,
    Crops,
    Fixed,
    Grid,
    AnyRes,
    Tiles,
    Bounded,
    Budget,
    Patches,
}

/// A size where a configuration has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DefaultSize {
    Areas(usize, usize),
    Square(usize),
    Shortest(usize),
    Longest(usize),
}

/// The defaults of a processor.
pub(super) struct Family {
    /// Names of its classes, without the endings of backends.
    pub(super) names: &'static [&'static str],
    pub(super) kind: Kind,
    pub(super) size: DefaultSize,
    pub(super) filter: Filter,
    pub(super) mean_and_std: ([f64; 3], [f64; 3]),
    /// Side of the crop, if images are cropped where the configuration is silent.
    pub(super) crop: Option<usize>,
    /// `do_pad` pads to a square with the mean; elsewhere it fills batches up, or is not there.
    pub(super) pads_to_square: bool,
}

const HALF: ([f64; 3], [f64; 3]) = ([0.5; 3], [0.5; 3]);
const CLIP: ([f64; 3], [f64; 3]) =
    ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]);

/// All families.
pub(super) const FAMILIES: &[Family] = &[
    Family {
        names: &["Qwen2VLImageProcessor"],
        kind: Kind::Smart,
        size: DefaultSize::Areas(56 * 56, 28 * 28 * 1280),
        filter: Filter::Bicubic,
        mean_and_std: CLIP,
        crop: None,
        pads_to_square: false,
    },
    Family {
        names: &["Glm4vImageProcessor", "Glm46VImageProcessor"],
        kind: Kind::SmartOfFrames,
        size: DefaultSize::Areas(112 * 112, 28 * 28 * 15_000),
        filter: Filter::Bicubic,
        mean_and_std: CLIP,
        crop: None,
        pads_to_square: false,
    },
    Family {
        names: &["Lfm2VlImageProcessor"],
        kind: Kind::Crops,
        size: DefaultSize::Square(512),
        filter: Filter::Bilinear,
        mean_and_std: HALF,
        crop: None,
        pads_to_square: false,
    },
    Family {
        names: &["Gemma3ImageProcessor"],
        kind: Kind::Fixed,
        size: DefaultSize::Square(224),
        filter: Filter::Bilinear,
        mean_and_std: HALF,
        crop: None,
        pads_to_square: false,
    },
    Family {
        names: &["SmolVLMImageProcessor", "Idefics3ImageProcessor"],
        kind: Kind::Tiles,
        size: DefaultSize::Longest(4 * 364),
        filter: Filter::Lanczos,
        mean_and_std: HALF,
        crop: None,
        pads_to_square: false,
    },
    Family {
        names: &["SiglipImageProcessor"],
        kind: Kind::Fixed,
        size: DefaultSize::Square(224),
        filter: Filter::Bicubic,
        mean_and_std: HALF,
        crop: None,
        pads_to_square: false,
    },
    Family {
        names: &["CLIPImageProcessor"],
        kind: Kind::Fixed,
        size: DefaultSize::Shortest(224),
        filter: Filter::Bicubic,
        mean_and_std: CLIP,
        crop: Some(224),
        pads_to_square: false,
    },
    Family {
        names: &["LlavaImageProcessor"],
        kind: Kind::Fixed,
        size: DefaultSize::Shortest(224),
        filter: Filter::Bicubic,
        mean_and_std: CLIP,
        crop: Some(224),
        pads_to_square: true,
    },
    Family {
        names: &["LlavaNextImageProcessor"],
        kind: Kind::AnyRes,
        size: DefaultSize::Shortest(224),
        filter: Filter::Bicubic,
        mean_and_std: CLIP,
        crop: Some(224),
        pads_to_square: false,
    },
    Family {
        names: &["PixtralImageProcessor"],
        kind: Kind::Bounded,
        size: DefaultSize::Longest(1024),
        filter: Filter::Bicubic,
        mean_and_std: CLIP,
        crop: None,
        pads_to_square: false,
    },
    Family {
        names: &["Gemma4ImageProcessor"],
        kind: Kind::Budget,
        size: DefaultSize::Square(1),
        filter: Filter::Bicubic,
        mean_and_std: ([0.0; 3], [1.0; 3]),
        crop: None,
        pads_to_square: false,
    },
    Family {
        names: &["Siglip2ImageProcessor"],
        kind: Kind::Patches,
        size: DefaultSize::Square(1),
        filter: Filter::Bilinear,
        mean_and_std: HALF,
        crop: None,
        pads_to_square: false,
    },
    // InternVL's.
    Family {
        names: &["GotOcr2ImageProcessor"],
        kind: Kind::Grid,
        size: DefaultSize::Square(384),
        filter: Filter::Bicubic,
        mean_and_std: CLIP,
        crop: None,
        pads_to_square: false,
    },
];

/// Side of a tile where a configuration has none.
pub(super) const DEFAULT_TILE: usize = 364;
