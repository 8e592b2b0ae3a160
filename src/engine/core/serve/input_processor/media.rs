//! Media of a chat: from images and recordings to the placeholders of a tokenized prompt.

use std::collections::VecDeque;
use std::sync::Arc;

use super::images::ImageInput;
use super::{InputProcessor, ProcessError};
use crate::media_table::{MediaTable, TableMedium};
use crate::request::{MediaRun, Whole};
use vllm_batch_api::prompt::{Prompt, WithMedia};
use vllm_batch_api::request::RequestError;
use vllm_batch_checkpoint::spec::ImageText;
use vllm_batch_media::{MediaKind, Medium};
use vllm_batch_text::{Chat, NumShown, RenderedChat, ShownMedia, Tokenizer};

/// Media of a prompt that comes soon, which are decoded while this is kept.
#[derive(Debug, Default)]
pub struct DecodedAhead(Vec<Arc<TableMedium>>);

impl DecodedAhead {
    /// The prompt has no media.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What the model's chats have for recordings.
#[derive(Debug)]
pub struct SoundInput {
    /// Token of a prompt for each of a recording's.
    pub token_id: u32,
}

/// What chats of a model have for media.
#[derive(Debug, Default)]
pub struct MediaInput {
    /// For images; None: it takes none.
    pub images: Option<ImageInput>,
    /// For recordings; None: it takes none.
    pub sounds: Option<SoundInput>,
}

impl InputProcessor {
    /// The same for a model that takes media.
    pub fn with_media(self, input: MediaInput, table: MediaTable) -> Self {
        let MediaInput { images, sounds } = input;
        let media_table = Some(Arc::new(table));
        Self { images: images.map(Arc::new), sounds: sounds.map(Arc::new), media_table, ..self }
    }

    /// Media of requests that are under way, of a model that takes any.
    pub fn media_table(&self) -> Option<&Arc<MediaTable>> {
        self.media_table.as_ref()
    }

    /// Begins to decode the media of a prompt that comes soon: while what is returned is kept,
    /// they are ready sooner. Answers do not depend on it.
    pub fn decode_ahead(&self, prompt: &Prompt) -> DecodedAhead {
        let Some(table) = self.media_table() else { return DecodedAhead::default() };
        let each = prompt.media().into_iter();
        DecodedAhead(each.flat_map(|media| table.decode_ahead(media)).collect())
    }

    /// Texts of the tokens that media have, which nobody may type.
    pub(super) fn placeholders(&self) -> Vec<String> {
        let images = self.images.as_ref().map(|images| images.placeholders(&self.tokenizer));
        let sounds = self.sounds.as_ref().map(|sounds| sounds.placeholder(&self.tokenizer));
        images.into_iter().flatten().chain(sounds).collect()
    }

    /// A chat's tokens, at most `limit`, with placeholders in the places of its media.
    ///
    /// `add_special_tokens`: around what the template writes, which has those of a chat.
    pub(in crate::serve) fn tokenize_with_media(
        &self,
        prompt: WithMedia,
        add_special_tokens: bool,
        limit: usize,
    ) -> Result<(Vec<u32>, Vec<MediaRun>), ProcessError> {
        let WithMedia { chat, media } = prompt;
        self.refuse_kinds(&media)?;
        let (table, images) = (self.media_table().ok_or_else(no_images)?, self.images.as_deref());
        let num_images = media.iter().filter(|medium| medium.kind() == MediaKind::Image).count();
        if let Some(images) = images.filter(|_| num_images > 0) {
            images.check(&chat, num_images, self.reads_images_alone())?;
        }
        let placed = table.place(&media).map_err(|(index, error)| {
            RequestError::new(error.code(), format!("{}: {error}", name_of(&media, index)))
        })?;
        if let Some(images) = images.filter(|images| images.text == ImageText::Alone) {
            return Ok(images.alone(&placed));
        }
        let chat = Chat { num_media: placed.len(), ..chat };
        let (rendered, placed) = self.with_placeholders(self.render(&chat)?, placed)?;
        let mut ids = self.begun(self.tokenizer.encode_chat(&rendered)?);
        if add_special_tokens {
            ids = self.tokenizer.with_special_tokens(&ids);
        }
        self.check_ids(&ids)?;
        let runs = self.runs(&ids, &placed);
        let mut runs = runs.ok_or_else(|| {
            let message = "a placeholder of the media is no token of its own in the prompt";
            RequestError::new("tokenize", message)
        })?;
        if images.is_some_and(|images| images.has_axes) {
            MediaRun::place_on_axes(&mut runs);
        }
        if ids.len() > limit {
            let of_media: usize = runs.iter().map(|run| run.positions.len()).sum();
            let (what, fewer) = match num_images == media.len() {
                true => ("images", "images"),
                false => ("media", "or shorter recordings"),
            };
            let message = format!(
                "prompt has {} tokens, {of_media} of them of {what}, the limit is {limit}; shorten \
                 it, or give fewer {fewer}",
                ids.len()
            );
            return Err(RequestError::new("context_length", message).into());
        }
        Ok((ids, runs))
    }

    /// Refuses media of a kind that the model takes none of.
    fn refuse_kinds(&self, media: &[Arc<Medium>]) -> Result<(), RequestError> {
        let has = |kind| media.iter().any(|medium| medium.kind() == kind);
        if has(MediaKind::Sound) && self.sounds.is_none() {
            return Err(no_sounds());
        }
        match has(MediaKind::Image) && self.images.is_none() {
            true => Err(no_images()),
            false => Ok(()),
        }
    }

