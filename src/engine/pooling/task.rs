//! `PoolingTask`: what becomes of a text, by vLLM's names.

use super::PoolingType;
use crate::engine::EngineError;
use crate::engine::model::encoders::{Classifier, HeadStates};

/// What a model makes of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolingTask {
    /// A vector.
    Embed,
    /// A number for each class.
    Classify,
    /// A vector for each token.
    TokenEmbed,
    /// A number for each class, of each token.
    TokenClassify,
}

impl PoolingTask {
    /// vLLM's spelling.
    pub fn name(self) -> &'static str {
        match self {
            PoolingTask::Embed => "embed",
            PoolingTask::Classify => "classify",
            PoolingTask::TokenEmbed => "token_embed",
            PoolingTask::TokenClassify => "token_classify",
        }
    }

    /// What a model of this classifier is run for. Who asks for classes gets those of tokens from a
    /// model that has no others.
    ///
    /// # Errors
    /// It is made for something else.
    pub(super) fn resolve(
        asked: Option<Self>,
        classifier: Option<&Classifier>,
    ) -> Result<Self, EngineError> {
        let of_model = match classifier.map(|classifier| classifier.states) {
            None => PoolingTask::Embed,
            Some(HeadStates::Each | HeadStates::Steps) => PoolingTask::TokenClassify,
            Some(_) => PoolingTask::Classify,
        };
        let refused = |text: &str| Err(EngineError::Config(text.to_owned()));
        match (asked, of_model) {
            (None, of_model) => Ok(of_model),
            (Some(asked), of_model) if asked == of_model => Ok(asked),
            (Some(PoolingTask::TokenEmbed), PoolingTask::Embed) => Ok(PoolingTask::TokenEmbed),
            (Some(PoolingTask::Classify), PoolingTask::TokenClassify) => Ok(of_model),
            (Some(_), PoolingTask::Embed) => {
                refused("the model has no classifier; `embed` makes vectors with it")
            }
            (Some(PoolingTask::TokenClassify), _) => {
                refused("the model classifies whole texts, not their tokens; give task `classify`")
            }
            (Some(_), _) => refused("the model is a classifier; `classify` runs it"),
        }
    }
}

impl From<HeadStates> for PoolingType {
    fn from(states: HeadStates) -> Self {
        match states {
            HeadStates::First => PoolingType::Cls,
            HeadStates::Mean => PoolingType::Mean,
            HeadStates::Last => PoolingType::Last,
            HeadStates::Each | HeadStates::MeanOfEach | HeadStates::Steps => PoolingType::All,
        }
    }
}
