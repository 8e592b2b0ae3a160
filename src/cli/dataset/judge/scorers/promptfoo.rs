//! What promptfoo's assertions compare (its version 0.123): BLEU and GLEU of words between spaces,
//! ROUGE over Treebank's tokens, texts with commas between them.

use std::collections::HashMap;

const MAX_ORDER: usize = 4;

/// Words between spaces, in lower case. Of an empty text one, as JavaScript splits it.
pub fn words(text: &str) -> Vec<String> {
    let text = text.to_lowercase();
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    if words.is_empty() { vec![String::new()] } else { words }
}

fn counts(words: &[String], order: usize) -> HashMap<&[String], usize> {
    let mut counts = HashMap::new();
    for run in words.windows(order) {
        *counts.entry(run).or_default() += 1;
    }
    counts
}

/// Runs that both have, each as often as the one that has it seldomer.
fn num_shared(answer: &[String], expected: &[String], order: usize) -> usize {
    let expected = counts(expected, order);
    let shared = counts(answer, order).into_iter();
    shared.map(|(run, count)| count.min(expected.get(run).copied().unwrap_or(0))).sum()
}

/// BLEU, with 1e-7 in place of a precision of 0. `answer` and `expected` are `words`.
pub fn bleu(answer: &[String], expected: &[Vec<String>]) -> f64 {
    if answer.iter().all(String::is_empty) {
        return 0.0;
    }
    let (mut sum, mut orders) = (0.0, 0.0);
    for order in 1..=MAX_ORDER.min(answer.len()) {
        let total = answer.len() + 1 - order;
        let shared = expected.iter().map(|expected| num_shared(answer, expected, order)).max();
        let precision = shared.unwrap_or(0) as f64 / total as f64;
        sum += if precision == 0.0 { 1e-7f64 } else { precision }.ln();
        orders += 1.0;
    }
    let closest = expected.iter().map(Vec::len);
    let closest = closest.min_by_key(|length| (length.abs_diff(answer.len()), *length));
    let ratio = closest.unwrap_or(0) as f64 / answer.len() as f64;
    let brevity = if ratio < 1.0 { 1.0 } else { (1.0 - ratio).exp() };
    brevity * (sum / orders).exp()
}

/// GLEU: the lower of precision and recall over runs of one to four words.
pub fn gleu(answer: &[String], expected: &[Vec<String>]) -> f64 {
    let of_gleu = |words: &[String]| {
        let words: Vec<String> = words.iter().map(|w| w.trim_end_matches('.').to_owned()).collect();
        if words.iter().all(String::is_empty) { Vec::new() } else { words }
    };
    let answer = of_gleu(answer);
    let of_one = |expected: &Vec<String>| {
        let expected = of_gleu(expected);
        if answer.is_empty() || expected.is_empty() {
            return 0.0;
        }
        let shared: usize = (1..=MAX_ORDER).map(|n| num_shared(&answer, &expected, n)).sum();
        let total = |words: &[String]| -> usize {
            (1..=MAX_ORDER).map(|n| (words.len() + 1).saturating_sub(n)).sum()
        };
        shared as f64 / total(&answer).max(total(&expected)) as f64
    };
    expected.iter().map(of_one).fold(0.0, f64::max)
}

/// Tokens of the Treebank, as js-rouge makes them, in lower case. Quotes that open and that close
/// are one token here.
pub fn treebank(text: &str) -> Vec<String> {
    let text = text.to_lowercase().replace("``", "\"").replace("''", "\"");
    let chars: Vec<char> = text.trim().chars().collect();
    let mut spaced = String::with_capacity(text.len() * 2);
    let last_point = last_point(&chars);
    let mut at = 0;
    while at < chars.len() {
        let next = |more: usize| chars.get(at + more).copied();
        let (token, length) = match chars[at] {
            '.' if next(1) == Some('.') && next(2) == Some('.') => (true, 3),
            '-' if next(1) == Some('-') => (true, 2),
            ':' | ',' => (!next(1).is_some_and(char::is_numeric), 1),
            '"' | ';' | '@' | '#' | '$' | '%' | '&' | '?' | '!' => (true, 1),
            '[' | ']' | '(' | ')' | '{' | '}' | '<' | '>' => (true, 1),
            '.' => (last_point == Some(at), 1),
            _ => (false, 1),
        };
        let around = if token { " " } else { "" };
        spaced.push_str(around);
        spaced.extend(&chars[at..at + length]);
        spaced.push_str(around);
        at += length;
    }
    spaced.split_whitespace().flat_map(parts_of_word).map(str::to_owned).collect()
}

