//! The scheduler against an oracle, over thousands of random workloads.
//!
//! The executor's "model" is a hash of the tokens that it reads back through the block table, so an
//! error in block tables, slots, prefix hits, chunking or preemption changes the generated text.
//!
//! `VLLM_BATCH_TEST_SIMULATION_SEED=17 cargo test --test engine simulation` runs one seed alone,
//! `VLLM_BATCH_TEST_SIMULATION_SEEDS=1000000` many more than usual.

mod beams;
mod deltas;
mod guesses;
mod oracle;
pub(super) mod workload;

use std::collections::{HashMap, HashSet};
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use deltas::Deltas;
use guesses::Guesses;
use oracle::Oracle;
use vllm_batch::engine::api::request::{Asked, FinishReason, RequestOutput, StopReason};
use vllm_batch::engine::core::execute::executor::Executor;
use vllm_batch::engine::core::execute::simulated_executor::SimulatedExecutor;
use vllm_batch::engine::core::plan::block_pool::BlockPool;
use vllm_batch::engine::core::plan::scheduler::{Ahead, Scheduled, Scheduler};
use vllm_batch::engine::core::request::Request;
use vllm_batch::engine::core::sampler::{RowResult, SamplerScratch, run_row};
use vllm_batch::engine::ops::batch::Batch;
use vllm_batch::engine::text::Tokenizer;
use workload::{VOCAB_SIZE, Workload};

use crate::random::Rng;

const NUM_SEEDS: u64 = 10_000;
const NUM_THREADS: usize = 2;

/// What the seeds have met, so that the test cannot pass by testing nothing.
#[derive(Debug, Default)]
struct Coverage {
    steps: u64,
    steps_ahead: u64,
    /// Sequences that were finished when their step ahead was adopted.
    rows_in_vain: u64,
    /// Sequences that began in a step ahead, and chunks of prompts that went on in one.
    admitted_ahead: u64,
    chunks_ahead: u64,
    preemptions: u64,
    /// Those of rows of a batch.
    batch_preemptions: u64,
    cached_tokens: u64,
    siblings: u64,
    stop_strings: u64,
    stop_tokens: u64,
    lengths: u64,
    /// Deltas of requests that ask for them, the last ones too.
    deltas: u64,
    /// Requests that were aborted, those of them in whose time a step was begun ahead, and those
    /// whose number came again.
    aborts: u64,
    aborts_ahead: u64,
    came_again: u64,
    too_small: u64,
    nothing_allowed: u64,
    prompt_logprobs: u64,
    beams: u64,
    block_copies: u64,
    /// Blocks that went to the host's, and those that came back.
    offloaded_blocks: u64,
    returned_blocks: u64,
    /// Steps of several adapters.
    steps_of_loras: u64,
    /// Requests of known texts that were answered.
    scored: u64,
    /// Requests that generate nothing by a `max_tokens` of 0.
    nothing_generated: u64,
    drafts_right: u64,
    drafts_wrong: u64,
}

impl Coverage {
    fn assert_rich(&self) {
        let Self { preemptions, cached_tokens, siblings, stop_strings, stop_tokens, .. } = *self;
        let Self { lengths, aborts, too_small, nothing_allowed, prompt_logprobs, .. } = *self;
        let Self { steps_ahead, rows_in_vain, beams, block_copies, scored, .. } = *self;
        let Self { nothing_generated, steps_of_loras, admitted_ahead, chunks_ahead, .. } = *self;
        let Self { drafts_right, drafts_wrong, offloaded_blocks, returned_blocks, .. } = *self;
        let Self { aborts_ahead, came_again, deltas, .. } = *self;
        assert!(steps_ahead > 20_000 && rows_in_vain > 1000, "{self:?}");
        let events = [
            scored,
            admitted_ahead,
            chunks_ahead,
            nothing_generated,
            beams,
            block_copies,
            offloaded_blocks,
            steps_of_loras,
            preemptions,
            siblings,
            stop_strings,
            stop_tokens,
            lengths,
            aborts,
        ];
        let rarer = [too_small, nothing_allowed, aborts_ahead, came_again];
        let tokens = [cached_tokens, prompt_logprobs, deltas];
        assert!(returned_blocks > 1000, "{self:?}");
        assert!(drafts_right > 10_000 && drafts_wrong > 20_000, "{self:?}");
        assert!(events.iter().all(|&count| count > 2000), "{self:?}");
        assert!(rarer.iter().all(|&count| count > 200), "{self:?}");
        assert!(tokens.iter().all(|&count| count > 50_000), "{self:?}");
    }
}

