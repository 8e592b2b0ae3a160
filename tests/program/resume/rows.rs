//! Rows of the tests, from seeds.

use crate::random::Random;

const WORDS: [&str; 16] = [
    "the", "sum", "of", "red", "and", "seven", "bird", "is", "what", "12", "+", "30", "house",
    "reverse", "a", "quick",
];

/// A short text.
pub fn words(random: &mut Random) -> String {
    let number = 2 + random.below(9);
    let words: Vec<&str> = (0..number).map(|_| WORDS[random.below(16) as usize]).collect();
    words.join(" ")
}

/// Rows with a name each, or with none: those are known by their place.
pub fn rows(seed: u64, number: usize, with_ids: bool) -> Vec<String> {
    let mut random = Random::new(seed);
    let row = |index: usize| {
        let (name, words) = (if with_ids { "id" } else { "note" }, words(&mut random));
        format!("{{\"{name}\":\"row-{index}\",\"prompt\":\"{words}\"}}\n")
    };
    (0..number).map(row).collect()
}

/// The same with a field that makes rows longer without making them slower.
pub fn long_rows(seed: u64, number: usize, num_bytes: usize) -> Vec<String> {
    let end = format!(",\"pad\":\"{}\"}}\n", "x".repeat(num_bytes));
    rows(seed, number, true).iter().map(|row| row.replace("}\n", &end)).collect()
}

/// Every third row gets a constraint: a pattern, a list or a schema.
pub fn with_constraints(mut rows: Vec<String>) -> Vec<String> {
    const CONSTRAINTS: [&str; 3] = [
        r#"{"regex":"([a-z]{2,9} ){4,9}[0-9]{3}"}"#,
        r#"{"choice":["red","green","blue"]}"#,
        r#"{"json":{"type":"object","properties":{"a":{"type":"string","maxLength":20}}}}"#,
    ];
    for (row, constraint) in rows.iter_mut().step_by(3).zip(CONSTRAINTS.iter().cycle()) {
        *row = row.replace("}\n", &format!(",\"structured_outputs\":{constraint}}}\n"));
    }
    rows
}

/// Every tenth row becomes one that cannot be asked.
pub fn with_bad_rows(mut rows: Vec<String>) -> Vec<String> {
    for row in rows.iter_mut().skip(4).step_by(10) {
        *row = row.replace("\"prompt\":", "\"prompt\" ");
    }
    rows
}
