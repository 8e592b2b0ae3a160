//! A random configuration and random requests, all from one seed.

use std::fmt::Write as _;
use std::sync::Arc;

use vllm_batch::engine::api::request::{
    Asked, BeamSearchParams, ChoiceTexts, KnownText, LoraId, NumLogprobs, Precedence, RequestClass,
    RequestOutputKind, RollingText, RowKey, SamplingParams,
};
use vllm_batch::engine::core::load::step_sizes::StepSizes;
use vllm_batch::engine::core::request::{Request, StopIds};
use vllm_batch::engine::text::Tokenizer;

use crate::random::Rng;

/// Id of the special token `</s>`, the last one.
pub const EOS: u32 = 24;
/// Tokens of the vocabulary.
pub const VOCAB_SIZE: usize = EOS as usize + 1;

/// Text of every token: all strings of one or two letters of "abc", then single letters, then EOS.
pub fn pieces() -> Vec<String> {
    let singles = ["a", "b", "c"].map(String::from);
    let pairs = "aa ab ac ba bb bc ca cb cc".split(' ').map(String::from);
    let letters = ('d'..='o').map(String::from);
    singles.into_iter().chain(pairs).chain(letters).chain(["</s>".into()]).collect()
}

/// A tokenizer of these pieces; its texts are plain concatenations.
pub fn tokenizer() -> Tokenizer {
    let mut vocab = String::new();
    for (id, piece) in pieces().iter().enumerate() {
        write!(vocab, "{}\"{piece}\":{id}", if id == 0 { "" } else { "," }).expect("a string");
    }
    let json = format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{{"id":{EOS},
        "content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,
        "special":true}}],"normalizer":null,"pre_tokenizer":null,"post_processor":null,
        "decoder":{{"type":"Fuse"}},"model":{{"type":"BPE","dropout":null,"unk_token":null,
        "continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,
        "byte_fallback":false,"ignore_merges":false,"vocab":{{{vocab}}},"merges":[]}}}}"#
    );
    Tokenizer::from_bytes(json.as_bytes(), None).expect("a valid tokenizer.json")
}

/// Everything that a seed decides before the run.
pub struct Workload {
    pub sizes: StepSizes,
    pub block_size: usize,
    pub enable_prefix_caching: bool,
    pub num_blocks: usize,
    pub max_model_len: usize,
    pub engine_seed: u64,
    /// In order of arrival.
    pub requests: Vec<Request>,
}

impl Workload {
    pub fn new(rng: &mut Rng) -> Self {
        // Some are larger than most prompts, as where layers have large states.
        let block_size = if rng.once_in(4) { 16 + rng.up_to(48) } else { 1 + rng.up_to(15) };
        let max_model_len = 16 + rng.up_to(64);
        let prefixes: Vec<Vec<u32>> = (0..3).map(|_| tokens(rng, 40)).collect();
        let num_requests = 1 + rng.up_to(9);
        Self {
            sizes: StepSizes {
                max_num_seqs: 1 + rng.up_to(7),
                max_num_batched_tokens: 1 + rng.up_to(63),
                max_num_prompt_logits: 1 + rng.up_to(9),
                // From first come, first served to any order of the few requests.
                look_ahead: rng.up_to(12),
                max_loras: 1 + rng.up_to(2),
                max_num_drafts: 0,
            },
            block_size,
            enable_prefix_caching: !rng.once_in(3),
            // From less than one context to more than all sequences can use.
            num_blocks: 1 + (10 + rng.up_to(200)) / block_size,
            max_model_len,
            engine_seed: rng.up_to(3) as u64,
            requests: (0..num_requests)
                .map(|id| request(rng, id as u64, &prefixes, max_model_len))
                .collect(),
        }
    }
}

impl Workload {
    /// Half of the requests become rows of a batch, and all have priorities.
    pub fn mix_classes(&mut self, rng: &mut Rng) {
        for request in &mut self.requests {
            let class = if rng.once_in(2) { RequestClass::Batch } else { RequestClass::Online };
            let priority = rng.up_to(2) as i64 - 1;
            request.precedence = Precedence { class, priority };
        }
    }
}

/// 0 to `max_len` tokens, mostly of few kinds, so that blocks often are equal by accident.
fn tokens(rng: &mut Rng, max_len: usize) -> Vec<u32> {
    let len = rng.up_to(max_len);
    let max_id = if rng.once_in(2) { 1 } else { VOCAB_SIZE - 1 };
    (0..len).map(|_| rng.up_to(max_id) as u32).collect()
}

