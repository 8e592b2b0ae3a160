//! Text models and their projectors in GGUF files that llama.cpp's own converter wrote
//! (`testdata/gguf/make_pairs.py`), beside the golden folders that they come from: what both files
//! answer is what the folder does, which transformers computed.

use std::path::{Path, PathBuf};

use super::images::{chat, path};
use vllm_batch::engine::api::request::{NumLogprobs, RequestOutput, RowKey, SamplingParams};
use vllm_batch::engine::base::EngineError;
use vllm_batch::engine::base::config::{CacheConfig, DType, EngineConfig, ModelConfig};
use vllm_batch::engine::base::hf_overrides::HfOverrides;
use vllm_batch::engine::checkpoint::model_files::ModelFiles;
use vllm_batch::engine::checkpoint::weights::gguf::Gguf;
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::load::model_summary::ModelSummary;

fn gguf(name: &str) -> PathBuf {
    path("testdata/gguf").join(format!("{name}.gguf"))
}

fn pair(name: &str) -> ModelConfig {
    ModelConfig {
        model_dir: gguf(name),
        mmproj: Some(gguf(&format!("mmproj-{name}"))),
        dtype: Some(DType::Float32),
        ..ModelConfig::default()
    }
}

fn folder(name: &str) -> ModelConfig {
    let model_dir = path("testdata/golden").join(name);
    ModelConfig { model_dir, dtype: Some(DType::Float32), ..ModelConfig::default() }
}

