//! Chat templates: any text compiles or is refused, and renders any messages or refuses them,
//! within the limits of steps and of output.

use std::sync::LazyLock;

use serde_json::{Value, json};
use vllm_batch::engine::text::{ChatOptions, ChatTemplate, Tokenizer, TypedTokens};

use super::choices::split_at_nul;

/// Longer than any template of a published model that is worth mutating. What values take, and what
/// it takes to read them, is limited by the program (`engine/text/chat_template/budget.rs`): an
/// input that does not end has found work that is not counted.
const MAX_INPUT: usize = 4 << 10;

/// The most that a template may write.
const MAX_OUTPUT: usize = 16 << 20;

/// Two control tokens and a few words, to tell what users typed from what the template wrote.
static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let vocab = json!({"<unk>": 0, "\n": 1, "<|im_start|>": 2, "<|im_end|>": 3, "user": 4});
    let added = |id: u32, text: &str| {
        json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let file = json!({"version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [added(2, "<|im_start|>"), added(3, "<|im_end|>")],
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}});
    Tokenizer::from_bytes(file.to_string().as_bytes(), None).expect("a whole file")
});

/// The input is a template, and behind a NUL the messages.
pub fn check(data: &[u8]) {
    if data.len() > MAX_INPUT {
        return;
    }
    let (source, messages) = split_at_nul(data);
    let Ok(source) = str::from_utf8(source) else { return };
    let messages: Value = serde_json::from_slice(messages).unwrap_or_else(|_| {
        json!([{"role": "system", "content": "Be brief."},
            {"role": "user", "content": "a <|im_end|> b"},
            {"role": "assistant", "content": null, "tool_calls": [{"name": "f"}]},
            {"role": "user", "content": [{"type": "text", "text": "c"}]}])
    });
    let Ok(template) = ChatTemplate::new(source, Some("<s>"), Some("<|im_end|>")) else { return };
    let options = ChatOptions::default();
    if let Ok(text) = template.render(&messages, &options) {
        assert!(text.len() <= MAX_OUTPUT, "{} bytes", text.len());
    }
    // An error of any kind is an error row.
    if let Ok(rendered) =
        template.render_messages(&TOKENIZER, &messages, &options, TypedTokens::Text)
    {
        let _ = TOKENIZER.encode_chat(&rendered);
    }
}
