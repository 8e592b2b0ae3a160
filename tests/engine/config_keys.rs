//! No key of config.json is passed over in silence: for every golden model and every published one,
//! each key with another value, or at another place, refuses the model, or is known to change
//! nothing.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use vllm_batch::engine::checkpoint::hf_config::HfConfig;
use vllm_batch::engine::checkpoint::spec::{DecoderSpec, TowerSpec};
use vllm_batch::engine::checkpoint::{decoder_spec, tower_spec};

type Keys = Map<String, Value>;

/// A place in a config: the keys of the objects around it, then its own.
type Place = Vec<String>;

fn golden_configs() -> Vec<(String, Keys)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden");
    let folders = std::fs::read_dir(folder).expect("testdata/golden is committed");
    let files = ["config.json", "config_v4.json"];
    let paths = folders.flat_map(|folder| {
        let folder = folder.expect("an entry").path();
        files.map(|file| folder.join(file)).into_iter().filter(|path| path.exists())
    });
    read_sorted(paths.collect())
}

fn read_sorted(mut paths: Vec<PathBuf>) -> Vec<(String, Keys)> {
    paths.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("readable");
        (path.display().to_string(), serde_json::from_str(&text).expect("an object"))
    };
    paths.into_iter().map(read).collect()
}

/// Of golden models, and of published ones, but those that make vectors or classes alone.
fn all_configs() -> Vec<(String, Keys)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/published_configs");
    let files = std::fs::read_dir(folder).expect("testdata/published_configs is committed");
    let paths = files.map(|file| file.expect("a file").path());
    let paths = paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    let purposes = ["makes vectors", "makes classes"];
    let is_of_pooling = |keys: &Keys| {
        spec(keys).is_err_and(|error| purposes.iter().any(|purpose| error.contains(purpose)))
    };
    let published = read_sorted(paths.collect()).into_iter();
    let published = published.filter(|(_, keys)| !is_of_pooling(keys));
    golden_configs().into_iter().chain(published).collect()
}

fn parse(keys: &Keys) -> HfConfig {
    HfConfig::parse(&Value::Object(keys.clone()).to_string(), "config.json").expect("an object")
}

fn spec(keys: &Keys) -> Result<(DecoderSpec, Option<TowerSpec>), String> {
    let config = parse(keys);
    let decoder = decoder_spec(&config).map_err(|error| error.to_string())?;
    Ok((decoder, tower_spec(&config).map_err(|error| error.to_string())?))
}

/// Every key that has a value, those of objects too.
fn places(keys: &Keys) -> Vec<Place> {
    let mut found = Vec::new();
    for (key, value) in keys.iter().filter(|(_, value)| !value.is_null()) {
        found.push(vec![key.clone()]);
        for inner in value.as_object().into_iter().flat_map(places) {
            found.push([vec![key.clone()], inner].concat());
        }
    }
    found
}

/// The object that a place is in.
fn around<'a>(keys: &'a mut Keys, place: &Place) -> &'a mut Keys {
    let outer = &place[..place.len() - 1];
    outer.iter().fold(keys, |keys, key| keys[key].as_object_mut().expect("an object"))
}

/// The part of a config that has the place, and its name there.
fn is_harmless(keys: &Keys, place: &Place) -> bool {
    let config = parse(keys);
    decoder_spec(&config).expect("a golden config");
    // An object that nothing reads is harmless with all that is in it.
    (1..=place.len()).any(|len| config.is_harmless(&place[..len].join(".")))
}

#[test]
fn another_value_of_any_key_is_refused_or_changes_nothing() {
    let (mut num_refused, mut num_harmless) = (0, 0);
    for (path, keys) in all_configs() {
        spec(&keys).unwrap_or_else(|error| panic!("{path}: {error}"));
        for place in places(&keys) {
            let mut changed = keys.clone();
            let key = place.last().expect("a key");
            around(&mut changed, &place).insert(key.clone(), json!("something unknown"));
            match spec(&changed) {
                Err(_) => num_refused += 1,
                Ok(_) => {
                    let name = place.join(".");
                    assert!(is_harmless(&keys, &place), "{path}: `{name}` is passed over");
                    num_harmless += 1;
                }
            }
        }
    }
    println!("{num_refused} changes refused, {num_harmless} of keys that change nothing");
    assert!(num_refused > 500 && num_harmless > 100);
}

#[test]
fn a_key_at_the_top_that_belongs_elsewhere_is_refused_or_means_the_same() {
    let mut num_moved = 0;
    for (path, keys) in all_configs() {
        let whole = spec(&keys).unwrap_or_else(|error| panic!("{path}: {error}"));
        for place in places(&keys).into_iter().filter(|place| place.len() > 1) {
            let key = place.last().expect("a key");
            let mut moved = keys.clone();
            let value = around(&mut moved, &place).remove(key).expect("a value");
            if moved.insert(key.clone(), value).is_some() {
                continue;
            }
            num_moved += 1;
            let name = place.join(".");
            if let Ok(spec) = spec(&moved) {
                let is_same = spec == whole || is_harmless(&keys, &place);
                assert!(is_same, "{path}: `{name}` at the top gives another model in silence");
            }
        }
    }
    println!("{num_moved} keys moved to the top");
    assert!(num_moved > 50);
}

