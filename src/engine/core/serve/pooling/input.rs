//! From prompts to a `PoolingRequest`: tokens, the model's prompt before them, cut where that was
//! asked for.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::request::{PoolingRequest, TextTokens};
use crate::serve::input_processor::{InputProcessor, ProcessError, refuse_cut};
use vllm_batch_api::compared::{Compared, Scoring};
use vllm_batch_api::pooling::PoolingParams;
use vllm_batch_api::prompt::{Prompt, WithMedia};
use vllm_batch_api::request::RequestError;
use vllm_batch_api::sampling_params::TruncationSide;
use vllm_batch_base::config::Overflow;
use vllm_batch_text::{Chat, ChatEnding, longest_first};

/// What of `PoolingParams` is about one of two sides that are compared.
#[derive(Clone, Copy)]
struct Side<'a> {
    /// Stands before its texts.
    prompt: Option<&'a str>,
    /// Tokens of a text at most, special ones not counted.
    max_tokens: Option<usize>,
}

impl<'a> Side<'a> {
    /// Of texts that are not compared.
    fn alone(params: &'a PoolingParams) -> Self {
        Self { max_tokens: None, ..Self::queries(params) }
    }

    fn queries(params: &'a PoolingParams) -> Self {
        Self { prompt: params.prompt.as_deref(), max_tokens: params.max_tokens_per_query }
    }

