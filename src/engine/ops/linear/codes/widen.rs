//! Codes to floats: a piece of a panel at a time, into memory that stays in the first cache.

use std::ops::Range;

use super::layout::{Layout, Panel, PanelKind, Rounding};
use vllm_batch_base::matrix::{Levels, SUPER_GROUP, Scales, UNIT};
use vllm_batch_device::simd::{Isa, Kernel, Vector, Words, dispatch, dispatch_pairs};

/// Ways of a code to its level.
const LESS_ZERO: u8 = 0;
const LESS_MINIMUM: u8 = 1;
const LOOKED_UP: u8 = 2;
const FLOAT8: u8 = 3;

/// Some inputs of a panel on their way to floats.
pub(super) struct Widen<'a> {
    pub panel: Panel<'a>,
    /// The first is that of a unit.
    pub inputs: Range<usize>,
    pub rounding: Rounding,
    /// Room for whole units of inputs by a panel's width.
    pub out: *mut f32,
}

impl Widen<'_> {
    /// Writes the values to `out`: (inputs, width) f32, or of pairs (inputs / 2, width) words.
    ///
    /// # Safety
    /// There is room behind `out`, which nobody else uses; the panel has these inputs and the width
    /// of `isa`.
    pub(super) unsafe fn run(self, isa: Isa) {
        assert!(self.inputs.start.is_multiple_of(UNIT));
        match self.rounding {
            Rounding::Pairs => dispatch_pairs(isa, self),
            Rounding::Exact | Rounding::BFloat16 => dispatch(isa, self),
        }
    }
}

impl Kernel for Widen<'_> {
    /// # Safety
    /// As `Kernel::run` and `Widen::run`.
    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        let Self { panel, inputs, rounding, out } = self;
        // SAFETY: as above.
        unsafe { panel.put_values::<V, Memory>(inputs, &mut Memory { rounding, out }) };
    }
}

/// Where values go, as they come out of their codes.
pub(super) trait Sink<V> {
    /// Before the values of four inputs; the first is a multiple of four from the beginning.
    ///
    /// # Safety
    /// As `put_pair`.
    unsafe fn begin_quad(&mut self, input: usize);

    /// Takes two inputs, the first of them even, counted from the beginning.
    ///
    /// # Safety
    /// The CPU has the instructions of `V`; the sink was made for so many inputs.
    unsafe fn put_pair(&mut self, input: usize, first: [V; 2], second: [V; 2]);
}

impl Panel<'_> {
    /// Puts the values of some inputs into a sink, whole units of them where the panel is of codes.
    ///
    /// # Safety
    /// As `Sink::put_pair`. The panel has these inputs, the first is that of a unit, and it has the
    /// width of two vectors.
    #[inline(always)]
    pub(super) unsafe fn put_values<V: Vector, S: Sink<V>>(
        self,
        inputs: Range<usize>,
        sink: &mut S,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.kind {
                PanelKind::Dense => put_floats(self.words, inputs, sink),
                PanelKind::Codes(kind, layout) => {
                    let section = |range: &Range<usize>| self.words[range.clone()].as_ptr().cast();
                    let (zero, table) = levels(&kind.levels);
                    let codes = Codes {
                        table: &table,
                        zero,
                        scales: &kind.scales,
                        layout,
                        words: self.words[layout.codes.clone()].as_ptr(),
                        group_scales: section(&layout.scales),
                        group_offsets: section(&layout.offsets),
                        supers: section(&layout.supers).cast(),
                        super_minima: section(&layout.super_minima).cast(),
                    };
                    match (&kind.levels, kind.bits) {
                        (Levels::Table(_), _) | (Levels::Integers { .. }, 4) => {
                            codes.units::<V, S, 4, LOOKED_UP>(inputs, sink);
                        }
                        (Levels::Float8, _) => codes.units::<V, S, 8, FLOAT8>(inputs, sink),
                        (Levels::Minima, bits) => {
                            codes.of_bits::<V, S, LESS_MINIMUM>(bits, inputs, sink);
                        }
                        (_, bits) => codes.of_bits::<V, S, LESS_ZERO>(bits, inputs, sink),
                    }
                }
            }
        }
    }
}

/// Values that are floats.
///
/// # Safety
/// As `Panel::put_values`.
#[inline(always)]
unsafe fn put_floats<V: Vector, S: Sink<V>>(words: &[u32], inputs: Range<usize>, sink: &mut S) {
    let words = words.as_ptr().cast::<f32>();
    let first_input = inputs.start;
    for input in inputs.step_by(2) {
        // SAFETY: a panel has an even number of inputs.
        unsafe {
            if input % 4 == 0 {
                sink.begin_quad(input - first_input);
            }
            let pair = words.add(input * 2 * V::LANES);
            let first = [V::load(pair), V::load(pair.add(V::LANES))];
            let pair = pair.add(2 * V::LANES);
            let second = [V::load(pair), V::load(pair.add(V::LANES))];
            sink.put_pair(input - first_input, first, second);
        }
    }
}

