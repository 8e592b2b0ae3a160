//! From one configuration to that of each engine: its device, its threads, its share of memory.

use crate::load::combinations::Sides;
use vllm_batch_base::config::{DeviceKind, EngineConfig, Engines, Quantization};
use vllm_batch_base::{EngineError, Setting};
use vllm_batch_device::thread_pool::num_physical_cores;
use vllm_batch_device::{WhyCpu, gpu_trouble, num_gpus, why_cpu};

/// Most engines: the router has a bit for each.
const MAX_ENGINES: usize = 64;

/// A configuration for each engine, and why they are on the CPU where nobody asked for it.
pub(super) fn configs(
    config: &EngineConfig,
) -> Result<(Vec<EngineConfig>, Option<WhyCpu>), EngineError> {
    Sides::of_config(config).check()?;
    let (kinds, why_cpu) = kinds(config)?;
    let num_engines = kinds.len();
    let num_threads = config.parallel.num_threads.unwrap_or_else(num_physical_cores);
    let is_cpu = kinds[0] == DeviceKind::Cpu;
    if is_cpu && num_threads < num_engines {
        let text =
            format!("there are {num_threads} threads to share out, and each engine needs one");
        let help = format!("give `settings.threads` {num_engines} or fewer engines");
        return Err(EngineError::setting(Setting::DataParallelSize, text, help));
    }
    let of_engine = |(index, kind): (usize, DeviceKind)| {
        let mut own = config.clone();
        own.device.kind = kind;
        let more = usize::from(index < num_threads % num_engines);
        own.parallel.num_threads = Some((num_threads / num_engines + more).max(1));
        own.parallel.engines = Engines::Number(1);
        own.cache.engines_in_memory = if is_cpu { num_engines } else { 1 };
        own
    };
    Ok((kinds.into_iter().enumerate().map(of_engine).collect(), why_cpu))
}

/// The device of each engine.
fn kinds(config: &EngineConfig) -> Result<(Vec<DeviceKind>, Option<WhyCpu>), EngineError> {
    let asked = config.parallel.engines;
    if let Engines::Number(num) = asked
        && num > MAX_ENGINES
    {
        let text = format!("the most is {MAX_ENGINES}, got {num}");
        return Err(EngineError::setting(Setting::DataParallelSize, text, "give fewer"));
    }
    let is_int8 = config.device.quantization == Some(Quantization::Int8);
    let first = match (&config.device.kind, asked) {
        (_, Engines::AllGpus) => 0,
        (DeviceKind::Cuda(ordinal), _) => *ordinal,
        (DeviceKind::Auto, Engines::Number(num)) => {
            let trouble = if is_int8 { None } else { gpu_trouble(&config.device) };
            match trouble {
                _ if is_int8 => return Ok((vec![DeviceKind::Cpu; num], None)),
                Some(why) => {
                    return Ok((vec![DeviceKind::Cpu; num], Some(why_cpu(why))));
                }
                None => 0,
            }
        }
        (kind, Engines::Number(num)) => return Ok((vec![kind.clone(); num], None)),
    };
    let there = num_gpus().map_err(|why| {
        let text = format!("the GPUs cannot be used: {why}");
        EngineError::setting(Setting::Device, text, "give `settings.device` cpu")
    })?;
    Ok((gpus(first, asked, there)?, None))
}

/// GPUs from the first one on, of a machine that has so many.
fn gpus(first: usize, asked: Engines, there: usize) -> Result<Vec<DeviceKind>, EngineError> {
    let num = match asked {
        Engines::AllGpus if there == 0 => {
            let help = "give `settings.device` cpu";
            return Err(EngineError::setting(Setting::Device, "there is no GPU", help));
        }
        Engines::AllGpus => there,
        Engines::Number(num) => num,
    };
    match first + num <= there {
        true => Ok((first..first + num).map(DeviceKind::Cuda).collect()),
        false => {
            let text =
                format!("from cuda:{first} on there are {} GPUs", there.saturating_sub(first));
            Err(EngineError::setting(Setting::DataParallelSize, text, "give at most so many"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vllm_batch_base::config::ParallelConfig;

    fn of(num: usize, num_threads: usize) -> Result<Vec<EngineConfig>, String> {
        let engines = Engines::Number(num);
        let parallel =
            ParallelConfig { num_threads: Some(num_threads), engines, ..ParallelConfig::default() };
        let config = EngineConfig { parallel, ..EngineConfig::default() };
        configs(&config).map(|(configs, _)| configs).map_err(|error| error.to_string())
    }

    #[test]
    fn threads_are_shared_out_and_none_is_left_over() {
        let threads = |num, threads| -> Vec<_> {
            let configs = of(num, threads).unwrap();
            configs.iter().map(|config| config.parallel.num_threads.unwrap()).collect()
        };
        assert_eq!(threads(3, 8), [3, 3, 2]);
        assert_eq!(threads(2, 2), [1, 1]);
        let configs = of(2, 2).unwrap();
        assert!(configs.iter().all(|config| config.cache.engines_in_memory == 2));
        let text = of(3, 2).unwrap_err();
        assert!(
            text.contains("there are 2 threads") && text.contains("`settings.threads` 3"),
            "{text}"
        );
        assert!(of(65, 100).unwrap_err().contains("the most is 64"));
    }

    #[test]
    fn more_gpus_than_there_are_is_said_with_their_number() {
        let cuda = |ordinals: &[usize]| -> Vec<_> {
            ordinals.iter().copied().map(DeviceKind::Cuda).collect()
        };
        assert_eq!(gpus(0, Engines::Number(2), 4).unwrap(), cuda(&[0, 1]));
        assert_eq!(gpus(2, Engines::Number(2), 4).unwrap(), cuda(&[2, 3]));
        assert_eq!(gpus(0, Engines::AllGpus, 3).unwrap(), cuda(&[0, 1, 2]));
        let text = gpus(2, Engines::Number(3), 4).unwrap_err().to_string();
        assert!(text.contains("from cuda:2 on there are 2 GPUs"), "{text}");
        let text = gpus(0, Engines::AllGpus, 0).unwrap_err().to_string();
        assert!(text.contains("there is no GPU"), "{text}");
    }
}
