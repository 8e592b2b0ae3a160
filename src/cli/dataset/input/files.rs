//! `Files`: the records of all input files, one file after the other.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use super::media::FetchedImage;
use super::parquet::{ParquetFile, is_parquet};
use super::pictures::Pictures;
use super::reader::{
    Brought, HeaderNames, InputError, InputFormat, MAX_LINE, Opened, Reading, Record, Records,
    refuse_name,
};
use super::referred::Referred;
use super::row::{BadRow, Row, RowOptions, RowParser, Task, check_columns};
use super::sample::{Chosen, Picker};
use super::sources::{Source, Sources};
use crate::terminal::error::CliError;
use crate::terminal::exit::Exit;
use vllm_batch_media::MediaKind;

/// Opens the first file, and looks at the others: what cannot be read is said before the run.
///
/// # Errors
/// A file is not there, cannot be read or holds no rows; or a table has other columns than the one
/// before.
pub fn open(sources: &Sources, options: &RowOptions) -> Result<Opened, CliError> {
    let input = open_one(&sources.list()[0])?;
    // What is transcribed needs none.
    let hears = |files: &Pictures| files.medium() == MediaKind::Sound;
    let is_heard = sources.list()[0].pictures.as_deref().is_some_and(hears);
    let takes_alone = options.task.takes_images_alone() || is_heard;
    let needs_text = !takes_alone && options.template.is_none();
    if sources.are_pictures() && needs_text {
        let what = match sources.list()[0].pictures.as_ref().and_then(|files| files.kind()) {
            Some(kind) => {
                format!("{}: parts of a {} have no text to answer", sources.name(), kind.name)
            }
            None => format!("{}: pictures have no text to answer", sources.name()),
        };
        return Err(CliError::refused("input", what)
            .help("say it for all of them, as in --template 'Describe the image.'"));
    }
    if sources.list().len() > 1 {
        let (names, mut columns) = (options.header_names(), None);
        for source in sources.list() {
            look_at(source, &names, &mut columns)?;
        }
    }
    Ok(input)
}

/// A pipe is not opened: whoever writes to it would lose its reader.
fn look_at(
    source: &Source,
    names: &HeaderNames,
    columns: &mut Option<Arc<[String]>>,
) -> Result<(), CliError> {
    let Some(path) = &source.path else { return Ok(()) };
    let has_columns = source.layout.format.delimiter().is_some();
    if let Some(object) = source.object.as_ref().filter(|_| !has_columns) {
        return object.facts().map(drop).map_err(CliError::from_store);
    }
    if path.exists() && !path.is_file() && !path.is_dir() {
        return Ok(());
    }
    let input = open_one(source)?;
    if matches!(input, Opened::Parquet(_)) {
        // Its footer is read with its rows.
        source.is_of(InputFormat::Parquet);
        return Ok(());
    }
    let refused = |error| CliError::from_input(error, &source.name);
    let records = records_of(input, source, names).map_err(refused)?;
    source.is_of(records.format());
    let found = records.headers();
    if let (Some(known), Some(found)) = (columns.as_deref(), found.as_deref()) {
        check_columns(known, found).map_err(refused)?;
    }
    *columns = found.or(columns.take());
    Ok(())
}

fn records_of(input: Opened, source: &Source, names: &HeaderNames) -> Result<Records, InputError> {
    let reading = Reading { layout: source.layout, names: Some(names) };
    let records = Records::of(input, reading, MAX_LINE)?;
    if records.brought() == Brought::Members {
        source.counts_rows();
    }
    Ok(records)
}

