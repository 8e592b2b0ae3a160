//! `InputProcessor`: prompt and parameters of a row to a validated, tokenized `Request` (vLLM's
//! input processor).

mod images;
mod known_texts;
mod media;
mod speech;
mod stops;

pub use images::ImageInput;
pub(super) use media::refuse_cut;
pub use media::{DecodedAhead, MediaInput, SoundInput};
pub use speech::SpeechInput;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::media_table::MediaTable;
use crate::plan::structured_output::{GrammarCompiler, Guidance, Thinking};
use crate::request::{Request, StopIds};
use vllm_batch_api::prompt::Prompt;
use vllm_batch_api::request::{
    Asked, Precedence, RequestError, RowKey, SamplingParams, SpeechParams,
};
use vllm_batch_api::sampling_params::{TruncationSide, UNLIMITED_LOGPROBS};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::{ModelConfig, Overflow};
use vllm_batch_base::run_date::RunDate;
use vllm_batch_checkpoint::hf_config::GenerationConfig;
use vllm_batch_text::{
    AnswerForm, AnswerParser, Chat, ChatEnding, ChatTemplate, RenderedChat, SaidOfThinking,
    TextError, Tokenizer, TypedTokens,
};

/// Why there is no request of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessError {
    /// The row cannot be answered: it becomes an error row.
    Row(RequestError),
    /// The machine lacks something now, which says nothing about the row: the run ends.
    Machine(String),
}

impl std::fmt::Display for ProcessError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ProcessError::Row(error) => error.fmt(f),
            ProcessError::Machine(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for ProcessError {}

impl ProcessError {
    /// What is wrong with the row.
    ///
    /// # Errors
    /// Nothing is: the machine refuses, which ends the run.
    pub fn of_row(self) -> Result<RequestError, EngineError> {
        match self {
            ProcessError::Row(error) => Ok(error),
            ProcessError::Machine(text) => Err(EngineError::Machine(text)),
        }
    }
}

impl From<RequestError> for ProcessError {
    fn from(error: RequestError) -> Self {
        ProcessError::Row(error)
    }
}

impl From<TextError> for ProcessError {
    fn from(error: TextError) -> Self {
        match error {
            TextError::Row { code, message } => RequestError::new(code, message).into(),
            TextError::Model(message) => RequestError::new("tokenize", message).into(),
            TextError::Machine(message) => ProcessError::Machine(message),
        }
    }
}

/// What the model can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelLimits {
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Longest prompt plus output, in tokens.
    pub max_model_len: usize,
}

/// Turns prompts into requests. Immutable, shared between threads; copies share what is large.
#[derive(Clone)]
pub struct InputProcessor {
    limits: ModelLimits,
    tokenizer: Arc<Tokenizer>,
    chat_template: Option<Arc<ChatTemplate>>,
    chat_date: RunDate,
    allow_special: bool,
    /// None: chats are as their template writes them.
    first_of_chats: Option<u32>,
    /// Media of requests that are under way; None: the model takes none.
    media_table: Option<Arc<MediaTable>>,
    /// None: the model takes none.
    images: Option<Arc<ImageInput>>,
    /// None: the model takes none in chats.
    sounds: Option<Arc<SoundInput>>,
    /// Of a model that writes down recordings.
    speech: Option<Arc<SpeechInput>>,
    /// A row is a text or one image, and the chat template writes either.
    writes_rows: bool,
    overflow: Overflow,
    generation_config: GenerationConfig,
    grammars: Arc<GrammarCompiler>,
    answer_parser: AnswerParser,
    /// How the model thinks, where the run knows it; without a budget.
    thinking: Option<Thinking>,
}

