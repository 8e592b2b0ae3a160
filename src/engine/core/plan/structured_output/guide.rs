//! `Guide`: what one sequence may say next.

use std::sync::Arc;

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use super::compiler::{Grammar, shown};
use super::speech::{Speech, Spoken};
use super::thinking::{Thinking, Thought};
use crate::sampler::TokenMask;
use vllm_batch_api::request::RequestError;
use vllm_batch_text::json_schema::Verdict;

/// Earley items over all masks of a row. Typical ones take some hundreds; so many take seconds.
const MAX_ITEMS: usize = 20_000_000;

/// Work of the lexer over all masks of a row, in llguidance's units. 400 tokens of usual schemas
/// take up to 80 thousand; nested counts take as much for each token, and a second for so many.
const MAX_LEXER_COST: u64 = 4_000_000;

/// What a request asks of its sequences' guides.
#[derive(Clone, Debug, Default)]
pub struct Guidance {
    /// What the answer must match, after the thinking.
    pub grammar: Option<Arc<Grammar>>,
    /// How the model thinks, where that delays the grammar or has a budget. None: it does not, or
    /// the prompt has ended it.
    pub thinking: Option<Thinking>,
    /// How a recording is written down. Nothing else is asked for then.
    pub speech: Option<Arc<Speech>>,
}

/// The masks of one sequence: a function of what was asked and of the sequence's own tokens.
#[derive(Debug)]
pub struct Guide {
    thinking: Option<Thought>,
    form: Option<Form>,
    speech: Option<Spoken>,
    /// Of the next token. None: any may come.
    mask: Option<Mask>,
    /// Output tokens that it has taken in.
    num_accepted: usize,
    /// Output tokens before the answer: its thinking.
    answer_start: usize,
    /// Why there is no mask, and after how many output tokens.
    error: Option<(usize, RequestError)>,
}

/// A guide that is to find the mask of a row of logits.
#[derive(Debug)]
pub struct GuideTask<'a> {
    /// The guide.
    pub guide: &'a mut Guide,
    /// What was said before the token that the row gives.
    pub output_token_ids: &'a [u32],
    /// The row, where its likeliest token is all that is taken.
    pub likeliest_of: Option<usize>,
}

#[derive(Debug)]
struct Mask {
    tokens: SimpleVob,
    only: Option<u32>,
    /// As in `TokenMask`.
    weighed: Option<u32>,
}

/// The grammar's part.
struct Form {
    grammar: Arc<Grammar>,
    /// Made for the first mask.
    matcher: Option<Box<Matcher>>,
    /// The tokens that must come next, as far as they are known; None: not asked for yet.
    forced: Option<Vec<u32>>,
    num_items: usize,
    lexer_cost: u64,
}

impl std::fmt::Debug for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut form = f.debug_struct("Form");
        form.field("num_items", &self.num_items).field("lexer_cost", &self.lexer_cost);
        form.finish_non_exhaustive()
    }
}

impl GuideTask<'_> {
    /// Finds the mask. The likeliest token of the row is given where it is asked for, and known.
    pub fn run(self, likeliest: Option<u32>) {
        self.guide.catch_up(self.output_token_ids);
        match likeliest {
            Some(token_id) => self.guide.fill_for_likeliest(token_id),
            None => self.guide.fill(),
        }
    }
}

impl Guide {
    /// A guide at the beginning of an answer to a prompt.
    pub fn new(guidance: &Guidance, prompt_token_ids: &[u32]) -> Self {
        let thinking = guidance.thinking.as_ref();
        let form = |grammar: &Arc<Grammar>| Form {
            grammar: Arc::clone(grammar),
            matcher: None,
            forced: None,
            num_items: 0,
            lexer_cost: 0,
        };
        Self {
            thinking: thinking.map(|rules| Thought::new(rules, prompt_token_ids)),
            form: guidance.grammar.as_ref().map(form),
            speech: guidance.speech.as_ref().map(Spoken::new),
            mask: None,
            num_accepted: 0,
            answer_start: 0,
            error: None,
        }
    }

