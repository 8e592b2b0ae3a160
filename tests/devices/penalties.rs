//! Penalties on a GPU: what it counts of sequences whatever becomes of them, against the sampler of
//! the host, which counts anew for every row.

use std::sync::Arc;

use vllm_batch::engine::api::request::{RowKey, SamplingParams};
use vllm_batch::engine::core::execute::executor::Logits;
use vllm_batch::engine::core::execute::step_sampler::{Pending, StepSampler};
use vllm_batch::engine::core::request::StopIds;
use vllm_batch::engine::core::sampler::{RowResult, RowTask, SampleTask, SamplerScratch, run_row};
use vllm_batch::engine::device::Device;

use crate::step_sampler::{Rng, gpu_sampler};

const VOCAB_SIZE: usize = 400;

/// What a test knows of a sequence whose tokens penalties count.
struct Growing {
    params: SamplingParams,
    prompt: Vec<u32>,
    output: Vec<u32>,
    id: u64,
}

impl Growing {
    /// Greedy: every token is exact.
    fn new(rng: &mut Rng, id: u64) -> Self {
        let mut params = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        let kind = id % 4;
        if kind != 0 {
            params.repetition_penalty = [1.0, 1.4, 0.7, 1.1][kind as usize];
            params.frequency_penalty = [0.0, 0.3, 0.0, 1.5][kind as usize];
            params.presence_penalty = [0.0, -0.4, 0.0, 0.8][kind as usize];
        }
        if id % 5 == 1 {
            params.logit_bias = (0..3).map(|_| (rng.below(VOCAB_SIZE) as u32, 1.5)).collect();
        }
        if id % 7 == 2 {
            params.allowed_token_ids = Some((0..VOCAB_SIZE as u32 / 2).collect());
        }
        // One is no token of the model.
        let prompt = (0..1 + rng.below(300)).map(|_| rng.below(VOCAB_SIZE + 1) as u32).collect();
        Self { params, prompt, output: Vec::new(), id }
    }

    fn task<'a>(&'a self, output: &'a [u32], num_drafts: usize) -> SampleTask<'a> {
        SampleTask {
            params: &self.params,
            prompt_token_ids: &self.prompt,
            output_token_ids: output,
            num_drafts,
            sampled_row: None,
            stop_ids: const { &StopIds { eos_token_id: None, stop_token_ids: Vec::new() } },
            bad_words_token_ids: &[],
            row_key: RowKey(self.id),
            engine_seed: 5,
            // Completions of one request are sequences of their own.
            request_id: self.id / 3,
            sample_index: self.id as u32 % 3,
            token_mask: None,
        }
    }

    /// What the host samples of a row of logits.
    fn on_host(&self, output: &[u32], logits: &[f32]) -> u32 {
        let task = RowTask::Sample(self.task(output, 0));
        match run_row(&mut logits.to_vec(), &task, &mut SamplerScratch::default()) {
            RowResult::Sampled { token_id, .. } => token_id,
            other => panic!("{other:?}"),
        }
    }

    /// Whether it may be sampled before its last token is known.
    fn runs_ahead(&self) -> bool {
        self.params.logit_bias.is_empty() && self.params.allowed_token_ids.is_none()
    }
}

/// Rows of few different logits, so that penalties decide, on the device and on the host.
fn few_values(rng: &mut Rng, num_rows: usize) -> Vec<Vec<f32>> {
    let row = |rng: &mut Rng| (0..VOCAB_SIZE).map(|_| rng.below(7) as f32 - 3.0).collect();
    (0..num_rows).map(|_| row(rng)).collect()
}

fn tokens(results: &[RowResult]) -> Vec<u32> {
    let token = |result: &RowResult| match result {
        RowResult::Sampled { token_id, .. } => *token_id,
        other => panic!("{other:?}"),
    };
    results.iter().map(token).collect()
}

/// Queues a step of these rows of logits.
fn queue(
    device: &Arc<Device>,
    logits: &[Vec<f32>],
    sample: impl FnOnce(Logits<'_>) -> Pending,
) -> Pending {
    let mut tensor = device.upload(logits.concat(), logits[0].len()).expect("memory");
    device.finish_loading().expect("the copies arrive");
    sample(Logits { tensor: &mut tensor, likeliest: &[] })
}

/// One row of a step: which sequence, its output with guesses, and how many those are.
struct Row {
    place: usize,
    output: Vec<u32>,
    num_drafts: usize,
}

/// Sequences, and a step of them.
struct Round<'a> {
    running: &'a mut [Growing],
    rows: Vec<Row>,
    logits: Vec<Vec<f32>>,
}

impl<'a> Round<'a> {
    /// Every third sequence guesses: what is right, what is wrong, what is there already.
    fn new(rng: &mut Rng, running: &'a mut [Growing], step: usize) -> Self {
        let (logits, mut rows) = (few_values(rng, 3 * running.len()), Vec::new());
        for (place, sequence) in running.iter().enumerate() {
            let mut output = sequence.output.clone();
            let num_drafts = if (step + place).is_multiple_of(3) { 2 } else { 0 };
            for draft in 0..=num_drafts {
                let right = sequence.on_host(&output, &logits[rows.len()]);
                rows.push(Row { place, output: output.clone(), num_drafts: draft });
                let is_wrong = rng.below(3) == 0;
                output.push(if is_wrong { rng.below(VOCAB_SIZE) as u32 } else { right });
            }
        }
        Self { running, logits: logits[..rows.len()].to_vec(), rows }
    }