impl InputProcessor {
    /// Puts together what `Engine::load` has read. `generation_config` holds sampling defaults and
    /// all EOS ids.
    ///
    /// # Errors
    /// There is no parser of a name that the configuration gives.
    pub fn new(
        config: &ModelConfig,
        limits: ModelLimits,
        tokenizer: Tokenizer,
        chat_template: Option<ChatTemplate>,
        generation_config: GenerationConfig,
    ) -> Result<Self, EngineError> {
        let name = |parser: &Option<String>| parser.clone().unwrap_or_else(|| "none".to_owned());
        let answer_parser = AnswerParser::new(
            &name(&config.reasoning_parser),
            &name(&config.tool_call_parser),
            chat_template.as_ref().map(ChatTemplate::source),
        );
        let answer_parser = answer_parser.map_err(EngineError::Config)?;
        let tokenizer = Arc::new(tokenizer);
        let all_eos = generation_config.eos_token_ids.iter().copied();
        let mut eos_token_ids: Vec<u32> = tokenizer.eos_token_id().into_iter().collect();
        eos_token_ids.extend(all_eos.filter(|id| Some(*id) != tokenizer.eos_token_id()));
        Ok(Self {
            limits,
            grammars: Arc::new(GrammarCompiler::new(Arc::clone(&tokenizer), eos_token_ids)),
            thinking: thinking_of(&answer_parser, &tokenizer)?,
            answer_parser,
            tokenizer,
            chat_template: chat_template.map(Arc::new),
            chat_date: config.chat_date,
            allow_special: config.allow_special,
            first_of_chats: None,
            media_table: None,
            images: None,
            sounds: None,
            speech: None,
            writes_rows: false,
            overflow: config.overflow,
            generation_config,
        })
    }

    /// The same where chats begin with BOS, or with EOS where there is none, whatever templates
    /// write, if the model `begins` them so.
    pub fn with_begun_chats(self, begins: bool) -> Self {
        let first = || self.tokenizer.bos_token_id().or(self.tokenizer.eos_token_id());
        let first_of_chats = begins.then(first).flatten();
        Self { first_of_chats, ..self }
    }

    /// The same where a template writes all rows: each is a text or one image.
    ///
    /// # Errors
    /// It is none.
    pub fn with_rows_by(self, template: &str) -> Result<Self, EngineError> {
        let (bos, eos) = (self.tokenizer.bos_token(), self.tokenizer.eos_token());
        let template = ChatTemplate::new(template, bos, eos)
            .map_err(|error| EngineError::Model(error.to_string()))?;
        Ok(Self { chat_template: Some(Arc::new(template)), writes_rows: true, ..self })
    }

    /// The same for chats of another date: that of a run that began then, or of a request that
    /// comes long after the model was loaded.
    pub fn with_chat_date(&self, chat_date: RunDate) -> Self {
        Self { chat_date, ..self.clone() }
    }

    /// A text as a row that a template writes; None: texts are as they are.
    pub(super) fn as_row(&self, text: &str) -> Option<Prompt> {
        let chat = Chat {
            messages: json!([{"role": "user", "content": text}]),
            ending: ChatEnding::NewTurn,
            ..Chat::default()
        };
        self.writes_rows.then(|| Prompt::Messages(Box::new(chat)))
    }

    /// Tokenizes, checks against the model's limits, resolves stop ids.
    ///
    /// # Errors
    /// The row cannot be answered: the error says why, and becomes its output row. Or the machine
    /// lacks something, and no row is to blame.
    pub fn process(
        &self,
        request_id: u64,
        prompt: Prompt,
        params: SamplingParams,
        row_key: RowKey,
    ) -> Result<Request, ProcessError> {
        // The caller owns the machine, so vLLM's server-side cap of 20 logprobs does not apply.
        params.verify(self.limits.vocab_size, UNLIMITED_LOGPROBS)?;
        let params = params.normalized();
        if !matches!(prompt, Prompt::WithMedia(_)) {
            self.refuse_unheard()?;
        }
        let (prompt_token_ids, asked) = match prompt {
            Prompt::Choices(choices) => {
                params.verify_scores_texts("choices")?;
                self.choices(*choices)?
            }
            Prompt::Rolling(text) => {
                params.verify_scores_texts("the likelihood of a text")?;
                self.rolling(&text)?
            }
            prompt => return self.process_prompt(request_id, prompt, params, row_key),
        };
        Ok(Request {
            request_id,
            prompt_token_ids,
            media: Vec::new(),
            asked,
            stop_ids: StopIds::default(),
            bad_words_token_ids: Vec::new(),
            guidance: None,
            params: Arc::new(params),
            row_key,
            lora: None,
            eos_after: None,
            precedence: Precedence::default(),
        })
    }

