//! `StepSampler`: the sampler over all rows of a step, where their logits are.
//!
//! A row's result is a function of the row alone. The CPU takes the rows on all threads. A GPU
//! samples where the logits are; rows that want logprobs come to the host, since what they want is
//! more than a token.

mod gpu_rows;

use std::sync::{Arc, Mutex};

use super::EngineError;
use super::device::gpu::Readback;
use super::device::{Device, Gpu, Tensor};
use super::executor::Logits;
use super::ops::sample::{self, SampleBuffers, SampleResult, SampleRow};
use super::request::{RowKey, SamplingParams, StopIds};
use super::sampler::{self, RowResult, RowTask, SampleTask, SamplerScratch};
use gpu_rows::GpuRows;

/// Samples the rows of a step.
pub(super) struct StepSampler {
    device: Arc<Device>,
    /// One per host thread.
    scratch: Vec<Mutex<SamplerScratch>>,
    on_gpu: Option<OnGpu>,
}

struct OnGpu {
    buffers: SampleBuffers,
    rows: GpuRows,
    /// Logits of one row that the host samples from.
    row: Vec<f32>,
}

impl StepSampler {
    /// A sampler of steps of up to `max_rows` rows.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub(super) fn new(device: Arc<Device>, max_rows: usize) -> Result<Self, EngineError> {
        let scratch = (0..device.num_threads()).map(|_| Mutex::new(SamplerScratch::default()));
        let scratch = scratch.collect();
        let on_gpu = match &*device {
            Device::Cpu(_) => None,
            Device::Cuda(gpu) => Some(OnGpu {
                buffers: SampleBuffers::new(gpu, max_rows)?,
                rows: GpuRows::default(),
                row: Vec::new(),
            }),
        };
        Ok(Self { device, scratch, on_gpu })
    }

    /// Samples once, so that a GPU has compiled its kernel before the first row.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn warm_up(&mut self, logits: Logits<'_>) -> Result<(), EngineError> {
        let params = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        let task = SampleTask {
            params: &params,
            prompt_token_ids: &[0],
            output_token_ids: &[],
            stop_ids: &StopIds::default(),
            bad_words_token_ids: &[],
            row_key: RowKey(0),
            engine_seed: 0,
            sample_index: 0,
        };
        let pending = self.sample(logits, &[RowTask::Sample(task)])?;
        self.results(pending).map(drop)
    }

    /// Samples row i of the logits for task i: at once on the CPU, after what is queued on a GPU.
    ///
    /// # Errors
    /// The device failed, now or in what was queued before.
    pub(super) fn sample(
        &mut self,
        logits: Logits<'_>,
        tasks: &[RowTask<'_>],
    ) -> Result<Pending, EngineError> {
        assert!(logits.tensor.num_rows() >= tasks.len(), "one row of logits per task");
        let Self { device, scratch, on_gpu } = self;
        match (&**device, on_gpu) {
            (Device::Cuda(gpu), Some(on_gpu)) => {
                on_gpu.sample(gpu, logits.tensor, tasks, &scratch[0])
            }
            _ => Ok(Pending::Done(sample_on_host(device, logits.tensor, tasks, scratch))),
        }
    }

    /// Queues the sampling of a step ahead on a GPU: of tasks that lack the last token of their
    /// outputs and need nothing of it but its position.
    ///
    /// # Errors
    /// The device failed, now or in what was queued before.
    pub(super) fn sample_ahead(
        &mut self,
        logits: Logits<'_>,
        tasks: &[SampleTask<'_>],
    ) -> Result<Pending, EngineError> {
        let Self { device, on_gpu, .. } = self;
        let (Device::Cuda(gpu), Some(on_gpu)) = (&**device, on_gpu) else {
            panic!("the CPU does not run ahead");
        };
        on_gpu.rows.refill_ahead(tasks);
        on_gpu.queue(gpu, logits.tensor)
    }

    /// One result per task.
    ///
    /// # Errors
    /// The device failed.
    pub(super) fn results(&self, pending: Pending) -> Result<Vec<RowResult>, EngineError> {
        match (pending, &*self.device) {
            (Pending::Done(results), _) => Ok(results),
            (Pending::Queued { readback, num_rows }, Device::Cuda(gpu)) => {
                let sampled = sample::results(gpu, readback, num_rows)?;
                Ok(sampled.into_iter().map(row_result).collect())
            }
            (Pending::Queued { .. }, Device::Cpu(_)) => panic!("the CPU queues nothing"),
        }
    }
}

/// The results of a step.
pub(super) enum Pending {
    /// They are there.
    Done(Vec<RowResult>),
    /// A GPU computes them.
    Queued { readback: Readback, num_rows: usize },
}

fn row_result(sampled: SampleResult) -> RowResult {
    match sampled.status {
        SampleResult::NON_FINITE => RowResult::NonFinite,
        SampleResult::NO_TOKEN => RowResult::NoTokenAllowed,
        _ => RowResult::Sampled { token_id: sampled.token, logprobs: None },
    }
}

fn sample_on_host(
    device: &Device,
    logits: &mut Tensor,
    tasks: &[RowTask<'_>],
    scratch: &[Mutex<SamplerScratch>],
) -> Vec<RowResult> {
    let width = logits.width();
    let rows = logits.values_mut().chunks_exact_mut(width);
    let rows: Vec<_> = rows.map(|row| Mutex::new((row, None))).collect();
    device.parallel_for(tasks.len(), &|thread, index| {
        let mut row = rows[index].lock().expect("a row is sampled once");
        let mut scratch = scratch[thread].lock().expect("one scratch per thread");
        row.1 = Some(sampler::run_row(row.0, &tasks[index], &mut scratch));
    });
    let result = |row: Mutex<(&mut [f32], Option<RowResult>)>| {
        row.into_inner().expect("no thread panicked").1.expect("every row was sampled")
    };
    rows.into_iter().take(tasks.len()).map(result).collect()
}

impl OnGpu {
    fn queue(&mut self, gpu: &Gpu, logits: &mut Tensor) -> Result<Pending, EngineError> {
        let num_rows = self.rows.rows.len();
        let queued = (&self.rows.rows[..], &self.rows.edits[..]);
        let readback = sample::sample(gpu, logits, queued, &mut self.buffers)?;
        Ok(Pending::Queued { readback, num_rows })
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
        let pending = self.queue(gpu, logits)?;
        let is_skipped = |row: &SampleRow| row.flags & SampleRow::SKIP != 0;
        let Pending::Queued { readback, num_rows } = pending else { return Ok(pending) };
        if !self.rows.rows.iter().any(is_skipped) {
            return Ok(pending);
        }
        let sampled = sample::results(gpu, readback, num_rows)?;
        let mut results: Vec<_> = sampled.into_iter().map(row_result).collect();
        for (index, task) in tasks.iter().enumerate() {
            if is_skipped(&self.rows.rows[index]) {
                sample::download_row(gpu, logits, index, &mut self.row);
                gpu.check()?;
                let mut scratch = scratch.lock().expect("no thread panicked");
                results[index] = sampler::run_row(&mut self.row, task, &mut scratch);
            }
        }
        Ok(Pending::Done(results))
    }
}
