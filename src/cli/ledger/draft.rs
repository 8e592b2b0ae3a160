//! `Draft`: an output that is locked and looked at before anything is written. It says what an
//! earlier run left, and becomes a `Ledger`.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::LedgerError;
use super::journal::{Found, LockedJournal};
use super::output::{Facts, Output, part_of, publish, publish_text, with_suffix};
use super::record::Header;
use super::recovered::Recovered;
use super::spill::Spill;
use super::{Book, Ledger};
use crate::cli::fingerprint::Fingerprint;
use crate::cli::meta::Meta;
use crate::cli::storage::{Access, Storage, StoredFile, identity, read_at_most};

/// Which files.
#[derive(Clone, Debug, Default)]
pub struct LedgerOptions {
    /// None: standard output.
    pub out: Option<PathBuf>,
    /// Where error rows go instead.
    pub errors: Option<PathBuf>,
    /// The journal; None: beside the output, and none for standard output.
    pub journal: Option<PathBuf>,
    /// What is being read.
    pub input: Option<PathBuf>,
    /// Start over, and replace what exists.
    pub overwrite: bool,
    /// Ask error rows again, and replace what exists.
    pub retry_failed: bool,
}

/// An output before the first row.
pub struct Draft {
    storage: Arc<dyn Storage>,
    options: LedgerOptions,
    /// None: a stream.
    path: Option<PathBuf>,
    stream: Option<Box<dyn Write + Send>>,
    /// Where error rows go, if that is no file.
    errors_stream: Option<Box<dyn Write + Send>>,
    journal: Option<LockedJournal>,
    found: Option<Found>,
    /// The side file of an output that is complete.
    complete: Option<Meta>,
    /// The same, where its error rows are to be asked again.
    previous: Option<Meta>,
}

impl Draft {
    /// Locks the output and looks at what is there. An output that was whole when its run was
    /// killed gets its name here.
    ///
    /// # Errors
    /// It exists, is the input or another run's, or cannot be created.
    pub fn open(
        storage: Arc<dyn Storage>,
        mut options: LedgerOptions,
    ) -> Result<Self, LedgerError> {
        let (path, stream) = destination(options.out.as_deref())?;
        let mut errors_stream = None;
        if let Some(errors) = options.errors.take() {
            (options.errors, errors_stream) = destination(Some(&errors))?;
        }
        let journal = options.journal.clone();
        let journal = journal.or_else(|| Some(with_suffix(path.as_deref()?, ".journal")));
        let mut draft = Self {
            storage: Arc::clone(&storage),
            options,
            path,
            stream,
            errors_stream,
            journal: None,
            found: None,
            complete: None,
            previous: None,
        };
        draft.refuse_same_names(journal.as_deref())?;
        if let Some(name) = &journal {
            Self::refuse_device(name)?;
            let mut journal = LockedJournal::open(storage, name)?;
            if !draft.options.overwrite {
                draft.found = journal.read()?;
            }
            draft.journal = Some(journal);
        }
        match draft.path {
            Some(_) => draft.look_at_outputs()?,
            None => draft.refuse_existing_errors()?,
        }
        Ok(draft)
    }

    /// A journal is removed at the end: that would destroy /dev/null.
    fn refuse_device(journal: &Path) -> Result<(), LedgerError> {
        match fs::metadata(journal) {
            Ok(found) if !found.is_file() => {
                let action = format!("keep a journal in {}", journal.display());
                Err(LedgerError::of(action, io::Error::other("it is not a regular file")))
            }
            _ => Ok(()),
        }
    }

