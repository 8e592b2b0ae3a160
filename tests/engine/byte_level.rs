//! Files of tokenizers for byte-level BPE, made at random.

use ::tokenizers::utils::byte_level::BYTES_CHAR_LOOKUP;
use serde_json::{Map, Value, json};

use crate::random::Rng;

/// What texts are made of: letters and digits with merges, white space, and every kind of
/// character, those of bytes that may be missing among them.
pub const PARTS: &[&str] = &[
    "a",
    "b",
    "the",
    "th",
    "e",
    " ",
    "  ",
    "\n",
    "\t",
    "1",
    "23",
    "!",
    "!!",
    "'s",
    "é",
    "日",
    "😀",
    "🏴\u{E0067}\u{E007F}",
    "\u{0}",
    "\u{4}",
    "\u{1d}",
    "\u{7f}",
    "\u{85}",
    "\u{300}",
    "\u{40000}",
    "\u{10FFFF}",
    "<end>",
    "<pad>",
    "½²",
];

/// A byte-level BPE vocabulary without some bytes, with merges at random over texts' parts.
fn byte_level_model(rng: &mut Rng, is_missing: impl Fn(u8) -> bool) -> Value {
    let mut vocab = Map::new();
    let mut tokens = Vec::new();
    for byte in (0..=255u8).filter(|byte| !is_missing(*byte)) {
        let token = BYTES_CHAR_LOOKUP[usize::from(byte)].to_string();
        vocab.insert(token.clone(), vocab.len().into());
        // Mostly those that texts have.
        let times = if PARTS.concat().into_bytes().contains(&byte) { 8 } else { 1 };
        tokens.extend(vec![token; times]);
    }
    let mut merges = Vec::new();
    while merges.len() < 800 {
        let mut one = || tokens[rng.up_to(tokens.len() - 1)].clone();
        let (left, right) = (one(), one());
        let product = format!("{left}{right}");
        if product.chars().count() <= 6 && !vocab.contains_key(&product) {
            vocab.insert(product.clone(), vocab.len().into());
            tokens.extend(vec![product; 4]);
            merges.push(json!([left, right]));
        }
    }
    // Found by `ignore_merges` alone.
    vocab.insert("the".into(), vocab.len().into());
    vocab.insert("<unk>".into(), vocab.len().into());
    json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
        "ignore_merges": false, "vocab": vocab, "merges": merges})
}

pub fn added(id: usize, content: &str, special: bool) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": special})
}

pub fn byte_level_file(rng: &mut Rng, is_missing: impl Fn(u8) -> bool) -> Value {
    let model = byte_level_model(rng, is_missing);
    let end = model["vocab"].as_object().unwrap().len();
    json!({"version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [added(end, "<end>", true), added(end + 1, "<pad>", false)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": true},
        "post_processor": null, "model": model,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
            "use_regex": true}})
}
