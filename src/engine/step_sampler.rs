//! `StepSampler`: the sampler over all rows of a step, where their logits are.
//!
//! A row's result is a function of the row alone. The CPU takes the rows on all threads. A GPU
//! samples where the logits are; rows that want logprobs come to the host, since what they want is
//! more than a token.

mod gpu_rows;

use std::sync::{Arc, Mutex};

use super::EngineError;
use super::device::{Device, Gpu, Tensor};
use super::executor::Logits;
use super::ops::sample::{self, SampleBuffers, SampleResult, SampleRow};
use super::sampler::{self, RowResult, RowTask, SamplerScratch};
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

    /// One result per task; row i of the logits belongs to task i.
    ///
    /// # Errors
    /// The device failed, now or in what was queued before.
    pub(super) fn sample(
        &mut self,
        logits: Logits<'_>,
        tasks: &[RowTask<'_>],
    ) -> Result<Vec<RowResult>, EngineError> {
        assert!(logits.tensor.num_rows() >= tasks.len(), "one row of logits per task");
        let Self { device, scratch, on_gpu } = self;
        match (&**device, on_gpu) {
            (Device::Cuda(gpu), Some(on_gpu)) => {
                on_gpu.sample(gpu, logits.tensor, tasks, &scratch[0])
            }
            _ => Ok(sample_on_host(device, logits.tensor, tasks, scratch)),
        }
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
    fn sample(
        &mut self,
        gpu: &Gpu,
        logits: &mut Tensor,
        tasks: &[RowTask<'_>],
        scratch: &Mutex<SamplerScratch>,
    ) -> Result<Vec<RowResult>, EngineError> {
        if tasks.is_empty() {
            gpu.check()?;
            return Ok(Vec::new());
        }
        self.rows.refill(tasks);
        let queued = (&self.rows.rows[..], &self.rows.edits[..]);
        sample::sample(gpu, logits, queued, &mut self.buffers)?;
        let sampled = sample::results(gpu, tasks.len(), &self.buffers);
        gpu.check()?;
        let mut results = Vec::with_capacity(tasks.len());
        for (index, (task, sampled)) in tasks.iter().zip(sampled).enumerate() {
            results.push(if self.rows.rows[index].flags & SampleRow::SKIP != 0 {
                sample::download_row(gpu, logits, index, &mut self.row);
                gpu.check()?;
                let mut scratch = scratch.lock().expect("no thread panicked");
                sampler::run_row(&mut self.row, task, &mut scratch)
            } else {
                match sampled.status {
                    SampleResult::NON_FINITE => RowResult::NonFinite,
                    SampleResult::NO_TOKEN => RowResult::NoTokenAllowed,
                    _ => RowResult::Sampled { token_id: sampled.token, logprobs: None },
                }
            });
        }
        Ok(results)
    }
}
