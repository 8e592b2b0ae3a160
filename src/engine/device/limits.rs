//! Limits of the CPU: operations of each arithmetic, and reading of memory, on all threads
//! of the pool. What an op took is held against it (`op_times`).

use crate::simd::InstructionSet;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::hint::black_box;
use std::time::Instant;

use super::pages::Pages;
use super::simd::tiles::{TileUnit, rounds_of_bf16, rounds_of_int8};
use super::simd::{Bf16Products, Int8Dots, Isa, Kernel, Vector, dispatch};
use super::tensor::SharedMut;
use super::{Cpu, memory};
use vllm_batch_base::config::DType;

/// Arithmetic of an op. Each has a peak of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Multiply-adds of f32, which bf16 and f16 weights are widened for.
    Float32,
    /// Dot products of bf16 pairs: `vdpbf16ps`, `bfmmla`, or tiles.
    BFloat16,
    /// Dot products of int8.
    Int8,
}

impl Arithmetic {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Float32, Self::BFloat16, Self::Int8];

    /// Arithmetic of products of bf16 weights.
    pub fn of_bf16(isa: Isa) -> Self {
        match isa.bf16_products() {
            Bf16Products::Widened => Self::Float32,
            Bf16Products::Dots | Bf16Products::Tiles(_) => Self::BFloat16,
        }
    }

    /// Arithmetic of linear layers of a model in `dtype`.
    fn of_layers(cpu: &Cpu, dtype: DType) -> Self {
        match (cpu.int8, cpu.isa, dtype) {
            (true, ..) => Self::Int8,
            (false, isa, DType::BFloat16) => Self::of_bf16(isa),
            _ => Self::Float32,
        }
    }

    /// Whether ops of this CPU compute in it.
    fn is_used(self, cpu: &Cpu) -> bool {
        match self {
            Self::Float32 => true,
            Self::BFloat16 => Self::of_bf16(cpu.isa) == self,
            Self::Int8 => cpu.int8,
        }
    }

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::BFloat16 => "bfloat16",
            Self::Int8 => "int8",
        }
    }
}

/// Limits that the user knows; None: measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GivenLimits {
    /// Operations per second of what linear layers compute in.
    pub flops: Option<f64>,
    /// Bytes of memory per second.
    pub bandwidth: Option<f64>,
}

/// One limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// Operations or bytes per second.
    pub per_second: f64,
    /// The user gave it; else it was measured.
    pub is_given: bool,
}

impl Limit {
    /// The given limit; without one it is unknown, and bounds nothing.
    fn given_or_none(given: Option<f64>) -> Self {
        Self::given_or(given, || f64::INFINITY)
    }

    fn given_or(given: Option<f64>, measured: impl FnOnce() -> f64) -> Self {
        let per_second = given.unwrap_or_else(measured);
        Self { per_second, is_given: given.is_some() }
    }

    /// The larger: what slowed a measurement down is no limit of the machine.
    fn best(self, other: Self) -> Self {
        if other.per_second > self.per_second { other } else { self }
    }
}

/// Limits of the machine. An operation is a multiplication or an addition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Operations, by `Arithmetic`; None: nothing computes in it.
    pub arithmetic: [Option<Limit>; Arithmetic::ALL.len()],
    /// Bytes read from memory.
    pub memory: Limit,
}

impl Limits {
    /// Those that are given, the rest measured: in less than half a second. Linear layers are of a
    /// model in `dtype`.
    pub(super) fn find(cpu: &Cpu, dtype: DType, given: GivenLimits) -> Self {
        let of_layers = Arithmetic::of_layers(cpu, dtype);
        let arithmetic = Arithmetic::ALL.map(|arithmetic| {
            let given = given.flops.filter(|_| arithmetic == of_layers);
            let limit = || Limit::given_or(given, || flops_per_second(cpu, arithmetic));
            arithmetic.is_used(cpu).then(limit)
        });
        let memory = Limit::given_or(given.bandwidth, || bytes_per_second(cpu));
        Self { arithmetic, memory }
    }

    /// Limits of a GPU: the given ones, for any arithmetic.
    pub(super) fn of_gpu(given: GivenLimits) -> Self {
        let arithmetic = Arithmetic::ALL.map(|_| Some(Limit::given_or_none(given.flops)));
        Self { arithmetic, memory: Limit::given_or_none(given.bandwidth) }
    }

    /// The larger of each.
    pub(super) fn best(self, other: Self) -> Self {
        let mut arithmetic = self.arithmetic;
        for (limit, other) in arithmetic.iter_mut().zip(other.arithmetic) {
            *limit = limit.zip(other).map(|(limit, other)| limit.best(other));
        }
        Self { arithmetic, memory: self.memory.best(other.memory) }
    }

    /// Least seconds for a number of operations.
    ///
    /// # Panics
    /// Nothing on this CPU computes in that arithmetic.
    pub fn compute_seconds(&self, arithmetic: Arithmetic, flops: f64) -> f64 {
        let limit = self.arithmetic[arithmetic as usize];
        flops / limit.expect("a limit of what ops compute in").per_second
    }

