//! The same lanes with every instruction set.

use crate::simd::InstructionSet;
#[cfg(target_arch = "x86_64")]
mod sixteen_lanes;

use super::*;

struct Check<'a> {
    inputs: &'a [f32],
    exp: &'a mut Vec<f32>,
    coarse_exp: &'a mut Vec<f32>,
    exp_m1: &'a mut Vec<f32>,
    tanh: &'a mut Vec<f32>,
    sigmoid: &'a mut Vec<f32>,
    softplus: &'a mut Vec<f32>,
    sums: &'a mut Vec<f32>,
    largest: &'a mut Vec<f32>,
}

impl Kernel for Check<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        for chunk in self.inputs.chunks_exact(V::LANES) {
            let mut out = vec![0.0; V::LANES];
            // SAFETY: chunks and buffers of LANES elements; dispatched for this CPU.
            unsafe {
                let v = V::load(chunk.as_ptr());
                v.exp().store(out.as_mut_ptr());
                self.exp.extend_from_slice(&out);
                v.min(V::splat(0.0)).coarse_exp().store(out.as_mut_ptr());
                self.coarse_exp.extend_from_slice(&out);
                v.exp_m1().store(out.as_mut_ptr());
                self.exp_m1.extend_from_slice(&out);
                v.tanh().store(out.as_mut_ptr());
                self.tanh.extend_from_slice(&out);
                v.sigmoid().store(out.as_mut_ptr());
                self.sigmoid.extend_from_slice(&out);
                v.softplus().store(out.as_mut_ptr());
                self.softplus.extend_from_slice(&out);
                self.sums.push(v.sum());
                self.largest.push(v.largest());
            }
        }
    }
}

struct NotBelow<'a> {
    inputs: &'a [f32],
    limit: f32,
    found: &'a mut Vec<bool>,
}

impl Kernel for NotBelow<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        for chunk in self.inputs.chunks_exact(V::LANES) {
            // SAFETY: chunks of LANES elements; dispatched for this CPU.
            self.found.push(unsafe { V::load(chunk.as_ptr()).any_not_below(self.limit) });
        }
    }
}

#[test]
fn one_lane_that_is_not_below_a_limit_is_found_with_every_instruction_set() {
    for isa in Isa::all_available() {
        let lanes = isa.num_lanes();
        for (value, limit) in [(1.0, 1.0), (0.0, -0.0), (f32::NAN, 5.0), (f32::INFINITY, 1e30)] {
            // In no lane, then in each.
            let mut inputs = vec![-7.0; (lanes + 1) * lanes];
            (0..lanes).for_each(|lane| inputs[(lane + 1) * lanes + lane] = value);
            let mut expected = vec![true; lanes + 1];
            expected[0] = false;
            let mut found = Vec::new();
            dispatch(isa, NotBelow { inputs: &inputs, limit, found: &mut found });
            assert_eq!(found, expected, "{isa:?}: {value} and {limit}");
        }
        for (limit, expected) in [(f32::NAN, true), (f32::NEG_INFINITY, true), (-6.9, false)] {
            let (inputs, mut found) = (vec![-7.0; lanes], Vec::new());
            dispatch(isa, NotBelow { inputs: &inputs, limit, found: &mut found });
            assert_eq!(found, [expected], "{isa:?}: {limit}");
        }
    }
}

#[test]
fn exponentials_sum_and_largest_agree_with_f64_on_every_instruction_set() {
    let mut inputs: Vec<f32> = (0..16_000).map(|i| (i as f32 - 8000.0) * 0.0109).collect();
    inputs.extend([f32::NEG_INFINITY, -1e30, -88.0, -87.0, 0.0, -0.0, 1e-20, 88.0]);
    inputs.extend([1e-3, -1e-3, -1e-6, -1e-9, 0.3465, -0.3465, 0.3467, -0.3467]);
    // The largest in every lane of some vector.
    inputs.extend((0..512u16).map(|i| f32::from(i * 37 % 512) * 0.01));
    for isa in Isa::all_available() {
        let (mut exp, mut exp_m1, mut tanh) = (vec![], vec![], vec![]);
        let (mut coarse_exp, mut sigmoid, mut softplus) = (vec![], vec![], vec![]);
        let (mut sums, mut largest) = (vec![], vec![]);
        let check = Check {
            inputs: &inputs,
            exp: &mut exp,
            coarse_exp: &mut coarse_exp,
            exp_m1: &mut exp_m1,
            tanh: &mut tanh,
            sigmoid: &mut sigmoid,
            softplus: &mut softplus,
            sums: &mut sums,
            largest: &mut largest,
        };
        dispatch(isa, check);
        for (chunk, largest) in inputs.chunks_exact(isa.num_lanes()).zip(&largest) {
            let expected = chunk.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(*largest, expected, "{isa:?} {chunk:?}");
        }
        for (i, &x) in inputs.iter().enumerate() {
            let expected = f64::from(x).exp();
            let limit = if x < -87.0 { 2e-38 } else { 3e-7 * expected };
            assert!((f64::from(exp[i]) - expected).abs() <= limit, "{isa:?} exp({x})");
            let expected = f64::from(x.min(0.0)).exp();
            let limit = if x < -87.0 { 2e-38 } else { 1.1e-4 * expected };
            assert!((f64::from(coarse_exp[i]) - expected).abs() <= limit, "{isa:?} e^{x}");
            assert!(x < 0.0 || coarse_exp[i] == 1.0, "{isa:?} e^0");
            let expected = f64::from(x).exp_m1();
            let error = (f64::from(exp_m1[i]) - expected).abs();
            assert!(error <= 3e-7 * expected.abs(), "{isa:?} exp_m1({x}): {}", exp_m1[i]);
            assert!((f64::from(tanh[i]) - f64::from(x).tanh()).abs() < 3e-7, "{isa:?} tanh({x})");
            let expected = 1.0 / (1.0 + f64::from(-x).exp());
            assert!((f64::from(sigmoid[i]) - expected).abs() < 1e-7, "{isa:?} sigmoid({x})");
            let expected = f64::from(x).max(0.0) + f64::from(-x.abs()).exp().ln_1p();
            let error = (f64::from(softplus[i]) - expected).abs();
            let limit = if x < -87.0 { 2e-38 } else { 4e-7 * expected };
            assert!(error <= limit, "{isa:?} softplus({x}): {}, not {expected}", softplus[i]);
        }
        for (chunk, sum) in inputs.chunks_exact(isa.num_lanes()).zip(&sums) {
            let expected: f64 = chunk.iter().map(|&x| f64::from(x)).sum();
            let size: f64 = chunk.iter().map(|&x| f64::from(x).abs()).sum();
            assert!(!size.is_finite() || (f64::from(*sum) - expected).abs() <= 1e-6 * size);
        }
    }
}

