//! Experts on a GPU. How many rows go to which expert stays there, so that steps are recorded: a
//! product is launched with as many tiles as there can be.

use super::{ExpertWeights, Experts, ExpertsShape, ExpertsWeight};
use crate::activation::{activate, activate_and_mul};
use crate::linear::{LinearWeight, SortedRows, Sorting};
use crate::{GPU_BLOCK, RowSlots};
use vllm_batch_base::EngineError;
use vllm_batch_base::layers::{ExpertWeight, GroupScore, MlpForm, Routing, Score};
use vllm_batch_device::cuda::{Args, DeviceBuffer, DevicePtr};
use vllm_batch_device::{Device, Gpu, Precision, Tensor, bytes_of};

/// What the kernels that choose read.
#[derive(Debug)]
pub struct ExpertTables {
    choice_bias: Option<DeviceBuffer>,
    weight_factors: Option<DeviceBuffer>,
}

impl ExpertTables {
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn new(gpu: &Gpu, weight: &ExpertsWeight) -> Result<Self, EngineError> {
        let floats = |values: &Vec<f32>| -> Result<DeviceBuffer, EngineError> {
            let buffer = gpu.alloc(values.len() * size_of::<f32>())?;
            gpu.upload(&buffer, bytes_of(values));
            Ok(buffer)
        };
        Ok(Self {
            choice_bias: weight.choice_bias.as_ref().map(floats).transpose()?,
            weight_factors: weight.weight_factors.as_ref().map(floats).transpose()?,
        })
    }
}

/// Work memory of experts, for steps of T rows, each of which goes to C experts.
#[derive(Debug)]
pub struct GpuScratch {
    /// (T, C) experts
    chosen: DeviceBuffer,
    /// (T, C) what they are multiplied by
    weights: DeviceBuffer,
    /// (T * C) pairs of a row and an expert, by experts
    order: DeviceBuffer,
    /// (T * C) where they are in that order
    places: DeviceBuffer,
    /// (experts + 1) where each expert's begin
    starts: DeviceBuffer,
    /// (T * C, 2 * I)
    gate_up: Tensor,
    /// (T * C, I)
    activated: Tensor,
    /// (T * C, H)
    of_pairs: Tensor,
}

impl GpuScratch {
    /// # Errors
    /// The GPU's memory does not suffice.
    pub fn new(
        device: &Device,
        gpu: &Gpu,
        (num_rows, width): (usize, usize),
        shape: ExpertsShape,
    ) -> Result<Self, EngineError> {
        let ExpertsShape { num_experts, num_chosen, inner } = shape;
        let num_pairs = gpu.max_padded_rows(num_rows) * num_chosen;
        let words = |len: usize| gpu.alloc(len * 4);
        let of_pair = |width| device.tensor(num_pairs, width, Precision::Activation);
        Ok(Self {
            chosen: words(num_pairs)?,
            weights: words(num_pairs)?,
            order: words(num_pairs)?,
            places: words(num_pairs)?,
            starts: words(num_experts + 1)?,
            gate_up: of_pair(2 * inner)?,
            activated: of_pair(inner)?,
            of_pairs: of_pair(width)?,
        })
    }
}

/// `struct TopK` of kernels/experts.cu.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct TopKArgs {
    num: u32,
    score: u32,
    weight: u32,
    num_groups: u32,
    num_kept: u32,
    group_score: u32,
    added: f32,
    at_least: f32,
    scale: f32,
    is_sparse_mixer: u32,
    jitter: f32,
}

impl From<&Routing> for TopKArgs {
    fn from(routing: &Routing) -> Self {
        let best = match routing {
            Routing::TopK(best) => best,
            Routing::SparseMixer { jitter } => {
                let num = routing.num_chosen() as u32;
                return Self { num, is_sparse_mixer: 1, jitter: *jitter, ..Self::default() };
            }
        };
        let (weight, added, at_least) = match best.weight {
            ExpertWeight::Score => (0, 0.0, 0.0),
            ExpertWeight::Share { added, at_least } => (1, added, at_least),
            ExpertWeight::Softmax => (2, 0.0, 0.0),
            ExpertWeight::Sigmoid => (3, 0.0, 0.0),
        };
        let score = match best.score {
            Score::Logits => 0,
            Score::Softmax => 1,
            Score::Sigmoid => 2,
        };
        let of_groups = best.groups.map(|groups| {
            let group_score = match groups.score {
                GroupScore::Best => 0,
                GroupScore::BestTwo => 1,
            };
            (groups.num as u32, groups.num_kept as u32, group_score)
        });
        let (num_groups, num_kept, group_score) = of_groups.unwrap_or_default();
        let (num, scale) = (best.num as u32, best.scale);
        Self {
            num,
            score,
            weight,
            num_groups,
            num_kept,
            group_score,
            added,
            at_least,
            scale,
            ..Self::default()
        }
    }
}

/// Rows that a block routes at a time, from which number of rows on.
const ROUTED_ROWS: [(&str, usize, usize); 2] =
    [("choose_experts_4", 4, 256), ("choose_experts_1", 1, 0)];
/// Floats of a row that kernels/experts.cu compares groups in.
const GROUP_WORDS: usize = 64;

