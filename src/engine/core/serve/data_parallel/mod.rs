//! Several engines of one model, each on its own device and thread, behind the verbs of one. It
//! shares requests out; no byte of a row depends on which engine computes it.

mod configs;
mod member;
mod router;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::input_processor::InputProcessor;
use super::pooling::PoolingRequest;
use super::runner::{Runner, Work};
use crate::request::Request;
use crate::stats::EngineStats;
use crate::{EngineInfo, Shared};
use member::{Loaded, Member, Order, Stepped};
use router::{Load, Router};
use vllm_batch_api::answer::Answer;
use vllm_batch_api::request::{Asked, LoraId, RequestClass};
use vllm_batch_base::config::EngineConfig;
use vllm_batch_base::{EngineError, Setting};
use vllm_batch_device::WhyCpu;

/// Loads one engine by its configuration, on the thread that it is for; with what another one
/// shares, if there is one.
pub type LoadEngine =
    Arc<dyn Fn(&EngineConfig, Option<Shared>) -> Result<Runner, EngineError> + Send + Sync>;

/// How long `step` waits for an engine before it lets its caller look around.
const LOOK_AROUND: Duration = Duration::from_millis(50);

/// Sequences that wait in an engine which cannot run more.
const QUEUE: usize = 8;

/// Engines that share requests.
pub struct DataParallel {
    members: Vec<Member>,
    steps: Receiver<Stepped>,
    /// Beside `members`.
    known: Vec<Known>,
    names: Vec<String>,
    router: Router,
    /// In no engine yet, by precedence, then as they came.
    waiting: VecDeque<Work>,
    /// In an engine, by the caller's number.
    placed: HashMap<u64, Placed>,
    max_num_seqs: usize,
    makes_vectors: bool,
    info: EngineInfo,
    input_processor: Arc<InputProcessor>,
}

/// What is known of an engine.
#[derive(Clone, Debug, Default)]
struct Known {
    stats: EngineStats,
    num_tokens: usize,
    num_seqs: usize,
    /// Those of them that are rows of a batch.
    num_batch_seqs: usize,
    /// What came with each order that it may not have received when it made `stats`, oldest first.
    sent: VecDeque<Sent>,
    num_received: u64,
}

/// Sequences of an order, and whose they are.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    num_seqs: usize,
    class: RequestClass,
}

/// A request that an engine has.
#[derive(Clone, Copy, Debug)]
struct Placed {
    engine: usize,
    size: Size,
    /// Which order of this engine it was, from 1.
    order: u64,
}

/// What a request may come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    num_tokens: usize,
    num_seqs: usize,
    class: RequestClass,
}

impl DataParallel {
    /// Loads the engines: the first one, which finds the tokenizer and the size of the KV cache
    /// for all, then the others side by side.
    ///
    /// # Errors
    /// There are not so many devices, their bytes are not the same, or an engine cannot be loaded.
    pub fn load(config: &EngineConfig, load: &LoadEngine) -> Result<Self, EngineError> {
        let (mut configs, why_cpu) = configs::configs(config)?;
        let (steps_sender, steps) = channel();
        let (load_first, num_engines) = ((load.clone(), None), configs.len());
        let first = member::start(0, configs.remove(0), load_first, steps_sender.clone())?;
        let loaded = first.loaded().map_err(|error| of_engine(0, None, error))?;
        let Loaded { info, shared, makes_vectors } = loaded;
        let (mut members, mut infos) = (vec![first], vec![info]);
        for (index, mut config) in configs.into_iter().enumerate() {
            if let Some(num_blocks) = infos[0].num_cache_tokens.checked_div(infos[0].block_size)
                && num_blocks > 0
            {
                // Whether a row fits may not depend on the engine that it comes to.
                config.cache.num_blocks = Some(num_blocks);
            }
            let load = (load.clone(), Some(shared.clone()));
            members.push(member::start(index + 1, config, load, steps_sender.clone())?);
        }
        for (engine, member) in members.iter().enumerate().skip(1) {
            let loaded = member.loaded().map_err(|error| of_engine(engine, None, error))?;
            infos.push(loaded.info);
        }
        check_equal(&infos)?;
        Ok(Self {
            members,
            steps,
            known: vec![Known::default(); num_engines],
            names: infos.iter().map(|info| info.device_name.clone()).collect(),
            router: Router::default(),
            waiting: VecDeque::new(),
            placed: HashMap::new(),
            max_num_seqs: infos[0].step_sizes.max_num_seqs,
            makes_vectors,
            info: match config.parallel.num_stages() {
                1 => together(&infos, why_cpu),
                _ => over_stages(&infos),
            },
            input_processor: shared.input_processor,
        })
    }

