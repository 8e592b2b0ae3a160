//! encoder_attention on a GPU, with K and V written by rotate_texts: whole texts against the CPU; a
//! text's bits alone, among others, in another order, and over what an earlier step has left.

use vllm_batch::engine::base::config::DType;
use vllm_batch::engine::base::layers::QkvHeads;
use vllm_batch::engine::device::{Device, Precision};
use vllm_batch::engine::ops::batch::Batch;
use vllm_batch::engine::ops::{
    EncoderAttentionShape, EncoderScratch, HeadTransform, RelativeBias, StepInputs, TextLimits,
    encoder_attention, rotate_texts,
};

use crate::cuda_ops::pair::{Both, Bound, Pair, output, to_bits};

const MAX_MODEL_LEN: usize = 600;

/// One layer's attention.
#[derive(Clone, Copy, Debug)]
struct Case {
    heads: QkvHeads,
    /// Positions that a token sees before itself, and after.
    seen: (Option<usize>, Option<usize>),
    soft_cap: Option<f32>,
    has_bias: bool,
}

const fn case(num_heads: usize, num_kv_heads: usize, head_dim: usize) -> Case {
    let heads = QkvHeads { num_heads, num_kv_heads, head_dim };
    Case { heads, seen: (None, None), soft_cap: None, has_bias: false }
}

/// A text of so many tokens, with values of its own.
type Text = (u64, usize);

/// Texts around blocks of 16, tiles of 32, splits of 256 and units of work.
const MIX: [Text; 11] = [
    (1, 1),
    (2, 15),
    (3, 17),
    (4, 32),
    (5, 33),
    (6, 129),
    (7, 255),
    (8, 256),
    (9, 257),
    (10, 2),
    (11, 545),
];

/// A bias that no distance shares with another, as a table of MPNet or as slopes of ALiBi.
fn bias(device: &Device, num_heads: usize) -> RelativeBias {
    let value = |head: usize, distance: isize| match head % 2 {
        0 => (distance as f32 * 0.37 + head as f32).sin(),
        _ => -0.25 * distance.unsigned_abs() as f32,
    };
    RelativeBias::new(num_heads, MAX_MODEL_LEN, value).on_device(device).expect("memory")
}

/// A device with what attention needs.
struct Run<'a> {
    device: &'a Device,
    pair: &'a Pair,
    case: Case,
    bias: Option<&'a RelativeBias>,
    inputs: StepInputs,
    scratch: EncoderScratch,
}

impl<'a> Run<'a> {
    fn new(
        (pair, device): (&'a Pair, &'a Device),
        case: Case,
        biases: &'a Both<RelativeBias>,
    ) -> Self {
        let limits = TextLimits {
            max_num_tokens: MIX.iter().map(|(_, len)| len).sum(),
            max_num_texts: MIX.len(),
            max_num_logits: MIX.len(),
            max_model_len: MAX_MODEL_LEN,
            has_axes: false,
        };
        let bias = case.has_bias.then(|| biases.of(device));
        let inputs = StepInputs::of_texts(device, case.heads, limits).expect("memory");
        let scratch =
            EncoderScratch::new((device, pair.dtype), case.heads, limits).expect("memory");
        Self { device, pair, case, bias, inputs, scratch }
    }

    /// One step of texts with these values, row after row; outputs by text.
    fn step(&mut self, texts: &[Text], values: &[f32]) -> Vec<Vec<f32>> {
        let Case { heads, seen: (before, after), soft_cap, .. } = self.case;
        let mut batch = Batch { query_start_loc: vec![0], ..Batch::default() };
        for (_, len) in texts {
            batch.positions.extend(0..*len as u32);
            batch.query_start_loc.push(batch.positions.len() as u32);
        }
        let num_tokens = batch.positions.len();
        batch.input_ids.resize(num_tokens, 0);
        batch.token_types.resize(num_tokens, 0);
        let device = self.device;
        let step = self.inputs.step(device, &batch);
        let width = heads.qkv_width();
        let mut qkv = device.upload_as(values, width, Precision::Activation).expect("memory");
        qkv.resize_rows(step.num_rows());
        let nothing = HeadTransform::default();
        rotate_texts(device, (&mut qkv, heads), nothing, step, &mut self.scratch);
        let shape =
            EncoderAttentionShape { heads, scale: 0.3, soft_cap, before, after, bias: self.bias };
        let mut out = output(device, step.num_rows(), heads.q_width(), Precision::Activation);
        encoder_attention(device, (&qkv, step), shape, &mut self.scratch, &mut out);
        out.set_num_rows(num_tokens);
        let out = device.read(&out).expect("the op ran");
        let mut rest = &out[..];
        let mut outputs = Vec::new();
        for (_, len) in texts {
            let (own, others) = rest.split_at(len * heads.q_width());
            outputs.push(own.to_vec());
            rest = others;
        }
        outputs
    }

