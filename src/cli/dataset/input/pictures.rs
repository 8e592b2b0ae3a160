//! Files of images or recordings that are rows themselves, and files whose parts are: those that
//! `--input` names, and those beneath a folder. A folder with Hugging Face's `metadata.jsonl` has
//! the rows of that file instead.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::fields::{JsonFields, json_string};
use super::media::kind_of_name;
use super::parts::{PartKind, PartOptions};
use super::reader::{Content, Record};
use super::row_error::{RowError, code};
use crate::object_store::is_object;
use crate::terminal::error::CliError;
use vllm_batch_media::MediaKind;

/// Files whose rows name the images of their folder, as Hugging Face's imagefolder has them.
const METADATA: &[&str] = &["metadata.csv", "metadata.jsonl", "metadata.parquet"];

/// What a file is by its name, if it is a medium.
fn medium_of(path: &Path) -> Option<MediaKind> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.and_then(kind_of_name)
}

/// A file of a kind, in words.
fn noun(kind: MediaKind) -> &'static str {
    match kind {
        MediaKind::Image => "picture",
        MediaKind::Sound => "recording",
    }
}

/// One of the inputs, by what it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// A file of rows, or standard input.
    File(PathBuf),
    /// Files that are rows, or whose parts are.
    Pictures(Pictures),
    /// A file whose rows name the images beside it.
    Metadata(PathBuf),
}

/// Files that are rows, or whose parts are, in their order. Their names are in memory, their bytes
/// are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pictures {
    /// What each is. None: a medium.
    kind: Option<&'static PartKind>,
    /// What medium each is, or each of its parts.
    medium: MediaKind,
    /// Which parts are rows, and how they are made.
    options: PartOptions,
    paths: Vec<PathBuf>,
    /// The folder that they were found beneath. None: the user named each of them.
    folder: Option<PathBuf>,
    /// Number of other files there, and the first of them.
    others: Option<(u64, PathBuf)>,
}

/// Sorts inputs by what they are. Of a file `is_told` says whether a flag says how it is read.
///
/// # Errors
/// A folder has nothing that is read; or inputs of two kinds are one.
pub(super) fn sorted(
    list: Vec<PathBuf>,
    is_told: impl Fn(&Path) -> bool,
    options: &PartOptions,
) -> Result<Vec<Input>, CliError> {
    let mut inputs = Vec::new();
    for path in list {
        if path == Path::new("-") || is_told(&path) {
            inputs.push(Input::File(path));
        } else if is_object(&path) {
            refuse_object(&path, options)?;
            inputs.push(Input::File(path));
        } else if path.is_dir() {
            inputs.extend(beneath(&path, options)?);
        } else {
            let kind = PartKind::of(&path, options);
            let medium = kind.map(|kind| kind.medium).or_else(|| medium_of(&path));
            let is_nothing = medium.is_none();
            let medium = medium.unwrap_or(MediaKind::Image);
            match inputs.last_mut() {
                _ if is_nothing => inputs.push(Input::File(path)),
                Some(Input::Pictures(last))
                    if last.folder.is_none() && (last.kind, last.medium) == (kind, medium) =>
                {
                    last.paths.push(path);
                }
                _ => {
                    let (options, paths) = (options.clone(), vec![path]);
                    let (folder, others) = (None, None);
                    let files = Pictures { kind, medium, options, paths, folder, others };
                    inputs.push(Input::Pictures(files));
                }
            }
        }
    }
    refuse_mixed(&inputs)?;
    let is_cut = |input: &Input| match input {
        Input::Pictures(files) => files.kind.is_some() && files.medium == MediaKind::Sound,
        Input::File(_) | Input::Metadata(_) => false,
    };
    if !inputs.iter().all(is_cut) {
        refuse_uncut(options)?;
    }
    Ok(inputs)
}

/// Refuses an image, or a file whose parts are rows, that is an object.
fn refuse_object(path: &Path, options: &PartOptions) -> Result<(), CliError> {
    let name = PartKind::of(path, options).map(|kind| format!("{} files", kind.name));
    match name.or_else(|| medium_of(path).map(|kind| format!("{}s", noun(kind)))) {
        None => Ok(()),
        Some(name) => Err(CliError::refused(
            "input",
            format!("--input {}: {name} of a store are not read", path.display()),
        )
        .help("download them, and name the folder that they are in")),
    }
}

