//! Images beside the prompt of a row: whether there are some, and where there can be none.

use super::PromptBuilder;
use crate::input::media::{MediaReader, Named};
use crate::input::path;
use crate::input::row::named::NamedRow;
use crate::input::row::template::Template;
use crate::input::row::{own_images, unsupported};
use crate::input::row_error::RowError;

impl PromptBuilder {
    /// Reads images.
    pub(in crate::input::row) fn media(&self) -> &MediaReader {
        &self.media
    }

    /// The same, to go on with another file.
    pub(in crate::input::row) fn media_mut(&mut self) -> &mut MediaReader {
        &mut self.media
    }

    /// Whether a table of these columns may have images beside its prompts.
    pub(in crate::input::row) fn has_image_column(&self, has: impl Fn(&str) -> bool) -> bool {
        match self.image_column.as_deref() {
            Some(name) => !name.is_empty(),
            None => own_images::KNOWN.iter().any(|name| !self.is_prompt(name) && has(name)),
        }
    }

    /// Whether a row has images beside its prompt, or should have.
    pub(in crate::input::row) fn has_images(&self, row: &NamedRow) -> bool {
        self.images(row, 0).map_or(true, |images| !images.is_empty())
    }

    /// Images of a row's own fields.
    pub(super) fn images(&self, row: &NamedRow, line: u64) -> Result<Vec<Named>, RowError> {
        if row.is_bare {
            return Ok(Vec::new());
        }
        let is_prompt = |name: &str| self.is_prompt(name);
        own_images::of_row(self.image_column.as_deref(), is_prompt, &row.fields, line)
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