    fn refuse_same_names(&self, journal: Option<&Path>) -> Result<(), LedgerError> {
        let out = self.path.as_deref();
        let errors = self.options.errors.as_deref();
        let parts = [out.map(part_of), errors.map(part_of), out.map(side_file_of)];
        let names = [out, errors, journal].into_iter().flatten();
        let mut names: Vec<&Path> = names.chain(parts.iter().flatten().map(|p| &**p)).collect();
        let input = self.options.input.as_deref().unwrap_or(Path::new("/dev/stdin"));
        if let Ok(input) = fs::metadata(input)
            && let Some(same) = names.iter().find(|name| {
                fs::metadata(name).is_ok_and(|found| identity(&found) == identity(&input))
            })
            && input.is_file()
        {
            return Err(LedgerError::SameAsInput((*same).to_owned()));
        }
        names.sort();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(LedgerError::Twice(pair[0].to_owned())),
            None => Ok(()),
        }
    }

    /// Decides between a new run, one to be continued, and one that is complete.
    fn look_at_outputs(&mut self) -> Result<(), LedgerError> {
        let Some(path) = self.path.clone().filter(|_| !self.options.overwrite) else {
            return Ok(());
        };
        if let Some(found) = &self.found
            && let Some(text) = &found.end
            && let Ok(meta) = serde_json::from_str::<Meta>(text)
            && self.name_outputs(&meta, text)?
        {
            self.take_complete(meta);
            self.found = None;
            if self.complete.is_none() {
                // The run goes on, and its journal has lost its name above.
                let journal = self.journal.take().expect("the end was read from it");
                let name = journal.path().to_owned();
                drop(journal);
                self.journal = Some(LockedJournal::open(Arc::clone(&self.storage), &name)?);
            }
            return Ok(());
        }
        let replaces = self.found.as_ref().is_some_and(|found| found.header.replaces);
        if self.storage.exists(&path) && !replaces {
            let meta = self.read_side_file(&side_file_of(&path))?;
            self.take_complete(meta.ok_or(LedgerError::Exists(path))?);
            self.found = None;
            return Ok(());
        }
        if self.options.retry_failed && self.storage.exists(&path) {
            // A run that asks again was interrupted: the old output is still there.
            self.previous = self.read_side_file(&side_file_of(&path))?;
        }
        let part = part_of(&path);
        if self.found.is_none() && self.length(&part)?.is_some_and(|length| length > 0) {
            return Err(LedgerError::Unfinished(part));
        }
        self.refuse_existing_errors()
    }

    /// A file of errors that no run of this journal made stays.
    fn refuse_existing_errors(&self) -> Result<(), LedgerError> {
        let found = self.found.as_ref();
        // Of a stream nobody knows what it took: all rows of its journal are written again, and the
        // errors, which may have their name already.
        let is_ours = found.is_some_and(|found| found.header.replaces || found.end.is_some());
        match self.options.errors.clone() {
            Some(errors) if !is_ours && !self.options.overwrite && self.storage.exists(&errors) => {
                Err(LedgerError::Exists(errors))
            }
            _ => Ok(()),
        }
    }

    /// An output with error rows that are to be asked again is no end.
    fn take_complete(&mut self, meta: Meta) {
        let place = match self.options.retry_failed && meta.rows.failed > 0 {
            true => &mut self.previous,
            false => &mut self.complete,
        };
        *place = Some(meta);
    }

    /// Does what a run did not come to whose outputs were whole: names, side file, no journal.
    /// False: they are not whole.
    fn name_outputs(&self, meta: &Meta, text: &str) -> Result<bool, LedgerError> {
        let path = self.path.clone().expect("a file");
        let mut files = vec![(path.clone(), meta.output.facts())];
        if let Some(errors) = &meta.errors {
            files.insert(0, (PathBuf::from(&errors.path), errors.facts()));
        }
        let mut unnamed = Vec::new();
        for (path, facts) in &files {
            let part = part_of(path);
            match self.holds(&part, facts)? {
                true => unnamed.push((part, path)),
                false if self.holds(path, facts)? => {}
                false => return Ok(false),
            }
        }
        for (part, path) in unnamed {
            publish(&*self.storage, &part, path)?;
        }
        publish_text(&*self.storage, text, &side_file_of(&path))?;
        let journal = self.journal.as_ref().expect("the end was read from it");
        self.storage.remove(journal.path()).map_err(|error| {
            LedgerError::of(format!("remove {}", journal.path().display()), error)
        })?;
        Ok(true)
    }

    /// A file to be looked at; None where there is none.
    fn open_existing(&self, path: &Path) -> Result<Option<Box<dyn StoredFile>>, LedgerError> {
        match self.storage.open(path, Access::Read) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            file => file.map(Some).map_err(|error| unreadable(path, error)),
        }
    }

    fn length(&self, path: &Path) -> Result<Option<u64>, LedgerError> {
        let Some(file) = self.open_existing(path)? else { return Ok(None) };
        file.length().map(Some).map_err(|error| unreadable(path, error))
    }

    /// Whether a file is there with these bytes.
    fn holds(&self, path: &Path, facts: &Facts) -> Result<bool, LedgerError> {
        let Some(file) = self.open_existing(path)? else { return Ok(false) };
        let holds = || -> io::Result<bool> {
            Ok(file.length()? == facts.bytes && hash_of(&*file)? == facts.blake3)
        };
        holds().map_err(|error| unreadable(path, error))
    }

    fn read_side_file(&self, path: &Path) -> Result<Option<Meta>, LedgerError> {
        let Some(file) = self.open_existing(path)? else { return Ok(None) };
        let read = || -> io::Result<Vec<u8>> {
            let mut bytes = vec![0; file.length()? as usize];
            read_at_most(&*file, &mut bytes, 0)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|error| unreadable(path, error))?;
        Ok(serde_json::from_slice(&bytes).ok())
    }

    /// What an unfinished run left that may be continued.
    pub fn found(&self) -> Option<&Found> {
        self.found.as_ref()
    }

    /// What the side file of a complete output says.
    pub fn complete(&self) -> Option<&Meta> {
        self.complete.as_ref()
    }

    /// The same of one whose error rows are to be asked again.
    pub fn previous(&self) -> Option<&Meta> {
        self.previous.as_ref()
    }

    /// The output, where it is a file.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The journal, where there is one.
    pub fn journal_path(&self) -> Option<&Path> {
        self.journal.as_ref().map(LockedJournal::path)
    }

    /// The output alone, for rows that come in order and can be had again; and the lock on it.
    /// What a journal with the fingerprint `own` began may be begun again.
    ///
    /// # Errors
    /// There is an output, or one of another unfinished run.
    pub fn into_output(
        self,
        own: &Fingerprint,
    ) -> Result<(Output, Option<LockedJournal>), LedgerError> {
        let Self { storage, path, stream, journal, found, complete, .. } = self;
        let found = found.filter(|found| found.header.fingerprint != *own);
        match (stream, path) {
            (Some(stream), _) => Ok((Output::to_stream(stream), journal)),
            (None, Some(path)) if complete.is_some() => Err(LedgerError::Exists(path)),
            (None, Some(path)) if found.is_some() => Err(LedgerError::Unfinished(part_of(&path))),
            (None, Some(path)) => Ok((Output::to_file(storage, &path), journal)),
            (None, None) => unreachable!("an output is a stream or a file"),
        }
    }

    /// Begins or continues. Nothing is written before the first row comes.
    ///
    /// # Errors
    /// The run to be continued would have written other bytes.
    pub fn begin(self, header: Header) -> Result<(Ledger, Option<Recovered>), LedgerError> {
        let Self { storage, options, path, stream, errors_stream, journal, found, .. } = self;
        let mut recovered = None;
        let mut num_resumes = 0;
        let book = match (journal, found) {
            (None, _) => Book::Spill(Spill::default()),
            (Some(journal), None) => Book::New(journal, header),
            (Some(journal), Some(found)) => {
                let differences = found.header.fingerprint.differences(&header.fingerprint);
                if !differences.is_empty() {
                    let path = journal.path().to_owned();
                    return Err(LedgerError::Differs { path, differences });
                }
                num_resumes = found.num_resumes + 1;
                let (start, end) = (found.start, found.length);
                let reader = journal.reader()?;
                recovered = Some(Recovered::new(reader, start, end, options.retry_failed));
                Book::Continued(journal, found)
            }
        };
        let to_file = |path: &PathBuf| Output::to_file(Arc::clone(&storage), path);
        let output = match (stream, &path) {
            (Some(stream), _) => Output::to_stream(stream),
            (None, Some(path)) => to_file(path),
            (None, None) => unreachable!("an output is a stream or a file"),
        };
        let errors = match errors_stream {
            Some(stream) => Some(Output::to_stream(stream)),
            None => options.errors.as_ref().map(to_file),
        };
        let side_file = path.as_deref().map(side_file_of);
        let ledger = Ledger {
            storage,
            book: Some(book),
            output,
            errors,
            next: 0,
            waiting: Default::default(),
            held_bytes: 0,
            side_file,
            num_resumes,
        };
        Ok((ledger, recovered))
    }
}

