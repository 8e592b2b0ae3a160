//! `Table`: what is learnt of rows while they come, and `TableWriter`: the Parquet file of rows
//! that come again. Its bytes are a function of the rows: groups end by what is in them, on one
//! thread, with a fixed codec.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use parquet::basic::{Compression, ZstdLevel};
use parquet::column::writer::ColumnWriter;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use serde_json::Value;

use super::inferred::{Evidence, Inferred, canonical};
use super::shred::{ColumnValues, Shredder};
use super::spec::{self, TableSpec};
use crate::input::fields::JsonFields;
use crate::input::parquet::schema::{self, Leaf, Meaning, Node};
use crate::input::parquet::values::Values;
use crate::input::shard::Shard;

/// Rows of a group, and bytes of their values: the group ends with the row that reaches one of
/// them. The bytes of the file depend on both.
const GROUP: (usize, usize) = (8192, 128 << 20);

/// As that of `FILE.jsonl.zst`, for the same reason.
const ZSTD_LEVEL: i32 = 3;

/// A table before it is written.
#[derive(Clone, Debug)]
pub struct Table {
    spec: Arc<TableSpec>,
    evidence: Evidence,
    /// Which rows of the run come.
    shard: Shard,
    num_rows: u64,
    /// What rows have is known already.
    is_known: bool,
}

impl Table {
    /// Of the rows of a run.
    pub fn new(spec: Arc<TableSpec>, shard: Shard) -> Self {
        Self { spec, evidence: Evidence::default(), shard, num_rows: 0, is_known: false }
    }

    /// Of rows that were in the shards of a run.
    pub fn of_shards(spec: TableSpec, evidence: Evidence) -> Self {
        let spec = Arc::new(spec);
        Self { spec, evidence, shard: Shard::default(), num_rows: 0, is_known: true }
    }

    /// Looks at the next row, a JSON line.
    ///
    /// # Panics
    /// It is none.
    pub fn look_at(&mut self, row: &[u8]) {
        let number = self.num_rows * self.shard.count + self.shard.index;
        self.num_rows += 1;
        if !self.is_known {
            let spec = &self.spec;
            self.evidence.add_row(number, &fields(row), |name| spec.knows(name));
        }
    }

    /// Begins the file of these rows.
    ///
    /// # Errors
    /// The parquet crate's.
    pub fn writer(&self) -> io::Result<TableWriter> {
        TableWriter::new(&self.spec, &self.evidence).map_err(io::Error::other)
    }
}

fn fields(row: &[u8]) -> JsonFields {
    let text = String::from_utf8(row.trim_ascii_end().to_vec()).expect("rows are text");
    JsonFields::parse(text, 0)
        .unwrap_or_else(|error| panic!("rows are objects: {}", error.1.message))
}

/// Where the parquet crate writes to, and its bytes are taken from.
#[derive(Clone, Default)]
struct Taken(Arc<Mutex<Vec<u8>>>);

impl Taken {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Taken {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A column, and how a row's value goes into it.
struct Column {
    name: String,
    node: Node,
    /// None: by its type.
    inferred: Option<Inferred>,
}

/// A file that is being written.
pub struct TableWriter {
    inner: SerializedFileWriter<Taken>,
    taken: Taken,
    columns: Vec<Column>,
    group: Vec<ColumnValues>,
    num_rows: usize,
    num_bytes: usize,
}

impl TableWriter {
    fn new(spec: &TableSpec, evidence: &Evidence) -> Result<Self> {
        let mut types = spec.of_input.clone();
        let mut inferred = vec![None; types.len()];
        for field in evidence.in_order().fields() {
            let kind = field.inferred(spec.vector.as_ref() == Some(&field.name));
            types.push(spec::inferred(&field.name, kind)?);
            inferred.push(Some(kind));
        }
        types.extend(spec.ours.iter().cloned());
        inferred.resize(types.len(), None);
        let root = Arc::new(Type::group_type_builder("schema").with_fields(types).build()?);
        let (key, note) = spec.note(evidence);
        let properties = WriterProperties::builder()
            .set_created_by(format!("vllm-batch version {}", env!("CARGO_PKG_VERSION")))
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
            .set_max_row_group_row_count(None)
            .set_key_value_metadata(Some(vec![KeyValue::new(key, note)]));
        let nodes = schema::columns(&root).map_err(ParquetError::General)?;
        let columns = nodes.into_iter().zip(inferred).map(|(field, inferred)| Column {
            name: field.name,
            node: field.node,
            inferred,
        });
        let taken = Taken::default();
        let writer = SerializedFileWriter::new(taken.clone(), root, Arc::new(properties.build()))?;
        let leaves = writer.schema_descr().columns().iter();
        let group = leaves.map(|leaf| ColumnValues::new(leaf.physical_type())).collect();
        let columns = columns.collect();
        Ok(Self { inner: writer, taken, columns, group, num_rows: 0, num_bytes: 0 })
    }

