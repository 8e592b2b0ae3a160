//! `Search`: which of a round's candidates live on, and which completions are the best. Numbers
//! only, in vLLM's order of operations; knows no blocks.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::plan::completion::Finish;
use crate::request::Request;
use vllm_batch_api::request::{BeamSearchParams, NumLogprobs, PositionLogprobs, TokenLogprob};

/// The search of one row.
#[derive(Debug)]
pub(super) struct Search {
    params: BeamSearchParams,
    /// Counts for less in the score, even where the row ignores it, as in vLLM.
    eos_token_id: Option<u32>,
    ends_at_eos: bool,
    /// Top logprobs of a position that the row shows; None: it shows none at all.
    num_shown: Option<usize>,
    /// Of this round, the best so far.
    round: Round,
    /// Those that ended before this round, best first.
    completed: Vec<Hypothesis>,
}

#[derive(Debug, Default)]
struct Round {
    candidates: Vec<Candidate>,
    ended: Vec<Hypothesis>,
}

/// How likely a beam is.
#[derive(Clone, Debug, Default)]
pub(super) struct Path {
    /// Sum over the generated tokens, in their order.
    pub(super) cumulative_logprob: f64,
    /// Per generated token, where the row shows logprobs.
    logprobs: Vec<PositionLogprobs>,
}

/// A beam of the round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parent<'a> {
    /// Its place among the beams.
    pub(super) index: usize,
    pub(super) path: &'a Path,
    /// Of prompt and output.
    pub(super) num_tokens: usize,
    pub(super) output_token_ids: &'a [u32],
}

/// A beam with one more token.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// Place of the beam.
    pub(super) parent: usize,
    pub(super) token: TokenLogprob,
    cumulative_logprob: f64,
    score: f64,
    /// What the row shows of the other tokens of the position.
    top: Option<Arc<[TokenLogprob]>>,
}

/// A sequence that ended.
#[derive(Clone, Debug)]
pub(super) struct Hypothesis {
    /// Generated ones, the EOS included.
    pub(super) token_ids: Vec<u32>,
    pub(super) cumulative_logprob: f64,
    pub(super) logprobs: Vec<PositionLogprobs>,
    pub(super) finish: Finish,
    score: f64,
}

impl Path {
    /// The same with the candidate's token.
    pub(super) fn with(&self, candidate: &Candidate) -> Self {
        let mut logprobs = self.logprobs.clone();
        logprobs.extend(
            candidate
                .top
                .as_ref()
                .map(|top| PositionLogprobs { token: candidate.token.clone(), top: top.to_vec() }),
        );
        Self { cumulative_logprob: candidate.cumulative_logprob, logprobs }
    }
}

impl Search {
    /// `eos_token_id`: the tokenizer's, even where the row ignores it.
    pub(super) fn new(request: &Request, eos_token_id: Option<u32>) -> Self {
        Self {
            params: request.params.beam_search.expect("the row is searched with beams"),
            eos_token_id,
            ends_at_eos: request.stop_ids.eos_token_id.is_some(),
            num_shown: request.params.logprobs.map(|logprobs| match logprobs {
                NumLogprobs::All => usize::MAX,
                NumLogprobs::Top(shown) => shown as usize,
            }),
            round: Round::default(),
            completed: Vec::new(),
        }
    }

    /// Takes in the likeliest next tokens of a beam, likeliest first. Beams come in their order.
    /// Tokens of probability 0 are no candidates.
    pub(super) fn offer(&mut self, parent: Parent<'_>, top: &[TokenLogprob]) {
        let shown = self.num_shown.map(|shown| Arc::from(&top[..shown.min(top.len())]));
        let width = self.params.beam_width as usize;
        let possible = top.iter().take(2 * width).filter(|token| token.logprob.is_finite());
        for token in possible {
            let is_eos = self.eos_token_id == Some(token.token_id);
            let cumulative_logprob = parent.path.cumulative_logprob + f64::from(token.logprob);
            let length = parent.num_tokens + usize::from(!is_eos);
            let candidate = Candidate {
                parent: parent.index,
                token: token.clone(),
                cumulative_logprob,
                score: score(cumulative_logprob, length, self.params.length_penalty),
                top: shown.clone(),
            };
            if is_eos && self.ends_at_eos {
                // vLLM's server says which token it was.
                let finish = Finish::StopToken(token.token_id);
                self.round.ended.push(hypothesis(parent, &candidate, finish));
            } else {
                self.round.candidates.push(candidate);
            }
        }
        keep_best(&mut self.round.candidates, width, |candidate| candidate.score);
    }

    /// Forgets what the round has brought so far.
    pub(super) fn restart_round(&mut self) {
        self.round = Round::default();
    }

    /// Ends the round: the beams of the next one, best first.
    pub(super) fn end_round(&mut self) -> Vec<Candidate> {
        let Round { candidates, ended } = std::mem::take(&mut self.round);
        self.complete(ended);
        candidates
    }

    /// Takes a candidate as a completion.
    pub(super) fn complete_candidate(
        &mut self,
        parent: Parent<'_>,
        candidate: &Candidate,
        finish: Finish,
    ) {
        self.complete(vec![hypothesis(parent, candidate, finish)]);
    }

    /// Takes a beam as it is as a completion.
    pub(super) fn complete_beam(&mut self, beam: Parent<'_>, finish: Finish) {
        let cumulative_logprob = beam.path.cumulative_logprob;
        let score = score(cumulative_logprob, beam.num_tokens, self.params.length_penalty);
        self.complete(vec![Hypothesis {
            token_ids: beam.output_token_ids.to_vec(),
            cumulative_logprob,
            logprobs: beam.path.logprobs.clone(),
            finish,
            score,
        }]);
    }

    /// Forgets all completions and candidates so far.
    pub(super) fn forget(&mut self) {
        self.restart_round();
        self.completed.clear();
    }

    /// The completions, best first: at most as many as the search is wide.
    pub(super) fn into_completed(self) -> Vec<Hypothesis> {
        self.completed
    }

    fn complete(&mut self, ended: Vec<Hypothesis>) {
        self.completed.extend(ended);
        let width = self.params.beam_width as usize;
        keep_best(&mut self.completed, width, |hypothesis| hypothesis.score);
    }
}

fn hypothesis(parent: Parent<'_>, candidate: &Candidate, finish: Finish) -> Hypothesis {
    let Path { cumulative_logprob, logprobs } = parent.path.with(candidate);
    let mut token_ids = parent.output_token_ids.to_vec();
    token_ids.push(candidate.token.token_id);
    Hypothesis { token_ids, cumulative_logprob, logprobs, finish, score: candidate.score }
}

/// vLLM's `get_beam_search_score`. `length`: tokens of prompt and output, less an EOS at the end.
/// Never NaN, since a cumulative logprob is finite.
fn score(cumulative_logprob: f64, length: usize, length_penalty: f64) -> f64 {
    if cumulative_logprob == 0.0 {
        return 0.0;
    }
    cumulative_logprob / (length.max(1) as f64).powf(length_penalty)
}

/// Keeps the `count` best, best first. Equal ones stay in their order: the earlier beam, then the
/// likelier token, then the smaller token id.
fn keep_best<T>(items: &mut Vec<T>, count: usize, score: impl Fn(&T) -> f64) {
    let descending = |a: &T, b: &T| score(b).partial_cmp(&score(a)).unwrap_or(Ordering::Equal);
    items.sort_by(descending);
    items.truncate(count);
}
