//! `LockedOutput`: an output whose lock is held, before its first row. It says what an earlier run
//! left, and becomes a `Ledger`.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::claim::Claim;
use super::document::{Document, beginning, content, may_begin};
use super::error::{LedgerError, unreadable};
use super::files::{Claims, Destination, Files, side_file_of};
use super::fingerprint::Fingerprint;
use super::journal::{Found, LockedJournal};
use super::meta::Meta;
use super::names::{Named, Place};
use super::output::{Facts, Output, part_of};
use super::record::Header;
use super::recovered::Recovered;
use super::spill::Spill;
use super::storage::{Access, Disk, Storage, StoredFile, hash_of};
use super::{Book, Ledger};
use crate::args::FlagFiles;

/// Which files.
#[derive(Clone, Debug, Default)]
pub struct LedgerOptions {
    /// None: standard output.
    pub out: Option<PathBuf>,
    /// Where error rows go instead.
    pub errors: Option<PathBuf>,
    /// The journal; None: beside the output, and none for standard output.
    pub journal: Option<PathBuf>,
    /// The files that flags name: documents to be written, and what is read.
    pub flags: FlagFiles,
    /// What is read besides.
    pub read: Vec<Named>,
    /// Start over, and replace what exists.
    pub overwrite: bool,
    /// Ask error rows again, and replace what exists.
    pub retry_failed: bool,
    /// There are no rows: standard output is for a text.
    pub has_no_rows: bool,
}

/// Outputs without a journal of their rows.
pub struct Outputs {
    /// Rows.
    pub out: Output,
    /// Error rows.
    pub errors: Option<Output>,
    /// Of a file.
    pub side_file: Option<Claim>,
    /// What keeps other runs out.
    pub journal: Option<LockedJournal>,
}

/// An output whose lock is held, before its first row.
pub struct LockedOutput {
    storage: Arc<dyn Storage>,
    overwrite: bool,
    retry_failed: bool,
    files: Files,
    claims: Claims,
    found: Option<Found>,
    /// The side file of an output that is complete.
    complete: Option<Meta>,
    /// The same, where the run goes on from it.
    previous: Option<Meta>,
}

impl LockedOutput {
    /// Locks the output and looks at what is there. An output that was whole when its run was
    /// killed gets its name here.
    ///
    /// # Errors
    /// It exists, is the input or another run's, or cannot be created.
    pub fn open(storage: Arc<dyn Storage>, options: LedgerOptions) -> Result<Self, LedgerError> {
        let mut files = Files::new(&options)?;
        let claims = files.claim(&storage)?;
        let LedgerOptions { overwrite, retry_failed, .. } = options;
        let mut locked = Self {
            storage,
            overwrite,
            retry_failed,
            files,
            claims,
            found: None,
            complete: None,
            previous: None,
        };
        locked.look()?;
        Ok(locked)
    }

    /// The documents of a command that writes no rows: standard output is for a text.
    ///
    /// # Errors
    /// As `open`.
    pub fn of_documents(flags: FlagFiles, read: Vec<Named>) -> Result<Self, LedgerError> {
        let options = LedgerOptions { flags, read, has_no_rows: true, ..LedgerOptions::default() };
        Self::open(Arc::new(Disk), options)
    }

    fn look(&mut self) -> Result<(), LedgerError> {
        if let Some(journal) = &mut self.claims.journal {
            match self.overwrite {
                true => journal.refuse_foreign()?,
                false => self.found = journal.read()?,
            }
        }
        if !self.overwrite {
            for document in &mut self.files.documents {
                document.refuse_other(&*self.storage)?;
            }
        }
        match self.files.out.path() {
            Some(_) => self.look_at_outputs(),
            None => self.refuse_existing_errors(),
        }
    }

