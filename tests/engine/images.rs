//! Models that see images, from chats to answers: tokens and answers are those of transformers
//! (testdata/generate_images.py), and no byte depends on what runs beside a row.

use std::borrow::Cow;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use vllm_batch::engine::api::prompt::{Prompt, WithMedia};
use vllm_batch::engine::api::request::{NumLogprobs, RequestOutput, RowKey, SamplingParams};
use vllm_batch::engine::base::config::{DType, EngineConfig, SpeculationMethod};
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::load::model_summary::ModelSummary;
use vllm_batch::engine::core::request::axes_of;
use vllm_batch::engine::core::serve::input_processor::ProcessError;
use vllm_batch::engine::media::{Encoded, Limits, MediaError, MediaKind, Medium};
use vllm_batch::engine::text::Chat;

use super::speculation::{self, BATCHES, Method};

const MODELS: [&str; 50] = [
    "testdata/golden/smolvlm",
    "testdata/golden/idefics3",
    "testdata/golden/qwen2_vl",
    "testdata/golden/qwen2_5_vl",
    "testdata/golden/gemma3_multimodal",
    "testdata/golden/gemma3_published",
    "testdata/golden/qwen3_vl",
    "testdata/golden/qwen3_5_multimodal",
    "testdata/golden/internvl",
    "testdata/golden/internvl_published",
    "testdata/golden/deepseek_vl",
    "testdata/golden/deepseek_vl2",
    "testdata/golden/deepseek_vl2_tiny",
    "testdata/golden/dots_ocr",
    "testdata/golden/exaone4_5",
    "testdata/golden/gemma4_e2b",
    "testdata/golden/gemma4_moe",
    "testdata/golden/glm46v",
    "testdata/golden/glm4v",
    "testdata/golden/glm4v_moe",
    "testdata/golden/glm_ocr",
    "testdata/golden/got_ocr2",
    "testdata/golden/ministral3_multimodal",
    "testdata/golden/mistral3",
    "testdata/golden/qwen3_vl_moe",
    "testdata/golden/lfm2_vl",
    "testdata/golden/kimi_k25",
    "testdata/golden/kimi_vl",
    "testdata/golden/lighton_ocr",
    "testdata/golden/paddleocr_vl",
    "testdata/golden/vipllava",
    "testdata/golden/hyperclovax_vision",
    "testdata/golden/qianfan_ocr",
    "testdata/golden/muse_glimmer",
    "testdata/golden/molmo2",
    "testdata/golden/molmo2_o",
    "testdata/golden/ovis2",
    "testdata/golden/paligemma",
    "testdata/golden/paligemma2",
    "testdata/golden/phi4_multimodal",
    "testdata/golden/phi4_multimodal_untied",
    "testdata/golden/phi4mm",
    "testdata/golden/pixtral",
    "testdata/golden/internvl_chat",
    "testdata/golden/granite_vision",
    "testdata/golden/llava_next",
    "testdata/golden/llava_next_saved",
    "testdata/golden/llava_onevision",
    "testdata/golden/aya_vision",
    "testdata/golden/cohere2_vision",
];

