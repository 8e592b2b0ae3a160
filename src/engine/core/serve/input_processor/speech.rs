//! Recordings that are written down: from a sound to a prompt of Whisper, and what its answer
//! begins with.

use std::sync::Arc;

use serde_json::Value;

use super::media::no_images;
use super::{InputProcessor, ProcessError};
use crate::media_table::MediaTable;
use crate::plan::structured_output::{Prelude, Speech, SpeechTokens};
use crate::request::{MediaRun, Whole};
use vllm_batch_api::prompt::WithMedia;
use vllm_batch_api::request::{RequestError, SamplingParams, SpeechParams, SpeechTask};
use vllm_batch_media::MediaKind;
use vllm_batch_text::{AnswerParser, Chat, Language};

/// What the prompts of a model have that writes down recordings.
#[derive(Debug)]
pub struct SpeechInput {
    /// What a transcript begins with.
    pub start: u32,
    /// What a text before the transcript begins with, where the model has that.
    pub before: Option<u32>,
    /// What says that it is a transcript, or a translation, where the model has that.
    pub tasks: [Option<u32>; 2],
    /// Languages and their tokens; empty: the model knows English alone.
    pub languages: Vec<(Language, u32)>,
    /// Other tokens.
    pub tokens: Arc<SpeechTokens>,
}

/// A prompt, and what its answer begins with and has.
pub(super) type SpokenPrompt = (Vec<u32>, Vec<MediaRun>, Arc<Speech>);

impl SpeechInput {
    /// What stands between the beginning and the text: what is known of it, then what the answer
    /// has to begin with.
    fn prelude(&self, params: &SpeechParams) -> Result<(Vec<u32>, Vec<Prelude>), RequestError> {
        let SpeechParams { language, task, return_timestamps } = params;
        let [transcribe, translate] = self.tasks;
        let no_timestamps = (!return_timestamps).then_some(self.tokens.no_timestamps);
        if self.languages.is_empty() {
            if let Some(name) = language
                && Language::find(name).is_none_or(|known| known.code != "en")
            {
                return Err(refused(format!(
                    "language: the model knows English alone, not {name}"
                )));
            }
            return match task {
                SpeechTask::Translate => {
                    Err(refused("translate: the model knows English alone, and translates nothing"))
                }
                SpeechTask::Transcribe => Ok((no_timestamps.into_iter().collect(), Vec::new())),
            };
        }
        let task = match task {
            SpeechTask::Transcribe => transcribe,
            SpeechTask::Translate => translate,
        };
        let task = task.ok_or_else(|| refused("translate: the model has no token for the task"))?;
        let behind = [task].into_iter().chain(no_timestamps);
        match language {
            Some(name) => {
                let language = self.language(name)?;
                Ok(([language].into_iter().chain(behind).collect(), Vec::new()))
            }
            None => {
                let any: Arc<[u32]> = self.languages.iter().map(|(_, id)| *id).collect();
                let first = Prelude::AnyOf(any);
                Ok((Vec::new(), [first].into_iter().chain(behind.map(Prelude::Only)).collect()))
            }
        }
    }

    fn language(&self, name: &str) -> Result<u32, RequestError> {
        let known = Language::find(name).ok_or_else(|| {
            refused(format!("language: {name:?} is none; give a code as en, or a name as english"))
        })?;
        let of_model = self.languages.iter().find(|(language, _)| *language == known);
        of_model.map(|(_, id)| *id).ok_or_else(|| {
            refused(format!("language: the model does not know {} ({})", known.name, known.code))
        })
    }
}

impl InputProcessor {
    /// The same for a model that writes down recordings.
    pub fn with_speech(self, speech: SpeechInput, table: MediaTable) -> Self {
        let answer_parser = AnswerParser::of_transcripts();
        let media_table = Some(Arc::new(table));
        Self { speech: Some(Arc::new(speech)), media_table, answer_parser, ..self }
    }

    /// Whether every row is a recording.
    pub fn writes_down_sounds(&self) -> bool {
        self.speech.is_some()
    }

    /// Refuses what is no recording where every row is one.
    pub(super) fn refuse_unheard(&self) -> Result<(), RequestError> {
        match self.speech {
            None => Ok(()),
            Some(_) => {
                let message = "the model writes down recordings, and the row has none; give it one \
                               (`audio`)";
                Err(RequestError::new("unsupported_field", message))
            }
        }
    }

