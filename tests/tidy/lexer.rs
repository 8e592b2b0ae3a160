//! Splits a source text into code, comments and literals, so that a rule about code does not trip
//! over a word in a string, nor a rule about comments over code.

/// What a character belongs to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Neither of the others.
    Code,
    /// Comments and docs, with their slashes.
    Comment,
    /// Strings and characters, with their quotes.
    Literal,
}

/// A word, a number, a lifetime, `::`, or one character of anything else. A literal is one `"`.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// As it is written.
    pub text: String,
    /// From 1.
    pub line: usize,
}

/// The kind of every character.
pub fn kinds(chars: &[char]) -> Vec<Kind> {
    let mut kinds = Vec::with_capacity(chars.len());
    while kinds.len() < chars.len() {
        let (kind, end) = piece(chars, kinds.len());
        kinds.resize(end.min(chars.len()), kind);
    }
    kinds
}

/// Kind and end of the piece that starts at `at`.
fn piece(chars: &[char], at: usize) -> (Kind, usize) {
    match &chars[at..] {
        ['/', '/', ..] => (Kind::Comment, end_of(chars, at, |rest| rest[0] == '\n')),
        ['/', '*', ..] => (Kind::Comment, block_comment_end(chars, at)),
        ['"', ..] => (Kind::Literal, quoted_end(chars, at + 1)),
        // The character after the backslash may itself be a quote.
        ['\'', '\\', ..] => (Kind::Literal, end_of(chars, at + 3, |rest| rest[0] == '\'') + 1),
        ['\'', _, '\'', ..] => (Kind::Literal, at + 3),
        [first, ..] if is_word(*first) => {
            let end = end_of(chars, at, |rest| !is_word(rest[0]));
            let raw = matches!(chars[at..end], ['r'] | ['b' | 'c', 'r']);
            match raw.then(|| raw_string_end(chars, end)).flatten() {
                Some(end) => (Kind::Literal, end),
                None => (Kind::Code, end),
            }
        }
        _ => (Kind::Code, at + 1),
    }
}

/// The first place from `at` on where `ends` holds, else the end of the text.
fn end_of(chars: &[char], at: usize, ends: impl Fn(&[char]) -> bool) -> usize {
    (at..chars.len()).find(|at| ends(&chars[*at..])).unwrap_or(chars.len())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Block comments nest.
fn block_comment_end(chars: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at < chars.len() {
        match &chars[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] if depth == 1 => return at + 2,
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    at
}

fn quoted_end(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() {
        match chars[at] {
            '"' => return at + 1,
            '\\' => at += 2,
            _ => at += 1,
        }
    }
    at
}

/// None where the hashes begin a raw identifier: `r#type`.
fn raw_string_end(chars: &[char], hashes: usize) -> Option<usize> {
    let quote = end_of(chars, hashes, |rest| rest[0] != '#');
    if chars.get(quote) != Some(&'"') {
        return None;
    }
    let closing: Vec<char> =
        std::iter::once('"').chain(chars[hashes..quote].iter().copied()).collect();
    Some(end_of(chars, quote + 1, |rest| rest.starts_with(&closing)) + closing.len())
}

/// The tokens of code whose literals are blank but for a `"`.
pub fn tokens(code: &str) -> Vec<Token> {
    let chars: Vec<char> = code.chars().collect();
    let (mut tokens, mut at, mut line) = (Vec::new(), 0, 1);
    while at < chars.len() {
        let end = match &chars[at..] {
            ['\'', ..] => end_of(chars.as_slice(), at + 1, |rest| !is_word(rest[0])),
            [':', ':', ..] => at + 2,
            [first, ..] if is_word(*first) => end_of(&chars, at, |rest| !is_word(rest[0])),
            _ => at + 1,
        };
        line += usize::from(chars[at] == '\n');
        if !chars[at].is_whitespace() {
            tokens.push(Token { text: chars[at..end].iter().collect(), line });
        }
        at = end;
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The characters of one kind, the others as `_`.
    fn only(wanted: Kind, text: &str) -> String {
        let chars: Vec<char> = text.chars().collect();
        let pairs = chars.iter().zip(kinds(&chars));
        pairs.map(|(c, kind)| if kind == wanted { *c } else { '_' }).collect()
    }

    #[test]
    fn strings_hide_comments_and_comments_hide_strings() {
        let text = r#"a("// b", 'x', '"', '\'', b"\"") // "c""#;
        assert_eq!(only(Kind::Code, text), "a(______, ___, ___, ____, b____) ______");
        assert_eq!(only(Kind::Comment, text), format!("{}// \"c\"", "_".repeat(33)));
    }

    #[test]
    fn raw_strings_and_nested_comments_end_where_they_end() {
        let text = "x r##\"a\"# b\"## y r#type /* a /* b */ c */ z 'life";
        let code = format!("x {} y r#type {} z 'life", "_".repeat(12), "_".repeat(17));
        assert_eq!(only(Kind::Code, text), code);
    }

    #[test]
    fn an_unclosed_piece_ends_with_the_text() {
        for text in ["\"a\\", "/* b", "r#\"c\"", "'\\"] {
            assert_eq!(kinds(&text.chars().collect::<Vec<_>>()).len(), text.chars().count());
        }
    }

    #[test]
    fn tokens_are_words_paths_and_lifetimes() {
        let found = tokens("fn a<'static>(\n x: std::B)");
        let texts: Vec<_> = found.iter().map(|token| token.text.as_str()).collect();
        let expected = ["fn", "a", "<", "'static", ">", "(", "x", ":", "std", "::", "B", ")"];
        assert_eq!(texts, expected);
        assert_eq!((found[5].line, found[6].line), (1, 2));
    }
}
