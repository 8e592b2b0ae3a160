//! Images of a chat: from media to the placeholders of a tokenized prompt.

use std::sync::Arc;

use serde_json::Value;

use super::{InputProcessor, ProcessError};
use crate::media_table::{MediaTable, TableMedium};
use crate::request::{MediaRun, Whole};
use vllm_batch_api::prompt::{Prompt, WithMedia};
use vllm_batch_api::request::{RequestError, SamplingParams};
use vllm_batch_checkpoint::spec::{Bidirectional, ImageText, TokenId};
use vllm_batch_media::{Layout, MediaKind};
use vllm_batch_text::{Chat, Tokenizer};

/// Images of a prompt that comes soon, which are decoded while this is kept.
#[derive(Debug, Default)]
pub struct DecodedAhead(Vec<Arc<TableMedium>>);

impl DecodedAhead {
    /// The prompt has no images.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What the model's prompts have for images.
#[derive(Debug)]
pub struct ImageInput {
    /// Media of requests that are under way.
    pub table: Arc<MediaTable>,
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
    fn shown(&self, tokenizer: &Tokenizer) -> String {
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
    fn text_of(&self, layout: Layout, tokenizer: &Tokenizer) -> String {
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
    fn alone(&self, placed: &[Arc<TableMedium>]) -> (Vec<u32>, Vec<MediaRun>) {
        let run = |medium: &Arc<TableMedium>| MediaRun {
            medium: Arc::clone(medium),
            positions: 0..1,
            first_token: 0,
            axis: None,
            whole: Whole::None,
        };
        (vec![self.image_token_id], placed.iter().map(run).collect())
    }

    /// The runs of placeholders, each of one medium; None: they are not as many as the media's
    /// tokens.
    fn runs(&self, ids: &[u32], media: &[Arc<TableMedium>]) -> Option<Vec<MediaRun>> {
        let is_of_image = |id: &u32| *id == self.image_token_id || self.marks.contains(id);
        let whole = match self.bidirectional {
            Bidirectional::None => Whole::None,
            Bidirectional::Image => Whole::Image,
            Bidirectional::Images => Whole::Unscored,
            Bidirectional::Prompt => {
                Whole::Prompt { len: ids.len(), number: self.table.next_prompt() }
            }
        };
        let mut runs = Vec::new();
        let mut position = 0;
        for medium in media {
            let num_tokens = medium.form().num_tokens();
            let mut first_token = 0;
            while first_token < num_tokens {
                position += ids[position..].iter().position(is_of_image)?;
                let others = ids[position..].iter().position(|id| !is_of_image(id));
                let len = others.unwrap_or(ids.len() - position).min(num_tokens - first_token);
                let positions = position..position + len;
                let medium = Arc::clone(medium);
                runs.push(MediaRun {
                    medium,
                    positions,
                    first_token: first_token as u32,
                    axis: None,
                    whole,
                });
                position += len;
                first_token += len;
            }
        }
        (!ids[position..].iter().any(is_of_image)).then_some(runs)
    }
}

impl InputProcessor {
    /// The same for a model that takes images.
    pub fn with_images(self, images: ImageInput) -> Self {
        Self { images: Some(Arc::new(images)), ..self }
    }

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

    /// Media of requests that are under way, of a model that takes any.
    pub fn media_table(&self) -> Option<&Arc<MediaTable>> {
        let of_sounds = self.sounds.as_ref().map(|sounds| &sounds.table);
        self.images.as_ref().map(|images| &images.table).or(of_sounds)
    }

    /// Begins to decode the media of a prompt that comes soon: while what is returned is kept,
    /// they are ready sooner. Answers do not depend on it.
    pub fn decode_ahead(&self, prompt: &Prompt) -> DecodedAhead {
        let Some(table) = self.media_table() else { return DecodedAhead::default() };
        let each = prompt.media().into_iter();
        DecodedAhead(each.flat_map(|media| table.decode_ahead(media)).collect())
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

    /// A chat's tokens, at most `limit`, with placeholders in the places of its images.
    ///
    /// `add_special_tokens`: around what the template writes, which has those of a chat.
    pub(in crate::serve) fn tokenize_with_media(
        &self,
        prompt: WithMedia,
        add_special_tokens: bool,
        limit: usize,
    ) -> Result<(Vec<u32>, Vec<MediaRun>), ProcessError> {
        let WithMedia { chat, media } = prompt;
        if media.iter().any(|medium| medium.kind() == MediaKind::Sound) {
            return Err(no_sounds().into());
        }
        let images = self.images.as_ref().ok_or_else(no_images)?;
        if self.reads_images_alone() {
            check_alone(&chat, media.len(), images.reads_texts)?;
        }
        if images.bidirectional == Bidirectional::Images {
            refuse_several(media.len())?;
        }
        let placed = images.table.place(&media).map_err(|(index, error)| {
            let message = format!("image {} of {}: {error}", index + 1, media.len());
            RequestError::new(error.code(), message)
        })?;
        if images.text == ImageText::Alone {
            return Ok(images.alone(&placed));
        }
        let placeholder = images.shown(&self.tokenizer);
        let texts =
            placed.iter().map(|medium| images.text_of(medium.form().layout(), &self.tokenizer));
        let texts: Vec<_> = texts.collect();
        let chat = Chat { num_images: placed.len(), ..chat };
        let rendered = self.render(&chat)?;
        let rendered = rendered.with_images(&placeholder, &texts).map_err(|num_shown| {
            let message = format!(
                "the chat template shows {num_shown} images, and the messages have {}; give \
                 another with `settings.chat_template`",
                placed.len()
            );
            RequestError::new("chat_template", message)
        })?;
        let mut ids = self.begun(self.tokenizer.encode_chat(&rendered)?);
        if add_special_tokens {
            ids = self.tokenizer.with_special_tokens(&ids);
        }
        self.check_ids(&ids)?;
        let runs = images.runs(&ids, &placed);
        let mut runs = runs.ok_or_else(|| {
            let message = format!("{placeholder:?} is no token of its own in the prompt");
            RequestError::new("tokenize", message)
        })?;
        if images.has_axes {
            MediaRun::place_on_axes(&mut runs);
        }
        if ids.len() > limit {
            let of_images: usize = runs.iter().map(|run| run.positions.len()).sum();
            let message = format!(
                "prompt has {} tokens, {of_images} of them of images, the limit is {limit}; shorten \
                 it, or give fewer images",
                ids.len()
            );
            return Err(RequestError::new("context_length", message).into());
        }
        Ok((ids, runs))
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

/// Refuses to cut a prompt with images.
pub(in crate::serve) fn refuse_cut(
    truncate_prompt_tokens: Option<i64>,
) -> Result<(), RequestError> {
    if truncate_prompt_tokens.is_none() {
        return Ok(());
    }
    let message = "truncate_prompt_tokens: a prompt with images is not cut; leave it out";
    Err(RequestError::new("invalid_parameter", message))
}

/// A row with recordings in a model or a task that takes none.
fn no_sounds() -> RequestError {
    let message = "the model takes no recordings here; leave them out, or give a model that hears";
    RequestError::new("no_audio_input", message)
}

/// A row with images in a model or a task that takes none.
pub(super) fn no_images() -> RequestError {
    let message = "the model takes no images here; leave them out, or give a model that sees, on \
                   the CPU (`settings.device` cpu), without `settings.language_model_only`";
    RequestError::new("no_image_input", message)
}