/// (inputs, width) f32, or of pairs (inputs / 2, width) words.
struct Memory {
    rounding: Rounding,
    out: *mut f32,
}

/// The zero of all groups, where they have none of their own, and the levels of 4 bits.
fn levels(levels: &Levels) -> (f32, [f32; 16]) {
    match levels {
        Levels::Integers { zero } => {
            let zero = f32::from(*zero);
            (zero, std::array::from_fn(|code| code as f32 - zero))
        }
        Levels::Table(table) => (0.0, *table.0),
        Levels::Zeros | Levels::Minima | Levels::Float8 => (0.0, [0.0; 16]),
    }
}

impl<V: Vector> Sink<V> for Memory {
    #[inline(always)]
    unsafe fn begin_quad(&mut self, _: usize) {}

    #[inline(always)]
    unsafe fn put_pair(&mut self, input: usize, first: [V; 2], second: [V; 2]) {
        let out = self.out;
        // SAFETY: the caller's promise.
        unsafe {
            for c in 0..2 {
                let at = out.add((2 * input + c) * V::LANES);
                let at_second = at.add(2 * V::LANES);
                match self.rounding {
                    Rounding::Exact => {
                        first[c].store(at);
                        second[c].store(at_second);
                    }
                    Rounding::BFloat16 => {
                        V::Words::bf16_bits(first[c]).shift_left(16).as_floats().store(at);
                        V::Words::bf16_bits(second[c]).shift_left(16).as_floats().store(at_second);
                    }
                    Rounding::Pairs => {
                        let at = out.cast::<u32>().add((input + c) * V::LANES);
                        V::Words::bf16_pairs(first[c], second[c]).store(at);
                    }
                }
            }
        }
    }
}

/// The sections of a panel.
struct Codes<'a> {
    /// Levels of codes that are looked up.
    table: &'a [f32; 16],
    /// The zero of all groups, where they have none of their own.
    zero: f32,
    scales: &'a Scales,
    layout: &'a Layout,
    words: *const u32,
    group_scales: *const u8,
    group_offsets: *const u8,
    supers: *const u16,
    super_minima: *const u16,
}

/// Scale and minimum of the lanes of a group.
#[derive(Clone, Copy)]
struct Group<V> {
    scale: [V; 2],
    /// Zeros, or minima with the other sign.
    offset: [V; 2],
}

