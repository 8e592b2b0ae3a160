//! The devices of what is computed by several: GPUs that follow each other, or the CPU for all.

use vllm_batch_base::config::{DeviceConfig, DeviceKind, Quantization};
use vllm_batch_base::{EngineError, Setting};
use vllm_batch_device::{WhyCpu, gpu_trouble, num_gpus, why_cpu};

/// So many devices, from the one that was asked for on; and why they are the CPU where nobody asked
/// for it.
///
/// # Errors
/// There are not so many, which the setting is blamed for.
pub(crate) fn following(
    config: &DeviceConfig,
    num: usize,
    setting: Setting,
) -> Result<(Vec<DeviceKind>, Option<WhyCpu>), EngineError> {
    let first = match &config.kind {
        DeviceKind::Cuda(first) => *first,
        DeviceKind::Auto if config.quantization == Some(Quantization::Int8) => {
            return Ok((vec![DeviceKind::Cpu; num], None));
        }
        DeviceKind::Auto => match gpu_trouble(config) {
            Some(why) => return Ok((vec![DeviceKind::Cpu; num], Some(why_cpu(why)))),
            None => 0,
        },
        kind @ (DeviceKind::Cpu | DeviceKind::CudaShim { .. }) => {
            return Ok((vec![kind.clone(); num], None));
        }
    };
    let there = num_gpus_there()?;
    let gpus = gpus(first, num, there);
    let kinds = gpus.map_err(|text| EngineError::setting(setting, text, "give at most so many"))?;
    Ok((kinds, None))
}

/// GPUs of the machine.
///
/// # Errors
/// They cannot be used.
pub(crate) fn num_gpus_there() -> Result<usize, EngineError> {
    num_gpus().map_err(|why| {
        let text = format!("the GPUs cannot be used: {why}");
        EngineError::setting(Setting::Device, text, "give `settings.device` cpu")
    })
}

/// GPUs from the first one on, of a machine that has so many.
///
/// # Errors
/// In words: there are not so many.
pub(crate) fn gpus(first: usize, num: usize, there: usize) -> Result<Vec<DeviceKind>, String> {
    match first + num <= there {
        true => Ok((first..first + num).map(DeviceKind::Cuda).collect()),
        false => {
            Err(format!("from cuda:{first} on there are {} GPUs", there.saturating_sub(first)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_follow_each_other() {
        let cuda = |ordinals: &[usize]| -> Vec<_> {
            ordinals.iter().copied().map(DeviceKind::Cuda).collect()
        };
        assert_eq!(gpus(0, 2, 4), Ok(cuda(&[0, 1])));
        assert_eq!(gpus(2, 2, 4), Ok(cuda(&[2, 3])));
        let text = gpus(2, 4, 4).unwrap_err();
        assert!(text.contains("from cuda:2 on there are 2 GPUs"), "{text}");
        assert!(gpus(5, 1, 4).unwrap_err().contains("there are 0 GPUs"));
    }
}
