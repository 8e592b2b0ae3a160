//! A GGUF file as a model: its metadata in the words of config.json, and its tensors by
//! transformers' names. Everything behind that is as it is for a folder.

mod archs;
mod config;
mod gpt;
mod keys;
mod names;
mod open;
mod rope;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::spec::QkvHeads;
use super::weights::gguf::Metadata;
use crate::engine::files::quoted;
use archs::{ARCHS, Arch};
use config::Config;
use keys::Keys;
pub use names::{Names, ROPE_VECTORS};
pub use open::checkpoint;

/// What a GGUF file says of its model; of a split one, all files together.
#[derive(Clone, Debug, Default)]
pub struct Described {
    /// Values by key.
    pub metadata: Metadata,
    /// Shapes of tensors by the file's names, rows first.
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// Values of `ROPE_VECTORS`, of those that are there.
    pub vectors: BTreeMap<String, Vec<f32>>,
    /// How many tensors are of which type, for people to read.
    pub types: String,
}

/// A file's model, in the words of a folder.
#[derive(Clone, Debug)]
pub struct Translation {
    /// What its config.json would say.
    pub config: Map<String, Value>,
    /// Its tensors.
    pub names: Names,
}

/// Mixtures of experts, which are known by their own names.
const EXPERTS: [&str; 6] =
    ["deepseek2", "glm4moe", "gpt-oss", "granitemoe", "qwen2moe", "qwen3moe"];

impl Described {
    /// The model in the words of a folder.
    ///
    /// # Errors
    /// The architecture is not supported, or the metadata lacks something or has a key that is not
    /// known; the text says which.
    pub fn translate(&self) -> Result<Translation, String> {
        let arch = self.arch()?;
        let mut config = Config::new(Keys::new(self, arch.name));
        let in_arch = |text: String| format!("architecture {}: {text}", arch.name);
        let (class, table) = (arch.translate)(&mut config).map_err(in_arch)?;
        let heads = QkvHeads {
            num_heads: small(config.num_heads().map_err(in_arch)?)?,
            num_kv_heads: small(config.num_kv_heads().map_err(in_arch)?)?,
            head_dim: small(config.head_dim().map_err(in_arch)?)?,
        };
        super::limits::check_heads(heads).map_err(in_arch)?;
        if heads.num_kv_heads == 0 || !heads.num_heads.is_multiple_of(heads.num_kv_heads) {
            return Err(in_arch(format!(
                "{} attention heads cannot share {} key-value heads",
                heads.num_heads, heads.num_kv_heads
            )));
        }
        config.set("architectures", json!([class]));
        // Blocks of any kind are widened to it, and it is the type of the KV cache.
        config.set("dtype", "bfloat16");
        config.set("eos_token_id", self.eos_token_ids()?);
        let config = config.finish().map_err(in_arch)?;
        Ok(Translation { config, names: Names::new(table, heads) })
    }

    fn arch(&self) -> Result<&'static Arch, String> {
        match self.metadata.text("general.type")? {
            None | Some("model") => {}
            Some(other) => return Err(format!("the file is no model: {}", quoted(other))),
        }
        let name = self.metadata.text("general.architecture")?;
        let name = name.ok_or("general.architecture is missing")?;
        let known = || ARCHS.iter().map(|arch| arch.name).collect::<Vec<_>>().join(", ");
        match ARCHS.iter().find(|arch| arch.name == name) {
            Some(arch) => Ok(arch),
            None if EXPERTS.contains(&name) => {
                Err(format!("architecture {name} is a mixture of experts: not supported"))
            }
            None => Err(format!(
                "architecture {} is not supported in GGUF files; these are: {}",
                quoted(name),
                known()
            )),
        }
    }

    /// Ids that end a text: of a text, of a turn, of a message.
    fn eos_token_ids(&self) -> Result<Vec<u64>, String> {
        let mut ids = Vec::new();
        for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
            let id = self.metadata.unsigned(&format!("tokenizer.ggml.{key}"))?;
            ids.extend(id.filter(|id| !ids.contains(id)));
        }
        Ok(ids)
    }

    /// What its generation_config.json would say: newer files have the defaults of sampling.
    ///
    /// # Errors
    /// A value is of another type.
    pub fn generation_config(&self) -> Result<Map<String, Value>, String> {
        let mut found = Map::new();
        for (key, name) in [
            ("temp", "temperature"),
            ("top_p", "top_p"),
            ("min_p", "min_p"),
            ("penalty_repeat", "repetition_penalty"),
        ] {
            let value = self.metadata.float(&format!("general.sampling.{key}"))?;
            found.extend(value.map(|value| (name.to_owned(), value.into())));
        }
        let top_k = self.metadata.unsigned("general.sampling.top_k")?;
        found.extend(top_k.map(|top_k| ("top_k".to_owned(), top_k.into())));
        Ok(found)
    }
}

/// A number of heads or their width, which rows are counted by.
fn small(number: u64) -> Result<usize, String> {
    let fits = usize::try_from(number).ok().filter(|number| *number <= 1 << 20);
    fits.ok_or_else(|| format!("{number} heads, or values of a head, are not supported"))
}
