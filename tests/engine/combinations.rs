//! What does not go together, each row of the table through the engine on a golden model; and the
//! page that shows the table.

use std::path::{Path, PathBuf};

use vllm_batch::cli::terminal::flags::{flag, with_flags};
use vllm_batch::engine::base::config::{
    DType, DeviceConfig, DeviceKind, EngineConfig, Engines, KvCacheDType, LoadFormat, LoraModule,
    ModelConfig, PrefillKernel, Quantization, SpeculationConfig, SpeculationMethod,
};
use vllm_batch::engine::base::pooling::{PoolingTask, PoolingType, TokenClasses};
use vllm_batch::engine::base::{EngineError, Setting};
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::load::combinations::{COMBINATIONS, Combination, Side, Sides};
use vllm_batch::engine::core::serve::pooling::PoolingEngine;

fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(path)
}

/// A model that has the side, with no other that is refused beside the settings of a test. None:
/// no golden model has it alone, or it is seen when a GPU is open (`tests/devices`).
fn model_of(side: Side) -> Option<&'static str> {
    Some(match side {
        Side::Recurrent => "golden/mamba2",
        Side::Experts => "golden/qwen3_moe",
        Side::LatentAttention => "golden/minicpm3",
        Side::Choices => "golden/minimax_m3",
        Side::SharedKv => "golden/gemma4",
        Side::VisionTower => "golden/smolvlm",
        Side::SoundTower => "golden_sounds/english",
        Side::WideNorms => "golden/olmo2",
        Side::AttentionGates | Side::AttentionSinks | Side::LayerInputs | Side::TableLora => {
            return None;
        }
        Side::QuantizedCheckpoint => "golden/gptq",
        Side::Gguf => "gguf/qwen3.gguf",
        Side::Pooling | Side::WholeTexts | Side::NoClassifier => "golden_embeddings/bert",
        Side::Classifier | Side::ClassifierOfTexts | Side::NoLanguageModel => {
            "golden_classifiers/bert"
        }
        Side::SparseVectors => "golden_sparse/bert",
        _ => "golden/qwen3",
    })
}

fn lora() -> LoraModule {
    LoraModule { name: "a".to_owned(), dir: testdata("golden_adapters/rank_8") }
}

fn speculation(method: SpeculationMethod) -> Option<SpeculationConfig> {
    Some(SpeculationConfig {
        method,
        num_speculative_tokens: 2,
        max_step_tokens: None,
        paced: false,
    })
}

fn draft_model(model: &str) -> Option<SpeculationConfig> {
    speculation(SpeculationMethod::DraftModel { model_dir: testdata(model) })
}

/// Gives the setting or the device of a side; what is a model's own is left to the model.
fn give(config: &mut EngineConfig, side: Side) {
    let EngineConfig { model, cache, parallel, device, lora: adapters, .. } = config;
    match side {
        Side::TensorParallel => parallel.tensor_parallel_size = Some(2),
        Side::PipelineParallel => parallel.pipeline_parallel_size = Some(2),
        Side::DataParallel => parallel.engines = Engines::Number(2),
        Side::Speculation => {
            config.speculation = speculation(SpeculationMethod::Ngram { min: 1, max: 1 });
        }
        Side::DraftModel => config.speculation = draft_model("golden/qwen3"),
        Side::RecurrentDraft => config.speculation = draft_model("golden/mamba2"),
        Side::Lora => adapters.modules = vec![lora()],
        Side::MergedLora => adapters.merged = Some(lora()),
        Side::DummyWeights => model.load_format = LoadFormat::Dummy,
        Side::Float32 => model.dtype = Some(DType::Float32),
        Side::Fp8Weights => device.quantization = Some(Quantization::Fp8),
        Side::Int8Weights => device.quantization = Some(Quantization::Int8),
        Side::Fp8Cache => cache.kv_cache_dtype = KvCacheDType::Fp8,
        Side::HostCache => cache.kv_offloading_bytes = Some(1 << 20),
        Side::NoPrefixCaching => cache.enable_prefix_caching = false,
        Side::BlockSize => cache.block_size = Some(16),
        Side::NumBlocks => cache.num_blocks = Some(9),
        Side::CacheBytes => cache.kv_cache_memory_bytes = Some(1 << 20),
        Side::MemoryShare => cache.memory_share = Some(0.5),
        Side::Wgmma => device.prefill_kernel = PrefillKernel::Wgmma,
        Side::PoolingType => model.pooling_type = Some(PoolingType::Mean),
        Side::SparseVectors => model.sparse = true,
        Side::TokenClasses => {
            let tokens = ["no".to_owned(), "nice".to_owned()];
            model.token_classes = Some(TokenClasses::new(&tokens, false).unwrap());
        }
        Side::Vectors => model.pooling_task = Some(PoolingTask::Embed),
        Side::Classes => model.pooling_task = Some(PoolingTask::Classify),
        Side::ClassesOfTokens => model.pooling_task = Some(PoolingTask::TokenClassify),
        Side::Cpu => device.kind = DeviceKind::Cpu,
        // It is refused before anybody looks for it.
        Side::Gpu => device.kind = DeviceKind::Cuda(0),
        _ => {}
    }
}

