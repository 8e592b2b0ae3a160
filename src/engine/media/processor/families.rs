//! Image processors of transformers by name, and what they take where a configuration is silent.

use crate::resize::Filter;

/// How a family finds the size of an image; the values are in its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Smart,
    SmartOfFrames,
    SmartOfOne,
    Crops,
    Fixed,
    Grid,
    Canvas,
    AnyRes,
    Tiles,
    Bounded,
    Budget,
    Patches,
    Letterbox,
    NearGrid,
    Filled,
    FilledByChunk,
    FilledOrRefused,
    Views,
    Joined,
    Covering,
    Padded,
    PaddedByPillow,
}

/// A size where a configuration has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DefaultSize {
    Areas(usize, usize),
    Square(usize),
    /// A square, as is any size of one number.
    AlwaysSquare(usize),
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
    /// Which images become squares of the colour of the mean.
    pub(super) squares: Squares,
}

/// Images that become squares before they are resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Squares {
    /// None: `do_pad` fills batches up, or is not there.
    None,
    /// All, if `do_pad` says so.
    All,
    /// Those of a prompt with others, whatever `do_pad` says.
    AmongOthers,
}

const HALF: ([f64; 3], [f64; 3]) = ([0.5; 3], [0.5; 3]);
const CLIP: ([f64; 3], [f64; 3]) =
    ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]);

const KIMI_K25: Family = Family {
    names: &["Kimi_K25ImageProcessor"],
    kind: Kind::Filled,
    size: DefaultSize::Square(512),
    filter: Filter::Bicubic,
    mean_and_std: HALF,
    crop: None,
    squares: Squares::None,
};

const PHI4_MULTIMODAL: Family = Family {
    names: &["Phi4MultimodalImageProcessor"],
    kind: Kind::Padded,
    size: DefaultSize::Square(448),
    filter: Filter::Bicubic,
    mean_and_std: HALF,
    crop: None,
    squares: Squares::None,
};