fn open_one(source: &Source) -> Result<Opened, CliError> {
    if let Some(pictures) = &source.pictures {
        return Ok(Opened::Pictures(Arc::clone(pictures)));
    }
    let Some(path) = &source.path else {
        return Ok(Opened::Stream(match &source.text {
            Some(text) => Box::new(Cursor::new(text.clone())),
            None => Box::new(std::io::stdin()),
        }));
    };
    refuse_name(path, source.layout.format)
        .map_err(|error| CliError::from_input(error, &source.name))?;
    if let Some(object) = &source.object {
        let opened = Opened::of_object(object).map_err(CliError::from_store)?;
        if matches!(opened, Opened::Parquet(_)) {
            source.counts_rows();
        }
        return Ok(opened);
    }
    let refuse = |text: String| {
        let message = format!("cannot read {}: {text}", path.display());
        CliError::new(Exit::Refused, "input", message).help_of_file("check its name")
    };
    let file = File::open(path).map_err(|error| refuse(error.to_string()))?;
    match file.metadata() {
        Ok(metadata) if metadata.is_dir() => Err(refuse("it is a folder".to_owned())),
        _ => {
            let opened = Opened::of_file(file).map_err(|error| refuse(error.to_string()))?;
            if matches!(opened, Opened::Parquet(_)) {
                source.counts_rows();
            }
            Ok(opened)
        }
    }
}

/// The images that rows of a table name by another row. What is read once only has none.
fn referred(
    source: &Source,
    records: &Records,
    column: &str,
    names: &HeaderNames,
) -> Result<Option<Referred>, CliError> {
    let Some(headers) = records.headers().filter(|_| source.is_file()) else { return Ok(None) };
    let open = || {
        let file = File::open(source.path.as_deref().unwrap_or(Path::new("")))?;
        records_of(Opened::of_file(file)?, source, names)
    };
    Referred::of(&headers, column, open).map_err(|error| CliError::from_input(error, &source.name))
}

/// Number of rows, if every file says it: those of Parquet do. The reader reports a file that
/// cannot be read.
pub fn num_rows(sources: &Sources) -> Option<u64> {
    let mut total = 0u64;
    for source in sources.list() {
        if let Some(pictures) = &source.pictures {
            // How many parts a file has is known when it is opened.
            if pictures.kind().is_some() {
                return None;
            }
            total = total.saturating_add(pictures.paths().len() as u64);
            continue;
        }
        let file = source.with_footer().ok()??;
        if !is_parquet(&file).ok()? {
            return None;
        }
        total = total.saturating_add(ParquetFile::open(file).ok()?.num_rows());
    }
    Some(total)
}

/// Number of rows, at most `limit`: all files are read if they do not say it.
///
/// # Errors
/// A file cannot be read.
pub fn count(sources: &Sources, names: &HeaderNames, limit: u64) -> Result<u64, CliError> {
    if let Some(rows) = num_rows(sources) {
        return Ok(rows.min(limit));
    }
    let mut rows = 0;
    for source in sources.list() {
        let refused = |error| CliError::from_input(error, &source.name);
        for record in records_of(open_one(source)?, source, names).map_err(refused)? {
            if rows == limit {
                return Ok(rows);
            }
            record.map_err(|error| refused(error.into()))?;
            rows += 1;
        }
    }
    Ok(rows)
}

/// Properties of the input once it is open and its first row is read.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Never `Auto`.
    pub format: InputFormat,
    /// Column names of a CSV.
    pub headers: Option<Arc<[String]>>,
    /// Separator of the cells of a CSV.
    pub delimiter: Option<u8>,
    /// Lines end with CRLF.
    pub crlf: bool,
    /// The output of a CSV begins with a mark.
    pub is_marked: bool,
    /// Rows become lines of a batch API.
    pub has_batch_lines: bool,
    /// Every row of this shape is chat.
    pub is_chat: bool,
    /// Rows are requests of a batch API.
    pub is_batch: bool,
    /// No row can have another shape.
    pub is_fixed: bool,
    /// Task of the rows.
    pub task: Task,
}