/// Answers of chats with one image, with two, with one twice, and with none.
fn answers(model: ModelConfig) -> Vec<RequestOutput> {
    let cache = CacheConfig { num_blocks: Some(256), ..CacheConfig::default() };
    let mut engine = Engine::load(&EngineConfig { model, cache, ..EngineConfig::default() })
        .unwrap_or_else(|error| panic!("{error}"));
    let processor = engine.input_processor();
    let params = SamplingParams {
        temperature: 0.0,
        max_tokens: Some(8),
        logprobs: Some(NumLogprobs::Top(2)),
        prompt_logprobs: Some(NumLogprobs::Top(1)),
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let rows = [
        &["<wide2.png>", "What is this?"][..],
        &["First ", "<rgb.png>", " then ", "<palette8.png>", "?"],
        &["<rgb.png>", "<rgb.png>", "Both?"],
        &["What is this?"],
    ];
    for (id, row) in (0..).zip(rows) {
        let request = processor.process(id, chat(row), params.clone(), RowKey(id)).unwrap();
        engine.add_request(request);
    }
    let mut outputs = Vec::new();
    while engine.has_unfinished_requests() {
        outputs.extend(engine.step().unwrap());
    }
    outputs.sort_by_key(|output| output.request_id);
    outputs
}

/// Largest difference between log-probabilities of the same tokens; None: tokens differ.
fn distance(ours: &[RequestOutput], others: &[RequestOutput]) -> Option<f32> {
    let mut most = 0f32;
    for (one, other) in ours.iter().zip(others) {
        assert_eq!(one.prompt_token_ids, other.prompt_token_ids);
        let (one, other) = (&one.outputs[0], &other.outputs[0]);
        if one.token_ids != other.token_ids {
            return None;
        }
        let both = one.logprobs.iter().flatten().zip(other.logprobs.iter().flatten());
        for (one, other) in both {
            most = most.max((one.token.logprob - other.token.logprob).abs());
        }
    }
    Some(most)
}

fn check(name: &str, golden: &str, overrides: &str, most: f32) {
    let folder =
        ModelConfig { hf_overrides: HfOverrides::parse(overrides).unwrap(), ..folder(golden) };
    let (found, expected) = (answers(pair(name)), answers(folder));
    let far = distance(&found, &expected);
    assert!(far.is_some_and(|far| far <= most), "{name}: {far:?}");
    // The images are seen.
    let blind = [&found[3..], &found[..3]].concat();
    assert!(
        blind.iter().zip(&found).any(|(a, b)| a.outputs[0].token_ids != b.outputs[0].token_ids)
    );
}

/// q, k and v in three tensors, and frames of patches in two, are one.
#[test]
fn qwen2_vl_answers_as_its_folder() {
    check("qwen2vl", "qwen2_vl", "{}", 0.0);
}

/// Layers of the tower that go further into the decoder; positions on axes by turns.
#[test]
fn qwen3_vl_answers_as_its_folder() {
    check("qwen3vl", "qwen3_vl", "{}", 0.0);
}

/// A norm that is stored with 1 added, a square of patches; in half precision.
#[test]
fn gemma_3_answers_as_its_folder() {
    // No key of a GGUF file has it.
    let scale = r#"{"text_config": {"query_pre_attn_scalar": 16}}"#;
    check("gemma3vision", "gemma3_published", scale, 1e-4);
}

/// Tiles, and patches that are brought together; in half precision.
#[test]
fn smolvlm_answers_as_its_folder() {
    check("smolvlm", "smolvlm", "{}", 1e-4);
}

/// Rotary pairs that were made neighbours.
#[test]
fn pixtral_answers_as_its_folder() {
    check("pixtral", "pixtral", "{}", 0.0);
}

/// Blocks of 8 bits beside a projector in half precision.
#[test]
fn a_quantized_text_model_sees() {
    let (found, expected) = (answers(pair("qwen3vl-q8")), answers(folder("qwen3_vl")));
    let of_first = |outputs: &[RequestOutput]| {
        let logprobs = outputs[0].outputs[0].logprobs.clone().unwrap();
        (outputs[0].prompt_token_ids.clone(), logprobs[0].token.logprob)
    };
    let ((ids, found), (expected_ids, expected)) = (of_first(&found), of_first(&expected));
    assert_eq!(ids, expected_ids);
    assert!((found - expected).abs() < 0.1 && found != expected, "{found} and {expected}");
}

fn refused(model: ModelConfig) -> String {
    match ModelSummary::read(&model) {
        Ok(_) => panic!("{} is not refused", model.model_dir.display()),
        Err(EngineError::Setting { text, .. }) => text,
        Err(error) => error.to_string(),
    }
}

#[test]
fn files_that_do_not_go_together_are_refused_by_name() {
    let with = |model: &Path, mmproj: &Path| ModelConfig {
        model_dir: model.to_owned(),
        mmproj: Some(mmproj.to_owned()),
        ..ModelConfig::default()
    };
    let (text, other) = (gguf("qwen3vl"), gguf("mmproj-qwen3vl"));
    let golden = path("testdata/golden/qwen3_vl");
    for (model, mmproj, wanted) in [
        (&golden, &other, "the model is a folder"),
        (&text, &text, "it is no projector: its architecture is `qwen3vl`"),
        (&other, &other, "it is a projector (mmproj), which goes with a model"),
        (&text, &gguf("mmproj-qwen2vl"), "it goes with models of architecture qwen2vl"),
        (&gguf("llama"), &gguf("mmproj-smolvlm"), "those of the model have 16"),
        (&gguf("llama"), &gguf("mmproj-pixtral"), "help: give the mmproj file that belongs"),
    ] {
        let error = refused(with(model, mmproj));
        assert!(error.contains(wanted), "{error}, not {wanted}");
    }
    let alone = ModelConfig { model_dir: other, ..ModelConfig::default() };
    assert!(refused(alone).contains("give it as `settings.mmproj`"));
}

#[test]
fn a_projector_is_counted_and_left_out_where_no_row_has_images() {
    let read = |model: ModelConfig| ModelSummary::read(&model).unwrap();
    let parameters = |model: ModelConfig| read(model).parameters().all;
    let text = ModelConfig { mmproj: None, ..pair("qwen3vl") };
    assert_eq!(parameters(pair("qwen3vl")), parameters(folder("qwen3_vl")));
    assert!(parameters(text) < parameters(pair("qwen3vl")));
    let types = read(pair("qwen3vl")).checkpoint_format().unwrap();
    assert!(types.contains("; projector: "), "{types}");
    let blind = ModelConfig { language_model_only: true, ..pair("qwen3vl") };
    assert!(read(blind.clone()).tower.is_none());
    let expected = ModelConfig { language_model_only: true, ..folder("qwen3_vl") };
    let text = |model| {
        let config = EngineConfig { model, ..EngineConfig::default() };
        Engine::load(&config).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!((text(blind), text(expected)), (Ok(()), Ok(())));
}

/// The file with another name in the place of one of its names.
fn renamed(bytes: &[u8], name: &str) -> Vec<u8> {
    let wanted = [&(name.len() as u64).to_le_bytes()[..], name.as_bytes()].concat();
    let at = bytes.windows(wanted.len()).position(|window| window == wanted).expect(name);
    let mut bytes = bytes.to_vec();
    let last = &mut bytes[at + wanted.len() - 1];
    *last = if *last == b'Z' { b'Y' } else { b'Z' };
    bytes
}

#[test]
fn every_key_and_every_tensor_of_a_projector_counts() {
    let folder = tempfile::tempdir().unwrap();
    let mmproj = folder.path().join("mmproj.gguf");
    for name in ["qwen2vl", "qwen3vl", "gemma3vision", "smolvlm", "pixtral"] {
        let bytes = std::fs::read(gguf(&format!("mmproj-{name}"))).unwrap();
        let Gguf { metadata, tensors } = Gguf::parse(&bytes).unwrap();
        let keys = metadata.iter().map(|(key, _)| key).filter(|key| key.starts_with("clip."));
        let names = tensors.iter().map(|tensor| tensor.name.as_str());
        for other in keys.chain(names) {
            std::fs::write(&mmproj, renamed(&bytes, other)).unwrap();
            let model = ModelConfig { mmproj: Some(mmproj.clone()), ..pair(name) };
            let cache = CacheConfig { num_blocks: Some(4), ..CacheConfig::default() };
            let config = EngineConfig { model, cache, ..EngineConfig::default() };
            assert!(Engine::load(&config).is_err(), "{name}: {other} has another name");
        }
    }
}

/// Damaged headers are refused, or say something else; none is a panic.
#[test]
fn damaged_headers_of_projectors_are_no_panics() {
    let folder = tempfile::tempdir().unwrap();
    let mmproj = folder.path().join("mmproj.gguf");
    let mut state = 7u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    };
    for name in ["qwen2vl", "qwen3vl", "gemma3vision", "smolvlm", "pixtral"] {
        let bytes = std::fs::read(gguf(&format!("mmproj-{name}"))).unwrap();
        let header = Gguf::parse(&bytes).unwrap().tensors[0].range.start;
        for _ in 0..300 {
            let mut damaged = bytes.clone();
            for _ in 0..=random(3) {
                damaged[random(header)] = random(256) as u8;
            }
            std::fs::write(&mmproj, damaged).unwrap();
            let model = ModelConfig { mmproj: Some(mmproj.clone()), ..pair(name) };
            if ModelSummary::read(&model).is_ok() {
                let files = ModelFiles::of_model(&model).unwrap();
                let _ = files.checkpoint(None);
            }
        }
    }
}