fn unreadable(path: &Path, error: io::Error) -> LedgerError {
    LedgerError::of(format!("read {}", path.display()), error)
}

/// blake3 of a file's bytes, as 64 hexadecimal digits.
fn hash_of(file: &dyn StoredFile) -> io::Result<String> {
    let (mut hasher, mut buffer, mut at) = (blake3::Hasher::new(), vec![0; 1 << 20], 0);
    loop {
        match read_at_most(file, &mut buffer, at)? {
            0 => return Ok(hasher.finalize().to_hex().to_string()),
            count => {
                hasher.update(&buffer[..count]);
                at += count as u64;
            }
        }
    }
}

/// `FILE.meta.json`.
pub fn side_file_of(path: &Path) -> PathBuf {
    with_suffix(path, ".meta.json")
}

/// A file to be made, or a stream: standard output, a device or a pipe.
#[expect(clippy::type_complexity, reason = "one or the other")]
fn destination(
    out: Option<&Path>,
) -> Result<(Option<PathBuf>, Option<Box<dyn Write + Send>>), LedgerError> {
    // Redirected to a file, /dev/stdout would look like one that exists.
    let Some(path) = out.filter(|path| *path != Path::new("/dev/stdout")) else {
        return Ok((None, Some(Box::new(io::stdout()))));
    };
    let act = |verb: &str| format!("{verb} {}", path.display());
    let Ok(found) = fs::metadata(path) else { return Ok((Some(path.to_owned()), None)) };
    if found.is_dir() {
        return Err(LedgerError::of(act("write to"), ErrorKind::IsADirectory.into()));
    }
    if !found.is_file() {
        // Renaming a file over /dev/null would destroy it; a pipe has no other name.
        let stream = File::options().write(true).open(path);
        let stream = stream.map_err(|error| LedgerError::of(act("open"), error))?;
        return Ok((None, Some(Box::new(stream))));
    }
    if !path.is_symlink() {
        return Ok((Some(path.to_owned()), None));
    }
    // A link stays a link: the file that it names is replaced.
    let path = fs::canonicalize(path).map_err(|error| LedgerError::of(act("resolve"), error))?;
    Ok((Some(path), None))
}
