//! `Sources`: the files that rows come from, in their order. They are read as one input: rows are
//! numbered through, and so are lines, which [`Sources::place`] finds again.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::fields::{JsonFields, json_string};
use super::media::Place;
use super::parquet::footer_of;
use super::parts::PartOptions;
use super::pictures::{self, Input, Pictures};
use super::reader::{InputFormat, Layout};
use super::row_error::RowError;
use crate::object_store::{Object, ObjectName, Store, is_object};
use crate::terminal::error::CliError;

/// The field of a prompt that was typed.
pub const PROMPT_FIELD: &str = "prompt";

/// One file.
#[derive(Debug)]
pub struct Source {
    /// Path of the file; `None`: standard input, `text` or `pictures`.
    pub path: Option<PathBuf>,
    /// All of it, where it was typed.
    pub text: Option<String>,
    /// Files that are rows themselves, or whose parts are.
    pub pictures: Option<Arc<Pictures>>,
    /// Rows name the images beside the file by fields `file_name`.
    pub names_files: bool,
    /// Object behind the name, if it is no file of this machine.
    pub object: Option<Object>,
    /// As messages name it.
    pub name: String,
    /// Layout of its bytes.
    pub layout: Layout,
    /// Format, once its first line was read.
    found: OnceLock<InputFormat>,
    /// Lines of the files before it, once they are read.
    lines_before: OnceLock<u64>,
    /// It has rows, and no lines.
    has_rows: OnceLock<()>,
}

/// All of them; at least one.
#[derive(Debug)]
pub struct Sources(Vec<Source>);

impl Sources {
    /// The files of `--input`, each a name, a pattern or `-`. Nothing is standard input. `layout`
    /// is what the flags and a file's name say, `parts` which parts of files are rows.
    ///
    /// # Errors
    /// A pattern that matches nothing or is none; standard input twice.
    pub fn new(
        inputs: &[PathBuf],
        layout: impl Fn(Option<&Path>) -> Layout,
        parts: &PartOptions,
    ) -> Result<Self, CliError> {
        let mut list = Vec::new();
        for input in inputs {
            match is_pattern(input) {
                true => list.extend(matches(input)?),
                false => list.push(input.clone()),
            }
        }
        if list.is_empty() {
            list.push("-".into());
        }
        let is_stdin = |path: &Path| path == Path::new("-");
        if list.iter().filter(|path| is_stdin(path)).count() > 1 {
            return Err(CliError::refused("input", "standard input is named twice")
                .help("give --input - once"));
        }
        let (mut sources, mut store) = (Vec::new(), None);
        for input in pictures::sorted(list, |path| layout(Some(path)).is_told, parts)? {
            let (path, names_files) = match input {
                Input::Pictures(pictures) => {
                    sources.push(Source::of_pictures(pictures));
                    continue;
                }
                Input::Metadata(path) => (path, true),
                Input::File(path) => (path, false),
            };
            let path = Some(path).filter(|path| !is_stdin(path));
            let name = path.as_deref().map(ObjectName::of).transpose();
            let name = name.map_err(CliError::from_store)?.flatten();
            let object = name.map(|name| object(&mut store, name)).transpose()?;
            let shown =
                path.as_ref().map_or("<stdin>".to_owned(), |path| path.display().to_string());
            let layout = layout(path.as_deref());
            sources.push(Source { path, object, names_files, ..Source::new(shown, layout) });
        }
        sources[0].begins_after(0);
        Ok(Self(sources))
    }

    /// A prompt that was typed: one row.
    pub fn of_prompt(prompt: &str) -> Self {
        let text = JsonFields::from_pairs(&[(PROMPT_FIELD, &json_string(prompt))]).into_text();
        let source = Source::new("--prompt".to_owned(), InputFormat::Jsonl.into());
        let source = Source { text: Some(text), ..source };
        source.begins_after(0);
        Self(vec![source])
    }

    /// The files in their order.
    pub fn list(&self) -> &[Source] {
        &self.0
    }

    /// Common name of the sources.
    pub fn name(&self) -> String {
        match self.0.as_slice() {
            [only] => only.name.clone(),
            [first, others @ ..] => format!("{} and {} more", first.name, others.len()),
            [] => unreachable!("there is at least one"),
        }
    }

    /// Whether rows are images without a text.
    pub fn are_pictures(&self) -> bool {
        self.0[0].pictures.is_some()
    }

