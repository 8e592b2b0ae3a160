//! `Request`: a prompt that is ready to run.

mod axes;

use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

pub use axes::axes_of;

pub use crate::media_table::FIRST_ID as FIRST_MEDIA_ID;
pub use crate::media_table::TableMedium;
use crate::plan::prefix_cache::{own_root_serial, root_serial};
use crate::plan::structured_output::Guidance;
pub(crate) use vllm_batch_api::request::{
    Asked, FinishReason, LoraId, NumLogprobs, Precedence, RowKey, SamplingParams,
};

/// A prompt with its parameters, ready to run: tokenized, validated, keyed.
#[derive(Clone, Debug)]
pub struct Request {
    /// Caller's number of the request; outputs carry it back.
    pub request_id: u64,
    /// Never empty, all in the vocabulary. Of choices: what they follow.
    pub prompt_token_ids: Vec<u32>,
    /// Media of the prompt, by position.
    pub media: Vec<MediaRun>,
    /// What is asked of the prompt.
    pub asked: Asked,
    /// Validated parameters.
    pub params: Arc<SamplingParams>,
    /// Ids that end generation with reason stop: (EOS unless ignored) then the others. Derived from
    /// `params`, tokenizer and generation_config.json as vLLM does; all are masked by `min_tokens`.
    pub stop_ids: StopIds,
    /// `params.bad_words` as token ids.
    pub bad_words_token_ids: Vec<Vec<u32>>,
    /// Key of its random numbers.
    pub row_key: RowKey,
    /// What constrains its answers. None: nothing.
    pub guidance: Option<Guidance>,
    /// The adapter that it is computed with. None: the model alone.
    pub lora: Option<LoraId>,
    /// Output tokens after which it ends as by its EOS, whatever they are: for benchmarks of
    /// weights that are made up. Unlike `max_tokens`, nothing is scheduled by it.
    pub eos_after: Option<usize>,
    /// Who goes before whom.
    pub precedence: Precedence,
}

/// Tokens of a medium that follow each other in a prompt. A medium may have several runs of them.
#[derive(Clone, Debug)]
pub struct MediaRun {
    /// Whose tokens they are.
    pub medium: Arc<TableMedium>,
    /// Positions of the prompt, which has placeholders there.
    pub positions: Range<usize>,
    /// Which of the medium's tokens is the first of them.
    pub first_token: u32,
    /// Where its medium is on all axes of positions; None: the model has one axis.
    pub axis: Option<u32>,
    /// What its tokens see besides those before them.
    pub whole: Whole,
}

/// Tokens of a prompt that see all of each other, so that one step computes them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whole {
    /// None.
    None,
    /// Those of an image.
    Image,
    /// Those of an image, where nobody asks for logits of the prompt.
    Unscored,
    /// Those of the whole prompt.
    Prompt {
        /// Its tokens.
        len: usize,
        /// Of no other request.
        number: u64,
    },
}

/// The runs of each image of a prompt, one image after the other.
pub fn images_of(media: &[MediaRun]) -> impl Iterator<Item = &[MediaRun]> {
    media.chunk_by(|_, next| next.first_token > 0)
}

/// A medium's number is that of no other one.
impl PartialEq for MediaRun {
    fn eq(&self, other: &Self) -> bool {
        let key = |run: &Self| (run.medium.number(), run.positions.clone(), run.first_token);
        key(self) == key(other)
    }
}

impl Eq for MediaRun {}

impl Hash for MediaRun {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.medium.number(), &self.positions, self.first_token).hash(state);
    }
}

impl MediaRun {
    /// Positions of the tokens that see all of each other, among which its own are.
    pub fn whole_positions(&self) -> Option<Range<usize>> {
        match self.whole {
            Whole::None => None,
            Whole::Image | Whole::Unscored => Some(self.positions.clone()),
            Whole::Prompt { len, .. } => Some(0..len),
        }
    }

    /// Ids of its tokens, above every vocabulary.
    pub fn token_ids(&self) -> Range<u32> {
        let first = self.medium.first_token_id() + self.first_token;
        first..first + self.positions.len() as u32
    }
}

/// What is known of a sequence before it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known<'a> {
    /// Its tokens; the last one is left out where none is sampled after it, as nobody reads its K,
    /// V and logits.
    pub token_ids: &'a [u32],
    /// The token that is left out; None: the last of `token_ids` is asked for the token after it,
    /// or for its state.
    pub end: Option<u32>,
    /// Positions of `token_ids` whose logits are wanted, for the known token after each.
    pub wanted: Range<usize>,
}