fn refusal(row: &Combination) -> Option<EngineError> {
    let folder = match (model_of(row.refused)?, model_of(row.beside)?) {
        (model, "golden/qwen3") => model,
        (_, model) => model,
    };
    let model = ModelConfig {
        model_dir: testdata(folder),
        dtype: Some(DType::BFloat16),
        ..ModelConfig::default()
    };
    let device = DeviceConfig { kind: DeviceKind::Auto, ..DeviceConfig::default() };
    let mut config = EngineConfig { model, device, ..EngineConfig::default() };
    [row.refused, row.beside].into_iter().for_each(|side| give(&mut config, side));
    let writes_texts = ["golden/", "golden_sounds/", "gguf/"];
    let loaded = match writes_texts.iter().any(|kind| folder.starts_with(kind)) {
        true => Engine::load(&config).map(drop),
        false => PoolingEngine::load(&config).map(drop),
    };
    Some(loaded.expect_err(row.help))
}

#[test]
fn each_row_is_refused_by_the_engine_with_its_text() {
    let mut num_tried = 0;
    for row in COMBINATIONS {
        let Some(error) = refusal(row) else { continue };
        let named = match error {
            EngineError::Setting { setting, text, help } => (Some(setting), text, help),
            EngineError::Config(message) => {
                let (text, help) = message.split_once("; ").expect("a remedy");
                (None, text.to_owned(), help.to_owned())
            }
            other => panic!("{row:?}: {other}"),
        };
        assert_eq!(named, (row.refused.setting(), row.text(), row.help.to_owned()), "{row:?}");
        num_tried += 1;
    }
    assert_eq!(num_tried, COMBINATIONS.len() - 4);
}

#[test]
fn each_row_is_the_first_that_its_two_sides_meet() {
    for row in COMBINATIONS {
        let sides = Sides::default().with([(row.refused, true), (row.beside, true)]);
        assert_eq!(sides.refused(), Some(row));
        assert!(Sides::default().with([(row.refused, true)]).check().is_ok(), "{row:?}");
    }
}

/// A side as the page has it: its words, and its flag.
fn shown(words: &str, setting: Option<Setting>) -> String {
    match (words, setting.map(flag)) {
        ("it", Some(flag)) => format!("`{flag}`"),
        (words, Some(flag)) => format!("{words} (`{flag}`)"),
        (words, None) => words.to_owned(),
    }
}

#[test]
fn the_page_shows_the_table() {
    let mut table = "| setting | is not supported | what to do |\n|---|---|---|\n".to_owned();
    for row in COMBINATIONS {
        let (refused, beside) = (row.refused, row.beside);
        let subject = shown(refused.words().subject, refused.setting());
        let with = shown(beside.words().with, beside.setting());
        table += &format!("| {subject} | {with}{} | {} |\n", row.why, with_flags(row.help));
    }
    let page = std::fs::read_to_string(testdata("../docs/COMBINATIONS.md")).unwrap();
    assert!(page.contains(&table), "docs/COMBINATIONS.md is to have this table:\n{table}");
}
