//! Models that see, on a device that has no kernels for their vision tower: they read text alone.

use super::model_summary::ModelSummary;
use crate::execute::model_executor::gpu_needs_of;
use vllm_batch_base::config::{DeviceKind, EngineConfig};
use vllm_batch_device::gpu_trouble;

/// For people: what became of the tower.
pub(crate) const NOTE_OF_TEXT_ALONE: &str = "the vision tower is left out: no kernel of a GPU \
    computes it yet. Rows with images are error rows; `settings.device` cpu computes them";

/// The same without its tower, where a GPU takes the rest of it. None: it is as it is.
pub(crate) fn text_alone(config: &EngineConfig, summary: &ModelSummary) -> Option<ModelSummary> {
    summary.tower.as_ref()?;
    gpu_needs_of(&summary.spec).memory_of_gpu(config, summary.dtype)?;
    if config.device.kind == DeviceKind::Auto && gpu_trouble(&config.device).is_some() {
        return None;
    }
    Some(ModelSummary { tower: None, ..summary.clone() })
}
