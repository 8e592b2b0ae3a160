//! Images of a chat: what a prompt has for one, and what goes with it.

use std::sync::Arc;

use serde_json::Value;

use super::InputProcessor;
use crate::media_table::{MediaTable, TableMedium};
use crate::request::{MediaRun, Whole};
use vllm_batch_api::request::{RequestError, SamplingParams};
use vllm_batch_checkpoint::spec::{Bidirectional, ImageText, TokenId};
use vllm_batch_media::Layout;
use vllm_batch_text::{Chat, Tokenizer};

/// What the model's prompts have for images.
#[derive(Debug)]
pub struct ImageInput {
    /// Token of a prompt for each of an image's.
    pub image_token_id: u32,
    /// Other tokens that an image has between those, by the numbers that layouts give them.
    pub marks: Vec<u32>,
    /// What a prompt has beside them.
    pub text: ImageText,
    /// Tokens have positions on several axes.
    pub has_axes: bool,
    /// False: every row is an image.
    pub reads_texts: bool,
    /// What tokens see besides those before them.
    pub bidirectional: Bidirectional,
    /// Prompts with images are computed with an adapter.
    pub wants_adapter: bool,
}

impl ImageInput {
    /// What a chat template shows for an image.
    pub(super) fn shown(&self, tokenizer: &Tokenizer) -> String {
        match self.text {
            ImageText::NumberedTiles | ImageText::EnclosedMark { .. } => "<image>".to_owned(),
            ImageText::Paragraph { start, .. } => tokenizer.token_text(start),
            ImageText::Marked { shown } => shown.to_owned(),
            _ => tokenizer.token_text(self.image_token_id),
        }
    }

    /// Texts of the tokens that images have, and of what a template shows for one of them, which
    /// nobody may type.
    pub(super) fn placeholders(&self, tokenizer: &Tokenizer) -> Vec<String> {
        let ids = [self.image_token_id].into_iter().chain(self.marks.iter().copied());
        let mut texts: Vec<_> = ids.map(|id| tokenizer.token_text(id)).collect();
        if let ImageText::Marked { shown } = self.text {
            texts.push(shown.to_owned());
        }
        texts
    }

    /// What a prompt has for an image.
    ///
    /// As `processing_aya_vision.py`, `processing_cohere2_vision.py`, `processing_idefics3.py`,
    /// `processing_smolvlm.py`, `processing_gemma3.py`, `processing_gemma4.py`,
    /// `processing_internvl.py`, `processing_lfm2_vl.py`, `processing_molmo2.py`,
    /// `processing_ovis2.py` and `processing_pixtral.py` of transformers write it.
    pub(super) fn text_of(&self, layout: Layout, tokenizer: &Tokenizer) -> String {
        let token = tokenizer.token_text(self.image_token_id);
        let (all, tile) =
            (token.repeat(layout.num_tokens()), token.repeat(layout.tokens_per_tile()));
        match self.text {
            ImageText::Alone | ImageText::Bare => all,
            ImageText::Enclosed { start, end } | ImageText::EnclosedMark { start, end } => {
                let [start, end] = [start, end].map(|token| match token {
                    TokenId::Known(id) => tokenizer.token_text(id),
                    TokenId::OfText(text) => text.to_owned(),
                });
                format!("{start}{all}{end}")
            }
            ImageText::Paragraph { start, end } => {
                let [start, end] = [start, end].map(|id| tokenizer.token_text(id));
                format!("\n\n{start}{tile}{end}\n\n")
            }
            ImageText::Rows => {
                let Layout { rows, columns, merge_size, .. } = layout;
                let row = token.repeat(columns / merge_size);
                [&row[..]].repeat(rows / merge_size).join("[IMG_BREAK]") + "[IMG_END]"
            }
            ImageText::NumberedTiles => {
                let tiles = (1..layout.num_tiles()).map(|index| format!("TILE_{index}{tile}"));
                let tiles: String = tiles.collect();
                format!("<|START_OF_IMG|>{tiles}TILE_GLOBAL{tile}<|END_OF_IMG|>")
            }
            ImageText::BrokenTiles => {
                let tile = format!("{tile}<|IMG_LINE_BREAK|>");
                format!("<|START_OF_IMG|>{}<|END_OF_IMG|>", tile.repeat(layout.num_tiles()))
            }
            ImageText::Marked { .. } => {
                let marks = self.marks.iter().map(|id| tokenizer.token_text(*id));
                let marks: Vec<_> = marks.collect();
                let of_marks = layout.num_tile_tokens();
                let text = |source: u32| match (source as usize).checked_sub(of_marks) {
                    None => &token,
                    Some(mark) => &marks[mark],
                };
                layout.sources().into_iter().flatten().map(|s| text(s).as_str()).collect()
            }
            ImageText::EnclosedTiles => {
                let mut text = "<|image_start|>".to_owned();
                for row in 1..=layout.tile_rows {
                    for column in 1..=layout.tile_columns {
                        text += &format!("<|img_row_{row}_col_{column}|>{tile}");
                    }
                }
                if layout.tile_rows > 0 {
                    text += "<|img_thumbnail|>";
                }
                let whole = token.repeat(layout.tokens_of_tile(layout.num_tiles() - 1));
                text + &whole + "<|image_end|>"
            }
            ImageText::Tiles => {
                const FAKE: &str = "<fake_token_around_image>";
                let mut text = String::new();
                for row in 1..=layout.tile_rows {
                    for column in 1..=layout.tile_columns {
                        text += &format!("{FAKE}<row_{row}_col_{column}>{tile}");
                    }
                    text.push('\n');
                }
                if layout.tile_rows > 0 {
                    text.push('\n');
                }
                text + &format!("{FAKE}<global-img>{tile}{FAKE}")
            }
        }
    }