    /// Decides between a new run, one to be continued, and one that is complete.
    fn look_at_outputs(&mut self) -> Result<(), LedgerError> {
        let Some(path) = self.path().map(Path::to_owned).filter(|_| !self.overwrite) else {
            return Ok(());
        };
        let end = self.found.as_ref().and_then(|found| found.end.clone());
        if let Some(text) = end
            && let Ok(meta) = Meta::parse(&text)
            && self.name_outputs(&meta, &text)?
        {
            self.take_complete(meta);
            self.found = None;
            if self.complete.is_none() {
                // The run goes on, and its part and its journal have lost their names above.
                self.claims = Claims::default();
                self.claims = self.files.claim(&self.storage)?;
            }
            return Ok(());
        }
        let replaces = self.found.as_ref().is_some_and(|found| found.header.replaces);
        let exists = self.storage.kind(&path).is_some();
        if exists && !replaces {
            let meta = self.read_side_file(&side_file_of(&path))?;
            let meta = meta.ok_or_else(|| LedgerError::Exists(path.clone()))?;
            self.refuse_changed(&path, &meta.output.facts())?;
            self.take_complete(meta);
            self.found = None;
            return self.refuse_changed_errors();
        }
        let keeps = self.found.as_ref().is_some_and(|found| found.header.keeps);
        if (self.retry_failed || keeps) && exists {
            // A run that goes on from it was interrupted: the old output is still there.
            self.previous = self.read_side_file(&side_file_of(&path))?;
            if let Some(meta) = &self.previous {
                self.refuse_changed(&path, &meta.output.facts())?;
            }
        }
        let part = part_of(&path);
        if self.found.is_none() && self.length(&part)?.is_some_and(|length| length > 0) {
            return Err(LedgerError::Unfinished(part));
        }
        if !exists {
            self.refuse_other_side_file()?;
        }
        self.refuse_existing_errors()
    }

    /// A file in the place of the side file that no run wrote stays.
    fn refuse_other_side_file(&mut self) -> Result<(), LedgerError> {
        let has_journal = self.found.is_some();
        let Some(claim) = &mut self.claims.side_file else { return Ok(()) };
        let path = claim.path().to_owned();
        if self.storage.kind(&path).is_some() {
            let bytes = content(&*self.storage, &path)?;
            if !bytes.is_empty() && Meta::parse(&String::from_utf8_lossy(&bytes)).is_err() {
                return Err(LedgerError::Exists(path));
            }
        }
        // That of a run with a journal may be torn in any way.
        match has_journal || may_begin(Meta::BEGIN, &beginning(claim)?) {
            true => Ok(()),
            false => Err(LedgerError::Exists(claim.part().to_owned())),
        }
    }

