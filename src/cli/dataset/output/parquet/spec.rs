//! `TableSpec`: the columns whose types are known before the first row: those of Parquet inputs,
//! and ours.

use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::errors::Result;
use parquet::schema::types::{Type, TypePtr};
use serde::{Deserialize, Serialize};

use super::inferred::{Evidence, Inferred};
use crate::input::parquet::{ParquetFile, is_parquet};
use crate::input::sources::Sources;

/// The footer's key for what is known of columns that no schema describes.
const KEY: &str = "vllm-batch";

/// Columns of known types. Others stand between those of the input and ours.
#[derive(Clone, Debug, Default)]
pub struct TableSpec {
    /// Of the input, each nullable.
    pub of_input: Vec<TypePtr>,
    /// Of the answer.
    pub ours: Vec<TypePtr>,
    /// The column whose lists of numbers are vectors.
    pub vector: Option<String>,
}

/// What a footer says of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inferences {
    /// Where they stand among the columns.
    pub at: usize,
    /// The column whose lists of numbers are vectors.
    pub vector: Option<String>,
    /// What they hold.
    pub columns: Evidence,
}

impl TableSpec {
    /// Whether a column has a known type.
    pub fn knows(&self, name: &str) -> bool {
        self.of_input.iter().chain(&self.ours).any(|column| column.name() == name)
    }

    /// The columns of the inputs, where all of them are Parquet: those that have one type wherever
    /// they are. `rename`: what rows call a column, and which other names are taken; None: they may
    /// call it in several ways.
    pub fn of_inputs(
        sources: &Sources,
        rename: impl Fn(&str, &dyn Fn(&str) -> bool) -> Option<String>,
    ) -> Vec<TypePtr> {
        let mut known: Vec<(TypePtr, bool)> = Vec::new();
        for source in sources.list() {
            let file = source.with_footer().ok().flatten();
            let file = file.filter(|file| is_parquet(file).unwrap_or(false));
            // What cannot be read is said by whoever reads it.
            let Some(file) = file.and_then(|file| ParquetFile::open(file).ok()) else {
                return Vec::new();
            };
            for column in file.schema().get_fields() {
                match known.iter_mut().find(|(known, _)| known.name() == column.name()) {
                    Some((known, is_one)) => *is_one &= without_id(known) == without_id(column),
                    None => known.push((column.clone(), true)),
                }
            }
        }
        let is_taken = |name: &str| known.iter().any(|(column, _)| column.name() == name);
        let of_one_type = known.iter().filter(|(_, is_one)| *is_one);
        let named = of_one_type.filter_map(|(column, _)| {
            let name = rename(column.name(), &is_taken)?;
            nullable(column, &name).ok().map(Arc::new)
        });
        named.collect()
    }

    /// The columns of a file that this program wrote, and what it knows of the others.
    ///
    /// # Errors
    /// It did not write it.
    pub fn of_file(file: &ParquetFile) -> std::result::Result<(Self, Inferences), String> {
        let text = file.key_value(KEY).ok_or("has no note of vllm-batch in its footer")?;
        let inferences: Inferences = serde_json::from_str(text)
            .map_err(|error| format!("has a note in its footer that cannot be read: {error}"))?;
        let columns = file.schema().get_fields();
        let num_inferred = inferences.columns.fields().len();
        let ours = inferences.at.checked_add(num_inferred).and_then(|end| columns.get(end..));
        let of_input = columns.get(..inferences.at).zip(ours);
        let (of_input, ours) = of_input.ok_or("has fewer columns than its footer says")?;
        let spec = Self {
            of_input: of_input.to_vec(),
            ours: ours.to_vec(),
            vector: inferences.vector.clone(),
        };
        Ok((spec, inferences))
    }

    /// Whether another one is of the same run.
    pub fn is_like(&self, other: &Self) -> bool {
        let Self { of_input, ours, vector } = self;
        (of_input, ours, vector) == (&other.of_input, &other.ours, &other.vector)
    }

    /// What the footer says of `evidence`.
    pub fn note(&self, evidence: &Evidence) -> (String, String) {
        let at = self.of_input.len();
        let note = Inferences { at, vector: self.vector.clone(), columns: evidence.in_order() };
        (KEY.to_owned(), serde_json::to_string(&note).expect("plain values"))
    }
}

/// What a row's answer has in any case, whether or not it failed. `usage`: which numbers of tokens.
///
/// # Panics
/// Never: these types exist.
pub fn ours(text_field: Option<&str>, usage: &[&str]) -> Vec<TypePtr> {
    let build = || -> Result<Vec<TypePtr>> {
        let mut columns = Vec::new();
        for name in text_field.into_iter().chain(["finish_reason"]) {
            columns.push(inferred(name, Inferred::Text)?);
        }
        let counts = usage.iter().map(|name| inferred(name, Inferred::Int));
        columns.push(group("usage", counts.collect::<Result<_>>()?, None)?);
        let texts = ["code", "message"].map(|name| inferred(name, Inferred::Text));
        columns.push(group("error", texts.into_iter().collect::<Result<_>>()?, None)?);
        Ok(columns)
    };
    build().expect("types that exist")
}

/// The type of a column that no schema describes.
///
/// # Errors
/// The parquet crate's.
pub(super) fn inferred(name: &str, inferred: Inferred) -> Result<TypePtr> {
    let (physical, logical) = match inferred {
        Inferred::Bool => (Physical::BOOLEAN, None),
        Inferred::Int => (Physical::INT64, None),
        Inferred::Float => (Physical::DOUBLE, None),
        Inferred::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Inferred::Json => (Physical::BYTE_ARRAY, Some(LogicalType::Json)),
        Inferred::Vector => {
            let item = Type::primitive_type_builder("element", Physical::FLOAT)
                .with_repetition(Repetition::REQUIRED)
                .build()?;
            let items = Type::group_type_builder("list")
                .with_repetition(Repetition::REPEATED)
                .with_fields(vec![Arc::new(item)])
                .build()?;
            return group(name, vec![Arc::new(items)], Some(LogicalType::List));
        }
    };
    let column = Type::primitive_type_builder(name, physical)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(logical)
        .build()?;
    Ok(Arc::new(column))
}

fn group(name: &str, fields: Vec<TypePtr>, logical: Option<LogicalType>) -> Result<TypePtr> {
    let group = Type::group_type_builder(name)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(logical)
        .with_fields(fields)
        .build()?;
    Ok(Arc::new(group))
}

/// A column that may be null, under a name: an error row has nothing else of a row.
fn nullable(column: &Type, name: &str) -> Result<Type> {
    let info = column.get_basic_info();
    let repetition = match info.has_repetition() && info.repetition() == Repetition::REPEATED {
        true => Repetition::REPEATED,
        false => Repetition::OPTIONAL,
    };
    let (converted, logical) = (info.converted_type(), info.logical_type_ref().cloned());
    match column {
        Type::PrimitiveType { physical_type, type_length, scale, precision, .. } => {
            Type::primitive_type_builder(name, *physical_type)
                .with_repetition(repetition)
                .with_converted_type(converted)
                .with_logical_type(logical)
                .with_length(*type_length)
                .with_scale(*scale)
                .with_precision(*precision)
                .build()
        }
        Type::GroupType { fields, .. } => Type::group_type_builder(name)
            .with_repetition(repetition)
            .with_converted_type(converted)
            .with_logical_type(logical)
            .with_fields(fields.clone())
            .build(),
    }
}

/// For a comparison of files whose writers number fields each in its own way.
fn without_id(column: &Type) -> Option<Type> {
    nullable(column, column.name()).ok()
}