/// The files, with the parser of their rows.
pub struct Files {
    sources: Arc<Sources>,
    /// The one that is read.
    current: usize,
    /// Lines of the files before it.
    lines_before: u64,
    /// Blank lines of the files before it.
    blank_before: u64,
    records: Records,
    parser: RowParser,
    /// Header names of tables without a given format.
    header_names: HeaderNames,
    /// Findings about files that were already noted for one of them.
    said: HashSet<String>,
    /// The rows of a sample; None: all rows.
    picker: Option<Picker>,
    /// Records of this file that were read while images of them are fetched.
    ahead: VecDeque<AheadRecord>,
    /// Why no record follows those.
    failed: Option<CliError>,
    /// Images that were asked for with the record that is out.
    asked: Vec<String>,
    recall: Option<Recall>,
}

/// Says which images of a record an earlier run fetched.
pub type Recall = Box<dyn FnMut(&Record) -> Vec<FetchedImage>>;

/// A record that was read ahead.
struct AheadRecord {
    record: Record,
    is_picked: bool,
    /// Images that were asked for.
    urls: Vec<String>,
}

/// Records that are read ahead at most, and bytes of them.
const MAX_AHEAD: (usize, usize) = (128, 16 << 20);

impl Files {
    /// Begins with the first file, which is open.
    ///
    /// # Errors
    /// It cannot be read, or its rows cannot be run.
    pub fn new(
        sources: Arc<Sources>,
        first: Opened,
        options: &RowOptions,
    ) -> Result<Self, CliError> {
        let source = &sources.list()[0];
        let refused = |error| CliError::from_input(error, &source.name);
        let header_names = options.header_names();
        let mut records = records_of(first, source, &header_names).map_err(refused)?;
        let mut parser = RowParser::new(&mut records, options).map_err(refused)?;
        parser.begin(source.place());
        parser.refer(referred(source, &records, parser.image_column(), &header_names)?);
        parser.name_file((sources.list().len() > 1).then_some(source.name.as_str()));
        let said = HashSet::new();
        let picker = None;
        Ok(Self {
            sources,
            current: 0,
            lines_before: 0,
            blank_before: 0,
            records,
            parser,
            header_names,
            said,
            picker,
            ahead: VecDeque::new(),
            failed: None,
            asked: Vec::new(),
            recall: None,
        })
    }

    /// Takes images that an earlier run fetched as they were then, and asks for none of them.
    pub fn recall(&mut self, recall: Recall) {
        self.recall = Some(recall);
    }

    /// The same with the rows of a sample alone.
    pub fn choosing(mut self, chosen: Option<Arc<Chosen>>) -> Self {
        self.picker = chosen.map(Picker::new);
        self
    }

    /// Records of the current file.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Blank lines of all files so far.
    pub fn blank_lines(&self) -> u64 {
        self.blank_before + self.records.blank_lines()
    }

    /// Findings about the current file that a user may want to know. A finding of several files is
    /// noted for the first.
    pub fn take_notes(&mut self) -> Vec<String> {
        let mut notes = self.records.take_notes();
        notes.retain(|note| self.said.insert(note.clone()));
        notes
    }

    /// The parser of all rows.
    pub fn parser(&mut self) -> &mut RowParser {
        &mut self.parser
    }

    /// The parser of all rows.
    pub fn as_parser(&self) -> &RowParser {
        &self.parser
    }

    /// The name of the current file.
    pub fn name(&self) -> &str {
        &self.sources.list()[self.current].name
    }

    /// Index of the file that is read.
    pub fn current(&self) -> usize {
        self.current
    }

    /// The next record, of the next file that has one; of a sample, the next that is in it.
    ///
    /// # Errors
    /// A file cannot be read, or its rows cannot be run with those before.
    pub fn next_record(&mut self) -> Result<Option<Record>, CliError> {
        let asked = std::mem::take(&mut self.asked);
        self.parser.release(&asked);
        loop {
            let Some(next) = self.next_of_all()? else { return Ok(None) };
            if next.is_picked {
                self.asked = next.urls;
                return Ok(Some(next.record));
            }
            self.parser.pass_over(next.record).map_err(|error| self.failed(error))?;
        }
    }