/// All families.
pub(super) const FAMILIES: &[Family] = &[
    Family {
        names: &["Qwen2VLImageProcessor"],
        kind: Kind::Smart,
        size: DefaultSize::Areas(56 * 56, 28 * 28 * 1280),
        filter: Filter::Bicubic,
        mean_and_std: CLIP,
        crop: None,
        squares: Squares::None,
    },
    Family {
        names: &["Glm4vImageProcessor", "Glm46VImageProcessor"],
        kind: Kind::SmartOfFrames,
        size: DefaultSize::Areas(112 * 112, 28 * 28 * 15_000),
        filter: Filter::Bicubic,
        mean_and_std: CLIP,
        crop: None,
        squares: Squares::None,
    },
    Family {
        names: &["PaddleOCRVLImageProcessor"],
        kind: Kind::SmartOfOne,
        size: DefaultSize::Areas(384 * 384, 1536 * 1536),
        filter: Filter::Bicubic,
        mean_and_std: CLIP,
        crop: None,
        squares: Squares::None,
    },
    Family {
        names: &["Lfm2VlImageProcessor"],
        kind: Kind::Crops,
        size: DefaultSize::Square(512),
        filter: Filter::Bilinear,
        mean_and_std: HALF,
        crop: None,
        squares: Squares::None,
    },
    Family {
        names: &["Gemma3ImageProcessor"],
        kind: Kind::Fixed,
        size: DefaultSize::Square(224),
        filter: Filter::Bilinear,
        mean_and_std: HALF,
        crop: None,
        squares: Squares::None,
    },
    Family {
        names: &["SmolVLMImageProcessor", "Idefics3ImageProcessor"],
        kind: Kind::Tiles,
        size: DefaultSize::Longest(4 * 364),
        filter: Filter::Lanczos,
        mean_and_std: HALF,
        crop: None,
        squares: Squares::None,
    },
    Family {
        names: &["SiglipImageProcessor"],
        kind: Kind::Fixed,
        size: DefaultSize::Square(224),
        filter: Filter::Bicubic,
        mean_and_std: HALF,
        crop: None,
        squares: Squares::None,
    },
    Family {
        names: &["ViTImageProcessor"],
        kind: Kind::Fixed,
        size: DefaultSize::AlwaysSquare(224),
        filter: Filter::Bilinear,
        mean_and_std: HALF,
        crop: None,
        squares: Squares::None,
    },
    Family {
        names: &["CLIPImageProcessor"],
        kind: Kind::Fixed,
        size: DefaultSize::Shortest(224),
        filter: Filter::Bicubic,
        mean_and_std: CLIP,
        crop: Some(224),
        squares: Squares::None,
    },
    Family {
        names: &["LlavaImageProcessor"],
        kind: Kind::Fixed,
        size: DefaultSize::Shortest(224),
        filter: Filter::Bicubic,
        mean_and_std: CLIP,
        crop: Some(224),
        squares: Squares::All,
    },
    Family {
        names: &["LlavaNextImageProcessor"],
        kind: Kind::AnyRes,
        size: DefaultSize::Shortest(224),
        filter: Filter::Bicubic,
        mean_and_std: CLIP,
        crop: Some(224),
        squares: Squares::None,
    },
    Family {
        names: &["LlavaOnevisionImageProcessor"],
        kind: Kind::AnyRes,
        size: DefaultSize::Square(384),
        filter: Filter::Bicubic,
        mean_and_std: CLIP,
        crop: None,
        squares: Squares::AmongOthers,
    },
    Family {
        names: &["PixtralImageProcessor"],
        kind: Kind::Bounded,
        size: DefaultSize::Longest(1024),
        filter: Filter::Bicubic,
        mean_and_std: CLIP,
        crop: None,
        squares: Squares::None,
    },
    Family {
        names: &["Gemma4ImageProcessor"],
        kind: Kind::Budget,
        size: DefaultSize::Square(1),
        filter: Filter::Bicubic,
        mean_and_std: ([0.0; 3], [1.0; 3]),
        crop: None,
        squares: Squares::None,
    },
    Family {
        names: &["Siglip2ImageProcessor"],
        kind: Kind::Patches,
        size: DefaultSize::Square(1),
        filter: Filter::Bilinear,
        mean_and_std: HALF,
        crop: None,
        squares: Squares::None,
    },
    Family {
        names: &["DeepseekVLImageProcessor"],
        kind: Kind::Letterbox,
        size: DefaultSize::Square(384),
        filter: Filter::Bicubic,
        mean_and_std: CLIP,
        crop: None,
        squares: Squares::None,
    },
    Family {
        names: &["MuseGlimmerImageProcessor"],
        kind: Kind::NearGrid,
        size: DefaultSize::Square(1),
        filter: Filter::Lanczos,
        mean_and_std: HALF,
        crop: None,
        squares: Squares::None,
    },
    Family {
        names: &["Cohere2VisionImageProcessor"],
        kind: Kind::Canvas,
        size: DefaultSize::Square(512),
        filter: Filter::Bicubic,
        mean_and_std: CLIP,
        crop: None,
        squares: Squares::None,
    },
    KIMI_K25,
    // Kimi's own code, which transformers has not.
    Family { names: &["KimiK25VisionProcessor"], kind: Kind::FilledByChunk, ..KIMI_K25 },
    Family {
        names: &["KimiVLImageProcessor"],
        kind: Kind::FilledOrRefused,
        mean_and_std: CLIP,
        ..KIMI_K25
    },
    // DeepSeek-VL2's own code, whose keys are in config.json.
    Family {
        names: &["DeepseekVLV2Processor"],
        kind: Kind::Views,
        size: DefaultSize::Square(1),
        filter: Filter::Bicubic,
        mean_and_std: HALF,
        crop: None,
        squares: Squares::None,
    },
    Family {
        names: &["Molmo2ImageProcessor"],
        kind: Kind::Joined,
        size: DefaultSize::Square(378),
        filter: Filter::Bilinear,
        mean_and_std: HALF,
        crop: None,
        squares: Squares::None,
    },
    Family {
        names: &["Ovis2ImageProcessor"],
        kind: Kind::Covering,
        size: DefaultSize::Square(384),
        filter: Filter::Bicubic,
        mean_and_std: CLIP,
        crop: None,
        squares: Squares::None,
    },
    PHI4_MULTIMODAL,
    Family { names: &["Phi4MMImageProcessor"], kind: Kind::PaddedByPillow, ..PHI4_MULTIMODAL },
    // InternVL's and Aya Vision's.
    Family {
        names: &["GotOcr2ImageProcessor"],
        kind: Kind::Grid,
        size: DefaultSize::Square(384),
        filter: Filter::Bicubic,
        mean_and_std: CLIP,
        crop: None,
        squares: Squares::None,
    },
];

/// Side of a tile where a configuration has none.
pub(super) const DEFAULT_TILE: usize = 364;
