//! From prompts to a `PoolingRequest`: tokens, the model's prompt before them, cut where that was
//! asked for. `score_input` has those that are compared.

use std::sync::Arc;

use super::request::{PoolingRequest, TextTokens};
use crate::serve::input_processor::{InputProcessor, ProcessError, refuse_cut};
use vllm_batch_api::pooling::PoolingParams;
use vllm_batch_api::prompt::{Prompt, WithMedia};
use vllm_batch_api::request::{Precedence, RequestError};
use vllm_batch_api::sampling_params::TruncationSide;
use vllm_batch_base::config::Overflow;

/// What of `PoolingParams` is about one of two sides that are compared.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    /// Stands before its texts.
    pub prompt: Option<&'a str>,
    /// Tokens of a text at most, special ones not counted.
    pub max_tokens: Option<usize>,
}

impl<'a> Side<'a> {
    /// Of texts that are not compared.
    pub(super) fn alone(params: &'a PoolingParams) -> Self {
        Self { max_tokens: None, ..Self::queries(params) }
    }

    pub(super) fn queries(params: &'a PoolingParams) -> Self {
        Self { prompt: params.prompt.as_deref(), max_tokens: params.max_tokens_per_query }
    }

    pub(super) fn documents(params: &'a PoolingParams) -> Self {
        Self { prompt: params.document_prompt.as_deref(), max_tokens: params.max_tokens_per_doc }
    }
}

impl InputProcessor {
    /// Tokenizes texts and checks their lengths. A text that is cut keeps its special tokens.
    ///
    /// # Errors
    /// The row cannot be answered, or the machine lacks something, and no row is to blame.
    pub fn process_pooling(
        &self,
        request_id: u64,
        prompt: Prompt,
        params: PoolingParams,
    ) -> Result<PoolingRequest, ProcessError> {
        let prompts = match prompt {
            Prompt::Compared(compared) => {
                return self.process_compared(request_id, *compared, params);
            }
            Prompt::Several(prompts) => prompts,
            one => vec![one],
        };
        if prompts.is_empty() {
            return Err(RequestError::new("empty_prompt", "there is no text in it").into());
        }
        let texts = prompts.into_iter().map(|prompt| match prompt {
            Prompt::WithMedia(prompt) => self.chat_to_pool(*prompt, false, &params),
            one => self.text_to_pool(one, &params),
        });
        let texts = texts.collect::<Result<_, _>>()?;
        Ok(PoolingRequest {
            request_id,
            texts,
            comparisons: Vec::new(),
            compared: None,
            params: Arc::new(params),
            lora: None,
            precedence: Precedence::default(),
        })
    }

    /// One text, or a pair that is read together.
    fn text_to_pool(
        &self,
        prompt: Prompt,
        params: &PoolingParams,
    ) -> Result<TextTokens, ProcessError> {
        self.refuse_texts()?;
        match prompt {
            Prompt::Pair([first, second]) => self.pair_to_pool([&first, &second], params),
            one => self.tokens_to_pool(one, Side::alone(params), params),
        }
    }

    /// A chat with images in it. `add_special_tokens`: around what its template writes.
    pub(super) fn chat_to_pool(
        &self,
        prompt: WithMedia,
        add_special_tokens: bool,
        params: &PoolingParams,
    ) -> Result<TextTokens, ProcessError> {
        refuse_cut(params.truncate_prompt_tokens)?;
        let limit = self.max_model_len();
        let (ids, media) = self.tokenize_with_media(prompt, add_special_tokens, limit)?;
        Ok(TextTokens { media, ..ids.into() })
    }

    pub(super) fn tokens_to_pool(
        &self,
        prompt: Prompt,
        side: Side<'_>,
        params: &PoolingParams,
    ) -> Result<TextTokens, ProcessError> {
        let (prompt, text) = match prompt {
            Prompt::Text(text) => {
                let text = side.prompt.unwrap_or_default().to_owned() + &text;
                match self.as_row(&text) {
                    Some(row) => (row, None),
                    None => (Prompt::Text(text.clone()), Some(text)),
                }
            }
            other => (other, None),
        };
        let mut num_skipped = match &text {
            Some(_) if !params.include_prompt => self.num_prompt_tokens(side, params)?,
            _ => 0,
        };
        let mut ids = self.tokenize(prompt, params.add_special_tokens)?;
        let (keep, cut_side) = self.keep(params);
        let is_long = |ids: &[u32], most: Option<usize>| most.is_some_and(|most| ids.len() > most);
        if is_long(&ids, side.max_tokens) || is_long(&ids, keep) {
            let mut plain = match (text, params.add_special_tokens) {
                (Some(text), true) => self.tokenize_plain(&text)?,
                _ => ids.clone(),
            };
            if let Some(most) = side.max_tokens.filter(|most| plain.len() > *most) {
                let num_special = ids.len().saturating_sub(plain.len());
                ids = cut(&ids, &plain, most + num_special, TruncationSide::Right);
                plain.truncate(most);
            }
            if let Some(keep) = keep.filter(|keep| ids.len() > *keep) {
                let num_tokens = ids.len();
                ids = cut(&ids, &plain, keep, cut_side);
                if cut_side == TruncationSide::Left {
                    num_skipped = num_skipped.saturating_sub(num_tokens - ids.len());
                }
            }
        }
        self.check_length(ids.len(), "the text has")?;
        if num_skipped >= ids.len() {
            let message = "nothing is left of the text behind its prompt, which does not count";
            return Err(RequestError::new("empty_prompt", message).into());
        }
        Ok(TextTokens { num_skipped, ..ids.into() })
    }

