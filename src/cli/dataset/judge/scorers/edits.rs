//! Levenshtein's distance, 64 characters or words at a time.

use std::collections::HashMap;
use std::hash::Hash;

use crate::judge::work::{TooMuch, Work};

/// Characters to insert, leave out or replace until one text is the other.
///
/// # Errors
/// The texts are too long.
pub fn distance(a: &str, b: &str, work: &Work) -> Result<usize, TooMuch> {
    work.read(1, [a.len(), b.len()])?;
    let (a, b) = without_common_ends(a, b);
    let [a, b] = [a, b].map(|text| text.chars().collect::<Vec<_>>());
    distance_of(&a, &b, work)
}

/// The same of words, which are what white space parts.
///
/// # Errors
/// The texts are too long.
pub fn distance_of_words(a: &str, b: &str, work: &Work) -> Result<usize, TooMuch> {
    work.read(2, [a.len(), b.len()])?;
    let [a, b] = [a, b].map(|text| text.split_whitespace().collect::<Vec<_>>());
    distance_of(&a, &b, work)
}

/// Items to insert, leave out or replace (Myers 1999, in the blocks of Hyyrö 2003).
fn distance_of<T: Copy + Eq + Hash>(a: &[T], b: &[T], work: &Work) -> Result<usize, TooMuch> {
    let length = a.len();
    if length == 0 {
        return Ok(b.len());
    }
    let num_blocks = length.div_ceil(64);
    work.take((num_blocks as u64).saturating_mul(b.len() as u64))?;
    // Of each item the blocks that have it, and where.
    let mut places: HashMap<T, Vec<(usize, u64)>> = HashMap::new();
    for (at, item) in a.iter().enumerate() {
        let of_item = places.entry(*item).or_default();
        match of_item.last_mut().filter(|(block, _)| *block == at / 64) {
            Some((_, bits)) => *bits |= 1 << (at % 64),
            None => of_item.push((at / 64, 1 << (at % 64))),
        }
    }
    let mut blocks = vec![Block { up: u64::MAX, down: 0 }; num_blocks];
    let last_bit = 1 << ((length - 1) % 64);
    let mut distance = length as i64;
    for item in b {
        let mut places = places.get(item).map_or(&[][..], Vec::as_slice).iter().peekable();
        // In front of the first item of `a` each one of `b` costs one.
        let mut step = 1;
        for (at, block) in blocks.iter_mut().enumerate() {
            let equal = places.next_if(|(block, _)| *block == at).map_or(0, |(_, bits)| *bits);
            let high = if at + 1 == num_blocks { last_bit } else { 1 << 63 };
            step = block.advance(equal, step, high);
        }
        distance += step;
    }
    Ok(distance as usize)
}

/// The texts without what both begin and end with.
fn without_common_ends<'a>(a: &'a str, b: &'a str) -> (&'a str, &'a str) {
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    let begin: usize = same.map(|(c, _)| c.len_utf8()).sum();
    let (a, b) = (&a[begin..], &b[begin..]);
    let same = a.chars().rev().zip(b.chars().rev()).take_while(|(a, b)| a == b);
    let end: usize = same.map(|(c, _)| c.len_utf8()).sum();
    (&a[..a.len() - end], &b[..b.len() - end])
}

/// Whether at most this many characters are other.
///
/// # Errors
/// The texts are too long.
pub fn is_within(a: &str, b: &str, most: f64, work: &Work) -> Result<bool, TooMuch> {
    work.read(1, [a.len(), b.len()])?;
    let lengths = a.chars().count().abs_diff(b.chars().count());
    Ok(lengths as f64 <= most && distance(a, b, work)? as f64 <= most)
}

/// How alike two texts are: 1 of equal ones, 0 where no character stays.
///
/// # Errors
/// The texts are too long.
pub fn likeness(a: &str, b: &str, work: &Work) -> Result<f64, TooMuch> {
    Ok(match a.chars().count().max(b.chars().count()) {
        0 => 1.0,
        longest => 1.0 - distance(a, b, work)? as f64 / longest as f64,
    })
}

