//! Characters that JSON leaves as they are, and that some readers break lines at: U+0085, U+2028
//! and U+2029, by Python's `str.splitlines` and what is built on it.

/// Escapes them in JSON from `start` on. They are within strings, wherever they are.
pub fn escape(json: &mut Vec<u8>, start: usize) {
    let Some(first) = find(&json[start..]) else { return };
    let rest = json.split_off(start + first);
    let mut rest = &rest[..];
    while !rest.is_empty() {
        let (length, escaped): (usize, &[u8]) = match rest {
            [0xC2, ..] => (2, b"\\u0085"),
            [_, _, 0xA8, ..] => (3, b"\\u2028"),
            _ => (3, b"\\u2029"),
        };
        let plain = &rest[length..];
        let (plain, next) = plain.split_at(find(plain).unwrap_or(plain.len()));
        json.extend_from_slice(escaped);
        json.extend_from_slice(plain);
        rest = next;
    }
}

/// Where the first of them begins.
fn find(json: &[u8]) -> Option<usize> {
    let is_one = |bytes: &[u8]| matches!(bytes, [0xC2, 0x85, ..] | [0xE2, 0x80, 0xA8 | 0xA9, ..]);
    (0..json.len()).find(|at| matches!(json[*at], 0xC2 | 0xE2) && is_one(&json[*at..]))
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn no_reader_breaks_a_line_there() {
        for (text, escaped) in [
            ("", ""),
            ("{\"a\":\"é€\"}", "{\"a\":\"é€\"}"),
            ("\u{85}", "\\u0085"),
            (
                "a\u{85}\u{2028}\u{2029}é\u{2027}\u{2028}b",
                "a\\u0085\\u2028\\u2029é\u{2027}\\u2028b",
            ),
        ] {
            let mut json = format!("\u{2028}{text}").into_bytes();
            escape(&mut json, 3);
            assert_eq!(String::from_utf8(json).unwrap(), format!("\u{2028}{escaped}"));
        }
    }
}
