//! The engine of models that make vectors or classes of a text: vLLM's pooling runner. Texts go
//! through the body of a model together, whole or in pieces; a pooler, and a head if the model has
//! one, make of each what is asked for.

mod body;
mod cached_texts;
mod dense;
mod input;
mod layer_file;
mod lexical;
mod listed_module;
mod loading;
mod module_keys;
mod modules;
mod pictures;
mod pooler;
mod pooling_type;
mod request;
mod row_words;
mod score_input;
mod shared_texts;
mod sight;
mod sparse_spec;
mod splade;
mod summary;
mod task;
mod text_queue;
mod whole_texts;

pub use layer_file::{LEXICAL_LAYER, TOKEN_LAYER};
pub use listed_module::{ListedModule, MODULES};
pub use modules::{PROMPTS, Prompts, TRANSFORMER_FILES};
pub use pooling_type::Pooling;
pub use request::{PoolingRequest, TextTokens};
pub use sparse_spec::{SparseSpec, SpladeSpec};
pub use summary::PoolingSummary;
pub use vllm_batch_checkpoint::encoders::{ClassActivation, Classifier};

use std::collections::HashMap;
use std::sync::Arc;

use super::input_processor::InputProcessor;
use crate::load::text_alone::text_alone;
use crate::stats::EngineStats;
use crate::{
    EngineInfo, beside_tokenizer, image_processor_alone, load_input_processor, with_media,
};
use body::{Body, Text};
use loading::{Devices, Loaded, load_model};
use pooler::{Pooler, Sparse};
use shared_texts::{Known, Reader, SharedTexts, TextKey};
use vllm_batch_api::compared::{Compared, Scoring};
use vllm_batch_api::pooling::{Pooled, PoolingOutput, PoolingParams};
use vllm_batch_api::request::RequestError;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::EngineConfig;
use vllm_batch_base::files::quoted;
use vllm_batch_base::pooling::ClassToken;
use vllm_batch_checkpoint::spec::TextEnd;
use vllm_batch_text::Tokenizer;

/// A model, and the requests that wait for it.
pub struct PoolingEngine {
    devices: Devices,
    body: Body,
    pooler: Pooler,
    input_processor: Arc<InputProcessor>,
    info: EngineInfo,
    /// Requests with texts that wait.
    unfinished: HashMap<u64, Unfinished>,
    /// Texts that are compared.
    shared: SharedTexts,
    /// Requests whose vectors were there when they came.
    finished: Vec<PoolingOutput>,
    /// A text has a number for each of its steps.
    scores_steps: bool,
    /// A token that ends every text.
    end_token_id: Option<u32>,
    /// Where a text ends, and what it is filled up with.
    ends_at: Option<(TextEnd, Option<u32>)>,
    /// Tokens of all requests that ever came.
    num_prompt_tokens: u64,
}

/// What became of a text.
type Outcome = Result<Arc<Pooled>, RequestError>;

/// A request with what is there of its texts.
struct Unfinished {
    params: Arc<PoolingParams>,
    comparisons: Vec<(usize, usize)>,
    compared: Option<Arc<Compared>>,
    num_prompt_tokens: usize,
    texts: Vec<Option<Outcome>>,
    num_missing: usize,
}

impl PoolingEngine {
    /// Loads model, tokenizer and the modules that say what texts become.
    ///
    /// # Errors
    /// Model files are missing, corrupt or unsupported, the device cannot be used, or memory does
    /// not suffice.
    pub fn load(config: &EngineConfig) -> Result<Self, EngineError> {
        Self::load_summarized(config, &PoolingSummary::read(&config.model)?)
    }

    /// The same for a model whose small files were read before, with the same configuration.
    ///
    /// # Errors
    /// As `load`.
    pub fn load_summarized(
        config: &EngineConfig,
        summary: &PoolingSummary,
    ) -> Result<Self, EngineError> {
        Self::load_with(config, summary, None)
    }

