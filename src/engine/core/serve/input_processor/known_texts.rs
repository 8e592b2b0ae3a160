//! From texts whose likelihoods are asked for to their tokens, by the rules of
//! lm-evaluation-harness 0.4.13 (`TemplateLM._encode_pair`, `loglikelihood`,
//! `HFLM.loglikelihood_rolling`).
//!
//! ```text
//! context " Q: 2+2= "     choice "4"        white space at the end goes over to the choice
//! encode  " Q: 2+2="      encode " Q: 2+2=  4"
//! ids     c c c c c       . . . . . s s     s: those after as many as the context has
//! scored  c c c c c s s
//! ```

use super::{InputProcessor, Overflow, ProcessError};
use vllm_batch_api::prompt::{Choices, Prompt};
use vllm_batch_api::request::{Asked, ChoiceTexts, KnownText, RequestError, RollingText};
use vllm_batch_api::sampling_params::MAX_N;
use vllm_batch_text::{RenderedChat, is_space};

/// What choices follow.
enum Context {
    Text(String),
    Chat(RenderedChat),
    TokenIds(Vec<u32>),
}

/// The harness's `target_delimiter`: it stands between a text and a choice.
const DELIMITER: &str = " ";

impl InputProcessor {
    /// The context's tokens, and those of every choice after it.
    pub(super) fn choices(&self, asked: Choices) -> Result<(Vec<u32>, Asked), ProcessError> {
        let Choices { context, choices } = asked;
        if choices.is_empty() || choices.len() > MAX_N as usize {
            let message = format!("choices: expected 1 to {MAX_N} texts, got {}", choices.len());
            return Err(RequestError::new("invalid_prompt", message).into());
        }
        let (context, delimiter) = self.context(context)?;
        let context_ids = self.encode_after(&context, "")?;
        let texts = choices.iter().enumerate().map(|(index, choice)| {
            let ending = format!("{delimiter}{choice}");
            let text = self.after(&context, &context_ids, &ending)?;
            Ok(self.fit_known(text, &format!("choice {index}"))?)
        });
        let texts: Vec<KnownText> = texts.collect::<Result<_, ProcessError>>()?;
        let (first, num_scored) = (&texts[0].token_ids, texts[0].num_scored);
        let prompt = first[..first.len() - num_scored].to_vec();
        Ok((prompt, Asked::Choices(ChoiceTexts::new(texts))))
    }

    /// The text's tokens, and their windows.
    pub(super) fn rolling(&self, text: &str) -> Result<(Vec<u32>, Asked), ProcessError> {
        let ids = self.encode_as_harness(text)?;
        self.check_ids(&ids)?;
        let windows = KnownText::windows(&ids, self.prefix_id()?, self.limits.max_model_len);
        let (num_words, num_bytes) = (num_words(text), text.len());
        Ok((ids, Asked::Rolling(RollingText { windows, num_words, num_bytes })))
    }

    /// What choices follow, and what stands between: the delimiter, or what was at its end.
    fn context(&self, prompt: Prompt) -> Result<(Context, String), ProcessError> {
        Ok(match prompt {
            Prompt::Text(text) => {
                let (kept, moved) = text.split_at(text.trim_end_matches(is_space).len());
                (Context::Text(kept.to_owned()), format!("{moved}{DELIMITER}"))
            }
            // The harness puts nothing between a chat and a choice.
            Prompt::Messages(chat) => {
                let (kept, moved) = self.render(&chat)?.without_trailing_space();
                (Context::Chat(kept), moved)
            }
            other => (Context::TokenIds(self.tokenize(other, false)?), DELIMITER.to_owned()),
        })
    }

    /// A choice after a context.
    fn after(
        &self,
        context: &Context,
        context_ids: &[u32],
        ending: &str,
    ) -> Result<KnownText, ProcessError> {
        if let Context::TokenIds(_) = context {
            return Ok(joined(context_ids, &self.tokenizer.encode_special(ending)?));
        }
        if !context_ids.is_empty() {
            let whole = self.encode_after(context, ending)?;
            return Ok(joined(context_ids, whole.get(context_ids.len()..).unwrap_or_default()));
        }
        let (prefix, ids) = (self.prefix_id()?, self.tokenizer.encode(ending, false)?);
        match ids.split_first() {
            Some((first, rest)) if *first == prefix => Ok(joined(&[prefix], rest)),
            _ => Ok(joined(&[prefix], &ids)),
        }
    }

    /// Tokens of a context with a text behind it; none of an empty text alone.
    fn encode_after(&self, context: &Context, ending: &str) -> Result<Vec<u32>, ProcessError> {
        Ok(match context {
            Context::Text(text) if text.is_empty() && ending.is_empty() => Vec::new(),
            Context::Text(text) => self.encode_as_harness(&format!("{text}{ending}"))?,
            Context::Chat(chat) => self.tokenizer.encode_chat(&chat.followed_by(ending))?,
            Context::TokenIds(ids) => ids.clone(),
        })
    }

    /// Tokens of a text, with special ones around it unless it begins with the first of them.
    fn encode_as_harness(&self, text: &str) -> Result<Vec<u32>, ProcessError> {
        let prefix = self.tokenizer.bos_token().or(self.tokenizer.eos_token());
        let has_prefix = prefix.is_some_and(|prefix| text.starts_with(prefix));
        Ok(self.tokenizer.encode(text, !has_prefix)?)
    }

    /// The token that stands before a text where nothing else does.
    fn prefix_id(&self) -> Result<u32, RequestError> {
        let prefix = self.tokenizer.bos_token_id().or(self.tokenizer.eos_token_id());
        prefix.ok_or_else(|| {
            let message = "nothing is before the first token of the text, and the tokenizer has no \
                           BOS and no EOS to stand there";
            RequestError::new("empty_prompt", message)
        })
    }

    /// Cuts a text at its beginning where the context does not hold it. Its last token need not
    /// fit, since nothing is computed after it.
    fn fit_known(&self, mut text: KnownText, name: &str) -> Result<KnownText, RequestError> {
        let max_model_len = self.limits.max_model_len;
        self.check_ids(&text.token_ids)?;
        if text.num_scored == 0 {
            let message = format!("{name} has no tokens of its own after the prompt");
            return Err(RequestError::new("invalid_prompt", message));
        }
        let num_tokens = text.token_ids.len();
        if num_tokens <= max_model_len + 1 {
            return Ok(text);
        }
        if self.overflow == Overflow::TruncateLeft && text.num_scored <= max_model_len {
            text.token_ids.drain(..num_tokens - max_model_len - 1);
            return Ok(text);
        }
        let message = format!(
            "{name} and what it follows have {num_tokens} tokens, the limit is {}; shorten them, or \
             cut the beginning with `settings.overflow` truncate-left, as lm-evaluation-harness does",
            max_model_len + 1
        );
        Err(RequestError::new("context_length", message))
    }
}

/// Python's `len(re.split(r"\s+", text))`: one more than there are runs of white space.
fn num_words(text: &str) -> usize {
    let begins_run = |was_space: &mut bool, c: char| {
        let was_space = std::mem::replace(was_space, is_space(c));
        Some(is_space(c) && !was_space)
    };
    1 + text.chars().scan(false, begins_run).filter(|begins| *begins).count()
}

fn joined(context: &[u32], scored: &[u32]) -> KnownText {
    KnownText { token_ids: [context, scored].concat(), num_scored: scored.len() }
}
