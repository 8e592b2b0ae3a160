//! K and V that are not finite: they reach the tokens that attend to them, and no others.

use vllm_batch::engine::base::config::KvCacheDType;

use super::*;

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;

const fn v(seed: u64, position: usize, values: [f32; 2]) -> Odd {
    Odd { seed, position, is_v: true, values }
}

const fn k(seed: u64, position: usize, values: [f32; 2]) -> Odd {
    Odd { is_v: false, ..v(seed, position, values) }
}

/// Prompts whole, from a position that no tile begins with, behind blocks of another, around the
/// end of a split; beside them rows that decode.
const SEQS: [Seq; 7] = [
    seq(70, 0, 75),
    seq(71, 13, 60),
    after((50, 48), 72, 40, 70),
    after((50, 48), 73, 48, 49),
    after((50, 48), 74, 21, 52),
    seq(75, 250, 261),
    seq(76, 90, 91),
];

/// Inside of a tile and at its edges, in cached positions and in new ones, in blocks of several
/// sequences, and one that nothing sees but its own token.
const VALUES: [Odd; 9] = [
    v(70, 20, [INF, NAN]),
    v(70, 32, [1.0, -INF]),
    v(71, 12, [NAN, 0.5]),
    v(71, 59, [INF, INF]),
    v(50, 45, [NAN, -INF]),
    v(72, 63, [-INF, 1.0]),
    v(75, 255, [NAN, INF]),
    v(75, 256, [INF, 1.0]),
    v(76, 90, [2.0, NAN]),
];

const KEYS: [Odd; 5] = [
    k(70, 20, [INF, 1.0]),
    k(71, 12, [NAN, 0.5]),
    k(50, 45, [NAN, -INF]),
    k(72, 63, [-INF, 1.0]),
    k(75, 255, [INF, NAN]),
];

fn outputs(
    pair: &Pair,
    device: &Device,
    (case, seqs): (Case, &[Seq]),
    (odd, chunk): (&[Odd], usize),
) -> Vec<Vec<f32>> {
    let mut run = Run { odd, ..Run::new(pair, device, case, seqs) };
    run.outputs(chunk)
}

/// Whether a token attends to something odd.
fn sees(case: Case, seq: Seq, position: usize, odd: &[Odd]) -> bool {
    let seed = |of: usize| if of < seq.prefix.1 { seq.prefix.0 } else { seq.seed };
    let first = case.reach.first(position);
    odd.iter()
        .any(|odd| odd.seed == seed(odd.position) && (first..=position).contains(&odd.position))
}

/// Tokens that see nothing odd have the bits of a run without; all have the bits of one token at a
/// time; what is finite is so on the CPU as well, and close.
fn check_odd(pair: &Pair, case: Case, seqs: &[Seq], odd: &[Odd]) {
    let what = format!("{case:?}, {}", pair.dtype.name());
    let on_gpu = |seqs: &[Seq], odd, chunk| outputs(pair, &pair.gpu, (case, seqs), (odd, chunk));
    let (sound, together) = (on_gpu(seqs, &[], MAX_MODEL_LEN), on_gpu(seqs, odd, MAX_MODEL_LEN));
    let width = case.heads.num_heads * case.v_dim();
    let (mut num_apart, mut num_broken) = (0, 0);
    for ((seq, sound), got) in seqs.iter().zip(&sound).zip(&together) {
        for (index, (sound, got)) in sound.chunks(width).zip(got.chunks(width)).enumerate() {
            let position = seq.cached + index;
            if sees(case, *seq, position, odd) {
                num_broken += got.iter().filter(|value| !value.is_finite()).count();
            } else {
                assert!(to_bits(got) == to_bits(sound), "{what}: {seq:?} at {position}");
                num_apart += 1;
            }
        }
    }
    assert!(num_apart > 0 && num_broken > 0, "{what}: the test has both");
    for chunk in [1, 7, 32] {
        for ((seq, got), expected) in seqs.iter().zip(on_gpu(seqs, odd, chunk)).zip(&together) {
            assert!(to_bits(&got) == to_bits(expected), "{what}: {seq:?} in chunks of {chunk}");
        }
    }
    let [last, .., first] = seqs else { panic!("several sequences") };
    for (got, expected) in
        on_gpu(&[*first, *last], odd, MAX_MODEL_LEN).iter().zip([together.last(), together.first()])
    {
        assert!(Some(to_bits(got)) == expected.map(|values| to_bits(values)), "{what}: apart");
    }
}