impl AddAssign for Coverage {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.steps_ahead += other.steps_ahead;
        self.rows_in_vain += other.rows_in_vain;
        self.admitted_ahead += other.admitted_ahead;
        self.chunks_ahead += other.chunks_ahead;
        self.preemptions += other.preemptions;
        self.batch_preemptions += other.batch_preemptions;
        self.cached_tokens += other.cached_tokens;
        self.siblings += other.siblings;
        self.stop_strings += other.stop_strings;
        self.stop_tokens += other.stop_tokens;
        self.lengths += other.lengths;
        self.deltas += other.deltas;
        self.aborts += other.aborts;
        self.aborts_ahead += other.aborts_ahead;
        self.came_again += other.came_again;
        self.too_small += other.too_small;
        self.nothing_allowed += other.nothing_allowed;
        self.prompt_logprobs += other.prompt_logprobs;
        self.beams += other.beams;
        self.block_copies += other.block_copies;
        self.offloaded_blocks += other.offloaded_blocks;
        self.returned_blocks += other.returned_blocks;
        self.steps_of_loras += other.steps_of_loras;
        self.scored += other.scored;
        self.nothing_generated += other.nothing_generated;
        self.drafts_right += other.drafts_right;
        self.drafts_wrong += other.drafts_wrong;
    }
}

/// One seed's run.
struct Simulation {
    workload: Workload,
    scheduler: Scheduler,
    executor: SimulatedExecutor,
    batch: Batch,
    scratch: SamplerScratch,
    outputs: Vec<RequestOutput>,
    /// What came of requests before they were finished.
    deltas: Deltas,
    /// Requests that have no output.
    aborted: HashSet<u64>,
    /// Guesses tokens, in some runs.
    guesses: Option<Guesses>,
    /// Steps are begun before the tokens of the one before are taken in, as on a GPU.
    runs_ahead: bool,
    /// The step after the last one, with its logits.
    ahead: Option<(Ahead, Vec<f32>)>,
    num_aborts: u64,
    num_aborts_ahead: u64,
    num_came_again: u64,
    num_steps_ahead: u64,
    num_rows_in_vain: u64,
    num_admitted_ahead: u64,
    num_chunks_ahead: u64,
    num_block_copies: u64,
    /// Those of the device.
    num_blocks: u32,
    num_steps_of_loras: u64,
}

impl Simulation {
    fn new(rng: &mut Rng, tokenizer: &Arc<Tokenizer>, pieces: &[String]) -> Self {
        let workload = Workload::new(rng);
        let Workload { sizes, block_size, num_blocks, max_model_len, .. } = &workload;
        let has_prefix_cache = workload.enable_prefix_caching;
        let has_host_blocks = has_prefix_cache && !rng.once_in(4);
        let num_host_blocks = if has_host_blocks { 1 + rng.up_to(2 * num_blocks) } else { 0 };
        let pool = BlockPool::new(*num_blocks, *block_size, has_prefix_cache)
            .with_host_blocks(num_host_blocks);
        let mut scheduler = Scheduler::new(
            sizes,
            pool,
            *max_model_len,
            workload.engine_seed,
            Some(Arc::clone(tokenizer)),
        );
        let guesses =
            rng.once_in(4).then(|| Guesses::new(rng, &Oracle { workload: &workload, pieces }));
        let all_blocks = num_blocks + num_host_blocks;
        let executor = match guesses {
            // After drafts a sequence goes back to any token.
            Some(_) => SimulatedExecutor::without_states(all_blocks, *block_size, VOCAB_SIZE),
            None => {
                scheduler.goes_back_to_blocks();
                SimulatedExecutor::new(all_blocks, *block_size, VOCAB_SIZE)
            }
        };
        let num_blocks = *num_blocks as u32;
        Self {
            workload,
            scheduler,
            executor,
            batch: Batch::default(),
            scratch: SamplerScratch::default(),
            outputs: Vec::new(),
            deltas: Deltas::default(),
            aborted: HashSet::new(),
            guesses,
            runs_ahead: rng.once_in(2),
            ahead: None,
            num_aborts: 0,
            num_aborts_ahead: 0,
            num_came_again: 0,
            num_steps_ahead: 0,
            num_rows_in_vain: 0,
            num_admitted_ahead: 0,
            num_chunks_ahead: 0,
            num_block_copies: 0,
            num_blocks,
            num_steps_of_loras: 0,
        }
    }

