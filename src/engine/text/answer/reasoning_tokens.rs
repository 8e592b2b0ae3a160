//! How many tokens of an answer are its thinking (`usage.completion_tokens_details`).

use std::ops::Range;

use super::{AnswerForm, AnswerParser};
use crate::engine::text::{Detokenizer, TextError, Tokenizer};

impl AnswerParser {
    /// How many of an answer's tokens are its thinking, without the markers. A token counts that
    /// begins inside the thinking; vLLM counts none where the template wrote the start marker.
    ///
    /// # Errors
    /// The tokenizer refuses the tokens.
    pub fn reasoning_tokens(
        &self,
        token_ids: &[u32],
        tokenizer: &Tokenizer,
        form: &AnswerForm,
    ) -> Result<usize, TextError> {
        if self.reasoning_markers().is_none() {
            return Ok(0);
        }
        // Token `i` begins where the text of those before it ends.
        let mut begins = Vec::with_capacity(token_ids.len());
        let mut detokenizer = Detokenizer::new(tokenizer, &[], false);
        for id in token_ids {
            begins.push(detokenizer.text().len());
            detokenizer.push(tokenizer, *id)?;
        }
        let thinking = self.thinking(detokenizer.text(), form);
        let count = |part: &Range<usize>| {
            begins.partition_point(|at| *at < part.end)
                - begins.partition_point(|at| *at < part.start)
        };
        Ok(thinking.iter().map(count).sum())
    }
}
