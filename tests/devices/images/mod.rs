//! Tiny models that see images against transformers (`images.json` of their folders), below the
//! scheduler: steps are made by hand. And that no byte depends on what is computed beside it, when,
//! or by how many threads.

mod on_gpu;
mod quantized;
mod steps;
mod timed;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde::Deserialize;
use vllm_batch::engine::base::config::{CacheConfig, DType, EngineConfig, ModelConfig};
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::execute::model::tower::Tower as LoadedTower;
use vllm_batch::engine::core::load::images::image_processor;
use vllm_batch::engine::core::load::model_summary::ModelSummary;
use vllm_batch::engine::core::media_table::{MediaTable, Processors, TableMedium};
use vllm_batch::engine::device::Device;
use vllm_batch::engine::media::{Encoded, Limits, MediaError, MediaKind, Medium};
use vllm_batch::engine::text::Tokenizer;

use steps::{Row, RowKind, Runner};

const MODELS: [&str; 53] = [
    "aya_vision",
    "cohere2_vision",
    "deepseek_vl",
    "deepseek_vl2",
    "deepseek_vl2_tiny",
    "dots_ocr",
    "exaone4_5",
    "gemma3_multimodal",
    "gemma3_published",
    "gemma4_e2b",
    "gemma4_moe",
    "glm46v",
    "glm4v",
    "glm4v_moe",
    "glm_ocr",
    "got_ocr2",
    "hyperclovax_vision",
    "idefics3",
    "internvl",
    "internvl_chat",
    "internvl_published",
    "kimi_k25",
    "kimi_vl",
    "lfm2_vl",
    "lighton_ocr",
    "llava",
    "granite_vision",
    "llava_next",
    "llava_next_saved",
    "llava_onevision",
    "llava_saved",
    "ministral3_multimodal",
    "mistral3",
    "molmo2",
    "molmo2_o",
    "muse_glimmer",
    "ovis2",
    "paddleocr_vl",
    "paligemma",
    "paligemma2",
    "phi4_multimodal",
    "phi4_multimodal_untied",
    "phi4mm",
    "pixtral",
    "qianfan_ocr",
    "qwen2_5_vl",
    "qwen2_vl",
    "qwen3_5_moe_multimodal",
    "qwen3_5_multimodal",
    "qwen3_vl",
    "qwen3_vl_moe",
    "smolvlm",
    "vipllava",
];

/// Of a logit, and of an embedding.
const TOLERANCE: f32 = 1e-4;

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<GoldenPrompt>,
}

#[derive(Deserialize)]
struct GoldenPrompt {
    name: String,
    images: Vec<String>,
    prompt_token_ids: Vec<u32>,
    /// Positions of tokens on axes.
    axes: Option<Vec<[u32; 3]>>,
    /// Embeddings of the first token of an image, and of the last.
    first_row: Option<Vec<f32>>,
    last_row: Option<Vec<f32>>,
    logits: Vec<f32>,
    output_token_ids: Vec<u32>,
}

fn testdata(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(path)
}

fn read(model: &str, file: &str) -> String {
    std::fs::read_to_string(testdata("golden").join(model).join(file)).unwrap()
}

fn golden(model: &str) -> Golden {
    serde_json::from_str(&read(model, "images.json")).unwrap()
}

fn config(model: &str, dtype: DType) -> EngineConfig {
    let model_dir = testdata("golden").join(model);
    let model = ModelConfig { model_dir, dtype: Some(dtype), ..ModelConfig::default() };
    let cache =
        CacheConfig { block_size: Some(16), num_blocks: Some(64), ..CacheConfig::default() };
    EngineConfig { model, cache, ..EngineConfig::default() }
}

fn summary(model: &str) -> ModelSummary {
    ModelSummary::read(&config(model, DType::Float32).model).unwrap()
}

/// A table that keeps so many bytes of patches.
fn table(model: &str, max_patch_bytes: usize) -> Arc<MediaTable> {
    let summary = summary(model);
    let sight = summary.sight().expect("a tower");
    let table_token = sight.tower.table_token;
    let table =
        MediaTable::new(Processors::of_images(image_processor(sight).unwrap()), max_patch_bytes);
    Arc::new(table.with_table_token(table_token))
}

fn media(prompt: &GoldenPrompt) -> Vec<Arc<Medium>> {
    let medium = |file: &String| {
        let bytes = std::fs::read(testdata("media").join(file)).unwrap();
        Arc::new(Medium::new(MediaKind::Image, bytes, Limits::default()).unwrap())
    };
    prompt.images.iter().map(medium).collect()
}

