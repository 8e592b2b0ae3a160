//! `StepSampler`: the sampler over all rows of a step, where their logits are.
//!
//! A row's result is a function of the row alone. The CPU takes the rows on all threads. A GPU
//! samples, and ranks logprobs, where the logits are; only rows that want more logprobs than
//! `NumLogprobs::MAX_ON_GPU` come to the host.

pub mod gpu_rows;
mod places;
mod token_counts;

use std::sync::{Arc, Mutex};

use super::executor::Logits;
use crate::plan::structured_output::GuideTask;
use crate::request::StopIds;
use crate::sampler::wide::{Vectors, Wide};
use crate::sampler::{self, RowResult, RowTask, SampleTask, SamplerScratch};
use gpu_rows::{GpuRows, Limits, RowKind};
use vllm_batch_api::request::{NumLogprobs, RowKey, SamplingParams};
use vllm_batch_base::EngineError;
use vllm_batch_device::gpu::Readback;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::{Device, Gpu, Tensor};
use vllm_batch_ops::MAX_GPU_VOCAB_SIZE;
use vllm_batch_ops::logprobs::{self, LogprobBuffers};
use vllm_batch_ops::sample::{self, SampleBuffers};
use vllm_batch_ops::token_counts::count_tokens;
use vllm_batch_ops::token_mask::{self, MaskBuffers};
use vllm_batch_ops::{Loops, run_loops};

/// Samples the rows of a step.
pub struct StepSampler {
    device: Arc<Device>,
    /// One per host thread.
    scratch: Vec<Mutex<SamplerScratch>>,
    /// Results that were last given back: kept for their memory.
    spare: Vec<RowResult>,
    on_gpu: Option<OnGpu>,
}

struct OnGpu {
    buffers: SampleBuffers,
    logprobs: LogprobBuffers,
    masks: MaskBuffers,
    rows: GpuRows,
    /// Logits of one row that the host samples from.
    row: Vec<f32>,
}

impl StepSampler {
    /// A sampler of steps of up to `max_rows` rows of `vocab_size` logits.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn new(
        device: Arc<Device>,
        max_rows: usize,
        vocab_size: usize,
    ) -> Result<Self, EngineError> {
        let scratch = (0..device.num_threads()).map(|_| Mutex::new(SamplerScratch::default()));
        let scratch = scratch.collect();
        let on_gpu = match &*device {
            Device::Cpu(_) => None,
            Device::Cuda(gpu) => Some(OnGpu::new(gpu, max_rows, vocab_size)?),
        };
        Ok(Self { device, scratch, spare: Vec::new(), on_gpu })
    }

    /// Samples once, so that a GPU has compiled its kernel before the first row.
    ///
    /// # Errors
    /// The device failed.
    pub fn warm_up(&mut self, logits: Logits<'_>) -> Result<(), EngineError> {
        let params = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        let task = SampleTask {
            params: &params,
            prompt_token_ids: &[0],
            output_token_ids: &[],
            stop_ids: &StopIds::default(),
            bad_words_token_ids: &[],
            row_key: RowKey(0),
            num_drafts: 0,
            sampled_row: None,
            request_id: 0,
            engine_seed: 0,
            sample_index: 0,
            token_mask: None,
        };
        let pending = self.sample(logits, &[RowTask::Sample(task)])?;
        self.results(pending).map(drop)
    }

    /// Finds the masks of the next tokens, on all threads. Logits that are on a GPU are not waited
    /// for.
    pub fn fill_masks(&self, tasks: Vec<GuideTask<'_>>, logits: &Logits<'_>) {
        let num_tasks = tasks.len();
        let tasks = Mutex::new(tasks.into_iter());
        let is_on_host = matches!(&*self.device, Device::Cpu(_));
        self.device.parallel_for(num_tasks, &|_, _| {
            let next = tasks.lock().expect("no thread panics while it holds the lock").next();
            let task = next.expect("one task per item");
            let row = task.likeliest_of.filter(|_| is_on_host).map(|row| logits.tensor.row(row));
            let vectors = DeviceVectors(&self.device);
            task.run(row.and_then(|row| sampler::likeliest(vectors, row)));
        });
    }

    /// Samples row i of the logits for task i: at once on the CPU, after what is queued on a GPU.
    ///
    /// # Errors
    /// The device failed, now or in what was queued before.
    pub fn sample(
        &mut self,
        logits: Logits<'_>,
        tasks: &[RowTask<'_>],
    ) -> Result<Pending, EngineError> {
        let num_rows = logits.tensor.num_rows().max(logits.likeliest.len());
        assert!(num_rows >= tasks.len(), "one row of logits per task");
        let Self { device, scratch, spare, on_gpu } = self;
        match (&**device, on_gpu) {
            (Device::Cuda(gpu), Some(on_gpu)) => {
                on_gpu.sample(gpu, logits.tensor, tasks, &scratch[0])
            }
            _ => {
                let mut results = std::mem::take(spare);
                results.clear();
                results.resize(tasks.len(), RowResult::Later);
                sample_on_host(device, logits, tasks, scratch, &mut results);
                Ok(Pending::Done(results))
            }
        }
    }

    /// Samples the rows that an earlier round left out, where their turn has come: task i replaces
    /// result i, unless that is to come later still. For the CPU, where results are there at once.
    pub fn sample_later(
        &mut self,
        logits: Logits<'_>,
        tasks: &[RowTask<'_>],
        results: &mut [RowResult],
    ) {
        assert!(self.on_gpu.is_none(), "a GPU verifies drafts in one round");
        sample_on_host(&self.device, logits, tasks, &self.scratch, results);
    }

    /// One result per task.
    ///
    /// # Errors
    /// The device failed.
    pub fn results(&self, pending: Pending) -> Result<Vec<RowResult>, EngineError> {
        match (pending, &*self.device) {
            (Pending::Done(results), _) => Ok(results),
            (Pending::Queued(queued), Device::Cuda(gpu)) => queued.results(gpu),
            (Pending::Queued(_), Device::Cpu(_)) => panic!("the CPU queues nothing"),
        }
    }

    /// Where it samples.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Takes the buffer of results that were used, for the next ones.
    pub fn reuse(&mut self, results: Vec<RowResult>) {
        self.spare = results;
    }
}

/// The results of a step.
#[derive(Debug)]
pub enum Pending {
    /// They are there.
    Done(Vec<RowResult>),
    /// A GPU computes them.
    Queued(Queued),
}

/// Results that a GPU computes.
#[derive(Debug)]
pub struct Queued {
    readback: Readback,
    kinds: Vec<RowKind>,
}

impl Queued {
    /// Waits for them. Those of the host's rows mean nothing.
    fn results(&self, gpu: &Gpu) -> Result<Vec<RowResult>, EngineError> {
        let (num_rows, readback) = (self.kinds.len(), self.readback);
        let num_entries = gpu_rows::num_entries(&self.kinds);
        let sampled = sample::results(gpu, readback, num_rows)?;
        let entries = logprobs::entries(gpu, readback, num_rows, num_entries)?;
        Ok(gpu_rows::results(&self.kinds, &sampled, &entries))
    }
}

/// The vectors of the device's CPU path.
#[derive(Clone, Copy)]
pub struct DeviceVectors<'a>(pub &'a Device);

