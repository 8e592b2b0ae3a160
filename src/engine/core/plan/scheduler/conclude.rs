//! The end of a completion whose form was asked for: whether it has that form.

use crate::plan::completion::detokenize_error;
use crate::plan::structured_output::Guide;
use vllm_batch_api::request::{CompletionOutput, FinishReason, StopReason};
use vllm_batch_text::Tokenizer;

/// The tokens of an output.
pub(super) struct Tokens<'a> {
    /// All of them.
    pub all: &'a [u32],
    /// At the end, those that only say that it ends.
    pub num_hidden: usize,
}

/// Says of an output whether it has the form that was asked of it. `is_cut`: a stop string is taken
/// off its text.
pub(super) fn conclude(
    guide: &mut Guide,
    output: &mut CompletionOutput,
    tokens: Tokens,
    is_cut: bool,
    tokenizer: Option<&Tokenizer>,
) {
    guide.catch_up(tokens.all);
    output.is_complete = match (is_cut, tokenizer) {
        (true, Some(tokenizer)) => {
            let token_ids = tokenizer.encode_inside(&output.text);
            token_ids.is_ok_and(|token_ids| guide.matches(&token_ids))
        }
        _ => guide.is_complete(),
    };
    if output.finish_reason != FinishReason::Stop {
        return;
    }
    if !output.is_complete {
        output.finish_reason = FinishReason::Incomplete;
        return;
    }
    let Some(tokenizer) = tokenizer else { return };
    let ends_in_text = matches!(output.stop_reason, Some(StopReason::Text(_)));
    let error = if ends_in_text && guide.answer_start() == 0 {
        guide.mismatch(&output.text)
    } else {
        let end = tokens.all.len() - tokens.num_hidden;
        let answer = &tokens.all[guide.answer_start().min(end)..end];
        let text = tokenizer.decode(answer, true).map_err(detokenize_error);
        text.map_or_else(Some, |text| guide.mismatch(&text))
    };
    if error.is_some() {
        output.finish_reason = FinishReason::Error;
        output.error = error;
    }
}
