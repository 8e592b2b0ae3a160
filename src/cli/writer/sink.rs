//! `Sink`: standard output, or a file that exists under its name only when it is complete.

use std::fmt;
use std::fs::{self, File, Metadata, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Why output cannot be written.
#[derive(Debug)]
pub enum OutputError {
    /// The file exists and `--overwrite` was not given (exit 6).
    Exists(PathBuf),
    /// This part has rows of an unfinished run, and `--overwrite` was not given (exit 6).
    Unfinished(PathBuf),
    /// Another run writes the file (exit 6).
    Locked(PathBuf),
    /// It would replace the input (exit 2).
    SameAsInput(PathBuf),
    /// The reader of standard output went away (exit 141).
    BrokenPipe,
    /// No space, or over quota (exit 5).
    Full(io::Error),
    /// Anything else (exit 5 in the middle of a run, 2 at its start).
    Io {
        /// What was tried, e.g. `create out.jsonl.part`.
        action: String,
        /// What the system said.
        source: io::Error,
    },
}

impl OutputError {
    pub(super) fn of(action: impl Into<String>, source: io::Error) -> Self {
        match source.kind() {
            ErrorKind::BrokenPipe => OutputError::BrokenPipe,
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => OutputError::Full(source),
            _ => OutputError::Io { action: action.into(), source },
        }
    }
}

impl fmt::Display for OutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OutputError::Exists(path) => write!(f, "{} exists", path.display()),
            OutputError::Unfinished(part) => {
                write!(f, "{} holds rows of an unfinished run", part.display())
            }
            OutputError::Locked(path) => write!(f, "another run is writing {}", path.display()),
            OutputError::SameAsInput(path) => {
                write!(f, "{} is the input: the output would replace it", path.display())
            }
            OutputError::BrokenPipe => f.write_str("the reader of the output went away"),
            OutputError::Full(source) => write!(f, "the output cannot be written: {source}"),
            OutputError::Io { action, source } => write!(f, "cannot {action}: {source}"),
        }
    }
}

impl std::error::Error for OutputError {}

/// Where rows go.
pub enum Sink {
    /// Standard output, or a device or pipe that is no regular file.
    Stream(Box<dyn Write + Send>),
    /// `FILE.part`, renamed to `FILE` by [`Sink::finish`].
    File(PartFile),
}

/// A file that does not exist under its name before it is complete. Locked, so that it has one
/// writer. Rows that it holds of an earlier run stay until the first row of this one.
pub struct PartFile {
    file: File,
    part: PathBuf,
    path: PathBuf,
    /// This run made the file, and it is still under the name of the part.
    is_ours: bool,
    /// Nothing of an earlier run is in it any more.
    begun: bool,
}

/// How often a part is opened again that was renamed or removed before it could be locked.
const MAX_OPENS: usize = 8;

impl PartFile {
    fn open(path: PathBuf, part: PathBuf, overwrite: bool) -> Result<Self, OutputError> {
        let failed = |error| OutputError::of(format!("create {}", part.display()), error);
        for _ in 0..MAX_OPENS {
            let (file, is_ours) = open_or_create(&part).map_err(failed)?;
            // A file system without locks is used without them.
            if let Err(TryLockError::WouldBlock) = file.try_lock() {
                break;
            }
            let found = file.metadata().map_err(failed)?;
            if !fs::metadata(&part).is_ok_and(|named| identity(&named) == identity(&found)) {
                continue;
            }
            let has_rows = found.len() > 0;
            let opened = Self { file, part, path, is_ours, begun: false };
            // The run that held the lock may have given the output its name.
            return match overwrite {
                false if opened.path.exists() => Err(OutputError::Exists(opened.path.clone())),
                false if has_rows => Err(OutputError::Unfinished(opened.part.clone())),
                _ => Ok(opened),
            };
        }
        Err(OutputError::Locked(path))
    }

    /// Removes what an earlier run left, once there is something to put in its place.
    fn begin(&mut self) -> io::Result<()> {
        if !self.begun {
            self.file.set_len(0)?;
            self.begun = true;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), OutputError> {
        let act = |verb: &str, part: &Path| format!("{verb} {}", part.display());
        // A name must never stand for bytes that a power cut can take back, so: data, name,
        // directory.
        self.begin()
            .and_then(|()| self.file.sync_all())
            .map_err(|error| OutputError::of(act("sync", &self.part), error))?;
        fs::rename(&self.part, &self.path)
            .map_err(|error| OutputError::of(act("rename", &self.part), error))?;
        self.is_ours = false;
        let parent = self.path.parent().filter(|p| !p.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))
            .and_then(|directory| directory.sync_all())
            .map_err(|error| OutputError::of(act("sync the folder of", &self.path), error))
    }
}

