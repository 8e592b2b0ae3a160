//! A source file as the rules see it.

use crate::lexer::{Kind, Token, kinds, tokens};

/// One source file.
pub struct Source {
    /// From the root of the repository, with `/`.
    pub path: String,
    /// As it is stored.
    pub text: String,
    /// Line by line: code, with literals blank but for one `"`.
    pub code: Vec<String>,
    /// Line by line: what is comment.
    pub comments: Vec<String>,
    /// Line by line: how many characters are not within a literal, which cannot be broken well.
    pub widths: Vec<usize>,
    /// Of the code.
    pub tokens: Vec<Token>,
}

impl Source {
    /// Reads a text. Lines of code and of comments keep their columns.
    pub fn new(path: &str, text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let kinds = kinds(&chars);
        let mut code = String::with_capacity(text.len());
        let mut comments = String::with_capacity(text.len());
        let mut widths = vec![0; text.lines().count() + 1];
        let mut line = 0;
        for (at, &c) in chars.iter().enumerate() {
            let blank = if c == '\n' { '\n' } else { ' ' };
            let opens = at == 0 || kinds[at - 1] != Kind::Literal;
            code.push(match kinds[at] {
                Kind::Code => c,
                Kind::Literal if opens => '"',
                _ => blank,
            });
            line += usize::from(c == '\n');
            widths[line] += usize::from(c != '\n' && kinds[at] != Kind::Literal);
            comments.push(if kinds[at] == Kind::Comment { c } else { blank });
        }
        let lines = |text: &str| text.lines().map(str::to_owned).collect();
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            tokens: tokens(&code),
            code: lines(&code),
            comments: lines(&comments),
            widths,
        }
    }

    /// Whether the file is, or lies in, one of these places.
    pub fn is_in(&self, places: &[&str]) -> bool {
        places.iter().any(|place| {
            self.path == *place || (place.ends_with('/') && self.path.starts_with(place))
        })
    }

    /// Text of the token `offset` places away from `at`; empty beyond the ends.
    pub fn token(&self, at: usize, offset: isize) -> &str {
        let found = at.checked_add_signed(offset).and_then(|at| self.tokens.get(at));
        found.map_or("", |token| token.text.as_str())
    }

    /// The places where these tokens follow each other.
    pub fn find(&self, wanted: &[&str]) -> Vec<usize> {
        let texts = self.tokens.windows(wanted.len()).enumerate();
        let same = |window: &[Token]| window.iter().zip(wanted).all(|(a, b)| a.text == *b);
        texts.filter(|(_, window)| same(window)).map(|(at, _)| at).collect()
    }

    /// A violation at a line (from 1).
    pub fn violation(&self, line: usize, what: impl std::fmt::Display) -> String {
        format!("{}:{line}: {what}", self.path)
    }

    /// A violation at a token.
    pub fn violation_at(&self, token: usize, what: impl std::fmt::Display) -> String {
        self.violation(self.tokens[token].line, what)
    }
}
