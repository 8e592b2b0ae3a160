//! The engine of models that make vectors or classes of a text: vLLM's pooling runner. Whole texts
//! go through an encoder together, without padding and without a cache; a pooler, and a head if the
//! model has one, make of each what is asked for.

mod compared;
mod dense;
mod input;
mod layer_file;
mod lexical;
mod listed_module;
mod loading;
mod modules;
mod pooler;
mod pooling_type;
mod request;
mod shared_texts;
mod splade;
mod summary;
mod task;

pub use crate::engine::model::encoders::{
    ClassActivation, ClassToken, Classifier, TokenClasses, TokenMethod,
};
pub use compared::{Compared, Scoring, Similarity};
pub use layer_file::{LEXICAL_LAYER, TOKEN_LAYER};
pub use listed_module::{ListedModule, MODULES};
pub use modules::{PROMPTS, Prompts, TRANSFORMER_FILES};
pub use pooling_type::{Pooling, PoolingType};
pub use request::{
    EncodingFormat, Pooled, PoolingOutput, PoolingParams, PoolingRequest, TextTokens,
};
pub use summary::{PoolingSummary, SparseSpec, SpladeSpec};
pub use task::PoolingTask;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::batch::Batch;
use super::config::EngineConfig;
use super::files::quoted;
use super::input_processor::InputProcessor;
use super::model::encoder::Encoder;
use super::model::spec::LinearSpec;
use super::stats::EngineStats;
use super::text::Tokenizer;
use super::{EngineError, EngineInfo, beside, load_input_processor};
use loading::{Devices, Loaded, load_model};
use pooler::{Asked, Pooler, Sparse};
use shared_texts::{Known, Reader, SharedTexts, TextKey};

/// An encoder, and the texts that wait for it.
pub struct PoolingEngine {
    devices: Devices,
    encoder: Encoder,
    pooler: Pooler,
    input_processor: Arc<InputProcessor>,
    info: EngineInfo,
    /// Texts in the order in which their requests came.
    waiting: VecDeque<Text>,
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
    /// Segments that the model knows.
    num_token_types: usize,
    /// Tokens of a step, unless it is one text: that goes through the model in one piece.
    max_num_tokens: usize,
    max_num_seqs: usize,
    /// Refilled by every step.
    batch: Batch,
    stats: EngineStats,
}

/// A text of a request.
struct Text {
    request_id: u64,
    /// Which text of the request.
    index: usize,
    tokens: TextTokens,
    /// Others may ask for it too.
    shared: Option<Arc<TextKey>>,
}

