//! The rows of the test: mixed lengths, many with a shared prefix, every kind of sampling.

use serde_json::{Map, Value, json};

const WORDS: [&str; 16] = [
    "the", "sum", "of", "red", "and", "seven", "bird", "is", "what", "12", "+", "30", "house",
    "reverse", "a", "quick",
];

/// Words from a fixed sequence of pseudo-random numbers.
fn words(seed: usize, num_words: usize) -> String {
    let mut state = seed as u64 * 2 + 1;
    let word = |_| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        WORDS[(state >> 60) as usize]
    };
    (0..num_words).map(word).collect::<Vec<_>>().join(" ")
}

/// An input file of so many rows.
pub fn jsonl(num_rows: usize) -> String {
    let shared = words(1000, 24);
    let mut text = String::new();
    for index in 0..num_rows {
        let own = words(index, 1 + index * 7 % 23);
        let prompt = if index % 3 == 0 { format!("{shared} {own}") } else { own };
        let mut row = Map::new();
        row.insert("id".to_owned(), json!(format!("row-{index}")));
        row.insert("prompt".to_owned(), json!(prompt));
        row.insert("max_tokens".to_owned(), json!(1 + index * 5 % 37));
        row.extend(sampling(index).as_object().unwrap().clone());
        text.push_str(&Value::Object(row).to_string());
        text.push('\n');
    }
    text
}

/// Every row has one of these ways to sample.
fn sampling(index: usize) -> Value {
    match index % 13 {
        0 => json!({"temperature": 0}),
        6 => json!({"use_beam_search": true, "n": 3, "length_penalty": 0.5, "logprobs": 1}),
        1 => json!({"temperature": 1.0}),
        2 => json!({"temperature": 0.8, "top_p": 0.9}),
        3 => json!({"temperature": 1.2, "top_k": 20, "ignore_eos": true}),
        4 => json!({"temperature": 0.7, "min_p": 0.05, "seed": 7}),
        5 => json!({"temperature": 1.0, "n": 3}),
        7 => {
            json!({"temperature": 0, "repetition_penalty": 1.3, "logprobs": 2, "ignore_eos": true})
        }
        8 => {
            json!({"temperature": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.4, "logprobs": 0})
        }
        9 => json!({"temperature": 0, "prompt_logprobs": 1, "ignore_eos": true}),
        10 => json!({"temperature": 1.0, "stop": ["e", "1"], "min_tokens": 1}),
        11 => json!({"max_tokens": 0, "prompt_logprobs": 1, "prompt_logprobs_last": 2}),
        _ => {
            json!({"temperature": 1.0, "logit_bias": {"20": 2.0}, "bad_words": ["the"], "top_k": 50})
        }
    }
}