pub fn path(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn medium(file: &str) -> Arc<Medium> {
    let bytes = std::fs::read(path("testdata/media").join(file)).unwrap();
    Arc::new(Medium::new(MediaKind::Image, bytes, Default::default()).unwrap())
}

/// A user's turn: texts, and files of images as `<name>`.
pub fn chat(parts: &[&str]) -> Prompt {
    let file = |part: &&str| part.strip_prefix('<')?.strip_suffix('>').map(str::to_owned);
    let files: Vec<_> = parts.iter().filter_map(file).collect();
    let content = parts.iter().map(|part| match file(part) {
        Some(_) => json!({"type": "image"}),
        None => json!({"type": "text", "text": part}),
    });
    let messages = json!([{"role": "user", "content": content.collect::<Value>()}]);
    match files.is_empty() {
        true => Prompt::Messages(messages.into()),
        false => Prompt::WithMedia(Box::new(WithMedia {
            chat: Chat::from(messages),
            media: files.iter().map(|file| medium(file)).collect(),
        })),
    }
}

fn params(max_tokens: u32) -> SamplingParams {
    SamplingParams {
        temperature: 0.0,
        max_tokens: Some(max_tokens),
        logprobs: Some(NumLogprobs::Top(2)),
        ignore_eos: true,
        ..SamplingParams::default()
    }
}

/// Rows of images that are equal, of different sizes, in the midst of text, and of none.
fn rows(config: &EngineConfig) -> Vec<(Prompt, SamplingParams)> {
    let wide = ["<wide2.png>", "What is this?"];
    let penalized = SamplingParams { repetition_penalty: 1.3, ..params(9) };
    let sampled = SamplingParams { temperature: 1.0, n: 3, ..params(7) };
    // Prompts of PaliGemma and Molmo 2 that see what is behind them have no likelihoods.
    let sees_one = config.model.model_dir.ends_with("molmo2");
    let has_scores = !config.model.model_dir.ends_with("paligemma2") && !sees_one;
    let prompt_logprobs = has_scores.then_some(NumLogprobs::Top(1));
    let scored = SamplingParams { prompt_logprobs, ..params(4) };
    // Nor does Phi-4-multimodal read as thin an image.
    let is_wide = config.model.model_dir.to_string_lossy().contains("phi4m");
    let thin = if is_wide { "<45_420_19x39_q75.jpg>" } else { "<thin.png>" };
    let num_images = |(prompt, _): &(Prompt, SamplingParams)| {
        prompt.media().iter().map(|media| media.len()).sum::<usize>()
    };
    let rows = vec![
        (chat(&wide), params(12)),
        (chat(&["What is this?"]), params(5)),
        (chat(&["First ", thin, " then, much later, ", "<palette8.png>", "?"]), params(9)),
        (chat(&["<rgb.png>", "<rgb.png>", "Both?"]), penalized),
        (chat(&wide), sampled),
        (chat(&["<wide2.png>", "What is that?"]), scored.clone()),
        (chat(&["<exif6.jpg>", "<wide2.png>"]), scored),
        (chat(&["<rgba.png>", "What is this? What is this? What is this?"]), params(20)),
    ];
    rows.into_iter().filter(|row| !sees_one || num_images(row) < 2).collect()
}

fn run(config: &EngineConfig) -> Vec<String> {
    run_rows(Engine::load(config).unwrap(), rows(config))
}

fn run_rows(engine: Engine, rows: Vec<(Prompt, SamplingParams)>) -> Vec<String> {
    answers_of(engine, &rows).iter().map(|answer| format!("{answer:?}")).collect()
}

/// Answers in the order of rows, without how much was in the cache.
pub fn answers_of(mut engine: Engine, rows: &[(Prompt, SamplingParams)]) -> Vec<RequestOutput> {
    let processor = engine.input_processor();
    for (id, (prompt, params)) in (0..).zip(rows) {
        let request = processor.process(id, prompt.clone(), params.clone(), RowKey(id)).unwrap();
        engine.add_request(request);
    }
    let mut answers: Vec<Option<RequestOutput>> = vec![None; rows.len()];
    while engine.has_unfinished_requests() {
        for output in engine.step().unwrap() {
            let id = output.request_id as usize;
            answers[id] = Some(RequestOutput { num_cached_tokens: 0, ..output });
        }
    }
    answers.into_iter().map(Option::unwrap).collect()
}

#[test]
fn chats_with_images_are_tokenized_and_answered_as_by_transformers() {
    for model in MODELS {
        let golden = std::fs::read_to_string(path(model).join("images.json")).unwrap();
        let golden: Value = serde_json::from_str(&golden).unwrap();
        let mut config = speculation::config(model, (4, 400), None);
        // As transformers computed it.
        config.model.dtype = Some(DType::Float32);
        let mut engine = Engine::load(&config).unwrap();
        let processor = engine.input_processor();
        for (index, parts) in [(0, &["<wide2.png>", "What is this?"][..]), (3, &["What is this?"])]
        {
            let golden = &golden["prompts"][index];
            let request = processor.process(0, chat(parts), params(4), RowKey(0)).unwrap();
            assert_eq!(json!(request.prompt_token_ids), golden["prompt_token_ids"], "{model}");
            if let Some(axes) = golden["axes"].as_array() {
                let of_token = |position| json!(axes_of(&request.media, position));
                assert!((0..axes.len()).map(of_token).eq(axes.iter().cloned()), "{model}");
            }
            engine.add_request(request);
            let output = loop {
                if let Some(output) = engine.step().unwrap().pop() {
                    break output;
                }
            };
            assert_eq!(json!(output.prompt_token_ids), golden["prompt_token_ids"]);
            assert_eq!(json!(output.outputs[0].token_ids), golden["output_token_ids"], "{model}");
        }
    }
}

#[test]
fn no_byte_of_a_row_with_images_depends_on_what_runs_beside_it() {
    for model in [
        "smolvlm",
        "qwen2_vl",
        "qwen3_vl",
        "qwen3_5_multimodal",
        "internvl",
        "mistral3",
        "llava_next",
        "llava_onevision",
        "granite_vision",
        "glm4v",
        "paligemma2",
        "lfm2_vl",
        "lighton_ocr",
        "aya_vision",
        "ovis2",
    ] {
        no_byte_of_a_row_depends_on_what_runs_beside_it(&format!("testdata/golden/{model}"));
    }
}

/// Steps of 7 tokens are too small for an image of 9, and 33 are not enough for all that begin.
#[test]
fn no_byte_of_a_row_whose_images_are_not_cut_depends_on_what_runs_beside_it() {
    no_byte_of_a_row_depends_on_what_runs_beside_it(MODELS[5]);
    no_byte_of_a_row_depends_on_what_runs_beside_it("testdata/golden/gemma4_moe");
    no_byte_of_a_row_depends_on_what_runs_beside_it("testdata/golden/molmo2");
}

fn no_byte_of_a_row_depends_on_what_runs_beside_it(model: &str) {
    let expected = run(&speculation::config(model, BATCHES[0], None));
    let ngram = Method::Of(SpeculationMethod::Ngram { min: 1, max: 3 });
    for batch in BATCHES {
        // States cannot go back to before a draft.
        let drafts =
            (!model.contains("qwen3_5") && !model.contains("lfm2")).then_some(Some(&ngram));
        for method in [None].into_iter().chain(drafts) {
            for num_tokens in [None, Some(7), Some(33)] {
                for caches in [true, false] {
                    let mut config = speculation::config(model, batch, method);
                    config.scheduler.max_num_batched_tokens = num_tokens.or(Some(256));
                    config.cache.enable_prefix_caching = caches;
                    // No room for more than one image.
                    config.cache.tower_cache_bytes = if caches { None } else { Some(1) };
                    let method = method.is_some();
                    let what = format!("{model} {batch:?} {method} {num_tokens:?} {caches}");
                    let got = run(&config);
                    for (row, (got, expected)) in got.iter().zip(&expected).enumerate() {
                        assert_eq!(got, expected, "row {row}, {what}");
                    }
                }
            }
        }
    }
}

/// The first stage has the tower, and the layers that rows of images are added behind.
#[test]
fn rows_with_images_have_the_same_bytes_in_stages() {
    let mut num_parted = 0;
    for model in MODELS {
        let mut config = speculation::config(model, BATCHES[1], None);
        config.scheduler.max_num_batched_tokens = Some(256);
        config.parallel.num_threads = Some(2);
        if ModelSummary::read(&config.model).unwrap().stages(2).is_err() {
            continue;
        }
        let one = Engine::load(&config).unwrap();
        let processor = one.input_processor();
        let taken = |(prompt, params): &(Prompt, SamplingParams)| {
            processor.process(0, prompt.clone(), params.clone(), RowKey(0)).is_ok()
        };
        let rows: Vec<_> = rows(&config).into_iter().filter(taken).collect();
        assert!(rows.len() > 2, "{model} takes {} rows", rows.len());
        let expected = run_rows(one, rows.clone());
        config.parallel.pipeline_parallel_size = Some(2);
        let got = run_rows(Engine::load(&config).unwrap(), rows);
        for (row, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(got, expected, "row {row}, {model}");
        }
        num_parted += 1;
    }
    assert!(num_parted + 5 > MODELS.len(), "{num_parted} models in stages");
}

#[test]
fn prompts_that_cannot_be_answered_say_why() {
    let engine = Engine::load(&speculation::config(MODELS[0], (4, 400), None)).unwrap();
    let processor = engine.input_processor();
    let refused = |prompt: Prompt, params: SamplingParams| {
        let Err(ProcessError::Row(error)) = processor.process(0, prompt, params, RowKey(0)) else {
            panic!("it is refused")
        };
        error
    };
    let seen = || chat(&["<wide2.png>", "What is this?"]);
    let truncated = SamplingParams { truncate_prompt_tokens: Some(20), ..params(4) };
    assert_eq!(refused(seen(), truncated).code, "invalid_parameter");
    let many = chat(&["<wide2.png>"; 40]);
    let error = refused(many, params(4));
    assert_eq!(error.code, "context_length");
    assert!(error.message.contains("of images"), "{error}");
    let Prompt::WithMedia(mut lacking) = seen() else { panic!("it has images") };
    lacking.media.push(medium("rgb.png"));
    let error = refused(Prompt::WithMedia(lacking), params(4));
    assert!(error.message.contains("shows 1 images, and the messages have 2"), "{error}");
    let blind = Engine::load(&speculation::config("testdata/demo", (4, 400), None)).unwrap();
    let Err(error) = blind.input_processor().process(0, seen(), params(4), RowKey(0)) else {
        panic!("it has no tower")
    };
    assert_eq!(error.of_row().unwrap().code, "no_image_input");
}

/// The chat template of PaliGemma is ours: its prompts are a task.
#[test]
fn a_task_is_one_message_and_sees_what_is_behind_it() {
    let model = "testdata/golden/paligemma";
    let engine = Engine::load(&speculation::config(model, (4, 400), None)).unwrap();
    let processor = engine.input_processor();
    assert!(processor.has_chat_template());
    let refused = |prompt: Prompt, params: SamplingParams| {
        let Err(ProcessError::Row(error)) = processor.process(0, prompt, params, RowKey(0)) else {
            panic!("it is refused")
        };
        error
    };
    let scored = SamplingParams { prompt_logprobs: Some(NumLogprobs::Top(1)), ..params(4) };
    let error = refused(chat(&["<rgb.png>", "caption en"]), scored.clone());
    assert_eq!(error.code, "invalid_parameter");
    assert!(error.message.contains("see those behind them"), "{error}");
    assert!(processor.process(0, chat(&["caption en"]), scored, RowKey(0)).is_ok());
    let turns = json!([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]);
    let error = refused(Prompt::Messages(turns.into()), params(4));
    assert!(error.message.contains("one user message"), "{error}");
}

/// Images of Molmo 2 see each other, which several with text between do not yet.
#[test]
fn several_images_that_see_each_other_are_refused() {
    let model = "testdata/golden/molmo2";
    let engine = Engine::load(&speculation::config(model, (4, 400), None)).unwrap();
    let processor = engine.input_processor();
    let refused = |prompt: Prompt, params: SamplingParams| {
        let Err(ProcessError::Row(error)) = processor.process(0, prompt, params, RowKey(0)) else {
            panic!("it is refused")
        };
        error
    };
    let several = chat(&["<wide2.png>", "and ", "<rgb.png>"]);
    assert_eq!(refused(several, params(4)).code, "media_count");
    let scored = SamplingParams { prompt_logprobs: Some(NumLogprobs::Top(1)), ..params(4) };
    let error = refused(chat(&["<rgb.png>", "What is this?"]), scored);
    assert_eq!(error.code, "invalid_parameter");
    // What users type is text, marks too.
    for allow_special in [false, true] {
        let mut config = speculation::config(model, (4, 400), None);
        config.model.allow_special = allow_special;
        let processor = Engine::load(&config).unwrap().input_processor();
        let typed = chat(&["say <im_col><im_patch> or <|image|>", "<wide2.png>", " <im_end>"]);
        let request = processor.process(0, typed, params(1), RowKey(0)).unwrap();
        let of_image = request.prompt_token_ids.iter().filter(|id| **id >= 289).count();
        assert_eq!((request.media.len(), of_image), (1, request.media[0].positions.len()));
    }
}

/// Bytes of a BMP of this size.
fn bitmap(width: u32, height: u32) -> Vec<u8> {
    let row = (3 * width).next_multiple_of(4);
    let mut bytes = b"BM".to_vec();
    for word in [54 + row * height, 0, 54, 40, width, height, 1 | 24 << 16, 0, row * height] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.resize((54 + row * height) as usize, 0);
    bytes
}

/// Images of Qwen's models are resized to whole tokens; some cannot be.
#[test]
fn images_of_strange_shapes_are_tokens_or_error_rows() {
    let engine = Engine::load(&speculation::config(MODELS[2], (4, 400), None)).unwrap();
    let processor = engine.input_processor();
    for (width, height, tokens) in
        [(1, 1, Some(4)), (1, 200, None), (1, 201, None), (300, 1, None), (3, 27, Some(6))]
    {
        let Prompt::WithMedia(mut prompt) = chat(&["<rgb.png>", "?"]) else { unreachable!() };
        let medium =
            Medium::new(MediaKind::Image, bitmap(width, height), Default::default()).unwrap();
        prompt.media = vec![Arc::new(medium)];
        match processor.process(0, Prompt::WithMedia(prompt), params(1), RowKey(0)) {
            Ok(request) => {
                let num_tokens = request.media[0].positions.len();
                assert!(tokens.is_none_or(|tokens| tokens == num_tokens), "{width}x{height}");
                assert!(width.max(height) <= 200, "{width}x{height}");
            }
            Err(ProcessError::Row(error)) => {
                assert!(width.max(height) > 200, "{width}x{height}: {error}");
                assert_eq!(error.code, "media_unsupported", "{error}");
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// What users type is text, also where it spells a placeholder.
#[test]
fn typed_placeholders_are_text() {
    let mut config = speculation::config(MODELS[0], (4, 400), None);
    for allow_special in [false, true] {
        config.model.allow_special = allow_special;
        let engine = Engine::load(&config).unwrap();
        let prompt = chat(&["say <image> or ", "<wide2.png>", " <image>"]);
        let request = engine.input_processor().process(0, prompt, params(1), RowKey(0)).unwrap();
        let of_image: usize = request.media.iter().map(|run| run.positions.len()).sum();
        let placeholders = request.prompt_token_ids.iter().filter(|id| **id == 300).count();
        assert_eq!((of_image, placeholders), (20, 20));
        assert!(request.media[0].positions.start > 10, "it stands where its part stands");
    }
}

/// Bytes that somebody replaces while rows have them.
#[derive(Clone, Debug)]
struct Replaced(Arc<Mutex<Vec<u8>>>);

impl Encoded for Replaced {
    fn read(&self, _: &Limits) -> Result<Cow<'_, [u8]>, MediaError> {
        Ok(Cow::Owned(self.0.lock().unwrap().clone()))
    }
}

#[test]
fn an_image_that_changes_while_its_row_waits_fails_its_row_alone() {
    let file = |name: &str| std::fs::read(path("testdata/media").join(name)).unwrap();
    let replaced = Replaced(Arc::new(Mutex::new(file("wide2.png"))));
    let mut config = speculation::config(MODELS[0], (4, 400), None);
    // Nothing is kept: what comes again is read again.
    config.cache.tower_cache_bytes = Some(1);
    config.cache.enable_prefix_caching = false;
    config.scheduler.max_num_batched_tokens = Some(33);
    let mut engine = Engine::load(&config).unwrap();
    let processor = engine.input_processor();
    let content = json!([{"type": "image"}, {"type": "text", "text": "What is this?"}]);
    let asked = |id| {
        let chat = Chat::from(json!([{"role": "user", "content": content}]));
        let medium = Medium::new(MediaKind::Image, replaced.clone(), Limits::default()).unwrap();
        let prompt = Prompt::WithMedia(Box::new(WithMedia { chat, media: vec![medium.into()] }));
        processor.process(id, prompt, params(6), RowKey(7)).unwrap()
    };
    let other = |id| {
        let prompt = chat(&["<thin.png>", "What is that?"]);
        processor.process(id, prompt, params(6), RowKey(7)).unwrap()
    };
    let mut answers = |requests| {
        let requests: Vec<_> = requests;
        requests.into_iter().for_each(|request| engine.add_request(request));
        let mut outputs = Vec::new();
        while engine.has_unfinished_requests() {
            outputs.extend(engine.step().unwrap());
        }
        outputs.sort_by_key(|output| output.request_id);
        outputs.into_iter().map(|mut output| output.outputs.remove(0)).collect::<Vec<_>>()
    };
    let before = answers(vec![asked(1), other(2)]);
    let waiting = vec![asked(3), other(4)];
    // Its embeddings make room.
    answers(vec![other(0)]);
    *replaced.0.lock().unwrap() = file("rgb.png");
    let failed = answers(waiting);
    let error = failed[0].error.as_ref().unwrap();
    assert_eq!(error.code, "media_changed");
    assert!(error.message.starts_with("image 1 of 1: it has changed"), "{}", error.message);
    assert_eq!(failed[1].token_ids, before[1].token_ids);
    // The row that comes after it has the bytes that it saw, computed anew.
    *replaced.0.lock().unwrap() = file("wide2.png");
    let after = answers(vec![asked(5), other(6)]);
    assert_eq!(format!("{after:?}"), format!("{before:?}"));
}