/// A run that wrote no row leaves nothing behind. The file is still locked here, so it is no other
/// run's.
impl Drop for PartFile {
    fn drop(&mut self) {
        if self.is_ours && self.file.metadata().is_ok_and(|found| found.len() == 0) {
            let _ = fs::remove_file(&self.part);
        }
    }
}

/// Opens a file without touching its content; tells whether it is new.
fn open_or_create(path: &Path) -> io::Result<(File, bool)> {
    match File::options().write(true).create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let file = File::options().write(true).create(true).truncate(false).open(path)?;
            Ok((file, false))
        }
        created => Ok((created?, true)),
    }
}

fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

impl Sink {
    /// Standard output.
    pub fn stdout() -> Self {
        Sink::Stream(Box::new(io::stdout()))
    }

    /// A file. `input` is what is being read (`/dev/stdin` if that is standard input).
    ///
    /// # Errors
    /// It exists, has rows of an unfinished run, is the input or another run's output, or cannot be
    /// created.
    pub fn create(path: &Path, input: Option<&Path>, overwrite: bool) -> Result<Self, OutputError> {
        if path == Path::new("/dev/stdout") {
            // Redirected to a file it would look like one that exists.
            return Ok(Sink::stdout());
        }
        let act = |verb: &str, path: &Path| format!("{verb} {}", path.display());
        let input = input.and_then(|input| fs::metadata(input).ok());
        let is_input =
            |found: &Metadata| input.as_ref().is_some_and(|i| identity(i) == identity(found));
        let mut path = path.to_owned();
        if let Ok(found) = fs::metadata(&path) {
            if found.is_dir() {
                let error = io::Error::from(ErrorKind::IsADirectory);
                return Err(OutputError::of(act("write to", &path), error));
            }
            if !found.is_file() {
                // Renaming a file over /dev/null would destroy it; a pipe has no other name.
                let stream = File::options().write(true).open(&path);
                let stream = stream.map_err(|error| OutputError::of(act("open", &path), error))?;
                return Ok(Sink::Stream(Box::new(stream)));
            }
            if is_input(&found) {
                return Err(OutputError::SameAsInput(path));
            }
            if !overwrite {
                return Err(OutputError::Exists(path));
            }
            // A link stays a link: the file that it names is replaced.
            path = fs::canonicalize(&path)
                .map_err(|error| OutputError::of(act("resolve", &path), error))?;
        }
        let mut part = path.clone().into_os_string();
        part.push(".part");
        let part = PathBuf::from(part);
        if fs::metadata(&part).is_ok_and(|found| is_input(&found)) {
            return Err(OutputError::SameAsInput(part));
        }
        PartFile::open(path, part, overwrite).map(Sink::File)
    }

    /// The file that holds the rows of an unfinished run.
    pub fn part(&self) -> Option<&Path> {
        match self {
            Sink::Stream(_) => None,
            Sink::File(file) => Some(&file.part),
        }
    }

    /// Makes the output durable and gives it its name.
    ///
    /// # Errors
    /// It cannot be flushed, synced or renamed; `FILE.part` stays.
    pub fn finish(self) -> Result<(), OutputError> {
        match self {
            Sink::Stream(mut stream) => {
                stream.flush().map_err(|error| OutputError::of("write", error))
            }
            Sink::File(file) => file.finish(),
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Sink::Stream(stream) => stream.write(bytes),
            Sink::File(part) => {
                part.begin()?;
                part.file.write(bytes)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Sink::Stream(stream) => stream.flush(),
            Sink::File(part) => part.file.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, overwrite: bool) -> Result<(), OutputError> {
        let mut sink = Sink::create(path, None, overwrite)?;
        sink.write_all(b"new\n").expect("a file in a temporary folder");
        sink.finish()
    }

    #[test]
    fn the_file_exists_only_when_it_is_complete() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (path, part) = (folder.path().join("out.jsonl"), folder.path().join("out.jsonl.part"));
        let mut sink = Sink::create(&path, None, false).expect("a new file");
        sink.write_all(b"row\n").expect("a file in a temporary folder");
        assert!(part.exists() && !path.exists());
        sink.finish().expect("a rename in a temporary folder");
        assert!(!part.exists());
        assert_eq!(fs::read(&path).expect("it exists now"), b"row\n");
    }

    #[test]
    fn a_dropped_sink_leaves_the_part_if_it_has_rows() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (path, part) = (folder.path().join("out"), folder.path().join("out.part"));
        drop(Sink::create(&path, None, false).expect("a new file"));
        assert!(!path.exists() && !part.exists());
        let mut sink = Sink::create(&path, None, false).expect("a new file");
        sink.write_all(b"row\n").expect("a file in a temporary folder");
        drop(sink);
        assert!(!path.exists());
        assert_eq!(fs::read(&part).expect("it has a row"), b"row\n");
    }