    fn next_of_all(&mut self) -> Result<Option<AheadRecord>, CliError> {
        loop {
            self.read_ahead();
            if let Some(next) = self.ahead.pop_front() {
                return Ok(Some(next));
            }
            match self.read_one()? {
                Some(next) => return Ok(Some(next)),
                None if self.is_picked_out() => return Ok(None),
                None if self.current + 1 < self.sources.list().len() => self.begin_next()?,
                None => return Ok(None),
            }
        }
    }

    /// Reads further in the file, and asks for images of what comes. Whoever writes to a pipe may
    /// wait for the answer to the row that is there.
    fn read_ahead(&mut self) {
        let source = &self.sources.list()[self.current];
        if !source.is_file() && source.object.is_none() {
            return;
        }
        let (max_records, max_bytes) = MAX_AHEAD;
        let mut bytes: usize = self.ahead.iter().map(|next| next.record.num_bytes()).sum();
        while self.ahead.len() < max_records
            && bytes < max_bytes
            && self.failed.is_none()
            && self.parser.may_ask_ahead()
        {
            match self.read_one() {
                Ok(None) => return,
                Ok(Some(mut next)) => {
                    bytes += next.record.num_bytes();
                    if next.is_picked && self.recalled(&next.record).is_empty() {
                        next.urls = self.parser.ask_ahead(&next.record);
                    }
                    self.ahead.push_back(next);
                }
                // The rows before it come first.
                Err(error) => self.failed = Some(error),
            }
        }
    }

    /// The next record of this file.
    fn read_one(&mut self) -> Result<Option<AheadRecord>, CliError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.is_picked_out() {
            return Ok(None);
        }
        let record = self.records.next().transpose().map_err(|error| self.failed(error.into()))?;
        let Some(record) = record else { return Ok(None) };
        let is_picked = self.picker.as_mut().is_none_or(Picker::picks_next);
        Ok(Some(AheadRecord { record, is_picked, urls: Vec::new() }))
    }

    fn recalled(&mut self, record: &Record) -> Vec<FetchedImage> {
        self.recall.as_mut().map(|recall| recall(record)).unwrap_or_default()
    }

    /// Whether no record that comes is in the sample.
    fn is_picked_out(&self) -> bool {
        self.picker.as_ref().is_some_and(Picker::is_done)
    }

    /// Row of a record, with the number of its line among all lines.
    ///
    /// # Errors
    /// It is the first one, and its shape cannot be run.
    pub fn parse(&mut self, record: Record) -> Result<Result<Row, BadRow>, CliError> {
        let recalled = self.recalled(&record);
        self.parser.recall(recalled);
        let row = self.parser.parse(record).map_err(|error| self.failed(error))?;
        Ok(match row {
            Ok(row) => Ok(Row { line: row.line + self.lines_before, ..row }),
            Err(mut bad) => {
                bad.error.line += self.lines_before;
                Err(bad)
            }
        })
    }

    fn begin_next(&mut self) -> Result<(), CliError> {
        self.lines_before += self.records.last_line();
        self.blank_before += self.records.blank_lines();
        self.current += 1;
        let source = &self.sources.list()[self.current];
        source.begins_after(self.lines_before);
        let refused = |error| CliError::from_input(error, &source.name);
        let input = open_one(source)?;
        self.records = records_of(input, source, &self.header_names).map_err(refused)?;
        self.parser.name_file(Some(&source.name));
        self.parser.begin(source.place());
        let column = self.parser.image_column();
        let referred = referred(source, &self.records, column, &self.header_names)?;
        self.parser.refer(referred);
        self.parser.begin_file(&mut self.records).map_err(refused)
    }

    fn failed(&self, error: InputError) -> CliError {
        CliError::from_input(error, self.name())
    }
}