    /// An image by itself, which counts as one token.
    pub(super) fn alone(&self, placed: &[Arc<TableMedium>]) -> (Vec<u32>, Vec<MediaRun>) {
        let run = |medium: &Arc<TableMedium>| MediaRun {
            medium: Arc::clone(medium),
            positions: 0..1,
            first_token: 0,
            axis: None,
            whole: Whole::None,
        };
        (vec![self.image_token_id], placed.iter().map(run).collect())
    }

    /// Whether a token of a prompt is one of an image's.
    pub(super) fn has(&self, id: u32) -> bool {
        id == self.image_token_id || self.marks.contains(&id)
    }

    /// What tokens of a prompt of so many see of an image.
    pub(super) fn whole(&self, num_tokens: usize, table: &MediaTable) -> Whole {
        match self.bidirectional {
            Bidirectional::None => Whole::None,
            Bidirectional::Image => Whole::Image,
            Bidirectional::Images => Whole::Unscored,
            Bidirectional::Prompt => Whole::Prompt { len: num_tokens, number: table.next_prompt() },
        }
    }

    /// Refuses a prompt that has more than its images where they stand alone, or several of them
    /// where they see each other.
    pub(super) fn check(
        &self,
        chat: &Chat,
        num_images: usize,
        is_alone: bool,
    ) -> Result<(), RequestError> {
        if is_alone {
            check_alone(chat, num_images, self.reads_texts)?;
        }
        match self.bidirectional {
            Bidirectional::Images => refuse_several(num_images),
            _ => Ok(()),
        }
    }
}

impl InputProcessor {
    /// Whether an image is a row by itself, which no chat template of the user's writes.
    pub fn reads_images_alone(&self) -> bool {
        let is_alone = |images: &Arc<ImageInput>| images.text == ImageText::Alone;
        self.images.as_ref().is_some_and(|images| self.writes_rows || is_alone(images))
    }

    /// Whether chats have images.
    pub(in crate::serve) fn has_chats_with_images(&self) -> bool {
        self.images.is_some() && !self.reads_images_alone()
    }

    /// Refuses a text where every row is an image.
    pub(in crate::serve) fn refuse_texts(&self) -> Result<(), RequestError> {
        match self.images.as_ref().is_none_or(|images| images.reads_texts) {
            true => Ok(()),
            false => {
                let message = "the model has classes of images, and the row has none; give it an \
                               image (`image`)";
                Err(RequestError::new("unsupported_field", message))
            }
        }
    }

    /// Whether prompts with images are computed with an adapter, which the model has not.
    pub fn wants_adapter_of_images(&self) -> bool {
        self.images.as_ref().is_some_and(|images| images.wants_adapter)
    }

    /// Refuses likelihoods of a prompt with images whose tokens see those behind them.
    pub(super) fn refuse_seen_prompt(&self, params: &SamplingParams) -> Result<(), RequestError> {
        let sees = |images: &ImageInput| {
            matches!(images.bidirectional, Bidirectional::Prompt | Bidirectional::Images)
        };
        match params.prompt_logprobs.is_some() && self.images.as_deref().is_some_and(sees) {
            true => Err(RequestError::new(
                "invalid_parameter",
                "prompt_logprobs: tokens of a prompt with images see those behind them in this \
                 model, so they have none; leave it out",
            )),
            false => Ok(()),
        }
    }
}

/// Refuses a row that is anything else than one image, where the model's vectors or classes are of
/// a text or of an image, or of an image alone.
fn check_alone(chat: &Chat, num_images: usize, reads_texts: bool) -> Result<(), RequestError> {
    if num_images != 1 {
        let message =
            format!("the row has {num_images} images, and the model reads one; make a row of each");
        return Err(RequestError::new("media_count", message));
    }
    let messages = chat.messages.as_array().map_or(&[][..], Vec::as_slice);
    let is_image = |part: &Value| part["type"] == "image";
    let is_blank = |part: &Value| part["text"].as_str().is_some_and(|text| text.trim().is_empty());
    let is_alone = match messages {
        [message] => message["content"]
            .as_array()
            .is_some_and(|parts| parts.iter().all(|part| is_image(part) || is_blank(part))),
        _ => false,
    };
    match is_alone {
        true => Ok(()),
        false => {
            let message = match reads_texts {
                true => {
                    "the model makes a vector of a text or of an image, and the row has both; make \
                     a row of each"
                }
                false => {
                    "the model has classes of images, and the row has a text too; leave it out"
                }
            };
            Err(RequestError::new("unsupported_field", message))
        }
    }
}

/// Refuses several images in a prompt whose images see each other past the text between them.
fn refuse_several(num_images: usize) -> Result<(), RequestError> {
    match num_images {
        0..=1 => Ok(()),
        _ => {
            let message = format!(
                "the row has {num_images} images, which see each other in this model past the text \
                 between them: that is not computed yet; make a row of each"
            );
            Err(RequestError::new("media_count", message))
        }
    }
}
