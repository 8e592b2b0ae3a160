//! Texts that go through a decoder with a KV cache, as the prompts of `run` do: in chunks, and what
//! they begin alike with is computed once. Where states of other tokens than the last count, those
//! of a text are kept until its end.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::body::{Done, Text};
use super::loading::Devices;
use super::pooler::{Asked, Pooler};
use crate::execute::executor::Executor;
use crate::execute::model::resident_loras::ResidentLoras;
use crate::execute::model_executor::ModelExecutor;
use crate::load::step_sizes::StepSizes;
use crate::media_table::MediaTable;
use crate::plan::block_pool::BlockPool;
use crate::plan::scheduler::{Scheduled, Scheduler, StatesOf};
use crate::request::{Asked as Wanted, Request, StopIds};
use crate::sampler::RowResult;
use crate::stats::{EngineStats, StepTime};
use crate::{device_error, lap};
use vllm_batch_api::pooling::Pooled;
use vllm_batch_api::request::{RowKey, SamplingParams};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::CacheConfig;
use vllm_batch_device::Tensor;
use vllm_batch_ops::batch::Batch;

/// A decoder that gives states, and the texts that wait for it.
pub(super) struct CachedTexts {
    scheduler: Scheduler,
    executor: ModelExecutor,
    /// By the numbers of their requests to the scheduler.
    texts: HashMap<u64, Held>,
    /// Which states of a text count.
    counted: Counted,
    /// Texts that ever came: the number of the next one.
    num_added: u64,
    /// Nothing is sampled.
    params: Arc<SamplingParams>,
    /// Refilled by every step.
    batch: Batch,
    /// What came from a GPU.
    on_host: Tensor,
    time: StepTime,
}

/// Which states of a text count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// That of its last token.
    Last,
    /// Others too.
    All,
}

/// A text under way.
struct Held {
    text: Text,
    /// Its tokens; none where the last state alone counts.
    ids: Vec<u32>,
    /// States of the steps before (tokens, width), where they count.
    states: Vec<f32>,
}

impl CachedTexts {
    /// None wait yet. Texts have up to `max_model_len` tokens, states `width` values. A step has
    /// room for the states that count of all of its tokens.
    pub(super) fn new(
        executor: ModelExecutor,
        cache: &CacheConfig,
        sizes: &StepSizes,
        max_model_len: usize,
        (counted, width): (Counted, usize),
    ) -> Self {
        let shape = executor.cache_shape();
        let has_prefix_cache = cache.enable_prefix_caching;
        let pool = BlockPool::new(shape.num_blocks, shape.block_size, has_prefix_cache)
            .with_host_blocks(executor.num_host_blocks());
        // In the order in which they came: a text is soon read, and to look through all that wait
        // at each one would take longer than a small model's step.
        let sizes = StepSizes { look_ahead: 0, ..*sizes };
        Self {
            scheduler: Scheduler::new(&sizes, pool, max_model_len, 0, None),
            executor,
            texts: HashMap::new(),
            counted,
            num_added: 0,
            params: Arc::default(),
            batch: Batch::default(),
            on_host: Tensor::zeros(0, width),
            time: StepTime::default(),
        }
    }

    /// As `Body::add`.
    pub(super) fn add(&mut self, mut text: Text) {
        let request_id = self.num_added;
        self.num_added += 1;
        let (asked, ids) = match self.counted {
            Counted::Last => (Wanted::State, Vec::new()),
            Counted::All => (Wanted::States, text.tokens.ids.clone()),
        };
        self.scheduler.add_request(Request {
            request_id,
            prompt_token_ids: std::mem::take(&mut text.tokens.ids),
            media: std::mem::take(&mut text.tokens.media),
            asked,
            params: Arc::clone(&self.params),
            stop_ids: StopIds::default(),
            bad_words_token_ids: Vec::new(),
            row_key: RowKey(0),
            guidance: None,
            lora: text.lora,
            eos_after: None,
            precedence: text.precedence,
        });
        self.texts.insert(request_id, Held { text, ids, states: Vec::new() });
    }

    /// As `Body::retain`.
    pub(super) fn retain(&mut self, is_kept: &dyn Fn(&Text) -> bool) {
        let Self { texts, scheduler, .. } = self;
        texts.retain(|request_id, held| {
            let keeps = is_kept(&held.text);
            if !keeps {
                scheduler.abort(*request_id);
            }
            keeps
        });
    }