impl Vectors for DeviceVectors<'_> {
    fn run<W: Wide>(self, work: W) -> W::Output {
        run_loops(self.0, OfRow(work))
    }
}

/// The sampler's work, in the words of the op that runs it.
struct OfRow<W>(W);

impl<W: Wide> Loops for OfRow<W> {
    type Output = W::Output;

    #[inline(always)]
    fn run(self) -> W::Output {
        self.0.run()
    }
}

fn sample_on_host(
    device: &Device,
    logits: Logits<'_>,
    tasks: &[RowTask<'_>],
    scratch: &[Mutex<SamplerScratch>],
    results: &mut [RowResult],
) {
    if !logits.likeliest.is_empty() {
        for ((likeliest, task), result) in logits.likeliest.iter().zip(tasks).zip(results) {
            *result = sampler::of_likeliest(*likeliest, task);
        }
        return;
    }
    let logits = logits.tensor;
    let width = logits.width();
    // A row of logits is read once at least.
    let _timed = device.timed(Op::new("sample"), || Work::elementwise(tasks.len() * width, 4));
    // Threads take rows as they come; each row's result goes to its own place.
    let rows = logits.values_mut().chunks_exact_mut(width).zip(tasks).zip(results);
    let rows = Mutex::new(rows);
    device.parallel_for(tasks.len(), &|thread, _| {
        let next = rows.lock().expect("no thread panics while it holds the lock").next();
        let ((row, task), result) = next.expect("one row per item");
        let mut scratch = scratch[thread].lock().expect("one scratch per thread");
        if !matches!(task, RowTask::Later) {
            *result = sampler::run_row_with(DeviceVectors(device), row, task, &mut scratch);
        }
    });
}

impl OnGpu {
    fn new(gpu: &Gpu, max_rows: usize, vocab_size: usize) -> Result<Self, EngineError> {
        assert!(vocab_size <= MAX_GPU_VOCAB_SIZE, "refused when the device was opened");
        let max_entries = max_rows * (1 + vocab_size.min(NumLogprobs::MAX_ON_GPU as usize));
        gpu.reserve_sampled(logprobs::num_bytes(max_rows, max_entries))?;
        let max_kept = logprobs::max_kept_rows(max_rows);
        Ok(Self {
            buffers: SampleBuffers::new(gpu, max_rows)?,
            logprobs: LogprobBuffers::new(gpu, max_rows, vocab_size)?,
            masks: MaskBuffers::new(gpu)?,
            rows: GpuRows::new(Limits { vocab_size, max_kept }),
            row: Vec::new(),
        })
    }

    /// Queues all that `rows` says, and the way of the results to the host.
    fn queue(&mut self, gpu: &Gpu, logits: &mut Tensor) -> Result<Queued, EngineError> {
        let Self { buffers, logprobs: kept, masks, rows, .. } = self;
        let num_rows = rows.rows.len();
        token_mask::token_mask(gpu, logits, (&rows.masks, &rows.mask_words), masks)?;
        sample::upload(gpu, (&rows.rows, &rows.edits), buffers)?;
        count_tokens(gpu, rows.counts.changes(), &mut buffers.counts)?;
        logprobs::upload(gpu, &rows.logprobs, &rows.kept, kept);
        for group in &rows.groups {
            logprobs::keep_rows(gpu, logits, group.kept.clone(), kept);
            sample::sample(gpu, logits, group.rows.clone(), buffers);
            logprobs::logprobs(gpu, logits, group.logprobs.clone(), num_rows, kept);
        }
        let num_bytes = logprobs::num_bytes(num_rows, gpu_rows::num_entries(&rows.kinds));
        Ok(Queued { readback: gpu.read_sampled(num_bytes)?, kinds: rows.kinds.clone() })
    }

    /// Waits where rows are the host's to sample, as the next step would overwrite their logits.
    fn sample(
        &mut self,
        gpu: &Gpu,
        logits: &mut Tensor,
        tasks: &[RowTask<'_>],
        scratch: &Mutex<SamplerScratch>,
    ) -> Result<Pending, EngineError> {
        if tasks.is_empty() {
            gpu.check()?;
            return Ok(Pending::Done(Vec::new()));
        }
        self.rows.refill(tasks);
        let queued = self.queue(gpu, logits)?;
        if !queued.kinds.contains(&RowKind::OfHost) {
            return Ok(Pending::Queued(queued));
        }
        let mut results = queued.results(gpu)?;
        for (index, task) in tasks.iter().enumerate() {
            if queued.kinds[index] == RowKind::OfHost {
                sample::download_row(gpu, logits, index, &mut self.row);
                gpu.check()?;
                let mut scratch = scratch.lock().expect("no thread panicked");
                results[index] = sampler::run_row(&mut self.row, task, &mut scratch);
            }
        }
        Ok(Pending::Done(results))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_device::simd::InstructionSet;
    use vllm_batch_device::simd::Isa;

    /// Rows of logits around 0, the same for every call.
    fn logits(num_rows: usize, width: usize) -> Tensor {
        let mut state = 7u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let normal = |_| 2.0 * (random() + random() + random() + random());
        Tensor::from_vec((0..num_rows * width).map(normal).collect(), width)
    }

    fn params(row: u32) -> SamplingParams {
        SamplingParams {
            temperature: if row.is_multiple_of(5) { 0.0 } else { 0.7 },
            top_k: [0, 40, 1, 3000][row as usize % 4],
            top_p: [1.0, 0.9, 0.3][row as usize % 3],
            min_p: [0.0, 0.01][row as usize % 2],
            repetition_penalty: if row.is_multiple_of(7) { 1.2 } else { 1.0 },
            logprobs: [None, Some(NumLogprobs::Top(5))][row as usize % 2],
            ..SamplingParams::default()
        }
    }

    #[test]
    fn rows_have_the_same_results_with_every_instruction_set() {
        const NUM_ROWS: u32 = 60;
        let width = 5003;
        let params: Vec<_> = (0..NUM_ROWS).map(params).collect();
        let (stop_ids, prompt) = (StopIds::default(), [1, 2, 3]);
        let task = |(row, params)| {
            RowTask::Sample(SampleTask {
                params,
                prompt_token_ids: &prompt,
                output_token_ids: &[9, 8],
                stop_ids: &stop_ids,
                bad_words_token_ids: &[],
                row_key: RowKey(row),
                num_drafts: 0,
                sampled_row: None,
                request_id: 0,
                engine_seed: 3,
                sample_index: 0,
                token_mask: None,
            })
        };
        let tasks: Vec<_> = (0..).zip(&params).map(task).collect();
        let mut scratch = SamplerScratch::default();
        let mut alone = logits(tasks.len(), width);
        let rows = alone.values_mut().chunks_exact_mut(width);
        let want: Vec<_> =
            rows.zip(&tasks).map(|(row, task)| sampler::run_row(row, task, &mut scratch)).collect();
        assert!(want.iter().all(|result| matches!(result, RowResult::Sampled { .. })));
        for isa in Isa::all_available() {
            let device = Arc::new(Device::cpu_with_isa(2, isa));
            let mut sampler = StepSampler::new(device, tasks.len(), width).expect("memory");
            let mut tensor = logits(tasks.len(), width);
            let logits = Logits { tensor: &mut tensor, likeliest: &[] };
            let pending = sampler.sample(logits, &tasks).expect("the CPU does not fail");
            let got = sampler.results(pending).expect("the CPU does not fail");
            assert_eq!(got, want, "{}", isa.name());
        }
    }
}
