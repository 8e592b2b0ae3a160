//! `ParquetRows`: the rows of a file as JSON objects, put together from its columns: as "Dremel"
//! has it, the levels say where values begin and what is null.

use std::io;
use std::sync::Arc;

use parquet::errors::ParquetError;

use super::column::Column;
use super::file::ParquetFile;
use super::intake::{Budget, Intake};
use super::pages::{ColumnChunk, Pages};
use super::schema::{Leaf, List, Map, Node, Repeated, Struct};
use crate::input::fields::json_string;
use crate::input::reader::{Content, MAX_LINE, Record};
use crate::input::row_error::{RowError, code};

/// Rows of a column that are read together at most, and values of them where there are lists.
const BATCH: (u64, u64) = (1024, 1 << 20);

/// Bytes that are shown of a row that is too long.
const SHOWN_OF_LONG: usize = 256;

/// The rows of a file, from first to last.
pub struct ParquetRows {
    file: ParquetFile,
    /// The row group that is read, from 0.
    group: usize,
    columns: Vec<Column>,
    /// Rows of the group that come, and those that came.
    left: u64,
    taken: u64,
    /// Rows of a column that are read together in this group.
    batch: u64,
    /// Number of the next row, from 1.
    row: u64,
}

impl ParquetRows {
    /// The rows of an open file.
    pub fn new(file: ParquetFile) -> Self {
        let columns = Vec::new();
        Self { file, group: 0, columns, left: 0, taken: 0, batch: 1, row: 1 }
    }

    /// The number of the row that comes next, from 1.
    pub fn next_number(&self) -> u64 {
        self.row
    }

    /// Rows of the whole file.
    pub fn num_rows(&self) -> u64 {
        self.file.num_rows()
    }

    /// The next row.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged from here on.
    pub fn next_row(&mut self) -> io::Result<Option<Record>> {
        if self.left == 0 && !self.begin_group()? {
            return Ok(None);
        }
        self.fill()?;
        self.left -= 1;
        self.taken += 1;
        let line = self.row;
        self.row += 1;
        let mut writer = Writer { columns: &mut self.columns, out: vec![b'{'], problem: None };
        for field in &self.file.columns {
            writer.key(&field.key);
            let written = writer.node(&field.node);
            written.map_err(|what| failed(self.group - 1, what))?;
        }
        let Writer { mut out, problem, .. } = writer;
        out.push(b'}');
        if self.columns.iter().any(|column| !column.is_after(self.taken)) {
            return Err(failed(self.group - 1, APART));
        }
        self.columns.iter_mut().for_each(Column::take_row);
        let text = String::from_utf8(out).expect("JSON is text");
        Ok(Some(match problem {
            Some(Problem::Value(message)) => {
                let error = RowError::new(code::BAD_VALUE, line, message);
                Record { line, content: Content::Line(text), error: Some(error) }
            }
            _ if problem.is_some() || text.len() > MAX_LINE => too_long(text, line),
            _ => Record { line, content: Content::Line(text), error: None },
        }))
    }

    /// Opens the next row group that has rows; false: there is none.
    fn begin_group(&mut self) -> io::Result<bool> {
        self.columns.clear();
        let groups = self.file.metadata.row_groups();
        let next = groups[self.group..].iter().position(|group| group.num_rows() > 0);
        let Some(index) = next.map(|skipped| self.group + skipped) else { return Ok(false) };
        self.group = index + 1;
        let group = &groups[index];
        let rows = group.num_rows() as u64;
        (self.left, self.taken) = (rows, 0);
        let budget = Arc::new(Budget::default());
        let mut most_values = 1u64;
        for column in group.columns() {
            let descriptor = column.column_descr_ptr();
            let levels = (descriptor.max_rep_level(), descriptor.max_def_level());
            let num_values = column.num_values() as u64;
            let intake = Intake::new(&budget, group.num_columns(), levels.0 > 0);
            let chunk = ColumnChunk {
                file: Arc::clone(&self.file.file),
                range: self.file.range(column).expect("checked when it was opened"),
                codec: column.compression_codec(),
                num_values,
                levels,
                physical: (descriptor.physical_type(), descriptor.type_length()),
            };
            most_values = most_values.max(num_values);
            let pages = Pages::new(chunk, Arc::clone(&intake));
            self.columns.push(Column::new(descriptor, pages, intake));
        }
        let (max_rows, max_values) = BATCH;
        self.batch = max_rows.min(max_values / most_values.div_ceil(rows)).max(1);
        Ok(true)
    }

    /// Reads further rows of each column that has none left.
    fn fill(&mut self) -> io::Result<()> {
        let most = self.left.min(self.batch) as usize;
        for column in 0..self.columns.len() {
            self.columns[column].fill(most).map_err(|error| {
                let descriptor = self.file.metadata.file_metadata().schema_descr().column(column);
                let name = descriptor.path().string();
                let what = match error {
                    ParquetError::General(what) => what,
                    error => error.to_string(),
                };
                failed(self.group - 1, format!("column {name}: {what}"))
            })?;
        }
        Ok(())
    }
}