/// Refuses inputs of two kinds: their rows have nothing in common.
fn refuse_mixed(inputs: &[Input]) -> Result<(), CliError> {
    let named = |input: &Input| match input {
        Input::File(path) if path == Path::new("-") => "standard input is no picture".to_owned(),
        Input::File(path) => format!("{} is no picture", path.display()),
        Input::Metadata(path) => format!("{} has rows", path.display()),
        Input::Pictures(Pictures { kind: Some(kind), paths, .. }) => {
            format!("{} is a {}", paths[0].display(), kind.name)
        }
        Input::Pictures(Pictures { medium, paths, .. }) => {
            format!("{} is a {}", paths[0].display(), noun(*medium))
        }
    };
    let kind = |input: &Input| match input {
        Input::Pictures(files) => (std::mem::discriminant(input), Some((files.kind, files.medium))),
        _ => (std::mem::discriminant(input), None),
    };
    let Some(first) = inputs.first() else { return Ok(()) };
    match inputs.iter().find(|input| kind(input) != kind(first)) {
        None => Ok(()),
        Some(other) => {
            let message = format!("--input: {}, and {}", named(first), named(other));
            Err(CliError::refused("input", message).help(
                "name files of one kind, as in 'photos/*.jpg', or a folder; run others apart",
            ))
        }
    }
}

/// Refuses a length of clips, where nothing is cut into them.
///
/// # Errors
/// There is one.
pub fn refuse_uncut(options: &PartOptions) -> Result<(), CliError> {
    if options.max_clip_seconds.is_none() {
        return Ok(());
    }
    let what = "--max-audio-clip-s cuts files of recordings, and the input has others";
    Err(CliError::refused("flag", what)
        .help("name recordings, as in -i 'rec/*.wav', or a folder of them without metadata"))
}

/// What a folder and those in it hold: files with rows about images, else the images.
fn beneath(folder: &Path, options: &PartOptions) -> Result<Vec<Input>, CliError> {
    let mut found = Found::default();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let cannot = |error: io::Error| {
            CliError::refused("input", format!("cannot read {}: {error}", folder.display()))
        };
        found.look_into(&folder, options, &mut folders).map_err(cannot)?;
    }
    found.media.sort_by(|(_, one), (_, other)| one.cmp(other));
    found.parted.sort_by(|(_, one), (_, other)| one.cmp(other));
    found.metadata.sort();
    found.inputs(folder, options)
}

/// Files beneath a folder.
#[derive(Default)]
struct Found {
    media: Vec<(MediaKind, PathBuf)>,
    /// Files whose parts are rows.
    parted: Vec<(&'static PartKind, PathBuf)>,
    metadata: Vec<PathBuf>,
    num_others: u64,
    first_other: Option<PathBuf>,
}

impl Found {
    /// Takes the files of a folder. Links to folders are not followed: they may lead round and
    /// round. Names that begin with a dot are those of programs.
    fn look_into(
        &mut self,
        folder: &Path,
        options: &PartOptions,
        folders: &mut Vec<PathBuf>,
    ) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let (name, path) = (entry.file_name(), entry.path());
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else if let Some(kind) = PartKind::of(&path, options) {
                self.parted.push((kind, path));
            } else if let Some(kind) = medium_of(&path) {
                self.media.push((kind, path));
            } else if METADATA.iter().any(|known| name == *known) {
                self.metadata.push(path);
            } else {
                self.num_others += 1;
                self.first_other = Some(match self.first_other.take() {
                    Some(first) if first < path => first,
                    _ => path,
                });
            }
        }
        Ok(())
    }

    fn inputs(self, folder: &Path, options: &PartOptions) -> Result<Vec<Input>, CliError> {
        let refused = |message: String| CliError::refused("input", message);
        let shown = folder.display();
        if self.metadata.is_empty() {
            return self.of_one_kind(folder, options).map(|files| vec![Input::Pictures(files)]);
        }
        let two = self.metadata.windows(2).find(|two| two[0].parent() == two[1].parent());
        if let Some([first, second]) = two {
            let message = format!(
                "--input {shown}: {} and {} both have rows about the images of their folder",
                first.display(),
                second.display()
            );
            return Err(refused(message).help("name one of them with --input"));
        }
        let has_rows = |(_, medium): &&(MediaKind, PathBuf)| {
            let mut folders = self.metadata.iter().filter_map(|path| path.parent());
            folders.any(|folder| medium.starts_with(folder))
        };
        if let Some((_, alone)) = self.media.iter().find(|medium| !has_rows(medium)) {
            let message = format!(
                "--input {shown}: {} has rows about images, and {} is in no folder that has",
                self.metadata[0].display(),
                alone.display()
            );
            return Err(refused(message).help("name the folders one by one"));
        }
        Ok(self.metadata.into_iter().map(Input::Metadata).collect())
    }

    /// The files, where none has rows about others.
    fn of_one_kind(self, folder: &Path, options: &PartOptions) -> Result<Pictures, CliError> {
        let shown = folder.display();
        let parted = self.parted.into_iter().map(|(kind, path)| (Some(kind), kind.medium, path));
        let media = self.media.into_iter().map(|(medium, path)| (None, medium, path));
        let files: Vec<_> = parted.chain(media).collect();
        let Some(&(kind, medium, ref first)) = files.first() else {
            let message = format!("cannot read {shown}: it is a folder without pictures");
            let files = folder.join("*.jsonl");
            let help = format!("name the files in it, as in '{}'", files.display());
            return Err(CliError::refused("input", message).help(help));
        };
        let Some((other_kind, other_medium, other)) =
            files.iter().find(|file| (file.0, file.1) != (kind, medium))
        else {
            let others = self.first_other.map(|first| (self.num_others, first));
            let (options, folder) = (options.clone(), Some(folder.to_owned()));
            let paths = files.into_iter().map(|(.., path)| path).collect();
            return Ok(Pictures { kind, medium, options, paths, folder, others });
        };
        let name = |kind: Option<&PartKind>, medium| kind.map_or(noun(medium), |kind| kind.name);
        let message = format!(
            "--input {shown}: {} is a {}, and {} a {}",
            first.display(),
            name(kind, medium),
            other.display(),
            name(*other_kind, *other_medium)
        );
        Err(CliError::refused("input", message)
            .help("name the files of one kind, as in 'docs/*.pdf'"))
    }
}

