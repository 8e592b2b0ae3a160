//! What ends an answer, and words that it never has, as token ids.

use std::collections::HashSet;

use super::{InputProcessor, ProcessError};
use crate::request::StopIds;
use vllm_batch_api::request::SamplingParams;

impl InputProcessor {
    /// vLLM's EOS rules: the tokenizer's EOS is the primary one; the other EOS ids of
    /// generation_config.json stop like the user's stop ids; `ignore_eos` leaves the user's only.
    pub(super) fn stop_ids(&self, params: &SamplingParams) -> StopIds {
        let mut stop_token_ids = params.stop_token_ids.clone();
        if params.ignore_eos {
            return StopIds { eos_token_id: None, stop_token_ids };
        }
        let all = &self.generation_config.eos_token_ids;
        let primary = self.tokenizer.eos_token_id().or_else(|| all.first().copied());
        let mut known: HashSet<u32> = stop_token_ids.iter().copied().chain(primary).collect();
        stop_token_ids.extend(all.iter().filter(|&&id| known.insert(id)));
        StopIds { eos_token_id: primary, stop_token_ids }
    }

    /// Each word as it is tokenized at the start of a text and after a space, as vLLM does it.
    pub(super) fn bad_words_token_ids(
        &self,
        params: &SamplingParams,
    ) -> Result<Vec<Vec<u32>>, ProcessError> {
        let mut all: Vec<Vec<u32>> = Vec::new();
        for word in &params.bad_words {
            let bare = word.trim_start();
            let plain = self.tokenizer.encode(bare, false)?;
            let spaced = self.tokenizer.encode(&format!(" {bare}"), false)?;
            let differs = spaced.len() == plain.len() && spaced.first() != plain.first();
            all.push(plain);
            if differs {
                all.push(spaced);
            }
        }
        all.retain(|ids| !ids.is_empty());
        Ok(all)
    }
}
