//! `StopChecker`: stop strings in generated text, as vLLM's `check_stop_strings`.

/// Where a stop string was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopMatch {
    /// Which stop string it was.
    pub stop_index: usize,
    /// Bytes of the text to keep: before the match, or up to its end.
    pub truncate_to: usize,
}

/// Finds stop strings in the part of a text that its newest bytes can have completed.
pub struct StopChecker;

impl StopChecker {
    /// Looks for stop strings that end within the last `num_new_bytes` of `text`. The one that is
    /// complete first wins; of several complete at the same byte, the first of the list.
    pub fn check(
        text: &str,
        num_new_bytes: usize,
        stop: &[String],
        include: bool,
    ) -> Option<StopMatch> {
        if num_new_bytes == 0 {
            return None;
        }
        let old = text.len().saturating_sub(num_new_bytes);
        let mut found: Option<(usize, usize)> = None;
        for (index, stop) in stop.iter().enumerate().filter(|(_, stop)| !stop.is_empty()) {
            // An occurrence that ended before the new bytes would have stopped the text already.
            let from = (old + 1).saturating_sub(stop.len());
            // Bytes, since `from` may be inside a character; a match of UTF-8 in UTF-8 is never.
            let tail = &text.as_bytes()[from..];
            let start = tail.windows(stop.len()).position(|window| window == stop.as_bytes());
            let end = start.map(|start| from + start + stop.len());
            if let Some(end) = end.filter(|end| found.is_none_or(|(best, _)| *end < best)) {
                found = Some((end, index));
            }
        }
        found.map(|(end, stop_index)| StopMatch {
            stop_index,
            truncate_to: if include { end } else { end - stop[stop_index].len() },
        })
    }

    /// Bytes at the end of a text that a stop string may begin with: what comes next decides.
    pub fn num_undecided_bytes(text: &str, stop: &[impl AsRef<str>]) -> usize {
        let of_one = |stop: &str| {
            let begins = |&len: &usize| text.as_bytes().ends_with(&stop.as_bytes()[..len]);
            (1..stop.len()).rev().find(begins).unwrap_or(0)
        };
        stop.iter().map(|stop| of_one(stop.as_ref())).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, new: usize, stop: &[&str], include: bool) -> Option<(usize, String)> {
        let stop: Vec<String> = stop.iter().map(|s| s.to_string()).collect();
        StopChecker::check(text, new, &stop, include)
            .map(|found| (found.stop_index, text[..found.truncate_to].to_string()))
    }

    #[test]
    fn text_is_cut_before_or_after_the_match() {
        assert_eq!(check("ab STOP cd", 10, &["STOP"], false), Some((0, "ab ".into())));
        assert_eq!(check("ab STOP cd", 10, &["STOP"], true), Some((0, "ab STOP".into())));
        assert_eq!(check("ab STO", 6, &["STOP"], false), None);
        assert_eq!(check("", 0, &["x"], false), None);
    }

    #[test]
    fn the_first_to_be_complete_wins_then_list_order() {
        // "bcd" begins earlier and ends later than "c".
        assert_eq!(check("abcd", 4, &["bcd", "c"], false), Some((1, "ab".into())));
        assert_eq!(check("abcd", 4, &["cd", "bcd"], false), Some((0, "ab".into())));
        assert_eq!(check("abcd", 4, &["bcd", "cd"], false), Some((0, "a".into())));
    }

    #[test]
    fn only_what_new_text_completes_is_found() {
        // The first "x" is older than the last two bytes.
        assert_eq!(check("x..y", 2, &["x"], false), None);
        assert_eq!(check("x..y", 1, &["..y"], false), Some((0, "x".into())));
        assert_eq!(check("aXXb", 1, &["XX"], false), None);
    }

    #[test]
    fn the_longest_beginning_of_a_stop_string_is_undecided() {
        let num = |text: &str, stop: &[&str]| StopChecker::num_undecided_bytes(text, stop);
        assert_eq!(num("ab STO", &["STOP"]), 3);
        assert_eq!(num("ab STO", &["TOO", "STOP", "O!"]), 3);
        assert_eq!(num("ab STOP", &["STOP"]), 0, "it was looked for, and does not count");
        assert_eq!(num("aaa", &["aaaaa", "aab"]), 3);
        assert_eq!(num("a\u{e9}", &["\u{e9}\u{e9}"]), 2);
        assert_eq!((num("", &["x"]), num("x", &[])), (0, 0));
    }

    #[test]
    fn characters_are_never_cut() {
        // The search starts inside "é".
        assert_eq!(check("é\n\n", 1, &["\n\n"], false), Some((0, "é".into())));
        assert_eq!(check("日本", 3, &["本"], false), Some((0, "日".into())));
        assert_eq!(check("日本", 3, &["日本"], true), Some((0, "日本".into())));
    }

    /// Against the definition: the smallest end among all occurrences that end in the new bytes.
    #[test]
    fn agrees_with_the_definition_on_random_texts() {
        let mut state = 7u64;
        let mut random = |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % n
        };
        for _ in 0..20_000 {
            let mut word =
                |n: usize| -> String { (0..n).map(|_| ['a', 'b', 'é'][random(3)]).collect() };
            let (text, stops) = (word(12), [word(1), word(2), word(3)]);
            let new = random(text.len() + 1);
            let expected = (text.len() - new + 1..=text.len()).find_map(|end| {
                let index =
                    stops.iter().position(|s| text.as_bytes()[..end].ends_with(s.as_bytes()))?;
                Some((index, end - stops[index].len()))
            });
            let found = StopChecker::check(&text, new, &stops, false);
            assert_eq!(
                found.map(|f| (f.stop_index, f.truncate_to)),
                expected,
                "{text} {stops:?} {new}"
            );
        }
    }
}
