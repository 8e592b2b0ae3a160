//! The search alone. With blocks, queues and preemption it is tested by `tests/engine/simulation`.

use std::sync::Arc;

use super::search::{Parent, Path, Search};
use crate::plan::completion::Finish;
use crate::request::{Request, StopIds};
use vllm_batch_api::request::{
    Asked, BeamSearchParams, NumLogprobs, Precedence, RowKey, SamplingParams, TokenLogprob,
};

const EOS: u32 = 0;

fn request(beam_width: u32, length_penalty: f64, ignore_eos: bool) -> Request {
    let params = SamplingParams {
        n: beam_width,
        beam_search: Some(BeamSearchParams { beam_width, length_penalty }),
        ..SamplingParams::default()
    };
    Request {
        request_id: 0,
        prompt_token_ids: vec![1, 1],
        media: Vec::new(),
        asked: Asked::Completions,
        params: Arc::new(params),
        stop_ids: StopIds {
            eos_token_id: (!ignore_eos).then_some(EOS),
            stop_token_ids: Vec::new(),
        },
        bad_words_token_ids: Vec::new(),
        row_key: RowKey(0),
        guidance: None,
        lora: None,
        eos_after: None,
        precedence: Precedence::default(),
    }
}

fn top(logprobs: &[(u32, f32)]) -> Vec<TokenLogprob> {
    let ranked = (1..).zip(logprobs);
    ranked.map(|(rank, &(token_id, logprob))| TokenLogprob { token_id, logprob, rank }).collect()
}

fn start(path: &Path) -> Parent<'_> {
    Parent { index: 0, path, num_tokens: 2, output_token_ids: &[] }
}

