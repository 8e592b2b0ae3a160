//! The same on a GPU or its shim: transformers' numbers, and bits that depend on nothing beside.

use super::steps::Runner;
use super::{MODELS, config, golden, is_transformers, placed, summary, table};
use crate::gpu;
use vllm_batch::engine::base::config::{CacheConfig, DType, EngineConfig, KvCacheDType};
use vllm_batch::engine::base::layers::Reach;
use vllm_batch::engine::checkpoint::spec::Bidirectional;
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::execute::model_executor::gpu_needs_of;
use vllm_batch::engine::core::load::model_summary::ModelSummary;
use vllm_batch::engine::device::{Device, open};

/// Models that a GPU computes in this type, with their towers.
fn on_gpus(dtype: DType) -> impl Iterator<Item = &'static str> {
    let step = 16 / dtype.size_bytes();
    MODELS.into_iter().filter(move |model| {
        let ModelSummary { spec, tower, .. } = summary(model);
        let tower = tower.expect("a tower");
        let refusal = gpu_needs_of(&spec).refusal(dtype, KvCacheDType::Auto);
        let are_alike = spec.attentions().all(|attention| !attention.is_causal);
        let is_past_windows = tower.bidirectional == Bidirectional::Prompt
            && spec.attentions().any(|attention| attention.reach != Reach::All);
        let has_squares = tower.attentions().any(|attention| attention.squares.is_some());
        let are_kernels_there = refusal.is_none() && are_alike && !is_past_windows && !has_squares;
        tower.heads().head_dim.is_multiple_of(step) && are_kernels_there
    })
}

fn device(model: &str, dtype: DType, seed: u64) -> Option<Device> {
    let config = EngineConfig { device: gpu::device(seed)?, ..config(model, dtype) };
    Some(open(&config, dtype, None).expect("a device for tests").0)
}

#[test]
fn logits_and_greedy_tokens_are_those_of_transformers() {
    for (seed, model) in on_gpus(DType::Float32).enumerate() {
        let Some(device) = device(model, DType::Float32, seed as u64) else { return };
        let table = table(model, usize::MAX);
        let mut runner = Runner::load_on(device, config(model, DType::Float32), &table);
        is_transformers(&mut runner, model, &table);
    }
}

#[test]
fn no_bit_depends_on_what_is_beside_a_row_or_on_chunks() {
    for (seed, model) in on_gpus(DType::BFloat16).enumerate() {
        let prompts = golden(model).prompts;
        let run = |chunk: usize, together: bool| {
            let device = device(model, DType::BFloat16, seed as u64)?;
            let table = table(model, 0);
            let mut runner = Runner::load_on(device, config(model, DType::BFloat16), &table);
            let (rows, _media): (Vec<_>, Vec<_>) =
                prompts.iter().map(|prompt| placed(&table, model, prompt)).unzip();
            Some(match together {
                true => runner.prefill(&Vec::from_iter(&rows), chunk),
                false => rows.iter().map(|row| runner.prefill(&[row], chunk).remove(0)).collect(),
            })
        };
        let Some(alone) = run(1000, false) else { return };
        for chunk in [1000, 7] {
            assert!(run(chunk, true).as_ref() == Some(&alone), "{model}, chunks of {chunk}");
        }
    }
}

#[test]
fn what_no_kernel_computes_of_images_leaves_the_text() {
    let usual = |model| config(model, DType::BFloat16);
    let narrow = CacheConfig { kv_cache_dtype: KvCacheDType::Fp8, ..usual("qwen3_vl").cache };
    for (model, config, why) in [
        ("idefics3", usual("idefics3"), "head_dim is 12, and the kernels take multiples of 8"),
        ("paligemma2", usual("paligemma2"), "see all of it past a window"),
        // Its heads of 12 are of no kernel in bfloat16.
        ("got_ocr2", config("got_ocr2", DType::Float32), "say of distances between patches"),
        (
            "qwen3_vl",
            EngineConfig { cache: narrow, ..usual("qwen3_vl") },
            "`settings.kv_cache_dtype`",
        ),
    ] {
        let Some(device) = gpu::device(3) else { return };
        let engine = Engine::load(&EngineConfig { device, ..config });
        let info = engine.unwrap().info().clone();
        assert_eq!(info.parameters.all, summary(model).spec.parameters().all);
        let of_tower = |note: &&String| note.contains("the vision tower is left out");
        let note = info.notes.iter().find(of_tower).expect("a note");
        assert!(note.contains(why), "{note}");
    }
}

#[test]
fn an_engine_has_the_tower_on_a_gpu() {
    let Some(device) = gpu::device(4) else { return };
    let engine = Engine::load(&EngineConfig { device, ..config("qwen3_vl", DType::BFloat16) });
    let (info, summary) = (engine.unwrap().info().clone(), summary("qwen3_vl"));
    let of_tower = summary.tower.expect("a tower").parameters();
    assert_eq!(info.parameters.all, summary.spec.parameters().all + of_tower.all);
    assert!(!info.notes.iter().any(|note| note.contains("tower")), "{:?}", info.notes);
}
