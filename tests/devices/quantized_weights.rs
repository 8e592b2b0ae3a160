//! Quantized checkpoints give the weights that their format's own library gives, bit for bit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use vllm_batch::engine::base::config::{CacheConfig, DType, EngineConfig, LoadFormat, ModelConfig};
use vllm_batch::engine::checkpoint::weights::{Checkpoint, linears_of_decoder};
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::load::model_summary::ModelSummary;

/// What `golden.json` says of a quantized model.
#[derive(Deserialize)]
struct Golden {
    /// Of each quantized matrix in f32, row by row.
    #[serde(default)]
    sha256: BTreeMap<String, String>,
}

fn folders() -> Vec<PathBuf> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden");
    let entries = std::fs::read_dir(golden).expect("testdata/golden is committed");
    let mut folders: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
}

#[test]
fn every_matrix_has_the_bits_of_its_dequantized_twin() {
    let mut formats = Vec::new();
    for folder in folders() {
        let Ok(text) = std::fs::read_to_string(folder.join("golden.json")) else { continue };
        let golden: Golden = serde_json::from_str(&text).unwrap();
        if golden.sha256.is_empty() {
            continue;
        }
        let config = ModelConfig { model_dir: folder.clone(), ..ModelConfig::default() };
        let summary = ModelSummary::read(&config).unwrap();
        formats.push(summary.checkpoint_format().unwrap());
        let shapes: BTreeMap<_, _> = summary.spec.tensors().into_iter().collect();
        let quantization = summary.quantization.as_ref();
        let checkpoint = Checkpoint::open(&folder, None).unwrap();
        let mut checkpoint =
            checkpoint.quantized(quantization, linears_of_decoder(&summary.spec)).unwrap();
        for (module, expected) in golden.sha256 {
            let name = format!("{module}.weight");
            let matrix = checkpoint.matrix(&(name.clone(), shapes[&name].clone())).unwrap();
            let bytes: Vec<u8> = matrix.to_vec().into_iter().flat_map(f32::to_le_bytes).collect();
            let found: String =
                digest(&SHA256, &bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(found, expected, "{}: {module}", folder.display());
        }
    }
    for format in ["gptq", "awq", "compressed-tensors", "fp8", "modelopt", "bitsandbytes"] {
        assert!(formats.iter().any(|found| found.starts_with(format)), "{format} has no folder");
    }
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden").join(name)
}

/// What a golden folder is refused with once its config has been changed.
fn refused(name: &str, change: impl Fn(&mut Map<String, Value>)) -> String {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(golden(name)).unwrap() {
        let (path, file) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        if file != "config.json" {
            std::os::unix::fs::symlink(path, folder.path().join(file)).unwrap();
        }
    }
    let text = std::fs::read_to_string(golden(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    change(config.as_object_mut().unwrap());
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let config = ModelConfig { model_dir: folder.path().to_owned(), ..ModelConfig::default() };
    let summary = ModelSummary::read(&config).unwrap();
    let checkpoint = Checkpoint::open(folder.path(), None).unwrap();
    let checkpoint =
        checkpoint.quantized(summary.quantization.as_ref(), linears_of_decoder(&summary.spec));
    checkpoint.unwrap().check(&summary.spec.tensors(), &[]).unwrap_err().to_string()
}

#[test]
fn config_and_files_are_held_against_each_other_both_ways() {
    let set = |key: &'static str, value: Value| {
        move |config: &mut Map<String, Value>| {
            config["quantization_config"][key] = value.clone();
        }
    };
    let q_proj = "model.layers.0.self_attn.q_proj";
    let left_out = refused("gptq_v2", set("dynamic", json!({"-:.*0.*q_proj": {}})));
    let wanted = format!("{q_proj}.qweight is stored quantized, but its config (gptq_v2 4 bit, ");
    assert!(left_out.contains(&wanted), "{left_out}");
    let left_out = refused("fp8", set("modules_to_not_convert", json!([q_proj])));
    let wanted = format!("{q_proj}.weight is quantized, of type F8_E4M3, but its config (fp8, ");
    assert!(left_out.contains(&wanted), "{left_out}");
    let unsaid = refused("ct_int4", |config| drop(config.remove("quantization_config")));
    assert!(unsaid.contains("but config.json has no `quantization_config`"), "{unsaid}");
    let plain = refused("fp8_static", set("ignored_layers", json!(["lm_head"])));
    let wanted = "model.layers.1.mlp.down_proj.weight is stored as it is, but its config says fp8";
    assert!(plain.contains(wanted), "{plain}");
    let shape = refused("gptq_v2", set("group_size", json!(16)));
    assert!(shape.contains("qzeros has shape") && shape.contains("asks for [2, "), "{shape}");
    let missing = refused("bnb_nf4", set("bnb_4bit_quant_type", json!("fp4")));
    assert!(missing.contains("weight.quant_state.bitsandbytes__fp4 is missing"), "{missing}");
}

/// The notes of a loaded golden model.
fn notes(name: &str, load_format: LoadFormat) -> Vec<String> {
    let model = ModelConfig {
        model_dir: golden(name),
        dtype: Some(DType::Float32),
        load_format,
        ..ModelConfig::default()
    };
    let cache =
        CacheConfig { block_size: Some(16), num_blocks: Some(16), ..CacheConfig::default() };
    let config = EngineConfig { model, cache, ..EngineConfig::default() };
    Engine::load(&config).unwrap().info().notes.clone()
}

#[test]
fn what_is_otherwise_than_the_config_says_is_in_notes() {
    let activations = "inputs of linear layers are computed in float32; the checkpoint's config \
                       asks for fp8, by their largest values and fp8, with scales of the file";
    let widened = "3 of 14 quantized matrices are widened to float32";
    let of_cache = "4 scales of keys and values are left unused: the KV cache has none";
    assert_eq!(notes("ct_fp8", LoadFormat::Auto), [widened, activations, of_cache]);
    assert_eq!(notes("awq", LoadFormat::Auto), [""; 0]);
    let dummy = "dummy weights are random codes of config.json's format: awq 4 bit, groups of 16";
    assert_eq!(notes("awq", LoadFormat::Dummy), [dummy]);
}
