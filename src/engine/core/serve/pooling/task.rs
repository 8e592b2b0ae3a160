//! Which task a model is run for.

use vllm_batch_base::EngineError;
use vllm_batch_base::pooling::PoolingTask;
use vllm_batch_checkpoint::encoders::{Classifier, HeadStates};

/// What a model of this classifier is run for. Who asks for classes gets those of tokens from a
/// model that has no others.
///
/// # Errors
/// It is made for something else.
pub(super) fn resolve_task(
    asked: Option<PoolingTask>,
    classifier: Option<&Classifier>,
) -> Result<PoolingTask, EngineError> {
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
