//! The part of a Parquet output: JSON lines while the run goes on, and the table when all rows are
//! there. The journal has the rows until then, so a crash in the middle costs nothing.

use std::io;

use super::storage::{StoredFile, read_at_most, write_all_at};
use vllm_batch_dataset::output::parquet::Table;

/// Read at once of the lines, and of the table when it is moved.
const PIECE: usize = 1 << 20;

/// Puts the table of the rows of a file in their place; its length. `length`: that of the rows.
///
/// The table is written behind the rows and then moved to the front: there is no second file to be
/// named, locked and left behind.
///
/// # Errors
/// The system's, or the parquet crate's.
pub fn write_table(file: &mut dyn StoredFile, table: &Table, length: u64) -> io::Result<u64> {
    let mut writer = table.writer()?;
    let mut lines = Lines { at: 0, end: length, buffer: Vec::new(), taken: 0 };
    let mut end = length;
    let mut append = |file: &mut dyn StoredFile, bytes: &[u8]| {
        write_all_at(file, bytes, end)?;
        end += bytes.len() as u64;
        io::Result::Ok(())
    };
    while let Some(line) = lines.next(&*file)? {
        writer.add(line)?;
        let bytes = writer.take();
        if !bytes.is_empty() {
            append(&mut *file, &bytes)?;
        }
    }
    append(&mut *file, &writer.finish()?)?;
    move_to_front(file, length, end - length)?;
    Ok(end - length)
}

fn move_to_front(file: &mut dyn StoredFile, from: u64, length: u64) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < length {
        let count = usize::try_from(length - at).unwrap_or(PIECE).min(PIECE);
        if read_at_most(file, &mut piece[..count], from + at)? < count {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        write_all_at(file, &piece[..count], at)?;
        at += count as u64;
    }
    file.set_length(length)
}

/// The lines at the beginning of a file.
struct Lines {
    at: u64,
    end: u64,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were given out.
    taken: usize,
}

impl Lines {
    fn next(&mut self, file: &dyn StoredFile) -> io::Result<Option<&[u8]>> {
        let mut searched = self.taken;
        loop {
            let rest = &self.buffer[searched..];
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let start = self.taken;
                self.taken = searched + end + 1;
                return Ok(Some(&self.buffer[start..self.taken]));
            }
            if self.at == self.end {
                return Ok(None);
            }
            self.buffer.drain(..self.taken);
            self.taken = 0;
            searched = self.buffer.len();
            let count = usize::try_from(self.end - self.at).unwrap_or(PIECE).min(PIECE);
            self.buffer.resize(searched + count, 0);
            if read_at_most(file, &mut self.buffer[searched..], self.at)? < count {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.at += count as u64;
        }
    }
}
