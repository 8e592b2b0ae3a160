//! The devices of what is computed by several: GPUs that follow each other, or the CPU for all.

use vllm_batch_base::config::{DeviceConfig, DeviceKind, EngineConfig, Quantization};
use vllm_batch_base::{EngineError, Setting};
use vllm_batch_device::thread_pool::num_physical_cores;
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

/// A configuration for each of several of a kind (`part`), on these devices, with its share of the
/// threads and of the CPU's memory.
///
/// # Errors
/// One would have no thread, which the setting is blamed for.
pub(crate) fn shared_out(
    config: &EngineConfig,
    kinds: Vec<DeviceKind>,
    (part, setting): (&str, Setting),
) -> Result<Vec<EngineConfig>, EngineError> {
    let num = kinds.len();
    let is_cpu = kinds[0] == DeviceKind::Cpu;
    let num_threads = config.parallel.num_threads.unwrap_or_else(num_physical_cores);
    if is_cpu && num_threads < num {
        let text =
            format!("there are {num_threads} threads to share out, and each {part} needs one");
        let help = format!("give `settings.threads` {num} or fewer {part}s");
        return Err(EngineError::setting(setting, text, help));
    }
    let share = |(index, kind): (usize, DeviceKind)| {
        let mut own = config.clone();
        own.device.kind = kind;
        let more = usize::from(index < num_threads % num);
        own.parallel.num_threads = Some((num_threads / num + more).max(1));
        own.cache.engines_in_memory = if is_cpu { num } else { 1 };
        own
    };
    Ok(kinds.into_iter().enumerate().map(share).collect())
}

/// All GPUs of a machine that has so many.
///
/// # Errors
/// It has none.
pub(crate) fn all_gpus(there: usize) -> Result<Vec<DeviceKind>, EngineError> {
    match there {
        0 => {
            let help = "give `settings.device` cpu";
            Err(EngineError::setting(Setting::Device, "there is no GPU", help))
        }
        _ => Ok((0..there).map(DeviceKind::Cuda).collect()),
    }
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
        assert_eq!(all_gpus(3).unwrap(), cuda(&[0, 1, 2]));
        let text = all_gpus(0).unwrap_err().to_string();
        assert!(text.contains("there is no GPU"), "{text}");
    }
}
