//! Scores of texts: tiny random cross-encoders against Hugging Face transformers
//! (`testdata/golden_scores`), vectors compared against those of `testdata/golden_embeddings`, and
//! each text computed once.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use vllm_batch::engine::api::compared::{Compared, Scoring, Similarity};
use vllm_batch::engine::api::pooling::{Pooled, PoolingParams};
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::base::config::EngineConfig;
use vllm_batch::engine::base::pooling::PoolingType;
use vllm_batch::engine::core::serve::pooling::PoolingEngine;

use super::pooled::{self, Limits, WIDE, answers, requests, testdata};

/// Of a score, or of a logit of about 2.
const TOLERANCE: f64 = 5e-6;

#[derive(Deserialize)]
struct Pairs {
    pairs: Vec<Pair>,
}

#[derive(Deserialize)]
struct Pair {
    texts: [String; 2],
    token_ids: Vec<u32>,
    token_types: Vec<u32>,
    logit: f64,
    score: f64,
}

#[derive(Deserialize)]
struct Vectors {
    texts: Vec<Text>,
}

#[derive(Deserialize)]
struct Text {
    text: String,
    token_ids: Vec<u32>,
    mean: Vec<f64>,
}

fn golden<T: DeserializeOwned>(folder: &str) -> T {
    pooled::golden(&testdata(folder))
}

fn config(folder: &str, limits: Limits) -> EngineConfig {
    pooled::config(testdata(folder), limits)
}

fn compared(queries: &[&str], documents: &[&str]) -> Prompt {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let compared = Compared::new(owned(queries), owned(documents), true).unwrap();
    Prompt::Compared(Box::new(compared))
}

/// The scores of requests that come together, and tokens that were computed for them.
fn scores(
    engine: &mut PoolingEngine,
    prompts: Vec<Prompt>,
    params: &PoolingParams,
) -> (Vec<Vec<f32>>, u64) {
    let before = engine.stats().num_computed_tokens;
    let requests = requests(engine, prompts, params);
    let outputs = answers(engine, requests);
    let one = |pooled: &Pooled| match pooled {
        Pooled::Vector(score) if score.len() == 1 => score[0],
        other => panic!("{other:?}"),
    };
    let of_outputs = outputs.iter().map(|output| output.texts.iter().map(one).collect()).collect();
    (of_outputs, engine.stats().num_computed_tokens - before)
}

#[test]
fn cross_encoders_agree_with_transformers() {
    for family in ["bert", "xlm_roberta"] {
        let folder = format!("golden_scores/{family}");
        let Pairs { pairs } = golden(&folder);
        let mut engine = PoolingEngine::load(&config(&folder, WIDE)).unwrap();
        let params = PoolingParams {
            scoring: Scoring::Pair,
            truncate_prompt_tokens: Some(-1),
            ..PoolingParams::default()
        };
        let prompts = || {
            let prompt = |pair: &Pair| compared(&[&pair.texts[0]], &[&pair.texts[1]]);
            pairs.iter().map(prompt).collect::<Vec<_>>()
        };
        for (pair, prompt) in pairs.iter().zip(prompts()) {
            let processor = engine.input_processor();
            let request = processor.process_pooling(0, prompt, params.clone()).unwrap();
            assert_eq!(request.texts[0].ids, pair.token_ids, "{family}, {:?}", pair.texts);
            assert_eq!(request.texts[0].types, pair.token_types, "{family}, {:?}", pair.texts);
        }
        let (got, _) = scores(&mut engine, prompts(), &params);
        let raw = PoolingParams { use_activation: Some(false), ..params };
        let (logits, _) = scores(&mut engine, prompts(), &raw);
        for ((pair, score), logit) in pairs.iter().zip(got).zip(logits) {
            let off = (f64::from(score[0]) - pair.score).abs();
            assert!(off < TOLERANCE, "{family}, {:?}: score off by {off}", pair.texts);
            let off = (f64::from(logit[0]) - pair.logit).abs();
            assert!(off < TOLERANCE, "{family}, {:?}: logit off by {off}", pair.texts);
        }
    }
}

