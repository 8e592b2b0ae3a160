//! The structure of the code, held by a test: layers, places, sizes, names (`docs/ARCHITECTURE.md`,
//! "Invariants"). A rule is a function from a source to its violations; each is shown to find one.

mod code;
mod documents;
mod kernels;
mod layers;
mod lexer;
mod paths;
mod refusals;
mod shape;
mod source;
mod tree;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use source::Source;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// Every file that git tracks or would add, so that a violation shows before it is committed.
fn tracked_files() -> Vec<String> {
    // The clone may belong to another user, as in containers.
    let listing = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .args(["--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output();
    let listed = listing.ok().filter(|output| output.status.success());
    let mut paths = match listed {
        Some(output) => {
            let names = String::from_utf8(output.stdout).expect("names are UTF-8");
            names.split_terminator('\0').map(str::to_owned).collect()
        }
        None => walk(&root(), ""),
    };
    paths.retain(|path| root().join(path).is_file());
    assert!(paths.iter().any(|path| path == "src/lib.rs"), "the files are not listed");
    paths
}

/// The files of a tree that is no git checkout, without what is built or lent there.
fn walk(folder: &Path, prefix: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let entry = entry.expect("a readable entry");
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        const SKIPPED: [&str; 7] = [
            ".git",
            ".venv",
            "fuzz/artifacts",
            "fuzz/target",
            "oracles/target",
            "shared",
            "target",
        ];
        if SKIPPED.contains(&path.as_str()) {
            continue;
        }
        match entry.path().is_dir() {
            true => paths.extend(walk(&entry.path(), &format!("{path}/"))),
            false => paths.push(path),
        }
    }
    paths
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The sources whose path ends so.
fn sources(endings: &[&str]) -> Vec<Source> {
    let paths = tracked_files().into_iter();
    let wanted = paths.filter(|path| endings.iter().any(|ending| path.ends_with(ending)));
    wanted.map(|path| Source::new(&path, &read(&path))).collect()
}

fn check(rule: fn(&Source) -> Vec<String>, endings: &[&str]) {
    none(sources(endings).iter().flat_map(rule).collect());
}

fn none(violations: Vec<String>) {
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
}

const RUST: &[&str] = &[".rs"];
const ALL_CODE: &[&str] = &[".rs", ".cu", ".cuh"];

#[test]
fn layers_name_only_what_is_below_them() {
    check(layers::layers, RUST);
}

#[test]
fn folders_name_only_what_is_below_them() {
    check(layers::folders_point_down, RUST);
}

#[test]
fn every_folder_of_the_table_is_there() {
    let sources = sources(RUST);
    for (_, crate_folder, folders) in layers::FOLDERS {
        for folder in *folders {
            let path = format!("{crate_folder}/{folder}/mod.rs");
            assert!(sources.iter().any(|source| source.path == path), "{path} is gone");
        }
    }
}

#[test]
fn every_layer_is_a_module() {
    let sources = sources(RUST);
    for (layer, _) in layers::LAYERS {
        let is_it = |source: &Source| paths::module_of(&source.path).join("::") == *layer;
        assert!(sources.iter().any(is_it), "{layer} is gone: its rule holds nothing");
    }
}

#[test]
fn model_names_no_device_variant() {
    check(layers::model_names_no_device_variant, RUST);
}

#[test]
fn pairs_are_refused_by_the_table() {
    check(refusals::pairs_are_refused_by_the_table, RUST);
    for path in refusals::files_with_refusals() {
        assert!(root().join(path).is_file(), "{path} is gone: take it out of the rule");
    }
}

#[test]
fn the_engine_names_settings_and_no_flags() {
    let settings = refusals::settings(&read("src/engine/base/setting.rs"));
    assert!(settings.len() > 20, "{settings:?}");
    let violations = |source: &Source| refusals::the_engine_names_settings(source, &settings);
    none(sources(RUST).iter().flat_map(violations).collect());
}

#[test]
fn every_kernel_is_launched_and_tested() {
    let (rust, kernels) = (sources(RUST), sources(&[".cu"]));
    let kernels: Vec<_> = kernels.iter().filter(|s| s.is_in(&["kernels/"])).collect();
    let in_folders =
        |folders: &[&str]| rust.iter().filter(|s| s.is_in(folders)).collect::<Vec<_>>();
    let entries = kernels::entries(&kernels);
    assert!(!entries.is_empty(), "the kernels are written anew");
    let launching = in_folders(&["src/engine/ops/", "src/engine/device/"]);
    none(kernels::entries_without_launch(&entries, &launching));
    none(kernels::entries_without_test(&entries, &in_folders(&["tests/devices/cuda_ops/"])));
}

#[test]
fn asm_is_wrapped() {
    check(kernels::asm_is_wrapped, ALL_CODE);
}

#[test]
fn kernels_include_no_system_headers() {
    check(kernels::no_system_headers, ALL_CODE);
}

#[test]
fn unsafe_is_placed_and_explained() {
    check(code::unsafe_is_placed_and_explained, RUST);
}

#[test]
fn the_environment_is_read_in_cli() {
    check(code::environment_is_read_in_cli, RUST);
}

#[test]
fn no_static_changes() {
    check(code::no_mutable_statics, RUST);
}

#[test]
fn no_cargo_features() {
    check(code::no_cargo_features, RUST);
}

#[test]
fn printing_is_in_cli() {
    check(code::printing_is_in_cli, RUST);
}

#[test]
fn nothing_is_put_off() {
    check(code::nothing_is_put_off, ALL_CODE);
}

#[test]
fn no_code_in_docs() {
    check(code::no_code_in_docs, RUST);
}

#[test]
fn no_clippy_threshold_is_lifted() {
    check(code::no_clippy_threshold_is_lifted, RUST);
}

#[test]
fn files_are_short() {
    check(shape::files_are_short, ALL_CODE);
}

#[test]
fn lines_are_narrow() {
    check(shape::lines_are_narrow, ALL_CODE);
}

#[test]
fn files_begin_with_docs() {
    check(shape::files_begin_with_docs, ALL_CODE);
}

#[test]
fn names_mean_something() {
    check(shape::names_mean_something, ALL_CODE);
}

#[test]
fn the_top_level_is_the_layout() {
    none(tree::top_level(&tracked_files()));
}

#[test]
fn files_are_small_and_portable() {
    let mut violations = Vec::new();
    for path in tracked_files() {
        let bytes = fs::read(root().join(&path)).expect("a listed file");
        violations.extend(tree::file_size(&path, bytes.len() as u64));
        // What is not text is weights, archives or a test's broken input.
        if let Ok(text) = String::from_utf8(bytes) {
            violations.extend(tree::machine_traces(&path, &text));
        }
    }
    none(violations);
}

#[test]
fn what_pages_promise_is_tested() {
    let is_test = |path: &String| path.ends_with(".rs");
    let tests: Vec<_> = tracked_files().into_iter().filter(is_test).collect();
    let tests: Vec<_> = tests.iter().map(|path| (path.clone(), read(path))).collect();
    for page in ["docs/RELIABILITY.md", "docs/FINDINGS.md"] {
        none(tree::named_tests_without_code(&read(page), &tests));
    }
}

/// Every Markdown file of the repository, by path.
fn all_documents() -> BTreeMap<String, String> {
    let paths = tracked_files().into_iter().filter(|path| path.ends_with(".md"));
    paths.map(|path| (path.clone(), read(&path))).collect()
}

#[test]
fn links_of_documents_lead_somewhere() {
    none(documents::broken_links(&all_documents(), |path| root().join(path).exists()));
}

/// The documents that users and contributors read.
fn is_page(path: &str) -> bool {
    ["AGENTS.md", "README.md"].contains(&path) || path.starts_with("docs/")
}

#[test]
fn files_that_pages_name_are_there() {
    let (documents, files) = (all_documents(), tracked_files());
    let pages = documents.iter().filter(|(path, _)| is_page(path));
    none(pages.flat_map(|(path, text)| documents::missing_files(path, text, &files)).collect());
}

#[test]
fn functions_that_pages_of_the_code_name_are_there() {
    let texts: Vec<String> = sources(ALL_CODE).into_iter().map(|source| source.text).collect();
    let pages =
        ["AGENTS", "docs/ARCHITECTURE", "docs/DECISIONS", "docs/ADD_A_MODEL", "docs/ADD_A_KERNEL"];
    let pages = pages.map(|page| format!("{page}.md"));
    let missing = |page: &String| documents::missing_functions(page, &read(page), &texts);
    none(pages.iter().flat_map(missing).collect());
}

#[test]
fn files_that_pages_show_whole_are_shown_as_they_are() {
    let pages = all_documents();
    let differing =
        |(path, text): (&String, &String)| documents::differing_copies(path, text, read);
    none(pages.iter().filter(|(path, _)| is_page(path)).flat_map(differing).collect());
}

/// The files that AGENTS.md says still match on `Device`.
#[test]
fn files_that_match_on_device_are_named() {
    let agents = read("AGENTS.md");
    let line = agents.lines().find(|line| line.contains("match on `Device`")).expect("the rule");
    let named = |path: &str| line.split('`').any(|name| path.ends_with(&format!("/{name}")));
    let found = sources(RUST).into_iter().filter(|source| {
        let is_outside = !source.is_in(&["src/engine/device/", "src/engine/ops/"]);
        let matches = ["Device::Cpu", "Device::Cuda"].iter().any(|v| source.text.contains(v));
        is_outside && source.is_in(&["src/"]) && matches != named(&source.path)
    });
    none(found.map(|source| format!("{}: not as AGENTS.md says", source.path)).collect());
}

#[test]
fn what_is_fuzzed_and_compared_is_what_is_shipped() {
    let [own, fuzzed, oracles] = tree::LOCK_FILES.map(read);
    none(tree::lock_differences(&own, &fuzzed));
    none(tree::missing_in_oracles(&own, &oracles));
}

#[test]
fn settings_are_kept() {
    none(tree::files_with_settings().flat_map(|path| tree::settings(path, &read(path))).collect());
}