/// The point that ends the text, perhaps with brackets and quotes behind it; none of an acronym.
fn last_point(chars: &[char]) -> Option<usize> {
    let closes = |c: &char| matches!(c, ']' | ')' | '}' | '>' | '\'') || c.is_whitespace();
    let at = chars.iter().rposition(|c| !closes(c)).filter(|at| chars[*at] == '.')?;
    let before = |back: usize| at.checked_sub(back).map(|at| chars[at]);
    let is_letter = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphabetic());
    let is_acronym = is_letter(before(1))
        && before(2) == Some('.')
        && is_letter(before(3))
        && !before(4).is_some_and(|c| c.is_alphanumeric() || c == '_');
    (before(1).is_some_and(|c| c != '.') && !is_acronym).then_some(at)
}

/// A word without the contraction at its end, and that.
fn parts_of_word(word: &str) -> Vec<&str> {
    const ENDS: [&str; 8] = ["'s", "'m", "'d", "'ll", "'re", "'ve", "n't", "'"];
    const TWO: [(&str, &str); 10] = [
        ("can", "not"),
        ("d", "'ye"),
        ("gim", "me"),
        ("gon", "na"),
        ("got", "ta"),
        ("lem", "me"),
        ("more", "'n"),
        ("wan", "na"),
        ("'t", "is"),
        ("'t", "was"),
    ];
    let two = TWO.iter().find(|(a, b)| word.strip_prefix(a).is_some_and(|rest| rest == *b));
    let split = two.map(|(first, _)| first.len()).or_else(|| {
        let end = ENDS.iter().find(|end| word.ends_with(*end) && word.len() > end.len())?;
        Some(word.len() - end.len())
    });
    match split {
        Some(at) => vec![&word[..at], &word[at..]],
        None => vec![word],
    }
}

/// The fields of a text with commas between them. A field in quotes may have commas in it, and
/// quotes that are doubled or behind a backslash.
///
/// # Errors
/// A quoted field has no end, or something behind it.
pub fn comma_separated(text: &str) -> Result<Vec<String>, String> {
    let (mut fields, mut rest) = (Vec::new(), text);
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
        if rest.is_empty() {
            return Ok(fields);
        }
        let Some(quoted) = rest.strip_prefix('"') else {
            let (field, after) = rest.split_once(',').unwrap_or((rest, ""));
            fields.push(field.trim().to_owned());
            rest = after;
            continue;
        };
        let mut field = String::new();
        rest = quoted;
        loop {
            let escaped = ["\\\"", "\\\\", "\"\""].iter().find(|pair| rest.starts_with(**pair));
            let c = rest.chars().next().ok_or("a quoted field of `value` has no end")?;
            match escaped {
                Some(pair) => {
                    field.push_str(&pair[1..]);
                    rest = &rest[2..];
                }
                None if c == '"' => break,
                None => {
                    field.push(c);
                    rest = &rest[c.len_utf8()..];
                }
            }
        }
        fields.push(field);
        rest = rest[1..].trim_start();
        if !rest.is_empty() && !rest.starts_with(',') {
            return Err("something follows a quoted field of `value`".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_separate_texts_unless_they_are_quoted() {
        let cases = [
            ("hello, bye", &["hello", "bye"][..]),
            (" a b ,, c,", &["a b", "c"]),
            ("\"a, b\", c", &["a, b", "c"]),
            ("\"a \"\"b\"\" \\\"c\\\" \\\\\"", &["a \"b\" \"c\" \\"]),
            ("a \"b", &["a \"b"]),
            (",", &[]),
        ];
        for (text, expected) in cases {
            assert_eq!(comma_separated(text).unwrap(), expected, "{text}");
        }
        for text in ["\"a", "\"a\" b, c"] {
            assert!(comma_separated(text).is_err(), "{text}");
        }
    }
}