/// Logprobs of a made-up model of `vocab` tokens, likeliest first, after some tokens.
fn model(tokens: &[u32], vocab: u32) -> Vec<TokenLogprob> {
    let hash = tokens.iter().fold(7u64, |hash, &id| {
        (hash ^ u64::from(id + 1)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
    });
    let weight = |id: u32| 1.0 + (hash.rotate_left(8 * id) % 97) as f64;
    let total: f64 = (0..vocab).map(weight).sum();
    let mut all: Vec<_> = (0..vocab).map(|id| (id, (weight(id) / total).ln() as f32)).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    top(&all)
}

/// Runs a search for `max_tokens` rounds: output tokens, sums and whether by EOS, best first.
fn search(request: &Request, vocab: u32, max_tokens: usize) -> Vec<(Vec<u32>, f64, bool)> {
    let mut search = Search::new(request, Some(EOS));
    let mut beams = vec![(Vec::new(), Path::default())];
    for round in 0..max_tokens {
        let parents = |beams: &[(Vec<u32>, Path)], index: usize| {
            let mut tokens = request.prompt_token_ids.clone();
            tokens.extend(&beams[index].0);
            tokens
        };
        for index in 0..beams.len() {
            let tokens = parents(&beams, index);
            let (output, path) = &beams[index];
            let parent = Parent { index, path, num_tokens: tokens.len(), output_token_ids: output };
            search.offer(parent, &model(&tokens, vocab));
        }
        let candidates = search.end_round();
        if round + 1 == max_tokens {
            for candidate in &candidates {
                let (output, path) = &beams[candidate.parent];
                let num_tokens = 2 + output.len();
                let index = candidate.parent;
                let parent = Parent { index, path, num_tokens, output_token_ids: output };
                search.complete_candidate(parent, candidate, Finish::Length);
            }
        } else {
            beams = candidates
                .iter()
                .map(|candidate| {
                    let (mut output, path) = beams[candidate.parent].clone();
                    output.push(candidate.token.token_id);
                    (output, path.with(candidate))
                })
                .collect();
        }
    }
    let completed = search.into_completed().into_iter();
    let by_eos = |finish: &Finish| *finish == Finish::StopToken(EOS);
    completed.map(|h| (h.token_ids, h.cumulative_logprob, by_eos(&h.finish))).collect()
}

/// Every sequence of up to `max_tokens` tokens that ends in EOS or is that long.
fn all_sequences(request: &Request, vocab: u32, max_tokens: usize) -> Vec<(Vec<u32>, f64, bool)> {
    let (mut live, mut ended) = (vec![(Vec::new(), 0.0)], Vec::new());
    for round in 0..max_tokens {
        let mut next = Vec::new();
        for (output, sum) in live {
            let tokens: Vec<u32> =
                request.prompt_token_ids.iter().chain(&output).copied().collect();
            for token in model(&tokens, vocab) {
                let (mut output, sum) = (output.clone(), sum + f64::from(token.logprob));
                output.push(token.token_id);
                let by_eos = token.token_id == EOS && request.stop_ids.eos_token_id.is_some();
                match by_eos || round + 1 == max_tokens {
                    true => ended.push((output, sum, by_eos)),
                    false => next.push((output, sum)),
                }
            }
        }
        live = next;
    }
    ended
}

#[test]
fn a_search_that_is_wide_enough_is_exhaustive() {
    for (vocab, max_tokens) in [(2u32, 4), (3, 4), (4, 3), (8, 2)] {
        for (length_penalty, ignore_eos) in [(0.0, false), (1.0, false), (2.0, false), (0.0, true)]
        {
            let width = vocab.pow(max_tokens as u32);
            let request = request(width, length_penalty, ignore_eos);
            let score = |(output, sum, by_eos): &(Vec<u32>, f64, bool)| {
                sum / ((2 + output.len() - usize::from(*by_eos)) as f64).powf(length_penalty)
            };
            let mut expected = all_sequences(&request, vocab, max_tokens);
            expected.sort_by(|a, b| score(b).total_cmp(&score(a)).then(a.0.cmp(&b.0)));
            let mut got = search(&request, vocab, max_tokens);
            assert!(got.is_sorted_by(|a, b| score(a) >= score(b)), "best first");
            got.sort_by(|a, b| score(b).total_cmp(&score(a)).then(a.0.cmp(&b.0)));
            assert_eq!(got, expected, "{vocab} tokens, penalty {length_penalty}");
        }
    }
}

#[test]
fn ties_go_to_the_earlier_beam_and_then_to_the_likelier_token() {
    let request = request(3, 1.0, true);
    let mut search = Search::new(&request, None);
    let path = Path::default();
    let equal = top(&[(5, -1.0), (7, -1.0), (9, -1.0)]);
    search.offer(start(&path), &equal);
    search.offer(Parent { index: 1, ..start(&path) }, &top(&[(4, -0.5), (3, -1.0)]));
    let next = search.end_round();
    let chosen: Vec<_> = next.iter().map(|c| (c.parent, c.token.token_id)).collect();
    assert_eq!(chosen, [(1, 4), (0, 5), (0, 7)]);
}

#[test]
fn an_eos_counts_for_nothing_in_the_length_even_where_it_is_ignored() {
    // -1.2 over 2 tokens is less than -1.7 over 3.
    let tokens = top(&[(EOS, -1.2), (4, -1.7)]);
    let path = Path::default();
    let mut ignoring = Search::new(&request(1, 1.0, true), Some(EOS));
    ignoring.offer(start(&path), &tokens);
    assert_eq!(ignoring.end_round()[0].token.token_id, 4);
    let mut ending = Search::new(&request(1, 1.0, false), Some(EOS));
    ending.offer(start(&path), &tokens);
    let next = ending.end_round();
    ending.complete_candidate(start(&path), &next[0], Finish::Length);
    let completed = ending.into_completed();
    assert_eq!((completed.len(), &*completed[0].token_ids), (1, &[4][..]));
}

#[test]
fn tokens_of_probability_0_and_beyond_twice_the_width_are_no_candidates() {
    let mut search = Search::new(&request(2, 1.0, true), None);
    let path = Path::default();
    search.offer(start(&path), &top(&[(1, -0.1), (2, f32::NEG_INFINITY)]));
    assert_eq!(search.end_round().len(), 1);
    let mut search = Search::new(&request(1, 0.0, false), Some(EOS));
    search.offer(start(&path), &top(&[(3, -1.0), (4, -2.0), (EOS, -3.0)]));
    assert_eq!(search.end_round().len(), 1);
    assert!(search.into_completed().is_empty(), "the third is not looked at");
}

#[test]
fn logprobs_are_shown_as_far_as_they_are_asked_for() {
    let base = request(1, 1.0, true);
    for (asked, shown) in [(Some(NumLogprobs::Top(1)), Some(1)), (Some(NumLogprobs::All), Some(3))]
    {
        let params = SamplingParams { logprobs: asked, ..(*base.params).clone() };
        let request = Request { params: Arc::new(params), ..base.clone() };
        let mut search = Search::new(&request, None);
        let path = Path::default();
        search.offer(start(&path), &top(&[(1, -0.5), (2, -1.0), (3, -2.0)]));
        let next = search.end_round();
        search.complete_candidate(start(&path), &next[0], Finish::Length);
        let completed = search.into_completed();
        let entries = &completed[0].logprobs;
        assert_eq!(entries.len(), 1);
        assert_eq!((entries[0].token.token_id, Some(entries[0].top.len())), (1, shown));
    }
}