fn request(rng: &mut Rng, id: u64, prefixes: &[Vec<u32>], max_model_len: usize) -> Request {
    let prefix = &prefixes[rng.up_to(prefixes.len() - 1)];
    let mut prompt_token_ids = prefix[..rng.up_to(prefix.len())].to_vec();
    if !rng.once_in(4) {
        prompt_token_ids.extend(tokens(rng, 10));
    }
    prompt_token_ids.truncate(max_model_len - 1);
    if prompt_token_ids.is_empty() {
        prompt_token_ids.push(0);
    }
    let asked = asked(rng, &prompt_token_ids, max_model_len);
    let mut params = match asked {
        Asked::Completions if rng.once_in(6) => beam_params(rng),
        Asked::Completions => sampling_params(rng),
        Asked::Choices(_) | Asked::Rolling(_) | Asked::State | Asked::States => {
            SamplingParams::default()
        }
    };
    if rng.once_in(16) && params.beam_search.is_none() {
        // Together with `min_tokens` this may leave nothing to sample.
        params.allowed_token_ids =
            Some([EOS].into_iter().chain(params.stop_token_ids.clone()).collect());
    }
    let params = Arc::new(params);
    let stop_ids = StopIds {
        eos_token_id: (!params.ignore_eos).then_some(EOS),
        stop_token_ids: params.stop_token_ids.clone(),
    };
    let row_key = RowKey(rng.up_to(5) as u64);
    let num_bad_words =
        if rng.once_in(4) && params.beam_search.is_none() { 1 + rng.up_to(2) } else { 0 };
    let mut word = || (0..=rng.up_to(1)).map(|_| rng.up_to(EOS as usize) as u32).collect();
    let bad_words_token_ids = (0..num_bad_words).map(|_| word()).collect();
    let request_id = 1000 - id;
    let guidance = None;
    // Prefixes are shared all the same.
    let lora = rng.once_in(3).then(|| LoraId(rng.up_to(2) as u32));
    Request {
        request_id,
        prompt_token_ids,
        media: Vec::new(),
        asked,
        params,
        stop_ids,
        bad_words_token_ids,
        row_key,
        guidance,
        lora,
        eos_after: None,
        precedence: Precedence::default(),
    }
}

/// Mostly completions.
fn asked(rng: &mut Rng, prompt: &[u32], max_model_len: usize) -> Asked {
    match rng.up_to(7) {
        0 => {
            let choice = |rng: &mut Rng| {
                let mut scored = tokens(rng, 7);
                scored.push(rng.up_to(EOS as usize) as u32);
                let token_ids = [prompt, &scored].concat();
                // One token more than the context holds, as nothing is computed after it.
                let start = token_ids.len().saturating_sub(max_model_len + 1);
                KnownText { token_ids: token_ids[start..].to_vec(), num_scored: scored.len() }
            };
            Asked::Choices(ChoiceTexts::new((0..=rng.up_to(3)).map(|_| choice(rng)).collect()))
        }
        1 => {
            let windows = KnownText::windows(prompt, EOS, 1 + rng.up_to(max_model_len - 1));
            Asked::Rolling(RollingText { windows, num_words: 1, num_bytes: prompt.len() })
        }
        _ => Asked::Completions,
    }
}

fn beam_params(rng: &mut Rng) -> SamplingParams {
    let beam_width = 1 + rng.up_to(4) as u32;
    let length_penalty = [1.0, 0.0, 2.5, -0.5][rng.up_to(3)];
    SamplingParams {
        n: beam_width,
        beam_search: Some(BeamSearchParams { beam_width, length_penalty }),
        logprobs: rng.once_in(3).then_some(NumLogprobs::Top(rng.up_to(12) as u32)),
        ignore_eos: rng.once_in(2),
        max_tokens: (!rng.once_in(8)).then(|| 1 + rng.up_to(11) as u32),
        include_stop_str_in_output: rng.once_in(3),
        ..SamplingParams::default()
    }
}

fn sampling_params(rng: &mut Rng) -> SamplingParams {
    let greedy = rng.once_in(2);
    let wants_deltas = rng.once_in(2);
    let max_tokens = (!rng.once_in(4)).then(|| 1 + rng.up_to(23) as u32);
    let mut stop = Vec::new();
    if rng.once_in(3) {
        for _ in 0..=rng.up_to(2) {
            stop.push((0..=rng.up_to(3)).map(|_| ["a", "b", "c"][rng.up_to(2)]).collect());
        }
    }
    let mut num_logprobs = |times| {
        let count = NumLogprobs::Top(rng.up_to(3) as u32);
        rng.once_in(times).then_some(if rng.once_in(4) { NumLogprobs::All } else { count })
    };
    let (logprobs, prompt_logprobs) = (num_logprobs(4), num_logprobs(4));
    let last = prompt_logprobs.is_some() && rng.once_in(2);
    let prompt_logprobs_last = last.then(|| 1 + rng.up_to(20) as u32);
    let max_tokens = if prompt_logprobs.is_some() && rng.once_in(3) { Some(0) } else { max_tokens };
    let output_kind = match wants_deltas && max_tokens != Some(0) {
        true => RequestOutputKind::Delta,
        false => RequestOutputKind::FinalOnly,
    };
    SamplingParams {
        output_kind,
        logprobs,
        prompt_logprobs,
        prompt_logprobs_last,
        n: if greedy || max_tokens == Some(0) { 1 } else { 1 + rng.up_to(2) as u32 },
        temperature: if greedy { 0.0 } else { 1.0 },
        repetition_penalty: if rng.once_in(4) { 1.5 } else { 1.0 },
        top_k: rng.up_to(5) as u32,
        stop,
        stop_token_ids: if rng.once_in(3) { vec![rng.up_to(23) as u32] } else { Vec::new() },
        ignore_eos: rng.once_in(2),
        max_tokens,
        min_tokens: if rng.once_in(3) {
            rng.up_to(6).min(max_tokens.unwrap_or(6) as usize) as u32
        } else {
            0
        },
        skip_special_tokens: !rng.once_in(3),
        include_stop_str_in_output: rng.once_in(3),
        ..SamplingParams::default()
    }
}
