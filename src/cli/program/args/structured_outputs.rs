//! Flags of vLLM's `StructuredOutputsParams`, for all rows. A row's own fields win over them. A
//! file that one names is read when it is parsed.

use clap::builder::NonEmptyStringValueParser as NonEmpty;

use vllm_batch_base::files::read as read_file;
use vllm_batch_dataset::terminal::remedy;

/// What answers must match.
#[derive(Clone, Debug, Default, serde::Serialize, clap::Args)]
#[command(next_help_heading = "Structured output")]
pub struct StructuredOutputsArgs {
    /// Answers are JSON of this schema
    #[arg(long = "structured-outputs.json", value_name = "FILE|JSON", value_parser = file_or_text)]
    pub json: Option<FileOrText>,
    /// Answers match this regular expression, as a whole
    #[arg(long = "structured-outputs.regex", value_name = "REGEX")]
    pub regex: Option<String>,
    /// Answers are one of these texts; repeat for each
    #[arg(long = "structured-outputs.choice", value_name = "TEXT")]
    #[arg(value_parser = NonEmpty::new())]
    pub choice: Vec<String>,
    /// Answers match this grammar, in Lark or EBNF (as of GBNF)
    #[arg(long = "structured-outputs.grammar", value_name = "FILE|TEXT")]
    #[arg(value_parser = file_or_text, hide_short_help = true)]
    pub grammar: Option<FileOrText>,
    /// Answers are JSON objects
    #[arg(long = "structured-outputs.json-object", hide_short_help = true)]
    pub json_object: bool,
    /// Answers are free text with tags of a given content, as vLLM's structural_tag
    #[arg(long = "structured-outputs.structural-tag", value_name = "FILE|JSON")]
    #[arg(value_parser = file_or_text, hide_short_help = true)]
    pub structural_tag: Option<FileOrText>,
    /// Whitespace that JSON may have between its tokens, as a regular expression; '[ \t\n\r]*' is
    /// all [default: up to 16 characters, since models loop on blanks]
    #[arg(long = "structured-outputs.whitespace-pattern", value_name = "REGEX")]
    #[arg(hide_short_help = true)]
    pub whitespace_pattern: Option<String>,
    /// JSON without whitespace
    #[arg(long = "structured-outputs.disable-any-whitespace", hide_short_help = true)]
    pub disable_any_whitespace: bool,
    /// JSON objects have only the keys that their schema names, where it does not say
    #[arg(long = "structured-outputs.disable-additional-properties", hide_short_help = true)]
    pub disable_additional_properties: bool,
    /// Refuse a schema with keywords that no mask keeps to; without it, finished answers are
    /// validated
    #[arg(long = "structured-outputs.strict", hide_short_help = true)]
    pub strict: bool,
}

impl StructuredOutputsArgs {
    /// What the constraint was read from, for errors: a file, or the flag.
    pub fn place(&self) -> String {
        let texts = [
            ("json", &self.json),
            ("grammar", &self.grammar),
            ("structural-tag", &self.structural_tag),
        ];
        let text = texts.into_iter().find_map(|(name, text)| Some((name, text.as_ref()?)));
        match text {
            Some((_, FileOrText { file: Some(file), .. })) => file.clone(),
            Some((name, _)) => format!("--structured-outputs.{name}"),
            None if self.regex.is_some() => "--structured-outputs.regex".to_owned(),
            None if !self.choice.is_empty() => "--structured-outputs.choice".to_owned(),
            None => "--structured-outputs".to_owned(),
        }
    }
}

/// A text, and the file that it is from.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct FileOrText {
    /// What answers must match.
    pub text: String,
    /// As typed; None: the text itself was.
    pub file: Option<String>,
}

/// The contents of a file, or a text that is no file's name.
fn file_or_text(value: &str) -> Result<FileOrText, String> {
    const MAX_BYTES: u64 = 16 << 20;
    let path = std::path::Path::new(value);
    let looks_like_text = value.trim_start().starts_with(['{', '[']) || value.contains('\n');
    let failed = |error: &dyn std::fmt::Display| {
        let message = format!("cannot read '{value}': {error}");
        match remedy::of(&message) {
            Some(remedy) => format!("{message}; {remedy}"),
            None => message,
        }
    };
    let may_be_name = !looks_like_text && !value.contains([' ', ':']);
    let exists = match path.try_exists() {
        Err(error) if may_be_name => return Err(failed(&error)),
        exists => exists.unwrap_or(false),
    };
    if looks_like_text || !exists {
        return match may_be_name {
            true => Err(format!("there is no file '{value}'")),
            false => Ok(FileOrText { text: value.to_owned(), file: None }),
        };
    }
    let bytes = read_file(path, MAX_BYTES).map_err(|error| failed(&error))?;
    let text = String::from_utf8(bytes).map_err(|error| failed(&error))?;
    Ok(FileOrText { text, file: Some(value.to_owned()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_a_file_or_a_text() {
        assert_eq!(file_or_text("{\"a\": 1}").unwrap().text, "{\"a\": 1}");
        assert_eq!(file_or_text("start: \"a\"").unwrap().text, "start: \"a\"");
        assert!(file_or_text("schema-that-is-not-there.json").unwrap_err().contains("no file"));
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let read = file_or_text(file).unwrap();
        assert!(!read.text.is_empty() && read.file.as_deref() == Some(file));
        let args = StructuredOutputsArgs { json: Some(read), ..Default::default() };
        assert_eq!(args.place(), file);
        assert!(file_or_text(env!("CARGO_MANIFEST_DIR")).is_err());
    }
}