    /// The same with the tokenizer of another engine of the model, if there is one.
    ///
    /// # Errors
    /// As `load`.
    pub fn load_with(
        config: &EngineConfig,
        summary: &PoolingSummary,
        processor: Option<Arc<InputProcessor>>,
    ) -> Result<Self, EngineError> {
        let parts = summary.cached().zip(summary.tower.as_ref());
        let note =
            parts.and_then(|(decoder, tower)| text_alone(config, (&decoder, tower), summary.dtype));
        let Some(note) = note else {
            return Self::load_whole(config, summary, processor);
        };
        let of_text = PoolingSummary { tower: None, ..summary.clone() };
        let mut engine = Self::load_whole(config, &of_text, processor)?;
        engine.info.notes.push(note);
        Ok(engine)
    }

    fn load_whole(
        config: &EngineConfig,
        summary: &PoolingSummary,
        processor: Option<Arc<InputProcessor>>,
    ) -> Result<Self, EngineError> {
        summary.sides(config).check()?;
        let max_model_len = summary.max_model_len;
        let sizes = summary.step_sizes(config);
        let load_processor = || load_processor(config, summary).map(Arc::new);
        let tokens = summary.named_tokens();
        let (input_processor, model) = match &tokens[..] {
            [] => {
                let load = |given_up: &_| load_model(config, &sizes, summary, &[], given_up);
                beside_tokenizer(processor, &load_processor, load)
            }
            // The model is made with their ids, which the tokenizer knows.
            tokens => {
                let processor = processor.map_or_else(load_processor, Ok)?;
                let ids = token_ids(tokens, &processor.tokenizer(), summary)?;
                (Ok(processor), load_model(config, &sizes, summary, &ids, &Default::default()))
            }
        };
        let (input_processor, (devices, loaded)) = (input_processor?, model?);
        let Loaded { mut body, mut pooler, weight_bytes, cache, why_cpu, notes } = loaded;
        if let Some(table) = input_processor.media_table() {
            body.set_media_table(Arc::clone(table));
        }
        if let Some(Sparse::Lexical(lexical)) = &mut pooler.sparse {
            lexical.leave_out(input_processor.tokenizer().ids_around_texts());
        }
        let ends_at = end_of_texts(summary, &input_processor.tokenizer())?;
        let info = EngineInfo {
            dtype: summary.dtype,
            checkpoint_format: summary.checkpoint_format(),
            kernel_set: config.lora.kernel_set(&devices.kernel_set()),
            device_name: devices.body.name(),
            why_cpu,
            notes,
            num_threads: devices.body.num_threads(),
            max_model_len,
            weight_bytes,
            code_bytes: Arc::default(),
            parameters: summary.parameters(),
            num_cache_tokens: cache.num_tokens,
            block_size: cache.block_size,
            kv_cache_bytes: cache.num_bytes,
            num_offloaded_tokens: cache.num_offloaded_tokens,
            lora_ranks: body.loras().ranks(),
            step_sizes: sizes,
        };
        Ok(Self {
            devices,
            body,
            pooler,
            input_processor,
            info,
            end_token_id: summary.end_token_id(),
            ends_at,
            scores_steps: summary.scores_steps(),
            num_prompt_tokens: 0,
            unfinished: HashMap::new(),
            shared: SharedTexts::default(),
            finished: Vec::new(),
        })
    }

    /// What turns prompts into requests; shared with the thread that reads rows.
    pub fn input_processor(&self) -> Arc<InputProcessor> {
        Arc::clone(&self.input_processor)
    }

    /// What was loaded.
    pub fn info(&self) -> &EngineInfo {
        &self.info
    }

    /// What texts become, where a request does not say otherwise.
    pub fn pooling(&self) -> &Pooling {
        &self.pooler.pooling
    }

