//! Likelihoods of texts in output rows.

use super::RowWriter;
use crate::input::row::Likelihoods;
use vllm_batch_api::request::{Likelihood, Scored};

impl RowWriter<'_> {
    /// The field with the answer. Minus infinity has no JSON and is null.
    pub(super) fn scored(&mut self, scored: &Scored) {
        match scored {
            Scored::Choices(choices) => {
                self.key(Likelihoods::CHOICE_LOGPROBS);
                self.list(choices, |row, choice| {
                    let Likelihood { logprob, is_greedy, num_tokens } = choice;
                    row.out.push(b'{');
                    row.field("logprob", logprob);
                    row.field("is_greedy", is_greedy);
                    row.field("num_tokens", num_tokens);
                    row.out.push(b'}');
                });
            }
            Scored::Rolling { total, num_words, num_bytes } => {
                self.object(Likelihoods::LOGLIKELIHOOD, |row| {
                    row.field("logprob", &total.logprob);
                    row.field("num_tokens", &total.num_tokens);
                    row.field("num_words", num_words);
                    row.field("num_bytes", num_bytes);
                });
            }
        }
    }
}