    /// What turns prompts into requests, for all of them.
    pub fn input_processor(&self) -> Arc<InputProcessor> {
        Arc::clone(&self.input_processor)
    }

    /// What was loaded, in all.
    pub fn info(&self) -> &EngineInfo {
        &self.info
    }

    /// Whether they make vectors or classes of texts.
    pub fn makes_vectors(&self) -> bool {
        self.makes_vectors
    }

    /// Queues a request.
    pub fn add_request(&mut self, work: Work) {
        let own = work.precedence();
        let place = self.waiting.partition_point(|other| other.precedence() <= own);
        self.waiting.insert(place, work);
    }

    /// Ends a request, as `Engine::abort_request`. One that an engine has is gone from here at
    /// once; the engine frees its blocks before its next step.
    pub fn abort_request(&mut self, request_id: u64) -> bool {
        let num_waiting = self.waiting.len();
        self.waiting.retain(|work| work.request_id() != request_id);
        if self.waiting.len() < num_waiting {
            return true;
        }
        let Some(Placed { engine, size, .. }) = self.placed.remove(&request_id) else {
            return false;
        };
        self.known[engine].finishes(size);
        self.known[engine].sent.push_back(Sent::default());
        self.send(engine, Order::Abort(request_id));
        true
    }

    /// Whether any request waits or is in an engine, or an engine has not said yet that it has
    /// received the end of one.
    pub fn has_unfinished_requests(&self) -> bool {
        let is_told = |known: &Known| !known.sent.is_empty();
        !self.waiting.is_empty() || !self.placed.is_empty() || self.known.iter().any(is_told)
    }

