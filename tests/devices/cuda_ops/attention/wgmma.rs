//! Prefill by the warpgroups of Hopper, in the shim's emulation of `wgmma`: the bits of prefill by
//! `mma.sync`. On a real GPU whether they are equal is found out, not asserted
//! (`wgmma_timed_on_a_gpu`).

use vllm_batch::engine::base::config::PrefillKernel;
use vllm_batch::engine::ops::{WgmmaTrial, prefill_by_wgmma};

use super::*;

/// Around tiles of 32, stages of 64 and splits of 256, beside rows that decode; one whose chunks
/// begin off all of them.
const PROMPTS: [Seq; 8] = [
    seq(60, 0, 17),
    seq(61, 40, 41),
    seq(62, 0, 64),
    seq(63, 31, 97),
    seq(64, 250, 290),
    seq(65, 0, 150),
    seq(66, 512, 523),
    seq(67, 37, 300),
];

fn outputs(
    pair: &Pair,
    kernel: PrefillKernel,
    case: Case,
    seqs: &[Seq],
    chunk: usize,
) -> Vec<Vec<f32>> {
    let Device::Cuda(gpu) = &pair.gpu else { panic!("a GPU") };
    gpu.set_prefill_kernel(kernel);
    let mut run = Run::new(pair, &pair.gpu, case, seqs);
    run.poison();
    run.outputs(chunk)
}

/// The same bits, whole and in chunks; near the CPU's.
fn check_wgmma(dtype: DType, seed: u64, cases: &[Case], seqs: &[Seq]) {
    // Not of a real GPU.
    let Some(pair) = Pair::open_as(dtype, seed, ShimGpu::default()) else { return };
    for case in cases {
        let expected = outputs(&pair, PrefillKernel::MmaSync, *case, seqs, MAX_MODEL_LEN);
        for chunk in [MAX_MODEL_LEN, 45] {
            let got = outputs(&pair, PrefillKernel::Wgmma, *case, seqs, chunk);
            for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let what = format!("{case:?}, {:?}, {}", seqs[index], dtype.name());
                assert!(to_bits(got) == to_bits(expected), "{what}: other bits, chunks of {chunk}");
            }
        }
        check_close(&pair, *case, seqs);
    }
}

#[test]
fn paged_attention_prefill_wgmma_in_heads_of_64() {
    let layers = [case(14, 2, 64, 16), Case { num_kv_heads: 1, ..case(4, 4, 64, 48) }];
    check_wgmma(DType::BFloat16, 910, &layers, &PROMPTS);
    check_wgmma(DType::Float16, 911, &[case(8, 1, 64, 32)], &PROMPTS);
}

#[test]
fn paged_attention_prefill_wgmma_in_heads_of_128() {
    check_wgmma(DType::BFloat16, 912, &[case(4, 1, 128, 32)], &PROMPTS);
    check_wgmma(DType::Float16, 914, &[case(2, 2, 128, 16)], &PROMPTS);
}

#[test]
fn paged_attention_prefill_wgmma_with_windows_soft_caps_biases_and_sinks() {
    let with = |reach, soft_cap, case: Case| Case { reach, soft_cap, ..case };
    let windows = [
        with(Reach::Window(33), None, case(2, 1, 64, 16)),
        with(Reach::Window(100), Some(20.0), case(2, 1, 64, 16)),
        with(Reach::Window(1), None, case(3, 1, 128, 16)),
        with(Reach::Chunk(70), None, case(3, 1, 128, 16)),
    ];
    check_wgmma(DType::BFloat16, 915, &windows, &PROMPTS);
    let biases = [
        Case { has_alibi: true, ..case(4, 2, 64, 16) },
        Case { has_sinks: true, ..with(Reach::Window(70), None, case(8, 1, 64, 16)) },
    ];
    check_wgmma(DType::Float16, 916, &biases, &PROMPTS);
}

/// What it does not take is computed as before.
#[test]
fn other_heads_and_gpus_keep_mma_sync() {
    let ampere = ShimGpu { compute_capability: (8, 0), max_smem_kb: 163, ..ShimGpu::default() };
    for (gpu, case) in [(ShimGpu::default(), case(2, 1, 80, 16)), (ampere, case(2, 1, 64, 16))] {
        let Some(pair) = Pair::open_as(DType::BFloat16, 917, gpu) else { return };
        let seqs = &PROMPTS[..3];
        let expected = outputs(&pair, PrefillKernel::MmaSync, case, seqs, MAX_MODEL_LEN);
        assert_eq!(outputs(&pair, PrefillKernel::Wgmma, case, seqs, MAX_MODEL_LEN), expected);
    }
}

#[test]
fn wgmma_is_chosen_where_a_trial_gives_equal_bits_and_refused_by_name_elsewhere() {
    let Some(pair) = Pair::open_as(DType::BFloat16, 918, ShimGpu::default()) else { return };
    let Device::Cuda(gpu) = &pair.gpu else { panic!("a GPU") };
    let refused = |device: &Device, head_dims: &[usize]| {
        prefill_by_wgmma(device, head_dims).unwrap_err().to_string()
    };
    let text = refused(&pair.gpu, &[64, 96]);
    assert!(text.contains("no heads of 96"), "{text}");
    assert_eq!(gpu.prefill_kernel(), PrefillKernel::MmaSync);
    prefill_by_wgmma(&pair.gpu, &[64, 128]).expect("the emulation has equal bits");
    assert_eq!(gpu.prefill_kernel(), PrefillKernel::Wgmma);
    let ampere = ShimGpu { compute_capability: (8, 0), ..ShimGpu::default() };
    let other = Pair::open_as(DType::BFloat16, 919, ampere).expect("as before");
    assert!(refused(&other.gpu, &[64]).contains("compute capability 8.0"));
}

/// That it sees another order was tried by hand: it refused a kernel that took the steps of a score
/// downward.
#[test]
fn the_trial_compares_every_output_of_both_of_its_texts() {
    let Some(pair) = Pair::open_as(DType::Float16, 920, ShimGpu::default()) else { return };
    let mut trial = WgmmaTrial::new(&pair.gpu, 64).expect("memory");
    let (different, all) = trial.compare().expect("the device works");
    assert_eq!((different, all), (0, 2 * 600 * 2 * 64));
}
