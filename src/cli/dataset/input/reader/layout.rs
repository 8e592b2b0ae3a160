//! `Layout`: how the bytes of an input become rows, as flags and file names say it.

use super::InputFormat;
use super::encoding::TextEncoding;

/// Rule by which the bytes of an input become rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Format of the text.
    pub format: InputFormat,
    /// `--format` names the format. Else the file name does, or nothing.
    pub is_told: bool,
    /// `--encoding`.
    pub encoding: TextEncoding,
    /// `--delimiter`: the byte between the cells of a table.
    pub delimiter: Option<u8>,
    /// `--no-header`: the first line of a table is a row.
    pub no_header: bool,
}

impl Layout {
    /// A flag that only tables use.
    pub fn flag_of_tables(&self) -> Option<&'static str> {
        match (self.delimiter, self.no_header) {
            (Some(_), _) => Some("--delimiter"),
            (None, true) => Some("--no-header"),
            (None, false) => None,
        }
    }
}

impl From<InputFormat> for Layout {
    fn from(format: InputFormat) -> Self {
        Self { format, ..Self::default() }
    }
}

/// Settings by which an input is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading<'a> {
    /// As flags and file names say it.
    pub layout: Layout,
    /// Columns that make a table of text whose format nobody names. None: such text has no columns.
    pub names: Option<&'a HeaderNames>,
}

impl<L: Into<Layout>> From<L> for Reading<'_> {
    fn from(layout: L) -> Self {
        Self { layout: layout.into(), names: None }
    }
}

/// Names of columns by which the header of a table is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderNames {
    any_of: Vec<Vec<String>>,
    needs_columns: bool,
}

impl HeaderNames {
    /// A header has all names of one of these lists.
    pub fn any_of(lists: impl IntoIterator<Item = Vec<String>>) -> Self {
        Self { any_of: lists.into_iter().collect(), needs_columns: false }
    }

    /// The same for rows that lines of text cannot be.
    pub fn needing_columns(self) -> Self {
        Self { needs_columns: true, ..self }
    }

    /// Whether lines of text cannot be rows.
    pub(super) fn need_columns(&self) -> bool {
        self.needs_columns
    }

    /// Whether cells are a header with the names, in capitals or not.
    pub(super) fn are_in(&self, cells: &[String]) -> bool {
        let is_there = |name: &String| cells.iter().any(|cell| cell.eq_ignore_ascii_case(name));
        self.any_of.iter().any(|names| names.iter().all(is_there))
    }
}
