//! `Spellings`: names of fields as a row wrote them, where they are read under other names. Errors
//! have the row's.

use super::row_error::RowError;

/// Names that are read, each with the one that the row wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spellings(Vec<(&'static str, &'static str)>);

impl Spellings {
    /// Those of a list.
    pub fn of(names: &[(&'static str, &'static str)]) -> Self {
        Self(names.to_vec())
    }

    /// The row wrote `written` for `read`.
    pub fn add(&mut self, read: &'static str, written: &'static str) {
        self.remove(read);
        self.0.push((read, written));
    }

    /// The row has no such field.
    pub fn remove(&mut self, read: &str) {
        self.0.retain(|(known, _)| *known != read);
    }

    /// An error that names the fields as the row does.
    pub fn in_words_of_row(&self, mut error: RowError) -> RowError {
        if self.0.is_empty() {
            return error;
        }
        let (message, first) = self.spelled(&error.message);
        error.message = message;
        error.param = match error.param {
            Some(param) => Some(self.written(param).unwrap_or(param)),
            None => first,
        };
        error
    }

    fn written(&self, name: &str) -> Option<&'static str> {
        self.0.iter().find(|(read, _)| *read == name).map(|(_, written)| *written)
    }

    /// A text with the row's names, and the first of them. A flag is no field.
    fn spelled(&self, text: &str) -> (String, Option<&'static str>) {
        let (mut spelled, mut first) = (String::with_capacity(text.len()), None);
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
        let mut rest = text;
        while let Some(start) = rest.find(is_part) {
            spelled.push_str(&rest[..start]);
            let word = &rest[start..];
            let word = &word[..word.find(|c| !is_part(c)).unwrap_or(word.len())];
            // The end of a sentence is no part of a name.
            let name = word.trim_end_matches('.');
            let written = self.written(name);
            first = first.or(written);
            spelled.push_str(written.unwrap_or(name));
            spelled.push_str(&word[name.len()..]);
            rest = &rest[start + word.len()..];
        }
        spelled.push_str(rest);
        (spelled, first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::row_error::code;

    #[test]
    fn whole_names_are_spelled_as_the_row_does() {
        let names = Spellings::of(&[("max_tokens", "max_output_tokens"), ("stop", "ends")]);
        let spelled = |message: &str| {
            let error = RowError::new(code::INVALID_PARAMETER, 1, message);
            let error = names.in_words_of_row(error);
            (error.message, error.param)
        };
        for (message, expected, param) in [
            ("max_tokens must be 1.", "max_output_tokens must be 1.", Some("max_output_tokens")),
            (
                "up to max_tokens=5, stop.",
                "up to max_output_tokens=5, ends.",
                Some("max_output_tokens"),
            ),
            ("`stop`: \u{e9}", "`ends`: \u{e9}", Some("ends")),
            ("prompt_max_tokens, --stop, a.stop", "prompt_max_tokens, --stop, a.stop", None),
            ("", "", None),
        ] {
            assert_eq!(spelled(message), (expected.to_owned(), param));
        }
        let error = RowError::new(code::INVALID_PARAMETER, 1, "wrong").of_param("stop");
        assert_eq!(names.in_words_of_row(error.clone()).param, Some("ends"));
        assert_eq!(Spellings::default().in_words_of_row(error.clone()), error);
    }
}
