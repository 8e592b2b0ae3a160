//! choose_experts and add_experts: a router chooses some of many MLPs for each row, whose
//! outputs are added by weights.
//!
//! Experts run one after the other, each over its rows, which are brought together for it. So an
//! expert's weights are read once a step, all threads share each product, and the outputs of a
//! row's experts are added in the order of experts, whatever other rows have chosen. Products do
//! not depend on how many rows there are (`linear`), and each row's choice is its own.

mod cuda;
mod grouping;
mod routing;
#[cfg(test)]
mod tests;

pub(crate) use routing::Chosen;
use vllm_batch_base::layers::{Routing, Weighted};

pub(crate) use cuda::{ExpertTables, GpuScratch};

use grouping::{ExpertRow, Grouping};
use routing::{Sigmoid, choose};

use super::activation::activate;
use super::linear::{LinearWeight, linear, linear_activate_and_mul, linear_rows};
use super::shared_rows::SharedRows;
use super::{RowSlots, for_row_chunks, map_in_place};
use vllm_batch_base::EngineError;
use vllm_batch_base::config::DType;
use vllm_batch_base::layers::{Activation, MlpForm};
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::simd::{Kernel, Vector, dispatch};
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Cpu, Device, Precision, Tensor};

/// Weights of a mixture of experts. H is the width of rows, I that of inner values. The router
/// counts experts that give what they read behind the others.
#[derive(Debug)]
pub struct ExpertsWeight {
    /// (experts, H), in f32
    pub router: LinearWeight,
    /// (experts): added to scores where they are compared.
    pub choice_bias: Option<Vec<f32>>,
    /// From the router's numbers to experts.
    pub routing: Routing,
    /// (experts): the weights of those that are chosen are multiplied by these.
    pub weight_factors: Option<Vec<f32>>,
    /// What the weights are factors of.
    pub weighted: Weighted,
    /// Whether experts have gates.
    pub form: MlpForm,
    /// The activation of all experts.
    pub activation: Activation,
    /// All of them.
    pub experts: Experts,
    /// Experts behind these that give what they read.
    pub num_identities: usize,
    /// Kernel arguments on a GPU.
    pub on_gpu: Option<ExpertTables>,
}

impl ExpertsWeight {
    /// Makes the device ready to run them.
    ///
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn prepared(mut self, device: &Device) -> Result<Self, EngineError> {
        if let Device::Cuda(gpu) = device {
            self.on_gpu = Some(ExpertTables::new(gpu, &self)?);
        }
        Ok(self)
    }

    fn num_experts(&self) -> usize {
        self.router.shape().0
    }

    /// Those that have weights.
    fn num_with_weights(&self) -> usize {
        self.num_experts() - self.num_identities
    }

    fn tables(&self) -> &ExpertTables {
        self.on_gpu.as_ref().expect("experts of a GPU were prepared for it")
    }
}

/// Where the weights of experts are.
#[derive(Debug)]
pub enum Experts {
    /// On the CPU, each by itself.
    Apart(Vec<ExpertWeights>),
    /// On a GPU, one after the other: E times the outputs of one.
    Stacked(Box<ExpertWeights>),
}

impl Experts {
    /// Whether the device has them in one stack.
    pub fn are_stacked(device: &Device) -> bool {
        matches!(device, Device::Cuda(_))
    }
}

/// Weights of an expert, or of a stack of them.
#[derive(Debug)]
pub struct ExpertWeights {
    /// (2 * I, H): gate, then up; or up alone, (I, H).
    pub up: LinearWeight,
    /// (H, I)
    pub down: LinearWeight,
}

/// Sizes of the largest mixture of experts that runs in a scratch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertsShape {
    /// Experts.
    pub num_experts: usize,
    /// Experts of a row.
    pub num_chosen: usize,
    /// Width of inner values.
    pub inner: usize,
}

/// Work memory of experts.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum ExpertsScratch {
    Cpu(CpuScratch),
    Cuda(GpuScratch),
}