fn check_on_cpu(pair: &Pair, case: Case, seqs: &[Seq], odd: &[Odd]) {
    let [got, expected] =
        [&pair.gpu, &pair.cpu].map(|device| outputs(pair, device, (case, seqs), (odd, 50)));
    for ((seq, got), expected) in seqs.iter().zip(&got).zip(&expected) {
        for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
            let slack = 0.02 * (1.0 + expected.abs());
            let is_same = match expected.is_finite() {
                true => (got - expected).abs() <= slack,
                false => !got.is_finite(),
            };
            assert!(is_same, "{case:?}, {seq:?}: {index} is {got}, on the CPU {expected}");
        }
    }
}

fn check(dtype: DType, seed: u64, cases: &[Case]) {
    let Some(pair) = Pair::open(dtype, seed, None) else { return };
    for case in cases {
        for odd in [&VALUES[..], &KEYS[..]] {
            check_odd(&pair, *case, &SEQS, odd);
        }
        check_on_cpu(&pair, *case, &SEQS, &VALUES);
    }
}

#[test]
fn unseen_values_that_are_not_finite_reach_no_token_of_a_prompt() {
    let window = Case { reach: Reach::Window(9), ..case(4, 2, 16, 16) };
    let alibi = Case { has_alibi: true, ..case(6, 2, 16, 16) };
    check(DType::BFloat16, 1100, &[case(4, 1, 64, 16), case(2, 2, 128, 32), window, alibi]);
    let capped = Case { soft_cap: Some(20.0), reach: Reach::Window(40), ..case(20, 1, 24, 48) };
    check(DType::Float16, 1110, &[case(8, 1, 64, 32), capped]);
    check(DType::BFloat16, 1120, &[case(2, 1, 256, 16)]);
    let chunks = Case { reach: Reach::Chunk(21), ..case(4, 2, 16, 16) };
    check(DType::BFloat16, 1125, &[chunks]);
}

#[test]
fn unseen_values_that_are_not_finite_reach_no_token_in_float32() {
    check(DType::Float32, 1130, &[case(3, 1, 16, 16)]);
}

/// E4M3 has a NaN and no infinity.
#[test]
fn unseen_values_of_nan_in_a_cache_of_fp8_reach_no_token() {
    let shim = ShimGpu::default();
    let Some(pair) = Pair::open_with(DType::BFloat16, KvCacheDType::Fp8, (1140, shim)) else {
        return;
    };
    let window = Case { reach: Reach::Window(9), ..case(4, 2, 16, 16) };
    for case in [case(4, 1, 64, 16), window] {
        check_odd(&pair, case, &SEQS, &VALUES);
    }
}

#[test]
fn unseen_values_that_are_not_finite_reach_no_token_in_wide_heads() {
    let window = Case { reach: Reach::Window(9), ..case(4, 2, 264, 16) };
    for case in [latents(20, (16, 48), 32), latents(3, (8, 24), 16), window] {
        let Some(pair) = Pair::open(DType::BFloat16, 1150, None) else { return };
        check_odd(&pair, case, &SEQS, &VALUES);
    }
}

/// Rows in parts beside such prompts, long ones and ones that share.
#[test]
fn unseen_values_reach_no_token_beside_rows_in_parts() {
    let seqs = [
        seq(70, 1000, 1001),
        after((50, 528), 77, 528, 529),
        after((50, 528), 78, 540, 541),
        after((50, 528), 79, 540, 541),
        after((50, 528), 80, 541, 542),
        after((50, 528), 81, 541, 542),
        after((50, 528), 82, 541, 542),
        after((50, 528), 83, 541, 542),
        after((50, 528), 84, 528, 560),
        seq(71, 0, 70),
    ];
    let odd = [v(70, 900, [NAN, 1.0]), v(50, 300, [1.0, INF]), v(84, 540, [INF, NAN])];
    let odd = [&odd[..], &[v(71, 20, [INF, NAN]), v(71, 69, [INF, NAN])]].concat();
    for (seed, num_sms, parts) in [(1160, 64, (true, false)), (1170, 1, (true, true))] {
        let shim = ShimGpu { num_sms, ..ShimGpu::default() };
        let Some(pair) = Pair::open_as(DType::BFloat16, seed, shim) else { return };
        let case = case(4, 2, 64, 16);
        let mut run = Run { odd: &odd, ..Run::new(&pair, &pair.gpu, case, &seqs) };
        run.outputs(MAX_MODEL_LEN);
        assert_eq!(run.had_parts, parts);
        check_odd(&pair, case, &seqs, &odd);
    }
}
