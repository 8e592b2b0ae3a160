//! `Files`: every file that a run writes, in one place: none is another one of them or is read, and
//! all are claimed before anything is written.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::claim::Claim;
use super::document::{Document, PatientStream};
use super::error::LedgerError;
use super::journal::LockedJournal;
use super::locked_output::LedgerOptions;
use super::names::{Named, Place, read_by, refuse_read, refuse_streams, refuse_twice};
use super::output::{Output, part_of, with_suffix};
use super::storage::Storage;
use crate::args::Role;

/// Where something is written.
pub enum Destination {
    /// Standard output.
    Stdout,
    /// A device or a pipe.
    Stream(Box<dyn Write + Send>),
    /// A file to be made.
    File(PathBuf),
}

impl Destination {
    /// What a flag names. `-` is standard output.
    ///
    /// # Errors
    /// It is a folder, or cannot be opened.
    pub fn of(path: &Path) -> Result<Self, LedgerError> {
        // Redirected to a file, /dev/stdout would look like one that exists.
        if path == Path::new("-") || path == Path::new("/dev/stdout") {
            return Ok(Destination::Stdout);
        }
        let act = |verb: &str| format!("{verb} {}", path.display());
        let Ok(found) = fs::metadata(path) else { return Ok(Destination::File(path.to_owned())) };
        if found.is_dir() {
            return Err(LedgerError::of(act("write to"), ErrorKind::IsADirectory.into()));
        }
        if !found.is_file() {
            // Renaming a file over /dev/null would destroy it; a pipe has no other name.
            let stream = File::options().write(true).open(path);
            let stream = stream.map_err(|error| LedgerError::of(act("open"), error))?;
            return Ok(Destination::Stream(Box::new(stream)));
        }
        if !path.is_symlink() {
            return Ok(Destination::File(path.to_owned()));
        }
        // A link stays a link: the file that it names is replaced.
        let path =
            fs::canonicalize(path).map_err(|error| LedgerError::of(act("resolve"), error))?;
        Ok(Destination::File(path))
    }

    /// The same of a document: a pipe is not waited for.
    ///
    /// # Errors
    /// As `of`; or nobody reads the pipe.
    pub fn of_document(path: &Path) -> Result<Self, LedgerError> {
        let is_stdout = path == Path::new("-") || path == Path::new("/dev/stdout");
        match fs::metadata(path) {
            Ok(found) if !is_stdout && !found.is_dir() && !found.is_file() => {
                Ok(Destination::Stream(Box::new(PatientStream::open(path)?)))
            }
            _ => Self::of(path),
        }
    }

    /// The file, if it is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Destination::File(path) => Some(path),
            _ => None,
        }
    }

    /// For rows. A file is the one that was claimed.
    pub fn into_output(self, claim: Option<Claim>) -> Output {
        match self {
            Destination::Stdout => Output::to_stream(Box::new(io::stdout())),
            Destination::Stream(stream) => Output::to_stream(stream),
            Destination::File(_) => Output::to_file(claim.expect("files are claimed")),
        }
    }
}

/// The files that a run writes.
pub struct Files {
    /// Rows.
    pub out: Destination,
    /// Error rows.
    pub errors: Option<Destination>,
    /// Documents, of the flags that ask for them. They take their claims with them.
    pub documents: Vec<Document>,
    /// The journal. None: standard output has none.
    pub journal: Option<PathBuf>,
    written: Vec<Named>,
}

/// The names that are this run's.
#[derive(Default)]
pub struct Claims {
    /// Of the rows.
    pub out: Option<Claim>,
    /// Of error rows.
    pub errors: Option<Claim>,
    /// Of the side file.
    pub side_file: Option<Claim>,
    /// The journal, open.
    pub journal: Option<LockedJournal>,
}

/// Which of them a name is claimed for.
#[derive(Clone, Copy)]
enum Use {
    Out,
    Errors,
    SideFile,
    Document(usize),
    Journal,
}

impl Files {
    /// What the flags name.
    ///
    /// # Errors
    /// Two of them are one file, or one is read, or cannot be written.
    pub fn new(options: &LedgerOptions) -> Result<Self, LedgerError> {
        let of = |path: &Option<PathBuf>| path.as_deref().map(Destination::of).transpose();
        let out = of(&options.out)?.unwrap_or(Destination::Stdout);
        let errors = of(&options.errors)?;
        refuse_link_beside(options)?;
        let mut documents = Vec::new();
        for file in options.flags.iter() {
            if let Role::Document(kind) = file.role {
                let destination = Destination::of_document(&file.path)?;
                let flag = file.flag.clone();
                documents.push(Document { flag, kind, destination, claim: None });
            }
        }
        let beside = out.path().map(|path| with_suffix(path, ".journal"));
        let journal = options.journal.clone().or(beside);
        if let Some(path) = journal.clone().filter(|path| path == Path::new("-")) {
            return Err(LedgerError::NoFile { path, what: "standard output, and no journal" });
        }
        let mut files = Self { out, errors, documents, journal, written: Vec::new() };
        files.written = files.names(options);
        refuse_twice(&files.written)?;
        refuse_streams(&files.written)?;
        files.refuse_read(&options.read)?;
        files.refuse_read(&read_by(&options.flags)?)?;
        Ok(files)
    }

