//! Requests that ask for what is new in each step: one after the other the deltas are the answer,
//! which is the one of a request that does not ask. Over tokenizers of bytes, stop strings, several
//! completions, guesses, preemptions and several engines.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use vllm_batch::engine::api::answer::Answer;
use vllm_batch::engine::api::prompt::Prompt;
use vllm_batch::engine::api::request::{
    BeamSearchParams, CompletionDelta, NumLogprobs, RequestOutput, RequestOutputKind, RowKey,
    SamplingParams,
};
use vllm_batch::engine::base::config::{
    EngineConfig, Engines, GenerationConfigSource, SpeculationMethod, SuffixConfig,
};
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::load::model_summary::ModelSummary;
use vllm_batch::engine::core::serve::data_parallel::{DataParallel, LoadEngine};
use vllm_batch::engine::core::serve::runner::{Runner, Work};
use vllm_batch::engine::core::stats::EngineStats;

use super::speculation::{self, BATCHES, FEW_BLOCKS, MODEL, Method, draft_model};

type Row = (Vec<u32>, SamplingParams);

/// What a run has given.
#[derive(Default)]
struct Run {
    answers: BTreeMap<u64, RequestOutput>,
    deltas: HashMap<(u64, u32), Vec<CompletionDelta>>,
    /// Deltas of tokens whose text is held back.
    num_without_text: usize,
}

impl Run {
    fn take_in(&mut self, mut output: RequestOutput) {
        for delta in output.deltas.drain(..) {
            self.num_without_text +=
                usize::from(delta.text.is_empty() && delta.finish_reason.is_none());
            self.deltas.entry((output.request_id, delta.index)).or_default().push(delta);
        }
        if output.finished {
            self.answers.insert(output.request_id, output);
        }
    }
}

fn run(runner: &mut Runner, rows: &[Row], output_kind: RequestOutputKind) -> Run {
    let processor = runner.input_processor();
    for (index, (prompt, params)) in (0..).zip(rows) {
        let params = SamplingParams { output_kind, ..params.clone() };
        let prompt = Prompt::TokenIds(prompt.clone());
        let request = processor.process(index, prompt, params, RowKey(index));
        runner.add_request(Work::Generate(request.expect("a valid row")));
    }
    let mut run = Run::default();
    while runner.has_unfinished_requests() {
        for answer in runner.step().expect("the CPU does not fail") {
            let Answer::Generate(output) = answer else { panic!("it completes") };
            run.take_in(output);
        }
    }
    assert_eq!(run.answers.len(), rows.len());
    run
}

/// Runs rows without deltas, then with them in each of these engines.
fn check(expected: &Run, engine: &mut Runner, rows: &[Row], what: &str) -> Run {
    assert!(expected.deltas.is_empty(), "nobody asked");
    let got = run(engine, rows, RequestOutputKind::Delta);
    for (id, answer) in &got.answers {
        let own = &expected.answers[id];
        assert_eq!(format!("{:?}", answer.outputs), format!("{:?}", own.outputs), "{what}: {id}");
        assert_eq!(answer.prompt_logprobs, own.prompt_logprobs, "{what}: {id}");
        for completion in &answer.outputs {
            let deltas = &got.deltas[&(*id, completion.index)];
            let text: String = deltas.iter().map(|delta| &*delta.text).collect();
            assert_eq!(text, completion.text, "{what}: {id}");
            let ids: Vec<_> = deltas.iter().flat_map(|delta| delta.token_ids.clone()).collect();
            assert_eq!(ids, completion.token_ids, "{what}: {id}");
            let logprobs: Option<Vec<_>> =
                deltas.iter().map(|delta| delta.logprobs.clone()).collect();
            assert_eq!(logprobs.map(|all| all.concat()), completion.logprobs, "{what}: {id}");
            let (last, before) = deltas.split_last().expect("there is a last one");
            assert_eq!(last.finish_reason, Some(completion.finish_reason), "{what}: {id}");
            assert!(before.iter().all(|delta| delta.finish_reason.is_none()), "{what}: {id}");
        }
    }
    got
}

fn generate(config: &EngineConfig) -> Runner {
    Runner::Generate(Box::new(Engine::load(config).expect("the files are committed")))
}