    /// Gives requests to engines that have room, and waits for a step of any of them, for a moment;
    /// returns what has finished.
    ///
    /// # Errors
    /// A device failed.
    pub fn step(&mut self) -> Result<Vec<Answer>, EngineError> {
        self.place();
        let mut answers = Vec::new();
        if !self.has_unfinished_requests() {
            return Ok(answers);
        }
        match self.steps.recv_timeout(LOOK_AROUND) {
            Ok(stepped) => self.take(stepped, &mut answers)?,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                // Looked at first: what a thread says before it ends is there then.
                let ended = self.members.iter().position(Member::has_ended);
                match (self.steps.try_recv(), ended) {
                    (Ok(stepped), _) => self.take(stepped, &mut answers)?,
                    (Err(_), Some(engine)) => return Err(self.has_ended(engine)),
                    (Err(_), None) => {}
                }
            }
        }
        while let Ok(stepped) = self.steps.try_recv() {
            self.take(stepped, &mut answers)?;
        }
        self.place();
        Ok(answers)
    }

    /// Sums over the engines since load; what waits here waits too.
    pub fn stats(&self) -> EngineStats {
        let sum = self.known.iter().map(|known| known.stats).reduce(EngineStats::beside);
        let mut stats = sum.expect("there is an engine");
        stats.num_waiting += self.waiting.len();
        stats.num_waiting_batch += self.waiting.len() - self.first_waiting(RequestClass::Batch);
        stats
    }

    /// Where those of a class begin that wait.
    fn first_waiting(&self, class: RequestClass) -> usize {
        self.waiting.partition_point(|work| work.precedence().class < class)
    }

    /// Requests that wait go to engines. A class has room of its own, so that an engine has a
    /// choice between both.
    fn place(&mut self) {
        self.place_class(RequestClass::Online);
        self.place_class(RequestClass::Batch);
    }

    /// Those of a class, in their order, as long as an engine has room.
    fn place_class(&mut self, class: RequestClass) {
        let first = self.first_waiting(class);
        while let Some(work) = self.waiting.get(first) {
            if work.precedence().class != class {
                return;
            }
            let load = |of: &Known| of.load(self.max_num_seqs, class);
            let loads: Vec<_> = self.known.iter().map(load).collect();
            let Some(engine) = self.router.place(&work.prompts(), lora(work), &loads) else {
                return;
            };
            let work = self.waiting.remove(first).expect("it was looked at");
            let (size, request_id) = (Size::of(&work), work.request_id());
            let order = self.known[engine].sends(size);
            let before = self.placed.insert(request_id, Placed { engine, size, order });
            assert!(before.is_none(), "a request's number is its own");
            self.send(engine, Order::Add(Box::new(work)));
        }
    }

    /// Gives an engine an order. What happens to one that an ended thread gets, `step` says.
    fn send(&self, engine: usize, order: Order) {
        let _ = self.members[engine].orders().send(order);
    }

    /// Takes in what an engine says.
    fn take(&mut self, stepped: Stepped, answers: &mut Vec<Answer>) -> Result<(), EngineError> {
        let Stepped { engine, num_received, stats, result } = stepped;
        let result = result.map_err(|error| of_engine(engine, self.names.get(engine), error))?;
        self.known[engine].receives(num_received, stats);
        for answer in result {
            let of_it = |placed: &Placed| placed.engine == engine && placed.order <= num_received;
            let request_id = answer.request_id();
            // One that was aborted meanwhile is not here, or is another one of its number.
            let Some(Placed { size, .. }) = self.placed.get(&request_id).copied().filter(of_it)
            else {
                continue;
            };
            if answer.is_finished() {
                self.placed.remove(&request_id);
                self.known[engine].finishes(size);
            }
            answers.push(answer);
        }
        Ok(())
    }

    fn has_ended(&self, engine: usize) -> EngineError {
        let error = EngineError::Device("its thread has ended".to_owned());
        of_engine(engine, self.names.get(engine), error)
    }
}

impl Known {
    /// For the router, of a request of a class. What an engine has not received yet may be run, or
    /// may have to wait. Rows of a batch give way, so those that wait are not in anybody's.
    fn load(&self, max_num_seqs: usize, class: RequestClass) -> Load {
        let sent = self.sent.iter().filter(|sent| sent.class == class);
        let on_its_way: usize = sent.map(|sent| sent.num_seqs).sum();
        let EngineStats { num_waiting, num_waiting_batch, .. } = self.stats;
        let (num_waiting, num_seqs) = match class {
            RequestClass::Online => {
                (num_waiting - num_waiting_batch, self.num_seqs - self.num_batch_seqs)
            }
            RequestClass::Batch => (num_waiting_batch, self.num_seqs),
        };
        let runs_all = num_waiting == 0 && num_seqs < max_num_seqs;
        let has_room = runs_all || num_waiting + on_its_way < QUEUE;
        Load { num_tokens: self.num_tokens, has_room }
    }

    /// Which order the next one is.
    fn sends(&mut self, size: Size) -> u64 {
        self.num_tokens += size.num_tokens;
        self.num_seqs += size.num_seqs;
        self.num_batch_seqs += size.num_batch_seqs();
        self.sent.push_back(Sent { num_seqs: size.num_seqs, class: size.class });
        self.num_received + self.sent.len() as u64
    }

    fn receives(&mut self, num_received: u64, stats: EngineStats) {
        self.sent.drain(..(num_received - self.num_received) as usize);
        self.num_received = num_received;
        self.stats = stats;
    }

    fn finishes(&mut self, size: Size) {
        self.num_tokens -= size.num_tokens;
        self.num_seqs -= size.num_seqs;
        self.num_batch_seqs -= size.num_batch_seqs();
    }
}