impl ExpertsScratch {
    /// For steps of up to `num_rows` rows, `width` values at most, and weights of `dtype`.
    ///
    /// # Errors
    /// The device has no memory for it.
    pub fn new(
        (device, dtype): (&Device, DType),
        size: (usize, usize),
        shape: ExpertsShape,
    ) -> Result<Self, EngineError> {
        match device {
            Device::Cpu(_) => CpuScratch::new((device, dtype), size, shape).map(Self::Cpu),
            Device::Cuda(gpu) => GpuScratch::new(device, gpu, size, shape).map(Self::Cuda),
        }
    }
}

/// Work memory of experts, for steps of T rows of width H. B rows go through an expert at a time.
#[derive(Debug)]
pub struct CpuScratch {
    /// (T, experts) scores
    scores: Tensor,
    /// (T, experts) what is compared
    keys: Tensor,
    /// Experts of all rows.
    chosen: Vec<Chosen>,
    grouping: Grouping,
    /// (B, H) inputs of an expert
    x: Tensor,
    /// (B, 2 * I)
    gate_up: Tensor,
    /// (B, I)
    activated: Tensor,
    /// (B, H)
    out: Tensor,
}

impl CpuScratch {
    fn new(
        (device, dtype): (&Device, DType),
        (num_rows, width): (usize, usize),
        shape: ExpertsShape,
    ) -> Result<Self, EngineError> {
        let ExpertsShape { num_experts, num_chosen, inner } = shape;
        let block = device.block_rows(num_rows);
        let per_row = |width| device.tensor(num_rows, width, Precision::Full);
        let per_block = |width| device.tensor(block, width, Precision::Activation);
        let input = |width| device.tensor(block, width, Precision::LinearInput(dtype));
        Ok(Self {
            scores: per_row(num_experts)?,
            keys: per_row(num_experts)?,
            chosen: Vec::with_capacity(num_rows * num_chosen),
            grouping: Grouping::with_capacity(num_rows * num_chosen, num_experts),
            x: input(width)?,
            gate_up: per_block(2 * inner)?,
            activated: input(inner)?,
            out: per_block(width)?,
        })
    }
}

/// out += the weighted outputs of the experts that [`choose_experts`] chose last for these rows.
///
/// # Panics
/// Shapes do not fit, or the scratch is of another device.
pub fn add_experts(
    device: &Device,
    x: &Tensor,
    weight: &ExpertsWeight,
    scratch: &mut ExpertsScratch,
    out: &mut Tensor,
) {
    assert_eq!((x.num_rows(), x.width()), (out.num_rows(), out.width()), "shapes of experts");
    let (cpu, scratch) = match (device, scratch) {
        (Device::Cpu(cpu), ExpertsScratch::Cpu(scratch)) => (cpu, scratch),
        (Device::Cuda(gpu), ExpertsScratch::Cuda(scratch)) => {
            return cuda::add_experts(device, gpu, x, weight, scratch, out);
        }
        _ => panic!("the scratch is of another device"),
    };
    assert_eq!(scratch.scores.num_rows(), x.num_rows(), "rows that experts were chosen for");
    let block_rows = device.block_rows(x.num_rows());
    let Experts::Apart(experts) = &weight.experts else {
        panic!("experts of a GPU were given to the host");
    };
    for (expert, weights) in experts.iter().enumerate() {
        let CpuScratch { grouping, x: gathered, gate_up, activated, out: of_expert, .. } =
            &mut *scratch;
        for rows in grouping.rows_of(expert).chunks(block_rows) {
            let (num_rows, (up_width, _)) = (rows.len(), weights.up.shape());
            gather(cpu, x, rows, gathered);
            gate_up.reshape(num_rows, up_width);
            of_expert.reshape(num_rows, out.width());
            let input = gathered.rows_from(0);
            let inner = match weight.form {
                MlpForm::Gated => {
                    activated.reshape(num_rows, up_width / 2);
                    let up = (&weights.up, weight.activation);
                    linear_activate_and_mul(device, input, up, (gate_up, activated), num_rows);
                    &*activated
                }
                MlpForm::Plain => {
                    linear_rows(device, input, &weights.up, gate_up.rows_from_mut(0), num_rows);
                    activate(device, weight.activation, gate_up);
                    &*gate_up
                }
            };
            let to = of_expert.rows_from_mut(0);
            linear_rows(device, inner.rows_from(0), &weights.down, to, num_rows);
            let of_row = |index: usize, _| of_expert.row(index);
            add_weighted(cpu, of_row, rows, out);
        }
    }
    for expert in weight.num_with_weights()..weight.num_experts() {
        let of_row = |_, row: usize| x.row(row);
        add_weighted(cpu, of_row, scratch.grouping.rows_of(expert), out);
    }
}