    /// As `Body::has_unfinished_texts`.
    pub(super) fn has_unfinished_texts(&self) -> bool {
        self.scheduler.has_unfinished_requests()
    }

    /// As `Body::step`.
    pub(super) fn step(
        &mut self,
        devices: &Devices,
        pooler: &Pooler,
    ) -> Result<Vec<Done>, EngineError> {
        let mut clock = Instant::now();
        let scheduled = self.scheduler.schedule();
        lap(&mut clock, &mut self.time.schedule);
        let (num_rows, pooled) = self.run(&scheduled, devices, pooler)?;
        lap(&mut clock, &mut self.time.execute);
        let results = (0..num_rows).map(|_| RowResult::State);
        let finished = self.scheduler.update(&scheduled, results);
        self.scheduler.reuse(scheduled);
        let mut pooled: HashMap<_, _> = pooled.into_iter().collect();
        let done = finished.into_iter().map(|mut output| {
            let Held { text, .. } = self.texts.remove(&output.request_id).expect("it waited");
            let result = match output.outputs.pop().and_then(|output| output.error) {
                Some(error) => Err(error),
                None => Ok(pooled.remove(&output.request_id).expect("its state was wanted")),
            };
            (text, result)
        });
        let done = done.collect();
        lap(&mut clock, &mut self.time.update);
        Ok(done)
    }

    /// Computes a step: how many rows of states it has, and what the texts became that reach their
    /// ends in it.
    fn run(
        &mut self,
        scheduled: &Scheduled,
        devices: &Devices,
        pooler: &Pooler,
    ) -> Result<(usize, Vec<(u64, Pooled)>), EngineError> {
        if scheduled.is_empty() {
            return Ok((0, Vec::new()));
        }
        let Self { scheduler, executor, texts, counted, batch, on_host, .. } = self;
        scheduler.refill(batch, scheduled);
        let states = executor.execute(batch).map_err(device_error)?;
        let rows: Vec<_> = scheduler.states_of(scheduled).collect();
        let num_rows = rows.iter().map(|of| of.num_rows).sum();
        if num_rows == 0 {
            return Ok((0, Vec::new()));
        }
        let states = devices.body.on_host(states.tensor, num_rows, on_host)?;
        let ended;
        let states = match counted {
            Counted::Last => states,
            Counted::All => {
                ended = ended_texts(texts, &rows, states);
                &ended
            }
        };
        let mut end = 0;
        let asked = rows.iter().filter(|of| of.ends).map(|of| {
            let (Held { text, ids, .. }, start) = (&texts[&of.request_id], end);
            let (num_tokens, num_skipped) = match counted {
                Counted::Last => (1, 0),
                Counted::All => (ids.len(), text.tokens.num_skipped),
            };
            end += num_tokens;
            Asked { start, end, ids, num_skipped, params: &text.params, lora: text.lora }
        });
        let asked: Vec<_> = asked.collect();
        let pooled = pooler.texts(&devices.host, states, &asked)?;
        let ids = rows.iter().filter(|of| of.ends).map(|of| of.request_id);
        Ok((num_rows, ids.zip(pooled).collect()))
    }

    /// As `Body::set_media_table`.
    pub(super) fn set_media_table(&mut self, table: Arc<MediaTable>) {
        self.executor.set_media_table(table);
    }

    /// As `Body::loras`.
    pub(super) fn loras(&self) -> &ResidentLoras {
        self.executor.loras()
    }

    /// As `Body::stats`.
    pub(super) fn stats(&self) -> EngineStats {
        let stats = EngineStats { time: self.time, ..self.scheduler.stats() };
        stats.with_loras(self.executor.lora_counts()).with_encoded(self.executor.encoded())
    }
}

/// The states of all tokens of the texts that reach their ends with these rows, one text after the
/// other; those of the others are kept.
fn ended_texts(texts: &mut HashMap<u64, Held>, rows: &[StatesOf], states: &Tensor) -> Tensor {
    let width = states.width();
    let (mut ended, mut rest) = (Vec::new(), states.values());
    for of in rows {
        let (own, others) = rest.split_at(of.num_rows * width);
        rest = others;
        let held = texts.get_mut(&of.request_id).expect("it waits");
        if of.ends {
            ended.append(&mut held.states);
            ended.extend_from_slice(own);
        } else {
            held.states.extend_from_slice(own);
        }
    }
    Tensor::from_vec(ended, width)
}
