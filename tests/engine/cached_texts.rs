//! Models that read texts through a KV cache: a text alone, among others, in chunks and behind what
//! others have computed; and what is computed of texts that begin alike.

use vllm_batch::engine::api::compared::Compared;
use vllm_batch::engine::api::pooling::{Pooled, PoolingOutput, PoolingParams};
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::base::config::{CacheConfig, DType, EngineConfig, KvCacheDType};
use vllm_batch::engine::base::pooling::TokenClasses;
use vllm_batch::engine::base::{EngineError, Setting};
use vllm_batch::engine::core::serve::pooling::{PoolingEngine, PoolingSummary};
use vllm_batch::engine::core::stats::EngineStats;

use super::pooled::{self, Limits, WIDE, answers, requests, testdata};

/// A decoder's vectors, a reward model, words as classes with sliding windows and soft caps, and
/// what computes through a cache alone: blocks with a state, latents, shared K and V.
const MODELS: [(&str, Option<&str>); 6] = [
    ("golden_embeddings/qwen3", None),
    ("golden_classifiers/qwen3", None),
    ("golden_classifiers/gemma2_words", Some("no nice")),
    ("golden/lfm2", None),
    ("golden/minicpm3", None),
    ("golden/gemma4", None),
];

fn config((folder, words): (&str, Option<&str>), limits: Limits) -> EngineConfig {
    let mut config = pooled::config(testdata(folder), limits);
    config.model.tokenizer_dir = Some(testdata("golden_embeddings/bert"));
    let tokens = words.map(|words| words.split(' ').map(str::to_owned).collect::<Vec<_>>());
    config.model.token_classes = tokens.map(|tokens| TokenClasses::new(&tokens, false).unwrap());
    config
}

/// A cache of blocks of 16 tokens.
fn cache(num_blocks: usize, enable_prefix_caching: bool) -> CacheConfig {
    let num_blocks = Some(num_blocks);
    CacheConfig {
        block_size: Some(16),
        num_blocks,
        enable_prefix_caching,
        ..CacheConfig::default()
    }
}

/// So many tokens, that begin as those of every text.
fn shared(num_tokens: u32) -> Vec<u32> {
    (0..num_tokens).map(|index| index * 37 % 90 + 6).collect()
}

/// Behind shared tokens, some that no other text has there.
fn text(num_shared: u32, own: u32, num_own: u32) -> Vec<u32> {
    let own = (0..num_own).map(|index| (index * 29 + own) % 90 + 6);
    shared(num_shared).into_iter().chain(own).collect()
}

/// What texts become, one request for each, and what it took.
fn run(config: &EngineConfig, texts: &[Vec<u32>]) -> (Vec<PoolingOutput>, EngineStats) {
    let mut engine = PoolingEngine::load(config).unwrap_or_else(|error| panic!("{error}"));
    let prompts = texts.iter().map(|ids| Prompt::TokenIds(ids.clone()));
    let requests = requests(&engine, prompts, &PoolingParams::default());
    let outputs = answers(&mut engine, requests);
    (outputs, engine.stats())
}

fn vectors(outputs: Vec<PoolingOutput>) -> Vec<Vec<Pooled>> {
    outputs.into_iter().map(|output| output.texts).collect()
}

#[test]
fn no_byte_depends_on_the_cache_the_steps_or_other_texts() {
    let mut texts: Vec<_> =
        (0..14).map(|index| text(20 * (index % 4), 7 * index, 1 + index * 5 % 31)).collect();
    // One text twice, one that another begins with, and one that is all shared.
    texts.extend([texts[3].clone(), texts[3][..33].to_vec(), shared(64)]);
    let in_float32 = MODELS.map(|model| (model, DType::Float32));
    for (model, dtype) in in_float32.into_iter().chain([(MODELS[0], DType::BFloat16)]) {
        let of = |limits, cache, texts: &[Vec<u32>]| {
            let mut config = config(model, limits);
            config.model.dtype = Some(dtype);
            config.cache = cache;
            vectors(run(&config, texts).0)
        };
        let expected = of((1, 4096, 1), cache(64, false), &texts);
        assert_eq!(expected.len(), texts.len());
        for (limits, cache) in [
            (WIDE, cache(200, true)),
            // The longest text fills the cache, and others wait for it.
            ((3, 7, 3), cache(6, true)),
            ((2, 1, 2), cache(9, false)),
            ((256, 50, 1), CacheConfig { num_blocks: Some(40), ..CacheConfig::default() }),
        ] {
            let got = of(limits, cache.clone(), &texts);
            assert_eq!(got, expected, "{model:?}, {dtype:?}, {limits:?}, {cache:?}");
        }
        let backwards: Vec<_> = texts.iter().rev().cloned().collect();
        let mut got = of(WIDE, cache(200, true), &backwards);
        got.reverse();
        assert_eq!(got, expected, "{model:?}, {dtype:?}: in another order");
    }
}