    /// Finds which tokens may come next. Takes from microseconds to milliseconds.
    pub fn fill(&mut self) {
        self.mask = None;
        if self.error.is_some() {
            return;
        }
        let weighed = self.speech.as_ref().and_then(Spoken::weighed);
        let spoken = self.speech.as_ref().map(|speech| Ok(Some(speech.next_tokens())));
        let tokens = spoken.unwrap_or_else(|| match (&self.thinking, &mut self.form) {
            (Some(thought), Some(form)) if thought.opening().is_some() => {
                form.next_tokens().map(|tokens| {
                    let mut tokens = tokens?;
                    thought.opening().into_iter().for_each(|id| tokens.allow_token(id));
                    Some(tokens)
                })
            }
            (Some(thought), _) => Ok(thought.forced().map(single)),
            (None, Some(form)) => form.next_tokens(),
            (None, None) => Ok(None),
        });
        match tokens {
            Ok(tokens) => {
                self.mask = tokens.map(|tokens| {
                    let only = (tokens.num_set() == 1).then(|| tokens.first_bit_set()).flatten();
                    Mask { only: only.map(|id| id as u32), tokens, weighed }
                });
            }
            Err(error) => self.error = Some((self.num_accepted, error)),
        }
    }

    /// The tokens that must come after an output, as far as they are known. It is asked where the
    /// mask of the first of them is asked for next: a mask begins with the same question, so what
    /// the grammar counts does not depend on who asked first.
    pub fn forced_after(&mut self, output_token_ids: &[u32]) -> &[u32] {
        self.catch_up(output_token_ids);
        if self.error.is_some() {
            return &[];
        }
        match (&self.thinking, &mut self.form) {
            (Some(thought), _) => thought.all_forced(),
            (None, Some(form)) => form.forced(),
            (None, None) => &[],
        }
    }

    /// As `fill`, where only the likeliest of the tokens that may come is asked for: the mask has
    /// just the likeliest of all, if that one may come. To look at one token is much cheaper.
    pub fn fill_for_likeliest(&mut self, token_id: u32) {
        let form = self.form.as_mut().filter(|_| self.thinking.is_none() && self.error.is_none());
        match form.is_some_and(|form| form.allows(token_id)) {
            true => {
                self.mask =
                    Some(Mask { tokens: single(token_id), only: Some(token_id), weighed: None })
            }
            false => self.fill(),
        }
    }

    /// The tokens that may come next, as `fill` found them. None: any.
    pub fn mask(&self) -> Option<TokenMask<'_>> {
        let mask = self.mask.as_ref()?;
        let Mask { tokens, only, weighed } = mask;
        Some(TokenMask { words: tokens.as_slice(), only: *only, weighed: *weighed })
    }

    /// Goes on by the tokens of an output that it has not seen. They were sampled, as the work of a
    /// guide counts: a draft may be among them once it is known to be right.
    pub fn catch_up(&mut self, output_token_ids: &[u32]) {
        output_token_ids[self.num_accepted..].iter().for_each(|&token_id| self.accept(token_id));
    }

    /// Goes on by a token that was sampled.
    pub fn accept(&mut self, token_id: u32) {
        self.num_accepted += 1;
        if let Some(speech) = &mut self.speech {
            return speech.accept(token_id);
        }
        if let Some(thought) = &mut self.thinking {
            let answers = thought.opening().is_some_and(|opening| opening != token_id);
            if answers || thought.accept(token_id) {
                self.thinking = None;
                self.answer_start = self.num_accepted - usize::from(answers);
            }
            if !answers {
                return;
            }
        }
        let Some(form) = &mut self.form else { return };
        if self.error.is_none()
            && let Err(error) = form.accept(token_id)
        {
            self.error = Some((self.num_accepted, error));
        }
    }

    /// Why there is no token after so many of the output. The guide may be ahead of the sequence by
    /// drafts that were right.
    pub fn error_after(&self, num_output_tokens: usize) -> Option<&RequestError> {
        self.error.as_ref().filter(|(num, _)| *num <= num_output_tokens).map(|(_, error)| error)
    }

    /// Whether what was said matches the grammar as a whole; true without one.
    pub fn is_complete(&mut self) -> bool {
        match (&self.thinking, &mut self.form) {
            (_, None) => true,
            (Some(_), Some(_)) => false,
            (None, Some(form)) => form.is_complete(),
        }
    }

    /// How many tokens of the output come before the answer.
    pub fn answer_start(&self) -> usize {
        self.answer_start
    }

    /// Why a finished answer is an error: it is not as the schema says, in what no mask keeps to.
    pub fn mismatch(&self, answer: &str) -> Option<RequestError> {
        let validator = self.form.as_ref()?.grammar.validator.as_ref()?;
        let verdict = match serde_json::from_str(answer.trim()) {
            Ok(value) => validator.judge(value),
            Err(error) => Verdict::Invalid(error.to_string()),
        };
        let what = match verdict {
            Verdict::Valid => return None,
            Verdict::Invalid(what) => format!("the answer does not match the schema: {what}"),
            Verdict::TooMuch(what) => format!("the answer cannot be validated: {what}"),
        };
        let message = format!(
            "{what}; help: this schema has keywords that are validated at the end and not masked: \
             write it without them, or use another seed; the answer: {answer}"
        );
        Some(RequestError::new("schema_mismatch", message))
    }

    /// Whether tokens, as a whole answer, match the grammar; true without one. For texts that were
    /// cut after they were sampled.
    pub fn matches(&self, token_ids: &[u32]) -> bool {
        let Some(form) = &self.form else { return true };
        let mut matcher = form.grammar.matcher();
        let taken = matcher.try_consume_tokens(token_ids);
        taken.is_ok_and(|taken| taken == token_ids.len()) && matcher.is_accepting().unwrap_or(false)
    }
}

