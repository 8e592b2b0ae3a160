//! From `--device` and the environment to what the engine needs to open a device. Nothing is opened
//! here.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::args::{
    ComputeArgs, CpuIsaArg, DeviceArg, EngineArgs, PrefillKernelArg, QuantizationArg,
};
use vllm_batch_base::config::{DeviceConfig, DeviceKind, Engines, PrefillKernel, Quantization};
use vllm_batch_base::isa::Isa;
use vllm_batch_dataset::terminal::error::CliError;

/// Resolves the flags and the variables that say where CUDA's libraries are.
#[expect(clippy::disallowed_methods, reason = "the one place that reads CUDA's variables")]
pub(super) fn device_config(args: &EngineArgs) -> DeviceConfig {
    resolve(args, &|name| std::env::var_os(name).filter(|value| !value.is_empty()))
}

fn resolve(args: &EngineArgs, variable: &dyn Fn(&str) -> Option<OsString>) -> DeviceConfig {
    let path = |name: &str| variable(name).map(PathBuf::from);
    let library_path = variable("LD_LIBRARY_PATH").unwrap_or_default();
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(path);
    DeviceConfig {
        kind: match args.compute.device {
            None | Some(DeviceArg::Auto) => DeviceKind::Auto,
            Some(DeviceArg::Cpu) => DeviceKind::Cpu,
            Some(DeviceArg::Cuda(ordinal)) => DeviceKind::Cuda(ordinal),
            // The first of them; `engines` says that there are more.
            Some(DeviceArg::AllCuda) => DeviceKind::Cuda(0),
        },
        cuda_home: path("CUDA_HOME").or_else(|| path("CUDA_PATH")),
        site_packages: environments.flat_map(|prefix| site_packages(&prefix)).collect(),
        library_path: std::env::split_paths(&library_path).collect(),
        cache_dir: path("XDG_CACHE_HOME")
            .or_else(|| Some(path("HOME")?.join(".cache")))
            .map(|cache| cache.join("vllm-batch")),
        enforce_eager: args.enforce_eager,
        quantization: args.compute.quantization.map(|quantization| match quantization {
            QuantizationArg::Fp8 => Quantization::Fp8,
            QuantizationArg::Int8 => Quantization::Int8,
        }),
        prefill_kernel: match args.compute.prefill_kernel {
            None | Some(PrefillKernelArg::MmaSync) => PrefillKernel::MmaSync,
            Some(PrefillKernelArg::Wgmma) => PrefillKernel::Wgmma,
        },
    }
}

/// How many engines there are.
///
/// # Errors
/// Two flags say it.
pub(super) fn engines(args: &ComputeArgs) -> Result<Engines, CliError> {
    match (&args.device, args.data_parallel_size) {
        (Some(DeviceArg::AllCuda), None) => Ok(Engines::AllGpus),
        (Some(DeviceArg::AllCuda), Some(num)) => {
            let message = format!("--data-parallel-size {num}: --device cuda:all takes all GPUs");
            Err(CliError::refused("flag", message).help("leave out one of the two"))
        }
        (_, num) => Ok(Engines::Number(num.unwrap_or(1))),
    }
}

/// Instructions, in the engine's terms.
pub(super) fn cpu_isa(isa: CpuIsaArg) -> Isa {
    match isa {
        CpuIsaArg::Avx512 => Isa::Avx512,
        CpuIsaArg::Avx512Bf16 => Isa::Avx512Bf16,
        CpuIsaArg::Amx => Isa::Amx,
        CpuIsaArg::AmxTwin => Isa::AmxTwin,
        CpuIsaArg::Avx2 => Isa::Avx2,
        CpuIsaArg::Neon => Isa::Neon,
        CpuIsaArg::NeonBf16 => Isa::NeonBf16,
        CpuIsaArg::Portable => Isa::Portable,
    }
}

/// `lib/python3.*/site-packages` of an environment.
fn site_packages(prefix: &Path) -> Vec<PathBuf> {
    let Ok(listing) = std::fs::read_dir(prefix.join("lib")) else { return Vec::new() };
    let mut found: Vec<_> =
        listing.filter_map(|entry| Some(entry.ok()?.path().join("site-packages"))).collect();
    found.retain(|path| path.is_dir());
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_looked_for_where_the_environment_says() {
        let prefix = tempfile::tempdir().unwrap();
        let packages = prefix.path().join("lib/python3.12/site-packages");
        std::fs::create_dir_all(&packages).unwrap();
        let variable = |name: &str| match name {
            "VIRTUAL_ENV" => Some(prefix.path().as_os_str().to_owned()),
            "LD_LIBRARY_PATH" => Some("/a:/b".into()),
            "CUDA_PATH" => Some("/toolkit".into()),
            "HOME" => Some("/users/someone".into()),
            _ => None,
        };
        let config = resolve(&EngineArgs::default(), &variable);
        assert_eq!(config.kind, DeviceKind::Auto);
        assert_eq!(config.site_packages, [packages]);
        assert_eq!(config.library_path, [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert_eq!(config.cuda_home, Some(PathBuf::from("/toolkit")));
        assert_eq!(config.cache_dir, Some(PathBuf::from("/users/someone/.cache/vllm-batch")));
    }
}
