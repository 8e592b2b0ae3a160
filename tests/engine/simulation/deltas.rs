//! What requests that ask for deltas are told step by step: one after the other the deltas are the
//! answer, those of an aborted request its beginning.

use std::collections::HashMap;

use vllm_batch::engine::api::request::{CompletionDelta, RequestOutput, RequestOutputKind};
use vllm_batch::engine::core::request::Request;

use crate::simulation::oracle::Oracle;

#[derive(Default)]
pub struct Deltas {
    /// By request, in the order in which they came.
    of: HashMap<u64, Vec<CompletionDelta>>,
}

impl Deltas {
    /// Takes the deltas out of what a step returns.
    pub fn take_in(&mut self, output: &mut RequestOutput) {
        assert!(output.finished || !output.deltas.is_empty(), "an output of nothing");
        assert!(output.finished || output.outputs.is_empty());
        self.of.entry(output.request_id).or_default().append(&mut output.deltas);
    }

    /// The deltas of a finished request are its completions; returns how many there were.
    pub fn check(&self, request: &Request, output: &RequestOutput) -> u64 {
        let deltas = &self.of[&output.request_id];
        if request.params.output_kind == RequestOutputKind::FinalOnly {
            assert!(deltas.is_empty(), "nobody asked for {} deltas", deltas.len());
            return 0;
        }
        for completion in &output.outputs {
            let own: Vec<_> =
                deltas.iter().filter(|delta| delta.index == completion.index).collect();
            let (last, before) = own.split_last().expect("there is a last one");
            assert_eq!(last.finish_reason, Some(completion.finish_reason));
            // Each step of a sequence that goes on brings a token at least.
            let goes_on = |delta: &&&CompletionDelta| {
                delta.finish_reason.is_none() && !delta.token_ids.is_empty()
            };
            assert_eq!(before.iter().filter(goes_on).count(), before.len());
            let ids: Vec<u32> = own.iter().flat_map(|delta| delta.token_ids.clone()).collect();
            assert_eq!(ids, completion.token_ids);
            assert_eq!(text(&own), completion.text);
            let logprobs = own.iter().map(|delta| delta.logprobs.clone());
            let logprobs: Option<Vec<_>> = logprobs.collect();
            assert_eq!(logprobs.map(|all| all.concat()), completion.logprobs);
        }
        deltas.len() as u64
    }

    /// Those of a request that is not answered are the beginning of what it would have said.
    pub fn check_aborted(&mut self, oracle: &Oracle, request: &Request) {
        for index in 0..request.params.n {
            let deltas = self.of.get(&request.request_id).into_iter().flatten();
            let own: Vec<_> = deltas.filter(|delta| delta.index == index).collect();
            if own.is_empty() {
                continue;
            }
            let whole = oracle.completion(request, index);
            let ids: Vec<u32> = own.iter().flat_map(|delta| delta.token_ids.clone()).collect();
            assert!(whole.token_ids.starts_with(&ids));
            assert!(whole.text.starts_with(&text(&own)), "{:?}, {:?}", whole.text, text(&own));
        }
        self.of.remove(&request.request_id);
    }
}

fn text(deltas: &[&CompletionDelta]) -> String {
    deltas.iter().map(|delta| delta.text.as_str()).collect()
}
