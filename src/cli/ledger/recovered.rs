//! `Recovered`: the rows of a journal by what was asked, in bounded memory.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use super::RowHash;
use super::journal::Location;
use super::record::Kind;
use super::scan::{Scanned, Scanner};
use crate::cli::storage::StoredFile;

/// Records that are known at once. An unchanged input finds every row again however long it is: its
/// record is at most a window away from its place in the input.
const MAX_KNOWN: usize = 1 << 19;

/// A finished row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reused {
    /// Where its bytes are.
    pub location: Location,
    /// It is an error row, with this word.
    pub code: Option<Arc<str>>,
    /// Prompt tokens.
    pub input_tokens: u32,
    /// Generated tokens.
    pub output_tokens: u32,
}

/// Finds rows in a journal by their hashes.
pub struct Recovered {
    file: Box<dyn StoredFile>,
    /// Where the next record is looked for; None at the end of what an earlier run wrote.
    next: Option<u64>,
    end: u64,
    known: HashMap<RowHash, Reused>,
    /// `known` by age.
    order: VecDeque<RowHash>,
    num_read: u64,
    /// Error rows are asked again.
    without_errors: bool,
    max_known: usize,
}

impl Recovered {
    /// Reads the records between two places of a journal.
    pub fn new(file: Box<dyn StoredFile>, start: u64, end: u64, without_errors: bool) -> Self {
        Self {
            file,
            next: Some(start),
            end,
            known: HashMap::new(),
            order: VecDeque::new(),
            num_read: 0,
            without_errors,
            max_known: MAX_KNOWN,
        }
    }

    /// The row with this hash. `position` says how far the input is read.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn find(&mut self, position: u64, hash: &RowHash) -> io::Result<Option<Reused>> {
        let wanted = position + self.max_known as u64 / 2;
        while self.num_read <= wanted && self.next.is_some() {
            self.read_some()?;
        }
        Ok(self.known.get(hash).cloned())
    }

    /// Reads a few thousand records.
    fn read_some(&mut self) -> io::Result<()> {
        const BATCH: usize = 4096;
        let Some(start) = self.next else { return Ok(()) };
        let mut found = Vec::new();
        {
            let mut scanner = Scanner::between(&*self.file, start, self.end);
            while found.len() < BATCH {
                match scanner.next_record()? {
                    Some(scanned) => found.push(scanned),
                    None => break,
                }
            }
        }
        self.next = found.last().filter(|_| found.len() == BATCH).map(Scanned::end);
        for scanned in found {
            self.remember(&scanned)?;
        }
        Ok(())
    }

    fn remember(&mut self, scanned: &Scanned) -> io::Result<()> {
        self.num_read += 1;
        let head = &scanned.head;
        let code = match head.kind {
            Kind::Answer => None,
            Kind::Error if self.without_errors => return Ok(()),
            Kind::Error => Some(self.code(scanned)?.into()),
            Kind::Resumed | Kind::End => return Ok(()),
        };
        let reused = Reused {
            location: Location { offset: scanned.row_offset(), length: scanned.row_len() },
            code,
            input_tokens: head.input_tokens,
            output_tokens: head.output_tokens,
        };
        if self.known.insert(head.hash, reused).is_none() {
            self.order.push_back(head.hash);
        }
        while self.order.len() > self.max_known {
            let oldest = self.order.pop_front().expect("more than the most");
            self.known.remove(&oldest);
        }
        Ok(())
    }

    fn code(&self, scanned: &Scanned) -> io::Result<String> {
        let mut bytes = vec![0; scanned.head.code_len()];
        let offset = scanned.row_offset() - bytes.len() as u64;
        crate::cli::storage::read_at_most(&*self.file, &mut bytes, offset)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
