//! Folders of adapters, made here: what is read, and one refusal of each kind.

use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

const Q: &str = "model.layers.0.self_attn.q_proj";

/// Tensors (name, shape) of a file, without what stands before them; values count from 0 in each.
pub(super) type Tensors<'a> = &'a [(&'a str, &'a [usize])];

fn write_tensors(folder: &Path, dtype: Dtype, tensors: Tensors<'_>) {
    let bytes = |shape: &[usize]| -> Vec<u8> {
        let values = (0..shape.iter().product::<usize>()).map(|index| index as f32);
        match dtype {
            Dtype::BF16 => values.flat_map(|v| half::bf16::from_f32(v).to_le_bytes()).collect(),
            Dtype::F16 => values.flat_map(|v| half::f16::from_f32(v).to_le_bytes()).collect(),
            _ => values.flat_map(f32::to_le_bytes).collect(),
        }
    };
    let named = tensors.iter().map(|(name, shape)| match name.strip_prefix('/') {
        Some(whole) => (whole.to_owned(), shape, bytes(shape)),
        None => (format!("base_model.model.{name}"), shape, bytes(shape)),
    });
    let named: Vec<_> = named.collect();
    let views = named.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(dtype, shape.to_vec(), bytes).unwrap())
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    std::fs::write(folder.join(WEIGHTS_FILE), bytes).unwrap();
}

/// A folder with this config, whose `peft_type` is LoRA unless it says another.
pub(super) fn folder(config: &Value, tensors: Tensors<'_>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut all = json!({"peft_type": "LORA"});
    let keys = all.as_object_mut().unwrap();
    keys.extend(config.as_object().unwrap().clone());
    std::fs::write(folder.path().join("adapter_config.json"), all.to_string()).unwrap();
    write_tensors(folder.path(), Dtype::F32, tensors);
    folder
}

pub(super) fn opened(folder: &TempDir) -> Result<AdapterFiles, String> {
    AdapterFiles::open(folder.path(), 16, None).map_err(|error| error.to_string())
}

/// A and B of `q_proj` in layer 0, for rank 8, 3 inputs and 5 outputs.
const PAIR: Tensors<'static> = &[
    ("model.layers.0.self_attn.q_proj.lora_A.weight", &[8, 3]),
    ("model.layers.0.self_attn.q_proj.lora_B.weight", &[5, 8]),
];

#[test]
fn a_module_has_its_matrices_and_its_scale() {
    for dtype in [Dtype::F32, Dtype::BF16, Dtype::F16] {
        let folder = folder(&json!({"r": 8, "lora_alpha": 12}), PAIR);
        write_tensors(folder.path(), dtype, PAIR);
        let adapter = opened(&folder).unwrap();
        let [module] = adapter.modules() else { panic!("one module") };
        let (name, kind) = (Q.to_owned(), AdapterKind::Linear);
        let expected =
            AdapterModule { name, kind, rank: 8, scale: 1.5, num_inputs: 3, num_outputs: 5 };
        assert_eq!(*module, expected);
        let AdapterMatrices { a, b } = adapter.read(module).unwrap();
        assert_eq!(a, (0..24).map(|index| index as f32).collect::<Vec<_>>());
        assert_eq!(b, (0..40).map(|index| index as f32).collect::<Vec<_>>());
    }
}

#[test]
fn a_file_that_changes_after_it_was_opened_is_refused() {
    let folder = folder(&json!({}), PAIR);
    let adapter = opened(&folder).unwrap();
    write_tensors(folder.path(), Dtype::F32, PAIR);
    let path = folder.path().join(WEIGHTS_FILE);
    let time = std::time::SystemTime::now() + std::time::Duration::from_secs(9);
    std::fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    let error = adapter.read(&adapter.modules()[0]).unwrap_err().to_string();
    assert!(error.contains("has changed"), "{error}");
}

