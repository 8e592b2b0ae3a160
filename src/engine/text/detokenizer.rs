//! `Detokenizer`: the text of a growing sequence, one token at a time.

use super::{TextError, Tokenizer};

/// Prompt tokens with text that are kept as context (vLLM's slow path keeps 5 + 2, of any kind).
///
/// Decoders look at most at the beginning of what they decode (a leading space is dropped there)
/// and
/// at runs of byte tokens, so a little text before the first new token makes it decode as it does
/// after the whole prompt. Special tokens do not count: a window of those alone has no text.
const PROMPT_CONTEXT: usize = 6;

/// Incomplete characters are at most three bytes, each a token of its own at worst.
const MAX_INCOMPLETE: usize = 3;

/// Text of the tokens generated after a prompt. Bytes that are not yet a character are held back,
/// so
/// that the text only ever grows, and never ends with U+FFFD; as in vLLM, a dangling tail is
/// dropped.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    text: String,
    skip_special_tokens: bool,
    /// Context, then the tokens whose text is not out yet.
    window: Vec<u32>,
    /// How many tokens of the window are context.
    context: usize,
    /// Their text, decoded by themselves.
    context_text: String,
}

impl Detokenizer {
    /// A detokenizer for what follows a prompt.
    pub fn new(tokenizer: &Tokenizer, prompt_token_ids: &[u32], skip_special_tokens: bool) -> Self {
        let is_skipped = |id: u32| skip_special_tokens && tokenizer.is_special(id);
        let mut start = prompt_token_ids.len();
        let mut kept = 0;
        while start > 0 && kept < PROMPT_CONTEXT {
            start -= 1;
            kept += usize::from(!is_skipped(prompt_token_ids[start]));
        }
        // A run of byte tokens that starts inside a character would all decode to U+FFFD.
        while start > 0 && tokenizer.is_continuation_byte(prompt_token_ids[start]) {
            start -= 1;
        }
        let window = prompt_token_ids[start..].to_vec();
        let mut context = window.len();
        let mut context_text = decode(tokenizer, &window, skip_special_tokens);
        // A prompt that ends inside a character: the output completes it, as in vLLM.
        for cut in 1..=MAX_INCOMPLETE.min(window.len()) {
            if !context_text.ends_with('\u{FFFD}') {
                break;
            }
            let shorter = decode(tokenizer, &window[..window.len() - cut], skip_special_tokens);
            if !shorter.ends_with('\u{FFFD}') {
                (context, context_text) = (window.len() - cut, shorter);
            }
        }
        Self { text: String::new(), skip_special_tokens, window, context, context_text }
    }

    /// Appends a token: its text, and that of tokens before it that it completes.
    ///
    /// # Errors
    /// The decoder refuses the tokens.
    pub fn push(&mut self, tokenizer: &Tokenizer, token_id: u32) -> Result<(), TextError> {
        if self.skip_special_tokens && tokenizer.is_special(token_id) {
            return Ok(());
        }
        self.window.push(token_id);
        let decoded = tokenizer.decode(&self.window, self.skip_special_tokens)?;
        if decoded.ends_with('\u{FFFD}') || decoded.len() < self.context_text.len() {
            return Ok(());
        }
        // A prompt that ends with broken characters: the output may turn the last into another one.
        let context = self.context_text.as_str();
        let new = decoded
            .strip_prefix(context)
            .or_else(|| decoded.strip_prefix(context.trim_end_matches('\u{FFFD}')));
        match new {
            Some(new) => self.text.push_str(new),
            // The new tokens changed the text of the context: bytes that were a character have
            // become
            // part of an invalid run. What is out stays out (vLLM resets its stream).
            None => {
                let pending = &self.window[self.context..];
                let new = tokenizer.decode(pending, self.skip_special_tokens)?;
                if new.ends_with('\u{FFFD}') {
                    return Ok(());
                }
                self.text.push_str(&new);
            }
        }
        self.advance(tokenizer)
    }

    /// Appends what stands for a token that the tokenizer has no text of.
    pub fn push_mark(&mut self, mark: &str) {
        self.text.push_str(mark);
    }

    /// Makes the tokens whose text is out the context of the next.
    fn advance(&mut self, tokenizer: &Tokenizer) -> Result<(), TextError> {
        let mut pending = self.window[self.context..].to_vec();
        let mut text = tokenizer.decode(&pending, self.skip_special_tokens)?;
        // A token without text by itself (a lone space that decoders drop) is no context.
        if text.is_empty() {
            pending.clone_from(&self.window);
            text = tokenizer.decode(&pending, self.skip_special_tokens)?;
        }
        self.context = pending.len();
        self.window = pending;
        self.context_text = text;
        Ok(())
    }

    /// All text so far.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Decodes ids; ids that do not decode count as empty text.
fn decode(tokenizer: &Tokenizer, ids: &[u32], skip_special_tokens: bool) -> String {
    tokenizer.decode(ids, skip_special_tokens).unwrap_or_default()
}

#[cfg(test)]
mod tests;
