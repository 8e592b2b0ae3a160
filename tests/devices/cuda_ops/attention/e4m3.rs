//! Caches of E4M3: the bits of every way to compute a row, and queries of any size.

use vllm_batch::engine::base::config::KvCacheDType;

use super::*;

fn open(dtype: DType, seed: u64) -> Option<Pair> {
    Pair::open_with(dtype, KvCacheDType::Fp8, (seed, ShimGpu::default()))
}

fn check_all(dtype: DType, seed: u64, cases: &[Case], seqs: &[Seq]) {
    let Some(pair) = open(dtype, seed) else { return };
    for case in cases {
        check_bits(&pair, *case, seqs, &on_gpu(&pair, *case, seqs, MAX_MODEL_LEN));
    }
}

/// Widened in registers by decode and through shared memory by prefill, with chunks permuted among
/// eight, four, two and none; in the widest heads through shared memory by both.
#[test]
fn paged_attention_decode_beside_prefill_over_e4m3() {
    let alibi = Case { has_alibi: true, soft_cap: Some(20.0), ..case(6, 2, 32, 16) };
    let capped = Case { soft_cap: Some(20.0), reach: Reach::Window(33), ..case(4, 2, 80, 48) };
    let sinks = Case { has_sinks: true, reach: Reach::Window(257), ..case(4, 2, 16, 16) };
    let slopes = Case { has_alibi: true, ..case(2, 1, 64, 16) };
    check_all(DType::BFloat16, 1200, &[case(4, 1, 128, 16), alibi, capped, sinks], &MIX);
    check_all(DType::Float16, 1210, &[case(3, 1, 96, 32), slopes], &MIX);
    check_all(DType::BFloat16, 1220, &[case(2, 1, 256, 16), case(2, 1, 192, 16)], &WIDE_MIX);
}

const LAST: usize = 40;
const HEADS: Case = case(2, 1, 64, 16);

/// The two heads of a token's output, alone and behind others of its prompt, with its queries
/// changed; and V.
fn with_queries(pair: &Pair, change: impl Fn(usize, f32) -> f32) -> ([Vec<f32>; 2], Vec<Vec<f32>>) {
    let seqs = [seq(70, LAST, LAST + 1)];
    let outputs = |done: usize| {
        let mut run = Run::new(pair, &pair.gpu, HEADS, &seqs);
        let cached = run.values(&[(0, done)]);
        run.step(&[(0, done)], &cached, false);
        let (width, num_q) = (run.width(), 128);
        let mut values = run.values(&[(done, LAST + 1)]);
        let own = values.len() - width;
        for (index, q) in values[own..own + num_q].iter_mut().enumerate() {
            *q = change(index, *q);
        }
        let all = run.step(&[(done, LAST + 1)], &values, true).swap_remove(0);
        let v = run.values(&[(0, LAST + 1)]);
        let v = v.chunks(width).map(|row| row[width - 64..].to_vec()).collect();
        (all[all.len() - num_q..].to_vec(), v)
    };
    let ((alone, v), (of_prompt, _)) = (outputs(LAST), outputs(0));
    assert_eq!(to_bits(&alone), to_bits(&of_prompt));
    let (first, second) = alone.split_at(64);
    ([first.to_vec(), second.to_vec()], v)
}

/// Sizes that f16 does not hold, in both directions: a power of two is taken out of a row.
#[test]
fn queries_of_any_size_attend_over_e4m3() {
    let Some(pair) = open(DType::BFloat16, 1230) else { return };
    assert!(pair.gpu.kernel_set().ends_with("-kv8f16"));
    let scaled = |by: f32| with_queries(&pair, |_, q| q * by);
    let (even, _) = scaled(0.0);
    for tiny in [2f32.powi(-60), 2f32.powi(-110), 2f32.powi(-126)] {
        assert_eq!(scaled(tiny).0, even, "{tiny}");
    }
    let (all_to_one, v) = scaled(2f32.powi(17));
    for out in all_to_one {
        let is_near = |row: &Vec<f32>| {
            out.iter().zip(row).all(|(out, v)| (out - v).abs() <= v.abs() / 15.0 + 2f32.powi(-9))
        };
        assert!(v.iter().any(is_near), "no row of V: {out:?}");
    }
    // One head's, in a lane and out of it.
    for odd in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        let ([first, second], _) = with_queries(&pair, |i, q| if i == 37 { odd } else { q });
        assert!(first.iter().all(|out| out.is_nan()), "{odd}: {first:?}");
        assert!(second.iter().all(|out| out.is_finite()), "{odd}: {second:?}");
    }
}