impl Pictures {
    /// Files that were named, with the default options.
    #[cfg(test)]
    pub(super) fn of_kind(kind: &'static PartKind, paths: Vec<PathBuf>) -> Self {
        let (medium, kind, options) = (kind.medium, Some(kind), PartOptions::default());
        Self { kind, medium, options, paths, folder: None, others: None }
    }

    /// What each of them is. None: a picture.
    pub(super) fn kind(&self) -> Option<&'static PartKind> {
        self.kind
    }

    /// What medium each is, or each of its parts.
    pub(super) fn medium(&self) -> MediaKind {
        self.medium
    }

    /// Which parts are rows, and how they are made.
    pub(super) fn options(&self) -> &PartOptions {
        &self.options
    }

    /// The files.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The folder that they were found beneath, and may not lead out of. None: each was named.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// As messages name them.
    pub(super) fn name(&self) -> String {
        match (&self.folder, self.paths.as_slice()) {
            (Some(folder), _) => folder.display().to_string(),
            (None, [first, others @ ..]) if !others.is_empty() => {
                format!("{} and {} more", first.display(), others.len())
            }
            (None, paths) => paths[0].display().to_string(),
        }
    }

    /// Finding about the folder that a user may want to know.
    pub(super) fn note(&self) -> Option<String> {
        let (count, first) = self.others.as_ref()?;
        let first = first.display();
        let what = self.kind.map_or(noun(self.medium), |kind| kind.name);
        Some(match count {
            1 => format!("{first} is no {what}, and passed over"),
            count => format!("{count} files are no {what}s, and passed over, such as {first}"),
        })
    }

    /// The row of a file.
    fn record(&self, index: usize) -> Record {
        let (path, line) = (&self.paths[index], index as u64 + 1);
        let name = path.to_string_lossy();
        // A name may look like a URL.
        let shown = match name.split('/').next().is_some_and(|first| first.contains(':')) {
            true => format!("./{name}"),
            false => name.clone().into_owned(),
        };
        let error = path.to_str().is_none().then(|| {
            let message = format!("the name of the file {} is not UTF-8", path.display());
            RowError::new(code::BAD_UTF8, line, message).with_help("rename it")
        });
        let fields = JsonFields::from_pairs(&[(self.medium.name(), &json_string(&shown))]);
        Record { line, content: Content::Line(fields.into_text()), error }
    }
}

/// The rows of pictures, one after the other.
pub(super) struct PictureRows {
    pictures: Arc<Pictures>,
    next: usize,
}

impl PictureRows {
    pub(super) fn new(pictures: Arc<Pictures>) -> (Self, Option<String>) {
        let note = pictures.note();
        (Self { pictures, next: 0 }, note)
    }

    pub(super) fn next_row(&mut self) -> Option<Record> {
        let record =
            (self.next < self.pictures.paths.len()).then(|| self.pictures.record(self.next));
        self.next += usize::from(record.is_some());
        record
    }

    /// The number of the row that would come next.
    pub(super) fn next_number(&self) -> u64 {
        self.next as u64 + 1
    }
}
