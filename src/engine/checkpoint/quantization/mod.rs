//! Quantized checkpoints of safetensors: which format a config asks for, which modules it is
//! about, and their tensors as matrices. docs/QUANTIZATION.md lists the formats.

mod auto_round;
mod awq;
mod bitsandbytes;
mod compressed_tensors;
mod floats;
mod fp4;
mod fp8;
mod gptq;
mod grouped;
mod layout;
mod modelopt;
mod mxfp4;
mod names;
mod packed;
mod scaled;
mod tensors;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

pub use mxfp4::MXFP4;
pub use names::{Module, Place};
pub use tensors::{ModuleTensors, Need, Role, Scheme, StoredTensor};

use super::hf_config::{HfConfig, Section};
use vllm_batch_base::EngineError;
use vllm_batch_base::files::{self, MAX_CONFIG_BYTES, quoted};
use vllm_batch_base::weight_files::QUANTIZATION_CONFIGS;

/// How the linear layers of a checkpoint are stored.
#[derive(Clone, Debug)]
pub struct QuantizationConfig {
    method: Arc<dyn Method>,
    description: String,
    activations: Option<String>,
}

/// A format, as a config describes it.
trait Method: fmt::Debug + Send + Sync {
    /// How a module is stored; None: as it is without the format.
    ///
    /// # Errors
    /// A pattern of the config takes too long.
    fn scheme(&self, module: &Module<'_>) -> Result<Option<Arc<dyn Scheme>>, String>;
}

/// Inputs that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupSize {
    /// All of an output.
    All,
    /// So many.
    Of(usize),
}

impl GroupSize {
    /// Inputs of a group, where there are `k`.
    fn of(self, k: usize) -> usize {
        match self {
            GroupSize::All => k,
            GroupSize::Of(size) => size,
        }
    }
}

impl fmt::Display for GroupSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupSize::All => write!(f, "a scale for each output"),
            GroupSize::Of(size) => write!(f, "groups of {size}"),
        }
    }
}

impl QuantizationConfig {
    fn new(method: Arc<dyn Method>, description: String) -> Self {
        Self { method, description, activations: None }
    }

    fn with_activations(self, activations: impl Into<String>) -> Self {
        Self { activations: Some(activations.into()), ..self }
    }

    /// Of config.json, or of a file beside it in the model's folder; None: not quantized.
    ///
    /// # Errors
    /// The format is not supported, or a key asks for something else than what is read here.
    pub fn read(config: &HfConfig, dir: &Path) -> Result<Option<Self>, EngineError> {
        if config.is_of_mlx() {
            let message = "the weights are quantized by MLX (`quantization`), which is not \
                           supported; give the model as it was published before, or a GGUF file";
            return Err(config.error(message));
        }
        if let Some(section) = config.quantization()? {
            let method = section.text("quant_method")?;
            let Some(method) = method.or_else(|| implied_method(&section)) else {
                return Err(section.error("`quant_method` is missing: which format is this?"));
            };
            return of_method(method, &section).map(Some);
        }
        for (name, method) in QUANTIZATION_CONFIGS {
            let path = dir.join(name);
            if !path.exists() {
                continue;
            }
            let text = files::read_text(&path, MAX_CONFIG_BYTES);
            let text = text.map_err(|error| files::unreadable(&path, &error))?;
            let beside = HfConfig::parse(&text, &path.display().to_string())?;
            let read = of_method(method, &beside.root())?;
            beside.refuse_unread()?;
            return Ok(Some(read));
        }
        Ok(None)
    }

    /// How a module is stored; None: as it is.
    ///
    /// # Errors
    /// A pattern of the config takes too long.
    pub fn scheme(&self, module: &Module<'_>) -> Result<Option<Arc<dyn Scheme>>, String> {
        self.method.scheme(module)
    }

    /// The format, for people to read.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// What the config asks for the inputs of linear layers, and the engine does not do.
    pub fn activations(&self) -> Option<&str> {
        self.activations.as_deref()
    }
}

/// Most strings of a config: each may be a pattern that every module is held against.
const MAX_RULES: usize = 1 << 12;

fn of_method(method: &str, section: &Section<'_>) -> Result<QuantizationConfig, EngineError> {
    let num_rules = section.num_strings();
    if num_rules > MAX_RULES {
        let text = format!("{num_rules} names and patterns are too many: at most {MAX_RULES}");
        return Err(section.error(text));
    }
    match method {
        "gptq" => gptq::read(section),
        "awq" => awq::read(section),
        "compressed-tensors" => compressed_tensors::read(section),
        "fp8" => fp8::read(section),
        "modelopt" | "modelopt_fp4" => modelopt::read(section),
        "bitsandbytes" => bitsandbytes::read(section),
        MXFP4 => mxfp4::read(section),
        other => Err(section.error(format!(
            "weights quantized by {} are not supported; gptq, awq, compressed-tensors, fp8, \
             modelopt, bitsandbytes and mxfp4 are (docs/QUANTIZATION.md)",
            quoted(other)
        ))),
    }
}

/// The format of old files that do not say it.
fn implied_method(section: &Section<'_>) -> Option<&'static str> {
    let has = |key| section.value(key).is_some();
    if has("load_in_4bit") || has("load_in_8bit") {
        Some("bitsandbytes")
    } else if has("quant_algo") {
        Some("modelopt")
    } else {
        None
    }
}

/// An error that names a format and what it has that is not read here.
fn unsupported(section: &Section<'_>, format: &str, what: &str) -> EngineError {
    section.error(format!(
        "{} of {format} is not supported (docs/QUANTIZATION.md lists what is)",
        quoted(what)
    ))
}

/// Inputs that share a scale, -1 for all; None: not said.
fn group_size(section: &Section<'_>, keys: &[&str]) -> Result<Option<GroupSize>, EngineError> {
    let Some(size) = section.number_of(keys)? else { return Ok(None) };
    if size == -1.0 {
        return Ok(Some(GroupSize::All));
    }
    const MAX: f64 = (1u32 << 20) as f64;
    match (1.0..=MAX).contains(&size) && size.fract() == 0.0 {
        true => Ok(Some(GroupSize::Of(size as usize))),
        false => Err(section.error(format!("a `{}` of {size} is not supported", keys[0]))),
    }
}
