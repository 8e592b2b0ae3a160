//! `TowerSpec`: what makes embeddings of images, as data. Its layers are in a decoder's terms;
//! `tower.rs` of the executor runs it.

use super::{
    AttentionSpec, ConnectorSpec, GridFit, GridPositions, LayerSpec, LinearSpec, NamedShape,
    NormSpec, Parameters, QkvHeads, RopeSpec, attentions, distinct, most_heads,
};
use vllm_batch_base::layers::{MAX_JOINED_TOKENS, MAX_SOFT_TOKENS};

/// What makes embeddings of images, in the place of a decoder's table of tokens. Families differ in
/// these values only.
#[derive(Clone, Debug, PartialEq)]
pub struct TowerSpec {
    /// Pixels of a patch's side.
    pub patch_size: usize,
    /// Patches of the side of a square that becomes one token.
    pub merge_size: usize,
    /// Squares may stand out over the right and the lower edge of a tile, where they have zeros in
    /// place of patches (DeepSeek-VL2).
    pub overhangs: bool,
    /// The token that stands for one of an image's.
    pub image_token_id: TokenId,
    /// The token whose rows of the decoder's tables those of an image have, where inputs of layers
    /// are by token (Gemma 4 E2B); None: their own.
    pub table_token: Option<u32>,
    /// What a prompt has for an image.
    pub text: ImageText,
    /// What tokens of a prompt see of those behind them, in all layers of the decoder.
    pub bidirectional: Bidirectional,
    /// (width, 3 * frames * patch_size²): from the samples of a patch to the residual stream.
    pub patches: LinearSpec,
    /// (width): a token before the patches of each tile, which no embedding is made of (CLIP).
    pub class_token: Option<NamedShape>,
    /// Norm of what patches give, without their positions.
    pub patch_norm: Option<NormSpec>,
    /// What is added by the place of a patch.
    pub positions: Option<GridPositions>,
    /// The rotary embedding that layers refer to, of rows and columns of patches as axes.
    pub rope: Option<RopeSpec>,
    /// Norm of the sum.
    pub embed_norm: Option<NormSpec>,
    /// One per layer. All patches of a tile see each other, or those of its windows.
    pub layers: Vec<LayerSpec>,
    /// None: there are no windows.
    pub windows: Option<WindowsSpec>,
    /// Norm of the last layer's output.
    pub final_norm: Option<NormSpec>,
    /// Streams behind so many layers, beside each other in the rows of patches that the connector
    /// reads (Granite Vision); empty: that behind all of them alone.
    pub states: Vec<usize>,
    /// From the patches of a token to its embedding.
    pub connector: ConnectorSpec,
    /// What the decoder's stream has of images besides, behind its first layers, one after the
    /// other; by layers of the tower.
    pub deep: Vec<DeepSpec>,
    /// (hidden_size): an embedding behind each row of an image, where tiles are laid out as one
    /// picture (LLaVA-NeXT).
    pub newline: Option<NamedShape>,
    /// (hidden_size): an embedding between the whole image, whose rows then have newlines too, and
    /// its tiles (DeepSeek-VL2).
    pub separator: Option<NamedShape>,
    /// Both have the width of the tower, and go through the connector as means of patches do
    /// (Phi-4-multimodal).
    pub connects_lines: bool,
    /// Prompts with images are computed with an adapter, which is no part of the model
    /// (Phi-4-multimodal).
    pub wants_adapter: bool,
    /// What an image has between its tokens that is of a table (Molmo 2).
    pub marks: Option<MarksSpec>,
    /// Such a picture is made smaller where it has more tokens than so many tiles (OneVision).
    pub max_tiles: Option<usize>,
    /// Embeddings, newlines too, are multiplied by this, as those of tokens are (Granite).
    pub scale: Option<f32>,
    /// Prefixes of tensors behind the last of these layers, and of those for sounds. They are left
    /// unused.
    pub unused: Vec<String>,
}

/// Tokens that an image has between those of its patches.
#[derive(Clone, Debug, PartialEq)]
pub struct MarksSpec {
    /// (marks, hidden_size), and the row that is added: of the decoder's table, which has it too.
    pub table: LinearSpec,
    /// The tokens, in the order of the rows. Layouts number them so.
    pub ids: Vec<u32>,
    /// A row behind theirs is added to the embedding of each token of patches.
    pub is_added: bool,
}