    fn outputs(&mut self, texts: &[Text]) -> Vec<Vec<f32>> {
        let width = self.case.heads.qkv_width();
        let values = texts.iter().map(|(seed, len)| self.pair.values(*len, width, *seed, 1.5));
        let values: Vec<f32> = values.flat_map(|rows| rows.values).collect();
        self.step(texts, &values)
    }

    /// NaN wherever K and V of texts may stand, as a text of a broken model leaves it.
    fn poison(&mut self) {
        let num_tokens: usize = MIX.iter().map(|(_, len)| len).sum();
        let values = vec![f32::NAN; num_tokens * self.case.heads.qkv_width()];
        self.step(&MIX, &values);
    }
}

fn check(dtype: DType, seed: u64, cases: &[Case]) {
    let Some(pair) = Pair::open(dtype, seed, None) else { return };
    // Against the CPU, whose weights of V are not rounded to the dtype.
    let slack = match dtype {
        DType::Float32 => 5e-6,
        DType::BFloat16 => 3e-3,
        DType::Float16 => 4e-4,
    };
    for &case in cases {
        let biases = pair.on_both(|device| bias(device, case.heads.num_heads));
        let run = |device| Run::new((&pair, device), case, &biases);
        let together = run(&pair.gpu).outputs(&MIX);
        let expected = run(&pair.cpu).outputs(&MIX);
        for ((text, got), expected) in MIX.iter().zip(&together).zip(&expected) {
            let what = format!("{case:?}, {text:?}, {}", dtype.name());
            let width = case.heads.q_width();
            Bound { dtype, slack }.assert_close(&what, got, expected, width);
        }
        let same = |how: &str, text: Text, got: &[f32], expected: &[f32]| {
            let what = format!("{case:?}, {text:?}, {}", dtype.name());
            assert!(to_bits(got) == to_bits(expected), "{what}: {how} has other bits");
        };
        let mut reused = run(&pair.gpu);
        reused.poison();
        for (text, expected) in MIX.iter().zip(&together) {
            same("alone, over NaN", *text, &reused.outputs(&[*text])[0], expected);
        }
        let mut reversed = MIX;
        reversed.reverse();
        reused.poison();
        let got = reused.outputs(&reversed);
        for ((text, expected), got) in MIX.iter().zip(&together).zip(got.iter().rev()) {
            same("in another order, over NaN", *text, got, expected);
        }
    }
}

/// Of local layers, of narrow ones, and of decoders, with a window and without.
const SEEN: [(Option<usize>, Option<usize>); 5] =
    [(Some(64), Some(64)), (Some(3), Some(3)), (None, Some(0)), (Some(40), Some(0)), (None, None)];

#[test]
fn paged_attention_f32_over_whole_texts() {
    let seen = SEEN.map(|seen| Case { seen, ..case(2, 1, 12) });
    check(DType::Float32, 900, &seen);
    let biased = Case { has_bias: true, ..case(2, 2, 32) };
    let capped = Case { soft_cap: Some(2.0), seen: SEEN[0], ..biased };
    check(DType::Float32, 901, &[biased, capped]);
}

#[test]
fn paged_attention_prefill_over_whole_texts() {
    check(DType::BFloat16, 910, &[case(2, 2, 32), case(4, 1, 64), case(3, 1, 24)]);
    check(DType::Float16, 911, &[case(2, 2, 64), case(2, 1, 128)]);
}

#[test]
fn paged_attention_prefill_over_whole_texts_with_windows() {
    let seen = SEEN.map(|seen| Case { seen, ..case(2, 1, 16) });
    check(DType::BFloat16, 920, &seen);
    let one = Case { seen: (Some(0), Some(0)), ..case(1, 1, 64) };
    check(DType::Float16, 921, &[one]);
}

#[test]
fn paged_attention_prefill_over_whole_texts_with_biases_and_soft_caps() {
    let biased = Case { has_bias: true, ..case(2, 2, 32) };
    let capped = Case { soft_cap: Some(2.0), ..case(2, 1, 64) };
    let both = Case { has_bias: true, seen: SEEN[0], ..capped };
    check(DType::BFloat16, 930, &[biased, capped, both]);
    check(DType::Float16, 931, &[Case { has_bias: true, ..case(6, 2, 64) }]);
}