    fn queue(&self, device: &Arc<Device>, sampler: &mut StepSampler) -> Pending {
        let of_place = |place: usize| &self.running[place];
        let tasks: Vec<_> = (self.rows.iter())
            .map(|row| RowTask::Sample(of_place(row.place).task(&row.output, row.num_drafts)))
            .collect();
        queue(device, &self.logits, |logits| sampler.sample(logits, &tasks).expect("it works"))
    }

    /// The host's tokens, of which the sequences take those after right guesses. Also the last row
    /// of each sequence that did not guess and may run ahead.
    fn end(&mut self) -> (Vec<u32>, Vec<(usize, usize)>) {
        let (mut expected, mut ahead) = (Vec::new(), Vec::new());
        for (index, (row, logits)) in self.rows.iter().zip(&self.logits).enumerate() {
            let sequence = &mut self.running[row.place];
            let token = sequence.on_host(&row.output, logits);
            let guesses = self.rows.iter().any(|r| r.place == row.place && r.num_drafts > 0);
            if !guesses && sequence.runs_ahead() {
                ahead.push((row.place, index));
            }
            if row.output == sequence.output {
                sequence.output.push(token);
            }
            expected.push(token);
        }
        (expected, ahead)
    }

    /// The next step: sequences whose last token is a row of this one, and one that begins.
    fn queue_ahead(
        &self,
        (device, sampler): (&Arc<Device>, &mut StepSampler),
        (ahead, first): (&[(usize, usize)], &Growing),
        logits: &[Vec<f32>],
    ) -> Pending {
        let task = |&(place, row): &(usize, usize)| {
            let sequence = &self.running[place];
            let known = &sequence.output[..sequence.output.len() - 1];
            SampleTask { sampled_row: Some(row), ..sequence.task(known, 0) }
        };
        let tasks = ahead.iter().map(task).chain([first.task(&[], 0)]).map(RowTask::Sample);
        let tasks: Vec<_> = tasks.collect();
        queue(device, logits, |logits| sampler.sample(logits, &tasks).expect("it works"))
    }
}

/// Sequences that pause as preempted ones do, that come back in another place, that verify guesses,
/// that run ahead, that end, and whose requests' numbers are taken by others.
#[test]
fn penalties_count_the_tokens_that_the_host_counts() {
    let Some((device, mut sampler)) = gpu_sampler(17, VOCAB_SIZE) else { return };
    let rng = &mut Rng(3);
    let mut sequences: Vec<Growing> = (0..24).map(|id| Growing::new(rng, id)).collect();
    let (mut num_guessed, mut num_ahead) = (0, 0);
    for step in 0..60 {
        let place = rng.below(sequences.len());
        sequences.rotate_left(place);
        if step % 4 == 3 {
            sequences[0] = Growing::new(rng, sequences[0].id);
        }
        let num_running = 1 + rng.below(sequences.len());
        let mut round = Round::new(rng, &mut sequences[..num_running], step);
        let pending = round.queue(&device, &mut sampler);
        let (expected, ahead) = round.end();
        num_guessed += round.rows.iter().filter(|row| row.num_drafts > 0).count();
        let first = Growing::new(rng, 1000 + step as u64);
        let logits = few_values(rng, ahead.len() + 1);
        let pending_ahead = (step % 2 == 0)
            .then(|| round.queue_ahead((&device, &mut sampler), (&ahead, &first), &logits));
        let got = tokens(&sampler.results(pending).expect("it works"));
        assert_eq!(got, expected, "step {step}");
        let Some(pending) = pending_ahead else { continue };
        let got = tokens(&sampler.results(pending).expect("it works"));
        assert_eq!(got.last(), Some(&first.on_host(&[], &logits[ahead.len()])), "step {step}");
        for (((place, _), got), logits) in ahead.into_iter().zip(got).zip(&logits) {
            let sequence = &mut round.running[place];
            let expected = sequence.on_host(&sequence.output, logits);
            assert_eq!(got, expected, "step {step}, ahead");
            sequence.output.push(expected);
            num_ahead += 1;
        }
    }
    assert!(num_guessed > 100 && num_ahead > 100, "{num_guessed} guesses, {num_ahead} ahead");
}

/// A list that is full is made anew before it reaches into the one behind it.
#[test]
fn penalties_count_more_tokens_than_a_list_had_room_for() {
    let Some((device, mut sampler)) = gpu_sampler(18, VOCAB_SIZE) else { return };
    let rng = &mut Rng(4);
    let mut sequences: Vec<Growing> = (1..4).map(|id| Growing::new(rng, id)).collect();
    for sequence in &mut sequences {
        // A token is not taken twice as long as there is another.
        sequence.params = SamplingParams {
            temperature: 0.0,
            presence_penalty: 2.0,
            frequency_penalty: 2.0,
            max_tokens: None,
            ..SamplingParams::default()
        };
        sequence.prompt.truncate(1);
    }
    for step in 0..200 {
        let mut round = Round::new(rng, &mut sequences, step);
        let pending = round.queue(&device, &mut sampler);
        let (expected, _) = round.end();
        assert_eq!(tokens(&sampler.results(pending).expect("it works")), expected, "step {step}");
    }
    let num_distinct = sequences[0].output.iter().collect::<std::collections::HashSet<_>>().len();
    assert!(num_distinct > 150, "{num_distinct} tokens");
}
