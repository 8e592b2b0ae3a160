//! Levenshtein's distance, 64 characters at a time.

use std::collections::HashMap;

/// Characters to insert, leave out or replace until one text is the other (Myers 1999, in the
/// blocks of Hyyrö 2003).
pub fn distance(a: &str, b: &str) -> usize {
    let length = a.chars().count();
    if length == 0 {
        return b.chars().count();
    }
    let num_blocks = length.div_ceil(64);
    let mut places: HashMap<char, Vec<u64>> = HashMap::new();
    for (at, c) in a.chars().enumerate() {
        places.entry(c).or_insert_with(|| vec![0; num_blocks])[at / 64] |= 1 << (at % 64);
    }
    let none = vec![0; num_blocks];
    let mut blocks = vec![Block { up: u64::MAX, down: 0 }; num_blocks];
    let last_bit = 1 << ((length - 1) % 64);
    let mut distance = length as i64;
    for c in b.chars() {
        let places = places.get(&c).unwrap_or(&none);
        // In front of the first character of `a` each one of `b` costs one.
        let mut step = 1;
        for (at, (block, equal)) in blocks.iter_mut().zip(places).enumerate() {
            let high = if at + 1 == num_blocks { last_bit } else { 1 << 63 };
            step = block.advance(*equal, step, high);
        }
        distance += step;
    }
    distance as usize
}

/// How alike two texts are: 1 of equal ones, 0 where no character stays.
pub fn likeness(a: &str, b: &str) -> f64 {
    match a.chars().count().max(b.chars().count()) {
        0 => 1.0,
        longest => 1.0 - distance(a, b) as f64 / longest as f64,
    }
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