    /// Adds requests at random times and steps until all are finished.
    fn run(&mut self, rng: &mut Rng, pieces: &[String]) {
        let mut num_added = 0;
        let num_requests = self.workload.requests.len();
        let patience = 1 + rng.up_to(8);
        let aborts = rng.once_in(4);
        for _ in 0..100_000 {
            while num_added < num_requests && rng.once_in(patience) {
                self.scheduler.add_request(self.workload.requests[num_added].clone());
                num_added += 1;
            }
            if num_added == num_requests && !self.scheduler.has_unfinished_requests() {
                return;
            }
            self.step();
            if aborts && rng.once_in(20) {
                self.abort((rng.up_to(num_requests - 1), num_added), rng, pieces);
            }
            if aborts && num_added == num_requests && rng.once_in(100) {
                for victim in 0..num_requests {
                    self.abort((victim, num_added), rng, pieces);
                }
            }
        }
        panic!("the scheduler makes no progress");
    }

    /// Ends a request, where it is unfinished. Some come again at once, under the same number.
    fn abort(&mut self, (victim, num_added): (usize, usize), rng: &mut Rng, pieces: &[String]) {
        let request = &self.workload.requests[victim];
        let request_id = request.request_id;
        let is_answered = self.outputs.iter().any(|output| output.request_id == request_id);
        let is_unfinished =
            victim < num_added && !is_answered && !self.aborted.contains(&request_id);
        assert_eq!(self.scheduler.abort(request_id), is_unfinished);
        self.scheduler.assert_consistent();
        if !is_unfinished {
            return;
        }
        let oracle = Oracle { workload: &self.workload, pieces };
        self.deltas.check_aborted(&oracle, request);
        self.num_aborts += 1;
        self.num_aborts_ahead += u64::from(self.ahead.is_some());
        if rng.once_in(3) {
            self.num_came_again += 1;
            self.scheduler.add_request(request.clone());
        } else {
            self.aborted.insert(request_id);
        }
    }

    fn step(&mut self) {
        let (step, mut logits) = match self.ahead.take() {
            Some((ahead, logits)) => self.adopt(ahead, &logits),
            None => self.begin(),
        };
        let limits = &self.workload.sizes;
        assert!(step.num_tokens <= limits.max_num_batched_tokens);
        assert!(step.seqs.len() <= limits.max_num_seqs);
        let loras = step.seqs.iter().filter_map(|s| self.scheduler.seq(s.slot).request.lora);
        let num_loras = loras.collect::<HashSet<_>>().len();
        assert!(num_loras <= limits.max_loras);
        self.num_steps_of_loras += u64::from(num_loras > 1);
        assert!(self.scheduler.stats().num_running <= limits.max_num_seqs);
        let num_prompt_logits: usize = step.seqs.iter().map(|s| s.num_prompt_logits).sum();
        assert!(num_prompt_logits <= limits.max_num_prompt_logits);
        let tasks: Vec<_> = self.scheduler.row_tasks(&step).collect();
        assert_eq!(tasks.len(), logits.len() / VOCAB_SIZE);
        let rows = logits.chunks_exact_mut(VOCAB_SIZE);
        let results: Vec<_> =
            rows.zip(&tasks).map(|(row, task)| run_row(row, task, &mut self.scratch)).collect();
        if self.runs_ahead && !step.is_empty() {
            self.begin_ahead(&step, &results);
        }
        for mut output in self.scheduler.update(&step, results) {
            self.deltas.take_in(&mut output);
            self.outputs.extend(output.finished.then_some(output));
        }
        self.scheduler.assert_consistent();
    }