    /// Tokens of the prompt alone, with special ones before it and none behind it: what
    /// sentence-transformers leaves out.
    fn num_prompt_tokens(
        &self,
        side: Side<'_>,
        params: &PoolingParams,
    ) -> Result<usize, ProcessError> {
        let Some(prompt) = side.prompt else { return Ok(0) };
        let plain = self.tokenize_plain(prompt)?;
        if !params.add_special_tokens {
            return Ok(plain.len());
        }
        let ids = self.tokenize(Prompt::Text(prompt.to_owned()), true)?;
        let place = place_of(&plain, &ids);
        Ok(place.map_or(ids.len(), |at| at + plain.len()))
    }

    /// How many tokens of a text stay, where it is to be cut, and which.
    pub(super) fn keep(&self, params: &PoolingParams) -> (Option<usize>, TruncationSide) {
        let max_len = self.max_model_len();
        match (params.truncate_prompt_tokens, self.overflow()) {
            (Some(asked), _) => {
                let asked = usize::try_from(asked).unwrap_or(max_len);
                (Some(asked.min(max_len)), params.truncation_side)
            }
            (None, Overflow::TruncateLeft) => (Some(max_len), TruncationSide::Left),
            (None, Overflow::TruncateRight) => (Some(max_len), TruncationSide::Right),
            (None, Overflow::Error) => (None, TruncationSide::Right),
        }
    }

    /// Refuses what the model does not take; `what`: the beginning of the message.
    pub(super) fn check_length(&self, num_tokens: usize, what: &str) -> Result<(), RequestError> {
        let max_len = self.max_model_len();
        match num_tokens > max_len {
            true => Err(RequestError::new(
                "context_length",
                format!(
                    "{what} {num_tokens} tokens, the limit is {max_len}; shorten it, or give \
                     `settings.truncate_prompt_tokens` -1"
                ),
            )),
            false => Ok(()),
        }
    }
}

/// Where the tokens of a text are among those with special ones around them.
fn place_of(plain: &[u32], ids: &[u32]) -> Option<usize> {
    (0..=ids.len().saturating_sub(plain.len())).find(|&at| ids[at..].starts_with(plain))
}

/// At most `keep` tokens of a text: of `plain`, what it is without special tokens, one end is left
/// out; what stands around it in `ids` stays.
fn cut(ids: &[u32], plain: &[u32], keep: usize, side: TruncationSide) -> Vec<u32> {
    let num_special = ids.len().saturating_sub(plain.len());
    let place = place_of(plain, ids);
    let (before, plain, after) = match place {
        Some(at) if num_special <= keep => (&ids[..at], plain, &ids[at + plain.len()..]),
        // The tokens are not the text's with others around them.
        _ => (&[][..], ids, &[][..]),
    };
    let room = keep - before.len() - after.len();
    [before, kept(plain, room, side), after].concat()
}

/// The first tokens of a text, or the last ones.
pub(super) fn kept(ids: &[u32], length: usize, side: TruncationSide) -> &[u32] {
    match side {
        TruncationSide::Left => &ids[ids.len().saturating_sub(length)..],
        TruncationSide::Right => &ids[..length.min(ids.len())],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_tokens_stay_where_a_text_is_cut() {
        let (ids, plain) = ([101, 5, 6, 7, 8, 102], [5, 6, 7, 8]);
        let cut = |keep, side| cut(&ids, &plain, keep, side);
        assert_eq!(cut(4, TruncationSide::Right), [101, 5, 6, 102]);
        assert_eq!(cut(4, TruncationSide::Left), [101, 7, 8, 102]);
        assert_eq!(cut(2, TruncationSide::Right), [101, 102]);
        assert_eq!(cut(1, TruncationSide::Right), [101], "there is no room for the special ones");
        assert_eq!(super::cut(&ids, &ids, 3, TruncationSide::Left), [7, 8, 102]);
    }
}
