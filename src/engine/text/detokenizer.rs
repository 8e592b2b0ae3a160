//! Ids to text, one at a time (placeholder until branch `text` is merged).

use super::{TextError, Tokenizer};

/// The text of a growing list of tokens.
#[derive(Debug)]
pub struct Detokenizer {
    token_ids: Vec<u32>,
    skip_special: bool,
    text: String,
}

impl Detokenizer {
    /// Starts after a prompt.
    pub fn new(_tokenizer: &Tokenizer, _prompt_token_ids: &[u32], skip_special: bool) -> Self {
        Self { token_ids: Vec::new(), skip_special, text: String::new() }
    }

    /// Appends a token.
    ///
    /// # Errors
    /// The decoder failed.
    pub fn push(&mut self, tokenizer: &Tokenizer, token_id: u32) -> Result<(), TextError> {
        self.token_ids.push(token_id);
        self.text = tokenizer.decode(&self.token_ids, self.skip_special)?;
        Ok(())
    }

    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }
}