    /// A prompt that is completed.
    fn process_prompt(
        &self,
        request_id: u64,
        prompt: Prompt,
        params: SamplingParams,
        row_key: RowKey,
    ) -> Result<Request, ProcessError> {
        let (said, goes_on) = match prompt.chat() {
            Some(chat) => {
                (SaidOfThinking::by_variables(&chat.kwargs), chat.ending == ChatEnding::OpenMessage)
            }
            None => (SaidOfThinking::default(), true),
        };
        let mut speech = None;
        let (prompt_token_ids, media) = match (prompt, &self.speech) {
            (Prompt::WithMedia(prompt), Some(input)) => {
                let (ids, media, asked) = self.spoken_prompt(input, *prompt, &params)?;
                speech = Some(asked);
                (ids, media)
            }
            (prompt, None)
                if prompt.chat().is_some() && params.speech != SpeechParams::default() =>
            {
                let message = "language, translate, return_timestamps: the model writes down no \
                               recordings; leave them out";
                return Err(RequestError::new("invalid_parameter", message).into());
            }
            (Prompt::WithMedia(prompt), None) => {
                refuse_cut(params.truncate_prompt_tokens)?;
                self.refuse_seen_prompt(&params)?;
                self.tokenize_with_media(*prompt, false, self.max_prompt_len(&params))?
            }
            (prompt, _) => (self.fit(self.tokenize(prompt, true)?, &params)?, Vec::new()),
        };
        let thinks =
            self.answer_parser.may_think(said) && !self.has_thought(&prompt_token_ids, goes_on);
        let guidance = match speech {
            None => self.guidance(&params, thinks)?,
            Some(_) => Some(Guidance { speech, ..Guidance::default() }),
        };
        Ok(Request {
            request_id,
            prompt_token_ids,
            media,
            asked: Asked::Completions,
            stop_ids: self.stop_ids(&params),
            bad_words_token_ids: self.bad_words_token_ids(&params)?,
            guidance,
            params: Arc::new(params),
            row_key,
            lora: None,
            eos_after: None,
            precedence: Precedence::default(),
        })
    }

    /// Refuses what no answer can be held to: a schema that does not compile, a budget of thinking
    /// where nobody knows how the model thinks.
    ///
    /// # Errors
    /// The message begins with the name of the parameter.
    pub fn check_guidance(&self, params: &SamplingParams) -> Result<(), RequestError> {
        self.guidance(params, true).map(drop)
    }

    /// Why the chat template takes no system message, where it takes a chat without one.
    pub fn refuses_system(&self, text: &str, kwargs: &Map<String, Value>) -> Option<String> {
        let chat = |messages| Chat {
            messages,
            ending: ChatEnding::NewTurn,
            tools: None,
            documents: None,
            kwargs: kwargs.clone(),
            num_media: 0,
        };
        let user = json!({"role": "user", "content": "a"});
        let system = json!({"role": "system", "content": text});
        self.chat_template.as_ref()?;
        self.render(&chat(json!([user]))).ok()?;
        match self.render(&chat(json!([system, user]))) {
            Err(ProcessError::Row(error)) => Some(error.message),
            Ok(_) | Err(_) => None,
        }
    }

    /// What splits the text of answers.
    pub fn answer_parser(&self) -> &AnswerParser {
        &self.answer_parser
    }