impl Codes<'_> {
    /// All units of a piece, of codes of so many bits.
    ///
    /// # Safety
    /// As `Kernel::run`.
    #[inline(always)]
    unsafe fn of_bits<V: Vector, S: Sink<V>, const WAY: u8>(
        &self,
        bits: u32,
        inputs: Range<usize>,
        sink: &mut S,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match bits {
                2 => self.units::<V, S, 2, WAY>(inputs, sink),
                3 => self.units::<V, S, 3, WAY>(inputs, sink),
                4 => self.units::<V, S, 4, WAY>(inputs, sink),
                5 => self.units::<V, S, 5, WAY>(inputs, sink),
                6 => self.units::<V, S, 6, WAY>(inputs, sink),
                8 => self.units::<V, S, 8, WAY>(inputs, sink),
                _ => unreachable!("codes of {bits} bits"),
            }
        }
    }

    /// # Safety
    /// As `Kernel::run`.
    #[inline(always)]
    unsafe fn units<V: Vector, S: Sink<V>, const BITS: usize, const WAY: u8>(
        &self,
        inputs: Range<usize>,
        sink: &mut S,
    ) {
        let per_group = self.layout.group;
        // SAFETY: the caller's promise.
        unsafe {
            let mut group = self.group::<V, WAY>(inputs.start);
            let mut next_group = inputs.start.next_multiple_of(per_group);
            for first in inputs.clone().step_by(UNIT) {
                let words = self.words.add(first * BITS / UNIT * 2 * V::LANES);
                for half in 0..2 {
                    let input = first + half * UNIT / 2;
                    if input == next_group {
                        group = self.group::<V, WAY>(input);
                        next_group += per_group;
                    }
                    for quad in 4 * half..4 * half + 4 {
                        let at = first - inputs.start + 4 * quad;
                        sink.begin_quad(at);
                        let mut values = self.quad::<V, BITS, WAY>(words, quad);
                        for value in &mut values {
                            for ((value, scale), offset) in
                                value.iter_mut().zip(group.scale).zip(group.offset)
                            {
                                *value = match WAY {
                                    LESS_MINIMUM => value.mul_add(scale, offset),
                                    LESS_ZERO => value.sub(offset).mul(scale),
                                    _ => value.mul(scale),
                                };
                            }
                        }
                        sink.put_pair(at, values[0], values[1]);
                        sink.put_pair(at + 2, values[2], values[3]);
                    }
                }
            }
        }
    }

    /// The levels of four inputs of a unit; without a table, the codes.
    ///
    /// # Safety
    /// As `Kernel::run`; `words` is the unit's first.
    #[inline(always)]
    unsafe fn quad<V: Vector, const BITS: usize, const WAY: u8>(
        &self,
        words: *const u32,
        quad: usize,
    ) -> [[V; 2]; 4] {
        // Codes of one plane of less than a byte lie among others.
        let (shift, mask) = match BITS {
            2 | 4 => (BITS * (quad % (8 / BITS)), (1 << BITS) - 1),
            _ => (0, 0xff),
        };
        // No closures in kernels: what is not inlined has no vectors.
        // SAFETY: the caller's promise.
        unsafe {
            let mut levels = [[V::splat(0.0); 2]; 4];
            for c in 0..2 {
                let bytes = Self::quad_bytes::<V, BITS>(words.add(c * V::LANES), quad);
                for (index, levels) in levels.iter_mut().enumerate() {
                    let code = bytes.shift_right((shift + 8 * index) as u32);
                    levels[c] = match WAY {
                        LOOKED_UP => code.lookup(self.table.as_ptr()),
                        FLOAT8 => code.and(mask).float8(),
                        _ => code.and(mask).to_floats(),
                    };
                }
            }
            levels
        }
    }

    /// A word with the codes of four inputs: of one plane as it is, else with a byte for each.
    ///
    /// # Safety
    /// As `quad`, for one vector of lanes.
    #[inline(always)]
    unsafe fn quad_bytes<V: Vector, const BITS: usize>(words: *const u32, quad: usize) -> V::Words {
        // SAFETY: the caller's promise: a unit has as many rows as its codes have bits.
        unsafe {
            match BITS {
                2 | 4 | 8 => V::Words::load(words.add(quad / (8 / BITS) * 2 * V::LANES)),
                3 => field::<V, 2>(words, 0, quad).or(field::<V, 1>(words, 2, quad).shift_left(2)),
                5 => field::<V, 4>(words, 0, quad).or(field::<V, 1>(words, 4, quad).shift_left(4)),
                6 => field::<V, 4>(words, 0, quad).or(field::<V, 2>(words, 4, quad).shift_left(4)),
                _ => unreachable!("codes of so many bits"),
            }
        }
    }

    /// Scales of an input's group.
    ///
    /// # Safety
    /// As `Kernel::run`; the panel has the input.
    #[inline(always)]
    unsafe fn group<V: Vector, const WAY: u8>(&self, input: usize) -> Group<V> {
        let width = 2 * V::LANES;
        let row = input / self.layout.group * width;
        let super_row = input / SUPER_GROUP * width;
        // SAFETY: the caller's promise.
        unsafe {
            let mut group = Group { scale: [V::splat(0.0); 2], offset: [V::splat(self.zero); 2] };
            for c in 0..2 {
                let at = (row + c * V::LANES, super_row + c * V::LANES);
                group.scale[c] = self.scale(self.group_scales, self.supers, at, true);
                if WAY == LESS_MINIMUM {
                    let minimum: V = self.scale(self.group_offsets, self.super_minima, at, false);
                    group.offset[c] = minimum.mul(V::splat(-1.0));
                } else if !self.layout.offsets.is_empty() {
                    let zeros = V::Words::load_bytes(self.group_offsets.add(at.0));
                    group.offset[c] = zeros.to_floats();
                }
            }
            group
        }
    }

    /// The scales or minima at an index of their section, and of that of their outer scales.
    ///
    /// # Safety
    /// As `group`.
    #[inline(always)]
    unsafe fn scale<V: Vector>(
        &self,
        section: *const u8,
        supers: *const u16,
        (index, super_index): (usize, usize),
        may_be_signed: bool,
    ) -> V {
        // SAFETY: the caller's promise: both sections have a vector there.
        unsafe {
            match self.scales {
                Scales::Float32 => V::load(section.cast::<f32>().add(index)),
                Scales::Float16 => V::load_f16(section.cast::<u16>().add(index)),
                Scales::BFloat16 => V::load_bf16(section.cast::<u16>().add(index)),
                Scales::Table(table) => {
                    let mut values = [0.0; 16];
                    for (lane, value) in values.iter_mut().enumerate().take(V::LANES) {
                        *value = table.0[usize::from(*section.add(index + lane))];
                    }
                    V::load(values.as_ptr())
                }
                Scales::Super { signed } => {
                    let inner = V::Words::load_bytes(section.add(index)).to_floats();
                    let bias = if *signed && may_be_signed { 128.0 } else { 0.0 };
                    inner.sub(V::splat(bias)).mul(V::load_f16(supers.add(super_index)))
                }
            }
        }
    }
}

/// The bits that a plane of P has for the codes of a quad, a byte each; `row` is the plane's first
/// in the unit at `words`.
///
/// # Safety
/// The unit has the plane; the CPU has the instructions of `V`.
#[inline(always)]
unsafe fn field<V: Vector, const P: usize>(words: *const u32, row: usize, quad: usize) -> V::Words {
    let per_word = 8 / P;
    let mask = ((1 << P) - 1) * 0x0101_0101;
    // SAFETY: the caller's promise.
    unsafe {
        let word = V::Words::load(words.add((row + quad / per_word) * 2 * V::LANES));
        word.shift_right((P * (quad % per_word)) as u32).and(mask)
    }
}
