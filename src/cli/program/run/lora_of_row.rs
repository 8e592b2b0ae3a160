//! The adapter that a row is computed with: the one that it names, or that of images.

use vllm_batch_api::request::{LoraId, RequestError};
use vllm_batch_base::config::LoraConfig;
use vllm_batch_engine::serve::input_processor::InputProcessor;

/// `named`: by the row itself.
///
/// # Errors
/// The model's answers to images are those of an adapter, and the row has none.
pub fn lora_of_row(
    named: Option<LoraId>,
    has_images: bool,
    (loras, processor): (&LoraConfig, &InputProcessor),
) -> Result<Option<LoraId>, RequestError> {
    let lora = named.or(loras.of_images.filter(|_| has_images));
    let is_bare = lora.is_none() && loras.merged.is_none();
    match has_images && is_bare && processor.wants_adapter_of_images() {
        false => Ok(lora),
        true => {
            let message = "the model's answers to images are those of its adapter, and the row \
                           names none; give --default-mm-loras '{\"image\": \"DIR\"}' with the \
                           folder vision-lora of the model's repository, and --max-lora-rank 256";
            Err(RequestError::new("no_image_input", message))
        }
    }
}