    /// The reasoning parser that the chat template asks for, where none is used.
    pub fn unused_reasoning_parser(&self) -> Option<&'static str> {
        let template = self.chat_template.as_deref().map(ChatTemplate::source);
        let fitting = AnswerParser::new("auto", "none", template).ok()?.names().0;
        (self.answer_parser.names().0 == "none" && fitting != "none").then_some(fitting)
    }

    /// How many of an answer's tokens are thinking.
    pub fn num_reasoning_tokens(&self, token_ids: &[u32], form: &AnswerForm) -> usize {
        // The engine has decoded these tokens, so they can be.
        self.answer_parser.reasoning_tokens(token_ids, &self.tokenizer, form).unwrap_or_default()
    }

    /// The model's sampling defaults; `max_tokens` is its `max_new_tokens`, else None.
    pub fn default_sampling_params(&self) -> SamplingParams {
        default_sampling_params(&self.generation_config)
    }

    /// Whether the model has a chat template, or needs none.
    pub fn has_chat_template(&self) -> bool {
        self.chat_template.is_some() || self.writes_down_sounds()
    }

    /// Whether the chat template mentions a variable.
    pub fn template_mentions(&self, name: &str) -> bool {
        self.chat_template.as_ref().is_some_and(|template| template.mentions(name))
    }

    /// Whether chat prompts show the date.
    pub fn shows_date(&self) -> bool {
        self.chat_template.as_deref().is_some_and(ChatTemplate::shows_date)
    }

    /// What becomes of a prompt that the context does not hold.
    pub fn overflow(&self) -> Overflow {
        self.overflow
    }

    /// Longest prompt plus output, in tokens.
    pub fn max_model_len(&self) -> usize {
        self.limits.max_model_len
    }

    /// Token ids of the model.
    pub fn vocab_size(&self) -> usize {
        self.limits.vocab_size
    }

    /// The text of a single token, for logprobs.
    pub fn token_text(&self, token_id: u32) -> String {
        self.tokenizer.token_text(token_id)
    }

    /// Whether a tokenized prompt begins with two BOS: its text had one already.
    pub fn begins_with_two_bos(&self, prompt_token_ids: &[u32]) -> bool {
        // Recordings are filled with it.
        let bos = self.tokenizer.bos_token_id().filter(|_| !self.writes_down_sounds());
        bos.is_some_and(|bos| prompt_token_ids.starts_with(&[bos, bos]))
    }

    /// The tokenizer, which the scheduler needs to detokenize.
    pub fn tokenizer(&self) -> Arc<Tokenizer> {
        Arc::clone(&self.tokenizer)
    }

    /// A text's tokens without special ones around them.
    pub fn tokenize_plain(&self, text: &str) -> Result<Vec<u32>, ProcessError> {
        Ok(self.tokenizer.encode(text, false)?)
    }

    /// Tokens of a prompt, checked against the vocabulary.
    ///
    /// `add_special_tokens`: around a text, such as BOS.
    pub fn tokenize(
        &self,
        prompt: Prompt,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, ProcessError> {
        let ids = match prompt {
            Prompt::Text(text) => self.tokenizer.encode(&text, add_special_tokens)?,
            Prompt::TokenIds(ids) => ids,
            Prompt::Messages(chat) => self.tokenize_chat(&chat)?,
            Prompt::Pair(_)
            | Prompt::Compared(_)
            | Prompt::Several(_)
            | Prompt::Choices(_)
            | Prompt::Rolling(_) => {
                let message = "several prompts, where a row has one: make a row of each";
                return Err(RequestError::new("several_prompts", message).into());
            }
            Prompt::WithMedia(_) => return Err(media::no_images().into()),
        };
        self.check_ids(&ids)?;
        Ok(ids)
    }

    /// Refuses tokens that the model has not, and no tokens at all.
    pub fn check_ids(&self, ids: &[u32]) -> Result<(), RequestError> {
        let vocab_size = self.limits.vocab_size;
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(RequestError::new(
                "invalid_prompt",
                format!("Token id {id} is out of vocabulary; the model has {vocab_size} tokens"),
            ));
        }
        match ids.is_empty() {
            true => Err(RequestError::new("empty_prompt", "The decoder prompt cannot be empty")),
            false => Ok(()),
        }
    }

    fn tokenize_chat(&self, chat: &Chat) -> Result<Vec<u32>, ProcessError> {
        Ok(self.begun(self.tokenizer.encode_chat(&self.render(chat)?)?))
    }

    /// The tokens of a chat behind the one that all chats begin with, if the model has one.
    fn begun(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let Some(first) = self.first_of_chats.filter(|first| ids.first() != Some(first)) {
            ids.insert(0, first);
        }
        ids
    }

    fn render(&self, chat: &Chat) -> Result<RenderedChat, ProcessError> {
        let Some(template) = &self.chat_template else {
            return Err(RequestError::new(
                "no_chat_template",
                "the model has no chat template; give one with `settings.chat_template` FILE, or rows with a \
                 `prompt` text",
            )
            .into());
        };
        let placeholders;
        let typed = match (self.allow_special, self.images.is_some() || self.sounds.is_some()) {
            (false, _) => TypedTokens::Text,
            (true, false) => TypedTokens::Control,
            (true, true) => {
                placeholders = self.placeholders();
                TypedTokens::ControlBut(&placeholders)
            }
        };
        Ok(chat.render(template, &self.tokenizer, self.chat_date, typed)?)
    }

    /// Longest prompt, in tokens: one of output must fit, where there is any.
    fn max_prompt_len(&self, params: &SamplingParams) -> usize {
        self.limits.max_model_len - usize::from(params.max_tokens != Some(0))
    }

    /// Applies `truncate_prompt_tokens`, then the context limit: one token of output must fit,
    /// where there is any.
    fn fit(&self, mut ids: Vec<u32>, params: &SamplingParams) -> Result<Vec<u32>, RequestError> {
        let max_model_len = self.limits.max_model_len;
        let limit = self.max_prompt_len(params);
        let least_answer = max_model_len - limit;
        if let Some(asked) = params.truncate_prompt_tokens {
            // Verified: -1 or at least 1.
            let keep = usize::try_from(asked).unwrap_or(limit);
            ids = truncated(ids, keep, params.truncation_side);
        }
        if ids.len() <= limit {
            return Ok(ids);
        }
        // Room for the answer that was asked for, but at least half of the context for the prompt.
        let answer = params.max_tokens.map_or(1, |max_tokens| max_tokens as usize);
        let room = max_model_len - answer.clamp(least_answer, max_model_len / 2);
        match self.overflow {
            Overflow::Error => Err(RequestError::new(
                "context_length",
                format!(
                    "prompt has {} tokens, the limit is {limit}{}; shorten it, or give `settings.overflow` \
                     truncate-left or truncate-right",
                    ids.len(),
                    match least_answer {
                        0 => String::new(),
                        _ => format!(" ({max_model_len} with at least one token of output)"),
                    }
                ),
            )),
            Overflow::TruncateLeft => Ok(truncated(ids, room, TruncationSide::Left)),
            Overflow::TruncateRight => Ok(truncated(ids, room, TruncationSide::Right)),
        }
    }

    /// Whether a prompt has ended the thinking. Its last end may be that of an earlier turn, unless
    /// the prompt goes on from there, or nothing but white space follows.
    fn has_thought(&self, prompt_token_ids: &[u32], goes_on: bool) -> bool {
        let thinking = self.thinking.as_ref();
        let after = thinking.and_then(|thinking| thinking.after_end(prompt_token_ids));
        after.is_some_and(|after| {
            let text = || self.tokenizer.decode(after, false);
            goes_on || text().is_ok_and(|text| text.trim().is_empty())
        })
    }

    /// What constrains the answers: a grammar, a budget of thinking, or nothing.
    fn guidance(
        &self,
        params: &SamplingParams,
        thinks: bool,
    ) -> Result<Option<Guidance>, RequestError> {
        let outputs = params.structured_outputs.as_ref();
        let grammar = outputs.map(|outputs| self.grammars.compile(outputs)).transpose()?;
        let budget = params.thinking_token_budget;
        let thinking = self
            .thinking
            .as_ref()
            .filter(|_| thinks)
            .map(|thinking| Thinking { budget, ..thinking.clone() });
        if budget.is_some() && self.thinking.is_none() {
            let message = "thinking_token_budget: the run does not know how the model thinks; name \
                           it with `settings.reasoning_parser`";
            return Err(RequestError::new("invalid_parameter", message));
        }
        let is_needed = grammar.is_some() || (budget.is_some() && thinking.is_some());
        Ok(is_needed.then_some(Guidance { grammar, thinking, speech: None }))
    }
}