    /// A step from the queues, and its logits.
    fn begin(&mut self) -> (Scheduled, Vec<f32>) {
        let mut step = self.scheduler.schedule();
        if let Some(guesses) = &mut self.guesses {
            guesses.add_to(&mut self.scheduler, &mut step);
        }
        if step.is_empty() {
            return (step, Vec::new());
        }
        self.scheduler.refill(&mut self.batch, &step);
        assert_eq!(self.batch.num_tokens(), step.num_tokens);
        let is_of_beams = |copy: &&(u32, u32)| copy.0.max(copy.1) < self.num_blocks;
        self.num_block_copies += step.block_copies.iter().filter(is_of_beams).count() as u64;
        let logits = self.executor.execute(&self.batch).expect("it cannot fail");
        (step, logits.tensor.values().to_vec())
    }

    /// Executes the step after `step`, whose tokens the scheduler does not know yet.
    fn begin_ahead(&mut self, step: &Scheduled, results: &[RowResult]) {
        let Some(ahead) = self.scheduler.schedule_ahead(step, |row| row) else { return };
        self.scheduler.refill(&mut self.batch, &ahead.scheduled);
        assert_eq!(self.batch.num_tokens(), ahead.scheduled.num_tokens);
        // What take_sampled.cu does.
        let token = |row: u32| match &results[row as usize] {
            RowResult::Sampled { token_id, .. } => *token_id,
            _ => 0,
        };
        let ids = self.batch.input_ids.iter_mut().zip(&self.batch.sampled_rows);
        let unknown = ids.filter(|(_, row)| **row != Batch::KNOWN);
        unknown.for_each(|(id, row)| *id = token(*row));
        self.count_ahead(&ahead.scheduled, step);
        let logits = self.executor.execute(&self.batch).expect("it cannot fail");
        self.ahead = Some((ahead, logits.tensor.values().to_vec()));
    }

    /// Counts what a step ahead consists of: it goes on from `step`.
    fn count_ahead(&mut self, ahead: &Scheduled, step: &Scheduled) {
        self.num_steps_ahead += 1;
        for entry in &ahead.seqs {
            let is_new = step.seqs.iter().all(|before| before.slot != entry.slot);
            self.num_admitted_ahead += u64::from(is_new);
            self.num_chunks_ahead += u64::from(!is_new && entry.num_tokens > 1);
        }
    }

    /// What is left of a step ahead, and its logits.
    fn adopt(&mut self, ahead: Ahead, logits: &[f32]) -> (Scheduled, Vec<f32>) {
        let num_seqs = ahead.scheduled.seqs.len();
        let (step, rows) = self.scheduler.adopt(ahead);
        self.num_rows_in_vain += (num_seqs - step.seqs.len()) as u64;
        let row = |row: usize| &logits[row * VOCAB_SIZE..(row + 1) * VOCAB_SIZE];
        (step, rows.into_iter().flat_map(row).copied().collect())
    }

    /// Every request once, with the oracle's completions, whoever was aborted beside it; nothing
    /// left behind.
    fn check(&self, pieces: &[String]) -> Coverage {
        let stats = self.scheduler.stats();
        assert_eq!((stats.num_running, stats.num_waiting, stats.num_used_blocks), (0, 0, 0));
        let mut coverage = Coverage {
            steps: stats.num_steps,
            aborts: self.num_aborts,
            aborts_ahead: self.num_aborts_ahead,
            came_again: self.num_came_again,
            steps_ahead: self.num_steps_ahead,
            rows_in_vain: self.num_rows_in_vain,
            admitted_ahead: self.num_admitted_ahead,
            chunks_ahead: self.num_chunks_ahead,
            preemptions: stats.num_preemptions,
            batch_preemptions: stats.num_batch_preemptions,
            cached_tokens: stats.num_cached_tokens,
            block_copies: self.num_block_copies,
            offloaded_blocks: stats.num_offloaded_blocks,
            returned_blocks: stats.num_returned_blocks,
            steps_of_loras: self.num_steps_of_loras,
            drafts_right: stats.num_accepted_tokens,
            drafts_wrong: stats.num_draft_tokens - stats.num_accepted_tokens,
            ..Coverage::default()
        };
        let mut requests: HashMap<u64, &Request> =
            self.workload.requests.iter().map(|r| (r.request_id, r)).collect();
        let oracle = Oracle { workload: &self.workload, pieces };
        for output in &self.outputs {
            let request = requests.remove(&output.request_id).expect("it was asked for, once");
            check_request(&oracle, request, output, &mut coverage);
            coverage.deltas += self.deltas.check(request, output);
        }
        let without_output: HashSet<u64> = requests.into_keys().collect();
        assert_eq!(without_output, self.aborted);
        coverage
    }
}

