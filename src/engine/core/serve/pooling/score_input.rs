//! From what is compared to a `PoolingRequest`: each text or content by itself, or the two of every
//! score together.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::input::{Side, kept};
use super::request::{PoolingRequest, TextTokens};
use crate::serve::input_processor::{InputProcessor, ProcessError};
use vllm_batch_api::compared::{Compared, ScoreContent, ScoreInput, Scoring};
use vllm_batch_api::pooling::PoolingParams;
use vllm_batch_api::prompt::{Prompt, WithMedia};
use vllm_batch_api::request::{Precedence, RequestError};
use vllm_batch_text::{COMPARED, Chat, ChatEnding, longest_first};

impl InputProcessor {
    /// What is compared: each by itself, or the two of every score together.
    pub(super) fn process_compared(
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
                    move |input: &ScoreInput| self.input_to_pool(input, side, params)
                };
                let first = queries.len();
                let queries = queries.iter().map(text(Side::queries(&params)));
                let texts = queries.chain(documents.iter().map(text(Side::documents(&params))));
                let places = compared.pairs().map(|(query, document)| (query, first + document));
                (texts.collect::<Result<_, _>>()?, places.collect())
            }
            joint => {
                let pairs = compared.pairs();
                let pairs = pairs.map(|(query, other)| [&queries[query], &documents[other]]);
                let text = |pair| match joint {
                    Scoring::Template => self.templated(pair, compared.variables(), &params),
                    _ => self.pair_of_texts(pair, joint, &params),
                };
                (pairs.map(text).collect::<Result<_, _>>()?, Vec::new())
            }
        };
        let compared = Some(Arc::new(compared));
        let params = Arc::new(params);
        Ok(PoolingRequest {
            request_id,
            texts,
            comparisons,
            compared,
            params,
            lora: None,
            precedence: Precedence::default(),
        })
    }

    /// One text or content, as `embed` reads it. A content is a turn of a user where the model has
    /// chats with images; elsewhere, without images, it is its texts.
    fn input_to_pool(
        &self,
        input: &ScoreInput,
        side: Side<'_>,
        params: &PoolingParams,
    ) -> Result<TextTokens, ProcessError> {
        let content = match input {
            ScoreInput::Content(content) if input.has_images() || self.has_chats_with_images() => {
                content
            }
            text => {
                self.refuse_texts()?;
                return self.tokens_to_pool(Prompt::Text(text.text().into()), side, params);
            }
        };
        if side.max_tokens.is_some() {
            let message = "max_tokens_per_query and max_tokens_per_doc: a content of parts is not \
                           cut; leave them out";
            return Err(RequestError::new("invalid_parameter", message).into());
        }
        let ScoreContent { parts, media, .. } = content;
        let turn = json!({"role": "user", "content": parts});
        // An image that is read by itself has no words around it.
        let prompt = side.prompt.filter(|_| !self.reads_images_alone());
        let system = prompt.map(|prompt| json!({"role": "system", "content": prompt}));
        let chat = Chat {
            messages: system.into_iter().chain([turn]).collect(),
            ending: ChatEnding::NewTurn,
            ..Chat::default()
        };
        match media.is_empty() {
            false => self.chat_to_pool(WithMedia { chat, media: media.clone() }, false, params),
            true => self.tokens_to_pool(Prompt::Messages(Box::new(chat)), side, params),
        }
    }

    /// Two texts that are read together, without a template.
    fn pair_of_texts(
        &self,
        pair: [&ScoreInput; 2],
        scoring: Scoring,
        params: &PoolingParams,
    ) -> Result<TextTokens, ProcessError> {
        self.refuse_texts()?;
        if pair.iter().any(|input| input.has_images()) {
            let message = "the model reads a pair of texts, and the row has images; leave them \
                           out, or write pairs by a template (`settings.chat_template`) of a model \
                           that sees";
            return Err(RequestError::new("no_image_input", message).into());
        }
        let [query, document] = pair.map(ScoreInput::text);
        if scoring == Scoring::Joined {
            refuse_cuts(params)?;
            let text = Prompt::Text(query.into_owned() + &document);
            return self.tokens_to_pool(text, Side::alone(params), params);
        }
        self.pair_to_pool([&query, &document], params)
    }

    /// A pair as the chat template writes it, with the special tokens of a text around. A prompt is
    /// a turn before both, as in sentence-transformers.
    fn templated(
        &self,
        pair: [&ScoreInput; 2],
        variables: &Map<String, Value>,
        params: &PoolingParams,
    ) -> Result<TextTokens, ProcessError> {
        refuse_cuts(params)?;
        let turn = |role: &str, content: Value| json!({"role": role, "content": content});
        let prompt = params.prompt.as_deref().map(|prompt| turn("system", prompt.into()));
        let turns = COMPARED.into_iter().zip(pair);
        let turns = turns.map(|(role, input)| turn(role, input.content()));
        let chat = Chat {
            messages: prompt.into_iter().chain(turns).collect(),
            ending: ChatEnding::LastMessage,
            kwargs: variables.clone(),
            ..Chat::default()
        };
        if pair.iter().any(|input| input.has_images()) {
            let media = pair.map(ScoreInput::media).concat();
            return self.chat_to_pool(WithMedia { chat, media }, params.add_special_tokens, params);
        }
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
    pub(super) fn pair_to_pool(
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