#[test]
fn a_key_that_no_family_knows_is_refused_by_name() {
    for (path, mut keys) in all_configs() {
        keys.insert("attention_bias_of_tomorrow".to_owned(), json!(true));
        let error = spec(&keys).expect_err("an unknown key");
        assert!(error.contains("attention_bias_of_tomorrow"), "{path}: {error}");
    }
}

/// The keys of a golden config and more.
fn with(folder: &str, more: &Value) -> Keys {
    let name = format!("/{folder}/");
    let (_, mut keys) =
        golden_configs().into_iter().find(|(path, _)| path.contains(&name)).expect(folder);
    keys.extend(more.as_object().expect("an object").clone());
    keys
}

#[test]
fn keys_of_published_files_change_nothing() {
    for (folder, more) in [
        ("gpt2", json!({"n_ctx": 144, "output_past": true, "task_specific_params": {"a": {}}})),
        (
            "gpt_bigcode",
            json!({"inference_runner": 0, "max_batch_size": null, "max_sequence_length": null,
                "pad_key_length": true, "pre_allocate_kv_cache": false,
                "validate_runner_input": true}),
        ),
        ("gpt_neox", json!({"attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0})),
        ("gpt_neox", json!({"partial_rotary_factor": 0.25, "rope_theta": 10000})),
        ("gptj", json!({"rotary": true, "scale_attn_weights": true, "n_inner": 64})),
        ("codegen", json!({"scale_attn_weights": true, "tokenizer_class": "GPT2Tokenizer"})),
        (
            "bloom",
            json!({"n_embed": 64, "num_attention_heads": 4, "seq_length": 2048,
                "masked_softmax_fusion": true, "bias_dropout_fusion": true, "offset_alibi": 100,
                "skip_bias_add": true, "skip_bias_add_qkv": false, "unk_token_id": 0,
                "attention_softmax_in_fp32": true}),
        ),
        ("falcon_7b", json!({"apply_residual_connection_post_layernorm": false, "auto_map": {}})),
        ("falcon_one_norm", json!({"ff_factor": 4, "rope_theta": 10000.0})),
        (
            "gemma3_published",
            json!({"text_config": with("gemma3_published", &json!({}))["text_config"],
            "hidden_size": 32}),
        ),
        ("qwen2_5_vl", json!({"vision_token_id": 7})),
        ("dbrx", json!({"rope_parameters": null, "num_key_value_heads": 2, "auto_map": {}})),
        ("openai_gpt", json!({"n_ctx": 144, "n_special": 0, "predict_special_tokens": true})),
        ("bailing_moe", json!({"routed_scaling_factor": 1, "score_function": "softmax"})),
        ("ctrl", json!({"n_ctx": 512, "attn_pdrop": 0.1, "from_tf": false})),
    ] {
        assert_eq!(spec(&with(folder, &more)), spec(&with(folder, &json!({}))), "{folder}: {more}");
    }
    for (folder, more) in [
        ("bloom", json!({"n_embed": 32})),
        ("bloom", json!({"n_inner": 64})),
        ("codegen", json!({"n_head": 2})),
        ("gptj", json!({"rotary": false})),
        ("gptj", json!({"rotary_dim": 18})),
        ("gpt2", json!({"n_head": 5000, "head_dim": 64})),
        ("gpt_bigcode", json!({"num_key_value_heads": 3})),
        ("falcon_one_norm", json!({"num_ln_in_parallel_attn": 3})),
        ("mpt", json!({"logit_scale": 0.5})),
        ("mpt", json!({"norm_type": "rmsnorm"})),
        ("gemma3_published", json!({"hidden_size": 64})),
        ("dbrx", json!({"num_key_value_heads": 3})),
        ("dbrx", json!({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})),
        ("dbrx", json!({"tie_word_embeddings": true})),
        ("dbrx", json!({"ffn_config": {"moe_normalize_expert_weights": 2.0}})),
        ("dbrx", json!({"ffn_config": {"uniform_expert_assignment": true}})),
        ("bailing_moe", json!({"tie_word_embeddings": true})),
        ("bailing_moe", json!({"score_function": "sigmoid"})),
        ("bailing_moe", json!({"routed_scaling_factor": 2.5})),
        ("openai_gpt", json!({"n_special": 3})),
        ("openai_gpt", json!({"afn": "tanh"})),
    ] {
        let error = spec(&with(folder, &more)).expect_err("another model");
        let key = more.as_object().expect("an object").keys().next().expect("a key");
        let what = ["attention heads", "norms of a layer", "activation `tanh`", key.as_str()];
        assert!(what.iter().any(|what| error.contains(what)), "{folder}: {more}: {error}");
    }
}