    /// Takes the next row, a JSON line.
    ///
    /// # Errors
    /// A value is none of its column's type.
    pub fn add(&mut self, row: &[u8]) -> io::Result<()> {
        let fields = fields(row);
        let mut shredder = Shredder { columns: &mut self.group, num_bytes: self.num_bytes };
        let is_error = fields.get("error").is_some_and(|json| json != "null");
        for column in &self.columns {
            let value = fields.get(&column.name).filter(|json| *json != "null");
            let added = column.add(value, &mut shredder).or_else(|what| match is_error {
                // What an error row shows of a row that is too long has names of its own.
                true => column.add(None, &mut shredder),
                false => Err(what),
            });
            added.map_err(|what| {
                let what = format!("column {}: {what}", column.name);
                io::Error::new(io::ErrorKind::InvalidData, what)
            })?;
        }
        self.num_bytes = shredder.num_bytes;
        self.num_rows += 1;
        let (max_rows, max_bytes) = GROUP;
        if self.num_rows == max_rows || self.num_bytes >= max_bytes {
            self.write_group().map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// What was written since it was asked last.
    pub fn take(&mut self) -> Vec<u8> {
        self.taken.take()
    }

    /// Ends the file; its last bytes.
    ///
    /// # Errors
    /// The parquet crate's.
    pub fn finish(mut self) -> io::Result<Vec<u8>> {
        if self.num_rows > 0 {
            self.write_group().map_err(io::Error::other)?;
        }
        let Self { inner, taken, .. } = self;
        inner.close().map_err(io::Error::other)?;
        Ok(taken.take())
    }

    fn write_group(&mut self) -> Result<()> {
        let mut group = self.inner.next_row_group()?;
        for values in &mut self.group {
            let mut column = group.next_column()?.expect("as many as the schema has");
            let (defs, reps) = (Some(&values.defs[..]), Some(&values.reps[..]));
            macro_rules! put {
                ($writer:expr, $values:expr) => {{
                    $writer.write_batch($values, defs, reps)?;
                    $values.clear();
                }};
            }
            match (column.untyped(), &mut values.values) {
                (ColumnWriter::BoolColumnWriter(writer), Values::Bool(v)) => put!(writer, v),
                (ColumnWriter::Int32ColumnWriter(writer), Values::Int32(v)) => put!(writer, v),
                (ColumnWriter::Int64ColumnWriter(writer), Values::Int64(v)) => put!(writer, v),
                (ColumnWriter::Int96ColumnWriter(writer), Values::Int96(v)) => put!(writer, v),
                (ColumnWriter::FloatColumnWriter(writer), Values::Float(v)) => put!(writer, v),
                (ColumnWriter::DoubleColumnWriter(writer), Values::Double(v)) => put!(writer, v),
                (ColumnWriter::ByteArrayColumnWriter(writer), Values::Bytes(v)) => {
                    put!(writer, v);
                }
                (ColumnWriter::FixedLenByteArrayColumnWriter(writer), Values::Fixed(v)) => {
                    put!(writer, v);
                }
                _ => unreachable!("values are made for their column"),
            }
            column.close()?;
            values.defs.clear();
            values.reps.clear();
        }
        group.close()?;
        (self.num_rows, self.num_bytes) = (0, 0);
        Ok(())
    }
}

impl Column {
    /// Adds a row's value; None: null.
    fn add(
        &self,
        json: Option<&str>,
        shredder: &mut Shredder<'_>,
    ) -> std::result::Result<(), String> {
        let Some(json) = json else { return shredder.add(&self.node, None) };
        match (&self.node, self.inferred) {
            // As it is written: numbers keep all their digits.
            (Node::Leaf(leaf @ Leaf { meaning: Meaning::Json, .. }), inferred) => {
                match inferred {
                    Some(_) => shredder.add_text(leaf, &canonical(json)),
                    None => shredder.add_text(leaf, json),
                }
                Ok(())
            }
            (node, _) => {
                let value: Value = serde_json::from_str(json).map_err(|error| error.to_string())?;
                shredder.add(node, Some(&value))
            }
        }
    }
}
