//! Sixteen lanes in one register and in two, operation by operation.

use super::*;
use crate::simd::InstructionSet;
use vllm_batch_base::split_mix::{GAMMA, mix};

/// Vectors of any bits, and as many of numbers about 1.
const NUM_VECTORS: usize = 4000;

const LANES: usize = 16;

struct Random(u64);

impl Random {
    fn next_u32(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0) as u32
    }
}

/// What operations take, a vector of each.
struct Operands {
    floats: [[f32; LANES]; 3],
    /// Whole numbers in [-126, 127].
    exponents: [f32; LANES],
    words: [[u32; LANES]; 2],
    halves: [u16; LANES],
}

impl Operands {
    fn new(is_any: bool, random: &mut Random) -> Self {
        let mut operands = Self {
            floats: [[0.0; LANES]; 3],
            exponents: [0.0; LANES],
            words: [[0; LANES]; 2],
            halves: [0; LANES],
        };
        for float in operands.floats.as_flattened_mut() {
            let bits = random.next_u32();
            *float = f32::from_bits(if is_any { bits } else { bits & 0x80ff_ffff | 0x3f00_0000 });
        }
        operands.exponents.fill_with(|| (random.next_u32() % 254) as f32 - 126.0);
        operands.words.as_flattened_mut().fill_with(|| random.next_u32());
        operands.halves.fill_with(|| random.next_u32() as u16);
        operands
    }
}

/// Bits of results; one NaN is as good as another.
#[derive(Default)]
struct Results(Vec<u32>);

impl Results {
    fn push(&mut self, value: f32) {
        self.0.push(if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() });
    }

    /// # Safety
    /// As of `Vector`.
    #[inline(always)]
    unsafe fn floats<V: Vector>(&mut self, vector: V) {
        let mut lanes = [0.0; LANES];
        // SAFETY: the caller's promise, and so many lanes.
        unsafe { vector.store(lanes.as_mut_ptr()) };
        lanes.into_iter().for_each(|lane| self.push(lane));
    }

    /// # Safety
    /// As of `Vector`.
    #[inline(always)]
    unsafe fn words<W: Words>(&mut self, words: W) {
        let mut lanes = [0; LANES];
        // SAFETY: the caller's promise, and so many lanes.
        unsafe { words.store(lanes.as_mut_ptr()) };
        self.0.extend(lanes);
    }
}

/// Every operation on floats.
struct OfFloats<'a>(&'a Operands, &'a mut Results);

impl Kernel for OfFloats<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        assert_eq!(V::LANES, LANES);
        let Self(operands, out) = self;
        let [a, b, c] = &operands.floats;
        // SAFETY: dispatched for this CPU; operands have so many lanes.
        unsafe {
            let has_number = a.iter().all(|x| !x.is_nan());
            let splat = V::splat(a[3]);
            let (a, b, c) = (V::load(a.as_ptr()), V::load(b.as_ptr()), V::load(c.as_ptr()));
            for vector in [a.add(b), a.sub(b), a.mul(b), a.div(b), a.max(b), b.min(a), splat] {
                out.floats(vector);
            }
            out.floats(a.mul_add(b, c));
            out.floats(a.round());
            out.floats(a.zero_below(b, c));
            out.floats(a.mul_exp2(V::load(operands.exponents.as_ptr())));
            out.floats(a.butterflies::<1>());
            out.floats(a.butterflies::<2>());
            out.floats(a.butterflies::<4>());
            out.floats(a.butterflies::<8>());
            for vector in [a.exp(), a.exp_m1(), a.sigmoid(), a.softplus(), a.tanh()] {
                out.floats(vector);
            }
            out.floats(V::splat(0.0).min(a).coarse_exp());
            out.push(a.sum());
            out.push(if has_number { a.largest() } else { 0.0 });
        }
    }
}

/// Every operation on words, and what becomes floats.
struct OfWords<'a>(&'a Operands, &'a mut Results);

impl Kernel for OfWords<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self(operands, out) = self;
        let [words, others] = &operands.words;
        // SAFETY: dispatched for this CPU; operands have so many lanes.
        unsafe {
            out.floats(V::load_bf16(operands.halves.as_ptr()));
            out.floats(V::load_f16(operands.halves.as_ptr()));
            out.floats(V::load_low_bf16(words.as_ptr()));
            out.floats(V::load_high_bf16(words.as_ptr()));
            let bytes = V::Words::load_bytes(words.as_ptr().cast());
            let (words, others) = (V::Words::load(words.as_ptr()), V::Words::load(others.as_ptr()));
            let masked = words.and(0x0f0f_1234);
            for words in [bytes, words.shift_right(5), words.shift_left(7), masked] {
                out.words(words);
            }
            out.words(words.or(others));
            out.words(V::Words::bf16_bits(V::load(operands.floats[0].as_ptr())));
            out.floats(words.shift_right(1).to_floats());
            out.floats(words.as_floats());
            out.floats(words.lookup(operands.exponents.as_ptr()));
            // All bytes but the two NaN.
            out.floats(words.and(0xfe).float8());
            out.floats(words.and(0xfd).float8());
        }
    }
}

/// Pairs of bf16.
struct OfPairs<'a>(&'a Operands, &'a mut Results);

impl Kernel for OfPairs<'_> {
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self(operands, out) = self;
        let [first, second, _] = &operands.floats;
        // SAFETY: dispatched for this CPU; operands have so many lanes.
        unsafe {
            let (first, second) = (V::load(first.as_ptr()), V::load(second.as_ptr()));
            out.words(V::Words::bf16_pairs(first, second));
        }
    }
}

/// Floats, words and pairs.
fn results(isa: Isa) -> [Vec<u32>; 3] {
    let (mut random, mut results) = (Random(11), [(); 3].map(|()| Results::default()));
    for index in 0..2 * NUM_VECTORS {
        let operands = Operands::new(index % 2 == 0, &mut random);
        let [floats, words, pairs] = &mut results;
        dispatch_vectors(isa, OfFloats(&operands, floats));
        dispatch_vectors(isa, OfWords(&operands, words));
        dispatch_pairs(isa, OfPairs(&operands, pairs));
    }
    results.map(|results| results.0)
}

/// AVX-512's kernels and the twin of AMX on AVX2 give equal answers only if their vectors give
/// equal bits. A machine may have one of them, so the bits are written down too.
#[test]
fn sixteen_lanes_give_the_same_bits_in_one_register_and_in_two() {
    let sets = [Isa::AmxTwin, Isa::AmxTwinAvx2].into_iter().filter(|isa| isa.is_available());
    let of_sets: Vec<_> = sets.map(|isa| (isa, results(isa))).collect();
    if let [(_, one), (_, two)] = &of_sets[..] {
        for (what, (one, two)) in ["floats", "words", "pairs"].iter().zip(one.iter().zip(two)) {
            let per_vector = one.len() / (2 * NUM_VECTORS);
            let differs = one.iter().zip(two).position(|(one, two)| one != two);
            let place = differs.map(|at| (at / per_vector, at % per_vector, one[at], two[at]));
            assert_eq!((place, one.len()), (None, two.len()), "{what}");
        }
    }
    for (isa, results) in of_sets {
        let bits: Vec<u8> = results.iter().flatten().flat_map(|bits| bits.to_le_bytes()).collect();
        let hash = blake3::hash(&bits).to_hex();
        assert_eq!(&hash.as_str()[..16], "110dfcd4de9d4a66", "{isa:?}");
    }
}
