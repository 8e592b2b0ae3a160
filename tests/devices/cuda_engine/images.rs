//! Rows with images through the whole engine on a GPU: the same bits however they are run.

use std::sync::Arc;

use serde_json::{Value, json};
use vllm_batch::engine::api::prompt::{Prompt, WithMedia};
use vllm_batch::engine::api::request::{NumLogprobs, SamplingParams};
use vllm_batch::engine::base::config::{DType, EngineConfig};
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::media::{MediaKind, Medium};
use vllm_batch::engine::text::Chat;

use super::invariance::{bits, ngrams};
use super::{config, golden_dir, run};
use crate::gpu;

fn chat(files: &[&str], text: &str) -> Prompt {
    let images = files.iter().map(|_| json!({"type": "image"}));
    let content: Value = images.chain([json!({"type": "text", "text": text})]).collect();
    let chat = Chat::from(json!([{"role": "user", "content": content}]));
    let medium = |file: &&str| {
        let bytes = std::fs::read(golden_dir().join("../media").join(file)).unwrap();
        Arc::new(Medium::new(MediaKind::Image, bytes, Default::default()).unwrap())
    };
    Prompt::WithMedia(Box::new(WithMedia { chat, media: files.iter().map(medium).collect() }))
}

/// Images that are equal, of different sizes, two of a row, and none.
pub(super) fn rows() -> Vec<(Prompt, SamplingParams)> {
    let params = |max_tokens| SamplingParams {
        temperature: 0.0,
        max_tokens: Some(max_tokens),
        logprobs: Some(NumLogprobs::Top(2)),
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let sampled = SamplingParams { temperature: 1.0, n: 2, seed: Some(7), ..params(5) };
    let scored = SamplingParams { prompt_logprobs: Some(NumLogprobs::Top(1)), ..params(3) };
    vec![
        (chat(&["wide2.png"], "What is this?"), params(10)),
        (chat(&[], "What is this?"), params(6)),
        (chat(&["thin.png", "palette8.png"], "?"), params(7)),
        (chat(&["wide2.png"], "What is this?"), sampled),
        (chat(&["wide2.png"], "What is that?"), scored),
    ]
}

type Change = (&'static str, fn(&mut EngineConfig));

const CHANGES: &[Change] = &[
    ("one sequence", |c| c.scheduler.max_num_seqs = Some(1)),
    ("7 tokens a step", |c| c.scheduler.max_num_batched_tokens = Some(7)),
    ("one token a step", |c| {
        c.scheduler.max_num_batched_tokens = Some(1);
        c.scheduler.max_num_seqs = Some(1);
    }),
    ("no CUDA graphs", |c| c.device.enforce_eager = true),
    ("few blocks", |c| c.cache.num_blocks = Some(14)),
    ("no prefix cache", |c| c.cache.enable_prefix_caching = false),
    ("room for one image", |c| {
        c.cache.tower_cache_bytes = Some(1);
        c.cache.enable_prefix_caching = false;
        c.scheduler.max_num_batched_tokens = Some(33);
    }),
    ("guessed tokens", |c| c.speculation = Some(ngrams())),
];

#[test]
fn a_row_with_images_has_the_same_bits_however_it_is_run() {
    for (model, seed) in
        [("qwen3_vl", 60), ("smolvlm", 80), ("qwen2_5_vl", 100), ("gemma3_published", 120)]
    {
        let outcome = |seed: u64, change: fn(&mut EngineConfig)| {
            let mut config = config(model, DType::BFloat16, &gpu::device(seed)?);
            change(&mut config);
            let mut engine = Engine::load(&config).expect("a model");
            let outputs = run(&mut engine, rows());
            assert!(engine.stats().images.num_encoded > 0, "{model}");
            Some(outputs.iter().map(bits).collect::<Vec<_>>())
        };
        let Some(expected) = outcome(seed, |_| ()) else { return };
        for (next, (what, change)) in (seed + 1..).zip(CHANGES) {
            let got = outcome(next, *change).expect("there was a device before");
            for (row, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert_eq!(got, expected, "{model}, {what}: row {row}");
            }
        }
    }
}
