//! `Object`: one that is read, the same from its first byte to its last, in ranges.

use std::fmt;
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use super::client::{Answer, Call, Store, changed};
use super::error::{ErrorKind, StoreError};
use super::name::ObjectName;
use vllm_batch_base::machine;

/// Bytes of the first request: enough to see what it is.
const FIRST: u64 = 64 << 10;

/// Bytes of the others. One is read, one waits and one is under way.
const RANGE: u64 = 8 << 20;

/// Repetitions of a request for a range whose answer is not as it was asked for.
const MAX_ODD: u32 = 3;

/// Facts of a store about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Length in bytes.
    pub size: u64,
    /// Name of its bytes, with quotes.
    pub etag: String,
    /// blake3 of its bytes, where this program wrote it.
    pub blake3: Option<String>,
}

/// The header in which the blake3 of an output stands.
pub(super) const BLAKE3: &str = "x-amz-meta-vllm-batch-blake3";

/// An object to be read. What it is, is asked once: other bytes later are an error.
pub struct Object {
    store: Arc<Store>,
    name: ObjectName,
    facts: Mutex<Option<Facts>>,
    copy: Mutex<Option<Arc<File>>>,
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

impl Object {
    /// An object of this name. Nothing is asked yet.
    pub fn new(store: Arc<Store>, name: ObjectName) -> Self {
        Self { store, name, facts: Mutex::default(), copy: Mutex::default() }
    }

    /// Facts about the object.
    ///
    /// # Errors
    /// There is none, or it cannot be reached.
    pub fn facts(&self) -> Result<Facts, StoreError> {
        let mut facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(facts) = &*facts {
            return Ok(facts.clone());
        }
        let found = self.store.facts(&self.name)?;
        Ok(facts.insert(found.ok_or_else(|| absent(&self.name))?).clone())
    }

    /// Bytes in order; a thread reads ahead.
    ///
    /// # Errors
    /// Its first bytes cannot be had.
    pub fn read(&self) -> Result<ObjectReader, StoreError> {
        let ranges = self.ranges()?;
        let first = ranges.get(0, FIRST)?;
        let at = first.len() as u64;
        Ok(ObjectReader { current: Cursor::new(first), next: Next::Unasked(ranges, at) })
    }

    /// Bytes from a place on, as many as asked for or there are.
    ///
    /// # Errors
    /// They cannot be had.
    pub fn range(&self, start: u64, length: u64) -> Result<Vec<u8>, StoreError> {
        self.ranges()?.get(start, length)
    }

    fn ranges(&self) -> Result<Ranges, StoreError> {
        let facts = self.facts()?;
        Ok(Ranges { store: self.store.clone(), name: self.name.clone(), facts })
    }

    /// All of it in a file without a name, which goes with this process; made once.
    ///
    /// # Errors
    /// It cannot be read, or there is no room for it.
    pub fn copy(&self) -> Result<Arc<File>, StoreError> {
        let mut copy = self.copy.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = &*copy {
            return Ok(Arc::clone(copy));
        }
        let file = tempfile::tempfile();
        let mut file = file.map_err(|error| StoreError::disk("make a temporary file", &error))?;
        self.write_to(&mut file)?;
        Ok(Arc::clone(copy.insert(Arc::new(file))))
    }

    /// Writes all of it into a file.
    ///
    /// # Errors
    /// It cannot be read, or there is no room for it.
    pub fn write_to(&self, file: &mut File) -> Result<(), StoreError> {
        let written = io::copy(&mut self.read()?, file);
        written.map(drop).map_err(|error| match error.downcast::<StoreError>() {
            Ok(error) => error,
            Err(error) => StoreError::disk(format!("write a copy of {}", self.name), &error)
                .help("free space; TMPDIR and --work-dir say where it is needed"),
        })
    }
}

pub(super) fn absent(name: &ObjectName) -> StoreError {
    StoreError::new(ErrorKind::NotFound, format!("there is no {name}"))
        .help("check the name; a pattern is 's3://bucket/folder/*.jsonl'")
}

impl Store {
    /// Facts about an object; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be asked for.
    pub fn facts(&self, name: &ObjectName) -> Result<Option<Facts>, StoreError> {
        let answer = self.ask(&Call::new("HEAD", name), &[404])?;
        if answer.status == 404 {
            return Ok(None);
        }
        let size = answer.header("content-length").and_then(|size| size.trim().parse().ok());
        let (Some(size), Some(etag)) = (size, answer.header("etag")) else {
            let message = format!("{name}: the store does not say how long it is, or which");
            return Err(StoreError::new(ErrorKind::Network, message));
        };
        let blake3 = answer.header(BLAKE3).map(str::to_owned);
        Ok(Some(Facts { size, etag: etag.to_owned(), blake3 }))
    }

