//! Rows of several adapters on the GPU's kernels: the same bits in mixed steps and in runs of one
//! adapter, and the CPU's answers.

#[path = "../../engine/adapters.rs"]
pub mod adapters;

use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{LoraId, NumLogprobs, RowKey, SamplingParams};
use vllm_batch::engine::base::config::{
    DType, DeviceConfig, DeviceKind, EngineConfig, LoraConfig, LoraModule, Quantization,
};
use vllm_batch::engine::core::Engine;

use crate::cuda_engine::config;
use crate::gpu;
use adapters::{Made, make, testdata};

const FAMILY: &str = "qwen2";

fn modules(folder: &std::path::Path) -> Vec<LoraModule> {
    let model = testdata("golden").join(FAMILY);
    let few = Made { rank: 3, seed: 2, modules: &["v_proj", "down_proj"], b: 0.6 };
    let all = Made { rank: 8, seed: 1, modules: &[], b: 0.3 };
    vec![make(folder, "all", &model, all), make(folder, "few", &model, few)]
}

fn adapted(base: &EngineConfig, modules: &[LoraModule]) -> EngineConfig {
    let lora = LoraConfig { modules: modules.to_vec(), ..LoraConfig::default() };
    EngineConfig { lora, ..base.clone() }
}

/// A row's prompt, and its adapter.
type Row = (Vec<u32>, Option<LoraId>);

/// Nine rows: each of three prompts, one of them longer than a step, with each adapter and none.
fn rows() -> Vec<Row> {
    let prompt = |index: u32| (0..5 + 30 * index).map(|token| token * 29 % 80 + 20).collect();
    let lora = |index: u32| index.checked_sub(1).map(LoraId);
    (0..9).map(|index| (prompt(index % 3), lora(index / 3))).collect()
}

/// Tokens of each row, and their logprobs.
fn run(config: &EngineConfig, rows: &[Row]) -> Vec<Vec<(u32, f32)>> {
    let mut engine = Engine::load(config).expect("a model");
    let processor = engine.input_processor();
    for (index, (prompt, lora)) in (0u64..).zip(rows) {
        let params = SamplingParams {
            temperature: 0.0,
            max_tokens: Some(6),
            ignore_eos: true,
            logprobs: Some(NumLogprobs::Top(0)),
            ..SamplingParams::default()
        };
        let prompt = Prompt::TokenIds(prompt.clone());
        let mut request = processor.process(index, prompt, params, RowKey(index)).expect("a row");
        request.lora = *lora;
        engine.add_request(request);
    }
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        outputs.extend(engine.step().expect("the device works"));
    }
    outputs.sort_by_key(|output| output.request_id);
    let answers = outputs.iter().map(|output| {
        let logprobs = output.outputs[0].logprobs.as_ref().expect("they were asked for");
        logprobs.iter().map(|at| (at.token.token_id, at.token.logprob)).collect()
    });
    answers.collect()
}

#[test]
fn rows_of_adapters_have_the_bits_of_separate_runs() {
    let folder = tempfile::tempdir().unwrap();
    let modules = modules(folder.path());
    for (dtype, seed) in [(DType::BFloat16, 300), (DType::Float32, 310)] {
        let Some(device) = gpu::device(seed) else { return };
        let base = config(FAMILY, dtype, &device);
        let mut together = adapted(&base, &modules);
        together.scheduler.max_loras = 2;
        let expected = run(&together, &rows());
        // With one slot, the adapters take turns in it.
        let mut tight = together.clone();
        tight.device = gpu::device(seed + 1).expect("there was one before");
        (tight.scheduler.max_loras, tight.scheduler.max_num_seqs) = (1, Some(3));
        tight.scheduler.max_num_batched_tokens = Some(8);
        assert_eq!(run(&tight, &rows()), expected, "{}, one slot", dtype.name());
        for (first, lora) in [(0, None), (3, Some(0)), (6, Some(1))] {
            let modules: Vec<_> =
                lora.map(|lora: usize| modules[lora].clone()).into_iter().collect();
            let mut own = rows()[first..first + 3].to_vec();
            own.iter_mut().for_each(|row| row.1 = lora.map(|_| LoraId(0)));
            let got = run(&adapted(&base, &modules), &own);
            assert_eq!(got, expected[first..first + 3], "{}, rows {first}..", dtype.name());
        }
        // Adapters do something, and each something else.
        for prompt in 0..3 {
            let [none, all, few] = [0, 3, 6].map(|first| &expected[first + prompt]);
            assert!(none != all && none != few && all != few, "prompt {prompt}");
        }
    }
}

#[test]
fn rows_of_adapters_are_answered_as_on_the_cpu() {
    let Some(device) = gpu::device(320) else { return };
    let folder = tempfile::tempdir().unwrap();
    let modules = modules(folder.path());
    let answers = |device: &DeviceConfig| {
        let mut config = adapted(&config(FAMILY, DType::Float32, device), &modules);
        config.scheduler.max_loras = 2;
        run(&config, &rows())
    };
    let cpu = DeviceConfig { kind: DeviceKind::Cpu, ..DeviceConfig::default() };
    for (row, (got, expected)) in answers(&device).iter().zip(answers(&cpu)).enumerate() {
        for ((token, logprob), (expected, of_cpu)) in got.iter().zip(expected) {
            assert_eq!(*token, expected, "row {row}");
            assert!((logprob - of_cpu).abs() < 1e-4, "row {row}: {logprob}, on the CPU {of_cpu}");
        }
    }
}

#[test]
fn adapters_beside_e4m3_layers_are_refused_at_load() {
    let Some(device) = gpu::device(330) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut base = config(FAMILY, DType::BFloat16, &device);
    base.device.quantization = Some(Quantization::Fp8);
    let error = Engine::load(&adapted(&base, &modules(folder.path()))).err().expect("refused");
    assert!(error.to_string().contains("not supported with fp8 weights"), "{error}");
}

#[test]
fn a_gpu_takes_no_adapters_of_the_embedding_table() {
    let Some(device) = gpu::device(331) else { return };
    let base = config("llama2", DType::BFloat16, &device);
    let table = LoraModule { name: "a".to_owned(), dir: testdata("golden_adapters/tables") };
    let error = Engine::load(&adapted(&base, &[table])).err().expect("refused").to_string();
    let expected = "an adapter of the embedding table is not supported on a GPU yet";
    assert!(error.contains(expected) && error.contains("`settings.device` cpu"), "{error}");
}