/// What tokens of a prompt see of those behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bidirectional {
    /// Nothing.
    None,
    /// Tokens of an image see all of it (Gemma 3).
    Image,
    /// Tokens of images, marks too, see all of those of the prompt. That has one image: several,
    /// with text between, are refused (Molmo 2).
    Images,
    /// All tokens of a prompt with images see all of it, also past a window: a prefix language
    /// model (PaliGemma).
    Prompt,
}

/// Squares of tokens whose patches see each other alone.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowsSpec {
    /// Tokens of the side of one.
    pub side: usize,
    /// Of each layer, whether patches see the whole tile all the same.
    pub is_whole: Vec<bool>,
    /// Those at the right and the lower edge are filled up, with zeros in place of normed rows
    /// (SAM).
    pub is_filled: bool,
}

impl WindowsSpec {
    /// Windows of a tile that are filled up.
    pub fn num_filled(&self, layout: (usize, usize)) -> usize {
        layout.0.div_ceil(self.side) * layout.1.div_ceil(self.side)
    }
}

/// What a tower gives of one of its layers.
#[derive(Clone, Debug, PartialEq)]
pub struct DeepSpec {
    /// The layer, whose output it is made of.
    pub layer: usize,
    /// From its patches to what is added to a token.
    pub connector: ConnectorSpec,
}

/// A token, by its id or by its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenId {
    /// config.json has the id.
    Known(u32),
    /// The tokenizer's files have it alone (InternVL in its own layout).
    OfText(&'static str),
}

impl TokenId {
    /// The id, where `find` finds those of texts.
    ///
    /// # Errors
    /// There is no such token; its text.
    pub fn find(self, find: impl FnOnce(&str) -> Option<u32>) -> Result<u32, &'static str> {
        match self {
            Self::Known(id) => Ok(id),
            Self::OfText(text) => find(text).ok_or(text),
        }
    }
}

/// What a prompt has for an image beside one placeholder for each of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageText {
    /// No prompt has images: one is a row by itself, and its vector is what the tower gives (CLIP).
    Alone,
    /// Nothing (LLaVA 1.5).
    Bare,
    /// Empty lines, and these tokens before and after the image's. The first of them alone is what
    /// the chat template shows (Gemma 3).
    Paragraph {
        /// The token before.
        start: u32,
        /// The token after.
        end: u32,
    },
    /// A token behind each row, `[IMG_BREAK]`, and another one behind the last, `[IMG_END]`
    /// (Pixtral).
    Rows,
    /// These tokens before and after the image's (Gemma 4, InternVL).
    Enclosed {
        /// The token before.
        start: TokenId,
        /// The token after.
        end: TokenId,
    },
    /// The same. The chat template shows `<image>`, which is no token (Qianfan-OCR).
    EnclosedMark {
        /// The token before.
        start: TokenId,
        /// The token after.
        end: TokenId,
    },
    /// Tiles by row and column, and the whole image behind them (Idefics 3, SmolVLM).
    Tiles,
    /// Tiles by their numbers, and the whole image behind them, between two tokens. The chat
    /// template shows `<image>`, which is no token (Aya Vision).
    NumberedTiles,
    /// Tiles, a token behind each, and the whole image behind them likewise, between two tokens
    /// (Command A Vision).
    BrokenTiles,
    /// Its tokens and marks. The chat template shows another token.
    Marked {
        /// What it shows.
        shown: &'static str,
    },
    /// Tiles by row and column between two tokens; no rows and columns where there is the whole
    /// image alone (LFM2-VL).
    EnclosedTiles,
}

