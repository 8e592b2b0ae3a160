//! Media beside the prompt of a row: whether there are some, and where there can be none.

use super::{Beside, Built, PromptBuilder, system_text};
use crate::input::media::{MediaReader, Named};
use crate::input::path;
use crate::input::reader::Brought;
use crate::input::row::Task;
use crate::input::row::named::NamedRow;
use crate::input::row::shape::RowShape;
use crate::input::row::template::Template;
use crate::input::row::{messages, own_images, unsupported};
use crate::input::row_error::{RowError, code};
use vllm_batch_media::MediaKind;

impl PromptBuilder {
    /// Reads media.
    pub(in crate::input::row) fn media(&self) -> &MediaReader {
        &self.media
    }

    /// The same, to go on with another file.
    pub(in crate::input::row) fn media_mut(&mut self) -> &mut MediaReader {
        &mut self.media
    }

    /// Goes on with rows that have such media with them.
    pub(in crate::input::row) fn begin_records(&mut self, brought: Brought) {
        self.media_fields.begin_records(brought);
    }

    /// The column of a table whose cells are images, and may name other rows.
    pub(in crate::input::row) fn image_column(&self) -> &str {
        self.media_fields.named_of(MediaKind::Image).unwrap_or(own_images::KNOWN[0])
    }

    /// What a table of these columns may have beside its prompts.
    pub(in crate::input::row) fn beside_of_columns(&self, columns: &[String]) -> Option<MediaKind> {
        own_images::KINDS.into_iter().find(|kind| self.may_have(*kind, columns))
    }

    fn may_have(&self, kind: MediaKind, columns: &[String]) -> bool {
        self.media_fields.are_in(kind, columns, |name| self.is_prompt(name))
    }

    /// What a row has beside its prompt, or should have.
    pub(in crate::input::row) fn beside(&self, row: &NamedRow) -> Option<MediaKind> {
        own_images::KINDS.into_iter().find(|kind| self.has(*kind, row))
    }

    fn has(&self, kind: MediaKind, row: &NamedRow) -> bool {
        let (referred, fields) = (self.media.referred(), (&row.fields, 0));
        let is_prompt = |name: &str| self.is_prompt(name);
        let media = || self.media_fields.of_kind(kind, &is_prompt, referred, fields);
        !row.is_bare && media().map_or(true, |media| !media.is_empty())
    }

    /// A field of rows that may hold media, and is not read.
    pub(in crate::input::row) fn unread_media(
        &self,
        is_there: impl Fn(&str) -> bool,
    ) -> Option<(MediaKind, &'static str)> {
        self.media_fields.unread(|name| is_there(name) && !self.is_prompt(name))
    }

    /// Whether rows may be media of a kind and nothing else: what is transcribed needs no text.
    fn takes_alone(&self, kind: MediaKind) -> bool {
        self.task.takes_images_alone() || (self.task == Task::Complete && kind == MediaKind::Sound)
    }

    /// The shape of a row without a prompt, if its media are what is asked about.
    pub(super) fn of_media(&self, row: &NamedRow) -> Option<RowShape> {
        let is_it = |kind: &MediaKind| self.takes_alone(*kind) && self.has(*kind, row);
        own_images::KINDS.into_iter().find(is_it).map(RowShape::Media)
    }

    /// The same of a table of these columns.
    pub(super) fn of_media_columns(&self, columns: &[String]) -> Option<RowShape> {
        let is_it = |kind: &MediaKind| self.takes_alone(*kind) && self.may_have(*kind, columns);
        own_images::KINDS.into_iter().find(is_it).map(RowShape::Media)
    }

    /// Media of a row's own fields.
    pub(super) fn media_of(&self, row: &NamedRow, line: u64) -> Result<Vec<Named>, RowError> {
        if row.is_bare {
            return Ok(Vec::new());
        }
        let referred = self.media.referred();
        let row = (&row.fields, line);
        self.media_fields.media(|name| self.is_prompt(name), referred, row)
    }

    /// A turn of a user that is the media of a row and nothing else.
    pub(super) fn alone(&self, beside: Beside<'_>) -> Result<Built, RowError> {
        let Beside { settings, images, line, .. } = beside;
        if images.is_empty() {
            let message = "the row has neither a prompt nor an image nor a recording";
            return Err(RowError::new(code::ROW_SHAPE, line, message));
        }
        let mut messages = messages::from_text(String::new(), system_text(settings, line)?);
        own_images::place(&mut messages, images, line)?;
        self.chat(messages, settings, ("media", line)).map(Built::from)
    }

    /// Whether the user says that a field is a part of the prompt's text.
    fn is_prompt(&self, name: &str) -> bool {
        let mut names =
            self.template.iter().flat_map(Template::names).chain(self.prompt_column.as_deref());
        names.any(|path| path == name || path::root(path) == name)
    }
}

/// Refuses the media of a row that has no place for them.
pub(super) fn refuse_media(images: &[Named], why: &str, line: u64) -> Result<(), RowError> {
    match images.first() {
        None => Ok(()),
        Some(medium) => Err(unsupported::media(medium, why, line)),
    }
}