    /// Whether rows name the images beside their file.
    pub fn name_files(&self) -> bool {
        self.0[0].names_files
    }

    /// Whether each is a file: it can be read more than once, at no cost.
    pub fn are_files(&self) -> bool {
        self.0.iter().all(Source::is_file)
    }

    /// Whether places of each can be looked at before it is read.
    pub fn are_seekable(&self) -> bool {
        self.0.iter().all(|source| source.object.is_some() || source.is_file())
    }

    /// The layouts, each once.
    pub fn layouts(&self) -> Vec<Layout> {
        let mut layouts: Vec<Layout> = Vec::new();
        for source in &self.0 {
            if !layouts.contains(&source.layout) {
                layouts.push(source.layout);
            }
        }
        layouts
    }

    /// Whether each is a table, as far as is known.
    pub fn are_tables(&self) -> bool {
        self.0.iter().all(|source| source.format().delimiter().is_some())
    }

    /// The file that a line is in, and its number there.
    pub fn place(&self, line: u64) -> (&str, u64) {
        let begun = self.0.iter().filter_map(|source| Some((source, *source.lines_before.get()?)));
        let found = begun.rev().find(|(_, before)| *before < line);
        let (source, before) = found.unwrap_or((&self.0[0], 0));
        (&source.name, line - before)
    }

    /// A line as messages name it, with its file where there are several.
    pub fn said(&self, line: u64) -> String {
        match (self.0.len(), self.place(line)) {
            (1, (_, row)) if self.0[0].has_rows.get().is_some() => format!("row {row}"),
            (1, (_, line)) => format!("line {line}"),
            (_, (file, line)) => format!("{file}:{line}"),
        }
    }

    /// The file of a row's error, and the error with its line in that file.
    pub fn located<'a>(&self, error: &'a RowError) -> (&str, Cow<'a, RowError>) {
        let (file, line) = self.place(error.line);
        match line == error.line {
            true => (file, Cow::Borrowed(error)),
            false => (file, Cow::Owned(RowError { line, ..error.clone() })),
        }
    }

    /// A bad row that ends the run.
    pub fn row_error(&self, error: &RowError) -> CliError {
        let (file, error) = self.located(error);
        CliError::from_row(&error, file)
    }
}

impl Source {
    fn new(name: String, layout: Layout) -> Self {
        Self {
            path: None,
            text: None,
            pictures: None,
            names_files: false,
            object: None,
            name,
            layout,
            found: OnceLock::new(),
            lines_before: OnceLock::new(),
            has_rows: OnceLock::new(),
        }
    }

    fn of_pictures(pictures: Pictures) -> Self {
        let source = Self::new(pictures.name(), InputFormat::Jsonl.into());
        source.counts_rows();
        Self { pictures: Some(Arc::new(pictures)), ..source }
    }

    /// Whether it is standard input.
    pub fn is_stdin(&self) -> bool {
        self.path.is_none() && self.text.is_none() && self.pictures.is_none()
    }

    /// Format, as far as is known.
    pub fn format(&self) -> InputFormat {
        self.found.get().copied().unwrap_or(self.layout.format)
    }

    /// Says what its first line showed.
    pub fn is_of(&self, format: InputFormat) {
        let _ = self.found.set(format);
    }

    /// Whether it is a file of this machine, or several.
    pub fn is_file(&self) -> bool {
        self.pictures.is_some() || self.path.as_ref().is_some_and(|path| path.is_file())
    }

    /// Says how many lines the files before it have. Whoever reads them finds the same.
    pub fn begins_after(&self, num_lines: u64) {
        let _ = self.lines_before.set(num_lines);
    }

    /// The place of its rows, by which it is known what their paths mean and which may be read.
    pub fn place(&self) -> Place<'_> {
        match (&self.object, &self.pictures) {
            (Some(_), _) => Place::Store,
            (None, None) => Place::Folder(folder_of(self.path.as_deref())),
            (None, Some(pictures)) => pictures.folder().map_or(Place::Named, Place::Beneath),
        }
    }

    /// It as a file of which the footer can be read, if it has one. None: standard input, or an
    /// object that has none.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn with_footer(&self) -> io::Result<Option<File>> {
        match (&self.object, &self.path) {
            (Some(object), _) => footer_of(object),
            (None, Some(path)) => File::open(path).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Says that what is counted in it are rows: it is a Parquet file.
    pub fn counts_rows(&self) {
        let _ = self.has_rows.set(());
    }
}

