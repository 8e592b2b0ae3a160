//! Adapters beside a linear layer: what the CPU adds, or a naive loop; bits that depend on no other
//! row. Steps of fewer than 1024 rows are shrunk by lora_shrink_16, others by lora_shrink_64; then
//! comes lora_expand, or lora_expand_f32 where logits are added to.

use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::device::{Device, Precision, Tensor};
use vllm_batch::engine::ops::{LoraDelta, LoraPart, LoraSlots, SlotRows, StepLoras};

use crate::cuda_ops::NUM_ROWS;
use crate::cuda_ops::pair::{Both, CLOSE, Pair, Rows, in_every_dtype, to_bits};

/// Sums of some hundred products, in another order.
const SLACK: f32 = 4.0 * CLOSE;
/// The first row of what is computed, of its step.
const FIRST: usize = 3;
const NUM_SLOTS: usize = 3;

/// A layer, and the parts of two adapters: rank, first output, outputs. A third slot is empty.
struct Case {
    k: usize,
    n: usize,
    adapters: [&'static [(usize, usize, usize)]; 2],
}

/// Widths and ranks on both sides of what a lane, a warp and a block take.
const CASES: [Case; 5] = [
    Case { k: 8, n: 5, adapters: [&[(1, 0, 5)], &[(3, 0, 5)]] },
    Case { k: 64, n: 32, adapters: [&[(16, 0, 32)], &[(8, 0, 32)]] },
    Case { k: 31, n: 70, adapters: [&[(5, 0, 33), (12, 33, 37)], &[(17, 34, 36)]] },
    Case { k: 264, n: 600, adapters: [&[(8, 0, 257), (40, 258, 300)], &[(64, 1, 599)]] },
    Case {
        k: 520,
        n: 96,
        adapters: [&[(4, 0, 32), (4, 32, 32), (4, 64, 32)], &[(33, 0, 7), (1, 90, 6)]],
    },
];

impl Case {
    fn parts(&self, pair: &Pair, adapter: usize) -> Vec<LoraPart> {
        let values = |rows, columns, seed: usize, scale| {
            pair.values(rows, columns, (seed + 100 * adapter) as u64, scale).values
        };
        let part = |(index, &(rank, first_output, num_outputs)): (usize, &(_, usize, usize))| {
            let (a, b) = (2 * index + 10, 2 * index + 11);
            LoraPart {
                a: values(rank, self.k, a, 0.3),
                b: values(num_outputs, rank, b, 0.5),
                rank,
                scale: 0.3 + adapter as f32,
                first_output,
            }
        };
        self.adapters[adapter].iter().enumerate().map(part).collect()
    }

    fn max_rank(&self) -> usize {
        let ranks = self.adapters.iter().flat_map(|parts| parts.iter().map(|part| part.0));
        ranks.max().expect("adapters have parts")
    }

    /// Room for the adapters, without them.
    fn empty_slots(&self, device: &Device) -> LoraSlots {
        let mut slots = LoraSlots::default();
        let ranks = (3, self.max_rank());
        slots.reserve(device, (self.n, self.k), NUM_SLOTS, ranks).expect("memory");
        slots
    }

    fn delta(&self, pair: &Pair, device: &Device, adapter: usize) -> Option<LoraDelta> {
        // The CPU computes with the same values in f32.
        let dtype = match device {
            Device::Cpu(_) => DType::Float32,
            Device::Cuda(_) => pair.dtype,
        };
        let parts = self.parts(pair, adapter);
        Some(LoraDelta::load(device, dtype, self.k, &parts).expect("a device takes adapters"))
    }

    fn slots(&self, pair: &Pair) -> Both<LoraSlots> {
        pair.on_both(|device| {
            let mut slots = self.empty_slots(device);
            slots.set(device, 0, self.delta(pair, device, 0));
            slots.set(device, 1, self.delta(pair, device, 1));
            slots.set(device, 2, None);
            slots
        })
    }

    /// The adapters of a step of some rows, which come after `FIRST` others; logits of them alone.
    fn loras(&self, device: &Device, rows: &[usize]) -> StepLoras {
        let mut loras = StepLoras::default();
        loras.of_tokens = slot_rows(rows, FIRST);
        loras.of_logits = slot_rows(rows, 0);
        let sizes = (FIRST + rows.len(), rows.len());
        loras.reserve(device, sizes, 3 * self.max_rank()).expect("memory");
        loras.begin(device, sizes.0, sizes.1);
        loras
    }

