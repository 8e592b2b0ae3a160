//! Pages of lists: the part that a query asks for.

use std::collections::HashMap;

use crate::errors::HttpError;

/// The names of a query's fields, and how many records a page may have.
pub(super) struct PageForm {
    /// Names the record that a page begins after.
    pub(super) after: &'static str,
    /// Names the record that a page ends before; None: there is no such field.
    pub(super) before: Option<&'static str>,
    pub(super) max_limit: usize,
    pub(super) default_limit: usize,
}

/// Fields of a query.
pub(super) type Query = HashMap<String, String>;

/// The page of `items` that is asked for, and whether there are more behind it.
pub(super) fn page<T>(
    mut items: Vec<T>,
    id: impl Fn(&T) -> &str,
    query: &Query,
    form: &PageForm,
) -> Result<(Vec<T>, bool), HttpError> {
    let limit = match query.get("limit") {
        None => form.default_limit,
        Some(text) => match text.parse() {
            Ok(limit) if (1..=form.max_limit).contains(&limit) => limit,
            _ => {
                let what = format!("a number from 1 to {}", form.max_limit);
                return Err(HttpError::expected("limit", &what));
            }
        },
    };
    let place = |name: &'static str| -> Result<Option<usize>, HttpError> {
        let Some(wanted) = query.get(name) else { return Ok(None) };
        match items.iter().position(|item| id(item) == wanted) {
            Some(place) => Ok(Some(place)),
            None => {
                let message = format!("{name}: nothing in the list has this id");
                Err(HttpError::bad("invalid_parameter", message).of_param(name))
            }
        }
    };
    let (after, before) = (place(form.after)?, form.before.map_or(Ok(None), place)?);
    let start = after.map_or(0, |place| place + 1);
    let end = before.unwrap_or(items.len()).max(start);
    items.truncate(end);
    items.drain(..start);
    // A page that ends before a record is the one next to it.
    let has_more = items.len() > limit;
    match before.is_some() && after.is_none() {
        true => drop(items.drain(..items.len().saturating_sub(limit))),
        false => items.truncate(limit),
    }
    Ok((items, has_more))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: PageForm =
        PageForm { after: "after", before: Some("before"), max_limit: 3, default_limit: 2 };

    fn of(fields: &[(&str, &str)]) -> Result<(String, bool), String> {
        let items = ["a", "b", "c", "d", "e"].to_vec();
        let query = fields.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let page = page(items, |item| item, &query, &FORM);
        page.map(|(items, more)| (items.concat(), more)).map_err(|error| error.message)
    }

    #[test]
    fn a_page_begins_after_a_record_or_ends_before_one() {
        let ok = |text: &str, more| Ok((text.to_owned(), more));
        assert_eq!(of(&[]), ok("ab", true));
        assert_eq!(of(&[("limit", "3"), ("after", "a")]), ok("bcd", true));
        assert_eq!(of(&[("limit", "3"), ("after", "b")]), ok("cde", false));
        assert_eq!(of(&[("after", "e")]), ok("", false));
        assert_eq!(of(&[("before", "e")]), ok("cd", true));
        assert_eq!(of(&[("before", "b")]), ok("a", false));
        for limit in ["0", "4", "-1", "x", ""] {
            assert!(of(&[("limit", limit)]).is_err(), "{limit}");
        }
        assert!(of(&[("after", "z")]).unwrap_err().starts_with("after:"));
    }
}
