//! Which adapters there are, and what rows may call them: of the flags, before any is found. A
//! folder that one names is not looked at here.

use std::path::Path;

use crate::args::{LoraArgs, LoraModuleArg, LoraModulesArgs};
use vllm_batch_base::config::{LoraConfig, LoraId, LoraModule};
use vllm_batch_dataset::input::row::ModelNames;
use vllm_batch_dataset::terminal::error::{CliError, sanitized};

/// Adapters in one step, where no flag says it. Each that is resident takes memory.
const MAX_LORAS: usize = 8;

/// A model, as far as rows name it.
#[derive(Clone, Copy, Debug)]
pub struct NamedModel<'a> {
    /// As typed: a folder, a GGUF file or a Hugging Face id.
    pub model: &'a str,
    /// What lines of batch APIs call it.
    pub served_name: &'a str,
}

/// The adapters, with their folders as they were typed; the most of them in one step.
///
/// # Errors
/// Names that do not fit each other or the model's.
pub(super) fn lora_config(
    args: &LoraArgs,
    model: NamedModel<'_>,
) -> Result<(LoraConfig, usize, ModelNames), CliError> {
    let names = model_names(&args.modules, Some(model))?;
    let module =
        |arg: &LoraModuleArg| LoraModule { name: arg.name.clone(), dir: arg.path.clone().into() };
    let mut modules: Vec<_> = args.modules.all().iter().map(module).collect();
    let of_images = args.modules.default_mm_loras.as_ref();
    let of_images = of_images.map(|_| LoraId(modules.len() as u32 - 1));
    let merged = args.modules.lora_merge.as_ref().and_then(|_| modules.pop());
    let max_loras = args.max_loras.unwrap_or(modules.len().clamp(1, MAX_LORAS));
    let defaults = LoraConfig::default();
    let max_lora_rank = args.max_lora_rank.unwrap_or(defaults.max_lora_rank);
    Ok((LoraConfig { modules, max_lora_rank, merged, of_images }, max_loras, names))
}

/// What rows may call the model and its adapters. `model`: None where it is not known.
///
/// # Errors
/// As `lora_config`.
pub fn model_names(
    args: &LoraModulesArgs,
    model: Option<NamedModel<'_>>,
) -> Result<ModelNames, CliError> {
    let base = model.map(NamedModel::names).unwrap_or_default();
    let refused = |message: String, help: &str| {
        Err(CliError::refused("lora", sanitized(&message)).help(help))
    };
    let modules = &args.all();
    for (index, LoraModuleArg { name, .. }) in modules.iter().enumerate() {
        if modules[..index].iter().any(|other| other.name == *name) {
            let message = format!("--lora-modules {name}: two adapters have this name");
            return refused(message, "give each a name of its own");
        }
        if base.contains(name) {
            let message = format!("--lora-modules {name}: it is the name of the model");
            let help = "give the adapter another name, or the model with --served-model-name";
            return refused(message, help);
        }
    }
    let Some(merged) = &args.lora_merge else {
        return Ok(ModelNames::new(base, modules.iter().map(|module| module.name.clone())));
    };
    match modules.as_slice() {
        [module] if module.name == *merged => Ok(ModelNames::merged(merged.clone())),
        modules if modules.iter().any(|module| module.name == *merged) => {
            let message = format!("--lora-merge {merged}: there are other adapters");
            refused(message, "they would add to weights that they were not trained on: give one")
        }
        _ => {
            let message = format!("--lora-merge {merged}: --lora-modules has no such name");
            refused(message, &format!("give --lora-modules {merged}=DIR"))
        }
    }
}

