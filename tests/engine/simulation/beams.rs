//! vLLM's `LLM.beam_search`, word for word, over whole rows of logprobs of plain token lists.

use std::collections::HashSet;

use vllm_batch::engine::api::request::{NumLogprobs, PositionLogprobs};
use vllm_batch::engine::core::request::Request;
use vllm_batch::engine::core::sampler::{RowResult, RowTask};

use crate::simulation::oracle::{Oracle, run_on};

/// A sequence of the search.
#[derive(Clone, Debug)]
pub struct Beam {
    pub token_ids: Vec<u32>,
    pub cumulative_logprob: f64,
    /// As the row shows them.
    pub logprobs: Vec<PositionLogprobs>,
    /// By EOS.
    pub ended: bool,
}

impl Oracle<'_> {
    /// The best completions; none where the KV cache does not hold the row.
    pub fn beams(&self, request: &Request) -> Vec<Beam> {
        let params = &request.params;
        let beams = params.beam_search.expect("it is asked for");
        let (width, eos) = (beams.beam_width as usize, request.stop_ids.eos_token_id);
        let room = self.workload.max_model_len - request.prompt_token_ids.len();
        let max_tokens = room.min(params.max_tokens.map_or(room, |max_tokens| max_tokens as usize));
        let score = |beam: &Beam| {
            let length = request.prompt_token_ids.len() + beam.token_ids.len();
            let length = length - usize::from(beam.ended);
            beam.cumulative_logprob / (length.max(1) as f64).powf(beams.length_penalty)
        };
        let best = |beams: &mut Vec<Beam>| {
            beams.sort_by(|a, b| score(b).total_cmp(&score(a)));
            beams.truncate(width);
        };
        let start = Beam {
            token_ids: Vec::new(),
            cumulative_logprob: 0.0,
            logprobs: Vec::new(),
            ended: false,
        };
        let (mut live, mut completed) = (vec![start], Vec::new());
        for _ in 0..max_tokens {
            if self.num_blocks(request, &live) > self.workload.num_blocks {
                return Vec::new();
            }
            let (ended, going_on): (Vec<_>, Vec<_>) = live
                .iter()
                .flat_map(|beam| longer(request, beam, 2 * width, eos))
                .partition(|beam: &Beam| beam.ended);
            completed.extend(ended);
            live = going_on;
            best(&mut live);
        }
        completed.extend(live);
        best(&mut completed);
        completed
    }

    /// Blocks of all beams, one that several share once.
    fn num_blocks(&self, request: &Request, beams: &[Beam]) -> usize {
        let block_size = self.workload.block_size;
        let mut full = HashSet::new();
        for beam in beams {
            let all: Vec<u32> =
                request.prompt_token_ids.iter().chain(&beam.token_ids).copied().collect();
            // The last token's K and V are not there yet.
            let num_full = (all.len() - 1) / block_size;
            full.extend((1..=num_full).map(|blocks| all[..blocks * block_size].to_vec()));
        }
        full.len() + beams.len()
    }
}

fn longer(request: &Request, beam: &Beam, num_candidates: usize, eos: Option<u32>) -> Vec<Beam> {
    let all: Vec<u32> = request.prompt_token_ids.iter().chain(&beam.token_ids).copied().collect();
    let task = RowTask::PromptLogprobs { target: 0, num_logprobs: NumLogprobs::All };
    let RowResult::PromptLogprobs(row) = run_on((request.lora, &all), &task) else {
        panic!("finite logits")
    };
    let num_shown = match request.params.logprobs {
        Some(NumLogprobs::Top(count)) => row.top.len().min(count as usize),
        _ => 0,
    };
    let child = |token: &vllm_batch::engine::api::request::TokenLogprob| {
        let mut child = beam.clone();
        child.token_ids.push(token.token_id);
        child.cumulative_logprob += f64::from(token.logprob);
        let top = row.top[..num_shown].to_vec();
        child.logprobs.push(PositionLogprobs { token: token.clone(), top });
        child.ended = eos == Some(token.token_id);
        child
    };
    row.top.iter().take(num_candidates).map(child).collect()
}
