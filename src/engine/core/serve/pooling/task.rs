//! Which task a model is run for.

use vllm_batch_base::pooling::PoolingTask;
use vllm_batch_checkpoint::encoders::{Classifier, HeadStates};

/// What a model of this classifier is run for. Who asks for classes gets those of tokens from a
/// model that has no others. Other tasks than the model's were refused before (`combinations`).
pub(super) fn resolve_task(
    asked: Option<PoolingTask>,
    classifier: Option<&Classifier>,
) -> PoolingTask {
    match (classifier.map(|classifier| classifier.states), asked) {
        (None, Some(PoolingTask::TokenEmbed)) => PoolingTask::TokenEmbed,
        (None, _) => PoolingTask::Embed,
        (Some(HeadStates::Each | HeadStates::Steps), _) => PoolingTask::TokenClassify,
        (Some(_), _) => PoolingTask::Classify,
    }
}
