//! As much of XML as object stores answer with: elements without attributes that matter, and text.

/// The text of the first element of a name; None if there is none.
pub(super) fn text_of(xml: &str, name: &str) -> Option<String> {
    elements(xml, name).next().map(unescaped)
}

/// What is within each element of a name, in their order. Elements within one of the same name are
/// not looked for.
pub(super) fn elements<'a>(xml: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let (open, close) = (format!("<{name}"), format!("</{name}>"));
    let mut rest = xml;
    std::iter::from_fn(move || {
        loop {
            let at = rest.find(&open)?;
            rest = &rest[at + open.len()..];
            // `<Key` begins `<KeyCount>` too.
            if !rest.starts_with(['>', ' ', '/', '\t', '\n', '\r']) {
                continue;
            }
            let end = rest.find('>')?;
            let is_empty = rest[..end].ends_with('/');
            rest = &rest[end + 1..];
            if is_empty {
                return Some("");
            }
            let end = rest.find(&close)?;
            let (inner, after) = rest.split_at(end);
            rest = &after[close.len()..];
            return Some(inner);
        }
    })
}

/// A text without entities.
pub(super) fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        plain.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = rest.find(';').filter(|end| *end < 12);
        let Some((end, c)) = end.and_then(|end| Some((end, entity(&rest[1..end])?))) else {
            plain.push('&');
            rest = &rest[1..];
            continue;
        };
        plain.push(c);
        rest = &rest[end + 1..];
    }
    plain.push_str(rest);
    plain
}

fn entity(name: &str) -> Option<char> {
    match name {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => {
            let number = name.strip_prefix('#')?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(digits) => u32::from_str_radix(digits, 16).ok()?,
                None => number.parse().ok()?,
            };
            char::from_u32(code)
        }
    }
}

/// A text for XML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_by_their_whole_name() {
        let xml = "<?xml version=\"1.0\"?><R xmlns=\"x\"><KeyCount>2</KeyCount><C><Key>a &amp; \
                   b</Key></C><C><Key>&#x263A;&#60;&nope;&</Key><Size/></C></R>";
        let keys: Vec<_> = elements(xml, "C").filter_map(|c| text_of(c, "Key")).collect();
        assert_eq!(keys, ["a & b", "\u{263a}<&nope;&"]);
        assert_eq!(text_of(xml, "KeyCount").as_deref(), Some("2"));
        assert_eq!(text_of(xml, "Size").as_deref(), Some(""));
        assert_eq!(text_of("<a>cut", "a"), None);
        assert_eq!(unescaped(&escaped("<a & b>")), "<a & b>");
    }
}
