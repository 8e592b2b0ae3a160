//! How long, how wide, how named.

use crate::source::Source;

const MAX_LINES: usize = 600;
const MAX_WIDTH: usize = 100;

/// Words that name no idea.
const EMPTY_NAMES: &[&str] = &["util", "utils", "helper", "helpers", "misc", "manager"];

/// A file is read in one sitting.
pub fn files_are_short(source: &Source) -> Vec<String> {
    let num_lines = source.text.lines().count();
    let long = num_lines > MAX_LINES;
    long.then(|| source.violation(num_lines, format!("over {MAX_LINES} lines")))
        .into_iter()
        .collect()
}

/// rustfmt keeps code within the limit; this keeps comments there too.
pub fn lines_are_narrow(source: &Source) -> Vec<String> {
    let wide = source.widths.iter().enumerate().filter(|(_, width)| **width > MAX_WIDTH);
    wide.map(|(index, width)| source.violation(index + 1, format!("{width} columns"))).collect()
}

/// Every file says at its top what it is.
pub fn files_begin_with_docs(source: &Source) -> Vec<String> {
    let marks: &[&str] = if source.path.ends_with(".rs") { &["//! "] } else { &["//", "/*"] };
    let has_docs = marks.iter().any(|mark| source.text.starts_with(mark));
    (!has_docs).then(|| source.violation(1, "no docs at the top")).into_iter().collect()
}

/// No file, module, type or function that is named after nothing. `kernels/common.cuh` is what
/// every kernel is compiled with; in Rust that name means nothing either.
pub fn names_mean_something(source: &Source) -> Vec<String> {
    let mut violations = Vec::new();
    let stems = source.path.split('/').map(|part| part.split('.').next().unwrap_or(part));
    for stem in stems {
        if is_empty_name(stem) || (stem == "common" && source.path.ends_with(".rs")) {
            violations.push(source.violation(1, format!("the name `{stem}`")));
        }
    }
    for (at, token) in source.tokens.iter().enumerate() {
        let item = ["mod", "struct", "enum", "trait", "type", "fn"].contains(&&*token.text);
        let name = source.token(at, 1);
        if item && (is_empty_name(name) || name == "common") {
            violations.push(source.violation_at(at, format!("the name `{name}`")));
        }
    }
    violations
}

/// Whether the last word of a snake_case or CamelCase name is one of the empty ones.
fn is_empty_name(name: &str) -> bool {
    let starts = name.rfind(|c: char| c.is_uppercase() || c == '_').unwrap_or(0);
    let last = name[starts..].trim_start_matches('_').to_lowercase();
    EMPTY_NAMES.contains(&last.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_files_and_wide_lines_are_found() {
        let source = |text: &str| Source::new("src/a.rs", text);
        assert_eq!(files_are_short(&source(&"\n".repeat(MAX_LINES + 1))).len(), 1);
        assert!(files_are_short(&source(&"\n".repeat(MAX_LINES))).is_empty());
        let comment = |width: usize| format!("a\n// {}", "é".repeat(width - 3));
        assert_eq!(lines_are_narrow(&source(&comment(101))), ["src/a.rs:2: 101 columns"]);
        assert!(lines_are_narrow(&source(&comment(100))).is_empty());
        let literal = format!("let a = \"{}\";", "x".repeat(120));
        assert!(lines_are_narrow(&source(&literal)).is_empty());
    }

    #[test]
    fn a_file_without_docs_is_found() {
        let found = |path: &str, text: &str| files_begin_with_docs(&Source::new(path, text)).len();
        assert_eq!(found("src/a.rs", "use b;\n//! late"), 1);
        assert_eq!(found("src/a.rs", "// no docs"), 1);
        assert_eq!(found("src/a.rs", "//! A."), 0);
        assert_eq!(found("kernels/a.cu", "#define A"), 1);
        assert_eq!(found("kernels/a.cu", "// a: b = c."), 0);
    }

    #[test]
    fn empty_names_are_found() {
        let found = |path: &str, text: &str| names_mean_something(&Source::new(path, text)).len();
        for bad in ["struct CacheManager;", "mod string_utils;", "fn helper() {}", "mod common {}"]
        {
            assert_eq!(found("src/a.rs", bad), 1, "{bad}");
        }
        assert_eq!(found("src/utils/mod.rs", ""), 1);
        assert_eq!(found("tests/common.rs", ""), 1);
        assert_eq!(found("kernels/common.cuh", ""), 0);
        assert_eq!(found("src/a.rs", "fn longest_common_prefix() {} // utils"), 0);
    }
}
