//! Columns by which a table is known, where nobody says that an input is one.

use super::compared;
use super::own_images;
use super::prompt::NO_PROMPT_HELP;
use super::shape::PROMPT_COLUMNS;
use super::template::{TEXT_FIELDS, Template};
use super::{Likelihoods, RowOptions, Task};
use crate::input::reader::{HeaderNames, InputError};

/// Most words of a column's name; more are a row's.
const MAX_WORDS: usize = 5;

/// The refusal of a table none of whose columns is known to hold a prompt.
pub(super) fn no_prompt_column(names: &[String]) -> InputError {
    let message = format!("no column holds the prompt: {}", names.join(", "));
    let is_of_row = |name: &String| {
        name.parse::<f64>().is_ok()
            || name.split_whitespace().count() > MAX_WORDS
            || name.ends_with(['.', '?', '!'])
    };
    if names.iter().all(|name| name.starts_with("column_")) {
        let help = "name it with --prompt-column column_2, or make a prompt of several with \
                    --template '... {{column_2}} ...'";
        return InputError::refused(message, help);
    }
    if names.iter().any(is_of_row) {
        let help = "if the table has no header, give --no-header, and name the column: \
                    --prompt-column column_2; else --prompt-column NAME";
        let message = format!("{message}. The first line looks like a row, not like names");
        return InputError::refused(message, help);
    }
    let separator = [';', '|', '\t'].into_iter().find(|one| names.join("").contains(*one));
    match separator {
        None => InputError::refused(message, NO_PROMPT_HELP),
        Some(separator) => {
            let shown = separator.escape_default();
            let help = format!("{NO_PROMPT_HELP}; --delimiter '{shown}' divides the lines there");
            InputError::refused(message, help)
        }
    }
}

/// Names of a table's columns as fields of its rows: a known name that spreadsheets write in
/// capitals is that name, unless another column has it.
pub(super) fn field_names(names: &[String], task: Task) -> Vec<String> {
    let sides = compared::spellings(task).unwrap_or(compared::PAIR);
    let sides = sides.iter().flat_map(|sides| [sides.queries, sides.documents]);
    let others = ["system", Likelihoods::CHOICES].into_iter();
    let others = others.chain(own_images::KINDS.into_iter().flat_map(own_images::known).copied());
    let mut fields = names.to_vec();
    for known in PROMPT_COLUMNS.iter().copied().chain(sides).chain(others) {
        let is_there = fields.iter().any(|name| name == known);
        let field = fields.iter_mut().find(|name| name.eq_ignore_ascii_case(known));
        if let Some(field) = field.filter(|_| !is_there) {
            known.clone_into(field);
        }
    }
    fields
}

impl RowOptions {
    /// The columns that a table of rows must have.
    pub fn header_names(&self) -> HeaderNames {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let sides = |all: &[compared::Sides]| -> Vec<Vec<String>> {
            all.iter().map(|sides| list(&[sides.queries, sides.documents])).collect()
        };
        if let Some(spellings) = compared::spellings(self.task) {
            return HeaderNames::any_of(sides(spellings)).needing_columns();
        }
        // A template that is none is refused when rows are parsed.
        let template = self.template.as_deref().and_then(|text| Template::parse(text).ok());
        let told = match (template, &self.prompt_column) {
            (Some(template), _) => Some(template.names().map(str::to_owned).collect()),
            (None, Some(column)) => Some(vec![column.clone()]),
            (None, None) => None,
        };
        if told.as_ref().is_some_and(Vec::is_empty) {
            // Only media tell the rows of such a template apart.
            let flags = [self.image_column.as_deref(), self.audio_column.as_deref()];
            let names =
                own_images::KINDS.into_iter().zip(flags).flat_map(|(kind, flag)| match flag {
                    Some(name) => vec![name],
                    None => own_images::known(kind).to_vec(),
                });
            let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
            let lists = names.into_iter().map(|name| vec![name.to_owned()]);
            return HeaderNames::any_of(lists).needing_columns();
        }
        if let Some(told) = told {
            // Lines of text fill a template, too.
            let is_of_text = self.template.is_some()
                && told.iter().all(|name: &String| TEXT_FIELDS.contains(&name.as_str()));
            let names = HeaderNames::any_of([told]);
            return if is_of_text { names } else { names.needing_columns() };
        }
        let mut lists: Vec<Vec<String>> = PROMPT_COLUMNS.iter().map(|name| list(&[name])).collect();
        if self.task == Task::Classify {
            lists.extend(sides(compared::PAIR));
        }
        match self.likelihoods {
            Likelihoods::OfChoices => {
                lists.iter_mut().for_each(|names| names.push(Likelihoods::CHOICES.to_owned()));
                HeaderNames::any_of(lists).needing_columns()
            }
            Likelihoods::None | Likelihoods::OfTexts => HeaderNames::any_of(lists),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_may_be_in_capitals() {
        let of = |names: &[&str], task| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            field_names(&names, task).join(",")
        };
        assert_eq!(of(&["ID", "Text", "SYSTEM"], Task::Complete), "ID,text,system");
        assert_eq!(of(&["Text", "text", "TEXT"], Task::Complete), "Text,text,TEXT");
        assert_eq!(of(&["Instruction", "Input"], Task::Complete), "instruction,input");
        assert_eq!(of(&["Query", "Documents"], Task::Rerank), "query,documents");
        assert_eq!(of(&["Text_1", "Text_2"], Task::Classify), "text_1,text_2");
        assert_eq!(of(&["Temperature", "Review"], Task::Complete), "Temperature,Review");
    }
}
