//! `{"name": .., "parameters": {..}}`: Llama 3.

use super::json;
use super::{Calls, Tool};

/// Every object of the text is a call, whatever is between them. There is no content beside calls.
pub(super) fn read(text: &str, _: &[Tool]) -> Option<Calls> {
    let mut calls = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        let (object, after) = json::first_value(&rest[at..])?;
        calls.push(json::call(object, &["arguments", "parameters"])?);
        rest = after;
    }
    Calls::new("", calls)
}