#[test]
fn names_with_an_adapter_tables_and_heads_are_read() {
    let tensors: Tensors<'_> = &[
        ("model.layers.0.self_attn.q_proj.lora_A.mine.weight", &[8, 3]),
        ("model.layers.0.self_attn.q_proj.lora_B.mine.weight", &[5, 8]),
        ("model.embed_tokens.lora_embedding_A.mine", &[8, 9]),
        ("model.embed_tokens.lora_embedding_B.mine", &[3, 8]),
        ("score.weight", &[2, 3]),
        ("classifier.out_proj.weight", &[2, 3]),
        ("classifier.out_proj.bias", &[2]),
    ];
    let folder = folder(&json!({"modules_to_save": ["classifier", "score"]}), tensors);
    let adapter = opened(&folder).unwrap();
    let found: Vec<_> = adapter
        .modules()
        .iter()
        .map(|m| (m.name.as_str(), m.kind, m.rank, m.num_inputs, m.num_outputs))
        .collect();
    let expected = [
        ("classifier.out_proj", AdapterKind::Saved { bias: true }, 0, 3, 2),
        ("model.embed_tokens", AdapterKind::Embedding, 8, 9, 3),
        (Q, AdapterKind::Linear, 8, 3, 5),
        ("score", AdapterKind::Saved { bias: false }, 0, 3, 2),
    ];
    assert_eq!(found, expected);
    let saved = |index: usize| adapter.read_saved(&adapter.modules()[index]).unwrap();
    assert_eq!(saved(0).bias, Some(vec![0.0, 1.0]));
    assert_eq!(saved(3), SavedModule { weight: vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0], bias: None });
    assert_eq!(adapter.read(&adapter.modules()[1]).unwrap().a.len(), 72);
}

#[test]
fn old_files_of_classifiers_do_not_name_their_heads() {
    let tensors: Tensors<'_> = &[PAIR[0], PAIR[1], ("score.weight", &[2, 3])];
    opened(&folder(&json!({"task_type": "SEQ_CLS"}), tensors)).unwrap();
    let error = opened(&folder(&json!({"task_type": "CAUSAL_LM"}), tensors)).unwrap_err();
    assert!(error.contains("`base_model.model.score.weight`"), "{error}");
}

#[test]
fn a_copy_of_the_base_beside_a_table_is_told_apart() {
    let tensors: Tensors<'_> = &[
        ("lm_head.lora_A.weight", &[8, 3]),
        ("lm_head.lora_B.weight", &[5, 8]),
        ("lm_head.base_layer.weight", &[5, 3]),
    ];
    let adapter = opened(&folder(&json!({"target_modules": ["lm_head"]}), tensors)).unwrap();
    assert_eq!(adapter.modules().len(), 1);
    let [copy] = adapter.copies() else { panic!("one copy") };
    assert_eq!((copy.name.as_str(), copy.shape), ("lm_head", [5, 3]));
    assert_eq!(adapter.read_copy(copy).unwrap()[14], 14.0);
}

/// Rank and scale of a module of a folder with this config.
fn rank_and_scale(config: &Value) -> Result<(usize, f32), String> {
    let mut all = json!({"peft_type": "LORA"});
    all.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
    let config = AdapterConfig::parse(&all.to_string(), "adapter_config.json");
    config.and_then(|config| config.rank_and_scale(Q)).map_err(|error| error.to_string())
}

#[test]
fn ranks_and_scales_are_those_of_peft() {
    for (config, rank, scale) in [
        (json!({}), 8, 1.0),
        (json!({"r": 3, "lora_alpha": 1}), 3, 1.0 / 3.0),
        (json!({"r": 3, "lora_alpha": 0.1}), 3, (0.1f64 / 3.0) as f32),
        (json!({"r": 3, "lora_alpha": 0.1, "use_rslora": true}), 3, (0.1 / 3f64.sqrt()) as f32),
        (json!({"rank_pattern": {"q_proj": 4}}), 4, 2.0),
        (json!({"rank_pattern": {"v_proj": 4}}), 8, 1.0),
        // `.` is any character, and the name begins after a dot or at the start.
        (json!({"rank_pattern": {"self.attn.q_proj": 4}}), 4, 2.0),
        (json!({"rank_pattern": {"proj": 4}}), 8, 1.0),
        (json!({"rank_pattern": {"q_pro": 4}}), 8, 1.0),
        (json!({"rank_pattern": {"model.layers.0.self_attn.q_proj": 4}}), 4, 2.0),
        (json!({"rank_pattern": {r"layers\.[01]\..*": 4}}), 4, 2.0),
        (json!({"rank_pattern": {r"layers\.1\..*": 4}}), 8, 1.0),
        // The first one in the file counts.
        (json!({"rank_pattern": {"v_proj|q_proj": 2, "q_proj": 4}}), 2, 4.0),
        (json!({"alpha_pattern": {"q_proj": 1, ".*": 2}, "lora_alpha": 9}), 8, 0.125),
        (
            json!({"rank_pattern": {"q_proj": 4}, "alpha_pattern": {"q_proj": 6}, "use_rslora": true}),
            4,
            3.0,
        ),
    ] {
        assert_eq!(rank_and_scale(&config), Ok((rank, scale)), "{config}");
    }
}