/// A request with what is there of its texts.
struct Unfinished {
    params: Arc<PoolingParams>,
    comparisons: Vec<(usize, usize)>,
    compared: Option<Arc<Compared>>,
    num_prompt_tokens: usize,
    texts: Vec<Option<Arc<Pooled>>>,
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
        let max_model_len = summary.max_model_len;
        let load_processor =
            || load_input_processor(config, &summary.files, summary.limits(), Default::default());
        let tokens = summary.named_tokens();
        let (input_processor, model) = match &tokens[..] {
            [] => {
                let load = |given_up: &_| load_model(config, summary, &[], given_up);
                beside(&load_processor, load)
            }
            // The model is made with their ids, which the tokenizer knows.
            tokens => {
                let processor = load_processor()?;
                let ids = token_ids(tokens, &processor.tokenizer(), summary)?;
                (Ok(processor), load_model(config, summary, &ids, &Default::default()))
            }
        };
        let (input_processor, (devices, loaded)) = (input_processor?, model?);
        let Loaded { encoder, mut pooler, weight_bytes, notes } = loaded;
        if let Some(Sparse::Lexical(lexical)) = &mut pooler.sparse {
            lexical.leave_out(input_processor.tokenizer().ids_around_texts());
        }
        let info = EngineInfo {
            dtype: summary.dtype,
            checkpoint_format: summary.checkpoint_format(),
            kernel_set: devices.kernel_set(),
            device_name: devices.body.name(),
            notes,
            num_threads: devices.body.num_threads(),
            max_model_len,
            weight_bytes,
            num_cache_tokens: 0,
            block_size: 0,
            kv_cache_bytes: 0,
        };
        Ok(Self {
            devices,
            encoder,
            pooler,
            input_processor,
            info,
            end_token_id: summary.end_token_id(),
            scores_steps: summary.scores_steps(),
            num_token_types: summary.spec.token_types.as_ref().map_or(0, LinearSpec::n),
            waiting: VecDeque::new(),
            unfinished: HashMap::new(),
            shared: SharedTexts::default(),
            finished: Vec::new(),
            max_num_tokens: config.scheduler.max_num_batched_tokens,
            max_num_seqs: config.scheduler.max_num_seqs,
            batch: Batch::default(),
            stats: EngineStats::default(),
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
        let PoolingRequest { request_id, mut texts, comparisons, compared, params } = request;
        texts.iter_mut().for_each(|text| self.end(text));
        let num_prompt_tokens = texts.iter().map(|text| text.ids.len()).sum();
        self.stats.num_prompt_tokens += num_prompt_tokens as u64;
        assert!(!texts.is_empty(), "a request has a text");
        let is_shared = !comparisons.is_empty();
        let (dimensions, use_activation) = (params.dimensions, params.use_activation);
        let unfinished = Unfinished {
            params,
            comparisons,
            compared,
            num_prompt_tokens,
            texts: vec![None; texts.len()],
            num_missing: texts.len(),
        };
        let before = self.unfinished.insert(request_id, unfinished);
        assert!(before.is_none(), "a request's number is its own");
        for (index, tokens) in texts.into_iter().enumerate() {
            let mut text = Text { request_id, index, tokens, shared: None };
            if is_shared {
                let tokens = text.tokens.clone();
                let key = Arc::new(TextKey { tokens, dimensions, use_activation });
                match self.shared.ask(&key, (request_id, index)) {
                    Known::No => text.shared = Some(key),
                    Known::Waits => continue,
                    Known::Computed(pooled) => {
                        let finished = self.keep((request_id, index), pooled);
                        self.finished.extend(finished);
                        continue;
                    }
                }
            }
            self.waiting.push_back(text);
        }
    }

    /// Whether any request waits.
    pub fn has_unfinished_requests(&self) -> bool {
        !self.waiting.is_empty() || !self.finished.is_empty()
    }

    /// Runs as many texts as a step takes, first come, first served; returns the requests that are
    /// finished with them.
    ///
    /// # Errors
    /// The device failed, or memory does not suffice.
    pub fn step(&mut self) -> Result<Vec<PoolingOutput>, EngineError> {
        let mut finished = std::mem::take(&mut self.finished);
        if self.waiting.is_empty() {
            return Ok(finished);
        }
        let clock = Instant::now();
        let texts = self.take_texts();
        self.fill_batch(&texts);
        self.encoder.reserve(&self.devices.body, self.batch.input_ids.len())?;
        let scheduled = clock.elapsed();
        let places = self.batch.query_start_loc.windows(2);
        let asked = texts.iter().zip(places).map(|(text, place)| Asked {
            start: place[0] as usize,
            end: place[1] as usize,
            ids: &text.tokens.ids,
            num_skipped: text.tokens.num_skipped,
            params: &self.unfinished[&text.request_id].params,
        });
        let mut asked: Vec<_> = asked.collect();
        // What no vector depends on need not come from a GPU.
        let only_rows = self.pooler.only_rows(&asked);
        if only_rows.is_some() {
            for (row, text) in asked.iter_mut().enumerate() {
                *text = Asked { start: row, end: row + 1, num_skipped: 0, ..*text };
            }
        }
        self.batch.logits_indices = only_rows.unwrap_or_default();
        let states = self.encoder.forward(&self.devices.body, &self.batch)?;
        let pooled = self.pooler.texts(&self.devices.host, states, &asked)?;
        let stats = &mut self.stats;
        stats.num_steps += 1;
        stats.num_computed_tokens += self.batch.input_ids.len() as u64;
        stats.time.schedule += scheduled;
        stats.time.execute += clock.elapsed() - scheduled;
        for (text, pooled) in texts.into_iter().zip(pooled) {
            let pooled = Arc::new(pooled);
            let readers = match text.shared {
                Some(key) => self.shared.computed(&key, Arc::clone(&pooled)),
                None => vec![(text.request_id, text.index)],
            };
            let given = |reader| self.keep(reader, Arc::clone(&pooled));
            finished.extend(readers.into_iter().filter_map(given));
        }
        Ok(finished)
    }

    /// Counters since load, and the present queue lengths.
    pub fn stats(&self) -> EngineStats {
        EngineStats { num_waiting: self.waiting.len(), ..self.stats }
    }

    /// Puts the token behind a text that the model's classifier reads.
    fn end(&self, text: &mut TextTokens) {
        if let Some(end) = self.end_token_id.filter(|end| text.ids.last() != Some(end)) {
            text.ids.push(end);
        }
    }

    /// The next texts of a step.
    fn take_texts(&mut self) -> Vec<Text> {
        let (mut texts, mut num_tokens) = (Vec::new(), 0);
        while texts.len() < self.max_num_seqs
            && let Some(text) = self.waiting.front()
            && (texts.is_empty() || num_tokens + text.tokens.ids.len() <= self.max_num_tokens)
        {
            num_tokens += text.tokens.ids.len();
            texts.extend(self.waiting.pop_front());
        }
        texts
    }

    fn fill_batch(&mut self, texts: &[Text]) {
        let Batch { input_ids, positions, token_types, query_start_loc, .. } = &mut self.batch;
        input_ids.clear();
        positions.clear();
        token_types.clear();
        query_start_loc.clear();
        query_start_loc.push(0);
        for TextTokens { ids, types, .. } in texts.iter().map(|text| &text.tokens) {
            input_ids.extend_from_slice(ids);
            positions.extend(0..ids.len() as u32);
            // A model of one segment was trained on pairs without them.
            if self.num_token_types > 1 {
                token_types.extend_from_slice(types);
            }
            token_types.resize(input_ids.len(), 0);
            query_start_loc.push(input_ids.len() as u32);
        }
    }

    /// Keeps what a text became; returns its request's output if it was the last one.
    fn keep(&mut self, (request_id, index): Reader, pooled: Arc<Pooled>) -> Option<PoolingOutput> {
        let request = self.unfinished.get_mut(&request_id).expect("its request is unfinished");
        request.texts[index] = Some(pooled);
        request.num_missing -= 1;
        if request.num_missing > 0 {
            return None;
        }
        let request = self.unfinished.remove(&request_id).expect("it was there");
        Some(request.output(request_id, self.scores_steps))
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
        let texts: Vec<_> = texts.into_iter().flatten().collect();
        let texts = match params.scoring {
            Scoring::Vectors(similarity) if !comparisons.is_empty() => {
                let score = |(query, document): &(usize, usize)| {
                    Pooled::Vector(vec![similarity.of(&texts[*query], &texts[*document])])
                };
                comparisons.iter().map(score).collect()
            }
            _ => texts.into_iter().map(Arc::unwrap_or_clone).collect(),
        };
        PoolingOutput { request_id, num_prompt_tokens, texts, compared, params, scores_steps }
    }
}