impl Size {
    fn of(work: &Work) -> Self {
        let num_prompt_tokens: usize = work.prompts().iter().map(|prompt| prompt.len()).sum();
        let (num_seqs, num_output_tokens) = match work {
            Work::Generate(Request { asked: Asked::Completions, params, .. }) => {
                let beams = params.beam_search.as_ref().map_or(1, |beams| beams.beam_width);
                (params.n.max(beams) as usize, params.max_tokens.unwrap_or(0) as usize)
            }
            Work::Generate(_) | Work::Pooling(_) => (work.prompts().len(), 0),
        };
        let num_tokens = num_prompt_tokens + num_seqs * num_output_tokens;
        Self { num_tokens, num_seqs: num_seqs.max(1), class: work.precedence().class }
    }

    fn num_batch_seqs(self) -> usize {
        if self.class == RequestClass::Batch { self.num_seqs } else { 0 }
    }
}

fn lora(work: &Work) -> Option<LoraId> {
    match work {
        Work::Generate(Request { lora, .. }) | Work::Pooling(PoolingRequest { lora, .. }) => *lora,
    }
}

/// The same error, with the engine and its device.
fn of_engine(engine: usize, device: Option<&String>, error: EngineError) -> EngineError {
    match device {
        Some(device) => error.of(&format!("engine {engine} ({device})")),
        None => error.of(&format!("engine {engine}")),
    }
}

/// # Errors
/// Two engines would not give the same bytes.
fn check_equal(infos: &[EngineInfo]) -> Result<(), EngineError> {
    let first = &infos[0];
    match infos.iter().position(|info| info.kernel_set != first.kernel_set) {
        None => Ok(()),
        Some(other) => {
            let text = format!(
                "engine 0 ({}, kernels {}) and engine {other} ({}, kernels {}) would not give the \
                 same bytes",
                first.device_name,
                first.kernel_set,
                infos[other].device_name,
                infos[other].kernel_set
            );
            let help = "take devices of one kind";
            Err(EngineError::setting(Setting::DataParallelSize, text, help))
        }
    }
}

/// What was loaded, of engines that share the stages of one model.
fn over_stages(infos: &[EngineInfo]) -> EngineInfo {
    let (first, num) = (&infos[0], infos.len());
    let mib = first.kv_cache_bytes as f64 / f64::from(1u32 << 20);
    let note =
        format!("{num} steps are under way at a time, each of rows with {mib:.1} MiB of KV cache");
    EngineInfo {
        notes: first.notes.iter().cloned().chain([note]).collect(),
        num_cache_tokens: num * first.num_cache_tokens,
        kv_cache_bytes: num * first.kv_cache_bytes,
        ..first.clone()
    }
}

/// What was loaded, in all.
fn together(infos: &[EngineInfo], why_cpu: Option<WhyCpu>) -> EngineInfo {
    let (first, num) = (&infos[0], infos.len());
    let mut notes: Vec<String> = infos.iter().flat_map(|info| info.notes.iter().cloned()).collect();
    notes.dedup();
    let mib = |bytes: u64| bytes as f64 / f64::from(1u32 << 20);
    notes.push(format!(
        "{num} engines, each with its own {:.1} MiB of weights and {:.1} MiB of KV cache",
        mib(first.weight_bytes),
        mib(first.kv_cache_bytes as u64),
    ));
    let sum = |of: &dyn Fn(&EngineInfo) -> usize| infos.iter().map(of).sum();
    EngineInfo {
        device_name: format!("{num} x {}", first.device_name),
        why_cpu,
        notes,
        num_threads: sum(&|info| info.num_threads),
        weight_bytes: infos.iter().map(|info| info.weight_bytes).sum(),
        num_cache_tokens: sum(&|info| info.num_cache_tokens),
        kv_cache_bytes: sum(&|info| info.kv_cache_bytes),
        num_offloaded_tokens: sum(&|info| info.num_offloaded_tokens),
        ..first.clone()
    }
}