/// A mask of one token.
fn single(token_id: u32) -> SimpleVob {
    let mut tokens = SimpleVob::alloc(token_id as usize + 1);
    tokens.set(token_id as usize, true);
    tokens
}

impl Form {
    fn matcher(&mut self) -> &mut Matcher {
        self.matcher.get_or_insert_with(|| Box::new(self.grammar.matcher()))
    }

    fn next_tokens(&mut self) -> Result<Option<SimpleVob>, RequestError> {
        let matcher = self.matcher();
        // `ignore_eos`: what comes after the end is free.
        if matcher.stop_reason() == llguidance::api::StopReason::EndOfSentence {
            return Ok(None);
        }
        let tokens = matcher.compute_mask_or_eos().map_err(too_complex)?;
        let (num_items, cost) =
            matcher.last_step_stats().map_or((0, 0), |stats| (stats.all_items, stats.lexer_cost));
        self.num_items += num_items;
        self.lexer_cost += cost;
        if self.num_items > MAX_ITEMS {
            return Err(too_complex(format!("more than {MAX_ITEMS} items")));
        }
        if self.lexer_cost > MAX_LEXER_COST {
            return Err(too_complex(format!("more than {MAX_LEXER_COST} units of the lexer")));
        }
        Ok(Some(tokens))
    }

    /// The tokens that spell what must come next. The matcher keeps them for its mask.
    fn forced(&mut self) -> &[u32] {
        let matcher = self.matcher.get_or_insert_with(|| Box::new(self.grammar.matcher()));
        self.forced.get_or_insert_with(|| match matcher.is_stopped() {
            true => Vec::new(),
            false => matcher.compute_ff_tokens(),
        })
    }

    /// Whether `next_tokens` would have the token; false where that must say it.
    fn allows(&mut self, token_id: u32) -> bool {
        // Of the tokens that spell what is forced, a mask has the tokenizer's own alone.
        if !self.forced().is_empty() {
            return false;
        }
        let matcher = self.matcher();
        !matcher.is_stopped()
            && matcher.validate_tokens(&[token_id]).is_ok_and(|num_valid| num_valid == 1)
    }

    fn accept(&mut self, token_id: u32) -> Result<(), RequestError> {
        self.forced = None;
        let matcher = self.matcher();
        // An end token after the end, or what follows it with `ignore_eos`.
        if matcher.is_stopped() && matcher.get_error().is_none() {
            return Ok(());
        }
        matcher.consume_token(token_id).map_err(too_complex)
    }

    fn is_complete(&mut self) -> bool {
        let matcher = self.matcher();
        let stopped = matcher.is_stopped() && matcher.get_error().is_none();
        stopped || matcher.is_accepting().unwrap_or(false)
    }
}

fn too_complex(error: impl std::fmt::Display) -> RequestError {
    let error = shown(&error);
    let message = format!(
        "structured_outputs: the grammar takes more work than a row may ({error}); make it less \
         ambiguous, or its counts smaller"
    );
    RequestError::new("structured_outputs", message)
}