    /// Queues a request. It was validated by the input processor.
    ///
    /// # Panics
    /// Another request of its number is unfinished, or it has no text.
    pub fn add_request(&mut self, request: PoolingRequest) {
        let PoolingRequest {
            request_id,
            mut texts,
            comparisons,
            compared,
            params,
            lora,
            precedence,
        } = request;
        texts.iter_mut().for_each(|text| self.end(text));
        let num_prompt_tokens = texts.iter().map(|text| text.ids.len()).sum();
        self.num_prompt_tokens += num_prompt_tokens as u64;
        assert!(!texts.is_empty(), "a request has a text");
        let is_shared = !comparisons.is_empty();
        let unfinished = Unfinished {
            params: Arc::clone(&params),
            comparisons,
            compared,
            num_prompt_tokens,
            texts: vec![None; texts.len()],
            num_missing: texts.len(),
        };
        let before = self.unfinished.insert(request_id, unfinished);
        assert!(before.is_none(), "a request's number is its own");
        for (index, tokens) in texts.into_iter().enumerate() {
            let (reader, params) = ((request_id, index), Arc::clone(&params));
            let mut text = Text { reader, tokens, shared: None, params, lora, precedence };
            if is_shared {
                let key = Arc::new(TextKey::new(&text.tokens, lora, &text.params));
                match self.shared.ask(&key, reader) {
                    Known::No => text.shared = Some(key),
                    Known::Waits => continue,
                    Known::Computed(pooled) => {
                        let finished = self.keep(reader, Ok(pooled));
                        self.finished.extend(finished);
                        continue;
                    }
                }
            }
            self.body.add(text);
        }
    }

    /// Ends a request, as `Engine::abort_request`. Texts that others ask for too are computed for
    /// them.
    pub fn abort_request(&mut self, request_id: u64) -> bool {
        let num_finished = self.finished.len();
        self.finished.retain(|output| output.request_id != request_id);
        if self.unfinished.remove(&request_id).is_none() {
            return self.finished.len() < num_finished;
        }
        self.shared.leave(request_id);
        let shared = &self.shared;
        self.body.retain(&|text| match &text.shared {
            None => text.reader.0 != request_id,
            Some(key) => shared.is_known(key),
        });
        true
    }

    /// Whether any request waits.
    pub fn has_unfinished_requests(&self) -> bool {
        self.body.has_unfinished_texts() || !self.finished.is_empty()
    }

    /// Runs a step; returns the requests that are finished with it.
    ///
    /// # Errors
    /// The device failed, or memory does not suffice.
    pub fn step(&mut self) -> Result<Vec<PoolingOutput>, EngineError> {
        let mut finished = std::mem::take(&mut self.finished);
        if !self.body.has_unfinished_texts() {
            return Ok(finished);
        }
        for (text, result) in self.body.step(&self.devices, &self.pooler)? {
            let result = result.map(Arc::new);
            let readers = match (text.shared, &result) {
                (None, _) => vec![text.reader],
                (Some(key), Ok(pooled)) => self.shared.computed(&key, Arc::clone(pooled)),
                (Some(key), Err(_)) => self.shared.failed(&key),
            };
            let given = |reader| self.keep(reader, result.clone());
            finished.extend(readers.into_iter().filter_map(given));
        }
        Ok(finished)
    }

    /// Counters since load, and the present queue lengths.
    pub fn stats(&self) -> EngineStats {
        EngineStats { num_prompt_tokens: self.num_prompt_tokens, ..self.body.stats() }
    }

    /// Puts the token behind a text that the model's classifier reads, and leaves out what is
    /// behind the one that ends it, or fills it up.
    fn end(&self, text: &mut TextTokens) {
        if let Some((end, padding)) = self.ends_at.filter(|_| text.media.is_empty()) {
            end.end(&mut text.ids, padding);
        }
        if let Some(end) = self.end_token_id.filter(|end| text.ids.last() != Some(end)) {
            text.ids.push(end);
        }
    }

