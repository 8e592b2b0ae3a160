//! The gated delta rule: attention whose past is one matrix per head (Yang et al., 2024, "Gated
//! Delta Networks"; Qwen3-Next).
//!
//! Of every token, with the state S (k_dim, v_dim) of a head, which begins as zeros:
//! S *= decay; S += k (v - Sᵀ k)ᵀ beta; out = Sᵀ q. The decay is one of the head, or one of each
//! row of S ("Kimi Linear", 2025).
//! It is computed token by token, whatever a step holds of them, and sums go upward over k_dim.

mod gates;
#[cfg(test)]
mod tests;
mod update;

use std::ops::Range;

pub use gates::{DeltaGateWeights, delta_decays};

use crate::recurrent_step::{columns_of_block, launch_over_runs, states_kernel};
use crate::{RecurrentStep, Step};
use gates::open_gates;
use update::{Decays, Inputs, Update};
use vllm_batch_base::layers::{Decay, DeltaHeads, padded};
use vllm_batch_device::cuda::{Args, DevicePtr};
use vllm_batch_device::kv_cache::StateLayerMut;
use vllm_batch_device::op_times::{Op, Work};
use vllm_batch_device::simd::dispatch;
use vllm_batch_device::tensor::SharedMut;
use vllm_batch_device::{Device, Gpu, Tensor};

/// Where the delta rule of a layer finds what it needs.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRule<'a> {
    /// Heads: q, k and v of all of them are the first columns of a row.
    pub heads: DeltaHeads,
    /// Weights of the gates.
    pub gate_weights: &'a DeltaGateWeights,
    /// First column of what they are made of: b of all v heads, and then a if these decay.
    pub gates: usize,
    /// (num_tokens, num_v_heads * k_dim) in f32: the decays of rows of states, where these decay.
    pub decays: Option<&'a Tensor>,
    /// First value of a block's state that is the rule's.
    pub state: usize,
}

/// out (num_tokens, v_width) = what each token of `x` reads of its head's state, which begins with
/// `states` and goes on there. q and k are normalized, and q is scaled. Columns of gates change.
///
/// # Panics
/// Columns or states are too few.
pub fn delta_rule(
    device: &Device,
    (x, step): (&mut Tensor, Step<'_>),
    rule: DeltaRule<'_>,
    states: StateLayerMut<'_>,
    out: &mut Tensor,
) {
    let (num_rows, heads) = (x.num_rows(), rule.heads);
    let is_of_heads = rule.gate_weights.decay == Decay::OfHeads;
    assert_eq!(rule.decays.is_none(), is_of_heads);
    let gates_end = rule.gates + if is_of_heads { 2 } else { 1 } * heads.num_v_heads;
    assert!(heads.qkv_width() <= rule.gates && gates_end <= x.width());
    if let Some(decays) = rule.decays {
        assert_eq!(decays.num_rows(), num_rows);
        assert_eq!(decays.width(), heads.num_v_heads * heads.k_dim);
    }
    assert_eq!(out.width(), heads.v_width());
    assert_eq!(rule.gate_weights.num_heads(), heads.num_v_heads);
    out.set_num_rows(num_rows);
    let cpu = match device {
        Device::Cpu(cpu) => cpu,
        Device::Cuda(gpu) => return on_gpu(gpu, (x, step), rule, &states, out),
    };
    open_gates(cpu, (x, rule.gates), rule.gate_weights);
    let x = &*x;
    let work = || Work {
        flops: num_rows as f64 * heads.num_operations(),
        bytes: (num_rows * (heads.qkv_width() + heads.v_width()) * size_of::<f32>()) as f64,
    };
    let _timed = cpu.op_timer.timed(Op::new("delta_rule"), work);
    let recurrent = RecurrentStep::new(step, states);
    let (out_width, out) = (out.width(), SharedMut::new(out.values_mut()));
    let num_stripes = update::num_stripes(heads.v_dim);
    cpu.pool.run(heads.num_v_heads * num_stripes, &|_, item| {
        let (head, stripe) = (item / num_stripes, item % num_stripes);
        let columns = update::stripe(heads.v_dim, stripe);
        let inputs = rule.inputs(x, head, &columns);
        let first = head * heads.v_dim;
        let out_columns = (out_width, first + columns.start..first + columns.end);
        let mut run = |rows: Range<usize>, state: &mut [f32]| {
            let out_columns = out_columns.clone();
            dispatch(cpu.isa, Update { state, rows, inputs: &inputs, out, out_columns });
        };
        // SAFETY: stripes have no values in common, of states or of rows of `out`.
        unsafe { recurrent.for_each_run(rule.state_part(head, &columns), &mut run) };
    });
}

/// `struct RuleParams` of kernels/delta_rule.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct RuleArg {
    rates: DevicePtr,
    bias: DevicePtr,
    decays: DevicePtr,
    beta_factor: f32,
    num_k_heads: u32,
    num_v_heads: u32,
    v_dim: u32,
    stride: u32,
    gates: u32,
    first: u32,
}

