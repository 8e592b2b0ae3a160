//! `Sink`: standard output, or a file that exists under its name only when it is complete.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Why output cannot be written.
#[derive(Debug)]
pub enum OutputError {
    /// The file exists and `--overwrite` was not given (exit 6).
    Exists(PathBuf),
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

/// A file that does not exist under its name before it is complete.
pub struct PartFile {
    file: File,
    part: PathBuf,
    path: PathBuf,
}

impl Sink {
    /// Standard output.
    pub fn stdout() -> Self {
        Sink::Stream(Box::new(io::stdout()))
    }

    /// A file. `input` is what is being read (`/dev/stdin` if that is standard input).
    ///
    /// # Errors
    /// It exists, is the input, or cannot be created.
    pub fn create(path: &Path, input: Option<&Path>, overwrite: bool) -> Result<Self, OutputError> {
        if path == Path::new("/dev/stdout") {
            // Redirected to a file it would look like one that exists.
            return Ok(Sink::stdout());
        }
        let act = |verb: &str, path: &Path| format!("{verb} {}", path.display());
        let input = input.and_then(|input| fs::metadata(input).ok());
        let is_input = |found: &Metadata| {
            input.as_ref().is_some_and(|i| (i.dev(), i.ino()) == (found.dev(), found.ino()))
        };
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
        let file =
            File::create(&part).map_err(|error| OutputError::of(act("create", &part), error))?;
        Ok(Sink::File(PartFile { file, part, path }))
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
        let PartFile { file, part, path } = match self {
            Sink::Stream(mut stream) => {
                return stream.flush().map_err(|error| OutputError::of("write", error));
            }
            Sink::File(file) => file,
        };
        let act = |verb: &str| format!("{verb} {}", part.display());
        // A name must never stand for bytes that a power cut can take back, so: data, name,
        // directory.
        file.sync_all().map_err(|error| OutputError::of(act("sync"), error))?;
        fs::rename(&part, &path).map_err(|error| OutputError::of(act("rename"), error))?;
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))
            .and_then(|directory| directory.sync_all())
            .map_err(|error| {
                OutputError::of(format!("sync the folder of {}", path.display()), error)
            })
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Sink::Stream(stream) => stream.write(bytes),
            Sink::File(part) => part.file.write(bytes),
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
    fn a_dropped_sink_leaves_only_the_part() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("out.jsonl");
        drop(Sink::create(&path, None, false).expect("a new file"));
        assert!(!path.exists() && folder.path().join("out.jsonl.part").exists());
        write(&path, false).expect("an old part is no obstacle");
        assert_eq!(fs::read(&path).expect("it exists now"), b"new\n");
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