    /// Least seconds for reading a number of bytes from memory.
    pub fn memory_seconds(&self, bytes: f64) -> f64 {
        bytes / self.memory.per_second
    }
}

/// A measurement is the best of these: others may use the machine meanwhile.
const NUM_REPEATS: usize = 6;

/// Rounds of independent operations, one per accumulator: some milliseconds.
const NUM_ROUNDS: usize = 1 << 20;

/// Bytes that are read: more than twice the size of the last cache of most machines.
const MAX_READ_BYTES: u64 = 512 << 20;

/// Share of the free memory, as a divisor, that a measurement may take.
const FREE_MEMORY_PART: u64 = 8;

/// Work per second, when each thread does `work` in `item`.
fn best_rate(cpu: &Cpu, work: f64, item: &(dyn Fn(usize) + Sync)) -> f64 {
    let num_threads = cpu.pool.num_threads();
    let rate = |_| {
        let started = Instant::now();
        cpu.pool.run(num_threads, &|_, index| item(index));
        num_threads as f64 * work / started.elapsed().as_secs_f64().max(1e-9)
    };
    (0..NUM_REPEATS).map(rate).fold(0.0, f64::max)
}

fn flops_per_second(cpu: &Cpu, arithmetic: Arithmetic) -> f64 {
    let (kernel, flops_per_round): (fn(Isa, usize), f64) = match arithmetic {
        Arithmetic::Float32 => {
            let num_lanes = cpu.isa.num_lanes() as f64;
            (multiply_adds, 2.0 * num_lanes * num_accumulators(cpu.isa) as f64)
        }
        Arithmetic::BFloat16 => match cpu.isa.bf16_products() {
            Bf16Products::Tiles(unit) => return tile_rate(cpu, unit, 2, rounds_of_bf16),
            #[cfg(target_arch = "x86_64")]
            _ => (x86::bf16_dots, x86::BF16_FLOPS),
            #[cfg(target_arch = "aarch64")]
            _ => (neon::bfmmlas, neon::BFMMLA_FLOPS),
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            _ => unreachable!("no set of this machine is said to have it"),
        },
        Arithmetic::Int8 if cpu.isa.int8_dots() == Int8Dots::Amx => {
            return tile_rate(cpu, TileUnit::Amx, 4, rounds_of_int8);
        }
        Arithmetic::Int8 => int8_dots(cpu.isa),
    };
    let isa = cpu.isa;
    best_rate(cpu, NUM_ROUNDS as f64 * flops_per_round, &|_| kernel(isa, NUM_ROUNDS))
}

/// Operations per second of tiles, whose words have so many values.
fn tile_rate(cpu: &Cpu, unit: TileUnit, word: usize, rounds: fn(TileUnit, usize) -> usize) -> f64 {
    // A step takes some hundred times as long as an instruction on vectors.
    let num_steps = NUM_ROUNDS / 64;
    let macs = rounds(unit, 0) * num_steps * word;
    best_rate(cpu, 2.0 * macs as f64, &|_| {
        rounds(unit, num_steps);
    })
}

/// The instructions that int8 layers run by, and their operations per round.
fn int8_dots(isa: Isa) -> (fn(Isa, usize), f64) {
    match isa.int8_dots() {
        #[cfg(target_arch = "x86_64")]
        Int8Dots::Vnni => (x86::vnni_dots, x86::VNNI_FLOPS),
        #[cfg(target_arch = "x86_64")]
        Int8Dots::AvxVnni => (x86::avx_vnni_dots, x86::AVX2_FLOPS),
        #[cfg(target_arch = "x86_64")]
        Int8Dots::Avx2 => (x86::avx2_dots, x86::AVX2_FLOPS),
        #[cfg(target_arch = "aarch64")]
        Int8Dots::Smmla => (neon::smmlas, neon::SMMLA_FLOPS),
        #[cfg(target_arch = "aarch64")]
        Int8Dots::Sdot => (neon::sdots, neon::SDOT_FLOPS),
        _ => (portable::dots, portable::FLOPS),
    }
}

/// As many as hide the latency and fit the registers.
fn num_accumulators(isa: Isa) -> usize {
    if isa.num_registers() < 16 { 6 } else { 12 }
}

fn multiply_adds(isa: Isa, num_rounds: usize) {
    match num_accumulators(isa) {
        6 => dispatch(isa, MultiplyAdds::<6>(num_rounds)),
        _ => dispatch(isa, MultiplyAdds::<12>(num_rounds)),
    }
}

/// Rounds of one multiply-add per accumulator.
struct MultiplyAdds<const NUM: usize>(usize);

