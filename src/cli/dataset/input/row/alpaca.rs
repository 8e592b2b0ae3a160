//! The texts of rows with an `instruction`.

use super::blank;
use super::prompt::string;
use super::shape::kind_name;
use crate::input::fields::JsonFields;
use crate::input::row_error::{RowError, code};

/// The prompt that Alpaca's authors trained with; chat models get the bare instruction.
pub(super) fn alpaca(
    fields: &JsonFields,
    (is_chat, allows_empty): (bool, bool),
    line: u64,
) -> Result<String, RowError> {
    let instruction = fields.get("instruction").expect("the shape fits");
    let instruction = string("instruction", instruction, line)?;
    let input = match fields.get("input") {
        None | Some("null") => String::new(),
        Some(json) if json.starts_with('"') => string("input", json, line)?,
        Some(json) => {
            let message = format!("input: expected text, found {}", kind_name(json));
            return Err(RowError::new(code::INVALID_PROMPT, line, message));
        }
    };
    if !allows_empty && [&instruction, &input].iter().all(|text| blank::is_blank(text)) {
        return Err(blank::error("`instruction`", line));
    }
    Ok(match (is_chat, input.is_empty()) {
        (true, true) => instruction,
        (true, false) => format!("{instruction}\n{input}"),
        (false, true) => format!(
            "Below is an instruction that describes a task. Write a response that \
             appropriately completes the request.\n\n### Instruction:\n{instruction}\n\n\
             ### Response:"
        ),
        (false, false) => format!(
            "Below is an instruction that describes a task, paired with an input that provides \
             further context. Write a response that appropriately completes the request.\n\n\
             ### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:"
        ),
    })
}
