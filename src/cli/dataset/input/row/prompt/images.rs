//! Images beside the prompt of a row: whether there are some, and where there can be none.

use super::{Beside, Built, PromptBuilder, system_text};
use crate::input::media::{MediaReader, Named};
use crate::input::path;
use crate::input::reader::Brought;
use crate::input::row::named::NamedRow;
use crate::input::row::shape::RowShape;
use crate::input::row::template::Template;
use crate::input::row::{messages, own_images, unsupported};
use crate::input::row_error::{RowError, code};

impl PromptBuilder {
    /// Reads images.
    pub(in crate::input::row) fn media(&self) -> &MediaReader {
        &self.media
    }

    /// The same, to go on with another file.
    pub(in crate::input::row) fn media_mut(&mut self) -> &mut MediaReader {
        &mut self.media
    }

    /// Goes on with rows that have such images with them.
    pub(in crate::input::row) fn begin_records(&mut self, brought: Brought) {
        self.image_fields.begin_records(brought);
    }

    /// The column of a table whose cells are images, and may name other rows.
    pub(in crate::input::row) fn image_column(&self) -> &str {
        self.image_fields.named().unwrap_or(own_images::KNOWN[0])
    }

    /// Whether a table of these columns may have images beside its prompts.
    pub(in crate::input::row) fn has_image_column(&self, columns: &[String]) -> bool {
        self.image_fields.are_in(columns, |name| self.is_prompt(name))
    }

    /// Whether a row has images beside its prompt, or should have.
    pub(in crate::input::row) fn has_images(&self, row: &NamedRow) -> bool {
        self.images(row, 0).map_or(true, |images| !images.is_empty())
    }

    /// A field of rows that may hold images, and is not read.
    pub(in crate::input::row) fn unread_images(
        &self,
        is_there: impl Fn(&str) -> bool,
    ) -> Option<&'static str> {
        self.image_fields.unread(|name| is_there(name) && !self.is_prompt(name))
    }

    /// The shape of a row without a prompt, if its images are what is asked about.
    pub(super) fn of_images(&self, row: &NamedRow) -> Option<RowShape> {
        let is_it = self.task.takes_images_alone() && self.has_images(row);
        is_it.then_some(RowShape::Images)
    }

    /// Images of a row's own fields.
    pub(super) fn images(&self, row: &NamedRow, line: u64) -> Result<Vec<Named>, RowError> {
        if row.is_bare {
            return Ok(Vec::new());
        }
        let referred = self.media.referred();
        let row = (&row.fields, line);
        self.image_fields.images(|name| self.is_prompt(name), referred, row)
    }

    /// A turn of a user that is the images of a row and nothing else.
    pub(super) fn alone(&self, beside: Beside<'_>) -> Result<Built, RowError> {
        let Beside { settings, images, line, .. } = beside;
        if images.is_empty() {
            let message = "the row has neither a prompt nor an image";
            return Err(RowError::new(code::ROW_SHAPE, line, message));
        }
        let mut messages = messages::from_text(String::new(), system_text(settings, line)?);
        own_images::place(&mut messages, images, line)?;
        self.chat(messages, settings, ("image", line)).map(Built::from)
    }

    /// Whether the user says that a field is a part of the prompt's text.
    fn is_prompt(&self, name: &str) -> bool {
        let mut names =
            self.template.iter().flat_map(Template::names).chain(self.prompt_column.as_deref());
        names.any(|path| path == name || path::root(path) == name)
    }
}

/// Refuses the images of a row that has no place for them.
pub(super) fn refuse_images(images: &[Named], why: &str, line: u64) -> Result<(), RowError> {
    match images.first() {
        None => Ok(()),
        Some(image) => Err(unsupported::images(&image.place, why, line)),
    }
}
