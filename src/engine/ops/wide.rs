//! Plain loops, compiled for the vectors of the CPU. What they compute is theirs to know: the
//! sampler's passes over a row of logits are run so.

use vllm_batch_device::Device;
use vllm_batch_device::simd::InstructionSet;
use vllm_batch_device::simd::{Isa, Kernel, Vector, dispatch};

/// Work whose `run`, and all that it calls in loops, is `inline(always)`.
pub trait Loops {
    /// Result of the function.
    type Output;

    /// Does it.
    fn run(self) -> Self::Output;
}

/// Runs loops with the instructions that the device's CPU path uses; beside a GPU, with the widest
/// that there are.
pub fn run_loops<L: Loops>(device: &Device, loops: L) -> L::Output {
    let isa = match device {
        Device::Cpu(cpu) => cpu.isa,
        Device::Cuda(_) => Isa::detect(),
    };
    let mut output = None;
    dispatch(isa, Run { loops, output: &mut output });
    output.expect("a kernel runs")
}

struct Run<'a, L: Loops> {
    loops: L,
    output: &'a mut Option<L::Output>,
}

impl<L: Loops> Kernel for Run<'_, L> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        *self.output = Some(self.loops.run());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sum<'a>(&'a [f32]);

    impl Loops for Sum<'_> {
        type Output = f32;

        #[inline(always)]
        fn run(self) -> f32 {
            self.0.iter().sum()
        }
    }

    #[test]
    fn loops_give_the_same_bits_with_every_instruction_set() {
        let values: Vec<f32> = (0..1000).map(|i| (i as f32).sin()).collect();
        let want: f32 = values.iter().sum();
        for isa in Isa::all_available() {
            let sum = run_loops(&Device::cpu_with_isa(1, isa), Sum(&values));
            assert_eq!(sum.to_bits(), want.to_bits(), "{}", isa.name());
        }
    }
}
