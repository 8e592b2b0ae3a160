//! `Files`: every file that a run writes, in one place: none is another one of them or is read, and
//! all are claimed before anything is written.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::claim::Claim;
use super::draft::LedgerOptions;
use super::error::LedgerError;
use super::journal::LockedJournal;
use super::names::{Named, Place, refuse_read, refuse_twice};
use super::output::{Output, part_of, with_suffix};
use super::storage::Storage;

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
    /// The document of the run.
    pub stats: Option<Destination>,
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
    /// Of the document.
    pub stats: Option<Claim>,
    /// The journal, open.
    pub journal: Option<LockedJournal>,
}

/// Which of them a name is claimed for.
#[derive(Clone, Copy)]
enum Role {
    Out,
    Errors,
    Stats,
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
        let (errors, stats) = (of(&options.errors)?, of(&options.stats)?);
        let beside = out.path().map(|path| with_suffix(path, ".journal"));
        let journal = options.journal.clone().or(beside);
        if let Some(path) = journal.clone().filter(|path| path == Path::new("-")) {
            return Err(LedgerError::NoFile { path, what: "standard output, and no journal" });
        }
        let mut files = Self { out, errors, stats, journal, written: Vec::new() };
        files.written = files.names(options.journal.is_some());
        refuse_twice(&files.written)?;
        files.refuse_read(&options.read)?;
        Ok(files)
    }

    /// Every name that the run gives to a file, for however long.
    fn names(&self, is_journal_named: bool) -> Vec<Named> {
        let mut names = Vec::new();
        let mut add = |flag: &str, path: &Path| {
            names.push(Named::new(flag.to_owned(), path));
            names.push(Named::new(format!("the part of {flag}"), part_of(path)));
        };
        let flags = [
            ("--out", Some(&self.out)),
            ("--errors", self.errors.as_ref()),
            ("--stats", self.stats.as_ref()),
        ];
        for (flag, destination) in flags {
            match destination {
                Some(Destination::File(path)) => add(flag, path),
                Some(Destination::Stdout) => add(flag, Path::new("/dev/stdout")),
                Some(Destination::Stream(_)) | None => {}
            }
        }
        if let Some(journal) = &self.journal {
            let flag = if is_journal_named { "--journal" } else { "the journal of --out" };
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

    /// Takes all names, and finds out now what would end the run after its last row.
    ///
    /// # Errors
    /// Another run has one of them, or no file can get it.
    pub fn claim(&self, storage: &Arc<dyn Storage>) -> Result<Claims, LedgerError> {
        let file = |destination: &Option<Destination>| {
            destination.as_ref().and_then(Destination::path).map(Path::to_owned)
        };
        let names = [
            (Role::Out, self.out.path().map(Path::to_owned)),
            (Role::Errors, file(&self.errors)),
            (Role::Stats, file(&self.stats)),
            (Role::Journal, self.journal.clone()),
        ];
        let mut names: Vec<(Place, PathBuf, Role)> = names
            .into_iter()
            .filter_map(|(role, path)| path.map(|path| (Place::of(&path), path, role)))
            .collect();
        // All runs take names in one order: of those that share some, one gets all of its own.
        names.sort_by(|one, other| one.0.cmp(&other.0));
        let mut claims = Claims::default();
        for (_, path, role) in names {
            match role {
                Role::Out => claims.out = Some(Claim::take(storage, &path)?),
                Role::Errors => claims.errors = Some(Claim::take(storage, &path)?),
                Role::Stats => claims.stats = Some(Claim::take(storage, &path)?),
                Role::Journal => {
                    claims.journal = Some(LockedJournal::open(Arc::clone(storage), &path)?);
                }
            }
        }
        if let Some(out) = self.out.path() {
            // It gets its name at the end, and is claimed again then.
            Claim::take(storage, &side_file_of(out))?.release()?;
            if let Some(journal) = &claims.journal {
                journal.take_permissions_of(out)?;
            }
        }
        Ok(claims)
    }
}

/// `FILE.meta.json`.
pub fn side_file_of(path: &Path) -> PathBuf {
    with_suffix(path, ".meta.json")
}