    /// A small object whole; None if there is none.
    ///
    /// # Errors
    /// It cannot be had.
    pub fn get(&self, name: &ObjectName) -> Result<Option<Vec<u8>>, StoreError> {
        let answer = self.ask(&Call::new("GET", name), &[404])?;
        Ok((answer.status != 404).then_some(answer.body))
    }
}

/// Ranges of an object that does not change.
struct Ranges {
    store: Arc<Store>,
    name: ObjectName,
    facts: Facts,
}

impl Ranges {
    /// Bytes from a place on, as many as asked for or there are.
    fn get(&self, start: u64, length: u64) -> Result<Vec<u8>, StoreError> {
        let end = start.saturating_add(length).min(self.facts.size);
        if start >= end {
            return Ok(Vec::new());
        }
        let range = format!("bytes={start}-{}", end - 1);
        let headers = [("range", range.as_str()), ("if-match", self.facts.etag.as_str())];
        let call = Call { headers: &headers, ..Call::new("GET", &self.name) };
        for _ in 0..MAX_ODD {
            let answer = self.store.ask(&call, &[404, 416])?;
            if matches!(answer.status, 404 | 416) || self.is_other(&answer) {
                return Err(changed(&self.name));
            }
            let is_it = match answer.status {
                206 => content_range(&answer) == Some((start, self.facts.size)),
                // A store without ranges gives all of a small object.
                _ => start == 0 && end == self.facts.size,
            };
            if is_it && answer.body.len() as u64 == end - start {
                return Ok(answer.body);
            }
        }
        let message = format!("{}: other bytes came than were asked for", self.name);
        Err(StoreError::new(ErrorKind::Network, message)
            .help("the store, or a proxy before it, does not answer requests for ranges"))
    }

    /// A store that does not know If-Match still says what it gives.
    fn is_other(&self, answer: &Answer) -> bool {
        answer.header("etag").is_some_and(|etag| etag != self.facts.etag)
    }
}

/// `bytes FIRST-LAST/SIZE`
fn content_range(answer: &Answer) -> Option<(u64, u64)> {
    let (first, rest) = answer.header("content-range")?.strip_prefix("bytes ")?.split_once('-')?;
    Some((first.trim().parse().ok()?, rest.split_once('/')?.1.trim().parse().ok()?))
}

/// The bytes of an object.
pub struct ObjectReader {
    current: Cursor<Vec<u8>>,
    next: Next,
}

/// What comes after the bytes that are here.
enum Next {
    /// From a place on; nobody has asked yet.
    Unasked(Ranges, u64),
    /// A thread asks.
    Coming(Receiver<Result<Vec<u8>, StoreError>>),
    /// All came, or no more will.
    Ended,
}

impl ObjectReader {
    fn next_range(&mut self) -> io::Result<Vec<u8>> {
        loop {
            self.next = match std::mem::replace(&mut self.next, Next::Ended) {
                Next::Ended => return Ok(Vec::new()),
                Next::Unasked(ranges, at) if at >= ranges.facts.size => Next::Ended,
                Next::Unasked(ranges, at) => Next::Coming(read_ahead(ranges, at)),
                Next::Coming(ranges) => match ranges.recv() {
                    Err(_) => Next::Ended,
                    Ok(Err(error)) => return Err(error.into()),
                    Ok(Ok(bytes)) => {
                        self.next = Next::Coming(ranges);
                        return Ok(bytes);
                    }
                },
            };
        }
    }
}

/// Asks for ranges on a thread, one further than is waited for. It ends with its reader.
fn read_ahead(ranges: Ranges, mut at: u64) -> Receiver<Result<Vec<u8>, StoreError>> {
    let (sender, receiver) = sync_channel(1);
    machine::started(std::thread::Builder::new().spawn(move || {
        while at < ranges.facts.size {
            let range = ranges.get(at, RANGE);
            at += range.as_ref().map_or(ranges.facts.size, |bytes| bytes.len() as u64);
            if sender.send(range).is_err() {
                return;
            }
        }
    }));
    receiver
}

impl Read for ObjectReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.current.read(buffer)?;
        if count > 0 || buffer.is_empty() {
            return Ok(count);
        }
        self.current = Cursor::new(self.next_range()?);
        self.current.read(buffer)
    }
}
