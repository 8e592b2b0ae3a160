//! The in-process continuous-batching engine, with vLLM's verbs: `add_request`, `abort_request`,
//! `step`, `has_unfinished_requests`. Knows no file of rows, prints nothing and reads no
//! environment.
//!
//! Read first: [`Engine`], [`plan::scheduler::Scheduler`], [`serve::runner::Runner`].

#![warn(missing_docs, unreachable_pub)]

pub mod execute;
pub mod load;
pub mod media_table;
pub mod plan;
pub mod request;
pub mod sampler;
pub mod serve;
pub mod stats;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::execute::executor::{Executor, ExecutorError, Logits};
use crate::execute::pipeline::Stages;
use crate::execute::simulated_executor::SimulatedExecutor;
use crate::execute::step_sampler::{Pending, StepSampler};
pub use crate::load::EngineInfo;
use crate::load::beside::beside_tokenizer;
use crate::load::gguf_text;
use crate::load::images::{MAX_INPUT_BYTES, Sight, image_input, image_processor};
use crate::load::model::LoadedModel;
use crate::load::model_summary::ModelSummary;
use crate::load::sounds::{Hearing, sound_input, sound_reader, speech_input};
use crate::load::step_sizes::StepSizes;
use crate::load::text_alone::text_alone;
use crate::media_table::{MediaTable, Processors};
use crate::plan::block_pool::BlockPool;
use crate::plan::scheduler::{Ahead, Scheduled, Scheduler};
use crate::plan::speculation::{DraftModel, DraftSizes, Proposer, Speculation};
use crate::sampler::{RowResult, RowTask};
use crate::serve::input_processor::{InputProcessor, MediaInput, ModelLimits};
use request::Request;
use stats::{EngineStats, GivenLimits, OpTimes, StepTime};
use vllm_batch_api::request::RequestOutput;
use vllm_batch_base::EngineError;
use vllm_batch_base::config::{DType, EngineConfig};
use vllm_batch_checkpoint::hf_config::GenerationConfig;
use vllm_batch_checkpoint::model_files::ModelFiles;
use vllm_batch_checkpoint::spec::Parameters;
use vllm_batch_device::Device;
pub use vllm_batch_device::WhyCpu;
use vllm_batch_ops::batch::Batch;
use vllm_batch_text::{ChatTemplate, TextError, Tokenizer};

/// The engine: scheduler, executor and sampler behind vLLM's verbs.
pub struct Engine {
    scheduler: Scheduler,
    executor: Box<dyn Executor>,
    sampler: StepSampler,
    /// Refilled by every step.
    batch: Batch,
    /// Empty between steps: kept for its memory.
    tasks: Vec<RowTask<'static>>,
    input_processor: Arc<InputProcessor>,
    /// Those of its model, if that is in stages.
    stages: Option<Arc<Stages>>,
    info: EngineInfo,
    speculation: Option<Speculation>,
    runs_ahead: bool,
    /// The step after the last one that `step` returned, begun already.
    ahead: Option<(Ahead, Pending)>,
    time: StepTime,
}

/// What engines of one model share.
#[derive(Clone)]
pub struct Shared {
    /// What turns prompts into requests.
    pub input_processor: Arc<InputProcessor>,
    /// Stages of the model, if it is in stages.
    pub stages: Option<Arc<Stages>>,
}

/// A step that is being computed.
struct Current {
    scheduled: Scheduled,
    pending: Pending,
    /// Of a step that was begun ahead: the row of each result that is still asked for.
    rows: Option<Vec<usize>>,
}

fn device_error(error: ExecutorError) -> EngineError {
    EngineError::Device(error.0)
}

