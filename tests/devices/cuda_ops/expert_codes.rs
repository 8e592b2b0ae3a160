//! Experts over codes: the bits of the same experts with their weights widened, for all kinds of
//! codes and tiles, ragged experts and experts without rows.

use vllm_batch::engine::base::config::{DType, Quantization};
use vllm_batch::engine::base::layers::{
    Activation, ExpertWeight, MlpForm, Routing, Score, TopK, Weighted,
};
use vllm_batch::engine::base::matrix::{CodeKind, Scales, SourceMatrix, SourceValues};
use vllm_batch::engine::device::Precision;
use vllm_batch::engine::ops::linear::LinearWeight;
use vllm_batch::engine::ops::{
    ExpertWeights, Experts, ExpertsScratch, ExpertsShape, ExpertsWeight, RowSlots, add_experts,
    choose_experts,
};

use crate::cuda_ops::codes::{coded, kinds};
use crate::cuda_ops::pair::{Pair, output, rounded, to_bits};

const NUM_CHOSEN: usize = 2;

/// Experts, width of rows, inner width.
#[derive(Clone, Copy)]
struct Sizes {
    num_experts: usize,
    width: usize,
    inner: usize,
}

impl Sizes {
    /// The same, of whole groups of this kind.
    fn of(self, kind: &CodeKind) -> Self {
        let unit = if matches!(kind.scales, Scales::Super { .. }) { 256 } else { 8 };
        let [width, inner] = [self.width, self.inner].map(|width| width.next_multiple_of(unit));
        Self { width, inner, ..self }
    }

    /// (outputs, inputs) of all ups and of all downs.
    fn layers(self) -> [(usize, usize); 2] {
        let Self { num_experts, width, inner } = self;
        [(num_experts * 2 * inner, width), (num_experts * width, inner)]
    }
}

