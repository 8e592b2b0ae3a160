//! What Whisper may say next: the tokens in front of a text, tokens that it never says, and where
//! timestamps may stand. As `WhisperTimeStampLogitsProcessor` and `SuppressTokensLogitsProcessor`
//! of transformers have it.

use std::sync::Arc;

use llguidance::toktrie::SimpleVob;

/// Tokens of a model that writes down recordings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeechTokens {
    /// Number of all tokens.
    pub vocab_size: usize,
    /// What ends a text.
    pub end: u32,
    /// It says that a text has no timestamps. That of 0 seconds is the one behind it.
    pub no_timestamps: u32,
    /// Tokens that no text has.
    pub suppressed: Vec<u32>,
    /// Tokens that no text begins with.
    pub suppressed_at_begin: Vec<u32>,
    /// The latest timestamp that a text may begin with, counted from that of 0 seconds.
    pub max_initial_timestamp: Option<u32>,
}

/// A token in front of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prelude {
    /// This one.
    Only(u32),
    /// The likeliest of these: languages.
    AnyOf(Arc<[u32]>),
}

/// What is asked of an answer.
#[derive(Clone, Debug)]
pub struct Speech {
    /// Tokens of the model.
    pub tokens: Arc<SpeechTokens>,
    /// What the answer begins with.
    pub prelude: Vec<Prelude>,
    /// The text has timestamps.
    pub has_timestamps: bool,
}

/// An answer in the making.
#[derive(Debug)]
pub(super) struct Spoken {
    asked: Arc<Speech>,
    /// Tokens so far.
    num_tokens: usize,
    /// Of the last token of the text and the one before, whether they are timestamps.
    last: [Option<bool>; 2],
    /// The last timestamp.
    timestamp: Option<u32>,
}

impl SpeechTokens {
    /// The timestamp of 0 seconds.
    pub fn first_timestamp(&self) -> u32 {
        self.no_timestamps + 1
    }

    fn all_but_suppressed(&self) -> SimpleVob {
        let mut tokens = SimpleVob::alloc(self.vocab_size);
        tokens.set_all(true);
        self.suppressed.iter().for_each(|id| forbid(&mut tokens, *id));
        tokens
    }
}

fn forbid(tokens: &mut SimpleVob, id: u32) {
    if (id as usize) < tokens.len() {
        tokens.disallow_token(id);
    }
}

impl Spoken {
    pub(super) fn new(asked: &Arc<Speech>) -> Self {
        Self { asked: Arc::clone(asked), num_tokens: 0, last: [None; 2], timestamp: None }
    }

    /// Tokens in front of the text.
    fn num_before(&self) -> usize {
        self.asked.prelude.len()
    }

    /// Goes on by a token that was sampled.
    pub(super) fn accept(&mut self, token_id: u32) {
        self.num_tokens += 1;
        if self.num_tokens <= self.num_before() {
            return;
        }
        let is_timestamp = token_id >= self.asked.tokens.first_timestamp();
        self.last = [Some(is_timestamp), self.last[0]];
        if is_timestamp {
            self.timestamp = Some(token_id);
        }
    }

    /// The first timestamp, where a token of the text may be one: they are to be weighed against
    /// all others together.
    pub(super) fn weighed(&self) -> Option<u32> {
        let is_text = self.num_tokens >= self.num_before();
        (is_text && self.asked.has_timestamps).then(|| self.asked.tokens.first_timestamp())
    }

    /// The tokens that may come next.
    pub(super) fn next_tokens(&self) -> SimpleVob {
        let Speech { tokens: known, prelude, has_timestamps } = &*self.asked;
        match prelude.get(self.num_tokens) {
            Some(Prelude::Only(id)) => return only(known.vocab_size, &[*id]),
            Some(Prelude::AnyOf(ids)) => return only(known.vocab_size, ids),
            None => {}
        }
        let is_first = self.num_tokens == self.num_before();
        let mut tokens = known.all_but_suppressed();
        if is_first {
            known.suppressed_at_begin.iter().for_each(|id| forbid(&mut tokens, *id));
        }
        if *has_timestamps {
            self.forbid_by_timestamps(&mut tokens, is_first);
        }
        tokens
    }