/// An empty vector in the same memory, for tasks of another lifetime.
fn emptied(mut tasks: Vec<RowTask<'_>>) -> Vec<RowTask<'static>> {
    tasks.clear();
    tasks.into_iter().map(|_| unreachable!("it is empty")).collect()
}

/// Adds the time since `clock` to `total`, and starts the clock again.
fn lap(clock: &mut Instant, total: &mut Duration) {
    let now = Instant::now();
    *total += now - *clock;
    *clock = now;
}

impl Engine {
    /// Loads model, tokenizer and chat template, packs weights, sizes and allocates the KV cache.
    ///
    /// # Errors
    /// Model files are missing, corrupt or unsupported, or memory does not suffice.
    pub fn load(config: &EngineConfig) -> Result<Self, EngineError> {
        Self::load_summarized(config, &ModelSummary::read(&config.model)?)
    }

    /// The same for a model whose small files were read before, with the same configuration.
    ///
    /// # Errors
    /// As `load`.
    pub fn load_summarized(
        config: &EngineConfig,
        summary: &ModelSummary,
    ) -> Result<Self, EngineError> {
        Self::load_with(config, summary, None)
    }

    /// The same with what another engine of the model shares, if there is one.
    ///
    /// # Errors
    /// As `load`.
    pub fn load_with(
        config: &EngineConfig,
        summary: &ModelSummary,
        shared: Option<Shared>,
    ) -> Result<Self, EngineError> {
        let tower = summary.tower.as_ref();
        let note =
            tower.and_then(|tower| text_alone(config, (&summary.spec, tower), summary.dtype));
        let Some(note) = note else {
            return Self::load_whole(config, summary, shared);
        };
        let of_text = ModelSummary { tower: None, ..summary.clone() };
        let mut engine = Self::load_whole(config, &of_text, shared)?;
        engine.info.notes.push(note);
        Ok(engine)
    }

    fn load_whole(
        config: &EngineConfig,
        summary: &ModelSummary,
        shared: Option<Shared>,
    ) -> Result<Self, EngineError> {
        let dtype = summary.dtype;
        summary.sides(config).check()?;
        let sizes = StepSizes::on_device(config, dtype, &summary.gpu_needs());
        let sizes = sizes.at_least(summary.least_step());
        let vocab_size = summary.spec.vocab_size();
        let (processor, stages) = match shared {
            Some(Shared { input_processor, stages }) => (Some(input_processor), stages),
            None => (None, None),
        };
        let (input_processor, model) = beside_tokenizer(
            processor,
            &|| decoders_input_processor(config, summary),
            |given_up| LoadedModel::load(config, &sizes, summary, stages, given_up),
        );
        let (input_processor, mut model) = (input_processor?, model?);
        let info = model.info(config, summary, sizes);
        let (device, stages) = (Arc::clone(&model.device), model.stages.take());
        let (draft, is_queued) = (model.draft.take(), device.runs_ahead());
        let (runs_ahead, has_states) = (model.may_run_ahead, model.has_states());
        let mut executor = model.into_executor(input_processor.media_table());
        let mut sampler = StepSampler::new(device, sizes.max_num_logits(), vocab_size)?;
        if is_queued {
            let num_blocks = info.num_cache_tokens / info.block_size;
            let batch = Batch::warm_up(num_blocks, info.block_size);
            sampler.warm_up(executor.execute(&batch).map_err(device_error)?)?;
            executor.release();
        }
        let mut engine = Self::assemble(config, input_processor, info, (executor, sampler));
        if has_states {
            engine.scheduler.goes_back_to_blocks();
        }
        engine.speculation = config.speculation.as_ref().map(|config| {
            // A guide's masks are found while a GPU computes, and one round later is too late.
            Speculation::new(config, draft.map(|draft| draft.proposer), !runs_ahead)
        });
        Ok(Self { runs_ahead, stages, ..engine })
    }

    /// Another proposer in the place of the one that was configured: for tests.
    ///
    /// # Panics
    /// None was configured.
    pub fn set_proposer(&mut self, proposer: Box<dyn Proposer>) {
        self.speculation.as_mut().expect("one is configured").set_proposer(proposer);
    }

    /// An engine whose "model" is a hash of what it reads from the KV cache, with the tokenizer of
    /// a real one: millions of rows without a model's time (`examples/soak.rs`).
    ///
    /// # Errors
    /// As `load`; weights are not read.
    pub fn simulated(config: &EngineConfig) -> Result<Self, EngineError> {
        let summary = ModelSummary::read(&config.model)?;
        let (vocab_size, max_model_len) = (summary.spec.vocab_size(), summary.max_model_len);
        let input_processor = decoders_input_processor(config, &summary)?;
        let device = Arc::new(Device::cpu(config.parallel.num_threads));
        let block_size = summary.block_size(&config.cache);
        let sizes = StepSizes::usual(config).at_least(summary.least_step());
        let all_at_full_length = sizes.max_num_seqs * max_model_len.div_ceil(block_size);
        let num_blocks = config.cache.num_blocks.unwrap_or(all_at_full_length);
        let info = EngineInfo {
            dtype: DType::Float32,
            checkpoint_format: None,
            kernel_set: "simulated".to_owned(),
            device_name: "no device, simulated".to_owned(),
            why_cpu: None,
            notes: Vec::new(),
            num_threads: device.num_threads(),
            max_model_len,
            weight_bytes: 0,
            code_bytes: Arc::default(),
            parameters: Parameters::default(),
            num_cache_tokens: num_blocks * block_size,
            block_size,
            kv_cache_bytes: 0,
            num_offloaded_tokens: 0,
            lora_ranks: Vec::new(),
            step_sizes: sizes,
        };
        let speculation = config.speculation.as_ref();
        let executor = match speculation {
            Some(_) => SimulatedExecutor::without_states(num_blocks, block_size, vocab_size),
            None => SimulatedExecutor::new(num_blocks, block_size, vocab_size),
        };
        let sampler = StepSampler::new(device, sizes.max_num_logits(), vocab_size)?;
        let parts: (Box<dyn Executor>, _) = (Box::new(executor), sampler);
        let mut engine = Self::assemble(config, input_processor, info, parts);
        if speculation.is_none() {
            engine.scheduler.goes_back_to_blocks();
        }
        engine.speculation = speculation.map(|of_guesses| {
            let executor = SimulatedExecutor::without_states(num_blocks, block_size, vocab_size);
            let max_num_tokens = sizes.max_num_batched_tokens;
            let of_draft = DraftSizes { block_size, max_model_len, max_num_tokens };
            let draft = DraftModel::new(Box::new(executor), of_draft);
            Speculation::new(of_guesses, Some(draft), true)
        });
        Ok(engine)
    }

    fn assemble(
        config: &EngineConfig,
        input_processor: Arc<InputProcessor>,
        info: EngineInfo,
        (executor, sampler): (Box<dyn Executor>, StepSampler),
    ) -> Self {
        let num_blocks = info.num_cache_tokens / info.block_size;
        let has_prefix_cache = config.cache.enable_prefix_caching;
        let pool = BlockPool::new(num_blocks, info.block_size, has_prefix_cache);
        let scheduler = Scheduler::new(
            &info.step_sizes,
            pool.with_host_blocks(info.num_offloaded_tokens / info.block_size),
            info.max_model_len,
            config.model.seed,
            Some(input_processor.tokenizer()),
        );
        Self {
            scheduler,
            executor,
            sampler,
            batch: Batch::default(),
            tasks: Vec::new(),
            input_processor,
            stages: None,
            info,
            speculation: None,
            runs_ahead: false,
            ahead: None,
            time: StepTime::default(),
        }
    }

    /// What turns prompts into requests; shared with the thread that reads rows.
    pub fn input_processor(&self) -> Arc<InputProcessor> {
        Arc::clone(&self.input_processor)
    }

    /// What other engines of its model share with it.
    pub fn shared(&self) -> Shared {
        Shared { input_processor: self.input_processor(), stages: self.stages.clone() }
    }

    /// What was loaded.
    pub fn info(&self) -> &EngineInfo {
        &self.info
    }

    /// Queues a request. It was validated by the input processor.
    pub fn add_request(&mut self, request: Request) {
        self.scheduler.add_request(request);
    }

    /// Ends a request, wherever it is, and frees its blocks; `step` returns nothing more of it, and
    /// its number may be used again. False: no request of this number is unfinished. What others
    /// answer does not change.
    pub fn abort_request(&mut self, request_id: u64) -> bool {
        if let Some(speculation) = &mut self.speculation {
            speculation.forget(request_id);
        }
        self.scheduler.abort(request_id)
    }

    /// Whether any request is waiting or running.
    pub fn has_unfinished_requests(&self) -> bool {
        self.scheduler.has_unfinished_requests()
    }

    /// One scheduling and model step; returns the requests that finished in it, and before them
    /// what is new of others that ask for it (`RequestOutputKind::Delta`). On a GPU the step after
    /// it is queued before its tokens are read, where that step is known.
    ///
    /// # Errors
    /// The device failed.
    pub fn step(&mut self) -> Result<Vec<RequestOutput>, EngineError> {
        let begin = Instant::now();
        let mut clock = begin;
        let current = match self.ahead.take() {
            Some((ahead, pending)) => {
                let (scheduled, rows) = self.scheduler.adopt(ahead);
                Current { scheduled, pending, rows: Some(rows) }
            }
            None => self.begin_step(&mut clock)?,
        };
        lap(&mut clock, &mut self.time.schedule);
        let Current { scheduled, pending, rows } = current;
        if scheduled.is_empty() {
            let outputs = self.scheduler.update(&scheduled, Vec::new());
            return Ok(self.learned_from(outputs));
        }
        self.ahead = self.begin_step_ahead(&scheduled, rows.as_deref(), &mut clock)?;
        let mut results = self.sampler.results(pending)?;
        self.executor.release();
        if let Some(rows) = rows {
            // What was finished when the step was adopted has a row in it all the same.
            results = rows.into_iter().map(|row| results[row].clone()).collect();
        }
        lap(&mut clock, &mut self.time.sample);
        let outputs = self.scheduler.update(&scheduled, results.drain(..));
        self.sampler.reuse(results);
        let outputs = self.learned_from(outputs);
        lap(&mut clock, &mut self.time.update);
        if let Some(speculation) = &mut self.speculation {
            speculation.take_in_step(&scheduled, clock - begin);
        }
        self.scheduler.reuse(scheduled);
        Ok(outputs)
    }

    /// Finished requests, once who guesses has seen them.
    fn learned_from(&mut self, outputs: Vec<RequestOutput>) -> Vec<RequestOutput> {
        if let Some(speculation) = &mut self.speculation {
            speculation.learn(&outputs);
        }
        outputs
    }

    /// Schedules a step and starts to compute it.
    fn begin_step(&mut self, clock: &mut Instant) -> Result<Current, EngineError> {
        let mut scheduled = self.scheduler.schedule();
        if let Some(speculation) = &mut self.speculation {
            let added = speculation.add_drafts(&mut self.scheduler, &mut scheduled);
            added.map_err(device_error)?;
        }
        let pending = match scheduled.is_empty() {
            true => Pending::Done(Vec::new()),
            false => self.compute(&scheduled, clock)?,
        };
        Ok(Current { scheduled, pending, rows: None })
    }

    /// Starts to compute a step and to sample from it.
    fn compute(
        &mut self,
        scheduled: &Scheduled,
        clock: &mut Instant,
    ) -> Result<Pending, EngineError> {
        self.scheduler.refill(&mut self.batch, scheduled);
        // A GPU has its logits where it samples.
        self.batch.wants_likeliest =
            !self.queues_ops() && self.scheduler.wants_likeliest(scheduled);
        lap(clock, &mut self.time.schedule);
        let mut logits = self.executor.execute(&self.batch).map_err(device_error)?;
        lap(clock, &mut self.time.execute);
        // On a GPU the forward pass runs meanwhile.
        self.sampler.fill_masks(self.scheduler.guides(scheduled), &logits);
        let mut tasks: Vec<RowTask<'_>> = std::mem::take(&mut self.tasks);
        tasks.extend(self.scheduler.row_tasks(scheduled));
        let mut pending = self.sampler.sample(logits.again(), &tasks)?;
        self.tasks = emptied(tasks);
        if let (Some(_), Pending::Done(results)) = (&self.speculation, &mut pending) {
            let Self { scheduler, sampler, .. } = self;
            sample_later_rounds((scheduler, sampler), scheduled, logits, results);
        }
        lap(clock, &mut self.time.sample);
        Ok(pending)
    }

    /// Queues the step after the current one, on a device that runs ahead.
    fn begin_step_ahead(
        &mut self,
        scheduled: &Scheduled,
        rows: Option<&[usize]>,
        clock: &mut Instant,
    ) -> Result<Option<(Ahead, Pending)>, EngineError> {
        let guesses = |speculation: &Speculation| speculation.may_guess_after(&self.scheduler);
        if !self.runs_ahead || self.speculation.as_ref().is_some_and(guesses) {
            return Ok(None);
        }
        let row_of = |result: usize| rows.map_or(result, |rows| rows[result]);
        let Some(ahead) = self.scheduler.schedule_ahead(scheduled, row_of) else {
            return Ok(None);
        };
        let pending = self.compute(&ahead.scheduled, clock)?;
        Ok(Some((ahead, pending)))
    }

    /// Times ops from now on. Limits of the machine that are not given are measured, in less than
    /// half a second. Where ops are queued their kernels are timed instead, and no graph is
    /// recorded, so that steps take longer.
    pub fn start_op_times(&mut self, given: GivenLimits) {
        self.sampler.device().start_op_times(self.info.dtype, given);
    }

    /// Whether ops are queued on a device that computes them later: a GPU.
    pub fn queues_ops(&self) -> bool {
        self.sampler.device().runs_ahead()
    }

    /// What ops cost since `start_op_times`, and the limits, of which those that are not given are
    /// measured again. None where nothing was timed.
    ///
    /// # Errors
    /// A GPU failed.
    pub fn finish_op_times(&mut self, given: GivenLimits) -> Result<Option<OpTimes>, EngineError> {
        self.sampler.device().finish_op_times(self.info.dtype, given)
    }

    /// Counters since load, and the present queue lengths.
    pub fn stats(&self) -> EngineStats {
        let stats = EngineStats { time: self.time, ..self.scheduler.stats() };
        let stats = stats.with_loras(self.executor.lora_counts());
        stats.with_parts(self.executor.part_counts()).with_encoded(self.executor.encoded())
    }
}

/// Samples after drafts that turn out to be right, in rows whose guide must hear of them first.
fn sample_later_rounds(
    (scheduler, sampler): (&mut Scheduler, &mut StepSampler),
    scheduled: &Scheduled,
    mut logits: Logits<'_>,
    results: &mut [RowResult],
) {
    for round in 1.. {
        let guides = scheduler.guides_of_round(scheduled, round, results);
        if guides.is_empty() {
            return;
        }
        sampler.fill_masks(guides, &logits);
        let tasks: Vec<_> = scheduler.tasks_of_round(scheduled, round, results).collect();
        sampler.sample_later(logits.again(), &tasks, results);
    }
}

fn decoders_input_processor(
    config: &EngineConfig,
    summary: &ModelSummary,
) -> Result<Arc<InputProcessor>, EngineError> {
    let (limits, defaults) = (summary.limits(), summary.generation_config.clone());
    let template = summary.chat_template;
    let processor = load_input_processor(config, &summary.files, (limits, defaults), template)?;
    let processor = processor.with_begun_chats(summary.begins_chats);
    with_media(processor, summary.sight(), summary.hearing()).map(Arc::new)
}

/// The same with what prompts have for images and sounds, if the model sees or hears.
fn with_media(
    processor: InputProcessor,
    sight: Option<Sight<'_>>,
    hearing: Option<Hearing<'_>>,
) -> Result<InputProcessor, EngineError> {
    if sight.is_none() && hearing.is_none() {
        return Ok(processor);
    }
    let tokenizer = processor.tokenizer();
    let processors = Processors {
        images: sight.map(image_processor).transpose()?,
        sounds: hearing.map(sound_reader).transpose()?,
    };
    let table_token = sight.and_then(|sight| sight.tower.table_token);
    let table = MediaTable::new(processors, MAX_INPUT_BYTES).with_table_token(table_token);
    if let Some(hearing) = hearing.filter(|hearing| hearing.source.is_some()) {
        return Ok(processor.with_speech(speech_input(hearing, &tokenizer)?, table));
    }
    let images = sight.map(|sight| image_input(sight, &tokenizer)).transpose()?;
    let tokens = hearing.and_then(|hearing| hearing.tower.tokens.as_ref());
    let sounds = tokens.map(|tokens| sound_input(tokens, &tokenizer)).transpose()?;
    Ok(processor.with_media(MediaInput { images, sounds }, table))
}

/// What reads the rows of a model of images alone: it has no tokenizer, and no chat template.
fn image_processor_alone(
    config: &EngineConfig,
    (limits, defaults): (ModelLimits, GenerationConfig),
) -> Result<InputProcessor, EngineError> {
    let tokenizer = Tokenizer::without_words();
    let tokenizer = tokenizer.map_err(|error| EngineError::Model(error.to_string()))?;
    InputProcessor::new(&config.model, limits, tokenizer, None, defaults)
}

/// Loads the tokenizer and the chat template, or takes the default where the files have none, or
/// one that shows no recordings, which the default does.
fn load_input_processor(
    config: &EngineConfig,
    files: &ModelFiles,
    (limits, defaults): (ModelLimits, GenerationConfig),
    default_template: Option<&str>,
) -> Result<InputProcessor, EngineError> {
    let files = match &config.model.tokenizer_dir {
        Some(path) => &ModelFiles::open(path, config.model.on_lost_file)?,
        None => files,
    };
    let error = |error: TextError| match error {
        TextError::Machine(text) => EngineError::Machine(text),
        error => EngineError::Model(error.to_string()),
    };
    let tokenizer = match files {
        ModelFiles::Gguf(file) => gguf_text::tokenizer(file),
        ModelFiles::Folder(folder) => Tokenizer::from_dir(folder),
    };
    let tokenizer = tokenizer.map_err(error)?;
    let given = |source: &str| {
        let (bos, eos) = (tokenizer.bos_token(), tokenizer.eos_token());
        ChatTemplate::new(source, bos, eos).map_err(error)
    };
    let chat_template = match (&config.model.chat_template, files) {
        (Some(source), _) => Some(given(source)?),
        (None, ModelFiles::Gguf(file)) => {
            gguf_text::chat_template(file, &tokenizer).map_err(error)?
        }
        (None, ModelFiles::Folder(folder)) => {
            let shows = |source: &str| source.contains("audio");
            let is_enough =
                |own: &ChatTemplate| !default_template.is_some_and(shows) || shows(own.source());
            let own = ChatTemplate::from_dir(folder, &tokenizer).map_err(error)?;
            let own = own.filter(is_enough);
            own.map_or_else(|| default_template.map(given).transpose(), |own| Ok(Some(own)))?
        }
    };
    InputProcessor::new(&config.model, limits, tokenizer, chat_template, defaults)
}