fn check_request(
    oracle: &Oracle,
    request: &Request,
    output: &RequestOutput,
    coverage: &mut Coverage,
) {
    assert_eq!(output.prompt_token_ids, request.prompt_token_ids);
    assert!(output.num_cached_tokens < request.prompt_token_ids.len());
    if request.params.beam_search.is_some() {
        return check_beams(oracle, request, output, coverage);
    }
    if request.asked != Asked::Completions {
        return check_scored(oracle, request, output, coverage);
    }
    coverage.nothing_generated += u64::from(request.params.max_tokens == Some(0));
    assert_eq!(output.outputs.len(), request.params.n as usize);
    coverage.siblings += output.outputs.len() as u64 - 1;
    for (index, actual) in (0..).zip(&output.outputs) {
        let expected = oracle.completion(request, index);
        assert_eq!(actual.index, index);
        assert_eq!(actual.token_ids, expected.token_ids);
        assert_eq!(actual.text, expected.text);
        assert_eq!(actual.finish_reason, expected.finish_reason);
        assert_eq!(actual.stop_reason, expected.stop_reason);
        assert_eq!(actual.logprobs, expected.logprobs);
        assert_eq!(actual.cumulative_logprob, expected.cumulative_logprob);
        let error = actual.error.as_ref().map(|e| e.code);
        assert_eq!(error, expected.error.as_ref().map(|e| e.code));
        match (actual.finish_reason, &actual.stop_reason) {
            (FinishReason::Stop, Some(StopReason::Text(_))) => coverage.stop_strings += 1,
            (FinishReason::Stop, _) => coverage.stop_tokens += 1,
            (FinishReason::Length, _) => coverage.lengths += 1,
            _ if error == Some("kv_cache_too_small") => coverage.too_small += 1,
            _ => coverage.nothing_allowed += 1,
        }
    }
    check_prompt_logprobs(oracle, request, output, coverage);
}

fn check_scored(
    oracle: &Oracle,
    request: &Request,
    output: &RequestOutput,
    coverage: &mut Coverage,
) {
    let [only] = &output.outputs[..] else { panic!("{} outputs", output.outputs.len()) };
    assert!(only.token_ids.is_empty() && only.text.is_empty());
    match only.finish_reason {
        FinishReason::Error => {
            assert_eq!(only.error.as_ref().map(|error| error.code), Some("kv_cache_too_small"));
            assert!(!oracle.texts_fit(request));
            coverage.too_small += 1;
        }
        _ => {
            assert!(oracle.texts_fit(request));
            assert_eq!(output.scored, oracle.scored(request));
            coverage.scored += 1;
        }
    }
}

fn check_beams(
    oracle: &Oracle,
    request: &Request,
    output: &RequestOutput,
    coverage: &mut Coverage,
) {
    let expected = oracle.beams(request);
    if expected.is_empty() {
        let codes = output.outputs.iter().map(|beam| beam.error.as_ref().map(|e| e.code));
        assert!(codes.into_iter().all(|code| code == Some("kv_cache_too_small")));
        coverage.too_small += 1;
        return;
    }
    assert_eq!(output.outputs.len(), expected.len());
    for (index, (actual, expected)) in (0..).zip(output.outputs.iter().zip(&expected)) {
        assert_eq!(actual.index, index);
        assert_eq!(actual.token_ids, expected.token_ids);
        let bits = actual.cumulative_logprob.map(f64::to_bits);
        assert_eq!(bits, Some(expected.cumulative_logprob.to_bits()));
        assert_eq!(actual.logprobs, request.params.logprobs.map(|_| expected.logprobs.clone()));
        let last = expected.token_ids.last().copied().expect("a token at least");
        let (shown, reason, stop_reason) = match expected.ended {
            true => (
                expected.token_ids.len() - usize::from(!request.params.include_stop_str_in_output),
                FinishReason::Stop,
                Some(StopReason::TokenId(last)),
            ),
            false => (expected.token_ids.len(), FinishReason::Length, None),
        };
        assert_eq!(actual.text, oracle.text(request, &expected.token_ids[..shown]));
        assert_eq!((actual.finish_reason, &actual.stop_reason), (reason, &stop_reason));
        coverage.beams += 1;
    }
}