    /// A chat with as many placeholders as its media have tokens, and these in the order of the
    /// prompt.
    fn with_placeholders(
        &self,
        rendered: RenderedChat,
        placed: Vec<Arc<TableMedium>>,
    ) -> Result<(RenderedChat, Vec<Arc<TableMedium>>), RequestError> {
        let tokenizer = &self.tokenizer;
        let (of_sounds, of_images): (VecDeque<_>, VecDeque<_>) =
            placed.into_iter().partition(|medium| medium.form().is_sound());
        let num_placed = [of_images.len(), of_sounds.len()];
        let image = self.images.as_ref().map(|images| images.shown(tokenizer)).unwrap_or_default();
        let images = self.images.iter().flat_map(|images| {
            of_images.iter().map(|medium| images.text_of(medium.form().layout(), tokenizer))
        });
        let sound = self.sounds.as_ref().map(|sounds| sounds.placeholder(tokenizer));
        let sound = sound.unwrap_or_default();
        let sounds = of_sounds.iter().map(|medium| sound.repeat(medium.form().num_tokens()));
        let (images, sounds) = (Vec::from_iter(images), Vec::from_iter(sounds));
        let images = ShownMedia { placeholder: &image, texts: &images };
        let sounds = ShownMedia { placeholder: &sound, texts: &sounds };
        let (rendered, are_sounds) =
            rendered.with_media(images, sounds).map_err(|shown| wrong_number(shown, num_placed))?;
        let mut kinds = [of_images, of_sounds];
        let next = |is_sound: bool| kinds[usize::from(is_sound)].pop_front();
        Ok((rendered, are_sounds.into_iter().filter_map(next).collect()))
    }

    /// The runs of placeholders, each of one medium, which are in the order of the prompt; None:
    /// they are not as many as the media's tokens.
    fn runs(&self, ids: &[u32], media: &[Arc<TableMedium>]) -> Option<Vec<MediaRun>> {
        let is_of_image = |id: u32| self.images.as_ref().is_some_and(|images| images.has(id));
        let is_of_sound =
            |id: u32| self.sounds.as_ref().is_some_and(|sounds| sounds.token_id == id);
        let table = self.media_table()?;
        let whole = self.images.as_ref().map(|images| images.whole(ids.len(), table));
        let mut runs = Vec::new();
        let mut position = 0;
        for medium in media {
            let form = medium.form();
            let is_own = |id: &u32| match form.is_sound() {
                true => is_of_sound(*id),
                false => is_of_image(*id),
            };
            let num_tokens = form.num_tokens();
            let mut first_token = 0;
            while first_token < num_tokens {
                position += ids[position..].iter().position(is_own)?;
                let others = ids[position..].iter().position(|id| !is_own(id));
                let len = others.unwrap_or(ids.len() - position).min(num_tokens - first_token);
                runs.push(MediaRun {
                    medium: Arc::clone(medium),
                    positions: position..position + len,
                    first_token: first_token as u32,
                    axis: None,
                    whole: whole.filter(|_| !form.is_sound()).unwrap_or(Whole::None),
                });
                position += len;
                first_token += len;
            }
        }
        let is_left = |id: &u32| is_of_image(*id) || is_of_sound(*id);
        (!ids[position..].iter().any(is_left)).then_some(runs)
    }
}

impl SoundInput {
    /// The token's text.
    fn placeholder(&self, tokenizer: &Tokenizer) -> String {
        tokenizer.token_text(self.token_id)
    }
}

/// A medium among those of its kind, for people.
fn name_of(media: &[Arc<Medium>], index: usize) -> String {
    let kind = media[index].kind();
    let num = |media: &[Arc<Medium>]| media.iter().filter(|other| other.kind() == kind).count();
    let name = match kind {
        MediaKind::Image => "image",
        MediaKind::Sound => "recording",
    };
    format!("{name} {} of {}", num(&media[..=index]), num(media))
}

/// A template that shows other numbers of images and recordings than these.
fn wrong_number(shown: NumShown, [num_images, num_sounds]: [usize; 2]) -> RequestError {
    let (what, num_shown, num) = match shown.images == num_images {
        false => ("images", shown.images, num_images),
        true => ("recordings", shown.sounds, num_sounds),
    };
    let message = format!(
        "the chat template shows {num_shown} {what}, and the messages have {num}; give another \
         with `settings.chat_template`"
    );
    RequestError::new("chat_template", message)
}

/// Refuses to cut a prompt with media.
pub(in crate::serve) fn refuse_cut(
    truncate_prompt_tokens: Option<i64>,
) -> Result<(), RequestError> {
    if truncate_prompt_tokens.is_none() {
        return Ok(());
    }
    let message =
        "truncate_prompt_tokens: a prompt with images or recordings is not cut; leave it out";
    Err(RequestError::new("invalid_parameter", message))
}

/// A row with recordings in a model or a task that takes none.
fn no_sounds() -> RequestError {
    let message = "the model takes no recordings here; leave them out, or give a model that hears, \
                   on the CPU (`settings.device` cpu), without `settings.language_model_only`";
    RequestError::new("no_audio_input", message)
}

/// A row with images in a model or a task that takes none.
pub(super) fn no_images() -> RequestError {
    let message = "the model takes no images here; leave them out, or give a model that sees, on \
                   the CPU (`settings.device` cpu), without `settings.language_model_only`";
    RequestError::new("no_image_input", message)
}