impl<const NUM: usize> Kernel for MultiplyAdds<NUM> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: dispatched for this CPU.
        unsafe {
            // Values that the compiler does not know: nothing can be computed beforehand. They go
            // to 2, so none is ever too small or too large for full speed.
            let (factor, addend) = (V::splat(black_box(0.5)), V::splat(black_box(1.0)));
            let mut sums = [addend; NUM];
            for (index, sum) in sums.iter_mut().enumerate() {
                *sum = V::splat(black_box(index as f32));
            }
            for _ in 0..self.0 {
                for sum in &mut sums {
                    *sum = sum.mul_add(factor, addend);
                }
            }
            let mut total = addend;
            for sum in sums {
                total = total.add(sum);
            }
            black_box(total.sum());
        }
    }
}

/// Elements that a thread reads at a time: whole vectors for every accumulator.
const READ_CHUNK: usize = 8 * 16;

fn bytes_per_second(cpu: &Cpu) -> f64 {
    let num_threads = cpu.pool.num_threads();
    let free = memory::available_bytes().unwrap_or(MAX_READ_BYTES);
    let num_bytes = (free / FREE_MEMORY_PART).clamp(1 << 20, MAX_READ_BYTES) as usize;
    let part_len = (num_bytes / 4 / num_threads).next_multiple_of(READ_CHUNK);
    let mut buffer = Pages::<f32>::zeroed_huge(num_threads * part_len);
    let shared = SharedMut::new(&mut buffer);
    // Pages that nobody wrote are all one page of zeros. Who reads them has them near.
    cpu.pool.run(num_threads, &|_, index| {
        // SAFETY: each item writes its own part.
        unsafe { shared.slice(index * part_len, part_len) }.fill(1.0);
    });
    let part = |index: usize| &buffer[index * part_len..(index + 1) * part_len];
    let isa = cpu.isa;
    best_rate(cpu, 4.0 * part_len as f64, &|index| dispatch(isa, ReadAll(part(index))))
}

/// Reads values, a multiple of `READ_CHUNK` of them.
struct ReadAll<'a>(&'a [f32]);

impl Kernel for ReadAll<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: dispatched for this CPU; a chunk is 8 vectors of at most 16 lanes.
        unsafe {
            let mut sums = [V::splat(0.0); 8];
            for values in self.0.chunks_exact(8 * V::LANES) {
                for (index, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.add(V::load(values.as_ptr().add(index * V::LANES)));
                }
            }
            for sum in sums {
                black_box(sum.sum());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    fn limits(device: &Device, dtype: DType, given: GivenLimits) -> Limits {
        let Device::Cpu(cpu) = device else { panic!("a CPU") };
        Limits::find(cpu, dtype, given)
    }

    /// Asserts a rate of a processor of the last 20 years, with a wide margin on both sides.
    fn assert_plausible(limit: Limit, what: &str) {
        assert!((1e7..1e16).contains(&limit.per_second), "{what}: {limit:?}");
        assert!(!limit.is_given, "{what}");
    }

    #[test]
    fn every_instruction_set_has_limits_of_what_it_computes_in() {
        for isa in Isa::all_available() {
            let given = GivenLimits { flops: None, bandwidth: Some(5e9) };
            let device = Device::cpu_with_isa(2, isa).with_int8();
            let limits = limits(&device, DType::BFloat16, given);
            let [float32, bfloat16, int8] = limits.arithmetic;
            assert_plausible(float32.unwrap(), isa.name());
            assert_plausible(int8.unwrap(), isa.name());
            assert_eq!(bfloat16.is_some(), isa.bf16_products() != Bf16Products::Widened);
            assert_eq!(limits.memory, Limit { per_second: 5e9, is_given: true });
        }
    }

    #[test]
    fn memory_is_measured_and_what_is_given_is_of_the_layers() {
        let given = GivenLimits { flops: Some(3e12), bandwidth: None };
        let found = limits(&Device::cpu(Some(2)), DType::Float32, given);
        assert_plausible(found.memory, "memory");
        assert_eq!(found.arithmetic[0], Some(Limit { per_second: 3e12, is_given: true }));
        let given = GivenLimits { bandwidth: Some(1.0), ..given };
        let found = limits(&Device::cpu(Some(1)).with_int8(), DType::Float32, given);
        assert_plausible(found.arithmetic[0].unwrap(), "float32 beside int8");
        assert_eq!(found.arithmetic[2], Some(Limit { per_second: 3e12, is_given: true }));
    }

    #[test]
    fn the_best_of_two_measurements_is_the_limit() {
        let limit = |per_second| Limit { per_second, is_given: false };
        let first = Limits { arithmetic: [Some(limit(1.0)), None, None], memory: limit(4.0) };
        let second = Limits { arithmetic: [Some(limit(2.0)), None, None], memory: limit(3.0) };
        let best = first.best(second);
        assert_eq!(best.arithmetic, [Some(limit(2.0)), None, None]);
        assert_eq!(best.memory, limit(4.0));
        assert_eq!(best.compute_seconds(Arithmetic::Float32, 6.0), 3.0);
        assert_eq!(best.memory_seconds(6.0), 1.5);
    }
}
