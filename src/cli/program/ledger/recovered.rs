//! `Recovered`: the rows of a journal by what was asked, in bounded memory. Reads the journal
//! beside its writer, and changes nothing.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use super::RowHash;
use super::fetched_media;
use super::journal::{Location, read_row};
use super::record::Kind;
use super::row_hash::ContentHash;
use super::scan::{Scanned, Scanner};
use super::storage::StoredFile;
use vllm_batch_dataset::input::media::FetchedImage;

/// How many records before and behind a row's place in the input its own is looked for. Rows finish
/// in another order than they are read in, but no further apart than the window lets them, so an
/// unchanged input finds every row again however long it is.
const REACH: u64 = 1 << 18;

/// Records that are read at once.
const BATCH: u64 = 4096;

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

/// Images of a row that an earlier run fetched.
type Images = Arc<[FetchedImage]>;

/// Finds rows in a journal by their hashes.
pub struct Recovered {
    file: Box<dyn StoredFile>,
    /// Where the next record is looked for; None at the end of what an earlier run wrote.
    next: Option<u64>,
    end: u64,
    /// With the number of the record.
    known: HashMap<RowHash, (u64, Reused)>,
    /// Records that are known, the oldest first. A hash that came again stands here twice.
    order: VecDeque<(u64, RowHash)>,
    num_read: u64,
    /// Error rows are asked again.
    without_errors: bool,
    reach: u64,
    /// How far the input is read.
    position: u64,
    /// Images at URLs of rows that are known, by what was read of these. None: nobody asks.
    images: Option<HashMap<ContentHash, (u64, Images)>>,
    /// Images of the row whose record is next.
    next_images: Option<(RowHash, ContentHash, Images)>,
    /// What `images` has of records in `order`.
    with_images: VecDeque<(u64, ContentHash)>,
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
            reach: REACH,
            position: 0,
            images: None,
            next_images: None,
            with_images: VecDeque::new(),
        }
    }

    /// The same with images of rows too, for `images_of`.
    pub fn with_images(self) -> Self {
        Self { images: Some(HashMap::new()), ..self }
    }

    /// The images at URLs that a finished row had, by what was read of it; none where none is
    /// known. Of several such rows, those of the last.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn images_of(&mut self, text: &ContentHash) -> io::Result<Vec<FetchedImage>> {
        self.read_to(self.position)?;
        let found = self.images.as_ref().and_then(|images| images.get(text));
        Ok(found.map(|(_, images)| images.to_vec()).unwrap_or_default())
    }

    /// The row with this hash. `position` says how far the input is read.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn find(&mut self, position: u64, hash: &RowHash) -> io::Result<Option<Reused>> {
        self.read_to(position)?;
        Ok(self.known.get(hash).map(|(_, reused)| reused.clone()))
    }

    fn read_to(&mut self, position: u64) -> io::Result<()> {
        self.position = position;
        let wanted = position + self.reach;
        while self.num_read <= wanted && self.next.is_some() {
            self.read_some()?;
        }
        Ok(())
    }

    fn batch(&self) -> u64 {
        BATCH.min(self.reach)
    }

    fn read_some(&mut self) -> io::Result<()> {
        let Some(start) = self.next else { return Ok(()) };
        let batch = self.batch() as usize;
        let mut found = Vec::new();
        {
            let mut scanner = Scanner::between(&*self.file, start, self.end);
            while found.len() < batch {
                match scanner.next_record()? {
                    Some(scanned) => found.push(scanned),
                    None => break,
                }
            }
        }
        self.next = found.last().filter(|_| found.len() == batch).map(Scanned::end);
        for scanned in found {
            self.remember(&scanned)?;
            // A row counts once, with images or without.
            self.num_read += u64::from(scanned.head.kind != Kind::Media);
        }
        self.forget();
        Ok(())
    }

    fn remember(&mut self, scanned: &Scanned) -> io::Result<()> {
        let head = &scanned.head;
        let images = self.next_images.take().filter(|(hash, ..)| *hash == head.hash);
        let code = match head.kind {
            Kind::Answer => None,
            Kind::Error if self.without_errors => return Ok(()),
            Kind::Error => Some(self.code(scanned)?.into()),
            Kind::Media if self.images.is_some() => {
                let bytes = read_row(&*self.file, location(scanned))?;
                let decoded = fetched_media::decode(&bytes);
                self.next_images = decoded.map(|(text, images)| (head.hash, text, images.into()));
                return Ok(());
            }
            Kind::Resumed | Kind::End | Kind::Columns | Kind::Media => return Ok(()),
        };
        if let (Some(known), Some((_, text, images))) = (&mut self.images, images) {
            known.insert(text, (self.num_read, images));
            self.with_images.push_back((self.num_read, text));
        }
        let reused = Reused {
            location: location(scanned),
            code,
            input_tokens: head.input_tokens,
            output_tokens: head.output_tokens,
        };
        self.known.insert(head.hash, (self.num_read, reused));
        self.order.push_back((self.num_read, head.hash));
        Ok(())
    }

    /// Drops records that are further back than any row is looked for. What was read ahead of the
    /// last position is at most a batch more than the reach.
    fn forget(&mut self) {
        let kept = 2 * self.reach + self.batch();
        while let Some((number, hash)) = self.order.front()
            && number + kept < self.num_read
        {
            // It may have come again since.
            if self.known.get(hash).is_some_and(|(latest, _)| latest == number) {
                self.known.remove(hash);
            }
            self.order.pop_front();
        }
        while let (Some(known), Some((number, text))) = (&mut self.images, self.with_images.front())
            && number + kept < self.num_read
        {
            if known.get(text).is_some_and(|(latest, _)| latest == number) {
                known.remove(text);
            }
            self.with_images.pop_front();
        }
    }

    fn code(&self, scanned: &Scanned) -> io::Result<String> {
        let mut bytes = vec![0; scanned.head.code_len()];
        let offset = scanned.row_offset() - bytes.len() as u64;
        super::storage::read_at_most(&*self.file, &mut bytes, offset)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Where the row of a record is.
fn location(scanned: &Scanned) -> Location {
    Location { offset: scanned.row_offset(), length: scanned.row_len() }
}

#[cfg(test)]
mod tests;
