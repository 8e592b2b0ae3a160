//! `--config FILE`: a TOML file with a table per command, whose keys are the names of flags. Knows
//! the file, not what the flags mean.

use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use vllm_batch_base::files::read as read_file;
use vllm_batch_dataset::terminal::error::{CliError, Location};

/// More than any list of flags takes.
const MAX_BYTES: u64 = 1 << 20;

/// A key of the file.
#[derive(Debug)]
pub struct Entry {
    /// The command that it is for.
    pub table: String,
    /// Name of the flag, as written.
    pub key: String,
    /// What it is set to.
    pub value: Value,
    /// Line of the key, from 1.
    pub line: u64,
}

/// What a flag is set to.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number or a text, as a flag takes it.
    One(String),
    /// Several of them.
    Many(Vec<String>),
    /// On or off.
    Switch(bool),
}

/// Reads a file.
///
/// # Errors
/// It cannot be read, is not TOML, or has something else than tables of flags.
pub fn read(path: &Path) -> Result<Vec<Entry>, CliError> {
    let text = text(path).map_err(|reason| {
        let message = format!("cannot read {}: {reason}", path.display());
        CliError::refused("config_file", message)
            .help_of_file("check --config and VLLM_BATCH_CONFIG")
    })?;
    let file = File { name: path.display().to_string(), text: &text };
    let tables = DeTable::parse(&text).map_err(|error| {
        file.error(error.span().unwrap_or(0..0), error.message())
            .help("the file is TOML: key = value")
    })?;
    let mut entries = Vec::new();
    for (name, value) in in_order(tables.get_ref()) {
        let DeValue::Table(table) = value.get_ref() else {
            let message = format!("`{}` is in no table", name.get_ref());
            let help = "put it under the command's table, such as [run]";
            return Err(file.error(name.span(), &message).help(help));
        };
        // A table without keys may have a wrong name all the same; it sets nothing.
        for (key, value) in in_order(table) {
            entries.push(Entry {
                table: name.get_ref().to_string(),
                key: key.get_ref().to_string(),
                line: file.line(key.span()),
                value: file.value(key.get_ref(), value)?,
            });
        }
    }
    Ok(entries)
}

fn text(path: &Path) -> Result<String, String> {
    if path.is_dir() {
        return Err("it is a folder".to_owned());
    }
    let bytes = read_file(path, MAX_BYTES).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|error| error.to_string())
}

/// As they stand in the file: the first mistake is the first that is said.
fn in_order<'a, 'i>(
    table: &'a DeTable<'i>,
) -> Vec<(&'a Spanned<std::borrow::Cow<'i, str>>, &'a Spanned<DeValue<'i>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

struct File<'a> {
    name: String,
    text: &'a str,
}

impl File<'_> {
    fn line(&self, span: Range<usize>) -> u64 {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        1 + before.iter().filter(|byte| **byte == b'\n').count() as u64
    }

    fn error(&self, span: Range<usize>, message: &str) -> CliError {
        at(&self.name, self.line(span), message)
    }

    fn value(&self, key: &str, value: &Spanned<DeValue<'_>>) -> Result<Value, CliError> {
        let refused = |found: &str| {
            let message = format!("`{key}` is {found}");
            let help = "a flag is set to a text, a number, true or false, or a list of them";
            self.error(value.span(), &message).help(help)
        };
        match value.get_ref() {
            DeValue::Boolean(on) => Ok(Value::Switch(*on)),
            DeValue::Array(items) => {
                let items = items.iter().map(|item| scalar(item.get_ref()));
                let items: Option<Vec<String>> = items.collect();
                items
                    .map(Value::Many)
                    .ok_or_else(|| refused("a list of something else than values"))
            }
            other => scalar(other).map(Value::One).ok_or_else(|| match other {
                DeValue::Table(_) => refused("a table"),
                _ => refused("a date, or a number that is too large"),
            }),
        }
    }
}

/// A value as it would be typed after a flag.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Integer(number) => {
            let number = i64::from_str_radix(number.as_str(), number.radix()).ok()?;
            Some(number.to_string())
        }
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

/// An error at a line of a file.
pub fn at(file: &str, line: u64, message: &str) -> CliError {
    let location = Location { file: file.to_owned(), line, column: None, excerpt: None };
    CliError::refused("config_file", message).at(location)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_dataset::terminal::style::Style;

    fn file(text: &str) -> Result<Vec<Entry>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("batch.toml");
        std::fs::write(&path, text).unwrap();
        read(&path).map_err(|error| {
            let folder = format!("{}/", folder.path().display());
            error.render(Style::plain()).replace(&folder, "")
        })
    }

    #[test]
    fn values_are_what_would_be_typed() {
        let entries = file(
            "[run]\ntop-p = 0.9\nmax_tokens = 1_000\nseed = 0x10\nstop = [\"a\", \"b\"]\n\
             chat = true\nmodel = \"m\"\n\n[bench]\nmin-p = 1e-3\n",
        )
        .unwrap();
        let found: Vec<_> =
            entries.iter().map(|e| (e.table.as_str(), e.key.as_str(), e.line)).collect();
        assert_eq!(found[..2], [("run", "top-p", 2), ("run", "max_tokens", 3)]);
        assert_eq!(found[6], ("bench", "min-p", 10));
        let one = |text: &str| Value::One(text.to_owned());
        let values: Vec<_> = entries.into_iter().map(|entry| entry.value).collect();
        let stops = Value::Many(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(
            values,
            [one("0.9"), one("1000"), one("16"), stops, Value::Switch(true), one("m"), one("1e-3")]
        );
    }

    #[test]
    fn what_is_no_table_of_flags_is_refused_at_its_line() {
        for (text, wanted) in [
            (
                "\nmodel = \"m\"\n",
                "error[config_file]: batch.toml:2: `model` is in no table\nhelp: ",
            ),
            ("[run]\nseed = {a = 1}\n", "batch.toml:2: `seed` is a table\nhelp: "),
            ("[run]\nseed = 1\nseed = 2\n", "batch.toml:3: duplicate key\nhelp: "),
            ("[run]\nseed = 2026-01-01\n", "batch.toml:2: `seed` is a date"),
            ("run:\n  seed: 1\n", "batch.toml:1: "),
        ] {
            let error = file(text).unwrap_err();
            assert!(error.contains(wanted), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_refused() {
        let error = read(Path::new("/nowhere/batch.toml")).unwrap_err();
        assert!(error.message.starts_with("cannot read /nowhere/batch.toml: "), "{error:?}");
        let error = read(Path::new("/")).unwrap_err();
        assert_eq!(error.message, "cannot read /: it is a folder");
    }
}
