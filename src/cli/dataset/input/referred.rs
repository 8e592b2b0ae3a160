//! `Referred`: images of tables as VLMEvalKit has them, where a cell may name another row by its
//! `index` in place of its image. They are found before the rows are read, and kept on disk.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;

use super::reader::{Content, InputError, Records};

/// The column by which rows are named.
const INDEX: &str = "index";

/// Characters of the longest cell that names a row, as in VLMEvalKit.
const MAX_NAME: usize = 64;

/// Cells of images that other rows name, by the `index` of their rows.
#[derive(Debug)]
pub struct Referred {
    cells: File,
    /// Where each is there, and its length.
    places: HashMap<String, (u64, usize)>,
}

/// Where a table has both.
struct Columns {
    index: usize,
    image: usize,
}

impl Columns {
    fn of(names: &[String], image: &str) -> Option<Self> {
        let place = |wanted: &str| names.iter().position(|name| name == wanted);
        Some(Self { index: place(INDEX)?, image: place(image)? })
    }
}

impl Referred {
    /// Those of a table that `open` opens, once to find the names and once more if there are some.
    /// None: no row names another.
    ///
    /// # Errors
    /// The table cannot be read, or the disk takes no temporary file.
    pub fn of(
        names: &[String],
        image: &str,
        mut open: impl FnMut() -> Result<Records, InputError>,
    ) -> Result<Option<Self>, InputError> {
        let Some(columns) = Columns::of(names, image) else { return Ok(None) };
        let mut wanted = HashSet::new();
        for_each_row(open()?, &columns, |_, image| {
            if (1..=MAX_NAME).contains(&image.len()) {
                wanted.insert(image.to_owned());
            }
            Ok(())
        })?;
        if wanted.is_empty() {
            return Ok(None);
        }
        let (file, mut places, mut end) = (tempfile::tempfile()?, HashMap::new(), 0);
        let mut writer = BufWriter::new(file);
        for_each_row(open()?, &columns, |index, image| {
            if image.len() > MAX_NAME && wanted.contains(index) {
                writer.write_all(image.as_bytes())?;
                places.insert(index.to_owned(), (end, image.len()));
                end += image.len() as u64;
            }
            Ok(())
        })?;
        let cells = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(Some(Self { cells, places }))
    }

    /// What a cell stands for, if it names a row.
    pub(super) fn cell(&self, name: &str) -> Option<String> {
        let &(start, length) = self.places.get(name)?;
        let mut bytes = vec![0; length];
        self.cells.read_exact_at(&mut bytes, start).ok()?;
        String::from_utf8(bytes).ok()
    }
}

fn for_each_row(
    records: Records,
    columns: &Columns,
    mut row: impl FnMut(&str, &str) -> io::Result<()>,
) -> Result<(), InputError> {
    for record in records {
        let Content::Cells(cells) = record?.content else { continue };
        if let (Some(index), Some(image)) = (cells.get(columns.index), cells.get(columns.image)) {
            row(index, image)?;
        }
    }
    Ok(())
}