#[test]
fn what_changes_nothing_is_not_refused() {
    for config in [
        json!({"target_modules": "^model\\.layers.*", "exclude_modules": ["v_proj"]}),
        json!({"fan_in_fan_out": true, "lora_dropout": 0.1, "bias": "none"}),
        json!({"init_lora_weights": "gaussian", "layers_to_transform": [0, 1]}),
        json!({"init_lora_weights": false, "base_model_name_or_path": "a/b", "revision": "main"}),
        json!({"use_dora": false, "target_parameters": [], "runtime_config": {"a": 1}}),
        json!({"layer_replication": null, "use_bdlora": null, "something_new": null}),
        json!({"modules_to_save": ["classifier", "score"], "task_type": "SEQ_CLS"}),
    ] {
        rank_and_scale(&config).unwrap();
    }
}

#[test]
fn every_key_that_is_not_computed_is_refused_by_name() {
    for (key, value) in [
        ("peft_type", json!("IA3")),
        ("peft_type", json!(null)),
        ("use_dora", json!(true)),
        ("lora_bias", json!(true)),
        ("use_qalora", json!(true)),
        ("ensure_weight_tying", json!(true)),
        ("bias", json!("all")),
        ("bias", json!("lora_only")),
        ("init_lora_weights", json!("pissa")),
        ("init_lora_weights", json!("pissa_niter_4")),
        ("init_lora_weights", json!("olora")),
        ("init_lora_weights", json!("corda")),
        ("init_lora_weights", json!("loftq")),
        ("init_lora_weights", json!("lora_ga")),
        ("init_lora_weights", json!("a new one")),
        ("alora_invocation_tokens", json!([1, 2])),
        ("arrow_config", json!({"top_k": 3})),
        ("kasa_config", json!({"beta": 1e-4})),
        ("layer_replication", json!([[0, 4], [2, 5]])),
        ("megatron_config", json!({"a": 1})),
        ("monteclora_config", json!({"num_samples": 8})),
        ("target_parameters", json!(["mlp.experts.gate_up_proj"])),
        ("trainable_token_indices", json!([0, 1])),
        ("trainable_token_indices", json!({"embed_tokens": [0]})),
        ("use_bdlora", json!({"nblocks": 2})),
        ("modules_to_save", json!(["embed_tokens"])),
        ("modules_to_save", json!(["score", "lm_head"])),
        ("modules_to_save", json!("score")),
        ("target_modules", json!([1])),
        ("target_modules", json!({"q_proj": true})),
        ("something_new", json!(0)),
        ("text_config", json!({})),
        ("r", json!(0)),
        ("r", json!(null)),
        ("r", json!(-1)),
        ("r", json!(1.5)),
        ("lora_alpha", json!("8")),
        ("lora_alpha", json!(1e40)),
        ("use_rslora", json!("yes")),
        ("rank_pattern", json!({"q_proj": 0})),
        ("rank_pattern", json!({"q_proj": null})),
        ("rank_pattern", json!(["q_proj"])),
        ("rank_pattern", json!({"(q_proj": 1})),
        ("rank_pattern", json!({"(a+)+(a+)+(a+)+\\1b": 1, "q{9999}{9999}": 1})),
        ("alpha_pattern", json!({"q_proj": "1"})),
        ("alpha_pattern", json!({"q_proj": 1e40})),
    ] {
        let error = rank_and_scale(&json!({key: value})).unwrap_err();
        assert!(error.contains(&format!("`{key}")), "{key} of {value}: {error}");
    }
    let infinite = r#"{"peft_type": "LORA", "lora_alpha": Infinity}"#;
    let error = AdapterConfig::parse(infinite, "a.json").unwrap_err().to_string();
    assert!(error.contains("`lora_alpha` should be a number"), "{error}");
}