    #[test]
    fn rows_of_an_unfinished_run_stay_until_they_are_replaced() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (path, part) = (folder.path().join("out"), folder.path().join("out.part"));
        fs::write(&part, "old row\n").expect("temporary folder");
        let refused = Sink::create(&path, None, false).err();
        assert!(matches!(refused, Some(OutputError::Unfinished(named)) if named == part));
        drop(Sink::create(&path, None, true).expect("overwrite was asked for"));
        assert_eq!(fs::read(&part).expect("no row came"), b"old row\n");
        write(&path, true).expect("overwrite was asked for");
        assert_eq!(fs::read(&path).expect("it exists now"), b"new\n");
        fs::write(&part, "").expect("temporary folder");
        write(&folder.path().join("out"), true).expect("an empty part is no obstacle");
    }

    #[test]
    fn an_output_has_one_writer() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("out");
        let mut first = Sink::create(&path, None, false).expect("a new file");
        first.write_all(b"row\n").expect("a file in a temporary folder");
        for overwrite in [false, true] {
            let second = Sink::create(&path, None, overwrite).err();
            assert!(matches!(second, Some(OutputError::Locked(named)) if named == path));
        }
        first.finish().expect("a rename in a temporary folder");
        assert_eq!(fs::read(&path).expect("it exists now"), b"row\n");
        write(&path, true).expect("nobody writes it any more");
    }

    #[test]
    fn an_existing_file_is_refused_unless_told_otherwise() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (path, link) = (folder.path().join("out"), folder.path().join("link"));
        fs::write(&path, "old\n").expect("temporary folder");
        std::os::unix::fs::symlink(&path, &link).expect("temporary folder");
        assert!(matches!(write(&path, false), Err(OutputError::Exists(p)) if p == path));
        assert_eq!(fs::read(&path).expect("still there"), b"old\n");
        write(&link, true).expect("overwrite was asked for");
        assert_eq!(fs::read(&path).expect("still there"), b"new\n");
        assert!(link.is_symlink(), "the link still names the file");
    }

    #[test]
    fn the_input_is_never_the_output() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (path, link) = (folder.path().join("in.jsonl"), folder.path().join("hard"));
        fs::write(&path, "row\n").expect("temporary folder");
        fs::hard_link(&path, &link).expect("temporary folder");
        let create = |out: &Path, input: &Path| Sink::create(out, Some(input), true).err();
        assert!(matches!(create(&path, &path), Some(OutputError::SameAsInput(_))));
        assert!(matches!(create(&link, &path), Some(OutputError::SameAsInput(_))));
        let part = folder.path().join("out.part");
        fs::write(&part, "row\n").expect("temporary folder");
        let out = folder.path().join("out");
        assert!(matches!(create(&out, &part), Some(OutputError::SameAsInput(_))));
        assert_eq!(fs::read(&part).expect("still there"), b"row\n");
    }

    #[test]
    fn a_device_is_written_and_not_replaced() {
        let null = Path::new("/dev/null");
        write(null, false).expect("takes everything");
        assert!(!fs::metadata(null).expect("still there").is_file());
        assert!(!Path::new("/dev/null.part").exists());
        let stdout = Sink::create(Path::new("/dev/stdout"), None, false);
        assert!(matches!(stdout, Ok(Sink::Stream(_))));
    }

    #[test]
    fn what_cannot_be_created_is_named() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("none/out");
        let error = Sink::create(&path, None, false).err().expect("no such folder").to_string();
        assert!(error.starts_with("cannot create ") && error.contains("none/out.part"), "{error}");
        let error = Sink::create(folder.path(), None, true).err().expect("a folder").to_string();
        assert!(error.starts_with("cannot write to "), "{error}");
    }
}