fn failed(group: usize, what: impl std::fmt::Display) -> io::Error {
    let what = format!("row group {}: {what}", group + 1);
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn too_long(text: String, line: u64) -> Record {
    let message = format!("the row has more than {MAX_LINE} bytes as JSON");
    let error = RowError::new(code::LINE_TOO_LONG, line, message);
    let head = &text.as_bytes()[..text.len().min(SHOWN_OF_LONG)];
    let shown = String::from_utf8_lossy(head).into_owned() + "...";
    Record { line, content: Content::Line(shown), error: Some(error) }
}

/// Fault of a row, and not of its file.
enum Problem {
    /// A value is none of its type.
    Value(String),
    /// It becomes too long.
    TooLong,
}

/// Levels of columns that are not of one row.
const APART: &str = "its columns have different rows";

/// Appends one row.
struct Writer<'a> {
    columns: &'a mut [Column],
    out: Vec<u8>,
    problem: Option<Problem>,
}

impl Writer<'_> {
    fn node(&mut self, node: &Node) -> Result<(), &'static str> {
        match node {
            Node::Leaf(leaf) => self.leaf(leaf),
            Node::Struct(inner) => self.structure(inner, node),
            Node::List(list) => self.list(list, node),
            Node::Map(map) => self.map(map, node),
        }
    }

    fn key(&mut self, name: &str) {
        self.separate();
        self.out.extend_from_slice(name.as_bytes());
    }

    fn separate(&mut self) {
        if !matches!(self.out.last(), Some(b'{' | b'[')) {
            self.out.push(b',');
        }
    }

    fn def(&self, column: usize) -> Result<i16, &'static str> {
        self.columns[column].def().ok_or(APART)
    }

    /// Nothing of a node is there.
    fn null(&mut self, node: &Node, text: &str) -> Result<(), &'static str> {
        for column in node.leaves() {
            self.def(column)?;
            self.columns[column].advance();
        }
        self.out.extend_from_slice(text.as_bytes());
        Ok(())
    }

    fn leaf(&mut self, leaf: &Leaf) -> Result<(), &'static str> {
        let is_there = self.def(leaf.index)? == leaf.def;
        let column = &mut self.columns[leaf.index];
        let start = self.out.len();
        let room = MAX_LINE.saturating_sub(start);
        let too_long = column.bytes().filter(|bytes| is_there && bytes.len() > room);
        if let Some(bytes) = too_long {
            // What is shown of it.
            let head = String::from_utf8_lossy(&bytes[..SHOWN_OF_LONG.min(bytes.len())]);
            self.out.extend_from_slice(json_string(&head).as_bytes());
            self.problem = Some(Problem::TooLong);
        } else if is_there
            && start <= MAX_LINE
            && let Err(what) = column.write(leaf, &mut self.out)
        {
            self.out.truncate(start);
            let problem = Problem::Value(format!("column {} {what}", leaf.name));
            self.problem.get_or_insert(problem);
        }
        if self.out.len() == start {
            self.out.extend_from_slice(b"null");
        }
        if self.out.len() > MAX_LINE {
            self.problem = Some(Problem::TooLong);
        }
        column.advance();
        Ok(())
    }

    fn structure(&mut self, inner: &Struct, node: &Node) -> Result<(), &'static str> {
        if self.def(node.leaves().start)? < inner.def {
            return self.null(node, "null");
        }
        self.out.push(b'{');
        for field in &inner.fields {
            self.key(&field.key);
            self.node(&field.node)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    fn list(&mut self, list: &List, node: &Node) -> Result<(), &'static str> {
        let column = node.leaves().start;
        self.repeated(list.levels, node, "[]", |writer| {
            writer.out.push(b'[');
            loop {
                writer.separate();
                writer.node(&list.item)?;
                if writer.columns[column].rep() != list.levels.rep {
                    break;
                }
            }
            writer.out.push(b']');
            Ok(())
        })
    }

    fn map(&mut self, map: &Map, node: &Node) -> Result<(), &'static str> {
        let column = node.leaves().start;
        self.repeated(map.levels, node, "{}", |writer| {
            writer.out.push(b'{');
            loop {
                writer.separate();
                writer.map_key(&map.key)?;
                writer.out.push(b':');
                match &map.value {
                    Some(value) => writer.node(value)?,
                    None => writer.out.extend_from_slice(b"null"),
                }
                if writer.columns[column].rep() != map.levels.rep {
                    break;
                }
            }
            writer.out.push(b'}');
            Ok(())
        })
    }

    /// A key of an object is a text.
    fn map_key(&mut self, key: &Leaf) -> Result<(), &'static str> {
        if self.def(key.index)? != key.def {
            let problem = Problem::Value(format!("column {} has a key that is null", key.name));
            self.problem.get_or_insert(problem);
        }
        let start = self.out.len();
        self.leaf(key)?;
        if self.out[start] != b'"' {
            self.out.insert(start, b'"');
            self.out.push(b'"');
        }
        Ok(())
    }

    fn repeated(
        &mut self,
        levels: Repeated,
        node: &Node,
        empty: &str,
        items: impl FnOnce(&mut Self) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        match self.def(node.leaves().start)? {
            def if def < levels.def => self.null(node, "null"),
            def if def == levels.def => self.null(node, empty),
            _ => items(self),
        }
    }
}
