//! `Spill`: rows that wait for an earlier one, on disk, where there is no journal. Gone with the
//! process.

use std::fs::File;
use std::io;

use super::error::LedgerError;
use super::journal::{Location, read_row};
use super::storage::write_all_at;

/// A file without a name, made when memory does not suffice. It is gone with the process.
#[derive(Default)]
pub struct Spill {
    file: Option<File>,
    length: u64,
    /// Rows in it that were not read yet.
    num_rows: u64,
}

impl Spill {
    /// Keeps a row.
    ///
    /// # Errors
    /// The folder for temporary files does not take it.
    pub fn append(&mut self, row: &[u8]) -> Result<Location, LedgerError> {
        let location = Location { offset: self.length, length: row.len() as u64 };
        self.write(row).map_err(failed)?;
        self.num_rows += 1;
        Ok(location)
    }

    fn write(&mut self, row: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile()?),
        };
        write_all_at(file, row, self.length)?;
        self.length += row.len() as u64;
        Ok(())
    }

    /// Gives a row back, once.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(&mut self, location: Location) -> Result<Vec<u8>, LedgerError> {
        let file = self.file.as_ref().expect("a row was appended");
        let row = read_row(file, location).map_err(failed)?;
        self.num_rows -= 1;
        if self.num_rows == 0 {
            file.set_len(0).map_err(failed)?;
            self.length = 0;
        }
        Ok(row)
    }
}

fn failed(error: io::Error) -> LedgerError {
    let folder = std::env::temp_dir();
    LedgerError::of(format!("keep waiting rows in {}", folder.display()), error)
}
