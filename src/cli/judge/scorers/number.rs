//! The last number of a text, and whether two numbers are one.

/// A number as it is written, without what does not change it: sign, digits, power of ten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decimal {
    is_negative: bool,
    /// Without zeros at either end.
    digits: String,
    exponent: i64,
}

impl Decimal {
    /// Reads digits, with thousands in commas, a fraction and an exponent if it has them. A dollar
    /// sign and percent sign around it say nothing.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches('$').trim_end_matches('%');
        let found = last_number(text)?;
        (found.len() == text.len()).then(|| Self::of_number(found))
    }

    /// `text` is what `last_number` finds.
    fn of_number(text: &str) -> Self {
        let lower = text.to_ascii_lowercase();
        let (mantissa, power) = lower.split_once('e').unwrap_or((&lower, "0"));
        let (is_negative, mantissa) = match mantissa.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, mantissa.trim_start_matches('+')),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits: String = whole.chars().filter(|c| *c != ',').chain(fraction.chars()).collect();
        // A power with more digits than i64 has says nothing that could be told apart.
        let power: i64 = power.parse::<i32>().map_or(i64::from(i32::MAX), i64::from);
        let kept = digits.trim_end_matches('0');
        let exponent = power - fraction.len() as i64 + (digits.len() - kept.len()) as i64;
        let kept = kept.trim_start_matches('0');
        match kept.is_empty() {
            true => Self { is_negative: false, digits: String::new(), exponent: 0 },
            false => Self { is_negative, digits: kept.to_owned(), exponent },
        }
    }
}

/// The last number of a text, and what it is.
pub fn last_of(text: &str) -> Option<(&str, Decimal)> {
    let found = last_number(text)?;
    Some((found, Decimal::of_number(found)))
}

fn last_number(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let (mut at, mut last) = (0, None);
    while at < bytes.len() {
        let begins = bytes[at].is_ascii_digit()
            || bytes[at] == b'.' && bytes.get(at + 1).is_some_and(u8::is_ascii_digit);
        if !begins {
            at += 1;
            continue;
        }
        let start = match at.checked_sub(1).map(|before| bytes[before]) {
            // In `7-3` and `b-3` it joins, and is no sign.
            Some(b'-' | b'+') if !joins(text, at - 1) => at - 1,
            _ => at,
        };
        at = end_of_number(bytes, at);
        last = Some(&text[start..at]);
    }
    last
}

/// Whether a letter, digit or closing bracket stands before this place.
fn joins(text: &str, at: usize) -> bool {
    let before = text[..at].chars().next_back();
    before.is_some_and(|c| c.is_alphanumeric() || c == ')')
}

fn end_of_number(bytes: &[u8], mut at: usize) -> usize {
    let digit_at = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut has_point = false;
    loop {
        match bytes.get(at) {
            Some(byte) if byte.is_ascii_digit() => at += 1,
            Some(b',') if !has_point && digit_at(at + 1) => at += 1,
            Some(b'.') if !has_point && digit_at(at + 1) => (has_point, at) = (true, at + 1),
            _ => break,
        }
    }
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        let signed = usize::from(matches!(bytes.get(at + 1), Some(b'-' | b'+')));
        if digit_at(at + 1 + signed) {
            at += 1 + signed;
            while digit_at(at) {
                at += 1;
            }
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_of_a_text() {
        let cases = [
            ("It is 3, so 1,234.50 in all.", Some("1,234.50")),
            ("#### -42", Some("-42")),
            ("7-3", Some("3")),
            ("(2)-1", Some("1")),
            ("is - 5", Some("5")),
            ("+.5!", Some("+.5")),
            ("5.", Some("5")),
            ("1.2.3", Some(".3")),
            ("2e3 or 2e", Some("2")),
            ("6.02E+23", Some("6.02E+23")),
            ("é-8", Some("8")),
            ("none", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(last_of(text).map(|(found, _)| found), expected, "{text}");
        }
    }

    #[test]
    fn one_number_in_many_spellings() {
        let number = |text: &str| Decimal::parse(text).expect(text);
        for spellings in [
            &["1234", "1,234", "1234.0", "+1234", "$1,234.00", "1.234e3", "1234000e-3", "01234"][..],
            &["0", "-0", "0.000", "0e9"],
            &["-0.5", "-.5", "-5e-1", "-50%", "-0.50"][..4],
        ] {
            for other in &spellings[1..] {
                let is_percent = other.ends_with('%');
                assert_eq!(number(spellings[0]) == number(other), !is_percent, "{other}");
            }
        }
        assert_ne!(number("0.1"), number("0.10000000000000000001"));
        for text in ["12 apples", "", "a", "1-2"] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
    }
}
