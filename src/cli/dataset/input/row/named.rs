//! Records before they have a shape: fields by name, cells, or a line that is none; and the
//! row's own name.

use crate::input::fields::{JsonFields, check_depth, json_string};
use crate::input::overrides::parameter_cell;
use crate::input::own_params::OwnParams;
use crate::input::row_error::{RowError, code};

/// A row's fields by name, and whether it had names: bare values and text lines are named `prompt`.
pub(super) struct NamedRow {
    pub(super) fields: JsonFields,
    pub(super) is_bare: bool,
}

/// Record before it has a shape.
pub(super) enum Named {
    /// Fields; the cells of a CSV row come along for its output.
    Row(NamedRow, Option<Vec<String>>),
    /// A line that has none.
    Line(String, RowError),
    /// Fields of which one has no value: the row of a Parquet file.
    Fields(JsonFields, RowError),
    /// A CSV record that cannot be a row.
    Cells(Vec<String>, RowError),
}

/// A JSON line: an object, or a bare string or list, which becomes the field `prompt`.
pub(super) fn parse_json(text: String, line: u64) -> Result<NamedRow, Box<(String, RowError)>> {
    let first = text.bytes().find(|b| !b.is_ascii_whitespace());
    if first == Some(b'{') {
        let fields = JsonFields::parse(text, line)?;
        return Ok(NamedRow { fields, is_bare: false });
    }
    let checked = check_depth(&text, line).and_then(|()| {
        serde_json::from_str::<&serde_json::value::RawValue>(&text)
            .map(|value| JsonFields::from_pairs(&[("prompt", value.get())]))
            .map_err(|error| RowError::bad_json(&error, &text, line))
    });
    match checked {
        Ok(fields) if matches!(first, Some(b'"' | b'[')) => Ok(NamedRow { fields, is_bare: true }),
        Ok(_) => {
            let message = "a row must be an object, a string or a list of token ids";
            let error = RowError::new(code::ROW_SHAPE, line, message).at(&text, 0);
            Err(Box::new((text, error)))
        }
        Err(error) => Err(Box::new((text, error))),
    }
}

/// A CSV row's cells as JSON fields. Cells are strings, except where the column's name asks for a
/// list of messages or a sampling parameter.
pub(super) fn fields_of_cells(
    names: &[String],
    cells: &[String],
    own_params: &OwnParams,
) -> JsonFields {
    let value = |(name, cell): (&String, &String)| match name.as_str() {
        "messages" | "conversations" if is_json_list(cell) => cell.trim().to_owned(),
        name if own_params.is_data(name) => json_string(cell),
        name => parameter_cell(name, cell).unwrap_or_else(|| json_string(cell)),
    };
    let values: Vec<String> = names.iter().zip(cells).map(value).collect();
    let pairs: Vec<_> = names.iter().zip(&values).map(|(n, v)| (n.as_str(), v.as_str())).collect();
    JsonFields::from_pairs(&pairs)
}

fn is_json_list(cell: &str) -> bool {
    cell.trim_start().starts_with('[')
        && check_depth(cell, 0).is_ok()
        && serde_json::from_str::<serde::de::IgnoredAny>(cell).is_ok()
}

/// `id`, else `custom_id`, as text: 7 and "7" are the same id. Empty and null are none.
pub(super) fn row_id(fields: &JsonFields) -> Option<String> {
    let id = |name: &&str| id_text(fields.get(name)?).filter(|id| !id.is_empty());
    ["id", "custom_id"].iter().find_map(id)
}

/// The `custom_id` of a batch request: a string, or a number as it is written.
pub(super) fn custom_id(fields: &JsonFields) -> Option<String> {
    id_text(fields.get("custom_id")?)
}

fn id_text(json: &str) -> Option<String> {
    match json.as_bytes()[0] {
        b'"' => serde_json::from_str(json).ok(),
        b'-' | b'0'..=b'9' => Some(json.to_owned()),
        _ => None,
    }
}
