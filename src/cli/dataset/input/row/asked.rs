//! `Asked`: what a row asks of the engine.

use super::chat::MadeChat;
use super::image_parts;
use super::remarks::Remark;
use crate::input::media::{MediaReader, Named, Read};
use crate::input::overrides::Overrides;
use crate::input::row_error::RowError;
use vllm_batch_api::prompt::{Prompt, WithMedia};
use vllm_batch_api::request::LoraId;
use vllm_batch_text::AnswerForm;

/// Request of a row to the engine.
pub(super) struct Asked {
    pub(super) prompt: Prompt,
    pub(super) overrides: Overrides,
    /// By its name in the row.
    pub(super) lora: Option<LoraId>,
    /// Of a request: a lower one goes first.
    pub(super) priority: i64,
    /// Form of a chat's answer.
    pub(super) answer_form: Option<AnswerForm>,
    /// Images of a chat, or of what is compared, whose places are parts of contents.
    pub(super) images: Vec<Named>,
    /// Surprises in the row.
    pub(super) remarks: Vec<Remark>,
}

impl Asked {
    pub(super) fn new(prompt: Prompt, overrides: Overrides) -> Self {
        Self {
            prompt,
            overrides,
            lora: None,
            priority: 0,
            answer_form: None,
            images: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// A choice of tools decides the form of an answer over the row's own parameters, as in vLLM.
    pub(super) fn of_chat(made: MadeChat, overrides: Overrides) -> Self {
        let MadeChat { chat, answer, constraint, dropped_answer, images } = made;
        let overrides = match constraint {
            None => overrides,
            constraint => {
                let overrides = overrides.with("response_format", None);
                overrides.with_written("structured_outputs", "tools", constraint)
            }
        };
        let asked = Self::new(Prompt::Messages(Box::new(chat)), overrides);
        let dropped = dropped_answer.then_some(Remark::DroppedAnswer);
        Self { answer_form: Some(answer), images, ..asked }.with_remarks(dropped)
    }

    /// The same with the bytes of its images at hand.
    ///
    /// # Errors
    /// One of them cannot be used.
    pub(super) fn with_media(mut self, reader: &MediaReader, line: u64) -> Result<Self, RowError> {
        let images = std::mem::take(&mut self.images);
        if images.is_empty() {
            return Ok(self);
        }
        let Some(Read { media, counts }) = reader.read(&images, line)? else { return Ok(self) };
        self.prompt = match self.prompt {
            Prompt::Messages(mut chat) => {
                image_parts::repeat(&mut chat.messages, &counts);
                Prompt::WithMedia(Box::new(WithMedia { chat: *chat, media }))
            }
            Prompt::Compared(compared) => Prompt::Compared(Box::new(compared.with_media(media))),
            other => unreachable!("neither a chat nor a comparison: {other:?}"),
        };
        Ok(self)
    }

    pub(super) fn with_remarks(mut self, remarks: impl IntoIterator<Item = Remark>) -> Self {
        self.remarks.extend(remarks);
        self
    }
}
