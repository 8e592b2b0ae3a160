//! BLEU and chrF of one answer, as sacreBLEU 2 computes them of a sentence: between 0 and 1.

use std::collections::HashMap;

use super::words::Patterns;

const MAX_ORDER: usize = 4;
const CHAR_ORDER: usize = 6;
/// Recall weighs twice as much as precision: beta squared.
const CHRF_FACTOR: f64 = 4.0;

/// How often each run of `order` elements is there.
fn counts<T: Eq + std::hash::Hash>(elements: &[T], order: usize) -> HashMap<&[T], usize> {
    let mut counts = HashMap::new();
    for run in elements.windows(order) {
        *counts.entry(run).or_default() += 1;
    }
    counts
}

/// BLEU of an answer against all that is expected: tokens of `13a`, exponential smoothing, no
/// order that the answer has no run of.
pub fn bleu(answer: &str, expected: &[String], patterns: &Patterns) -> f64 {
    let answer = tokens_13a(answer, patterns);
    let expected: Vec<_> = expected.iter().map(|text| tokens_13a(text, patterns)).collect();
    let shared: [usize; MAX_ORDER] =
        std::array::from_fn(|at| num_shared(&answer, &expected, at + 1));
    if shared.iter().all(|shared| *shared == 0) {
        return 0.0;
    }
    let (mut sum, mut orders, mut smoothing) = (0.0, 0, 1.0);
    for (at, shared) in shared.into_iter().enumerate() {
        let total = answer.len().saturating_sub(at);
        if total == 0 {
            break;
        }
        let shared = match shared {
            0 => {
                smoothing *= 2.0;
                1.0 / smoothing
            }
            shared => shared as f64,
        };
        sum += (shared / total as f64).ln();
        orders += 1;
    }
    let closest = expected.iter().map(Vec::len);
    let closest = closest.min_by_key(|length| (length.abs_diff(answer.len()), *length));
    let ratio = closest.unwrap_or(0) as f64 / answer.len() as f64;
    let brevity = if ratio > 1.0 { (1.0 - ratio).exp() } else { 1.0 };
    brevity * (sum / f64::from(orders)).exp()
}

/// Runs of the answer that are in one of the expected texts, each at most as often as there.
fn num_shared(answer: &[String], expected: &[Vec<String>], order: usize) -> usize {
    let of_expected: Vec<_> = expected.iter().map(|tokens| counts(tokens, order)).collect();
    let shared = counts(answer, order).into_iter().map(|(run, count)| {
        let most = of_expected.iter().filter_map(|counts| counts.get(run)).max();
        count.min(most.copied().unwrap_or(0))
    });
    shared.sum()
}

/// Tokens as `mteval-v13a.pl` makes them.
fn tokens_13a(text: &str, patterns: &Patterns) -> Vec<String> {
    let mut text = text.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    if text.contains('&') {
        for (name, sign) in [("&quot;", "\""), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")] {
            text = text.replace(name, sign);
        }
    }
    text = format!(" {text} ");
    for (pattern, replacement) in &patterns.bleu {
        text = pattern.replace_all(&text, *replacement).into_owned();
    }
    text.split_whitespace().map(str::to_owned).collect()
}

/// chrF2 of an answer against the best of what is expected: runs of one to six characters, spaces
/// left out.
pub fn chrf(answer: &str, expected: &[String]) -> f64 {
    let chars = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<Vec<char>>();
    let answer = chars(answer);
    let of_one = |expected: &String| chrf_of(&answer, &chars(expected));
    expected.iter().map(of_one).fold(0.0, f64::max)
}

fn chrf_of(answer: &[char], expected: &[char]) -> f64 {
    let (mut precision, mut recall, mut orders) = (0.0, 0.0, 0);
    for order in 1..=CHAR_ORDER.min(answer.len()).min(expected.len()) {
        let of_expected = counts(expected, order);
        let shared = counts(answer, order)
            .into_iter()
            .map(|(run, count)| count.min(of_expected.get(run).copied().unwrap_or(0)));
        let shared = shared.sum::<usize>() as f64;
        precision += shared / (answer.len() + 1 - order) as f64;
        recall += shared / (expected.len() + 1 - order) as f64;
        orders += 1;
    }
    if precision + recall == 0.0 {
        return 0.0;
    }
    let (precision, recall) = (precision / f64::from(orders), recall / f64::from(orders));
    (1.0 + CHRF_FACTOR) * precision * recall / (CHRF_FACTOR * precision + recall)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn tokens_are_those_of_mteval() {
        let patterns = Patterns::default();
        let tokens = |text| tokens_13a(text, &patterns).join(" ");
        assert_eq!(tokens("Hello, world! 3.5% of 1,000-"), "Hello , world ! 3.5 % of 1,000 -");
        assert_eq!(tokens("a &quot;b&quot; it's (c)/d."), "a \" b \" it's ( c ) / d .");
        assert_eq!(tokens("semi-\nfinal <skipped>\nend"), "semifinal end");
    }

    #[test]
    fn equal_empty_and_foreign_texts() {
        let patterns = Patterns::default();
        for (answer, expected, score) in [
            ("the cat sat on the mat", texts(&["the cat sat on the mat"]), 1.0),
            ("", texts(&["a"]), 0.0),
            ("a", texts(&[""]), 0.0),
            ("x y z", texts(&["a b c", "d"]), 0.0),
        ] {
            assert_eq!(bleu(answer, &expected, &patterns), score, "{answer}");
            assert_eq!(chrf(answer, &expected), score, "{answer}");
        }
    }
}
