//! Words in common: F1 as SQuAD counts it, ROUGE-1 and ROUGE-L.

use std::collections::HashMap;

use crate::judge::work::{TooMuch, Work};

/// Words that both have, each as often as the one that has it seldomer.
fn num_shared(a: &[String], b: &[String]) -> usize {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for word in b {
        *counts.entry(word).or_default() += 1;
    }
    let is_shared = |word: &&String| match counts.get_mut(word.as_str()) {
        Some(count) if *count > 0 => {
            *count -= 1;
            true
        }
        _ => false,
    };
    a.iter().filter(is_shared).count()
}

/// Twice the product over the sum of precision and recall.
fn f_measure(shared: usize, answer: usize, expected: usize) -> f64 {
    if shared == 0 {
        return 0.0;
    }
    let (precision, recall) = (shared as f64 / answer as f64, shared as f64 / expected as f64);
    2.0 * precision * recall / (precision + recall)
}

/// SQuAD's F1. Where one of them has no words, they are equal or have nothing in common.
pub fn f1(answer: &[String], expected: &[String]) -> f64 {
    if answer.is_empty() || expected.is_empty() {
        return f64::from(u8::from(answer.len() == expected.len()));
    }
    f_measure(num_shared(answer, expected), answer.len(), expected.len())
}

/// ROUGE-1: words in common.
pub fn rouge_1(answer: &[String], expected: &[String]) -> f64 {
    f_measure(num_shared(answer, expected), answer.len(), expected.len())
}

/// ROUGE-L: the longest run of common words in their order, with others between them.
///
/// # Errors
/// The texts are too long.
pub fn rouge_l(answer: &[String], expected: &[String], work: &Work) -> Result<f64, TooMuch> {
    let shared = common_subsequence(answer, expected, work)?;
    Ok(f_measure(shared, answer.len(), expected.len()))
}

/// The length of the longest common subsequence, 64 words of `a` at a time (Hyyrö 2004).
fn common_subsequence(a: &[String], b: &[String], work: &Work) -> Result<usize, TooMuch> {
    // Of each word the blocks that have it, and where.
    let mut places: HashMap<&str, Vec<(usize, u64)>> = HashMap::new();
    for (at, word) in a.iter().enumerate() {
        let of_word = places.entry(word).or_default();
        match of_word.last_mut().filter(|(block, _)| *block == at / 64) {
            Some((_, bits)) => *bits |= 1 << (at % 64),
            None => of_word.push((at / 64, 1 << (at % 64))),
        }
    }
    // A bit is 0 where the subsequence grows.
    let mut grows = vec![u64::MAX; a.len().div_ceil(64)];
    for word in b {
        let Some(places) = places.get(word.as_str()) else { continue };
        let mut places = places.iter().peekable();
        let (mut at, mut carry, mut steps) = (0, false, 0);
        loop {
            // A block without the word only hands on what is carried.
            let next = places.peek().map(|(block, _)| *block);
            at = match next {
                _ if carry && at < grows.len() => at,
                Some(block) => block,
                None => break,
            };
            let here = places.next_if(|(block, _)| *block == at).map_or(0, |(_, here)| *here);
            let bits = &mut grows[at];
            let (sum, over) = bits.overflowing_add(*bits & here);
            let (sum, over_again) = sum.overflowing_add(u64::from(carry));
            carry = over || over_again;
            *bits = sum | (*bits & !here);
            (at, steps) = (at + 1, steps + 1);
        }
        work.take(steps)?;
    }
    let zeros: u32 = grows.iter().map(|bits| bits.count_zeros()).sum();
    Ok(zeros as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn words_in_common() {
        let cases = [
            ("a b c", "a b c", [1.0, 1.0, 1.0]),
            ("a b c d", "d c b a", [1.0, 1.0, 0.25]),
            ("a a b", "a b b", [2.0 / 3.0, 2.0 / 3.0, 2.0 / 3.0]),
            ("x", "y", [0.0, 0.0, 0.0]),
            ("", "", [1.0, 0.0, 0.0]),
            ("", "a", [0.0, 0.0, 0.0]),
        ];
        for (a, b, expected) in cases {
            let (a, b) = (words(a), words(b));
            let rouge_l = rouge_l(&a, &b, &Work::default()).unwrap();
            assert_eq!([f1(&a, &b), rouge_1(&a, &b), rouge_l], expected, "{a:?} {b:?}");
        }
    }

    #[test]
    fn long_texts_of_few_words_are_too_much_work() {
        let many = vec!["a".to_owned(); 1 << 19];
        assert!(rouge_l(&many, &many, &Work::default()).is_err());
        // A table of all words and blocks would be 2.5 GB.
        let all: Vec<String> = (0..150_000).map(|word| word.to_string()).collect();
        assert_eq!(rouge_l(&all, &all, &Work::default()), Ok(1.0));
    }

    #[test]
    fn the_longest_subsequence_over_blocks() {
        // Words by a linear congruence, few of them, so that much is common.
        let text = |mut seed: u32, length: usize| -> Vec<String> {
            let next = |_| {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((seed >> 24) % 5).to_string()
            };
            (0..length).map(next).collect()
        };
        let by_table = |a: &[String], b: &[String]| {
            let mut row = vec![0; b.len() + 1];
            for word in a {
                let mut diagonal = 0;
                for (at, other) in b.iter().enumerate() {
                    let above = row[at + 1];
                    row[at + 1] = if word == other { diagonal + 1 } else { above.max(row[at]) };
                    diagonal = above;
                }
            }
            row[b.len()]
        };
        for (seed, lengths) in [(1, (7, 9)), (2, (64, 64)), (3, (65, 200)), (4, (300, 129))] {
            let (a, b) = (text(seed, lengths.0), text(seed + 9, lengths.1));
            let found = common_subsequence(&a, &b, &Work::default());
            assert_eq!(found, Ok(by_table(&a, &b)), "{lengths:?}");
        }
    }
}
