//! Files whose parts are rows: a PDF has pages, a recording clips. A kind of such files is a row of
//! a table: how its files are known, and who opens one. Names of files are in memory, their bytes
//! are not, and a part is made when somebody needs it.

mod clips;
mod numbers;
mod pages;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

pub use self::numbers::PageNumbers;
pub use self::pages::PageScale;
pub(super) use self::pages::pages_of;
use super::fields::{JsonFields, json_string};
use super::pictures::Pictures;
use super::reader::{Content, Member, Record, Sample};
use super::row_error::RowError;
use crate::terminal::flags::with_flags;
use vllm_batch_base::files::quoted;
use vllm_batch_media::{MediaError, MediaKind, Medium};

/// The field of a part's row with the path of its file.
const FILE: &str = "file";

/// The name of a part among what its row has with it. No path is so called.
pub(super) const PART: &str = "\0part";

/// A kind of files.
pub struct PartKind {
    /// As messages name one file.
    pub(super) name: &'static str,
    /// By which files are known.
    extensions: &'static [&'static str],
    /// What its parts are.
    pub(super) medium: MediaKind,
    /// Whether such files have parts: else they are rows themselves.
    is_asked: fn(&PartOptions) -> bool,
    open: fn(&Opening<'_>) -> Result<Box<dyn Parts>, MediaError>,
}

/// All kinds.
static KINDS: &[PartKind] = &[pages::KIND, clips::KIND];

/// Flags of parts, of all kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartOptions {
    /// `--pages`: which of a PDF's pages.
    pub pages: PageNumbers,
    /// What is drawn of a page.
    pub drawing: Drawing,
    /// `--max-audio-clip-s`: the most seconds of a clip. None: recordings are whole.
    pub max_clip_seconds: Option<u32>,
}

/// How pages are drawn, wherever they are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawing {
    /// `--longest-side`, `--dpi`: how large.
    pub scale: PageScale,
    /// `--page-timeout`: the most seconds that a page may take.
    pub max_seconds: u64,
}

impl Default for Drawing {
    fn default() -> Self {
        Self { scale: PageScale::default(), max_seconds: 60 }
    }
}

/// A file that is opened for its parts.
struct Opening<'a> {
    path: &'a Path,
    options: &'a PartOptions,
    makers: &'a Makers,
}

/// Who makes media of parts, for all files of an input.
struct Makers {
    renderers: Arc<super::pdf::Renderers>,
}

/// The parts of a file, in their order.
trait Parts: Send {
    fn next_part(&mut self) -> Option<Part>;
}

/// A part of a file.
struct Part {
    /// What it is called: fields of its row, and the JSON of their values.
    fields: Vec<(&'static str, String)>,
    /// Its bytes are made when they are read. An error is of this part alone.
    medium: Result<Medium, MediaError>,
}

impl PartKind {
    /// The kind of a file, by its name.
    pub(super) fn of(path: &Path, options: &PartOptions) -> Option<&'static Self> {
        let extension = path.extension()?.to_str()?;
        let has_it = |kind: &&PartKind| {
            kind.extensions.iter().any(|known| extension.eq_ignore_ascii_case(known))
        };
        KINDS.iter().find(has_it).filter(|kind| (kind.is_asked)(options))
    }
}

impl fmt::Debug for PartKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for PartKind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for PartKind {}

/// The rows of files of a kind: their parts, one file after the other.
pub(super) struct PartRows {
    files: Arc<Pictures>,
    kind: &'static PartKind,
    makers: Makers,
    next_file: usize,
    /// The file that is read, as its rows name it.
    open: Option<(String, Box<dyn Parts>)>,
    num_rows: u64,
}

impl PartRows {
    pub(super) fn new(files: Arc<Pictures>, kind: &'static PartKind) -> (Self, Option<String>) {
        let note = files.note();
        let renderers = Arc::new(super::pdf::Renderers::new(files.options().drawing.max_seconds));
        let makers = Makers { renderers };
        (Self { files, kind, makers, next_file: 0, open: None, num_rows: 0 }, note)
    }

    /// What medium each part is.
    pub(super) fn medium(&self) -> MediaKind {
        self.kind.medium
    }

    /// The number of the row that would come next, from 1.
    pub(super) fn next_number(&self) -> u64 {
        self.num_rows + 1
    }

    /// The next part. A file that cannot be opened has one row, which says why.
    ///
    /// # Errors
    /// The machine lacks what a file needs.
    pub(super) fn next_row(&mut self) -> io::Result<Option<Record>> {
        loop {
            if let Some((file, parts)) = &mut self.open {
                let next = parts.next_part();
                let file = file.clone();
                match next {
                    Some(part) => return Ok(Some(self.record(&file, part))),
                    None => self.open = None,
                }
            }
            let Some(path) = self.files.paths().get(self.next_file).cloned() else {
                return Ok(None);
            };
            self.next_file += 1;
            let file = path.to_string_lossy().into_owned();
            match self.opened(&path)? {
                Ok(parts) => self.open = Some((file, parts)),
                Err(error) => {
                    let part = Part { fields: Vec::new(), medium: Err(error) };
                    return Ok(Some(self.record(&file, part)));
                }
            }
        }
    }

    fn opened(&self, path: &Path) -> io::Result<Result<Box<dyn Parts>, MediaError>> {
        if path.to_str().is_none() {
            let what = "the name of the file is not UTF-8; help: rename it".to_owned();
            return Ok(Err(MediaError::NotFound(what)));
        }
        // A link may lead out of the folder that was named.
        if let Some(folder) = self.files.folder()
            && let (Ok(folder), Ok(found)) = (folder.canonicalize(), path.canonicalize())
            && !found.starts_with(folder)
        {
            let what = "it is a link out of the folder; help: name the file itself with -i";
            return Ok(Err(MediaError::Forbidden(what.to_owned())));
        }
        if let Err(error) = vllm_batch_base::files::open(path)
            && vllm_batch_base::machine::is_refusal(&error)
        {
            return Err(io::Error::other(format!("{}: {error}", path.display())));
        }
        let options = self.files.options();
        Ok((self.kind.open)(&Opening { path, options, makers: &self.makers }))
    }

    fn record(&mut self, file: &str, part: Part) -> Record {
        self.num_rows += 1;
        let name = (FILE, json_string(file));
        let (members, error) = match part.medium {
            Ok(medium) => (vec![(PART.to_owned(), Member::Made(Arc::new(medium)))], None),
            Err(error) => {
                let what = with_flags(&format!("{}: {error}", quoted(file)));
                (Vec::new(), Some(RowError::new(error.code(), self.num_rows, what)))
            }
        };
        let pairs: Vec<(&str, &str)> =
            std::iter::once(&name).chain(&part.fields).map(|(n, v)| (*n, v.as_str())).collect();
        let text = JsonFields::from_pairs(&pairs).into_text();
        let content = Content::Sample(Sample { text, members });
        Record { line: self.num_rows, content, error }
    }
}
