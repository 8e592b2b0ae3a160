//! Places of modules in real layouts: which layer each name is of, and what is refused.

use std::path::Path;

use serde_json::json;

use super::places::part_outputs;
use super::tests::{folder, opened};
use super::*;
use crate::decoder_spec;
use crate::encoders::{ClassifierHead, classifier, encoder_spec};
use crate::hf_config::HfConfig;
use crate::spec::{DecoderSpec, HeadLayer, LinearSpec, RowOrder};

fn config(path: &Path) -> HfConfig {
    let text = std::fs::read_to_string(path).unwrap();
    HfConfig::parse(&text, &path.display().to_string()).unwrap()
}

fn testdata(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../testdata").join(name)
}

/// The spec of a golden model.
fn golden(name: &str) -> DecoderSpec {
    decoder_spec(&config(&testdata("golden").join(name).join("config.json"))).unwrap()
}

/// Where an adapter of rank 2 of one module with so many inputs and outputs is.
fn placed(
    places: &LoraPlaces,
    (name, num_inputs, num_outputs): (&str, usize, usize),
) -> Result<(LoraPlace, usize), String> {
    let (a, b) = (format!("{name}.lora_A.weight"), format!("{name}.lora_B.weight"));
    let tensors = [(a.as_str(), &[2, num_inputs][..]), (b.as_str(), &[num_outputs, 2])];
    let files = opened(&folder(&json!({"r": 2}), &tensors)).unwrap();
    let placed = places.place(&files).map_err(|error| error.to_string())?;
    let [PlacedModule { module: 0, place, part }] = placed.modules[..] else {
        panic!("one module: {placed:?}")
    };
    Ok((place, part))
}

fn layer(layer: usize, block: LoraBlock) -> LoraPlace {
    LoraPlace::Layer { layer, block }
}

#[test]
fn modules_are_found_by_the_names_of_every_class() {
    use LoraBlock::{AttentionOut, Down, Qkv, RecurrentIn, RecurrentOut, Up};
    for (folder, name, place, part) in [
        ("llama2", "model.layers.1.self_attn.v_proj", layer(1, Qkv), 2),
        ("llama2", "layers.1.self_attn.v_proj", layer(1, Qkv), 2),
        ("llama2", "model.layers.0.mlp.up_proj", layer(0, Up), 1),
        ("llama2", "lm_head", LoraPlace::LmHead, 0),
        // Tied.
        ("llama3", "lm_head", LoraPlace::LmHead, 0),
        ("gemma3_multimodal", "model.language_model.layers.0.mlp.down_proj", layer(0, Down), 0),
        ("gemma3_multimodal", "language_model.model.layers.0.mlp.down_proj", layer(0, Down), 0),
        ("qwen2_5_vl", "model.layers.0.self_attn.o_proj", layer(0, AttentionOut), 0),
        ("qwen2_5_vl", "model.language_model.layers.0.self_attn.k_proj", layer(0, Qkv), 1),
        ("phi3", "model.layers.2.self_attn.qkv_proj", layer(2, Qkv), 0),
        ("phi3", "model.layers.2.mlp.gate_up_proj", layer(2, Up), 0),
        ("gpt2", "transformer.h.1.attn.c_attn", layer(1, Qkv), 0),
        ("gpt2", "h.1.mlp.c_fc", layer(1, Up), 0),
        ("gpt_neox", "gpt_neox.layers.0.attention.query_key_value", layer(0, Qkv), 0),
        ("gpt_neox", "embed_out", LoraPlace::LmHead, 0),
        ("opt", "model.decoder.layers.0.fc1", layer(0, Up), 0),
        ("qwen2_moe", "model.layers.0.mlp.shared_expert.down_proj", layer(0, Down), 0),
        ("mamba2", "backbone.layers.0.mixer.in_proj", layer(0, RecurrentIn), 0),
        ("qwen3_next", "model.layers.0.linear_attn.in_proj_ba", layer(0, RecurrentIn), 1),
        ("qwen3_next", "model.layers.0.linear_attn.out_proj", layer(0, RecurrentOut), 0),
        ("lfm2", "model.layers.0.conv.in_proj", layer(0, RecurrentIn), 0),
        ("deepseek_v3", "model.layers.0.self_attn.kv_a_proj_with_mqa", layer(0, Qkv), 1),
    ] {
        let places = LoraPlaces::of_decoder(&golden(folder));
        let linear = places.spec(place);
        let found = placed(&places, (name, linear.k, linear.parts[part].rows));
        assert_eq!(found, Ok((place, part)), "{folder}: {name}");
    }
}