    /// Every name that the run gives to a file, for however long.
    fn names(&self, options: &LedgerOptions) -> Vec<Named> {
        let mut names = Vec::new();
        let mut add = |flag: &str, path: &Path| {
            names.push(Named::new(flag.to_owned(), path));
            names.push(Named::new(format!("the part of {flag}"), part_of(path)));
        };
        let documents =
            self.documents.iter().map(|document| (&*document.flag, Some(&document.destination)));
        let out = Some(&self.out).filter(|_| !options.has_no_rows);
        let rows = [("--out", out), ("--errors", self.errors.as_ref())];
        for (flag, destination) in rows.into_iter().chain(documents) {
            match destination {
                Some(Destination::File(path)) => add(flag, path),
                Some(Destination::Stdout) => add(flag, Path::new("/dev/stdout")),
                Some(Destination::Stream(_)) | None => {}
            }
        }
        if let Some(journal) = &self.journal {
            let is_named = options.journal.is_some();
            let flag = if is_named { "--journal" } else { "the journal of --out" };
            add(flag, journal);
        }
        if let Some(out) = self.out.path() {
            add("the side file of --out", &side_file_of(out));
        }
        names
    }

    /// Refuses to write what the run reads.
    ///
    /// # Errors
    /// A file to be written is one of these.
    pub fn refuse_read(&self, read: &[Named]) -> Result<(), LedgerError> {
        refuse_read(&self.written, read)
    }

    /// Takes all names for as long as the run goes on, and finds out now what would end it after
    /// its last row.
    ///
    /// # Errors
    /// Another run has one of them, or no file can get it.
    pub fn claim(&mut self, storage: &Arc<dyn Storage>) -> Result<Claims, LedgerError> {
        let mut names = vec![
            (Use::Out, self.out.path().map(Path::to_owned)),
            (Use::Errors, self.errors.as_ref().and_then(Destination::path).map(Path::to_owned)),
            (Use::SideFile, self.out.path().map(side_file_of)),
            (Use::Journal, self.journal.clone()),
        ];
        for (index, document) in self.documents.iter_mut().enumerate() {
            document.claim = None;
            names.push((Use::Document(index), document.destination.path().map(Path::to_owned)));
        }
        let mut names: Vec<(Place, PathBuf, Use)> = names
            .into_iter()
            .filter_map(|(of, path)| path.map(|path| (Place::of(&path), path, of)))
            .collect();
        // All runs take names in one order: of those that share some, one gets all of its own.
        names.sort_by(|one, other| one.0.cmp(&other.0));
        let mut claims = Claims::default();
        for (_, path, of) in names {
            match of {
                Use::Out => claims.out = Some(Claim::take(storage, &path)?),
                Use::Errors => claims.errors = Some(Claim::take(storage, &path)?),
                Use::SideFile => claims.side_file = Some(Claim::take(storage, &path)?),
                Use::Document(index) => {
                    self.documents[index].claim = Some(Claim::take(storage, &path)?);
                }
                Use::Journal => {
                    claims.journal = Some(LockedJournal::open(Arc::clone(storage), &path)?);
                }
            }
        }
        if let (Some(out), Some(journal)) = (self.out.path(), &claims.journal) {
            journal.take_permissions_of(out)?;
        }
        Ok(claims)
    }
}

/// Refuses a link in the place of the file of errors that stands beside a matrix: it belongs to the
/// output, as its part does.
fn refuse_link_beside(options: &LedgerOptions) -> Result<(), LedgerError> {
    let beside = options.out.as_deref().map(|out| with_suffix(out, ".errors.jsonl"));
    match &options.errors {
        Some(path) if Some(path) == beside.as_ref() && path.is_symlink() => {
            Err(LedgerError::NoFile { path: path.clone(), what: "a symbolic link" })
        }
        _ => Ok(()),
    }
}

/// `FILE.meta.json`.
pub fn side_file_of(path: &Path) -> PathBuf {
    with_suffix(path, ".meta.json")
}