/// Chooses the experts of all rows of x, which the router reads. On a GPU rows without a slot go to
/// none: they pad the step.
///
/// # Panics
/// As [`add_experts`].
pub fn choose_experts(
    device: &Device,
    (x, slots): (&Tensor, RowSlots),
    weight: &ExpertsWeight,
    scratch: &mut ExpertsScratch,
) {
    let (cpu, scratch) = match (device, scratch) {
        (Device::Cpu(cpu), ExpertsScratch::Cpu(scratch)) => (cpu, scratch),
        (Device::Cuda(gpu), ExpertsScratch::Cuda(scratch)) => {
            return cuda::choose_experts(gpu, (x, slots), weight, scratch);
        }
        _ => panic!("the scratch is of another device"),
    };
    let (num_rows, num_experts) = (x.num_rows(), weight.num_experts());
    let num_chosen = weight.routing.num_chosen();
    let CpuScratch { scores, keys, chosen, grouping, .. } = scratch;
    scores.reshape(num_rows, num_experts);
    keys.reshape(num_rows, num_experts);
    linear(device, x, &weight.router, scores);
    let work = || Work::elementwise(num_rows * num_experts, 12);
    let _timed = cpu.op_timer.timed(Op::new("choose_experts"), work);
    chosen.resize(num_rows * num_chosen, Chosen::default());
    let (of_rows, bias) = (SharedMut::new(chosen), weight.choice_bias.as_deref());
    let (scores, keys) = (SharedMut::new(scores.values_mut()), SharedMut::new(keys.values_mut()));
    // As much work as so many elements: each chosen one is looked for among all.
    let num_passes = num_chosen + 2;
    for_row_chunks(&cpu.pool, num_rows, num_experts * num_passes, &|start, end| {
        for row in start..end {
            // SAFETY: each row belongs to one item.
            let (scores, keys, chosen) = unsafe {
                (
                    scores.slice(row * num_experts, num_experts),
                    keys.slice(row * num_experts, num_experts),
                    of_rows.slice(row * num_chosen, num_chosen),
                )
            };
            choose(&weight.routing, cpu.isa, (scores, keys), bias, chosen);
            if let Some(factors) = &weight.weight_factors {
                chosen.iter_mut().for_each(|of| of.weight *= factors[of.expert as usize]);
            }
        }
    });
    grouping.set(chosen, num_chosen, num_experts);
}

/// Multiplies each row of x by the weight of its one expert, which [`choose_experts`] chose last:
/// the expert's outputs have a weight of 1 from there on.
///
/// # Panics
/// As [`add_experts`]; or rows have several experts.
pub fn weigh_inputs(device: &Device, x: &mut Tensor, scratch: &mut ExpertsScratch) {
    let (cpu, scratch) = match (device, scratch) {
        (Device::Cpu(cpu), ExpertsScratch::Cpu(scratch)) => (cpu, scratch),
        (Device::Cuda(gpu), ExpertsScratch::Cuda(scratch)) => {
            return cuda::weigh_inputs(gpu, x, scratch);
        }
        _ => panic!("the scratch is of another device"),
    };
    let (num_rows, width) = (x.num_rows(), x.width());
    assert_eq!(scratch.chosen.len(), num_rows, "rows of one expert each");
    let work = || Work::elementwise(num_rows * width, 8);
    let _timed = cpu.op_timer.timed(Op::new("weigh_inputs"), work);
    let shared = SharedMut::new(x.values_mut());
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        for (row, chosen) in (start..end).zip(&scratch.chosen[start..end]) {
            // SAFETY: each row belongs to one item.
            let values = unsafe { shared.slice(row * width, width) };
            values.iter_mut().for_each(|value| *value *= chosen.weight);
        }
    });
    scratch.grouping.forget_weights();
}