#[test]
fn modules_that_take_no_adapter_are_refused_by_name() {
    let (there, not) = ("is computed without adapters in this model", "is not in the model");
    for (folder, name, why) in [
        ("llama2", "model.layers.99.self_attn.q_proj", not),
        ("llama2", "model.layers.0.self_attn.qkv_proj", not),
        ("llama2", "score", not),
        // Names of images' layers end as those of texts do.
        ("gemma3_multimodal", "model.vision_tower.encoder.layers.0.self_attn.q_proj", not),
        ("gemma3_multimodal", "vision_model.layers.0.self_attn.q_proj", not),
        ("mixtral", "model.layers.0.block_sparse_moe.experts.0.w1", there),
        ("mixtral", "model.layers.0.block_sparse_moe.gate", there),
        ("qwen2_moe", "model.layers.0.mlp.shared_expert_gate", there),
        ("deepseek_v3", "model.layers.0.self_attn.kv_b_proj", there),
        ("deepseek_v3", "model.layers.0.self_attn.q_b_proj", there),
        ("opt350", "model.decoder.project_in", there),
        ("gpt2", "transformer.wpe", there),
    ] {
        let places = LoraPlaces::of_decoder(&golden(folder));
        let error = placed(&places, (name, 3, 5)).unwrap_err();
        assert!(error.contains(&format!("module `{name}` {why}")), "{folder}: {error}");
        let known = places.linears()[0].1.parts[0].name.rsplit('.').next().unwrap();
        assert!(error.contains("modules that take adapters are ") && error.contains(known));
    }
}

#[test]
fn other_shapes_are_refused_with_both() {
    let places = LoraPlaces::of_decoder(&golden("llama2"));
    let place = layer(0, LoraBlock::Qkv);
    let linear = places.spec(place);
    let (k, n) = (linear.k, linear.parts[0].rows);
    for (inputs, outputs) in [(k + 1, n), (k, n + 1)] {
        let name = "model.layers.0.self_attn.q_proj";
        let error = placed(&places, (name, inputs, outputs)).unwrap_err();
        let found =
            format!("has {inputs} inputs and {outputs} outputs, the model's has {k} and {n}");
        assert!(error.contains(name) && error.contains(&found), "{error}");
    }
    let table = placed(&places, ("model.embed_tokens", 3, 5)).unwrap_err();
    assert!(table.contains("lora_embedding_A and lora_embedding_B"), "{table}");
}

#[test]
fn tables_and_copies_of_the_base_fit_it() {
    let places = LoraPlaces::of_decoder(&golden("llama2"));
    let tokens = places.spec(LoraPlace::Tokens);
    let (rows, width) = (tokens.n(), tokens.k);
    let place = |rows_of_a: usize, copy: [usize; 2], name: &str| {
        let names = ["lora_embedding_A", "lora_embedding_B"].map(|end| format!("{name}.{end}"));
        let copied = format!("{name}.base_layer.weight");
        let tensors = [
            (names[0].as_str(), &[8, rows_of_a][..]),
            (names[1].as_str(), &[width, 8]),
            (copied.as_str(), &copy),
        ];
        let files = opened(&folder(&json!({}), &tensors)).unwrap();
        places.place(&files).map_err(|error| error.to_string())
    };
    let placed = place(rows, [rows, width], "model.embed_tokens").unwrap();
    let expected = PlacedModule { module: 0, place: LoraPlace::Tokens, part: 0 };
    assert_eq!(placed.modules, [expected]);
    // A row of B is a column of the table.
    let outputs = PartOutputs { outputs: 0..width, rows: (0..width).collect() };
    assert_eq!(places.outputs(LoraPlace::Tokens, 0), [outputs]);
    let error = place(rows + 1, [rows, width], "model.embed_tokens").unwrap_err();
    assert!(error.contains(&format!("has {} inputs", rows + 1)), "{error}");
    let error = place(rows, [rows + 1, width], "model.embed_tokens").unwrap_err();
    assert!(error.contains("tokens that were added"), "{error}");
    let error = place(rows, [rows, width], "lm_head").unwrap_err();
    assert!(error.contains("`lm_head` is no table"), "{error}");
}

