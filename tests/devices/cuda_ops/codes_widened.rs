//! linear over codes of many rows, whose weights are widened: the bits of the kernels over codes,
//! or those kernels where a trial finds others.

use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::base::matrix::Scales;
use vllm_batch::engine::base::matrix::SourceMatrix;
use vllm_batch::engine::core::stats::GivenLimits;
use vllm_batch::engine::device::Precision;
use vllm_batch::engine::ops::{LinearWeight, linear};

use crate::cuda_engine::failure::broken;
use crate::cuda_ops::codes::{coded, kinds, load};
use crate::cuda_ops::pair::{Pair, Rows, output, to_bits};
use crate::gpu;

const MANY: usize = 130;

/// A layer that is made ready for many rows, and rows for it.
struct Layer {
    weight: LinearWeight,
    x: Rows,
}

fn layer(pair: &Pair, parts: &[SourceMatrix<'static>]) -> Layer {
    let weight = load(&pair.gpu, pair.dtype, &parts.to_vec().into(), None);
    weight.prepare(&pair.gpu, pair.dtype, MANY).expect("algorithms");
    Layer { weight, x: pair.values(MANY, parts[0].num_columns, 61, 1.7) }
}

/// Bits of the first rows' outputs, and how many launches widened weights for them.
fn first_rows(pair: &Pair, layer: &Layer, num_rows: usize) -> (Vec<u32>, u64) {
    let rows: Vec<usize> = (0..num_rows).collect();
    let (n, _) = layer.weight.shape();
    let mut out = output(&pair.gpu, num_rows, n, Precision::Activation);
    let x = layer.x.activations(&pair.gpu, &rows);
    let given = GivenLimits::default();
    pair.gpu.start_op_times(pair.dtype, given);
    linear(&pair.gpu, &x, &layer.weight, &mut out);
    let times = pair.gpu.finish_op_times(pair.dtype, given).expect("the device works");
    let ops = times.iter().flat_map(|times| &times.ops);
    let widening = ops.filter(|op| op.op.name == "widen_codes").map(|op| op.num_calls).sum();
    (to_bits(&pair.gpu.read(&out).expect("the device works")), widening)
}

/// Many rows have the bits of a few of them, whichever way they take.
fn assert_bits(pair: &Pair, what: &str, layer: &Layer, num_widened: u64) {
    let (many, widened) = first_rows(pair, layer, MANY);
    // A real GPU's library may sum a small layer in another order, which the trial finds.
    let stays = gpu::is_real() && widened == 0;
    assert!(widened == num_widened || stays, "{what}: {widened} launches");
    for num_rows in [1, 17, 95] {
        let (few, widened) = first_rows(pair, layer, num_rows);
        assert_eq!(widened, 0, "{what}, {num_rows} rows");
        assert!(many[..few.len()] == few, "{what}: {num_rows} rows alone have other bits");
    }
}

#[test]
fn widen_codes_gives_many_rows_the_bits_of_few() {
    for (index, (kind, dtype)) in (0..).zip(kinds()) {
        let Some(pair) = Pair::open(dtype, 900 + index, None) else { return };
        // 256 inputs share an outer scale; others end within a block of 128.
        let k = if matches!(kind.scales, Scales::Super { .. }) { 256 } else { 168 };
        let layer = layer(&pair, &[coded(&kind, (44, k))]);
        assert_bits(&pair, &format!("{kind:?}"), &layer, 1);
    }
}

#[test]
fn parts_of_several_kinds_are_widened_side_by_side() {
    let Some(pair) = Pair::open(DType::BFloat16, 920, None) else { return };
    let [(four, _), .., (minima, _), (six, _), _] = kinds();
    let parts = [(&four, 40), (&minima, 9), (&six, 31)].map(|(kind, n)| coded(kind, (n, 256)));
    assert_bits(&pair, "kinds", &layer(&pair, &parts), 3);
}

#[test]
fn rows_stay_with_the_kernels_where_a_trial_finds_other_bits() {
    let broken = broken("widen_codes", "linear_codes.cu", |path| {
        let text = std::fs::read_to_string(path).unwrap();
        let kept = "+ lane % 4] = b[half];";
        assert_eq!(text.matches(kept).count(), 1, "the kernel is written anew");
        std::fs::write(path, text.replace(kept, "+ lane % 4] = b[half] ^ 1;")).unwrap();
    });
    let Some(device) = broken else { return };
    let (kind, dtype) = &kinds()[0];
    let pair = Pair::open_on(*dtype, device).expect("the shim");
    assert_bits(&pair, "broken", &layer(&pair, &[coded(kind, (44, 168))]), 0);
}