    /// Timestamps stand in pairs, but for one before the end; and none is before another.
    fn forbid_by_timestamps(&self, tokens: &mut SimpleVob, is_first: bool) {
        let known = &self.asked.tokens;
        let (first, num) = (known.first_timestamp(), known.vocab_size as u32);
        forbid(tokens, known.no_timestamps);
        let is_open = self.last[0] == Some(true) && self.last[1] == Some(false);
        match self.last {
            [Some(true), Some(true) | None] => (first..num).for_each(|id| forbid(tokens, id)),
            [Some(true), Some(false)] => (0..known.end).for_each(|id| forbid(tokens, id)),
            _ => {}
        }
        if let Some(last) = self.timestamp {
            let least = if is_open { last } else { last + 1 };
            (first..least).for_each(|id| forbid(tokens, id));
        }
        if is_first {
            (0..first).for_each(|id| forbid(tokens, id));
            let most = known.max_initial_timestamp.map_or(num, |most| first + most + 1);
            (most..num).for_each(|id| forbid(tokens, id));
        }
    }
}

/// A mask of these tokens.
fn only(vocab_size: usize, ids: &[u32]) -> SimpleVob {
    let mut tokens = SimpleVob::alloc(vocab_size);
    ids.iter().filter(|id| (**id as usize) < vocab_size).for_each(|id| tokens.allow_token(*id));
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens 0 to 3 are texts, 4 ends, 5 to 8 are special, from 9 on are timestamps.
    fn spoken(prelude: Vec<Prelude>, has_timestamps: bool) -> Spoken {
        let tokens = SpeechTokens {
            vocab_size: 14,
            end: 4,
            no_timestamps: 8,
            suppressed: vec![5, 6, 7],
            suppressed_at_begin: vec![0, 4],
            max_initial_timestamp: Some(2),
        };
        Spoken::new(&Arc::new(Speech { tokens: Arc::new(tokens), prelude, has_timestamps }))
    }

    fn allowed(spoken: &Spoken) -> Vec<u32> {
        let tokens = spoken.next_tokens();
        (0..14).filter(|id| tokens.is_allowed(*id)).collect()
    }

    #[test]
    fn an_answer_begins_with_its_prelude_and_with_no_token_that_is_suppressed() {
        let prelude = vec![Prelude::AnyOf([5, 6].into()), Prelude::Only(8)];
        let mut spoken = spoken(prelude, false);
        assert_eq!((allowed(&spoken), spoken.weighed()), (vec![5, 6], None));
        spoken.accept(6);
        assert_eq!(allowed(&spoken), [8]);
        spoken.accept(8);
        assert_eq!(allowed(&spoken), [1, 2, 3, 8, 9, 10, 11, 12, 13]);
        spoken.accept(1);
        assert_eq!(allowed(&spoken), [0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13]);
    }

    /// As the processors of transformers 5.24 mask the same tokens.
    #[test]
    fn timestamps_stand_in_pairs_and_do_not_go_back() {
        let mut spoken = spoken(Vec::new(), true);
        assert_eq!((allowed(&spoken), spoken.weighed()), (vec![9, 10, 11], Some(9)));
        spoken.accept(10);
        assert_eq!(allowed(&spoken), [0, 1, 2, 3, 4], "text behind the first one");
        spoken.accept(2);
        assert_eq!(allowed(&spoken), [0, 1, 2, 3, 4, 11, 12, 13], "a later one ends the text");
        spoken.accept(12);
        assert_eq!(allowed(&spoken), [4, 12, 13], "the end, or another begins");
        spoken.accept(12);
        assert_eq!(allowed(&spoken), [0, 1, 2, 3, 4]);
    }
}
