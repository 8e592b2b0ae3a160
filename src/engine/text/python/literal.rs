//! Escapes of Python's string literals, as jinja2 reads them.

/// What a literal stands for: jinja2's `encode("ascii", "backslashreplace")`, then
/// `decode("unicode-escape")`.
///
/// # Errors
/// An escape is cut off, or stands for no character.
pub(crate) fn unescape(literal: &str) -> Result<String, String> {
    let mut out = String::with_capacity(literal.len());
    let mut chars = literal.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        let Some(c) = chars.next() else { return Err("a backslash at the end".to_string()) };
        match c {
            '\n' => {}
            '\\' | '\'' | '"' => out.push(c),
            'a' => out.push('\u{7}'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'v' => out.push('\u{b}'),
            '0'..='7' => {
                let mut code = c as u32 - '0' as u32;
                for _ in 0..2 {
                    let Some(digit) = chars.peek().and_then(|c| c.to_digit(8)) else { break };
                    chars.next();
                    code = code * 8 + digit;
                }
                out.extend(char::from_u32(code));
            }
            'x' => out.push(code(&mut chars, c, 2)?),
            'u' => out.push(code(&mut chars, c, 4)?),
            'U' => out.push(code(&mut chars, c, 8)?),
            'N' => return Err("\\N{..} is not supported; write \\u and its number".to_string()),
            c if c.is_ascii() => out.extend(['\\', c]),
            // The backslash is one of an escape's two, whose number follows as text.
            c => {
                let digits = match c as u32 {
                    code @ ..=0xff => format!("x{code:02x}"),
                    code @ ..=0xffff => format!("u{code:04x}"),
                    code => format!("U{code:08x}"),
                };
                out.push('\\');
                out.push_str(&digits);
            }
        }
    }
    Ok(out)
}

fn code(
    chars: &mut std::iter::Peekable<std::str::Chars<'_>>,
    kind: char,
    num_digits: usize,
) -> Result<char, String> {
    let mut code = 0u32;
    for _ in 0..num_digits {
        let digit = chars.next().and_then(|c| c.to_digit(16));
        let digit = digit.ok_or_else(|| format!("truncated \\{kind} escape"))?;
        code = (code << 4) | digit;
    }
    char::from_u32(code).ok_or_else(|| format!("\\{kind} escape of no character: {code:x}"))
}

/// A literal that minijinja reads as the text.
pub(crate) fn escape(text: &str, quote: char) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\\' || c == quote {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{escape, unescape};

    /// Expected values are Python's.
    #[test]
    fn escapes_are_pythons() {
        for (literal, text) in [
            (r"\U0001F600\u00e9\x41\101\0", "\u{1f600}\u{e9}AA\0"),
            (r"\a\b\f\v\n\'\q\8\/", "\u{7}\u{8}\u{c}\u{b}\n'\\q\\8\\/"),
            ("a\\\nb", "ab"),
            ("\\\u{e9}", "\\xe9"),
            (r"\1234", "S4"),
        ] {
            assert_eq!(unescape(literal).as_deref(), Ok(text));
        }
        for wrong in [r"\x4", r"\u12", r"\U00110000", r"\ud83d", r"\N{BULLET}", "\\"] {
            assert!(unescape(wrong).is_err(), "{wrong}");
        }
        assert_eq!(escape("a'\\\"", '\''), "a\\'\\\\\"");
    }
}