impl TowerSpec {
    /// A tower of these parts and no others, each of whose patches is a token.
    pub fn new(
        image_token_id: TokenId,
        text: ImageText,
        patch_size: usize,
        patches: LinearSpec,
        layers: Vec<LayerSpec>,
        connector: ConnectorSpec,
    ) -> Self {
        Self {
            patch_size,
            merge_size: 1,
            overhangs: false,
            image_token_id,
            table_token: None,
            text,
            bidirectional: Bidirectional::None,
            patches,
            class_token: None,
            patch_norm: None,
            positions: None,
            rope: None,
            embed_norm: None,
            layers,
            windows: None,
            final_norm: None,
            states: Vec::new(),
            connector,
            deep: Vec::new(),
            newline: None,
            separator: None,
            connects_lines: false,
            wants_adapter: false,
            marks: None,
            max_tiles: None,
            scale: None,
            unused: Vec::new(),
        }
    }

    /// Width of the residual stream.
    pub fn width(&self) -> usize {
        self.patches.n()
    }

    /// Streams in a patch's row that the connector reads.
    pub fn num_states(&self) -> usize {
        self.states.len().max(1)
    }

    /// Numbers of layers, ascending, behind which something is made of the stream.
    pub fn stops(&self) -> Vec<usize> {
        let deep = self.deep.iter().map(|deep| deep.layer + 1);
        let mut stops: Vec<_> =
            deep.chain(self.states.iter().copied()).chain([self.layers.len()]).collect();
        stops.sort_unstable();
        stops.dedup();
        stops
    }

    /// Frames of a patch, all of which are the image.
    pub fn num_frames(&self) -> usize {
        self.patches.k / (3 * self.patch_size * self.patch_size)
    }

    /// Tokens that a step has room for, so that what sees all of itself is in one; and those of a
    /// prompt whose logits it has room for.
    pub fn least_step(&self, max_model_len: usize) -> (usize, usize) {
        let num_tokens = match (self.bidirectional, &self.positions) {
            // Nobody asks for logits of such a prompt.
            (Bidirectional::Prompt, _) => return (max_model_len, 0),
            (Bidirectional::Images, _) => return (MAX_JOINED_TOKENS, 0),
            (Bidirectional::None, _) | (Bidirectional::Image, None) => 0,
            // Of any shape.
            (_, Some(GridPositions { fit: GridFit::ByAxis, .. })) => MAX_SOFT_TOKENS,
            (_, Some(positions)) => (positions.side / self.merge_size).pow(2),
        };
        (num_tokens, num_tokens)
    }

    /// That of embeddings, and those of what is added later.
    pub fn connectors(&self) -> impl Iterator<Item = &ConnectorSpec> {
        [&self.connector].into_iter().chain(self.deep.iter().map(|deep| &deep.connector))
    }

    /// The attention blocks.
    pub fn attentions(&self) -> impl Iterator<Item = &AttentionSpec> {
        attentions(&self.layers)
    }

    /// The heads of its layers, which are the same in all.
    pub fn heads(&self) -> QkvHeads {
        most_heads(&self.layers)
    }

    /// All normalizations.
    pub fn norms(&self) -> impl Iterator<Item = &NormSpec> {
        let of_layers = self.layers.iter().flat_map(LayerSpec::norms);
        of_layers
            .chain(&self.patch_norm)
            .chain(&self.embed_norm)
            .chain(&self.final_norm)
            .chain(self.connectors().flat_map(ConnectorSpec::norms))
    }

    /// All tensors: what a checkpoint is held against before anything of it is read, and what is
    /// loaded.
    pub fn tensors(&self) -> Vec<NamedShape> {
        let positions = self.positions.iter().map(|positions| &positions.table);
        let ends = [&self.patches].into_iter().chain(positions);
        let of_ends = ends.flat_map(LinearSpec::tensors);
        let of_ends = of_ends.chain(self.connectors().flat_map(ConnectorSpec::tensors));
        let of_layers = self.layers.iter().flat_map(LayerSpec::tensors);
        let ends = [&self.patch_norm, &self.embed_norm, &self.final_norm];
        let norms = ends.into_iter().flatten().flat_map(NormSpec::tensors);
        distinct(
            of_ends
                .chain(of_layers)
                .chain(norms)
                .chain(self.class_token.clone())
                .chain(self.newline.clone())
                .chain(self.separator.clone()),
        )
    }

    /// Number of parameters.
    pub fn parameters(&self) -> Parameters {
        Parameters::of(&self.tensors(), &self.layers)
    }
}
