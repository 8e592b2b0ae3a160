//! From prompts to a `PoolingRequest`: tokens, the model's prompt before them, cut where that was
//! asked for.

use std::sync::Arc;

use super::{PoolingParams, PoolingRequest};
use crate::engine::config::Overflow;
use crate::engine::input_processor::{InputProcessor, ProcessError, Prompt};
use crate::engine::request::RequestError;
use crate::engine::sampling_params::TruncationSide;

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
            Prompt::Several(prompts) => prompts,
            one => vec![one],
        };
        if prompts.is_empty() {
            return Err(RequestError::new("empty_prompt", "there is no text in it").into());
        }
        let texts = prompts.into_iter().map(|prompt| self.tokens_to_pool(prompt, &params));
        let texts = texts.collect::<Result<Vec<_>, _>>()?;
        let (texts, num_skipped) = texts.into_iter().unzip();
        Ok(PoolingRequest { request_id, texts, num_skipped, params: Arc::new(params) })
    }

    /// Tokens of a text, and how many of them its pooling leaves out.
    fn tokens_to_pool(
        &self,
        prompt: Prompt,
        params: &PoolingParams,
    ) -> Result<(Vec<u32>, usize), ProcessError> {
        let max_len = self.max_model_len();
        let (keep, side) = match (params.truncate_prompt_tokens, self.overflow()) {
            (Some(asked), _) => {
                let asked = usize::try_from(asked).unwrap_or(max_len);
                (Some(asked.min(max_len)), params.truncation_side)
            }
            (None, Overflow::TruncateLeft) => (Some(max_len), TruncationSide::Left),
            (None, Overflow::TruncateRight) => (Some(max_len), TruncationSide::Right),
            (None, Overflow::Error) => (None, TruncationSide::Right),
        };
        let (prompt, text) = match prompt {
            Prompt::Text(text) => {
                let text = params.prompt.as_deref().unwrap_or_default().to_owned() + &text;
                (Prompt::Text(text.clone()), Some(text))
            }
            other => (other, None),
        };
        let skipped = match &text {
            Some(_) if !params.include_prompt => self.num_prompt_tokens(params)?,
            _ => 0,
        };
        let ids = self.tokenize(prompt, params.add_special_tokens)?;
        match keep {
            Some(keep) if ids.len() > keep => {
                let plain = match (text, params.add_special_tokens) {
                    (Some(text), true) => self.tokenize_plain(&text)?,
                    _ => ids.clone(),
                };
                let kept = cut(&ids, &plain, keep, side);
                let skipped = match side {
                    TruncationSide::Left => skipped.saturating_sub(ids.len() - kept.len()),
                    TruncationSide::Right => skipped,
                };
                behind_prompt(kept, skipped)
            }
            _ if ids.len() > max_len => Err(RequestError::new(
                "context_length",
                format!(
                    "the text has {} tokens, the limit is {max_len}; shorten it, or give \
                     --truncate-prompt-tokens -1",
                    ids.len()
                ),
            )
            .into()),
            _ => behind_prompt(ids, skipped),
        }
    }

    /// Tokens of the prompt alone, with special ones before it and none behind it: what
    /// sentence-transformers leaves out.
    fn num_prompt_tokens(&self, params: &PoolingParams) -> Result<usize, ProcessError> {
        let Some(prompt) = &params.prompt else { return Ok(0) };
        let plain = self.tokenize_plain(prompt)?;
        if !params.add_special_tokens {
            return Ok(plain.len());
        }
        let ids = self.tokenize(Prompt::Text(prompt.to_string()), true)?;
        let place = place_of(&plain, &ids);
        Ok(place.map_or(ids.len(), |at| at + plain.len()))
    }
}

/// Tokens of which the first are left out.
fn behind_prompt(ids: Vec<u32>, skipped: usize) -> Result<(Vec<u32>, usize), ProcessError> {
    match skipped < ids.len() {
        true => Ok((ids, skipped)),
        false => {
            let message = "nothing is left of the text behind its prompt, which does not count";
            Err(RequestError::new("empty_prompt", message).into())
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
    let kept = match side {
        TruncationSide::Left => &plain[plain.len().saturating_sub(room)..],
        TruncationSide::Right => &plain[..room.min(plain.len())],
    };
    [before, kept, after].concat()
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
