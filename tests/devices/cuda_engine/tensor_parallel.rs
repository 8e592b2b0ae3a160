//! One model over several drivers of this process: near what one gives, and with the same bits
//! however the rows are run.

use std::path::Path;

use vllm_batch::engine::api::request::RequestOutput;
use vllm_batch::engine::base::config::{
    CacheConfig, DType, DeviceConfig, DeviceKind, EngineConfig, Engines, ShimGpu,
};
use vllm_batch::engine::core::Engine;

use crate::cuda_engine::invariance::{bits, few_blocks};
use crate::cuda_engine::rows::rows;
use crate::cuda_engine::{config, run};
use crate::gpu;

type Change = (&'static str, fn(&mut EngineConfig));

/// A golden model on so many ranks of the shim; None: there is no shim.
fn shared(family: &str, dtype: DType, seed: u64, num_ranks: usize) -> Option<EngineConfig> {
    if gpu::is_real() {
        println!("SKIP: a machine may have one GPU");
        return None;
    }
    let mut config = config(family, dtype, &gpu::device(seed)?);
    config.parallel.num_threads = Some(1);
    config.parallel.tensor_parallel_size = Some(num_ranks);
    config.scheduler.max_num_batched_tokens = Some(40);
    Some(config)
}

fn outputs(config: &EngineConfig) -> (Vec<RequestOutput>, Engine) {
    let mut engine = Engine::load(config).unwrap_or_else(|error| panic!("{error}"));
    (run(&mut engine, rows()), engine)
}

/// The greedy row with logprobs of its prompt: ids, and every logprob.
fn likelihoods(output: &RequestOutput) -> (Vec<u32>, Vec<f32>) {
    let completion = &output.outputs[0];
    let positions = output.prompt_logprobs.iter().flatten().flatten();
    let positions = positions.chain(completion.logprobs.iter().flatten());
    (completion.token_ids.clone(), positions.map(|at| at.token.logprob).collect())
}

#[test]
fn several_ranks_give_what_one_device_gives_but_for_rounding() {
    let families = [
        ("llama2", 3),
        ("qwen3", 2),
        ("gemma2", 2),
        // Biases of all layers.
        ("llama_bias", 4),
        ("opt", 2),
        // Rows in another order, ALiBi; blocks that read the same.
        ("bloom", 2),
        ("falcon_one_norm", 2),
    ];
    for (index, (family, num_ranks)) in families.into_iter().enumerate() {
        let seed = 500 + index as u64;
        let Some(several) = shared(family, DType::Float32, seed, num_ranks) else { return };
        let mut one = several.clone();
        one.parallel.tensor_parallel_size = None;
        let ((got, engine), (expected, alone)) = (outputs(&several), outputs(&one));
        let (got, expected) = (likelihoods(&got[0]), likelihoods(&expected[0]));
        assert_eq!(got.0, expected.0, "{family}, {num_ranks} ranks");
        assert!(got.1.len() > 1 && got.1.len() == expected.1.len());
        for (got, expected) in got.1.iter().zip(&expected.1) {
            let error = (got - expected).abs();
            assert!(error < 1e-4, "{family}, {num_ranks} ranks: {got}, alone {expected}");
        }
        let (info, of_one) = (engine.info(), alone.info());
        assert_eq!(info.kernel_set, format!("{}-tp{num_ranks}", of_one.kernel_set));
        assert_eq!(info.device_name, format!("{num_ranks} x {}, one model", of_one.device_name));
        assert!(info.weight_bytes < of_one.weight_bytes);
        assert_eq!(info.kv_cache_bytes * num_ranks, of_one.kv_cache_bytes);
    }
}

#[test]
fn a_row_has_the_same_bits_on_several_ranks_however_it_is_run() {
    let changes: [Change; 6] = [
        ("three sequences", |c| c.scheduler.max_num_seqs = Some(3)),
        ("64 sequences and 4096 tokens a step", |c| {
            c.scheduler.max_num_seqs = Some(64);
            c.scheduler.max_num_batched_tokens = Some(4096);
        }),
        ("8 tokens a step", |c| c.scheduler.max_num_batched_tokens = Some(8)),
        ("no CUDA graphs", |c| c.device.enforce_eager = true),
        ("blocks of 32, no prefix cache", |c| {
            c.cache.block_size = Some(32);
            c.cache.enable_prefix_caching = false;
        }),
        ("few blocks", |c| c.cache = CacheConfig { ..few_blocks(true) }),
    ];
    let Some(base) = shared("qwen3", DType::BFloat16, 540, 2) else { return };
    let (expected, _) = outputs(&base);
    for (index, (what, change)) in changes.into_iter().enumerate() {
        let mut changed = shared("qwen3", DType::BFloat16, 541 + index as u64, 2).expect("a shim");
        change(&mut changed);
        let (got, engine) = outputs(&changed);
        for (row, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(bits(got), bits(expected), "{what}: row {row}");
        }
        assert_eq!(engine.stats().num_preemptions > 0, what == "few blocks", "{what}");
    }
}

#[test]
fn what_ranks_do_not_share_is_refused_by_its_name() {
    let refused = |change: &dyn Fn(&mut EngineConfig), family: &str, says: &str| {
        let Some(mut config) = shared(family, DType::Float32, 550, 2) else { return };
        change(&mut config);
        let Err(error) = Engine::load(&config) else { panic!("{family} is refused: {says}") };
        let text = error.to_string();
        assert!(text.contains("tensor_parallel_size") && text.contains(says), "{text}");
    };
    refused(&|c| c.parallel.tensor_parallel_size = Some(3), "qwen3", "heads: give 2");
    refused(&|c| c.parallel.engines = Engines::Number(2), "qwen3", "with data parallelism");
    refused(&|c| c.cache.kv_offloading_bytes = Some(1 << 20), "qwen3", "with offloading");
    refused(&|c| c.device.kind = DeviceKind::Cpu, "qwen3", "on the CPU");
    refused(&|_| {}, "qwen3_moe", "for models with experts");
    refused(&|_| {}, "minicpm3", "latent attention");
    refused(&|_| {}, "gpt_oss", "for models with");
    refused(&|_| {}, "lfm2", "recurrent layers");
}

/// Kernels of which those of one rank fail.
fn broken(test: &str) -> Option<DeviceConfig> {
    let DeviceKind::CudaShim { kernels_dir: from, module_dir, seed, .. } = gpu::device(560)?.kind
    else {
        return None;
    };
    let kernels_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken").join(test);
    crate::cuda_engine::failure::copy(&from, &kernels_dir);
    let path = kernels_dir.join("all_reduce.cu");
    let source = std::fs::read_to_string(&path).unwrap();
    let begin = "  const u32 epoch = epochs[blockIdx.x] + 1;\n";
    assert!(source.contains(begin));
    let fails = format!("{begin}  if (rank == 1 && epoch == 30) __trap();\n");
    std::fs::write(&path, source.replace(begin, &fails)).unwrap();
    let kind = DeviceKind::CudaShim { kernels_dir, module_dir, seed, gpu: ShimGpu::default() };
    Some(DeviceConfig { kind, ..DeviceConfig::default() })
}

#[test]
fn a_rank_that_fails_ends_the_run_and_is_named() {
    let Some(mut config) = shared("qwen3", DType::Float32, 560, 2) else { return };
    config.device = broken("rank").expect("there is a shim");
    let mut engine = Engine::load(&config).unwrap_or_else(|error| panic!("{error}"));
    let processor = engine.input_processor();
    for (index, (prompt, params)) in (0..).zip(rows()) {
        let key = vllm_batch::engine::api::request::RowKey(index);
        engine.add_request(processor.process(index, prompt, params, key).unwrap());
    }
    let error = loop {
        match engine.step() {
            Ok(_) => assert!(engine.has_unfinished_requests(), "the device fails before the end"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("rank 1 (host shim)") && error.contains("__trap"), "{error}");
}