/// A prompt whose images are under way as long as the result is.
fn placed(
    table: &Arc<MediaTable>,
    model: &str,
    prompt: &GoldenPrompt,
) -> (Row, Vec<Arc<TableMedium>>) {
    let placed = table.place(&media(prompt)).unwrap();
    (Row::new(&prompt.prompt_token_ids, &placed, of_rows(model)), placed)
}

/// What rows of a model go by.
fn of_rows(model: &str) -> RowKind {
    let ModelSummary { spec, tower, .. } = summary(model);
    let tower = tower.expect("a tower");
    let tokenizer = Tokenizer::from_dir(&testdata("golden").join(model)).unwrap();
    RowKind {
        image_token_id: tower.image_token_id.find(|text| tokenizer.token_id(text)).unwrap(),
        marks: tower.marks.map_or_else(Vec::new, |marks| marks.ids),
        bidirectional: tower.bidirectional,
        has_axes: spec.ropes.iter().any(|rope| !rope.axes.is_empty()),
    }
}

fn assert_close(got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!((got - expected).abs() < TOLERANCE, "{what} {index}: {got}, not {expected}");
    }
}

#[test]
fn logits_and_greedy_tokens_are_those_of_transformers() {
    for model in MODELS {
        let table = table(model, usize::MAX);
        let mut runner = Runner::load(config(model, DType::Float32), 2, &table);
        is_transformers(&mut runner, model, &table);
    }
}

/// Whether a model of f32 gives the golden logits and tokens.
fn is_transformers(runner: &mut Runner, model: &str, table: &Arc<MediaTable>) {
    for prompt in golden(model).prompts {
        let what = format!("{model}, {}", prompt.name);
        let (mut row, _media) = placed(table, model, &prompt);
        if let Some(axes) = &prompt.axes {
            assert_eq!(row.axes(), *axes, "{what}");
        }
        let mut logits = runner.prefill(&[&row], 64).remove(0);
        assert_close(&logits, &prompt.logits, &what);
        for token in &prompt.output_token_ids {
            let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
            assert_eq!(best as u32, *token, "{what}");
            row.push(*token);
            logits = runner.decode(&row);
        }
    }
}

#[test]
fn a_tower_gives_the_embeddings_of_transformers() {
    for model in MODELS {
        let summary = summary(model);
        let (device, dtype) = (Device::cpu(Some(2)), DType::Float32);
        let mut checkpoint = summary.files.checkpoint(None).unwrap();
        let spec = summary.tower.expect("a tower");
        let mut tower = LoadedTower::load(spec, dtype, &device, &mut checkpoint).unwrap();
        for prompt in golden(model).prompts.iter().filter(|prompt| !prompt.images.is_empty()) {
            let table = table(model, 0);
            let placed = table.place(&media(prompt)).unwrap();
            let patches: Vec<_> =
                placed.iter().map(|medium| medium.take_input().unwrap().patches()).collect();
            let tables = table.processors().images.as_ref().unwrap().normalization().tables();
            let rows = tower.encode(&device, &patches, &tables).unwrap();
            let what = format!("{model}, {}", prompt.name);
            let (last, layout) = (rows.last().unwrap(), placed.last().unwrap().form().layout());
            assert_close(rows[0].row(0), prompt.first_row.as_ref().unwrap(), &what);
            let expected = prompt.last_row.as_ref().unwrap();
            assert_close(last.row(layout.num_tokens() - 1), expected, &what);
        }
    }
}

#[test]
fn no_byte_depends_on_what_is_beside_a_row_on_chunks_or_on_threads() {
    let as_stored = ("smolvlm", DType::BFloat16);
    for (model, dtype) in MODELS.map(|model| (model, DType::Float32)).into_iter().chain([as_stored])
    {
        let prompts = golden(model).prompts;
        let alone: Vec<_> = prompts
            .iter()
            .map(|prompt| {
                let table = table(model, usize::MAX);
                let mut runner = Runner::load(config(model, dtype), 1, &table);
                let (row, _media) = placed(&table, model, prompt);
                runner.prefill(&[&row], 1000).remove(0)
            })
            .collect();
        for (num_threads, chunk) in [(1, 1000), (3, 1000), (3, 7), (2, 1)] {
            let table = table(model, 0);
            let mut runner = Runner::load(config(model, dtype), num_threads, &table);
            let (rows, _media): (Vec<_>, Vec<_>) =
                prompts.iter().rev().map(|prompt| placed(&table, model, prompt)).unzip();
            let together = runner.prefill(&Vec::from_iter(&rows), chunk);
            let what = format!("{model} {dtype:?}, {num_threads} threads, chunks of {chunk}");
            assert!(together.iter().rev().eq(&alone), "{what}");
        }
    }
}