fn check_prompt_logprobs(
    oracle: &Oracle,
    request: &Request,
    output: &RequestOutput,
    coverage: &mut Coverage,
) {
    let expected = oracle.prompt_logprobs(request);
    let (Some(actual), Some(expected)) = (&output.prompt_logprobs, &expected) else {
        assert_eq!(output.prompt_logprobs, expected);
        return;
    };
    let is_whole = match request.params.max_tokens {
        Some(0) => output.outputs[0].finish_reason == FinishReason::Length,
        _ => !output.outputs[0].token_ids.is_empty(),
    };
    assert!(actual.len() == expected.len() || !is_whole);
    assert!(expected.starts_with(actual));
    coverage.prompt_logprobs += actual.len() as u64;
}

fn run_seed(seed: u64, mixes: bool, tokenizer: &Arc<Tokenizer>, pieces: &[String]) -> Coverage {
    let mut rng = Rng(seed.wrapping_mul(0xD6E8_FEB8_6659_FD93));
    let mut simulation = Simulation::new(&mut rng, tokenizer, pieces);
    if mixes {
        simulation.workload.mix_classes(&mut Rng(seed ^ 0x5EED));
    }
    simulation.run(&mut rng, pieces);
    simulation.check(pieces)
}

/// Runs seeds from a shared counter; stops at the first that fails.
fn run_seeds(
    (next, num_seeds): (&AtomicU64, u64),
    mixes: bool,
    tokenizer: &Arc<Tokenizer>,
) -> Coverage {
    let pieces = workload::pieces();
    let mut coverage = Coverage::default();
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= num_seeds {
            return coverage;
        }
        match catch_unwind(AssertUnwindSafe(|| run_seed(seed, mixes, tokenizer, &pieces))) {
            Ok(of_seed) => coverage += of_seed,
            Err(_) => panic!("seed {seed} fails; rerun: VLLM_BATCH_TEST_SIMULATION_SEED={seed}"),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the environment selects seeds of this test only")]
fn number_from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

#[test]
fn every_request_is_answered_as_the_oracle_says() {
    if let Some((num_seeds, coverage)) = run_all(false)
        && num_seeds >= NUM_SEEDS
    {
        coverage.assert_rich();
    }
}

/// Somebody waits for some requests, and others are rows of a batch; priorities differ.
#[test]
fn whoever_goes_first_every_request_is_answered_as_the_oracle_says() {
    if let Some((num_seeds, coverage)) = run_all(true)
        && num_seeds >= NUM_SEEDS
    {
        let Coverage { batch_preemptions, steps_ahead, rows_in_vain, .. } = coverage;
        assert!(batch_preemptions > 4000 && steps_ahead > 10_000 && rows_in_vain > 500);
    }
}

/// Runs all seeds, unless the environment names one.
fn run_all(mixes: bool) -> Option<(u64, Coverage)> {
    let tokenizer = Arc::new(workload::tokenizer());
    if let Some(seed) = number_from_env("VLLM_BATCH_TEST_SIMULATION_SEED") {
        run_seed(seed, mixes, &tokenizer, &workload::pieces());
        return None;
    }
    let num_seeds = number_from_env("VLLM_BATCH_TEST_SIMULATION_SEEDS").unwrap_or(NUM_SEEDS);
    let next = AtomicU64::new(0);
    let mut coverage = Coverage::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..NUM_THREADS)
            .map(|_| scope.spawn(|| run_seeds((&next, num_seeds), mixes, &tokenizer)))
            .collect();
        threads.into_iter().for_each(|t| coverage += t.join().expect("all seeds pass"));
    });
    println!("{num_seeds} seeds: {coverage:?}");
    Some((num_seeds, coverage))
}
