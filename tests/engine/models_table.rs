//! The table of docs/MODELS.md is made of the registry and the golden models.
//! `VLLM_BATCH_TEST_WRITE_TABLE=1 cargo test --test engine models_table` writes it anew.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use vllm_batch::engine::checkpoint::ARCHITECTURES;
use vllm_batch::engine::checkpoint::families::find;
use vllm_batch::engine::checkpoint::hf_config::HfConfig;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Families whose real weights were run, and what they were.
const REAL: [(&str, &str); 2] = [
    ("Gemma3ForCausalLM", "Gemma 3 270M, `against_transformers.py`"),
    ("LlamaForCausalLM", "SmolLM2-135M-Instruct, `real_model`"),
];

/// Families that candle runs as well, in `oracles/tests/candle.rs`.
const CANDLE: [&str; 6] = [
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
];

/// What the goldens of an architecture were compared with, by folder.
fn goldens() -> BTreeMap<String, Vec<(String, Option<String>)>> {
    let mut goldens: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let folders = ["golden", "golden_hearing", "golden_sounds"].into_iter().flat_map(|kind| {
        std::fs::read_dir(format!("{ROOT}/testdata/{kind}")).expect("it is committed")
    });
    for folder in folders {
        let folder = folder.expect("an entry").path();
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        let read = |file: &str| {
            let text = std::fs::read_to_string(folder.join(file)).expect("readable");
            serde_json::from_str::<Value>(&text).expect("JSON")
        };
        if name.starts_with('.') {
            continue;
        }
        let config = HfConfig::parse(&read("config.json").to_string(), &name).expect("an object");
        let class = config.architectures().expect("a class")[0];
        let architecture = find(class).map_or(class, |known| known.name).to_owned();
        let oracle = read("golden.json")["oracle"].as_str().map(str::to_owned);
        goldens.entry(architecture).or_default().push((name, oracle));
    }
    goldens.values_mut().for_each(|folders| folders.sort());
    goldens
}

fn table() -> String {
    let goldens = goldens();
    let mut table = "| `architectures` in config.json | models | golden models | oracle | also \
                     tried |\n|---|---|---|---|---|\n"
        .to_owned();
    for family in ARCHITECTURES {
        let folders = goldens.get(family.name).map_or(&[][..], Vec::as_slice);
        let names: Vec<_> = folders.iter().map(|(name, _)| format!("`{name}`")).collect();
        let mut oracles: Vec<_> = folders
            .iter()
            .map(|(_, oracle)| oracle.as_deref().unwrap_or("transformers' class"))
            .collect();
        oracles.sort_unstable();
        oracles.dedup();
        let real = REAL.iter().filter(|(name, _)| *name == family.name);
        let mut tried: Vec<_> =
            real.map(|(_, weights)| format!("real weights: {weights}")).collect();
        if CANDLE.contains(&family.name) {
            tried.push("candle".to_owned());
        }
        table += &format!(
            "| `{}` | {} | {} | {} | {} |\n",
            family.name,
            family.models,
            names.join(", "),
            oracles.join("; "),
            tried.join("; "),
        );
    }
    table
}

#[test]
#[expect(clippy::disallowed_methods, reason = "whether the table is to be written")]
fn the_table_of_models_is_that_of_the_registry() {
    let path = Path::new(ROOT).join("docs/MODELS.md");
    let text = std::fs::read_to_string(&path).expect("it is committed");
    let (start, end) = ("<!-- table -->\n", "<!-- end of table -->");
    let (before, rest) = text.split_once(start).expect("a mark");
    let (found, after) = rest.split_once(end).expect("a mark");
    let table = table();
    if std::env::var_os("VLLM_BATCH_TEST_WRITE_TABLE").is_some() {
        let text = format!("{before}{start}{table}{end}{after}");
        return std::fs::write(&path, text).expect("written");
    }
    assert!(found == table, "docs/MODELS.md is not of this registry; this file's head says how");
}

#[test]
fn families_are_listed_once_and_in_order() {
    let names: Vec<_> = ARCHITECTURES.iter().map(|family| family.name).collect();
    let key = |name: &&str| (name.to_lowercase(), name.to_string());
    assert!(names.is_sorted_by(|a, b| key(a) < key(b)), "{names:?}");
}

#[test]
fn the_readme_counts_the_architectures() {
    let readme = std::fs::read_to_string(Path::new(ROOT).join("README.md")).expect("it is there");
    let counted = format!("{} architectures", ARCHITECTURES.len());
    // In the table and in the text.
    assert_eq!(readme.matches(&counted).count(), 2, "there are {counted}");
}
