//! The thinking before an answer: when it is over, and when its end is forced.

/// How a model thinks before it answers, and how much of that a row allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thinking {
    /// Token ids that begin it, not empty.
    pub start: Vec<u32>,
    /// Token ids that end it, not empty.
    pub end: Vec<u32>,
    /// It may be left out: without its start the answer begins at once.
    pub is_optional: bool,
    /// Most tokens of it (vLLM's `thinking_token_budget`); then its end is forced.
    pub budget: Option<u32>,
}

/// The place of a marker's last occurrence among tokens.
fn last_of(marker: &[u32], token_ids: &[u32]) -> Option<usize> {
    token_ids.windows(marker.len()).rposition(|window| window == marker)
}

impl Thinking {
    /// The tokens of a prompt after the last end of thinking, if none begins after it.
    pub fn after_end<'a>(&self, prompt_token_ids: &'a [u32]) -> Option<&'a [u32]> {
        let end = last_of(&self.end, prompt_token_ids)?;
        let is_last = last_of(&self.start, prompt_token_ids).is_none_or(|start| start < end);
        is_last.then(|| &prompt_token_ids[end + self.end.len()..])
    }

    /// Tokens of thinking that a prompt ends with, without the marker; None: it ends in none.
    fn begun(&self, prompt_token_ids: &[u32]) -> Option<u32> {
        let start = last_of(&self.start, prompt_token_ids)?;
        let is_open = last_of(&self.end, prompt_token_ids).is_none_or(|end| end < start);
        let num_tokens = prompt_token_ids.len() - start - self.start.len();
        is_open.then_some(u32::try_from(num_tokens).unwrap_or(u32::MAX))
    }
}

/// The thinking of one sequence, as long as it is not over.
#[derive(Debug)]
pub(super) struct Thought {
    rules: Thinking,
    /// Its tokens so far. None: it has not begun.
    num_tokens: Option<u32>,
    /// The last tokens of the output, as many as a marker has.
    last: Vec<u32>,
    /// Tokens of the end that were forced.
    num_forced: usize,
    /// The first token decides whether there is any.
    is_undecided: bool,
}

impl Thought {
    /// The thinking after a prompt in which it is not over. What earlier turns thought does not
    /// count: their ends come after their starts.
    pub(super) fn new(rules: &Thinking, prompt_token_ids: &[u32]) -> Self {
        let num_tokens = rules.begun(prompt_token_ids);
        Self {
            rules: rules.clone(),
            num_tokens,
            last: Vec::new(),
            num_forced: 0,
            is_undecided: rules.is_optional && num_tokens.is_none(),
        }
    }

    /// The token that would begin it, where the next token decides whether there is thinking.
    pub(super) fn opening(&self) -> Option<u32> {
        self.is_undecided.then(|| self.rules.start[0])
    }

    /// The token that must come next, if one must.
    pub(super) fn forced(&self) -> Option<u32> {
        self.all_forced().first().copied()
    }

    /// The tokens that must come next: the end's, once the budget is used up; the rest of the
    /// start, once its first token has decided for it.
    pub(super) fn all_forced(&self) -> &[u32] {
        let begins = self.rules.is_optional && self.num_tokens.is_none() && !self.is_undecided;
        if begins {
            return &self.rules.start[self.last.len()..];
        }
        let is_over = match (self.rules.budget, self.num_tokens) {
            (Some(budget), Some(num_tokens)) => num_tokens >= budget,
            _ => false,
        };
        if is_over { &self.rules.end[self.num_forced..] } else { &[] }
    }

    /// Takes in the next token; true: the thinking is over.
    pub(super) fn accept(&mut self, token_id: u32) -> bool {
        let is_end = self.num_tokens.is_some() && self.forced() == Some(token_id);
        self.is_undecided = false;
        if is_end {
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
        Thinking { start: vec![START], end: END.to_vec(), is_optional: false, budget }
    }

    #[test]
    fn the_prompt_may_have_begun_or_ended_it() {
        let rules = rules(Some(2));
        assert_eq!(rules.after_end(&[1, 9, 2, 3, 7]), Some(&[7][..]));
        assert_eq!(rules.after_end(&[1, 9, 2, 3, 1, 9]), None);
        assert_eq!(rules.after_end(&[9]), None);
        assert_eq!(Thought::new(&rules, &[9, 1, 8, 8]).forced(), Some(2));
        // An earlier turn's.
        assert_eq!(Thought::new(&rules, &[1, 8, 8, 2, 3, 9]).forced(), None);
    }

    #[test]
    fn it_is_over_with_the_tokens_of_its_end() {
        let mut thought = Thought::new(&rules(None), &[9]);
        let tokens = [1, 5, 2, 5, 2, 3];
        let over: Vec<bool> = tokens.map(|token| thought.accept(token)).to_vec();
        assert_eq!(over, [false, false, false, false, false, true]);
    }

    #[test]
    fn a_budget_forces_its_end() {
        let mut thought = Thought::new(&rules(Some(2)), &[9]);
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
        let mut none = Thought::new(&rules(Some(0)), &[START]);
        assert_eq!((none.forced(), none.all_forced()), (Some(2), &END[..]));
        assert!(!none.accept(2));
        assert!(none.accept(3));
    }

    #[test]
    fn where_it_is_optional_the_first_token_decides() {
        let rules = Thinking { start: vec![1, 4], is_optional: true, ..rules(None) };
        let mut thought = Thought::new(&rules, &[9]);
        assert_eq!((thought.opening(), thought.forced()), (Some(1), None));
        assert!(!thought.accept(1));
        assert_eq!((thought.opening(), thought.forced()), (None, Some(4)));
        assert_eq!(thought.all_forced(), [4]);
        assert!(!thought.accept(4));
        assert_eq!(thought.forced(), None);
        assert!(!thought.accept(2) && thought.accept(3));
        assert_eq!(Thought::new(&rules, &[1, 4]).opening(), None);
    }
}
