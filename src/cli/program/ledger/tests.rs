//! The ledger on a real disk: what users are promised of their files, whatever ends a run.

mod files;
mod journal;
mod order;
mod output;
mod record;
mod resume;
mod scan;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;

use super::claim::Claim;
use super::fingerprint::Fingerprint;
use super::storage::{Disk, Storage, StoredFile};
use super::*;

/// A file of these bytes, read a few at a time.
pub struct Bytes(pub Vec<u8>);

impl StoredFile for Bytes {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let content = self.0.get(offset as usize..).unwrap_or_default();
        // Neither a power of two nor a divisor of any buffer.
        let count = content.len().min(bytes.len()).min(40_009);
        bytes[..count].copy_from_slice(&content[..count]);
        Ok(count)
    }

    fn write_at(&mut self, _bytes: &[u8], _offset: u64) -> io::Result<usize> {
        unreachable!("it is only read")
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn set_length(&mut self, _length: u64) -> io::Result<()> {
        unreachable!("it is only read")
    }

    fn sync(&mut self) -> io::Result<()> {
        unreachable!("it is only read")
    }

    fn try_lock(&self) -> bool {
        true
    }

    fn is_named(&self, _path: &Path) -> bool {
        true
    }

    fn take_permissions_of(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }
}

/// Numbers from a seed.
pub struct Random(pub u64);

impl Random {
    /// A number below a limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// The numbers below `count` in an order in which none is further than `reach` from its place.
pub fn shuffled_within(reach: u64, count: u64, seed: u64) -> Vec<u64> {
    let mut random = Random(seed);
    let late = |number| (number + random.below(reach + 1), number);
    let mut keyed: Vec<_> = (0..count).map(late).collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, number)| number).collect()
}

/// The hash of row `number`.
pub fn hash(number: u64) -> RowHash {
    let mut bytes = [7; 16];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    RowHash(bytes)
}

/// An answer.
fn answer(position: u64, text: &str) -> Finished {
    let row = text.as_bytes().to_vec();
    Finished {
        position,
        hash: hash(position),
        code: None,
        input_tokens: 3,
        output_tokens: 4,
        row,
        media: Vec::new(),
    }
}

/// An error row.
fn failure(position: u64, text: &str) -> Finished {
    Finished { code: Some("bad_json"), ..answer(position, text) }
}

/// Of a run that began at this time with these fields.
fn header_of(started: i64, fields: &[(&str, &str)]) -> Header {
    let fields = fields.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    Header {
        started,
        replaces: false,
        keeps: false,
        fingerprint: Fingerprint::new(fields.collect()),
    }
}

fn header() -> Header {
    header_of(5, &[("model", "demo"), ("dtype", "float32")])
}

/// A stream whose writes are looked at, and of which the n-th fails.
#[derive(Clone)]
struct Probe {
    writes: Arc<Mutex<Vec<String>>>,
    num_tries: usize,
    fail_at: usize,
    kind: io::ErrorKind,
}

impl Probe {
    fn new() -> Self {
        Self::failing(usize::MAX, io::ErrorKind::Other)
    }

    fn failing(fail_at: usize, kind: io::ErrorKind) -> Self {
        Self { writes: Arc::default(), num_tries: 0, fail_at, kind }
    }

    fn writes(&self) -> Vec<String> {
        self.writes.lock().unwrap().clone()
    }

    fn text(&self) -> String {
        self.writes().concat()
    }

    /// A ledger without a journal that writes here.
    fn ledger(&self) -> Ledger {
        Ledger {
            book: Some(Book::Spill(Spill::default())),
            columns: Vec::new(),
            output: Output::to_stream(Box::new(self.clone())),
            errors: None,
            next: 0,
            waiting: VecDeque::new(),
            held_bytes: 0,
            in_any_order: false,
            side_file: None,
            num_resumes: 0,
        }
    }
}

impl Write for Probe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.num_tries += 1;
        if self.num_tries > self.fail_at {
            self.fail_at = usize::MAX;
            return Err(self.kind.into());
        }
        self.writes.lock().unwrap().push(String::from_utf8_lossy(bytes).into_owned());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A folder for the files of a run.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("temporary folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(name), bytes).expect("temporary folder");
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8(self.read(name)).expect("text")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).expect("temporary folder");
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Output `out` here.
    fn options(&self) -> LedgerOptions {
        LedgerOptions { out: Some(self.path("out")), ..LedgerOptions::default() }
    }

    /// Rows to a file here, without a ledger.
    fn output(&self, name: &str) -> Output {
        let disk: Arc<dyn Storage> = Arc::new(Disk);
        Output::to_file(Claim::take(&disk, &self.path(name)).expect("a folder"))
    }

    fn locked(&self) -> Result<LockedOutput, LedgerError> {
        open(self.options())
    }

    fn overwriting(&self) -> Result<LockedOutput, LedgerError> {
        open(LedgerOptions { overwrite: true, ..self.options() })
    }

    /// A new run into `out`.
    fn ledger(&self) -> Ledger {
        self.locked().and_then(|locked| locked.begin(header())).expect("nothing is in its way").0
    }
}

fn open(options: LedgerOptions) -> Result<LockedOutput, LedgerError> {
    LockedOutput::open(Arc::new(Disk), options)
}

/// What ends a run whose side file nobody looks at.
fn finish(ledger: Ledger) -> Result<(), LedgerError> {
    ledger.finish(|totals| format!("{} rows", totals.output.num_rows))
}
