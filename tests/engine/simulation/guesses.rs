//! Guesses of what rows say next, with random limits in each step.

use vllm_batch::engine::api::request::Asked;
use vllm_batch::engine::core::plan::scheduler::{DraftLimits, Scheduled, Scheduler};
use vllm_batch::engine::core::plan::speculation::Proposer;

use crate::guesser::{Guesser, Skill};
use crate::random::Rng;
use crate::simulation::oracle::Oracle;
use crate::simulation::workload::VOCAB_SIZE;

pub struct Guesses {
    guesser: Guesser,
    paced: bool,
    max_per_row: usize,
}

impl Guesses {
    pub fn new(rng: &mut Rng, oracle: &Oracle) -> Self {
        let requests = oracle.workload.requests.iter().filter(|request| {
            request.asked == Asked::Completions && request.params.beam_search.is_none()
        });
        let completions = requests.flat_map(|request| {
            (0..request.params.n).map(move |index| {
                let answer = oracle.completion(request, index);
                ((request.request_id, index), answer.token_ids)
            })
        });
        let skills = [Skill::Perfect, Skill::AlwaysWrong, Skill::Random, Skill::Mostly];
        let guesser = Guesser {
            answers: completions.collect(),
            skill: skills[rng.up_to(3)],
            vocab_size: VOCAB_SIZE,
            rng: Rng(rng.up_to(usize::MAX - 1) as u64),
        };
        Self { guesser, paced: rng.once_in(2), max_per_row: 1 + rng.up_to(7) }
    }

    pub fn add_to(&mut self, scheduler: &mut Scheduler, step: &mut Scheduled) {
        let rng = &mut self.guesser.rng;
        let limits = DraftLimits {
            per_row: rng.up_to(self.max_per_row),
            per_step: rng.up_to(30),
            max_step_tokens: rng.up_to(80),
            in_rounds: rng.once_in(2),
            paced: self.paced,
        };
        let num_known = step.num_tokens;
        self.guesser.propose(&mut scheduler.draft_step(step, limits)).expect("it cannot fail");
        let num_drafts: usize = step.seqs.iter().map(|entry| entry.num_drafts).sum();
        assert_eq!(step.num_tokens, num_known + num_drafts);
        assert!(num_drafts <= limits.per_step);
        assert!(num_drafts == 0 || step.num_tokens <= limits.max_step_tokens);
        assert!(step.seqs.iter().all(|entry| entry.num_drafts <= limits.per_row));
    }
}
