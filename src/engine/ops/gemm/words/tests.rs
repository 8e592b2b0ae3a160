//! Every way to narrow a row against the definition.

use half::bf16;
use vllm_batch_device::simd::InstructionSet;

use super::*;
use vllm_batch_base::split_mix::{GAMMA, mix};

type Narrow = unsafe fn(*const f32, (usize, usize), (*mut u32, usize));

/// Those of this machine.
fn ways() -> Vec<(&'static str, Narrow)> {
    #[cfg(target_arch = "x86_64")]
    {
        let all: [(_, _, Narrow); 2] = [
            ("AVX512-BF16", Isa::Avx512Bf16, x86::by_avx512_bf16),
            ("AVX2", Isa::Avx2, x86::by_avx2),
        ];
        let here = all.into_iter().filter(|(_, isa, _)| isa.is_available());
        here.map(|(name, _, narrow)| (name, narrow)).collect()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let by_bf16: Narrow = neon::by_bf16;
        Isa::NeonBf16.is_available().then_some(("bf16", by_bf16)).into_iter().collect()
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    vec![]
}

/// The bits of a bf16: to nearest, ties to even, of what is subnormal a zero of its sign.
fn bits(value: f32) -> u32 {
    match value.is_subnormal() {
        true => u32::from(value.is_sign_negative()) << 15,
        false => u32::from(bf16::from_f32(value).to_bits()),
    }
}

fn check(x: &[f32]) {
    let expected: Vec<u32> =
        x.chunks(2).map(|pair| bits(pair[0]) | pair.get(1).map_or(0, |&x| bits(x)) << 16).collect();
    for (name, narrow) in ways() {
        // Two rows, whose words lie apart, and then where the values of the second are.
        let rows = [x, x].concat();
        let stride = x.len() + 3;
        let mut words = vec![u32::MAX; 2 * stride];
        let shape = (2, x.len());
        // SAFETY: it is left out where the CPU has not its instructions; words are not more than
        // values.
        unsafe { narrow(rows.as_ptr(), shape, (words.as_mut_ptr(), stride)) };
        let mut in_place = rows.clone();
        let second = in_place[x.len()..].as_mut_ptr();
        // SAFETY: as above.
        unsafe { narrow(second, (1, x.len()), (second.cast(), 0)) };
        let in_place: Vec<u32> = in_place[x.len()..].iter().map(|word| word.to_bits()).collect();
        for words in [&words, &words[stride..], &in_place] {
            let differs = words.iter().zip(&expected).position(|(word, expected)| word != expected);
            let values = differs.map(|at| (words[at], &x[2 * at..(2 * at + 2).min(x.len())]));
            assert_eq!(values, None, "{name}, {} values", x.len());
        }
        let behind = words[expected.len()..stride].iter().chain(&words[stride + expected.len()..]);
        assert!(behind.into_iter().all(|&word| word == u32::MAX), "{name} writes past a row");
    }
}

#[test]
fn rows_are_rounded_to_nearest_wherever_they_end() {
    let odd = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 3.4e38, -1e-45, 1e-40];
    // Halfway between two values of bf16, where the last bit decides; and beside it.
    let halfway = [0x3f80_8000, 0x3f81_8000, 0x3f80_7fff, 0x3f81_8001].map(f32::from_bits);
    for len in [1, 2, 15, 16, 17, 31, 32, 33, 75] {
        let mut x: Vec<f32> = (0..len).map(|index| (index as f32 - 20.0) * 0.371).collect();
        for (value, odd) in x.iter_mut().rev().zip(odd.into_iter().chain(halfway)) {
            *value = odd;
        }
        check(&x);
    }
}

/// Of every sign and exponent, NaN and the subnormal numbers that would round up among them.
#[test]
fn any_bits_are_rounded_alike() {
    let mut state = 3u64;
    let mut next = || {
        state = state.wrapping_add(GAMMA);
        mix(state) as u32
    };
    for exponent in 0..=0xffu32 {
        let values = (0..2000).map(|_| f32::from_bits(next() & 0x807f_ffff | exponent << 23));
        check(&values.collect::<Vec<_>>());
    }
    check(&[0x007f_8000, 0x007f_ffff, 0x807f_8000, 0x0080_0000, 0x7f80_0001].map(f32::from_bits));
}
