//! From one configuration to that of each engine: its device, its threads, its share of memory.

use crate::load::combinations::Sides;
use crate::load::devices::{all_gpus, following, num_gpus_there, shared_out};
use vllm_batch_base::config::{DeviceKind, EngineConfig, Engines};
use vllm_batch_base::{EngineError, Setting};
use vllm_batch_device::WhyCpu;

/// Most engines: the router has a bit for each.
const MAX_ENGINES: usize = 64;

/// A configuration for each engine, and why they are on the CPU where nobody asked for it.
pub(super) fn configs(
    config: &EngineConfig,
) -> Result<(Vec<EngineConfig>, Option<WhyCpu>), EngineError> {
    Sides::of_config(config).check()?;
    if config.parallel.num_stages() > 1 {
        return Ok((over_stages(config), None));
    }
    let (kinds, why_cpu) = kinds(config)?;
    let mut own = shared_out(config, kinds, ("engine", Setting::DataParallelSize))?;
    own.iter_mut().for_each(|own| own.parallel.engines = Engines::Number(1));
    Ok((own, why_cpu))
}

/// Engines that share the stages of one model: one more than there are stages, so that each stage
/// has a step to compute while an engine samples and schedules.
fn over_stages(config: &EngineConfig) -> Vec<EngineConfig> {
    let num_engines = config.parallel.num_stages() + 1;
    let of_engine = |index: usize| {
        let mut own = config.clone();
        (own.cache.num_pools, own.cache.pool) = (num_engines, index);
        own
    };
    (0..num_engines).map(of_engine).collect()
}

/// The device of each engine.
fn kinds(config: &EngineConfig) -> Result<(Vec<DeviceKind>, Option<WhyCpu>), EngineError> {
    match config.parallel.engines {
        Engines::Number(num) if num > MAX_ENGINES => {
            let text = format!("the most is {MAX_ENGINES}, got {num}");
            Err(EngineError::setting(Setting::DataParallelSize, text, "give fewer"))
        }
        Engines::Number(num) => following(&config.device, num, Setting::DataParallelSize),
        Engines::AllGpus => Ok((all_gpus(num_gpus_there()?)?, None)),
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
}
