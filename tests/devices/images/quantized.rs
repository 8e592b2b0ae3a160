//! Quantized checkpoints with a vision tower: what is quantized is read by its format, and what is
//! not as it is, wherever the config says so or not.

use half::bf16;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};

use super::*;

const LANGUAGE: &str = "language_model.model.layers.";
const EXPERTS_ALONE: [&str; 4] = [
    "lm_head",
    "re:.*self_attn.*",
    "re:.*shared_experts.*",
    r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
];
const TOWER: &str = "vision_tower.vision_model.encoder.layers.";

/// Copies a model, with int8 codes and a scale for each output in the place of the linear layers
/// whose names begin as `quantized`; or with the values of these codes.
fn copied(model: &str, to: &Path, (quantized, ignore): (&[&str], &[&str]), as_values: bool) {
    let from = testdata("golden").join(model);
    for entry in std::fs::read_dir(&from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let source = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, view) in source.tensors() {
        let is_quantized = view.shape().len() == 2
            && quantized.iter().any(|prefix| name.starts_with(prefix) && name.ends_with("weight"));
        let stored = (name.clone(), view.dtype(), view.shape().to_vec(), view.data().to_vec());
        if !is_quantized {
            tensors.push(stored);
            continue;
        }
        let pairs = view.data().chunks_exact(2);
        let values: Vec<_> =
            pairs.map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).to_f32()).collect();
        let (mut codes, mut scales, mut decoded) = (Vec::new(), Vec::new(), Vec::new());
        for row in values.chunks_exact(view.shape()[1]) {
            let largest = row.iter().fold(0f32, |most, value| most.max(value.abs()));
            let scale = bf16::from_f32(largest / 127.0);
            scales.extend(scale.to_le_bytes());
            for value in row {
                let code = (value / scale.to_f32()).round().clamp(-127.0, 127.0);
                codes.push(code as i8 as u8);
                decoded.extend((code * scale.to_f32()).to_le_bytes());
            }
        }
        if as_values {
            tensors.push((name, Dtype::F32, view.shape().to_vec(), decoded));
            continue;
        }
        let scale = format!("{name}_scale");
        tensors.push((name, Dtype::I8, view.shape().to_vec(), codes));
        tensors.push((scale, Dtype::BF16, vec![view.shape()[0], 1], scales));
    }
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    std::fs::write(to.join("model.safetensors"), bytes).unwrap();
    if as_values {
        return;
    }
    let mut config: Value = serde_json::from_str(&read(model, "config.json")).unwrap();
    let weights = json!({"num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel"});
    config["quantization_config"] = json!({
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ignore,
    });
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
}

fn logits(name: &str, folder: &Path) -> Vec<Vec<f32>> {
    let table = table(name, usize::MAX);
    let of_folder = config(name, DType::Float32);
    let model = ModelConfig { model_dir: folder.to_owned(), ..of_folder.model };
    let mut runner = Runner::load(EngineConfig { model, ..of_folder }, 2, &table);
    let prompts = golden(name).prompts;
    let placed: Vec<_> = prompts.iter().map(|prompt| placed(&table, name, prompt)).collect();
    let rows: Vec<_> = placed.iter().map(|(row, _)| row).collect();
    runner.prefill(&rows, 64)
}

#[test]
fn a_quantized_checkpoint_sees_as_its_values_do() {
    let ignored = ["lm_head", "re:.*vision_tower.*", "re:.*multi_modal_projector.*"];
    let merging = "multi_modal_projector.patch_merger.merging_layer";
    for (model, quantized, ignore) in [
        ("llava", &[LANGUAGE][..], &ignored[..]),
        // A config that does not name what is stored as it is.
        ("llava", &[LANGUAGE], &ignored[..1]),
        ("llava", &[LANGUAGE, TOWER, "multi_modal_projector.linear_2"], &ignored[..1]),
        // As Kimi K2.5 is published: the router is not named either.
        ("kimi_k25", &["language_model.model.layers.1.mlp.experts."], &EXPERTS_ALONE),
        ("mistral3", &[LANGUAGE], &ignored[..]),
        // Inputs of the layer that merges patches are stored in another order.
        ("mistral3", &[LANGUAGE, "vision_tower.transformer.layers.", merging], &ignored[..1]),
    ] {
        let (codes, values) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        copied(model, codes.path(), (quantized, ignore), false);
        copied(model, values.path(), (quantized, ignore), true);
        let (got, expected) = (logits(model, codes.path()), logits(model, values.path()));
        for (got, expected) in got.iter().zip(&expected) {
            assert_close(got, expected, &format!("{quantized:?}, {ignore:?}"));
        }
    }
}

#[test]
fn a_tower_that_its_config_leaves_alone_may_not_be_of_codes() {
    let folder = tempfile::tempdir().unwrap();
    let ignore = ["lm_head", "re:.*vision_tower.*", "re:.*multi_modal_projector.*"];
    copied("llava", folder.path(), (&[LANGUAGE, TOWER], &ignore), false);
    let of_folder = config("llava", DType::Float32);
    let model = ModelConfig { model_dir: folder.path().to_owned(), ..of_folder.model };
    let loaded = Engine::load(&EngineConfig { model, ..of_folder });
    let error = loaded.err().expect("it is refused").to_string();
    assert!(error.contains("vision_tower") && error.contains("quantized"), "{error}");
}