#[test]
fn what_made_room_is_encoded_again_to_the_same_bytes() {
    let model = "smolvlm";
    let mut config = config(model, DType::Float32);
    let run = |config: &EngineConfig| {
        let table = table(model, 0);
        let mut runner = Runner::load(config.clone(), 2, &table);
        let prompts = golden(model).prompts;
        let (rows, _media): (Vec<_>, Vec<_>) =
            prompts.iter().map(|prompt| placed(&table, model, prompt)).unzip();
        // Each by itself and in chunks, so that the images of one leave for those of the next.
        let mut all = Vec::new();
        for row in rows.iter().chain(&rows) {
            all.extend(runner.prefill(&[row], 9));
        }
        all
    };
    let kept = run(&config);
    config.cache.tower_cache_bytes = Some(1);
    assert!(run(&config) == kept);
}

/// Bytes that somebody may replace.
#[derive(Debug)]
struct Replaced(Arc<Mutex<Vec<u8>>>);

impl Encoded for Replaced {
    fn read(&self, _: &Limits) -> Result<Cow<'_, [u8]>, MediaError> {
        Ok(Cow::Owned(self.0.lock().unwrap().clone()))
    }
}

#[test]
fn an_image_that_changed_is_lost_and_its_step_goes_on() {
    let model = "idefics3";
    let prompt = golden(model).prompts.remove(0);
    let table = table(model, 0);
    let mut runner = Runner::load(config(model, DType::Float32), 1, &table);
    let file = |name: &str| std::fs::read(testdata("media").join(name)).unwrap();
    let bytes = Arc::new(Mutex::new(file(&prompt.images[0])));
    let medium =
        Medium::new(MediaKind::Image, Replaced(Arc::clone(&bytes)), Limits::default()).unwrap();
    let medium = Arc::new(medium);
    let placed = table.place(&[Arc::clone(&medium)]).unwrap();
    let row = Row::new(&prompt.prompt_token_ids, &placed, of_rows(model));
    *bytes.lock().unwrap() = file("thin.png");
    let number = placed[0].number();
    runner.prefill(&[&row], 1000);
    assert_eq!(placed[0].lost().unwrap().code(), "media_changed");
    *bytes.lock().unwrap() = file(&prompt.images[0]);
    let again = table.place(&[medium]).unwrap();
    assert!(again[0].lost().is_none() && again[0].number() > number);
}

#[test]
fn a_tower_is_counted_and_nothing_is_left_unused() {
    for model in MODELS {
        let engine = Engine::load(&config(model, DType::Float32)).unwrap();
        let summary = summary(model);
        let of_tower = summary.tower.as_ref().expect("a tower").parameters();
        let info = engine.info();
        assert_eq!(info.parameters.all, summary.spec.parameters().all + of_tower.all);
        assert_eq!(info.weight_bytes, 4 * info.parameters.all);
        let num_behind = match model {
            "llava" | "llava_next" | "vipllava" => 16 + 2,
            "llava_saved" | "llava_next_saved" => 2 * 16 + 2,
            "ministral3_multimodal" => 2 * 9,
            "aya_vision" | "granite_vision" | "llava_onevision" | "paddleocr_vl" => 2,
            "deepseek_vl2" | "deepseek_vl2_tiny" | "gemma4_e2b" => 1,
            // Of sounds, of a layer, of the norm behind it and of a head.
            "phi4_multimodal" | "phi4_multimodal_untied" | "phi4mm" => 51 + 16 + 2 + 11,
            _ => 0,
        };
        let note = format!(
            "{num_behind} tensors of the model are left unused: they are for sounds, or behind \
             the layer of the vision tower that images are taken from"
        );
        let num_further = match model {
            "exaone4_5" | "glm_ocr" => 1,
            _ if model.starts_with("qwen3_5") => 2,
            _ => 0,
        };
        let further = format!(
            "{num_further} tensors of the model are left unused: they predict further tokens"
        );
        let mut notes = match num_behind {
            0 if num_further > 0 => vec![further],
            0 => Vec::new(),
            _ => vec![note],
        };
        if model == "phi4mm" {
            // Adapters of four modules of two layers, of images and of sounds.
            let num = 2 * 4 * 4;
            notes.push(format!(
                "{num} tensors of the model are left unused: they are of K and V that layers take \
                 from others, or of a part that is not computed"
            ));
        }
        let of_tensors = info.notes.iter().filter(|note| note.contains("are left unused"));
        assert!(of_tensors.eq(&notes), "{:?}, not {notes:?}", info.notes);
        assert!(of_tower.all > 5_000);
    }
}
