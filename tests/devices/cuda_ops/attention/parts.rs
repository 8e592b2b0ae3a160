//! Rows and chunks in parts: the bits of those as a whole, over uneven batches and shared
//! beginnings.

use vllm_batch::engine::base::config::KvCacheDType;

use super::*;

/// So many multiprocessors that long rows are cut; so few that only sharing pays; so few that
/// nothing does where rows are few.
const MANY_SMS: u32 = 64;
const ONE_SM: u32 = 1;

fn of_sms(num_sms: u32) -> ShimGpu {
    ShimGpu { num_sms, ..ShimGpu::default() }
}

fn open((dtype, cache): Types, seed: u64, gpu: ShimGpu) -> Option<Pair> {
    Pair::open_with(dtype, cache, (seed, gpu))
}

/// Of the model and of the cache.
type Types = (DType, KvCacheDType);

const BF16: Types = (DType::BFloat16, KvCacheDType::Auto);
const F16: Types = (DType::Float16, KvCacheDType::Auto);
const FP8_CACHE: Types = (DType::BFloat16, KvCacheDType::Fp8);

/// Outputs, and which parts there were.
fn outputs(pair: &Pair, case: Case, seqs: &[Seq]) -> (Vec<Vec<f32>>, (bool, bool)) {
    let mut run = Run::new(pair, &pair.gpu, case, seqs);
    run.poison();
    let outputs = run.outputs(MAX_MODEL_LEN);
    (outputs, run.had_parts)
}

/// Each sequence on a GPU, with these parts, as alone on one where rows are whole.
fn check_parts(
    types: Types,
    (seed, gpu, parts): (u64, ShimGpu, (bool, bool)),
    cases: &[Case],
    seqs: &[Seq],
) {
    let Some(whole) = open(types, seed, of_sms(ONE_SM)) else { return };
    let in_parts = open(types, seed + 1, gpu).expect("as before");
    for case in cases {
        let (got, had_parts) = outputs(&in_parts, *case, seqs);
        assert_eq!(had_parts, parts, "{case:?}");
        for (seq, got) in seqs.iter().zip(&got) {
            let (expected, had_parts) = outputs(&whole, *case, &[*seq]);
            assert_eq!(had_parts, (false, false), "{case:?}, {seq:?}");
            assert!(to_bits(got) == to_bits(&expected[0]), "{case:?}, {seq:?} has other bits");
        }
    }
}

/// Long rows beside short ones and a prompt; the longest ends with a split, the next begins one.
const UNEVEN: [Seq; 6] = [
    seq(70, 1023, 1024),
    seq(71, 30, 31),
    seq(72, 768, 769),
    seq(73, 0, 40),
    seq(74, 899, 900),
    seq(75, 300, 301),
];

#[test]
fn paged_attention_merge_of_cut_rows_has_the_bits_of_whole_rows() {
    let cut = |seed| (seed, of_sms(MANY_SMS), (true, false));
    let with_sinks = Case { has_sinks: true, ..case(4, 2, 16, 16) };
    let capped = Case { soft_cap: Some(20.0), ..case(4, 2, 24, 48) };
    check_parts(BF16, cut(1000), &[case(8, 2, 64, 16), with_sinks, capped], &UNEVEN);
    // Queries of the widest heads lie in shared memory.
    check_parts(BF16, cut(1002), &[case(4, 2, 256, 16)], &UNEVEN);
    check_parts(FP8_CACHE, cut(1005), &[case(4, 2, 64, 16)], &UNEVEN);
    // More heads of a KV head than a group of rows has.
    check_parts(F16, cut(1010), &[case(40, 2, 32, 32)], &UNEVEN);
}

/// Rows that share two splits, some of them a block more; others that share one; one that goes on
/// from the shared blocks with a prompt; and two alone.
const SHARING: [Seq; 15] = [
    after((50, 528), 70, 530, 531),
    after((50, 528), 71, 528, 529),
    after((50, 528), 72, 600, 601),
    after((51, 256), 73, 256, 257),
    after((50, 528), 74, 528, 544),
    after((50, 528), 75, 767, 768),
    seq(76, 40, 41),
    after((51, 256), 77, 300, 301),
    after((50, 528), 78, 535, 536),
    after((51, 256), 79, 511, 512),
    seq(80, 600, 601),
    after((50, 528), 81, 540, 541),
    after((50, 528), 82, 528, 529),
    after((50, 528), 83, 541, 542),
    after((50, 528), 84, 543, 544),
];

#[test]
fn paged_attention_shared_has_the_bits_of_rows_alone() {
    let shared = |seed| (seed, of_sms(ONE_SM), (true, true));
    let with_sinks = Case { has_sinks: true, ..case(4, 1, 16, 16) };
    let capped = Case { soft_cap: Some(20.0), ..case(4, 2, 24, 48) };
    let cases = [case(4, 2, 64, 16), case(2, 1, 128, 16), with_sinks, capped];
    check_parts(BF16, shared(1020), &cases, &SHARING);
    check_parts(BF16, shared(1022), &[case(2, 1, 256, 16)], &SHARING);
    // Where shared memory has no room for what splits are merged in.
    let small = (1023, ShimGpu { max_smem_kb: 99, ..of_sms(ONE_SM) }, (true, true));
    check_parts(BF16, small, &[case(2, 1, 192, 16), case(2, 1, 256, 16)], &SHARING);
    check_parts(FP8_CACHE, shared(1025), &[case(4, 2, 64, 16)], &SHARING);
    check_parts(F16, shared(1030), &[case(20, 2, 32, 16)], &SHARING);
}

/// Rows with guesses behind long contexts, the end of a prompt, one that begins where a split does;
/// beside them a row that decodes, and a prompt that is computed as a whole.
const CHUNKS: [Seq; 5] = [
    seq(90, 1030, 1035),
    seq(91, 300, 301),
    seq(92, 1100, 1136),
    seq(93, 0, 40),
    seq(94, 1024, 1030),
];

#[test]
fn paged_attention_merge_of_cut_chunks_has_the_bits_of_whole_chunks() {
    let cut = |seed| (seed, of_sms(MANY_SMS), (true, true));
    let with_sinks = Case { has_sinks: true, ..case(4, 2, 16, 16) };
    let capped = Case { soft_cap: Some(20.0), ..case(4, 2, 24, 48) };
    check_parts(BF16, cut(1060), &[case(8, 2, 64, 16), with_sinks, capped], &CHUNKS);
    check_parts(BF16, cut(1062), &[case(4, 2, 256, 16)], &CHUNKS);
    check_parts(FP8_CACHE, cut(1065), &[case(4, 2, 64, 16)], &CHUNKS);
    check_parts(F16, cut(1070), &[case(40, 2, 32, 32)], &CHUNKS);
}

/// They keep rows whole.
#[test]
fn paged_attention_decode_keeps_rows_whole_with_windows_and_biases() {
    let window = Case { reach: Reach::Window(300), ..case(4, 2, 16, 16) };
    let alibi = Case { has_alibi: true, ..case(4, 2, 16, 16) };
    for (num_sms, seqs) in [(MANY_SMS, &UNEVEN[..]), (MANY_SMS, &CHUNKS), (ONE_SM, &SHARING)] {
        let whole = (1040, of_sms(num_sms), (false, false));
        check_parts(BF16, whole, &[window, alibi], seqs);
    }
}