impl NamedModel<'_> {
    /// What is shown of it first; as typed; the name of its folder or repository.
    fn names(self) -> Vec<String> {
        let last = Path::new(self.model).file_name().map(|name| name.to_string_lossy());
        let all = [self.served_name, self.model].into_iter().map(str::to_owned);
        let mut names: Vec<String> = all.chain(last.map(|name| name.into_owned())).collect();
        names.dedup();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: NamedModel<'_> = NamedModel { model: "./models/base", served_name: "served" };

    fn args(modules: &[&str], merge: Option<&str>) -> LoraArgs {
        let lora_modules = modules.iter().map(|text| text.parse().expect("a module")).collect();
        let lora_merge = merge.map(str::to_owned);
        let modules = LoraModulesArgs { lora_modules, lora_merge, default_mm_loras: None };
        LoraArgs { modules, ..LoraArgs::default() }
    }

    #[test]
    fn as_many_adapters_run_in_a_step_as_there_are_up_to_eight() {
        let modules: Vec<String> = (0..9).map(|index| format!("a{index}=dir")).collect();
        let modules: Vec<&str> = modules.iter().map(String::as_str).collect();
        for (num, expected) in [(0, 1), (1, 1), (3, 3), (9, 8)] {
            let (config, max_loras, _) = lora_config(&args(&modules[..num], None), MODEL).unwrap();
            assert_eq!(
                (config.modules.len(), max_loras, config.max_lora_rank),
                (num, expected, 16)
            );
        }
        let typed =
            LoraArgs { max_loras: Some(2), max_lora_rank: Some(64), ..args(&modules, None) };
        let (config, max_loras, _) = lora_config(&typed, MODEL).unwrap();
        assert_eq!((max_loras, config.max_lora_rank), (2, 64));
    }

    #[test]
    fn an_adapter_that_is_merged_is_alone_and_no_row_takes_it() {
        let (config, _, names) = lora_config(&args(&["a=x"], Some("a")), MODEL).unwrap();
        assert!(config.modules.is_empty());
        assert_eq!(config.merged.map(|module| module.name).as_deref(), Some("a"));
        assert_eq!(names, ModelNames::merged("a".to_owned()));
    }

    #[test]
    fn the_adapter_of_images_is_the_last_one() {
        let mut args = args(&["a=x"], None);
        args.modules.default_mm_loras = Some(r#"{"image": "y"}"#.parse().unwrap());
        let (config, max_loras, names) = lora_config(&args, MODEL).unwrap();
        assert_eq!((config.of_images, max_loras), (Some(LoraId(1)), 2));
        assert_eq!(config.modules[1].name, "image");
        assert_eq!(names, ModelNames::new(MODEL.names(), ["a", "image"].map(str::to_owned)));
        args.modules.lora_merge = Some("a".to_owned());
        let error = lora_config(&args, MODEL).unwrap_err();
        assert!(error.message.contains("there are other adapters"), "{}", error.message);
        args.modules.lora_modules = vec!["image=x".parse().unwrap()];
        assert!(lora_config(&args, MODEL).unwrap_err().message.contains("two adapters"));
    }

    #[test]
    fn names_are_told_apart() {
        for (modules, merge, what) in [
            (&["a=x", "b=y", "a=z"][..], None, "--lora-modules a: two adapters have this name"),
            (&["served=x"], None, "--lora-modules served: it is the name of the model"),
            (&["base=x"], None, "--lora-modules base: it is the name of the model"),
            (&["./models/base=x"], None, "it is the name of the model"),
            (&["served=x"], Some("served"), "it is the name of the model"),
            (&["a=x", "b=y"], Some("a"), "--lora-merge a: there are other adapters"),
            (&["a=x"], Some("b"), "--lora-merge b: --lora-modules has no such name"),
            (&[], Some("b"), "--lora-merge b: --lora-modules has no such name"),
        ] {
            let error = lora_config(&args(modules, merge), MODEL).unwrap_err();
            assert!(error.message.contains(what), "{modules:?}: {}", error.message);
            assert_eq!(error.exit, vllm_batch_dataset::terminal::exit::Exit::Refused);
        }
    }
}