#[test]
fn one_layer_of_the_model_has_one_module() {
    let places = LoraPlaces::of_decoder(&golden("llama2"));
    let linear = places.spec(layer(0, LoraBlock::Down));
    let (a, b) = ([8, linear.k], [linear.n(), 8]);
    let tensors: [(&str, &[usize]); 4] = [
        ("layers.0.mlp.down_proj.lora_A.weight", &a),
        ("layers.0.mlp.down_proj.lora_B.weight", &b),
        ("model.layers.0.mlp.down_proj.lora_A.weight", &a),
        ("model.layers.0.mlp.down_proj.lora_B.weight", &b),
    ];
    let files = opened(&folder(&json!({}), &tensors)).unwrap();
    let error = places.place(&files).unwrap_err().to_string();
    assert!(error.contains("are one of the model"), "{error}");
}

#[test]
fn heads_are_placed_where_the_model_has_them() {
    let config = config(&testdata("golden_classifiers/roberta/config.json"));
    let head = classifier(&config, None).unwrap().unwrap().head;
    let ClassifierHead::Layers(head) = head else { panic!("layers") };
    let body = LoraPlaces::of_encoder(&encoder_spec(&config).unwrap());
    let places = body.clone().with_head(&head);
    let [dense, projection] = &head.layers[..] else { panic!("two layers") };
    let shape = |layer: &HeadLayer| [layer.linear.n(), layer.linear.k];
    let (dense, projection) = (shape(dense), shape(projection));
    let place = |places: &LoraPlaces, rows: usize, bias: bool| {
        let bias_shape = [rows];
        let weight = [rows, projection[1]];
        let mut tensors: Vec<(&str, &[usize])> = vec![
            ("classifier.dense.weight", &dense),
            ("classifier.dense.bias", &dense[..1]),
            ("classifier.out_proj.weight", &weight),
        ];
        if bias {
            tensors.push(("classifier.out_proj.bias", &bias_shape));
        }
        let config = json!({"modules_to_save": ["classifier", "score"]});
        let files = opened(&folder(&config, &tensors)).unwrap();
        places.place(&files).map_err(|error| error.to_string())
    };
    let heads = place(&places, projection[0], true).unwrap().heads;
    let expected = [0, 1].map(|index| PlacedHead { module: index, layer: index });
    assert_eq!(heads, expected);
    for (places, rows, bias, why) in [
        (&body, projection[0], true, "the model has no such head"),
        (&places, projection[0] + 1, true, "the model's head has"),
        (&places, projection[0], false, "the model's head has one"),
    ] {
        let error = place(places, rows, bias).unwrap_err();
        assert!(error.contains("`classifier.") && error.contains(why), "{error}");
    }
}

#[test]
fn rows_of_a_part_are_followed_to_their_outputs() {
    let linear = LinearSpec::stacked([("a".to_owned(), 3), ("b".to_owned(), 2)], 4);
    let run = |outputs, rows: &[usize]| PartOutputs { outputs, rows: rows.to_vec() };
    assert_eq!(part_outputs(&linear, 0), [run(0..3, &[0, 1, 2])]);
    assert_eq!(part_outputs(&linear, 1), [run(3..5, &[0, 1])]);
    let linear = linear.in_order(RowOrder::new(vec![2, 0, 4, 3, 1]));
    assert_eq!(part_outputs(&linear, 0), [run(0..2, &[2, 0]), run(4..5, &[1])]);
    assert_eq!(part_outputs(&linear, 1), [run(2..4, &[1, 0])]);
}

#[test]
fn no_two_modules_of_a_model_have_one_name() {
    let mut num_models = 0;
    for of in ["golden", "published_configs"] {
        for entry in std::fs::read_dir(testdata(of)).unwrap() {
            let path = entry.unwrap().path();
            let path = if path.is_dir() { path.join("config.json") } else { path };
            if path.extension().is_none_or(|end| end != "json") || !path.exists() {
                continue;
            }
            let Ok(spec) = decoder_spec(&config(&path)) else { continue };
            num_models += 1;
            let places = LoraPlaces::of_decoder(&spec);
            let parts: usize = places.linears().iter().map(|(_, of)| of.parts.len()).sum();
            assert_eq!(places.by_name().len(), parts, "{}", path.display());
        }
    }
    assert!(num_models > 200, "{num_models} models");
}
