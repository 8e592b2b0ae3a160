//! Tokenizer files: any bytes load or are refused; what loads encodes and decodes any text or
//! refuses it.

use serde_json::json;
use vllm_batch::engine::text::Tokenizer;

use super::choices::{Choices, split_at_nul};
use super::tokenizer_edits;

/// Room for a vocabulary of all bytes.
const MAX_INPUT: usize = 32 << 10;

/// The first byte is `0`: a file follows, and behind a NUL a text; else choices that change a file
/// of ours, and then a text.
pub fn check(data: &[u8]) {
    if data.len() > MAX_INPUT {
        return;
    }
    let mut choices = Choices::new(data);
    let (file, text) = match choices.byte() {
        b'0' => {
            let (file, text) = split_at_nul(choices.rest());
            (file.to_vec(), text)
        }
        _ => {
            let file = tokenizer_edits::edited(&mut choices).to_string().into_bytes();
            (file, choices.rest())
        }
    };
    let config = json!({"bos_token": "<s>", "eos_token": {"content": "b"}});
    let Ok(tokenizer) = Tokenizer::from_bytes(&file, Some(&config)) else { return };
    let text = String::from_utf8_lossy(&text[..text.len().min(1 << 10)]);
    for add_special_tokens in [false, true] {
        let Ok(ids) = tokenizer.encode(&text, add_special_tokens) else { continue };
        let _ = tokenizer.decode(&ids, add_special_tokens);
        for (at, id) in ids.iter().enumerate().take(8) {
            let _ = tokenizer.token_text_after(&ids[..at], *id);
        }
    }
    // Sampled ids are any ids of the model, known to the tokenizer or not.
    for id in [0, 1, tokenizer.vocab_size() as u32, u32::MAX] {
        let _ = tokenizer.token_text(id);
    }
}
