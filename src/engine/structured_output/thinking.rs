//! The thinking before an answer: when it is over, and when its end is forced.

/// How a model thinks before it answers, and how much of that a row allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thinking {
    /// Token ids that begin it, not empty.
    pub start: Vec<u32>,
    /// Token ids that end it, not empty.
    pub end: Vec<u32>,
    /// Most tokens of it (vLLM's `thinking_token_budget`); then its end is forced.
    pub budget: Option<u32>,
}

/// The thinking of one sequence, as long as it is not over.
#[derive(Debug)]
pub(super) struct Thought {
    rules: Thinking,
    /// Its tokens so far. None: it has not begun.
    num_tokens: Option<u32>,
    /// The last tokens of prompt and output, as many as a marker has.
    last: Vec<u32>,
    /// Tokens of the end that were forced.
    num_forced: usize,
}

impl Thought {
    /// None: the prompt says that it is over, as of a template with `enable_thinking` off.
    pub(super) fn new(rules: &Thinking, prompt_token_ids: &[u32]) -> Option<Self> {
        let last_of = |marker: &[u32]| {
            let mut windows = prompt_token_ids.windows(marker.len());
            windows.rposition(|window| window == marker)
        };
        let (start, end) = (last_of(&rules.start), last_of(&rules.end));
        if end.is_some() && end > start {
            return None;
        }
        let num_tokens = start.map(|at| {
            let after = prompt_token_ids.len() - at - rules.start.len();
            u32::try_from(after).unwrap_or(u32::MAX)
        });
        let thought = Self { rules: rules.clone(), num_tokens, last: Vec::new(), num_forced: 0 };
        Some(thought)
    }

    /// The token that must come next: the end's, once the budget is used up.
    pub(super) fn forced(&self) -> Option<u32> {
        let is_over = match (self.rules.budget, self.num_tokens) {
            (Some(budget), Some(num_tokens)) => num_tokens >= budget,
            _ => false,
        };
        is_over.then(|| self.rules.end[self.num_forced])
    }

    /// Takes in the next token; true: the thinking is over.
    pub(super) fn accept(&mut self, token_id: u32) -> bool {
        if self.forced() == Some(token_id) {
            self.num_forced += 1;
            if self.num_forced == self.rules.end.len() {
                return true;
            }
        }
        let room = self.rules.start.len().max(self.rules.end.len());
        if self.last.len() == room {
            self.last.remove(0);
        }
        self.last.push(token_id);
        if self.last.ends_with(&self.rules.end) {
            return true;
        }
        match &mut self.num_tokens {
            Some(num_tokens) if self.num_forced == 0 => *num_tokens += 1,
            Some(_) => {}
            None if self.last.ends_with(&self.rules.start) => self.num_tokens = Some(0),
            None => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u32 = 1;
    const END: [u32; 2] = [2, 3];

    fn rules(budget: Option<u32>) -> Thinking {
        Thinking { start: vec![START], end: END.to_vec(), budget }
    }

    #[test]
    fn the_prompt_may_have_begun_or_ended_it() {
        assert!(Thought::new(&rules(None), &[1, 9, 2, 3]).is_none());
        assert!(Thought::new(&rules(None), &[1, 9, 2, 3, 1, 9]).is_some());
        let open = Thought::new(&rules(Some(2)), &[9, 1, 8, 8]).unwrap();
        assert_eq!(open.forced(), Some(2));
    }

    #[test]
    fn it_is_over_with_the_tokens_of_its_end() {
        let mut thought = Thought::new(&rules(None), &[9]).unwrap();
        let tokens = [1, 5, 2, 5, 2, 3];
        let over: Vec<bool> = tokens.map(|token| thought.accept(token)).to_vec();
        assert_eq!(over, [false, false, false, false, false, true]);
    }

    #[test]
    fn a_budget_forces_its_end() {
        let mut thought = Thought::new(&rules(Some(2)), &[9]).unwrap();
        let mut said = Vec::new();
        // Before it begins nothing is counted.
        for token in [7, 7, 7, START, 7, 7, 7, 7] {
            let token = thought.forced().unwrap_or(token);
            said.push(token);
            if thought.accept(token) {
                break;
            }
        }
        assert_eq!(said, [7, 7, 7, START, 7, 7, 2, 3]);
        let mut none = Thought::new(&rules(Some(0)), &[START]).unwrap();
        assert_eq!(none.forced(), Some(2));
        assert!(!none.accept(2));
        assert!(none.accept(3));
    }
}
