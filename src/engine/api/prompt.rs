//! `Prompt`: what a row asks to complete, to score or to embed.

use std::sync::Arc;

use super::compared::Compared;
use vllm_batch_media::Medium;
use vllm_batch_text::Chat;

/// What a row asks to complete.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Plain text, tokenized with special tokens (BOS).
    Text(String),
    /// Token ids, used as they are.
    TokenIds(Vec<u32>),
    /// Chat messages, rendered with the chat template.
    Messages(Box<Chat>),
    /// Two texts that a model reads together.
    Pair([String; 2]),
    /// Texts and images whose scores are asked for.
    Compared(Box<Compared>),
    /// Several of these, whose vectors are asked for together.
    Several(Vec<Prompt>),
    /// Texts of which it is asked how likely each is after a prompt.
    Choices(Box<Choices>),
    /// A text of which it is asked how likely it is itself.
    Rolling(String),
    /// A prompt with images in it.
    WithMedia(Box<WithMedia>),
}

impl Prompt {
    /// The chat that is to be answered, with images or without.
    pub fn chat(&self) -> Option<&Chat> {
        match self {
            Prompt::Messages(chat) => Some(chat),
            Prompt::WithMedia(asked) => Some(&asked.chat),
            _ => None,
        }
    }

    /// The images in it, those that are read together side by side.
    pub fn media(&self) -> Vec<&[Arc<Medium>]> {
        match self {
            Prompt::WithMedia(asked) => vec![&asked.media],
            Prompt::Compared(compared) => {
                compared.media().filter(|media| !media.is_empty()).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// A chat whose image parts stand for images.
#[derive(Clone, Debug, PartialEq)]
pub struct WithMedia {
    /// Its content parts `{"type": "image"}` are the places of `media`, in their order.
    pub chat: Chat,
    /// One for each such part, and at least one.
    pub media: Vec<Arc<Medium>>,
}

/// Texts that are compared by how likely they are after the same prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Choices {
    /// A text, a chat or token ids.
    pub context: Prompt,
    /// At least one, none of them empty.
    pub choices: Vec<String>,
}
