//! `TowerSpec`: what makes embeddings of images, as data.

/// What makes embeddings of images, in the place of a decoder's table of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct TowerSpec {
    /// Pixels of a patch's side.
    pub patch_size: usize,
    /// Patches of the side of a square that becomes one token.
    pub merge_size: usize,
    /// The token that stands for one of an image's.
    pub image_token_id: u32,
    /// What a prompt has for an image.
    pub text: ImageText,
}

/// What a prompt has for an image beside one placeholder for each of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageText {
    /// Nothing (LLaVA 1.5).
    Bare,
    /// Tiles by row and column, and the whole image behind them (Idefics 3, SmolVLM).
    Tiles,
}
