//! `Scanner`: the whole records of a journal, whatever a crash left between and after them. Says
//! where they end, and repairs nothing.

use std::io;

use super::record::{RECORD_LEN, RECORD_MAGIC, RecordHead};
use super::storage::{StoredFile, read_at_most};

/// Read at once.
const BUFFER: usize = 256 << 10;

/// A record that was found whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Where it begins.
    pub offset: u64,
    /// What it says of its payload.
    pub head: RecordHead,
}

impl Scanned {
    /// Where the row begins, after the word of an error.
    pub fn row_offset(&self) -> u64 {
        self.offset + (RECORD_LEN + self.head.code_len()) as u64
    }

    /// Bytes of the row.
    pub fn row_len(&self) -> u64 {
        self.head.payload_len() - self.head.code_len() as u64
    }

    /// Where the next record begins.
    pub fn end(&self) -> u64 {
        self.offset + RECORD_LEN as u64 + self.head.payload_len()
    }
}

/// Reads records one after the other. What is not whole is skipped up to the next that is: a record
/// with good checksums is good, wherever it stands.
pub struct Scanner<'a> {
    file: &'a dyn StoredFile,
    position: u64,
    length: u64,
    /// A piece of the file.
    buffer: Vec<u8>,
    buffer_start: u64,
    /// Begin of every stretch that is no record, and of an unfinished tail.
    damaged: Vec<u64>,
}

impl<'a> Scanner<'a> {
    /// Looks at the file from `start`, where its header ends.
    ///
    /// # Errors
    /// The file's.
    pub fn new(file: &'a dyn StoredFile, start: u64) -> io::Result<Self> {
        Ok(Self::between(file, start, file.length()?))
    }

    /// Looks at a stretch of the file.
    pub fn between(file: &'a dyn StoredFile, start: u64, end: u64) -> Self {
        let (buffer, damaged) = (Vec::new(), Vec::new());
        Self { file, position: start, length: end, buffer, buffer_start: 0, damaged }
    }

    /// The next whole record.
    ///
    /// # Errors
    /// The file's.
    pub fn next_record(&mut self) -> io::Result<Option<Scanned>> {
        let from = self.position;
        let mut at = from;
        while at < self.length {
            if let Some(scanned) = self.record_at(at)? {
                if at > from {
                    self.damaged.push(from);
                }
                self.position = scanned.end();
                return Ok(Some(scanned));
            }
            match self.find_magic(at + 1)? {
                Some(found) => at = found,
                None => break,
            }
        }
        if from < self.length {
            self.damaged.push(from);
        }
        self.position = self.length;
        Ok(None)
    }

    /// Where stretches begin that hold no record, so far.
    pub fn damaged(&self) -> &[u64] {
        &self.damaged
    }

    fn record_at(&mut self, at: u64) -> io::Result<Option<Scanned>> {
        let mut bytes = [0; RECORD_LEN];
        if self.length - at < RECORD_LEN as u64 || !self.copy(at, &mut bytes)? {
            return Ok(None);
        }
        let Some(head) = RecordHead::decode(&bytes) else { return Ok(None) };
        let scanned = Scanned { offset: at, head };
        if head.payload_len() > self.length - at - RECORD_LEN as u64 {
            return Ok(None);
        }
        let is_whole =
            self.checksum(at + RECORD_LEN as u64, head.payload_len())? == Some(head.payload_crc());
        Ok(is_whole.then_some(scanned))
    }

    /// crc32c of a stretch of the file; None if the file is shorter.
    fn checksum(&mut self, mut at: u64, mut length: u64) -> io::Result<Option<u32>> {
        let mut crc = 0;
        while length > 0 {
            let piece = self.piece(at)?;
            if piece.is_empty() {
                return Ok(None);
            }
            let count = (piece.len() as u64).min(length);
            crc = crc32c::crc32c_append(crc, &piece[..count as usize]);
            at += count;
            length -= count;
        }
        Ok(Some(crc))
    }

    fn copy(&mut self, at: u64, bytes: &mut [u8]) -> io::Result<bool> {
        let mut filled = 0;
        while filled < bytes.len() {
            let piece = self.piece(at + filled as u64)?;
            if piece.is_empty() {
                return Ok(false);
            }
            let count = piece.len().min(bytes.len() - filled);
            bytes[filled..filled + count].copy_from_slice(&piece[..count]);
            filled += count;
        }
        Ok(true)
    }

    fn find_magic(&mut self, mut at: u64) -> io::Result<Option<u64>> {
        let magic = RECORD_MAGIC;
        loop {
            let piece = self.piece(at)?;
            let Some(skipped) = piece.iter().position(|&byte| byte == magic[0]) else {
                if piece.is_empty() {
                    return Ok(None);
                }
                at += piece.len() as u64;
                continue;
            };
            at += skipped as u64;
            let mut bytes = [0; RECORD_MAGIC.len()];
            if self.copy(at, &mut bytes)? && bytes == magic {
                return Ok(Some(at));
            }
            at += 1;
        }
    }

    /// The bytes at a place, as many as the buffer holds; none at the end.
    fn piece(&mut self, at: u64) -> io::Result<&[u8]> {
        let end = self.buffer_start + self.buffer.len() as u64;
        if at < self.buffer_start || at >= end {
            self.buffer.resize(BUFFER, 0);
            let count = read_at_most(self.file, &mut self.buffer, at)?;
            self.buffer.truncate(count);
            self.buffer_start = at;
        }
        Ok(&self.buffer[(at - self.buffer_start) as usize..])
    }
}