/// The stop token ids of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopIds {
    /// The tokenizer's EOS unless `ignore_eos`; stop_reason is null.
    pub eos_token_id: Option<u32>,
    /// User's ids and secondary EOS ids (the latter unless `ignore_eos`); stop_reason is the id.
    pub stop_token_ids: Vec<u32>,
}

/// Where a request is in its life (vLLM's `RequestStatus`, without its remote and grammar states).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestStatus {
    /// In the queue.
    Waiting,
    /// Has blocks, takes part in steps.
    Running,
    /// Lost its blocks, waits to be recomputed.
    Preempted,
    /// Done.
    Finished(FinishReason),
}

impl Request {
    /// Sequences that it is computed as, at first.
    pub fn num_sequences(&self) -> u32 {
        match &self.asked {
            Asked::Completions if self.params.beam_search.is_some() => 1,
            Asked::Completions => self.params.n,
            Asked::Choices(_) | Asked::State | Asked::States => 1,
            Asked::Rolling(text) => text.windows.len() as u32,
        }
    }

    /// What is known of one of them, or of a sequence that goes through choices at one of those.
    /// Logprobs of a prompt are the business of its first completion.
    pub fn known(&self, index: u32) -> Known<'_> {
        let (all, num_scored) = match &self.asked {
            Asked::Completions => {
                let wants = index == 0 && self.params.prompt_logprobs.is_some();
                let last = self.params.prompt_logprobs_last.map_or(usize::MAX, |n| n as usize);
                (&self.prompt_token_ids, if wants { last } else { 0 })
            }
            Asked::Choices(choices) => choices.texts()[index as usize].scored(),
            Asked::Rolling(text) => text.windows[index as usize].scored(),
            Asked::State => (&self.prompt_token_ids, 0),
            Asked::States => (&self.prompt_token_ids, usize::MAX),
        };
        let (last, before) = all.split_last().expect("no prompt is empty");
        let asks_of_last = self.samples() || self.asks_of_states();
        let (token_ids, end) = if asks_of_last { (&all[..], None) } else { (before, Some(*last)) };
        let wanted = before.len().saturating_sub(num_scored)..before.len();
        Known { token_ids, end, wanted }
    }

    /// Logprobs of each wanted position: a text is greedy where its tokens are the likeliest.
    ///
    /// # Panics
    /// None are wanted.
    pub fn prompt_logprobs(&self) -> NumLogprobs {
        match self.asked {
            Asked::Completions | Asked::State | Asked::States => {
                self.params.prompt_logprobs.expect("they were asked for")
            }
            Asked::Choices(_) | Asked::Rolling(_) => NumLogprobs::Top(1),
        }
    }

    /// Whether states are what is asked for.
    pub fn asks_of_states(&self) -> bool {
        matches!(self.asked, Asked::State | Asked::States)
    }

    /// Whether tokens are generated.
    fn samples(&self) -> bool {
        self.asked == Asked::Completions && self.params.max_tokens != Some(0)
    }

    /// Most tokens of each completion, in a context of `max_model_len` tokens.
    pub fn max_output_tokens(&self, max_model_len: usize) -> usize {
        if !self.samples() {
            return 0;
        }
        let room = max_model_len - self.prompt_token_ids.len();
        self.params.max_tokens.map_or(room, |max_tokens| room.min(max_tokens as usize))
    }

    /// What its prefix in the cache begins from.
    pub fn prefix_root(&self) -> u64 {
        match self.media.first() {
            // K and V of each token are of all that see each other.
            Some(MediaRun { whole: Whole::Prompt { number, .. }, .. }) => own_root_serial(*number),
            first => {
                let epoch = first.map_or(0, |run| run.medium.epoch());
                root_serial(self.lora.map(|LoraId(index)| index), epoch)
            }
        }
    }

    /// Tokens that the user has given: what choices follow counts once.
    pub fn num_prompt_tokens(&self) -> usize {
        let of_choices: usize = match &self.asked {
            Asked::Completions | Asked::Rolling(_) | Asked::State | Asked::States => 0,
            Asked::Choices(choices) => choices.texts().iter().map(|text| text.num_scored).sum(),
        };
        self.prompt_token_ids.len() + of_choices
    }
}