    /// A file of errors that no run of this journal made stays.
    fn refuse_existing_errors(&self) -> Result<(), LedgerError> {
        let found = self.found.as_ref();
        // Of a stream nobody knows what it took: all rows of its journal are written again, and the
        // errors, which may have their name already.
        let is_ours = found.is_some_and(|found| found.header.replaces || found.end.is_some());
        match self.errors_path() {
            Some(errors) if !is_ours && !self.overwrite && self.storage.kind(errors).is_some() => {
                Err(LedgerError::Exists(errors.to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// The file of errors of a complete output belongs to it.
    fn refuse_changed_errors(&self) -> Result<(), LedgerError> {
        let written = self.complete.as_ref().and_then(|meta| meta.errors.as_ref());
        match written.zip(self.errors_path()) {
            Some((errors, path)) => self.refuse_changed(path, &errors.facts()),
            None => Ok(()),
        }
    }

    /// A complete output is what its run wrote. All of it is read: its time says nothing, and the
    /// input is read to its end too.
    fn refuse_changed(&self, path: &Path, facts: &Facts) -> Result<(), LedgerError> {
        let changed = |difference| Err(LedgerError::Changed { path: path.to_owned(), difference });
        match self.length(path)? {
            None => changed("it is gone".to_owned()),
            Some(length) if length != facts.bytes => {
                changed(format!("{} bytes then, {length} now", facts.bytes))
            }
            Some(_) if !self.holds(path, facts)? => {
                changed("as long as then, with other bytes".to_owned())
            }
            Some(_) => Ok(()),
        }
    }

    /// An output with error rows that are to be asked again is no end.
    fn take_complete(&mut self, meta: Meta) {
        let place = match self.retry_failed && meta.rows.failed > 0 {
            true => &mut self.previous,
            false => &mut self.complete,
        };
        *place = Some(meta);
    }

    /// Does what a run did not come to whose outputs were whole: names, side file, no journal.
    /// False: they are not whole.
    fn name_outputs(&mut self, meta: &Meta, text: &str) -> Result<bool, LedgerError> {
        let path = self.path().expect("a file").to_owned();
        let mut files = vec![(path.clone(), meta.output.facts())];
        if let Some(errors) = &meta.errors {
            files.insert(0, (PathBuf::from(&errors.path), errors.facts()));
        }
        let mut unnamed = Vec::new();
        for (path, facts) in &files {
            match self.holds(&part_of(path), facts)? {
                true => unnamed.push(path),
                false if self.holds(path, facts)? => {}
                false => return Ok(false),
            }
        }
        for path in unnamed {
            self.publish(path)?;
        }
        let side_file = self.claims.side_file.take().expect("a file has one");
        side_file.publish_text(text)?;
        let journal = self.claims.journal.as_ref().expect("the end was read from it");
        self.storage.remove(journal.path()).map_err(|error| {
            LedgerError::of(format!("remove {}", journal.path().display()), error)
        })?;
        Ok(true)
    }

    /// Gives a part its name. It may be that of another `--errors` than this run's.
    fn publish(&self, path: &Path) -> Result<(), LedgerError> {
        let own = [&self.claims.out, &self.claims.errors].into_iter().flatten();
        let documents = self.files.documents.iter().filter_map(|document| document.claim.as_ref());
        let is_it = |claim: &&Claim| Place::of(claim.path()) == Place::of(path);
        match own.chain(documents).find(is_it) {
            Some(claim) => claim.publish(),
            None => Claim::take(&self.storage, path)?.publish(),
        }
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
        if self.storage.kind(path).is_none() {
            return Ok(None);
        }
        let bytes = content(&*self.storage, path)?;
        let text = String::from_utf8_lossy(&bytes);
        match Meta::parse(&text) {
            Ok(meta) => Ok(Some(meta)),
            Err(_) if !Meta::has_checksum(&text) => Ok(None),
            Err(difference) => Err(LedgerError::Changed { path: path.to_owned(), difference }),
        }
    }

    /// What an unfinished run left that may be continued.
    pub fn found(&self) -> Option<&Found> {
        self.found.as_ref()
    }

    /// What the side file of a complete output says.
    pub fn complete(&self) -> Option<&Meta> {
        self.complete.as_ref()
    }

    /// The same of one that the run goes on from.
    pub fn previous(&self) -> Option<&Meta> {
        self.previous.as_ref()
    }

    /// Goes on from a complete output: its answers are those of rows to come.
    pub fn go_on(&mut self) {
        self.previous = self.complete.take().or(self.previous.take());
    }

    /// The output, where it is a file.
    pub fn path(&self) -> Option<&Path> {
        self.files.out.path()
    }

    fn errors_path(&self) -> Option<&Path> {
        self.files.errors.as_ref().and_then(Destination::path)
    }

    /// The journal, where there is one.
    pub fn journal_path(&self) -> Option<&Path> {
        self.claims.journal.as_ref().map(LockedJournal::path)
    }

    /// Refuses to write what turns out to be read.
    ///
    /// # Errors
    /// A file to be written is one of these.
    pub fn refuse_read(&self, read: &[Named]) -> Result<(), LedgerError> {
        self.files.refuse_read(read)
    }

    /// The documents that a flag asks for, in the order in which it does.
    pub fn take_documents(&mut self, flag: &str) -> Vec<Document> {
        self.files.documents.extract_if(.., |document| document.flag == flag).collect()
    }

    /// The outputs alone, for rows that come in order and can be had again; and the lock on them.
    /// What a journal with the fingerprint `own` began may be begun again.
    ///
    /// # Errors
    /// There is an output, or one of another unfinished run.
    pub fn into_outputs(self, own: &Fingerprint) -> Result<Outputs, LedgerError> {
        let Self { files, claims, found, complete, .. } = self;
        let found = found.filter(|found| found.header.fingerprint != *own);
        match files.out.path() {
            Some(path) if complete.is_some() => Err(LedgerError::Exists(path.to_owned())),
            Some(path) if found.is_some() => Err(LedgerError::Unfinished(part_of(path))),
            _ => {
                let errors = files.errors.map(|errors| errors.into_output(claims.errors));
                let Claims { out, side_file, journal, .. } = claims;
                Ok(Outputs { out: files.out.into_output(out), errors, side_file, journal })
            }
        }
    }

    /// Begins or continues. Nothing is written before the first row comes.
    ///
    /// # Errors
    /// The run to be continued would have written other bytes.
    pub fn begin(self, header: Header) -> Result<(Ledger, Option<Recovered>), LedgerError> {
        let Self { retry_failed, files, claims, found, .. } = self;
        let mut recovered = None;
        let mut num_resumes = 0;
        let book = match (claims.journal, found) {
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
                recovered = Some(Recovered::new(reader, start, end, retry_failed));
                Book::Continued(journal, found)
            }
        };
        let side_file = claims.side_file;
        let errors = files.errors.map(|errors| errors.into_output(claims.errors));
        let output = files.out.into_output(claims.out);
        let ledger = Ledger {
            book: Some(book),
            output,
            columns: Vec::new(),
            errors,
            next: 0,
            waiting: Default::default(),
            held_bytes: 0,
            in_any_order: false,
            side_file,
            num_resumes,
        };
        Ok((ledger, recovered))
    }
}
