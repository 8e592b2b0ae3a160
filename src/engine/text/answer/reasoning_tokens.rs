//! Number of tokens of an answer's thinking (`usage.completion_tokens_details`).

use std::ops::Range;

use super::{AnswerForm, AnswerParser};
use crate::{Detokenizer, TextError, Tokenizer};

impl AnswerParser {
    /// Number of an answer's tokens in its thinking, without the markers. A token counts that
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::SaidOfThinking;
    use super::*;

    /// Parts of an answer, and how many tokens the thinking of all has.
    fn count(reasoning: &str, form: &AnswerForm, parts: &[&str]) -> (usize, Vec<usize>) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../testdata/demo");
        let tokenizer = Tokenizer::from_dir(&folder).expect("a tokenizer");
        let encode = |text: &&str| tokenizer.encode(text, false).expect("ids");
        let ids: Vec<Vec<u32>> = parts.iter().map(encode).collect();
        let parser = AnswerParser::new(reasoning, "none", None).expect("a known name");
        let counted = parser.reasoning_tokens(&ids.concat(), &tokenizer, form).expect("a count");
        (counted, ids.iter().map(Vec::len).collect())
    }

    #[test]
    fn tokens_between_markers_of_several_tokens_are_counted() {
        let form = AnswerForm::default();
        let (counted, lens) = count("qwen3", &form, &["<think>", "one two", "</think>", "three"]);
        assert!(lens[0] > 1 && lens[2] > 1, "the markers are several tokens: {lens:?}");
        assert_eq!(counted, lens[1]);
        // The template wrote the start.
        let (counted, lens) = count("deepseek_r1", &form, &["one two", "</think>", "three"]);
        assert_eq!(counted, lens[0]);
        // Cut by the length.
        let (counted, lens) = count("qwen3", &form, &["one two"]);
        assert_eq!(counted, lens[0]);
    }

    #[test]
    fn an_answer_without_thinking_has_none() {
        let form =
            AnswerForm { thinking: SaidOfThinking::switched(Some(false)), ..AnswerForm::default() };
        assert_eq!(count("qwen3", &form, &["one two"]).0, 0);
        assert_eq!(count("none", &AnswerForm::default(), &["one", "</think>", "two"]).0, 0);
    }

    #[test]
    fn thinking_in_channels_is_counted() {
        let parts = ["<|channel|>analysis<|message|>", "one two", "<|end|>", "three"];
        let (counted, lens) = count("openai_gptoss", &AnswerForm::default(), &parts);
        assert_eq!(counted, lens[1]);
    }
}
