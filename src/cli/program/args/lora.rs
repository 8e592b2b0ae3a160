//! Flags of LoRA adapters, by vLLM's names. `config/lora` says
//! what rows may call them.

use std::str::FromStr;

use serde::Deserialize;

use super::values::{lora_rank, positive};

/// Adapters that rows may be computed with, and how many of them at once.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Engine")]
pub struct LoraArgs {
    /// Which.
    #[command(flatten)]
    pub modules: LoraModulesArgs,
    /// Most adapters computed in one step [default: as many as there are, at most 8]
    #[arg(long, value_name = "N", value_parser = positive, hide_short_help = true)]
    pub max_loras: Option<usize>,
    /// Largest rank of an adapter, 1 to 512 [default: 16]
    #[arg(long, value_name = "N", value_parser = lora_rank, hide_short_help = true)]
    pub max_lora_rank: Option<usize>,
    /// Changes nothing: --lora-modules is enough
    #[arg(long, hide_short_help = true)]
    pub enable_lora: bool,
}

/// What rows may name.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Input")]
pub struct LoraModulesArgs {
    /// LoRA adapters that rows may name
    ///
    /// By their field `lora`, or a request by its `model`. DIR is a folder as PEFT saves it, or a
    /// Hugging Face id; vLLM's objects are taken too
    #[arg(long, value_name = "NAME=DIR", num_args = 1..)]
    pub lora_modules: Vec<LoraModuleArg>,
    /// Make the adapter of this name, which is the only one then, a part of the weights
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub lora_merge: Option<String>,
    /// The adapter of rows with images that name none: '{"image": DIR}'
    ///
    /// It is one of --lora-modules by the name `image`
    #[arg(long, value_name = "JSON", hide_short_help = true)]
    pub default_mm_loras: Option<DefaultMmLorasArg>,
}

impl LoraModulesArgs {
    /// All adapters, that of images as the last one.
    pub fn all(&self) -> Vec<LoraModuleArg> {
        let of_images = self.default_mm_loras.iter().map(|loras| LoraModuleArg {
            name: OF_IMAGES.to_owned(),
            path: loras.image.clone(),
            _base_model_name: None,
        });
        self.lora_modules.iter().cloned().chain(of_images).collect()
    }
}

/// What rows call the adapter of images.
const OF_IMAGES: &str = "image";

/// `--default-mm-loras`: vLLM's object.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DefaultMmLorasArg {
    /// A folder or a Hugging Face id.
    pub image: String,
}

impl FromStr for DefaultMmLorasArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let loras: Self = serde_json::from_str(text).map_err(|error| {
            format!("expected an object with `image`, the only medium that rows have: {error}")
        })?;
        match loras.image.is_empty() {
            true => Err("an adapter needs a folder: {\"image\": \"DIR\"}".to_owned()),
            false => Ok(loras),
        }
    }
}

/// One of `--lora-modules`: `NAME=DIR`, or vLLM's object.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraModuleArg {
    /// What rows call it.
    pub name: String,
    /// A folder or a Hugging Face id.
    pub path: String,
    /// vLLM's server shows it; it changes no answer.
    #[serde(default, rename = "base_model_name")]
    _base_model_name: Option<String>,
}

impl FromStr for LoraModuleArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let module: Self = match text.trim_start().starts_with('{') {
            true => serde_json::from_str(text).map_err(|error| {
                format!("expected an object with `name` and `path`, as vLLM's: {error}")
            })?,
            false => {
                let (name, path) = text.split_once('=').ok_or("expected NAME=DIR")?;
                let (name, path) = (name.to_owned(), path.to_owned());
                Self { name, path, _base_model_name: None }
            }
        };
        match (module.name.is_empty(), module.path.is_empty()) {
            (true, _) => Err("an adapter needs a name: NAME=DIR".to_owned()),
            (_, true) => Err("an adapter needs a folder: NAME=DIR".to_owned()),
            (false, false) => Ok(module),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_a_name_and_a_folder() {
        for (text, name, path) in [
            ("a=b", "a", "b"),
            ("a=./b=c", "a", "./b=c"),
            ("a b=org/name", "a b", "org/name"),
            (r#"{"name":"a","path":"b"}"#, "a", "b"),
            (r#" {"name":"a","path":"b","base_model_name":"c"}"#, "a", "b"),
            (r#"{"name":"a","path":"b","base_model_name":null}"#, "a", "b"),
        ] {
            let module: LoraModuleArg = text.parse().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!((module.name.as_str(), module.path.as_str()), (name, path), "{text}");
        }
        let of_images = |text: &str| text.parse::<DefaultMmLorasArg>();
        let modules = LoraModulesArgs {
            lora_modules: vec!["a=b".parse().unwrap()],
            default_mm_loras: Some(of_images(r#"{"image": "x"}"#).unwrap()),
            ..LoraModulesArgs::default()
        };
        let names: Vec<_> = modules.all().into_iter().map(|all| (all.name, all.path)).collect();
        let pair = |name: &str, path: &str| (name.to_owned(), path.to_owned());
        assert_eq!(names, [pair("a", "b"), pair("image", "x")]);
        for text in ["x", "{}", r#"{"image": ""}"#, r#"{"image": "x", "audio": "y"}"#] {
            assert!(of_images(text).unwrap_err().contains("image"), "{text}");
        }
        for (text, what) in [
            ("a", "expected NAME=DIR"),
            ("=b", "needs a name"),
            ("a=", "needs a folder"),
            (r#"{"name":"a"}"#, "missing field `path`"),
            (r#"{"name":"a","path":"b","is_3d":true}"#, "unknown field `is_3d`"),
            (r#"{"name":"","path":"b"}"#, "needs a name"),
        ] {
            let error = text.parse::<LoraModuleArg>().unwrap_err();
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}
