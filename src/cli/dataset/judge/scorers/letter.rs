//! The letter that an answer gives to a question with choices.

use super::words::Patterns;

/// Letters of choices: A to J.
pub const NUM_LETTERS: usize = 10;

/// The letter of a choice by its place.
pub fn of_place(place: usize) -> Option<char> {
    (place < NUM_LETTERS).then(|| char::from(b'A' + place as u8))
}

/// The letter, of the surest form that is found: `ANSWER: B`, `the answer is (B)`, `B.` at the
/// beginning, `B` alone. Of several in one form the last: models think, and correct themselves.
pub fn given(answer: &str, patterns: &Patterns) -> Option<char> {
    let last = |pattern: &regex::Regex| pattern.captures_iter(answer).last();
    let found = patterns.letters.iter().find_map(last)?;
    found[1].chars().next().map(|letter| letter.to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_in_the_forms_of_models() {
        let patterns = Patterns::default();
        let cases = [
            ("ANSWER: B", Some('B')),
            ("Answer: A. No.\nAnswer: B", Some('B')),
            ("Let me think. A or C?\nAnswer:  c.", Some('C')),
            ("**Answer: (D)**", Some('D')),
            ("The answer is **E**, since", Some('E')),
            ("(B) the second", Some('B')),
            ("(B). The second", Some('B')),
            ("B) the second", Some('B')),
            ("B. the second", Some('B')),
            (" b\n", Some('B')),
            ("A good question", None),
            ("Answer: Both", None),
            ("K", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(given(text, &patterns), expected, "{text}");
        }
        assert_eq!((of_place(0), of_place(9), of_place(10)), (Some('A'), Some('J'), None));
    }
}
