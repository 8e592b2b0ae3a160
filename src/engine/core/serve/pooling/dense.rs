//! Dense modules of sentence-transformers: linear layers behind the pooling, each with weights in a
//! folder of its own.

use std::path::Path;

use serde_json::{Map, Value};

use super::ListedModule;
use super::layer_file::LayerFile;
use super::modules::{bad, read};
use vllm_batch_base::EngineError;
use vllm_batch_base::files::quoted;
use vllm_batch_base::layers::Activation;
use vllm_batch_checkpoint::spec::HeadActivation;

/// Widest input or output.
const MAX_WIDTH: u64 = 1 << 20;

/// What it is a function of, and what becomes of it, unless the config says it.
const VECTOR: &str = "sentence_embedding";

/// The same where it is a function of each token's state.
const TOKENS: &str = "token_embeddings";

/// A linear layer in a folder of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseModule {
    /// Behind the pooling.
    pub layer: LayerFile,
    /// It reads the states of all tokens, and not what is pooled.
    pub of_tokens: bool,
}

impl DenseModule {
    /// Reads the config of a module.
    ///
    /// # Errors
    /// It is missing or corrupt, or asks for what is not implemented.
    pub(super) fn read(dir: &Path, module: &ListedModule) -> Result<Self, EngineError> {
        let folder = dir.join(&module.folder);
        let path = folder.join("config.json");
        let Some(Value::Object(keys)) = read(&path)? else {
            return Err(bad(&path, "the config of the module is missing"));
        };
        let size = |key: &str| {
            let size = keys.get(key).and_then(Value::as_u64);
            let size = size.filter(|size| (1..=MAX_WIDTH).contains(size));
            size.map(|size| size as usize).ok_or_else(|| bad(&path, &format!("`{key}`: no size")))
        };
        let (inputs, outputs) = (size("in_features")?, size("out_features")?);
        let known = [
            "in_features",
            "out_features",
            "bias",
            "activation_function",
            "module_input_name",
            "module_output_name",
            "use_residual",
        ];
        if let Some(key) = keys.keys().find(|key| !known.contains(&key.as_str())) {
            return Err(bad(&path, &format!("{} is not supported", quoted(key))));
        }
        if keys.get("use_residual").is_some_and(|value| *value != Value::Bool(false)) {
            return Err(bad(&path, "`use_residual`: a residual is not supported"));
        }
        let bias = keys.get("bias").and_then(Value::as_bool).unwrap_or(true);
        let layer = LayerFile::new(folder, (outputs, inputs));
        let layer = layer.with(bias, activation(&keys, &path)?);
        let of_tokens = reads_tokens(&keys, &path)?;
        Ok(Self { layer, of_tokens })
    }
}

/// A class of PyTorch, by its name. Without one sentence-transformers takes the hyperbolic tangent.
fn activation(
    keys: &Map<String, Value>,
    path: &Path,
) -> Result<Option<HeadActivation>, EngineError> {
    let name = match keys.get("activation_function") {
        None => return Ok(Some(HeadActivation::TANH)),
        Some(name) => name.as_str().unwrap_or_default(),
    };
    let class = name.rsplit('.').next().filter(|_| name.starts_with("torch.nn."));
    Ok(match class.unwrap_or_default() {
        "Identity" => None,
        "Tanh" => Some(HeadActivation::TANH),
        "ReLU" => Some(HeadActivation::Known(Activation::Relu)),
        "GELU" => Some(HeadActivation::Known(Activation::Gelu)),
        "SiLU" => Some(HeadActivation::Known(Activation::Silu)),
        _ => {
            let text = format!("`activation_function` {} is not supported", quoted(name));
            return Err(bad(path, &text));
        }
    })
}

/// Whether it reads the states of tokens. What it makes takes their place.
fn reads_tokens(keys: &Map<String, Value>, path: &Path) -> Result<bool, EngineError> {
    let text = |key: &str| keys.get(key).and_then(Value::as_str);
    let input = text("module_input_name").unwrap_or(VECTOR);
    let output = text("module_output_name").unwrap_or(input);
    match input == output && [VECTOR, TOKENS].contains(&input) {
        true => Ok(input == TOKENS),
        false => {
            let (input, output) = (quoted(input), quoted(output));
            Err(bad(path, &format!("a module from {input} to {output} is not supported")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_config(config: &str) -> Result<DenseModule, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("2_Dense")).unwrap();
        std::fs::write(folder.path().join("2_Dense/config.json"), config).unwrap();
        let module = ListedModule { class: "x.Dense".into(), folder: "2_Dense".into() };
        DenseModule::read(folder.path(), &module).map_err(|error| error.to_string())
    }

    #[test]
    fn a_config_says_what_the_layer_is() {
        let sizes = r#""in_features": 32, "out_features": 8"#;
        let of = |more: &str| of_config(&format!("{{{sizes}{more}}}"));
        let plain = of("").unwrap();
        assert_eq!((plain.layer.inputs(), plain.layer.outputs(), plain.of_tokens), (32, 8, false));
        let layer = &plain.layer.layer;
        assert_eq!((layer.activation, layer.linear.bias), (Some(HeadActivation::TANH), true));
        let identity = r#", "bias": false, "activation_function": "torch.nn.modules.linear.Identity",
            "module_input_name": "token_embeddings""#;
        let identity = of(identity).unwrap();
        let layer = &identity.layer.layer;
        assert_eq!((layer.activation, layer.linear.bias, identity.of_tokens), (None, false, true));
        for (config, what) in [
            (r#", "activation_function": "torch.nn.modules.activation.Mish""#, "Mish"),
            (r#", "activation_function": "mine.Tanh""#, "mine.Tanh"),
            (r#", "use_residual": true"#, "residual"),
            (r#", "dropout": 0.1"#, "`dropout`"),
            (r#", "module_output_name": "other""#, "`other`"),
        ] {
            let error = of(config).unwrap_err();
            assert!(error.contains(what), "{error}");
        }
        assert!(of_config(r#"{"in_features": 32}"#).unwrap_err().contains("`out_features`"));
    }
}