/// Neutral sampling parameters with these values over them; `max_tokens` is `max_new_tokens`.
pub(crate) fn default_sampling_params(config: &GenerationConfig) -> SamplingParams {
    let neutral = SamplingParams::default();
    SamplingParams {
        temperature: config.temperature.unwrap_or(neutral.temperature),
        top_k: config.top_k.unwrap_or(neutral.top_k),
        top_p: config.top_p.unwrap_or(neutral.top_p),
        min_p: config.min_p.unwrap_or(neutral.min_p),
        repetition_penalty: config.repetition_penalty.unwrap_or(neutral.repetition_penalty),
        presence_penalty: config.presence_penalty.unwrap_or(neutral.presence_penalty),
        frequency_penalty: config.frequency_penalty.unwrap_or(neutral.frequency_penalty),
        max_tokens: config.max_new_tokens,
        ..neutral
    }
}

/// The tokens of the markers of thinking; None where the parser tells none.
fn thinking_of(
    parser: &AnswerParser,
    tokenizer: &Tokenizer,
) -> Result<Option<Thinking>, EngineError> {
    let Some((start, end)) = parser.reasoning_markers() else { return Ok(None) };
    let ids = |marker: &str| {
        let ids = tokenizer.encode_special(marker);
        ids.map_err(|error| EngineError::Model(error.to_string()))
    };
    Ok(Some(Thinking {
        start: ids(start)?,
        end: ids(end)?,
        is_optional: parser.may_answer_at_once(),
        budget: None,
    }))
}

/// At most `keep` token ids; the others are cut off at `side`.
fn truncated(mut ids: Vec<u32>, keep: usize, side: TruncationSide) -> Vec<u32> {
    match side {
        TruncationSide::Left => ids.split_off(ids.len().saturating_sub(keep)),
        TruncationSide::Right => {
            ids.truncate(keep);
            ids
        }
    }
}