    /// Keeps what a text became; returns its request's output if it was the last one.
    fn keep(&mut self, (request_id, index): Reader, outcome: Outcome) -> Option<PoolingOutput> {
        let request = self.unfinished.get_mut(&request_id).expect("its request is unfinished");
        request.texts[index] = Some(outcome);
        request.num_missing -= 1;
        if request.num_missing > 0 {
            return None;
        }
        let request = self.unfinished.remove(&request_id).expect("it was there");
        Some(request.output(request_id, self.scores_steps))
    }
}

/// What reads the rows of a model.
fn load_processor(
    config: &EngineConfig,
    summary: &PoolingSummary,
) -> Result<InputProcessor, EngineError> {
    let (limits, defaults) = (summary.limits(), Default::default());
    let processor = match summary.spec.reads_texts {
        true => load_input_processor(config, &summary.files, (limits, defaults), None)?,
        false => image_processor_alone(config, (limits, defaults))?,
    };
    let processor = processor.with_begun_chats(summary.begins_chats);
    let processor = match &summary.row_words {
        None => processor,
        Some(words) => {
            let own = words.template(&processor.tokenizer())?;
            processor.with_rows_by(config.model.chat_template.as_deref().unwrap_or(&own))?
        }
    };
    with_media(processor, summary.sight(), None)
}

/// Where a model's texts end, and the token that they are filled up with.
fn end_of_texts(
    summary: &PoolingSummary,
    tokenizer: &Tokenizer,
) -> Result<Option<(TextEnd, Option<u32>)>, EngineError> {
    let Some(end) = summary.spec.ends_at else { return Ok(None) };
    let is_word = |id: &u32| (*id as usize) < summary.spec.vocab_size();
    let padding = tokenizer.pad_token_id().filter(is_word);
    match (end, padding) {
        (TextEnd::Filled(_), None) => Err(EngineError::Model(
            "the tokenizer has no `pad_token`, which texts are filled up with; help: copy \
             tokenizer_config.json from the model's repository"
                .to_owned(),
        )),
        _ => Ok(Some((end, padding))),
    }
}

/// The ids of tokens that a classifier is made with.
fn token_ids(
    tokens: &[ClassToken],
    tokenizer: &Tokenizer,
    summary: &PoolingSummary,
) -> Result<Vec<u32>, EngineError> {
    let id = |token: &ClassToken| {
        let (id, name) = match token {
            ClassToken::Named(name) => (tokenizer.token_id(name), quoted(name)),
            ClassToken::Numbered(id) => (Some(*id), id.to_string()),
        };
        let id = id.filter(|id| (*id as usize) < summary.spec.vocab_size());
        let text = || format!("the classifier needs a token {name}, and there is none");
        id.ok_or_else(|| EngineError::Config(text()))
    };
    tokens.iter().map(id).collect()
}

impl Unfinished {
    /// What was asked: what the texts became, or how they compare.
    fn output(self, request_id: u64, scores_steps: bool) -> PoolingOutput {
        let Self { params, comparisons, compared, num_prompt_tokens, texts, .. } = self;
        let texts: Result<Vec<_>, _> = texts.into_iter().flatten().collect();
        let (texts, failure) = match texts {
            Ok(texts) => (texts, None),
            Err(failure) => (Vec::new(), Some(failure)),
        };
        let texts = match params.scoring {
            _ if failure.is_some() => Vec::new(),
            Scoring::Vectors(similarity) if !comparisons.is_empty() => {
                let score = |(query, document): &(usize, usize)| {
                    Pooled::Vector(vec![similarity.of(&texts[*query], &texts[*document])])
                };
                comparisons.iter().map(score).collect()
            }
            _ => texts.into_iter().map(Arc::unwrap_or_clone).collect(),
        };
        PoolingOutput {
            request_id,
            num_prompt_tokens,
            texts,
            failure,
            compared,
            params,
            scores_steps,
        }
    }
}
