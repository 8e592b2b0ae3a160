//! `--template 'Summarise: {{text}}'`: the row's fields, or parts of them (`{{a.b[0]}}`), put
//! into a text, nothing more.

use crate::input::reader::InputError;

/// Names of a line of text in a template.
pub(super) const TEXT_FIELDS: [&str; 2] = ["prompt", "text"];

/// A parsed template.
pub(super) struct Template {
    parts: Vec<Part>,
}

enum Part {
    Text(String),
    Field(String),
}

impl Template {
    /// Everything between `{{` and `}}` is a name; spaces around it do not count.
    pub(super) fn parse(text: &str) -> Result<Self, InputError> {
        let refused = |message: String| {
            Err(InputError::refused(
                message,
                "write fields as {{name}}, as in 'Summarise: {{text}}'",
            ))
        };
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once("{{") {
            let Some((name, after)) = after.split_once("}}") else {
                return refused(format!("--template: '{{{{{after}' has no closing '}}}}'"));
            };
            if name.trim().is_empty() {
                return refused("--template: '{{}}' names no field".to_owned());
            }
            parts.push(Part::Text(before.to_owned()));
            parts.push(Part::Field(name.trim().to_owned()));
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Self { parts })
    }

    /// The names in the template.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Field(name) => Some(name.as_str()),
            Part::Text(_) => None,
        })
    }

    /// Error of a template without names, of rows that have nothing else.
    pub(super) fn refuse_constant() -> InputError {
        InputError::refused(
            "--template names no field, so every prompt would be the same",
            "write fields as {{name}}, as in 'Summarise: {{text}}'; rows with images need none",
        )
    }

    /// Error of a name that no row has, if it is more than a name.
    pub(super) fn refuse_expression(name: &str) -> Option<InputError> {
        let refused = |what: &str, field: &str| {
            Some(InputError::refused(
                format!("--template: templates have no {what}: '{{{{{name}}}}}'"),
                format!(
                    "write {{{{{}}}}}, and change the rows before the run, as with jq",
                    field.trim()
                ),
            ))
        };
        let is_operator = |c: char| matches!(c, '(' | '+' | '*' | '~' | '=' | '"' | '\'');
        match (name.split_once('|'), name.find(is_operator)) {
            (Some((field, _)), _) => refused("filters", field),
            (None, Some(at)) => {
                let field = name[..at].rsplit_once('.').filter(|_| name[at..].starts_with('('));
                refused("functions or operators", field.map_or(&name[..at], |(field, _)| field))
            }
            (None, None) => None,
        }
    }

    /// The text with every name replaced by its value.
    pub(super) fn fill<E>(
        &self,
        mut value: impl FnMut(&str) -> Result<String, E>,
    ) -> Result<String, E> {
        let mut filled = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Field(name) => filled.push_str(&value(name)?),
            }
        }
        Ok(filled)
    }
}