/// Likeness below which DocVQA counts nothing.
const ANLS_THRESHOLD: f64 = 0.5;

/// How alike an answer and an expected text are, as DocVQA's ANLS counts it: lower case, words with
/// one space between them, over the length of the longer text as it was written.
///
/// # Errors
/// The texts are too long.
pub fn anls(answer: &str, expected: &str, work: &Work) -> Result<f64, TooMuch> {
    work.read(8, [answer.len(), expected.len()])?;
    let words = |text: &str| {
        let text = text.to_lowercase();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let length = |text: &str| text.to_uppercase().chars().count();
    let longest = length(answer).max(length(expected));
    let distance = distance(&words(answer), &words(expected), work)?;
    let score = if longest == 0 { 1.0 } else { 1.0 - distance as f64 / longest as f64 };
    Ok(if score < ANLS_THRESHOLD { 0.0 } else { score })
}

/// 64 steps down a column of the table of distances: where they go up by one, and down by one.
#[derive(Clone, Copy)]
struct Block {
    up: u64,
    down: u64,
}

impl Block {
    /// To the next column. `step`: how its top differs from that of this one; returns the same of
    /// the row of `high`.
    fn advance(&mut self, mut equal: u64, step: i64, high: u64) -> i64 {
        let Self { up, down } = *self;
        let vertical = equal | down;
        equal |= u64::from(step < 0);
        let horizontal = ((equal & up).wrapping_add(up) ^ up) | equal;
        let mut right_up = down | !(horizontal | up);
        let mut right_down = up & horizontal;
        let out = i64::from(right_up & high != 0) - i64::from(right_down & high != 0);
        right_up = right_up << 1 | u64::from(step > 0);
        right_down = right_down << 1 | u64::from(step < 0);
        *self = Self { up: right_down | !(vertical | right_up), down: right_up & vertical };
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distance(a: &str, b: &str) -> usize {
        super::distance(a, b, &Work::default()).unwrap()
    }

    fn likeness(a: &str, b: &str) -> f64 {
        super::likeness(a, b, &Work::default()).unwrap()
    }

    #[test]
    fn long_texts_are_too_much_work_unless_they_are_alike() {
        let (a, b) = ("ab".repeat(250_000), "ba".repeat(250_000));
        assert!(super::distance(&a, &b, &Work::default()).is_err());
        assert_eq!(distance(&a, &format!("{a}c")), 1);
        assert_eq!(is_within(&a, "a", 5.0, &Work::default()), Ok(false));
        // A table of all characters and blocks takes the product of their numbers.
        let text = |from: u32| (from..).filter_map(char::from_u32).take(20_000).collect::<String>();
        assert_eq!(distance(&text(0x1_0000), &text(0x3_0000)), 20_000);
    }

    #[test]
    fn distances_of_short_texts() {
        let cases = [
            ("kitten", "sitting", 3),
            ("", "abc", 3),
            ("abc", "", 3),
            ("", "", 0),
            ("naïve", "naive", 1),
            ("日本", "本日", 2),
        ];
        for (a, b, expected) in cases {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
        assert_eq!([likeness("", ""), likeness("ab", "abcd"), likeness("a", "b")], [1.0, 0.5, 0.0]);
    }

    #[test]
    fn distances_over_blocks_are_those_of_the_table() {
        let text = |mut seed: u32, length: usize| -> String {
            let next = |_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                char::from(b'a' + ((seed >> 24) % 3) as u8)
            };
            (0..length).map(next).collect()
        };
        for (seed, lengths) in [(1, (9, 5)), (2, (64, 64)), (3, (65, 190)), (4, (260, 128))] {
            let (a, b) = (text(seed, lengths.0), text(seed + 9, lengths.1));
            assert_eq!(distance(&a, &b), strsim::levenshtein(&a, &b), "{lengths:?}");
        }
    }
}