/// The folder of a file, or the current one: of standard input.
fn folder_of(path: Option<&Path>) -> &Path {
    let parent = path.and_then(Path::parent).filter(|parent| *parent != Path::new(""));
    parent.unwrap_or(Path::new("."))
}

/// An object of the store that all sources share.
fn object(store: &mut Option<Arc<Store>>, name: ObjectName) -> Result<Object, CliError> {
    let store = match store {
        Some(store) => Arc::clone(store),
        None => {
            let made = Store::from_env().map_err(CliError::from_store)?;
            Arc::clone(store.insert(Arc::new(made)))
        }
    };
    Ok(Object::new(store, name))
}

/// Whether a name is a pattern: it has one of a pattern's characters, and there is no such file.
fn is_pattern(input: &Path) -> bool {
    let has_one = input.to_str().is_some_and(|text| text.contains(['*', '?', '[']));
    // Patterns of objects are resolved before.
    has_one && !is_object(input) && !input.exists()
}

/// The files that a pattern matches, by their names.
fn matches(pattern: &Path) -> Result<Vec<PathBuf>, CliError> {
    let text = pattern.display().to_string();
    let refused = |what: String| {
        CliError::refused("input", format!("--input {text}: {what}"))
            .help("give a file that exists, or a pattern such as 'data/*.jsonl'")
    };
    let found = glob::glob(&text).map_err(|error| refused(format!("no pattern: {error}")))?;
    let mut paths = Vec::new();
    for path in found {
        paths.push(path.map_err(|error| refused(error.to_string()))?);
    }
    paths.sort();
    match paths.is_empty() {
        true => Err(refused("no file has such a name".to_owned())),
        false => Ok(paths),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(inputs: &[&str]) -> Result<Sources, CliError> {
        let inputs: Vec<PathBuf> = inputs.iter().map(PathBuf::from).collect();
        let format = |path: &Path| InputFormat::from_path(path).into();
        let layout = |path: Option<&Path>| path.map_or_else(Layout::default, format);
        Sources::new(&inputs, layout, &PartOptions::default())
    }

    #[test]
    fn a_line_is_found_in_its_file() {
        let all = sources(&["a.jsonl", "-", "b.csv"]).unwrap();
        assert_eq!(all.name(), "a.jsonl and 2 more");
        assert_eq!(all.place(7), ("a.jsonl", 7));
        all.list()[1].begins_after(7);
        assert_eq!((all.place(7), all.place(8)), (("a.jsonl", 7), ("<stdin>", 1)));
        all.list()[2].begins_after(7);
        assert_eq!(all.said(9), "b.csv:2", "a file may have no line");
        assert_eq!(all.place(0), ("a.jsonl", 0), "a line that nobody knows");
        let error = RowError::new("bad_json", 9, "x");
        let (file, error) = all.located(&error);
        assert_eq!((file, error.line), ("b.csv", 2));
        assert_eq!(sources(&["a.jsonl"]).unwrap().said(9), "line 9");
        let table = sources(&["a.parquet"]).unwrap();
        table.list()[0].counts_rows();
        assert_eq!(table.said(9), "row 9");
        assert_eq!(sources(&[]).unwrap().name(), "<stdin>");
        assert!(sources(&["-", "-"]).is_err());
    }

    #[test]
    fn patterns_are_files_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.jsonl", "a.jsonl", "c.txt", "[x].jsonl"] {
            std::fs::write(folder.path().join(name), "a").unwrap();
        }
        let names = |pattern: &str| {
            let sources = sources(&[folder.path().join(pattern).to_str().unwrap()])?;
            let name = |source: &Source| {
                let path = source.path.as_ref().unwrap();
                path.file_name().unwrap().to_str().unwrap().to_owned()
            };
            Ok::<_, CliError>(sources.list().iter().map(name).collect::<Vec<_>>())
        };
        assert_eq!(names("[ab].jsonl").unwrap(), ["a.jsonl", "b.jsonl"]);
        assert_eq!(names("[x].jsonl").unwrap(), ["[x].jsonl"], "a name wins over a pattern");
        assert_eq!(names("?.txt").unwrap(), ["c.txt"]);
        assert!(names("*.csv").is_err() && names("[").is_err());
    }
}