/// Experts of these layers, whose values are codes or not.
fn experts(pair: &Pair, sizes: Sizes, layers: [SourceMatrix<'static>; 2]) -> ExpertsWeight {
    let Sizes { num_experts, width, .. } = sizes;
    let [up, down] = layers.map(|layer| {
        let bias = pair.values(1, layer.num_rows, 5, 0.2).values;
        LinearWeight::load_experts(
            &pair.gpu,
            pair.dtype,
            &[layer].into(),
            (Some(bias), num_experts),
        )
        .expect("memory")
    });
    let router = pair.values(num_experts, width, 1, 0.4).values;
    let router = SourceMatrix::new(num_experts, width, SourceValues::Slice(&router));
    let (score, weight) = (Score::Softmax, ExpertWeight::SHARE);
    let weight = ExpertsWeight {
        router: LinearWeight::load(&pair.gpu, DType::Float32, &[router].into(), None).unwrap(),
        choice_bias: None,
        weight_factors: None,
        weighted: Weighted::Outputs,
        routing: Routing::TopK(TopK { num: NUM_CHOSEN, score, groups: None, weight, scale: 1.0 }),
        form: MlpForm::Gated,
        activation: Activation::Silu,
        experts: Experts::Stacked(Box::new(ExpertWeights { up, down })),
        num_identities: 0,
        on_gpu: None,
    };
    let weight = weight.prepared(&pair.gpu).expect("memory");
    pair.gpu.finish_loading().expect("weights arrive");
    weight
}

/// Bits of what experts give for these rows.
fn run(pair: &Pair, sizes: Sizes, weight: &ExpertsWeight, rows: &[usize]) -> Vec<u32> {
    let Sizes { num_experts, width, inner } = sizes;
    let shape = ExpertsShape { num_experts, num_chosen: NUM_CHOSEN, inner };
    let size = (rows.len(), width);
    let mut scratch = ExpertsScratch::new((&pair.gpu, pair.dtype), size, shape).expect("memory");
    let x = pair.values(rows.len().max(512), width, 8, 1.0).activations(&pair.gpu, rows);
    let mut out = output(&pair.gpu, rows.len(), width, Precision::Activation);
    choose_experts(&pair.gpu, (&x, RowSlots::default()), weight, &mut scratch);
    add_experts(&pair.gpu, &x, weight, &mut scratch, &mut out);
    to_bits(&pair.gpu.read(&out).expect("the op ran"))
}

/// Experts over codes of every kind beside those of the same values, for each number of rows; and
/// some rows alone.
fn check(seed: u64, sizes: Sizes, num_rows: &[usize]) {
    for (index, (kind, dtype)) in kinds().into_iter().enumerate() {
        let Some(pair) = Pair::open(dtype, seed + index as u64, None) else { return };
        let sizes = sizes.of(&kind);
        let layers = sizes.layers().map(|shape| coded(&kind, shape));
        let values = layers.clone().map(|layer| {
            let values: Vec<f32> =
                layer.to_vec().into_iter().map(|value| rounded(value, dtype)).collect();
            let values = SourceValues::Owned(values.into());
            SourceMatrix::new(layer.num_rows, layer.num_columns, values)
        });
        let (narrow, wide) = (experts(&pair, sizes, layers), experts(&pair, sizes, values));
        let bytes = |weight: &ExpertsWeight| match &weight.experts {
            Experts::Stacked(layers) => layers.up.num_bytes() + layers.down.num_bytes(),
            Experts::Apart(_) => panic!("experts of a GPU"),
        };
        assert!(bytes(&narrow) != bytes(&wide), "{kind:?}: codes were widened");
        for &num_rows in num_rows {
            let all: Vec<usize> = (0..num_rows).collect();
            let got = run(&pair, sizes, &narrow, &all);
            let expected = run(&pair, sizes, &wide, &all);
            assert!(got == expected, "{kind:?}, {num_rows} rows: not the bits of widened weights");
            assert!(got.iter().any(|bits| bits << 1 != 0), "{kind:?}: nothing was added");
            for row in (0..num_rows).step_by(57) {
                let alone = run(&pair, sizes, &narrow, &[row]);
                let among = &got[row * sizes.width..][..sizes.width];
                assert!(alone == among, "{kind:?}: row {row} of {num_rows}");
            }
        }
    }
}

#[test]
fn linear_expert_codes_16x32_and_linear_expert_codes_16x128_have_the_bits_of_widened_weights() {
    // Of 9 experts one row goes to two.
    check(900, Sizes { num_experts: 9, width: 168, inner: 24 }, &[1, 17, 40]);
}

#[test]
fn linear_expert_codes_64x128_has_the_bits_of_widened_weights() {
    check(910, Sizes { num_experts: 3, width: 160, inner: 40 }, &[60]);
}

#[test]
fn linear_expert_codes_128x128_has_the_bits_of_widened_weights() {
    check(920, Sizes { num_experts: 3, width: 136, inner: 40 }, &[200]);
}

/// A number of E4M3, as its code has it.
fn e4m3(code: u32) -> f32 {
    let (exponent, mantissa) = (code >> 3 & 15, (code & 7) as f32);
    let size = match exponent {
        0 => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(exponent as i32 - 10),
    };
    if code & 0x80 == 0 { size } else { -size }
}

/// Weights that E4M3 holds as they are, with 448 times a power of two in each row: nothing is
/// rounded when they are narrowed.
#[test]
fn strips_of_rows_are_the_rows_that_quantize_rows_wrote() {
    let sizes = Sizes { num_experts: 5, width: 72, inner: 40 };
    let layers = sizes.layers().map(|(n, k)| {
        let value = |index: usize| {
            let (row, column) = (index / k, index % k);
            let scale = 2f32.powi(-10 - (row % 3) as i32);
            let code = (index as u32).wrapping_mul(0x9e37_79b1) >> 24;
            let code = if column == row % k { 0x7e } else { code };
            scale * if code & 0x7f == 0x7f { 0.0 } else { e4m3(code) }
        };
        let values: Vec<f32> = (0..n * k).map(value).collect();
        SourceMatrix::new(n, k, SourceValues::Owned(values.into()))
    });
    for dtype in [DType::BFloat16, DType::Float16] {
        let Some(narrow) = Pair::open(dtype, 930, Some(Quantization::Fp8)) else { return };
        let Some(wide) = Pair::open(dtype, 930, None) else { return };
        for num_rows in [1, 30, 70, 280] {
            let rows: Vec<usize> = (0..num_rows).collect();
            let [got, expected] = [&narrow, &wide]
                .map(|pair| run(pair, sizes, &experts(pair, sizes, layers.clone()), &rows));
            assert!(got == expected, "{dtype:?}, {num_rows} rows");
        }
    }
}