/// The kernel makes the gates itself: the model's dtype is too narrow for a decay near 1.
fn on_gpu(
    gpu: &Gpu,
    (x, step): (&Tensor, Step<'_>),
    rule: DeltaRule<'_>,
    states: &StateLayerMut<'_>,
    out: &Tensor,
) {
    let DeltaHeads { num_k_heads, num_v_heads, k_dim, v_dim } = rule.heads;
    assert!(rule.state + rule.heads.state_width() <= states.width);
    let arg = RuleArg {
        rates: rule.gate_weights.rates.device_ptr(),
        bias: rule.gate_weights.bias.device_ptr(),
        // Not read where heads decay.
        decays: rule.decays.map_or(rule.gate_weights.bias.device_ptr(), Tensor::device_ptr),
        beta_factor: rule.gate_weights.beta_factor,
        num_k_heads: num_k_heads as u32,
        num_v_heads: num_v_heads as u32,
        v_dim: v_dim as u32,
        stride: x.width() as u32,
        gates: rule.gates as u32,
        first: rule.state as u32,
    };
    let entry = match rule.decays {
        None => "delta_rule",
        Some(_) => "delta_rule_by_row",
    };
    let kernel = states_kernel(("delta_rule", entry), k_dim);
    let num_parts = num_v_heads * v_dim.div_ceil(columns_of_block(k_dim));
    launch_over_runs(gpu, kernel, num_parts, (step, states), |args: &mut Args, states| {
        args.tensor(x).tensor(out).value(states).value(arg);
    });
}

impl DeltaRule<'_> {
    /// Where a stripe of a head reads its rows.
    fn inputs<'x>(&'x self, x: &'x Tensor, head: usize, columns: &Range<usize>) -> Inputs<'x> {
        let DeltaHeads { num_k_heads, num_v_heads, k_dim, v_dim } = self.heads;
        let k_head = head / (num_v_heads / num_k_heads);
        let of_k = |first: usize| first + k_head * k_dim..first + (k_head + 1) * k_dim;
        let first_v = 2 * self.heads.k_width() + head * v_dim;
        Inputs {
            rows: x,
            q: of_k(0),
            k: of_k(self.heads.k_width()),
            v: first_v + columns.start..first_v + columns.end,
            beta: self.gates + head,
            decays: match self.decays {
                None => Decays::OfHead(self.gates + num_v_heads + head),
                Some(decays) => Decays::OfRows(decays, head * k_dim..(head + 1) * k_dim),
            },
        }
    }

    /// The values of a block's state that are a stripe's.
    fn state_part(self, head: usize, columns: &Range<usize>) -> Range<usize> {
        let DeltaHeads { k_dim, .. } = self.heads;
        let first = self.state + head * self.heads.head_state_width() + columns.start * k_dim;
        first..first + padded(columns.len()) * k_dim
    }
}