#[test]
fn what_texts_begin_with_is_computed_once() {
    // A template with a query, 4 blocks, and 20 documents of 8 tokens behind them.
    let texts: Vec<_> = (0..20).map(|own| text(64, own, 8)).collect();
    for model in MODELS {
        let of = |limits, is_cached| {
            let config = EngineConfig { cache: cache(200, is_cached), ..config(model, limits) };
            let stats = run(&config, &texts).1;
            (stats.num_prompt_tokens, stats.num_computed_tokens, stats.num_cached_tokens)
        };
        // In one step, and one after the other.
        for limits in [WIDE, (1, 4096, 1)] {
            assert_eq!(of(limits, true), (20 * 72, 64 + 20 * 8, 19 * 64), "{model:?}");
            assert_eq!(of(limits, false), (20 * 72, 20 * 72, 0), "{model:?}");
        }
    }
}

#[test]
fn texts_are_read_in_the_order_in_which_they_came() {
    // Two prefixes by turns, in a cache that holds one text with its prefix.
    let texts: Vec<_> = (0..6).map(|index| text(48 * (index % 2), index, 40)).collect();
    let config = EngineConfig { cache: cache(6, true), ..config(MODELS[0], (1, 4096, 1)) };
    let mut engine = PoolingEngine::load(&config).unwrap();
    let prompts = texts.into_iter().map(Prompt::TokenIds);
    for request in requests(&engine, prompts, &PoolingParams::default()) {
        engine.add_request(request);
    }
    let mut order = Vec::new();
    while engine.has_unfinished_requests() {
        order.extend(engine.step().unwrap().iter().map(|output| output.request_id));
    }
    assert_eq!(order, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_text_that_the_cache_cannot_hold_fails_alone() {
    let config = EngineConfig { cache: cache(3, true), ..config(MODELS[0], WIDE) };
    let (outputs, _) = run(&config, &[text(0, 1, 48), text(0, 2, 49), text(0, 3, 5)]);
    let codes = outputs.iter().map(|output| output.error().map(|error| error.code));
    assert_eq!(codes.collect::<Vec<_>>(), [None, Some("kv_cache_too_small"), None]);
    let message = outputs[1].error().unwrap().message;
    assert!(message.contains("49 tokens") && message.contains("holds 48"), "{message}");
    // Whoever asks for it fails, now and later.
    let mut engine = PoolingEngine::load(&config).unwrap();
    let (short, long) = ("a cat".to_owned(), "late rows ".repeat(30));
    let compared = |texts: [&String; 2]| {
        let [a, b] = texts.map(|text| vec![text.clone()]);
        Prompt::Compared(Box::new(Compared::new(a, b, true).unwrap()))
    };
    for _ in 0..2 {
        let pairs = [[&short, &long], [&long, &short], [&short, &short]].map(compared);
        let requests = requests(&engine, pairs, &PoolingParams::default());
        let outputs = answers(&mut engine, requests);
        let failed = outputs.iter().map(|output| output.error().is_some());
        assert_eq!(failed.collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(outputs[2].texts.len(), 1);
    }
}

#[test]
fn a_model_without_a_cache_refuses_its_settings_by_name() {
    let usual = CacheConfig::default;
    let cases = [
        (Setting::BlockSize, CacheConfig { block_size: Some(16), ..usual() }),
        (Setting::EnablePrefixCaching, CacheConfig { enable_prefix_caching: false, ..usual() }),
        (Setting::KvCacheDtype, CacheConfig { kv_cache_dtype: KvCacheDType::Fp8, ..usual() }),
        (Setting::NumGpuBlocksOverride, CacheConfig { num_blocks: Some(9), ..usual() }),
        (Setting::KvCacheMemoryBytes, CacheConfig { kv_cache_memory_bytes: Some(1), ..usual() }),
        (Setting::GpuMemoryUtilization, CacheConfig { memory_share: Some(0.5), ..usual() }),
    ];
    for (named, cache) in cases {
        let config = EngineConfig { cache, ..config(("golden_embeddings/bert", None), WIDE) };
        match PoolingEngine::load(&config).map(|_| ()) {
            Err(EngineError::Setting { setting, .. }) => assert_eq!(setting, named),
            other => panic!("{named}: {other:?}"),
        }
    }
}

#[test]
fn without_a_size_the_cache_holds_the_longest_text_and_four_steps() {
    let mut config = config(MODELS[0], (8, 100, 1));
    config.cache.block_size = Some(16);
    let engine = PoolingEngine::load(&config).unwrap();
    assert_eq!(engine.info().max_model_len, 160);
    // And the block of each text that is not full.
    assert_eq!(engine.info().num_cache_tokens, 160 + 4 * 100 + 8 * 16);
}

#[test]
fn only_what_reads_the_last_token_of_a_causal_text_has_a_cache() {
    let has = |folder: &str| {
        let config = config((folder, None), WIDE);
        PoolingSummary::read(&config.model).unwrap().cached().is_some()
    };
    for (folder, expected) in [
        ("golden_embeddings/qwen3", true),
        ("golden_classifiers/llama", true),
        ("golden_classifiers/internlm2_reward", true),
        // Its tokens see those after them.
        ("golden_embeddings/qwen2_bidirectional", false),
        ("golden_embeddings/bert", false),
        // Each of its tokens has classes.
        ("golden_classifiers/qwen2_tokens", false),
        ("golden_classifiers/qwen2_steps", false),
    ] {
        assert_eq!(has(folder), expected, "{folder}");
    }
}