/// Chooses experts for all rows, and sorts the rows by them. Rows without a slot go to none.
pub(super) fn choose_experts(
    gpu: &Gpu,
    (x, slots): (&Tensor, RowSlots),
    weight: &ExpertsWeight,
    scratch: &GpuScratch,
) {
    let (num_rows, num_experts) = (x.num_rows(), weight.num_experts());
    let (num_chosen, tables) = (weight.routing.num_chosen(), weight.tables());
    let optional =
        |buffer: &Option<DeviceBuffer>| buffer.as_ref().map_or(DevicePtr::NULL, DeviceBuffer::ptr);
    let mut args = Args::new();
    args.tensor(x).ptr(weight.router.device_ptr());
    args.ptr(weight.router.bias_ptr().unwrap_or(DevicePtr::NULL));
    args.ptr(optional(&tables.choice_bias)).ptr(optional(&tables.weight_factors)).ptr(slots.0);
    args.dims([num_rows, x.width(), num_experts]).value(TopKArgs::from(&weight.routing));
    args.ptr(scratch.chosen.ptr()).ptr(scratch.weights.ptr());
    let at_a_time = ROUTED_ROWS.iter().find(|(.., from)| num_rows >= *from);
    let &(entry, rows, _) = at_a_time.expect("one takes any number");
    let smem = rows * (2 * num_experts + GROUP_WORDS + 2 * num_chosen) * size_of::<f32>();
    let grid = [num_rows.div_ceil(rows) as u32, 1];
    gpu.launch(("experts", entry), grid, (GPU_BLOCK, smem), &mut args);

    let mut args = Args::new();
    args.ptr(scratch.chosen.ptr()).dims([num_rows * num_chosen]).ptr(scratch.order.ptr());
    args.ptr(scratch.places.ptr()).ptr(scratch.starts.ptr());
    let grid = [weight.num_with_weights() as u32 + 1, 1];
    gpu.launch(("experts", "sort_by_expert"), grid, (GPU_BLOCK, 0), &mut args);
}

/// out += the weighted outputs of the experts that were chosen.
pub(super) fn add_experts(
    device: &Device,
    gpu: &Gpu,
    x: &Tensor,
    weight: &ExpertsWeight,
    scratch: &mut GpuScratch,
    out: &mut Tensor,
) {
    let num_chosen = weight.routing.num_chosen();
    let num_pairs = x.num_rows() * num_chosen;
    let num_experts = weight.num_with_weights();
    let sorting = Sorting { starts: scratch.starts.ptr(), num_experts, num_pairs };
    let Experts::Stacked(experts) = &weight.experts else {
        panic!("experts of the host were given to a GPU");
    };
    let ExpertWeights { up, down } = &**experts;
    let (up_width, inner) = (up.shape().0 / num_experts, down.shape().1);
    scratch.gate_up.reshape(num_pairs, up_width);
    scratch.of_pairs.reshape(num_pairs, out.width());
    let sorted = SortedRows::of(x, scratch.order.ptr(), num_chosen);
    up.on_gpu().multiply_sorted(gpu, (sorted, sorting), &scratch.gate_up);
    let inner = match weight.form {
        MlpForm::Gated => {
            scratch.activated.reshape(num_pairs, inner);
            activate_and_mul(device, weight.activation, &scratch.gate_up, &mut scratch.activated);
            &scratch.activated
        }
        MlpForm::Plain => {
            activate(device, weight.activation, &mut scratch.gate_up);
            &scratch.gate_up
        }
    };
    let sorted = SortedRows::of(inner, DevicePtr::NULL, 1);
    down.on_gpu().multiply_sorted(gpu, (sorted, sorting), &scratch.of_pairs);

    let mut args = Args::new();
    args.tensor(&scratch.of_pairs).tensor(x);
    args.ptr(scratch.chosen.ptr()).ptr(scratch.places.ptr());
    args.ptr(scratch.weights.ptr()).tensor(out).dims([num_chosen, out.width(), num_experts]);
    let parts = out.width().div_ceil(GPU_BLOCK as usize * 8) as u32;
    let grid = [out.num_rows() as u32, parts];
    gpu.launch(("experts", "add_experts"), grid, (GPU_BLOCK, 0), &mut args);
}

/// Each row of x times the weight of its one expert, which is 1 then.
pub(super) fn weigh_inputs(gpu: &Gpu, x: &Tensor, scratch: &GpuScratch) {
    let mut args = Args::new();
    args.tensor(x).ptr(scratch.weights.ptr()).dims([x.width()]);
    let grid = [x.num_rows() as u32, 1];
    gpu.launch(("experts", "weigh_inputs"), grid, (GPU_BLOCK, 0), &mut args);
}

/// Each row of `out` times the sigmoid of that row of x times the gate.
pub(super) fn gate_rows(gpu: &Gpu, x: &Tensor, gate: &LinearWeight, out: &Tensor) {
    let mut args = Args::new();
    args.tensor(x).ptr(gate.device_ptr()).tensor(out).dims([x.width(), out.width()]);
    let grid = [out.num_rows() as u32, 1];
    gpu.launch(("experts", "gate_rows"), grid, (GPU_BLOCK, 0), &mut args);
}