    /// out += what adapters add to some of the rows of x.
    fn add(&self, device: &Device, slots: &LoraSlots, x: &Rows, out: &mut Tensor, rows: &[usize]) {
        let mut loras = self.loras(device, rows);
        let (x, num_rows) = (x.activations(device, rows), rows.len());
        loras.add(device, x.rows_from(0), slots, out.rows_from_mut(0), (FIRST, num_rows));
    }
}

/// None, an adapter for several rows on end, the other one, and what is empty.
fn slot_of(row: usize) -> Option<usize> {
    [None, Some(0), Some(0), Some(1), None, Some(1), Some(2)][row % 7]
}

/// The slots of some rows, which follow each other from row `first` of a step on.
fn slot_rows(rows: &[usize], first: usize) -> Vec<SlotRows> {
    let of_row = |(at, row): (usize, &usize)| {
        slot_of(*row).map(|slot| SlotRows { slot, rows: first + at..first + at + 1 })
    };
    rows.iter().enumerate().filter_map(of_row).collect()
}

fn check(pair: &Pair, case: &Case, num_rows: usize) {
    let slots = case.slots(pair);
    let x = pair.values(num_rows, case.k, 1, 1.0);
    let before = pair.values(num_rows, case.n, 2, 1.0);
    let what = format!("adapters of {} by {}", case.n, case.k);
    pair.check(&what, num_rows, SLACK, &|device, rows| {
        let mut out = before.activations(device, rows);
        case.add(device, slots.of(device), &x, &mut out, rows);
        vec![out]
    });
}

#[test]
fn lora_shrink_16_and_lora_expand_add_what_the_cpu_adds() {
    in_every_dtype(90, |pair| {
        for (case, num_rows) in CASES.iter().flat_map(|case| NUM_ROWS.map(|rows| (case, rows))) {
            check(pair, case, num_rows);
        }
    });
}

/// Its rows are those of lora_shrink_16, which computes the selections.
#[test]
fn lora_shrink_64_gives_the_same_bits() {
    in_every_dtype(91, |pair| check(pair, &CASES[2], 1030));
}

#[test]
fn lora_expand_f32_adds_to_logits_what_a_naive_loop_adds() {
    in_every_dtype(92, |pair| {
        for case in &CASES {
            let num_rows = 20;
            let slots = case.slots(pair);
            let x = pair.values(num_rows, case.k, 1, 1.0);
            let before = pair.values(num_rows, case.n, 2, 1.0);
            let add = |device: &Device, rows: &[usize]| {
                let mut loras = case.loras(device, rows);
                let mut logits = before.on(device, rows, Precision::Full);
                let x = x.activations(device, rows);
                loras.add_to_logits(device, &x, slots.of(device), &mut logits);
                vec![logits]
            };
            pair.check("adapters of logits", num_rows, SLACK, &add);
            let all: Vec<usize> = (0..num_rows).collect();
            let got = pair.gpu.read(&add(&pair.gpu, &all)[0]).expect("the op ran");
            for (row, got) in got.chunks(case.n).enumerate() {
                let x = &x.values[row * case.k..][..case.k];
                let mut expected: Vec<f64> =
                    before.values[row * case.n..][..case.n].iter().map(|x| f64::from(*x)).collect();
                if let Some(adapter) = slot_of(row).filter(|slot| *slot < 2) {
                    add_naively(&case.parts(pair, adapter), x, &mut expected);
                }
                for (got, expected) in got.iter().zip(expected) {
                    let is_close = (f64::from(*got) - expected).abs() < 1e-4;
                    assert!(is_close, "row {row} of {}: {got}, {expected}", case.n);
                }
            }
        }
    });
}

/// out += s B (A x), in f64.
fn add_naively(parts: &[LoraPart], x: &[f32], out: &mut [f64]) {
    let dot =
        |a: &[f32], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * b).sum() };
    let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    for LoraPart { a, b, rank, scale, first_output } in parts {
        let inner: Vec<f64> = a.chunks(x.len()).map(|a| dot(a, &x)).collect();
        for (out, b) in out[*first_output..].iter_mut().zip(b.chunks(*rank)) {
            *out += f64::from(*scale) * dot(b, &inner);
        }
    }
}

#[test]
fn what_has_no_adapter_keeps_its_bits() {
    in_every_dtype(93, |pair| {
        let case = &CASES[3];
        let slots = case.slots(pair);
        let num_rows = 40;
        let x = pair.values(num_rows, case.k, 1, 1.0);
        // A sum with 0 would be another 0.
        let before = Rows { values: vec![-0.0; num_rows * case.n], width: case.n };
        let all: Vec<usize> = (0..num_rows).collect();
        let mut out = before.activations(&pair.gpu, &all);
        case.add(&pair.gpu, slots.of(&pair.gpu), &x, &mut out, &all);
        let bits = to_bits(&pair.gpu.read(&out).expect("the op ran"));
        for (index, bits) in bits.into_iter().enumerate() {
            let (row, output) = (index / case.n, index % case.n);
            let has_part =
                |(_, first, num): &(usize, usize, usize)| output >= *first && output < first + num;
            let is_added = slot_of(row)
                .and_then(|slot| case.adapters.get(slot))
                .is_some_and(|parts| parts.iter().any(has_part));
            assert_eq!(bits != (-0.0f32).to_bits(), is_added, "row {row}, output {output}");
        }
    });
}

/// A slot has one adapter, then another, then none.
#[test]
fn a_slot_is_the_adapter_that_was_put_there_last() {
    in_every_dtype(94, |pair| {
        let case = &CASES[2];
        let x = pair.values(5, case.k, 1, 1.0);
        let before = pair.values(5, case.n, 2, 1.0);
        let device = &pair.gpu;
        let mut slots = case.empty_slots(device);
        let run = |slot_1: Option<usize>, slots: &mut LoraSlots| {
            let delta = slot_1.and_then(|adapter| case.delta(pair, device, adapter));
            slots.set(device, 1, delta);
            // Row 3 has this slot.
            let mut out = before.activations(device, &[3]);
            case.add(device, slots, &x, &mut out, &[3]);
            to_bits(&device.read(&out).expect("the op ran"))
        };
        let [none, first, second, again, gone] =
            [None, Some(0), Some(1), Some(0), None].map(|adapter| run(adapter, &mut slots));
        let untouched = before.activations(device, &[3]);
        assert_eq!(none, to_bits(&device.read(&untouched).expect("values")));
        assert!(first != none && second != none && first != second);
        assert_eq!((&again, &gone), (&first, &none));
    });
}

#[test]
fn a_gpu_takes_no_adapters_of_more_parts_than_its_kernels() {
    let Some(pair) = Pair::open(DType::BFloat16, 97, None) else { return };
    let reserve = |parts| LoraSlots::default().reserve(&pair.gpu, (64, 64), 1, (parts, 8));
    reserve(4).expect("memory");
    let error = reserve(5).unwrap_err().to_string();
    assert!(error.contains("5 parts") && error.contains("`settings.device` cpu"), "{error}");
}
