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

    /// Goes on with rows that are members of an archive, or that are not.
    pub(in crate::input::row) fn begin_records(&mut self, have_members: bool) {
        self.image_fields.begin_records(have_members);
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

    /// Images of a row's own fields.
    pub(super) fn images(&self, row: &NamedRow, line: u64) -> Result<Vec<Named>, RowError> {
        if row.is_bare {
            return Ok(Vec::new());
        }
        let referred = self.media.referred();
        let row = (&row.fields, line);
        self.image_fields.images(|name| self.is_prompt(name), referred, row)
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