/// AVX2's and NEON's kernel sets give equal answers only if their vectors give equal bits. No
/// machine has both, so the bits are written down.
#[test]
fn eight_fused_lanes_give_the_same_bits_on_x86_and_on_aarch64() {
    let inputs: Vec<f32> = (0..16_000).map(|i| (i as f32 - 8000.0) * 0.010_937).collect();
    for isa in [Isa::Avx2, Isa::Neon].into_iter().filter(|isa| isa.is_available()) {
        let mut values: [Vec<f32>; 8] = Default::default();
        let [exp, exp_m1, tanh, sigmoid, softplus, sums, largest, coarse_exp] = &mut values;
        let check = Check {
            inputs: &inputs,
            exp,
            coarse_exp,
            exp_m1,
            tanh,
            sigmoid,
            softplus,
            sums,
            largest,
        };
        dispatch(isa, check);
        let bits: Vec<u8> =
            values.iter().flatten().flat_map(|value| value.to_bits().to_le_bytes()).collect();
        let hash = blake3::hash(&bits).to_hex();
        assert_eq!(&hash.as_str()[..16], "7674f3cad01d4410", "{isa:?}");
    }
}

struct Widen<'a, E> {
    values: &'a [E],
    out: &'a mut [f32],
}

impl<E: Element> Kernel for Widen<'_, E> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        for start in (0..self.values.len()).step_by(V::LANES) {
            // SAFETY: both slices have a multiple of 16 elements; dispatched for this CPU.
            unsafe {
                E::load::<V>(self.values.as_ptr().add(start))
                    .store(self.out.as_mut_ptr().add(start));
            }
        }
    }
}

struct WidenPairs<'a> {
    values: &'a [bf16],
    out: &'a mut [f32],
}

impl Kernel for WidenPairs<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let (mut low, mut high) = (vec![0.0; V::LANES], vec![0.0; V::LANES]);
        for start in (0..self.values.len()).step_by(2 * V::LANES) {
            // SAFETY: as of `Widen`; the buffers hold a vector.
            unsafe {
                let pairs = self.values.as_ptr().add(start).cast();
                V::load_low_bf16(pairs).store(low.as_mut_ptr());
                V::load_high_bf16(pairs).store(high.as_mut_ptr());
            }
            for (lane, pair) in self.out[start..].chunks_exact_mut(2).take(V::LANES).enumerate() {
                pair.copy_from_slice(&[low[lane], high[lane]]);
            }
        }
    }
}

#[test]
fn halves_widen_exactly_for_every_bit_pattern() {
    let bf: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    let fp: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    for isa in Isa::all_available() {
        let mut out = vec![0.0f32; bf.len()];
        dispatch(isa, Widen { values: &bf, out: &mut out });
        let same = |x: f32, y: f32| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
        assert!(bf.iter().zip(&out).all(|(b, &o)| same(b.to_f32(), o)), "{isa:?}");
        let mut out_of_pairs = vec![0.0f32; bf.len()];
        dispatch(isa, WidenPairs { values: &bf, out: &mut out_of_pairs });
        assert!(bf.iter().zip(&out_of_pairs).all(|(b, &o)| same(b.to_f32(), o)), "{isa:?}");
        dispatch(isa, Widen { values: &fp, out: &mut out });
        assert!(fp.iter().zip(&out).all(|(b, &o)| same(b.to_f32(), o)), "{isa:?}");
    }
}