/// Rows that say all kinds of things, bytes of characters too.
fn wild_rows() -> Vec<Row> {
    let wild = SamplingParams {
        temperature: 2.0,
        max_tokens: Some(40),
        n: 2,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let stop = |stop: &[&str]| stop.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let kinds = [
        wild.clone(),
        SamplingParams { logprobs: Some(NumLogprobs::Top(2)), ..wild.clone() },
        SamplingParams { stop: stop(&["the", "e ", "ab", "\u{fffd}"]), ..wild.clone() },
        SamplingParams {
            stop: stop(&["a", "is", "00"]),
            include_stop_str_in_output: true,
            min_tokens: 9,
            ..wild.clone()
        },
        SamplingParams { ignore_eos: false, skip_special_tokens: false, ..wild.clone() },
        SamplingParams { stop_token_ids: (40..50).collect(), ..wild },
    ];
    let row = |index: usize| {
        let prompt = (0..1 + index as u32 % 9).map(|at| (at * 31 + index as u32 * 7) % 90 + 3);
        (prompt.collect(), kinds[index % kinds.len()].clone())
    };
    (0..2 * kinds.len()).map(row).collect()
}

#[test]
fn deltas_are_the_answer_over_tokenizers_of_all_kinds() {
    let (mut num_held, mut num_wide) = (0, 0);
    for family in ["llama2", "llama3", "gpt2", "gemma", "opt", "qwen3"] {
        let model = format!("testdata/golden/{family}");
        let mut engine = generate(&speculation::config(&model, (16, 400), None));
        let rows = wild_rows();
        let expected = run(&mut engine, &rows, RequestOutputKind::FinalOnly);
        let got = check(&expected, &mut engine, &rows, family);
        num_held += got.num_without_text;
        let texts = got.answers.values().flat_map(|answer| &answer.outputs);
        num_wide += texts.filter(|completion| !completion.text.is_ascii()).count();
    }
    println!("{num_held} deltas were held back, {num_wide} texts have wide characters");
    assert!(num_held > 20 && num_wide > 5);
}

#[test]
fn neither_guesses_nor_preemptions_repeat_or_lose_a_delta() {
    let rows = speculation::rows();
    let mut plain = generate(&speculation::config(MODEL, (64, 400), None));
    let expected = run(&mut plain, &rows, RequestOutputKind::FinalOnly);
    for method in [
        None,
        Some(Method::Of(SpeculationMethod::Suffix(SuffixConfig::default()))),
        Some(Method::Of(draft_model(MODEL))),
    ] {
        for batch in BATCHES {
            let config = speculation::config(MODEL, batch, method.as_ref());
            let mut engine = generate(&config);
            check(&expected, &mut engine, &rows, &format!("{method:?}, {batch:?}"));
            let EngineStats { num_preemptions, num_accepted_tokens, .. } = engine.stats();
            assert_eq!(num_preemptions > 0, batch.1 == FEW_BLOCKS);
            assert_eq!(num_accepted_tokens > 0, method.is_some());
        }
    }
}

#[test]
fn deltas_come_from_several_engines() {
    let rows = speculation::rows();
    let mut config = speculation::config(MODEL, (5, 60), None);
    config.model.generation_config = GenerationConfigSource::Vllm;
    let expected = run(&mut generate(&config), &rows, RequestOutputKind::FinalOnly);
    config.parallel.num_threads = Some(2);
    config.parallel.engines = Engines::Number(2);
    let load: LoadEngine = Arc::new(|config, processor| {
        let summary = ModelSummary::read(&config.model)?;
        Ok(Runner::Generate(Box::new(Engine::load_with(config, &summary, processor)?)))
    });
    let engines = DataParallel::load(&config, &load).unwrap_or_else(|error| panic!("{error}"));
    check(&expected, &mut Runner::Parallel(Box::new(engines)), &rows, "two engines");
}

#[test]
fn where_no_token_is_out_before_the_end_deltas_are_refused_by_name() {
    let output_kind = RequestOutputKind::Delta;
    let beams = SamplingParams {
        n: 2,
        beam_search: Some(BeamSearchParams::of_width(2)),
        output_kind,
        ..SamplingParams::default()
    };
    let nothing = SamplingParams {
        max_tokens: Some(0),
        prompt_logprobs: Some(NumLogprobs::Top(1)),
        output_kind,
        ..SamplingParams::default()
    };
    for (params, what) in [(beams, "beam search"), (nothing, "max_tokens=0")] {
        let error = params.verify(100, 20).unwrap_err();
        assert_eq!(error.code, "invalid_parameter");
        assert!(error.message.starts_with("output_kind does not go with "), "{}", error.message);
        assert!(error.message.contains(what), "{}", error.message);
    }
}