#[test]
fn a_pair_that_is_too_long_is_cut_or_refused() {
    let folder = "golden_scores/bert";
    let Pairs { pairs } = golden(folder);
    let engine = PoolingEngine::load(&config(folder, WIDE)).unwrap();
    let processor = engine.input_processor();
    let ids = |params: PoolingParams| {
        let [query, document] = pairs[4].texts.each_ref().map(String::as_str);
        let params = PoolingParams { scoring: Scoring::Pair, ..params };
        let request = processor.process_pooling(0, compared(&[query], &[document]), params);
        request.map(|request| request.texts[0].ids.clone()).map_err(|error| error.to_string())
    };
    let error = ids(PoolingParams::default()).unwrap_err();
    assert!(error.contains("the limit is 64"), "{error}");
    let limits = |query, document| PoolingParams {
        max_tokens_per_query: Some(query),
        max_tokens_per_doc: Some(document),
        ..PoolingParams::default()
    };
    // [CLS] query [SEP] document [SEP]
    assert_eq!(ids(limits(2, 3)).unwrap().len(), 8);
    let both = PoolingParams { truncate_prompt_tokens: Some(7), ..limits(2, 3) };
    assert_eq!(ids(both).unwrap().len(), 7);
}

#[test]
fn vectors_are_compared_by_their_angle() {
    let folder = "golden_embeddings/bert";
    let Vectors { texts } = golden(folder);
    let mut config = config(folder, WIDE);
    config.model.pooling_type = Some(PoolingType::Mean);
    let mut engine = PoolingEngine::load(&config).unwrap();
    let text = |index: usize| texts[index].text.as_str();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let cosine = |a: usize, b: usize| {
        let (a, b) = (&texts[a].mean, &texts[b].mean);
        dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
    };
    let prompts = vec![
        compared(&[text(2)], &[text(3), text(4), text(2)]),
        compared(&[text(1), text(5)], &[text(4), text(1)]),
    ];
    let (got, _) = scores(&mut engine, prompts.clone(), &PoolingParams::default());
    let expected = [vec![cosine(2, 3), cosine(2, 4), 1.0], vec![cosine(1, 4), cosine(5, 1)]];
    for (got, expected) in got.iter().flatten().zip(expected.iter().flatten()) {
        assert!((f64::from(*got) - expected).abs() < TOLERANCE, "{got} {expected}");
    }
    let dots = PoolingParams {
        scoring: Scoring::Vectors(Similarity::Dot),
        use_activation: Some(false),
        ..PoolingParams::default()
    };
    let (got, _) = scores(&mut engine, prompts, &dots);
    let expected = dot(&texts[2].mean, &texts[3].mean);
    assert!((f64::from(got[0][0]) - expected).abs() < 1e-5 * expected.abs().max(1.0));
}

#[test]
fn each_text_is_computed_once_and_no_score_depends_on_it() {
    let folder = "golden_embeddings/bert";
    let Vectors { texts } = golden(folder);
    let text = |index: usize| texts[index].text.as_str();
    let prompts = vec![
        compared(&[text(2)], &[text(3), text(4), text(3)]),
        compared(&[text(3)], &[text(2), text(5)]),
        compared(&[text(2)], &[text(4)]),
    ];
    let distinct: usize = [2, 3, 4, 5].iter().map(|index| texts[*index].token_ids.len()).sum();
    let params = PoolingParams::default();
    let mut engine = PoolingEngine::load(&config(folder, WIDE)).unwrap();
    let (together, num_computed) = scores(&mut engine, prompts.clone(), &params);
    assert_eq!(num_computed, distinct as u64);
    // Again: nothing is computed, and the answer is the same.
    let (again, num_computed) = scores(&mut engine, prompts.clone(), &params);
    assert_eq!((again, num_computed), (together.clone(), 0));
    for limits in [(1, 4096, 1), (2, 1, 3)] {
        let mut engine = PoolingEngine::load(&config(folder, limits)).unwrap();
        let (others, _) = scores(&mut engine, prompts.clone(), &params);
        assert_eq!(others, together, "{limits:?}");
        let alone = prompts.iter().map(|prompt| {
            let mut engine = PoolingEngine::load(&config(folder, limits)).unwrap();
            scores(&mut engine, vec![prompt.clone()], &params).0.remove(0)
        });
        assert_eq!(alone.collect::<Vec<_>>(), together, "{limits:?}");
    }
}
