//! What a request must give, from plain token lists: no blocks, no batches, no chunks.

use vllm_batch::engine::api::request::{
    Asked, CompletionOutput, FinishReason, LoraId, NumLogprobs, PositionLogprobs, RequestError,
    StopReason,
};
use vllm_batch::engine::api::request::{KnownText, Likelihood, Scored};
use vllm_batch::engine::core::execute::simulated_executor::simulated_logits;
use vllm_batch::engine::core::request::Request;
use vllm_batch::engine::core::sampler::{RowResult, RowTask, SampleTask, SamplerScratch, run_row};

use crate::simulation::workload::{EOS, VOCAB_SIZE, Workload};

/// The completions of requests of one workload.
pub struct Oracle<'a> {
    pub workload: &'a Workload,
    pub pieces: &'a [String],
}

impl Oracle<'_> {
    /// Entry i: the logprobs of prompt token i, or of the last ones.
    pub fn prompt_logprobs(&self, request: &Request) -> Option<Vec<Option<PositionLogprobs>>> {
        let num_logprobs = request.params.prompt_logprobs?;
        let prompt = &request.prompt_token_ids;
        let entry = |i: usize| {
            let task = RowTask::PromptLogprobs { target: prompt[i], num_logprobs };
            match run_on((request.lora, &prompt[..i]), &task) {
                RowResult::PromptLogprobs(entry) => Some(entry),
                other => panic!("{other:?}"),
            }
        };
        let last = request.params.prompt_logprobs_last.map_or(prompt.len(), |n| n as usize);
        let first = prompt.len().saturating_sub(last);
        Some((first..prompt.len()).map(|i| if i == 0 { None } else { entry(i) }).collect())
    }

    /// How likely the texts of a request are; None where it has none.
    pub fn scored(&self, request: &Request) -> Option<Scored> {
        let likelihood = |text: &KnownText| {
            let mut likelihood = Likelihood::default();
            for i in text.token_ids.len() - text.num_scored..text.token_ids.len() {
                let target = text.token_ids[i];
                let task = RowTask::PromptLogprobs { target, num_logprobs: NumLogprobs::All };
                match run_on((request.lora, &text.token_ids[..i]), &task) {
                    RowResult::PromptLogprobs(position) => likelihood.add(&position),
                    other => panic!("{other:?}"),
                }
            }
            likelihood
        };
        let texts = known_texts(request);
        request.asked.answer(texts.iter().map(likelihood).collect())
    }

    /// Whether all of its texts fit into the cache, one at a time.
    pub fn texts_fit(&self, request: &Request) -> bool {
        let capacity = self.workload.num_blocks * self.workload.block_size;
        known_texts(request).iter().all(|text| text.token_ids.len() - 1 <= capacity)
    }

    /// Completion `index` of a request, run to its end.
    pub fn completion(&self, request: &Request, index: u32) -> CompletionOutput {
        let mut output = CompletionOutput {
            index,
            text: String::new(),
            token_ids: Vec::new(),
            cumulative_logprob: request.params.logprobs.map(|_| 0.0),
            logprobs: request.params.logprobs.map(|_| Vec::new()),
            finish_reason: FinishReason::Error,
            stop_reason: None,
            is_complete: true,
            error: None,
        };
        let capacity = self.workload.num_blocks * self.workload.block_size;
        let mut token_ids = request.prompt_token_ids.clone();
        loop {
            let generates = request.params.max_tokens != Some(0);
            // What is not followed by anything is not computed.
            if token_ids.len() - usize::from(!generates) > capacity {
                return failed(output, "kv_cache_too_small");
            }
            if !generates {
                return CompletionOutput { finish_reason: FinishReason::Length, ..output };
            }
            let Some((token_id, logprobs)) = self.sample(request, index, &token_ids) else {
                return failed(output, "no_token_allowed");
            };
            if let (Some(all), Some(sum), Some(entry)) =
                (&mut output.logprobs, &mut output.cumulative_logprob, logprobs)
            {
                *sum += f64::from(entry.token.logprob);
                all.push(entry);
            }
            token_ids.push(token_id);
            output.token_ids.push(token_id);
            if let Some((reason, stop_reason)) = self.finish(request, &mut output, token_ids.len())
            {
                output.finish_reason = reason;
                output.stop_reason = stop_reason;
                return output;
            }
        }
    }

    /// Text of some tokens of a request.
    pub fn text(&self, request: &Request, token_ids: &[u32]) -> String {
        let shown = |&&id: &&u32| !(request.params.skip_special_tokens && id == EOS);
        token_ids.iter().filter(shown).map(|&id| self.pieces[id as usize].as_str()).collect()
    }

    /// The token after `token_ids`; None: no token may be sampled.
    fn sample(
        &self,
        request: &Request,
        index: u32,
        token_ids: &[u32],
    ) -> Option<(u32, Option<PositionLogprobs>)> {
        let (prompt_token_ids, output_token_ids) =
            token_ids.split_at(request.prompt_token_ids.len());
        let task = RowTask::Sample(SampleTask {
            params: &request.params,
            prompt_token_ids,
            output_token_ids,
            stop_ids: &request.stop_ids,
            bad_words_token_ids: &request.bad_words_token_ids,
            row_key: request.row_key,
            num_drafts: 0,
            sampled_row: None,
            request_id: 0,
            engine_seed: self.workload.engine_seed,
            sample_index: index,
            token_mask: None,
        });
        match run_on((request.lora, token_ids), &task) {
            RowResult::Sampled { token_id, logprobs } => Some((token_id, logprobs)),
            RowResult::NoTokenAllowed => None,
            other => panic!("{other:?}"),
        }
    }

    /// Sets the text as it is after the newest token; says whether, and why, that was the last one.
    fn finish(
        &self,
        request: &Request,
        output: &mut CompletionOutput,
        num_tokens: usize,
    ) -> Option<(FinishReason, Option<StopReason>)> {
        let params = &request.params;
        let (&last, before) = output.token_ids.split_last()?;
        let text_before = self.text(request, before);
        output.text = self.text(request, &output.token_ids);
        let is_eos = !params.ignore_eos && last == EOS;
        let is_stop = is_eos || params.stop_token_ids.contains(&last);
        if is_stop && !params.include_stop_str_in_output {
            output.text = text_before.clone();
        }
        let past_min_tokens = output.token_ids.len() > params.min_tokens as usize;
        let stop = first_stop(&output.text, text_before.len(), &params.stop);
        if let Some((stop, start)) = stop.filter(|_| past_min_tokens) {
            let kept = if params.include_stop_str_in_output { stop.len() } else { 0 };
            output.text.truncate(start + kept);
            return Some((FinishReason::Stop, Some(StopReason::Text(stop.clone()))));
        }
        if is_stop {
            return Some((FinishReason::Stop, (!is_eos).then_some(StopReason::TokenId(last))));
        }
        let max_tokens = params.max_tokens.unwrap_or(u32::MAX) as usize;
        let full = num_tokens >= self.workload.max_model_len;
        (full || output.token_ids.len() >= max_tokens).then_some((FinishReason::Length, None))
    }
}

fn known_texts(request: &Request) -> &[KnownText] {
    match &request.asked {
        Asked::Completions | Asked::State | Asked::States => &[],
        Asked::Choices(choices) => choices.texts(),
        Asked::Rolling(text) => &text.windows,
    }
}

fn failed(output: CompletionOutput, code: &'static str) -> CompletionOutput {
    CompletionOutput { error: Some(RequestError::new(code, "")), ..output }
}

/// The stop string whose end comes first past `old_len` bytes of an ASCII text, and its start.
fn first_stop<'a>(text: &str, old_len: usize, stop: &'a [String]) -> Option<(&'a String, usize)> {
    (old_len + 1..=text.len()).find_map(|end| {
        let found = stop.iter().find(|s| text[..end].ends_with(s.as_str()))?;
        Some((found, end - found.len()))
    })
}

pub fn run_on((lora, token_ids): (Option<LoraId>, &[u32]), task: &RowTask) -> RowResult {
    let mut row = [0.0; VOCAB_SIZE];
    simulated_logits(lora, token_ids, &mut row);
    run_row(&mut row, task, &mut SamplerScratch::default())
}
