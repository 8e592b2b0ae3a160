//! Tags in a text: the first of several, from the left, in one pass.

/// Where the first of `tags` begins in `text`, and its number in `tags`. At one place the first in
/// the list wins: list a tag before those that it begins with.
pub(super) fn first(text: &str, tags: &[&str]) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let begins = |at: usize| tags.iter().position(|tag| bytes[at..].starts_with(tag.as_bytes()));
    (0..bytes.len()).find_map(|at| begins(at).map(|tag| (at, tag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leftmost_tag_is_found() {
        assert_eq!(first("a<b><c>", &["<c>", "<b>"]), Some((1, 1)));
        assert_eq!(first("é<b", &["<b>"]), None);
        assert_eq!(first("<a><", &["<a>", "<a"]), Some((0, 0)));
    }
}
