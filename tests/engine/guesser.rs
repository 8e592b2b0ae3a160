//! A proposer that knows what rows will say, and says it or not.

use std::collections::HashMap;

use vllm_batch::engine::core::execute::executor::ExecutorError;
use vllm_batch::engine::core::plan::scheduler::DraftStep;
use vllm_batch::engine::core::plan::speculation::Proposer;

use crate::random::Rng;

/// How often a guess is right.
#[derive(Clone, Copy, Debug)]
pub enum Skill {
    Perfect,
    AlwaysWrong,
    Random,
    Mostly,
}

/// Guesses as many tokens as there is room for.
pub struct Guesser {
    pub rng: Rng,
    pub skill: Skill,
    pub vocab_size: usize,
    /// By request and index of the completion.
    pub answers: HashMap<(u64, u32), Vec<u32>>,
}

impl Guesser {
    /// A guess of a row's next token; none after its last one.
    fn guess(&mut self, id: (u64, u32), num_said: usize) -> Option<u32> {
        let any = self.rng.up_to(self.vocab_size - 1) as u32;
        let Some(answer) = self.answers.get(&id) else { return Some(any) };
        let right = *answer.get(num_said)?;
        let wrong = (right + 1) % self.vocab_size as u32;
        Some(match self.skill {
            Skill::Perfect => right,
            Skill::AlwaysWrong => wrong,
            Skill::Random => any,
            Skill::Mostly => [right, right, right, wrong][self.rng.up_to(3)],
        })
    }
}

impl Proposer for Guesser {
    fn propose(&mut self, step: &mut DraftStep<'_>) -> Result<(), ExecutorError> {
        for place in 0..step.num_seqs() {
            for _ in 0..step.room(place) {
                let seq = step.seq(place);
                let id = (seq.request.request_id, seq.index);
                let num_said = seq.output_token_ids().len() + seq.num_drafts;
                if !self.guess(id, num_said).is_some_and(|token_id| step.push(place, token_id)) {
                    break;
                }
            }
        }
        Ok(())
    }
}
