//! Adapters that tests make for a model's folder: a seeded A and B for some of its matrices.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::tensor::{SafeTensors, TensorView};
use safetensors::{Dtype, serialize_to_file};
use serde_json::json;
use vllm_batch::engine::base::config::{LoraModule, ModelConfig};
use vllm_batch::engine::checkpoint::adapter::{LoraPlace, LoraPlaces};
use vllm_batch::engine::core::load::model_summary::ModelSummary;

/// What an adapter is.
#[derive(Clone, Copy, Debug)]
pub struct Made<'a> {
    pub rank: usize,
    pub seed: u64,
    /// Parts of the names of modules that it has; empty: all linear layers of the model's layers.
    pub modules: &'a [&'a str],
    /// Largest value of B.
    pub b: f32,
}

/// Uniform in [-scale, scale].
fn random(len: usize, seed: &mut u64, scale: f32) -> Vec<f32> {
    let mut next = || {
        *seed =
            seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((*seed >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * scale
    };
    (0..len).map(|_| next()).collect()
}

/// The matrices of the layers of a model, as the engine knows them: of a GGUF file, and of weights
/// that are packed.
fn packed_matrices(model: &Path) -> Vec<(String, usize, usize)> {
    let config = ModelConfig { model_dir: model.to_owned(), ..ModelConfig::default() };
    let summary = ModelSummary::read(&config).unwrap_or_else(|error| panic!("{error}"));
    let places = LoraPlaces::of_decoder(&summary.spec);
    let layers = places.linears().iter();
    let layers = layers.filter(|(place, _)| matches!(place, LoraPlace::Layer { .. }));
    let found = layers.flat_map(|(_, linear)| {
        linear.parts.iter().map(|part| (part.name.clone(), part.rows, linear.k))
    });
    found.collect()
}

/// The matrices of the layers of a folder of safetensors: name, outputs, inputs.
fn matrices(model: &Path) -> Vec<(String, usize, usize)> {
    if model.is_file() {
        return packed_matrices(model);
    }
    let bytes = fs::read(model.join("model.safetensors")).expect("testdata is committed");
    let tensors = SafeTensors::deserialize(&bytes).expect("a model of testdata");
    let is_packed = |name: &str| name.ends_with(".qweight") || name.ends_with(".weight_packed");
    if tensors.names().into_iter().any(is_packed) {
        return packed_matrices(model);
    }
    let mut found: Vec<_> = tensors
        .iter()
        .filter_map(|(name, tensor)| {
            let module = name.strip_suffix(".weight")?;
            let &[outputs, inputs] = tensor.shape() else { return None };
            let is_adapted = ["layers.", "layer."].iter().any(|part| module.contains(part))
                && !module.contains(".experts.");
            is_adapted.then(|| (module.to_owned(), outputs, inputs))
        })
        .collect();
    found.sort();
    found
}

/// Writes an adapter of a model's folder as peft writes it.
pub fn make(folder: &Path, name: &str, model: &Path, made: Made<'_>) -> LoraModule {
    let dir = folder.join(name);
    fs::create_dir(&dir).unwrap();
    let Made { rank, mut seed, modules, b } = made;
    let mut tensors = HashMap::new();
    for (module, outputs, inputs) in matrices(model) {
        if !modules.is_empty() && !modules.iter().any(|part| module.ends_with(part)) {
            continue;
        }
        let a = random(rank * inputs, &mut seed, 0.5);
        let b = random(outputs * rank, &mut seed, b);
        for (part, values, shape) in [("A", a, [rank, inputs]), ("B", b, [outputs, rank])] {
            let name = format!("base_model.model.{module}.lora_{part}.weight");
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            tensors.insert(name, (bytes, shape));
        }
    }
    assert!(!tensors.is_empty(), "{} has none of {modules:?}", model.display());
    let views = tensors.iter().map(|(name, (bytes, shape))| {
        (
            name,
            TensorView::new(Dtype::F32, shape.to_vec(), bytes).expect("as many as the shape says"),
        )
    });
    serialize_to_file(views, None, &dir.join("adapter_model.safetensors")).unwrap();
    let config =
        json!({"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": []});
    fs::write(dir.join("adapter_config.json"), config.to_string()).unwrap();
    LoraModule { name: name.to_owned(), dir }
}

/// A folder of `testdata`.
pub fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}