    fn documents(params: &'a PoolingParams) -> Self {
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
                self.refuse_texts()?;
                return self.process_compared(request_id, *compared, params);
            }
            Prompt::Several(prompts) => prompts,
            one => vec![one],
        };
        if prompts.is_empty() {
            return Err(RequestError::new("empty_prompt", "there is no text in it").into());
        }
        let texts = prompts.into_iter().map(|prompt| match prompt {
            Prompt::WithMedia(prompt) => self.chat_to_pool(*prompt, &params),
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

    /// Texts that are compared: each by itself, or the two of every score together.
    fn process_compared(
        &self,
        request_id: u64,
        compared: Compared,
        params: PoolingParams,
    ) -> Result<PoolingRequest, ProcessError> {
        let (queries, documents) = (compared.queries(), compared.documents());
        let (texts, comparisons) = match params.scoring {
            Scoring::Vectors(_) => {
                let text = |side| {
                    let params = &params;
                    move |text: &String| {
                        self.tokens_to_pool(Prompt::Text(text.clone()), side, params)
                    }
                };
                let queries = queries.iter().map(text(Side::queries(&params)));
                let texts = queries.chain(documents.iter().map(text(Side::documents(&params))));
                let first = compared.queries().len();
                let places = compared.pairs().map(|(query, document)| (query, first + document));
                (texts.collect::<Result<_, _>>()?, places.collect())
            }
            Scoring::Pair => {
                let texts = compared.pairs().map(|(query, document)| {
                    self.pair_to_pool([&queries[query], &documents[document]], &params)
                });
                (texts.collect::<Result<_, _>>()?, Vec::new())
            }
            Scoring::Joined => {
                let texts = compared.pairs().map(|(query, document)| {
                    refuse_cuts(&params)?;
                    let text = queries[query].clone() + &documents[document];
                    self.tokens_to_pool(Prompt::Text(text), Side::alone(&params), &params)
                });
                (texts.collect::<Result<_, _>>()?, Vec::new())
            }
            Scoring::Template => {
                let texts = compared.pairs().map(|(query, document)| {
                    let texts = [&*queries[query], &*documents[document]];
                    self.templated(texts, compared.variables(), &params)
                });
                (texts.collect::<Result<_, _>>()?, Vec::new())
            }
        };
        let compared = Some(Arc::new(compared));
        let params = Arc::new(params);
        Ok(PoolingRequest { request_id, texts, comparisons, compared, params, lora: None })
    }

    /// Two texts as the chat template writes them, with the special tokens of a text around. A
    /// prompt is a turn before them, as in sentence-transformers.
    fn templated(
        &self,
        [query, document]: [&str; 2],
        variables: &Map<String, Value>,
        params: &PoolingParams,
    ) -> Result<TextTokens, ProcessError> {
        refuse_cuts(params)?;
        let turn = |role: &str, text: &str| json!({"role": role, "content": text});
        let prompt = params.prompt.as_deref().map(|prompt| turn("system", prompt));
        let pair = [turn("query", query), turn("document", document)];
        let messages = prompt.into_iter().chain(pair).collect();
        let chat = Chat {
            messages,
            ending: ChatEnding::LastMessage,
            kwargs: variables.clone(),
            ..Chat::default()
        };
        let mut ids = self.tokenize(Prompt::Messages(Box::new(chat)), false)?;
        if params.add_special_tokens {
            ids = self.tokenizer().with_special_tokens(&ids);
        }
        let (keep, side) = self.keep(params);
        let ids = kept(&ids, keep.unwrap_or(usize::MAX), side).to_vec();
        self.check_length(ids.len(), "the two texts have")?;
        Ok(ids.into())
    }

    /// Two texts as the tokenizer puts them together. A prompt stands before the first, as in
    /// sentence-transformers.
    fn pair_to_pool(
        &self,
        texts: [&str; 2],
        params: &PoolingParams,
    ) -> Result<TextTokens, ProcessError> {
        let [first, second] = texts;
        let first = params.prompt.as_deref().unwrap_or_default().to_owned() + first;
        let mut ids = [Vec::new(), Vec::new()];
        for ((text, side), ids) in [&*first, second]
            .iter()
            .zip([Side::queries(params), Side::documents(params)])
            .zip(&mut ids)
        {
            *ids = self.tokenize_plain(text)?;
            ids.truncate(side.max_tokens.unwrap_or(usize::MAX));
        }
        let template = self.tokenizer().pair_template();
        let num_special = if params.add_special_tokens { template.num_special() } else { 0 };
        let lengths = ids.each_ref().map(Vec::len);
        let num_tokens = lengths[0] + lengths[1] + num_special;
        let (keep, side) = self.keep(params);
        if keep.is_none() {
            self.check_length(num_tokens, "the two texts have")?;
        }
        let room = keep.map_or(usize::MAX, |keep| keep.saturating_sub(num_special));
        let [first, second] = longest_first(lengths, room);
        let texts = [kept(&ids[0], first, side), kept(&ids[1], second, side)];
        let (ids, types) = template.join(texts, params.add_special_tokens);
        self.check_ids(&ids)?;
        // A limit below the number of special tokens.
        self.check_length(ids.len(), "the two texts have")?;
        Ok(TextTokens { ids, types, ..TextTokens::default() })
    }

    /// A chat with images in it.
    fn chat_to_pool(
        &self,
        prompt: WithMedia,
        params: &PoolingParams,
    ) -> Result<TextTokens, ProcessError> {
        refuse_cut(params.truncate_prompt_tokens)?;
        let (ids, media) = self.tokenize_with_media(prompt, self.max_model_len())?;
        Ok(TextTokens { media, ..ids.into() })
    }

    fn tokens_to_pool(
        &self,
        prompt: Prompt,
        side: Side<'_>,
        params: &PoolingParams,
    ) -> Result<TextTokens, ProcessError> {
        let (prompt, text) = match prompt {
            Prompt::Text(text) => {
                let text = side.prompt.unwrap_or_default().to_owned() + &text;
                (Prompt::Text(text.clone()), Some(text))
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
    fn keep(&self, params: &PoolingParams) -> (Option<usize>, TruncationSide) {
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
    fn check_length(&self, num_tokens: usize, what: &str) -> Result<(), RequestError> {
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

/// Refuses limits of either text, of texts that are read as one.
fn refuse_cuts(params: &PoolingParams) -> Result<(), RequestError> {
    if params.max_tokens_per_query.or(params.max_tokens_per_doc).is_none() {
        return Ok(());
    }
    let message = "max_tokens_per_query and max_tokens_per_doc: the model reads both texts as \
                   one, which is not cut by either; give truncate_prompt_tokens";
    Err(RequestError::new("invalid_parameter", message))
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
fn kept(ids: &[u32], length: usize, side: TruncationSide) -> &[u32] {
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