    /// The prompt of a recording.
    pub(super) fn spoken_prompt(
        &self,
        speech: &SpeechInput,
        prompt: WithMedia,
        params: &SamplingParams,
    ) -> Result<SpokenPrompt, ProcessError> {
        refuse_beside_speech(params)?;
        let WithMedia { chat, media } = prompt;
        if media.iter().any(|medium| medium.kind() != MediaKind::Sound) {
            return Err(no_images().into());
        }
        let text = text_of(&chat, media.len())?;
        let table = self.media_table.as_ref().expect("a model that hears has one");
        let placed = table.place(&media).map_err(|(_, error)| {
            RequestError::new(error.code(), format!("the recording: {error}"))
        })?;
        let [medium] = &placed[..] else { unreachable!("there is one") };
        let num_positions = medium.form().num_tokens();
        let mut ids = vec![speech.tokens.end; num_positions];
        if let (Some(before), false) = (speech.before, text.is_empty()) {
            let text = self.tokenizer.encode_inside(&format!(" {text}"))?;
            let most = (self.limits.max_model_len.saturating_sub(num_positions) / 2).max(1) - 1;
            if text.len() > most {
                let message = format!(
                    "the text before the transcript has {} tokens, and {most} are the most; \
                     shorten it",
                    text.len()
                );
                return Err(RequestError::new("context_length", message).into());
            }
            ids.push(before);
            ids.extend(text);
        }
        let (known, prelude) = speech.prelude(&params.speech)?;
        ids.push(speech.start);
        ids.extend(known);
        let limit = self.max_prompt_len(params);
        if ids.len() > limit {
            let message = format!(
                "prompt has {} tokens, {num_positions} of them of the recording, the limit is \
                 {limit}; give a larger `settings.max_model_len`",
                ids.len()
            );
            return Err(RequestError::new("context_length", message).into());
        }
        let run = MediaRun {
            medium: Arc::clone(medium),
            positions: 0..num_positions,
            first_token: 0,
            axis: None,
            whole: Whole::None,
        };
        let tokens = Arc::clone(&speech.tokens);
        let has_timestamps = params.speech.return_timestamps;
        Ok((ids, vec![run], Arc::new(Speech { tokens, prelude, has_timestamps })))
    }
}

/// The text of a row, which stands before the transcript.
fn text_of(chat: &Chat, num_sounds: usize) -> Result<String, RequestError> {
    if num_sounds != 1 {
        let message = format!(
            "the row has {num_sounds} recordings, and the model writes down one; make a row of each"
        );
        return Err(RequestError::new("media_count", message));
    }
    let several = || {
        let message = "the model writes down a recording; a row has one user message, with that and \
                       at most the text before it";
        RequestError::new("unsupported_field", message)
    };
    let [message] = chat.messages.as_array().map_or(&[][..], Vec::as_slice) else {
        return Err(several());
    };
    if message["role"] != "user" || chat.tools.is_some() || chat.documents.is_some() {
        return Err(several());
    }
    let parts = message["content"].as_array().map_or(&[][..], Vec::as_slice);
    let texts = parts.iter().filter_map(|part: &Value| part["text"].as_str());
    Ok(texts.map(str::trim).filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" "))
}

/// Refuses parameters that do not go with a transcript.
fn refuse_beside_speech(params: &SamplingParams) -> Result<(), RequestError> {
    let asked = [
        ("structured_outputs", params.structured_outputs.is_some()),
        ("thinking_token_budget", params.thinking_token_budget.is_some()),
        ("beam_width", params.beam_search.is_some()),
        ("prompt_logprobs", params.prompt_logprobs.is_some()),
        ("truncate_prompt_tokens", params.truncate_prompt_tokens.is_some()),
    ];
    match asked.into_iter().find(|(_, is_asked)| *is_asked) {
        None => Ok(()),
        Some((name, _)) => {
            Err(refused(format!("{name}: it does not go with a recording; leave it out")))
        }
    }
}

fn refused(message: impl Into<String>) -> RequestError {
    RequestError::new("invalid_parameter", message)
}
