//! Tokenizers of folders and files, on what they encode and refuse.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use vllm_batch::engine::text::Tokenizer;

use crate::byte_level::byte_level_file;
use crate::random::Rng;

/// The ids that stand for missing bytes while a text is encoded are no tokens.
#[test]
fn ids_of_missing_bytes_are_not_seen() {
    let file = byte_level_file(&mut Rng(3), |byte| byte == 4);
    let tokenizer = Tokenizer::from_bytes(&file.to_string().into_bytes(), None).unwrap();
    let past = file["added_tokens"][1]["id"].as_u64().unwrap() as u32 + 1;
    assert_eq!(tokenizer.vocab_size(), past as usize);
    assert_eq!(tokenizer.decode(&[past], false).unwrap(), "");
    assert!(tokenizer.encode("\u{4}", true).unwrap().is_empty());
}

#[test]
fn a_missing_unk_token_fails_the_row_that_needs_it() {
    let mut file = byte_level_file(&mut Rng(3), |byte| byte == 4);
    file["model"]["unk_token"] = "nowhere".into();
    let tokenizer = Tokenizer::from_bytes(&file.to_string().into_bytes(), None).unwrap();
    tokenizer.encode("a", true).unwrap();
    let error = tokenizer.encode("a\u{4}", true).unwrap_err().to_string();
    assert!(error.contains("unk_token \"nowhere\""), "{error}");
}

/// What transformers makes of folders without `tokenizer.json` (`testdata/generate_tokenizers.py`).
#[test]
fn tokenizers_without_tokenizer_json_are_converted_as_transformers_does() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tokenizers");
    let expected = fs::read(dir.join("expected.json")).unwrap();
    let expected: Map<String, Value> = serde_json::from_slice(&expected).unwrap();
    assert!(expected.len() >= 12);
    for (name, expected) in expected {
        let ours = Tokenizer::from_dir(&dir.join(&name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(ours.bos_token(), expected["bos_token"].as_str(), "{name}");
        assert_eq!(ours.eos_token(), expected["eos_token"].as_str(), "{name}");
        assert_eq!(ours.vocab_size() as u64, expected["num_tokens"], "{name}");
        for case in expected["texts"].as_array().unwrap() {
            let text = case[0].as_str().unwrap();
            for (around, place) in [(true, 1), (false, 2)] {
                let ids = ours.encode(text, around).unwrap();
                assert_eq!(json!(ids), case[place], "{name}: {text:?}, {around}");
                let expected = case[if around { 4 } else { 3 }].as_str().unwrap();
                assert_eq!(ours.decode(&ids, around).unwrap(), expected, "{name}: {text:?}");
            }
        }
    }
}