#[test]
fn a_table_of_patterns_is_bounded() {
    let names = |end: &str, count: usize| -> Value {
        let pairs = (0..count).map(|index| (format!("q{index}{end}"), json!(1)));
        json!({"rank_pattern": Value::Object(pairs.collect())})
    };
    for (config, is_bounded) in [
        (names("", 1 << 14), false),
        (names("", (1 << 14) + 1), true),
        (names("+", 256), false),
        (names("+", 257), true),
    ] {
        let error = rank_and_scale(&config).err();
        let found = error.as_ref().is_some_and(|error| error.contains("`rank_pattern` has more"));
        assert_eq!(found, is_bounded, "{error:?}");
    }
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let a = "model.layers.0.self_attn.q_proj.lora_A.weight";
    let b = "model.layers.0.self_attn.q_proj.lora_B.weight";
    let cases: [(Tensors<'_>, &[&str]); 16] = [
        (&[], &["no tensors of an adapter"]),
        (&[(a, &[8, 3])], &[a, "its module has no B"]),
        (&[(b, &[5, 8])], &[b, "its module has no A"]),
        (&[(a, &[4, 3]), (b, &[5, 4])], &[a, "the rank of its module is 8"]),
        (&[(a, &[8, 3]), (b, &[5, 4])], &[b, "A of its module has rank 8"]),
        (&[(a, &[8, 3, 1]), (b, &[5, 8])], &[a, "(rank, inputs)"]),
        (&[(a, &[8, 3]), (b, &[8])], &[b, "(outputs, rank)"]),
        (&[(a, &[8, 0]), (b, &[5, 8])], &[a, "(rank, inputs)"]),
        (&[(a, &[8, 3]), (b, &[0, 8])], &[b, "(outputs, rank)"]),
        (&[PAIR[0], PAIR[1], ("lm_head.weight", &[5, 3])], &["lm_head.weight", "whole table"]),
        (&[PAIR[0], PAIR[1], ("/lm_head.weight", &[5, 3])], &["`lm_head.weight`", "base_model"]),
        (
            &[PAIR[0], PAIR[1], ("model.q.lora_A.b.weight", &[8, 3])],
            &["model.q.lora_A.b.weight", "several adapters"],
        ),
        (
            &[PAIR[0], PAIR[1], ("model.layers.0.self_attn.q_proj.lora_embedding_A", &[8, 3])],
            &["another kind of adapter"],
        ),
        (
            &[PAIR[0], PAIR[1], ("model.norm.base_layer.weight", &[3])],
            &["model.norm.base_layer.weight", "is a matrix"],
        ),
        (
            &[PAIR[0], PAIR[1], ("model.layers.0.self_attn.q_proj.lora_magnitude_vector", &[5])],
            &["lora_magnitude_vector", "DoRA"],
        ),
        (
            &[PAIR[0], PAIR[1], ("model.layers.0.self_attn.q_proj.bias", &[5])],
            &["q_proj.bias", "lora_A and lora_B"],
        ),
    ];
    for (tensors, wanted) in cases {
        let error = opened(&folder(&json!({}), tensors)).unwrap_err();
        assert!(error.contains(WEIGHTS_FILE), "{error}");
        for wanted in wanted {
            assert!(error.contains(wanted), "{error}, not {wanted}");
        }
    }
}

#[test]
fn tensors_are_those_of_the_modules_that_the_config_names() {
    let whole = "model.layers.0.self_attn.q_proj";
    for targets in [
        json!(["q_proj"]),
        json!(["v_proj", "self_attn.q_proj"]),
        json!([whole]),
        json!(["base.model.layers.0.self_attn.q_proj", "layers.0.self_attn.q_proj"]),
        json!([]),
        json!(null),
        json!("all-linear"),
        json!(r".*\.(v|o)_proj"),
    ] {
        opened(&folder(&json!({"target_modules": targets}), PAIR)).expect("a fine adapter");
    }
    for targets in [json!(["proj"]), json!(["v_proj"]), json!(["layers.1.self_attn.q_proj"])] {
        let error = opened(&folder(&json!({"target_modules": targets}), PAIR)).unwrap_err();
        assert!(
            error.contains(&format!("tensors of `{whole}`, which `target_modules`")),
            "{error}"
        );
    }
    // A head that is saved whole is named elsewhere.
    let tensors: Tensors<'_> = &[PAIR[0], PAIR[1], ("score.weight", &[2, 3])];
    let config = json!({"target_modules": ["q_proj"], "modules_to_save": ["score"]});
    opened(&folder(&config, tensors)).expect("a fine adapter");
}

#[test]
fn a_name_of_the_models_without_tensors_is_refused() {
    let model = ["layers.0.self_attn.q_proj", "layers.0.self_attn.v_proj", "lm_head"];
    for (more, is_fine) in [
        (json!({"target_modules": ["q_proj"]}), true),
        (json!({"target_modules": ["q_proj", "query_key_value"]}), true),
        (json!({"target_modules": ["q_proj", "v_proj"]}), false),
        (json!({"target_modules": ["lm_head", "q_proj"]}), false),
        (json!({"target_modules": ["q_proj", "v_proj"], "exclude_modules": ["v_proj"]}), true),
        (json!({"target_modules": ["q_proj", "v_proj"], "layers_to_transform": 1}), true),
        (json!({"target_modules": ["q_proj", "v_proj"], "exclude_modules": []}), false),
        (json!({"target_modules": "q_proj|v_proj"}), true),
    ] {
        let files = opened(&folder(&more, PAIR)).expect("a fine adapter");
        let error = files.check_targets(model.into_iter()).err().map(|error| error.to_string());
        assert_eq!(error.is_none(), is_fine, "{more}: {error:?}");
        let names_it = |error: &String| {
            error.contains("`target_modules`")
                && (error.contains("`v_proj`") || error.contains("`lm_head`"))
        };
        assert!(error.as_ref().is_none_or(names_it), "{error:?}");
    }
}

#[test]
fn heads_that_do_not_fit_are_refused_by_name() {
    let config = json!({"modules_to_save": ["score"]});
    let cases: [(Tensors<'_>, &str); 3] = [
        (&[("score.bias", &[2])], "a bias and no weight"),
        (&[("score.weight", &[2])], "is none of a layer"),
        (&[("score.weight", &[2, 3]), ("score.bias", &[3])], "its weight has 2 rows"),
    ];
    for (tensors, wanted) in cases {
        let error = opened(&folder(&config, tensors)).unwrap_err();
        assert!(error.contains(wanted) && error.contains("score"), "{error}, not {wanted}");
    }
}

#[test]
fn a_rank_above_the_limit_is_refused_with_the_flag() {
    let tensors: Tensors<'_> = &[
        ("model.layers.0.self_attn.q_proj.lora_A.weight", &[17, 3]),
        ("model.layers.0.self_attn.q_proj.lora_B.weight", &[5, 17]),
    ];
    let folder = folder(&json!({"r": 17}), tensors);
    let error = opened(&folder).unwrap_err();
    assert!(error.contains(Q) && error.contains("give `settings.max_lora_rank` 17"), "{error}");
    AdapterFiles::open(folder.path(), 17, None).unwrap();
}

#[test]
fn tensors_of_integers_are_refused() {
    let folder = folder(&json!({}), PAIR);
    let bytes = [0; 32];
    let view = |shape: [usize; 2]| TensorView::new(Dtype::I8, shape.to_vec(), &bytes).unwrap();
    let name = format!("base_model.model.{}", PAIR[0].0);
    let bytes = safetensors::serialize([(name, view([8, 4]))], None).unwrap();
    std::fs::write(folder.path().join(WEIGHTS_FILE), bytes).unwrap();
    let error = opened(&folder).unwrap_err();
    assert!(error.contains(PAIR[0].0) && error.contains("I8"), "{error}");
}

#[test]
fn a_folder_without_an_adapter_says_what_to_do() {
    let folder = folder(&json!({}), PAIR);
    let (weights, config) =
        (folder.path().join(WEIGHTS_FILE), folder.path().join("adapter_config.json"));
    std::fs::remove_file(&weights).unwrap();
    let error = opened(&folder).unwrap_err();
    assert!(error.contains("and no adapter_model.safetensors"), "{error}");
    std::fs::write(folder.path().join("adapter_model.bin"), b"x").unwrap();
    let error = opened(&folder).unwrap_err();
    assert!(error.contains("adapter_model.bin is a pickle"), "{error}");
    std::fs::remove_file(&config).unwrap();
    let error = opened(&folder).unwrap_err();
    assert!(error.contains("no adapter_config.json;"), "{error}");
    for name in ["zebra", "mine"] {
        let within = folder.path().join(name);
        std::fs::create_dir(&within).unwrap();
        std::fs::write(within.join("adapter_config.json"), "{}").unwrap();
    }
    let error = opened(&folder).unwrap_err();
    assert!(error.contains("in its folder `mine`"), "{error}");
    let missing = AdapterFiles::open(&folder.path().join("nothing"), 16, None).unwrap_err();
    assert!(missing.to_string().contains("cannot read"), "{missing}");
}

#[test]
fn hostile_configs_are_refused_within_bounds() {
    let folder = folder(&json!({}), PAIR);
    let path = folder.path().join("adapter_config.json");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(100 << 20).unwrap();
    let error = opened(&folder).unwrap_err();
    assert!(error.contains("the limit"), "{error}");
    for text in ["[".repeat(1 << 20), "[]".to_owned(), String::new(), "\u{7f}".to_owned()] {
        std::fs::write(&path, text).unwrap();
        let error = opened(&folder).unwrap_err();
        assert!(error.contains("adapter_config.json"), "{error}");
    }
    std::fs::write(&path, r#"{"peft_type": "LORA"}"#).unwrap();
    let weights = folder.path().join(WEIGHTS_FILE);
    let bytes = std::fs::read(&weights).unwrap();
    for len in [0, 7, 20, bytes.len() - 1] {
        std::fs::write(&weights, &bytes[..len]).unwrap();
        assert!(opened(&folder).unwrap_err().contains(WEIGHTS_FILE), "{len} bytes");
    }
}