/// out = these rows of x.
fn gather(cpu: &Cpu, x: &Tensor, rows: &[ExpertRow], out: &mut Tensor) {
    let (num_rows, width) = (rows.len(), x.width());
    out.reshape(num_rows, width);
    let work = || Work::elementwise(num_rows * width, 8);
    let _timed = cpu.op_timer.timed(Op::new("gather_rows"), work);
    let shared = SharedRows::of(out);
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        for (index, of) in (start..end).zip(&rows[start..end]) {
            // SAFETY: each row belongs to one item.
            unsafe { shared.put((index, 0), x.row(of.row as usize)) };
        }
    });
}

/// Adds an expert's outputs to its rows of `out`, times their weights: `of_row` gives those of one
/// of its rows, by its index and by its row of `out`.
fn add_weighted<'a>(
    cpu: &Cpu,
    of_row: impl Fn(usize, usize) -> &'a [f32] + Sync,
    rows: &[ExpertRow],
    out: &mut Tensor,
) {
    let (num_rows, width) = (rows.len(), out.width());
    let work = || Work::elementwise(num_rows * width, 12);
    let _timed = cpu.op_timer.timed(Op::new("add_weighted"), work);
    let shared = SharedMut::new(out.values_mut());
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        for (index, &ExpertRow { row, weight }) in (start..end).zip(&rows[start..end]) {
            // SAFETY: a row chooses an expert once, so each row of `out` belongs to one item.
            let out = unsafe { shared.slice(row as usize * width, width) };
            for (out, value) in out.iter_mut().zip(of_row(index, row as usize)) {
                *out += weight * value;
            }
        }
    });
}

/// Multiplies each row of `out` by the sigmoid of that row of x times the gate (1, H).
///
/// # Panics
/// As `add_experts`.
pub fn gate_rows(
    device: &Device,
    x: &Tensor,
    gate: &LinearWeight,
    scratch: &mut ExpertsScratch,
    out: &mut Tensor,
) {
    let (cpu, scratch) = match (device, scratch) {
        (Device::Cpu(cpu), ExpertsScratch::Cpu(scratch)) => (cpu, scratch),
        (Device::Cuda(gpu), ExpertsScratch::Cuda(_)) => return cuda::gate_rows(gpu, x, gate, out),
        _ => panic!("the scratch is of another device"),
    };
    let (num_rows, width) = (x.num_rows(), out.width());
    let gates = &mut scratch.scores;
    gates.reshape(num_rows, 1);
    linear(device, x, gate, gates);
    let work = || Work::elementwise(num_rows * width, 8);
    let _timed = cpu.op_timer.timed(Op::new("gate_rows"), work);
    dispatch(cpu.isa, Gates(gates.values_mut()));
    let shared = SharedMut::new(out.values_mut());
    for_row_chunks(&cpu.pool, num_rows, width, &|start, end| {
        for (row, &gate) in (start..end).zip(&gates.values()[start..end]) {
            // SAFETY: each row belongs to one item.
            let out = unsafe { shared.slice(row * width, width) };
            out.iter_mut().for_each(|value| *value *= gate);
        }
    });
}

struct Gates<'a>(&'a mut [f32]);

impl Kernel for Gates<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: dispatched for this CPU.
        unsafe { map_in_place::<V>(self.0, Sigmoid) };
    }
}
