//! Who may name whom (`docs/ARCHITECTURE.md`, "Invariants").

use crate::paths::{module_of, paths};
use crate::source::Source;

/// A module, and what it may name of our crates besides itself. Arrows between crates are held by
/// their manifests; a module that is not listed is free within its crate and those below it.
pub const LAYERS: &[(&str, &[&str])] = &[
    // The program sees requests, answers, and what models say of themselves: no tensor, no
    // scheduler.
    (
        "vllm_batch_cli",
        &[
            "vllm_batch_api",
            "vllm_batch_base",
            "vllm_batch_checkpoint",
            "vllm_batch_dataset",
            "vllm_batch_engine::Engine",
            "vllm_batch_engine::EngineInfo",
            "vllm_batch_engine::WhyCpu",
            "vllm_batch_engine::load",
            "vllm_batch_engine::request",
            // Random numbers without a state: the bootstrap of `eval`.
            "vllm_batch_engine::sampler::philox",
            "vllm_batch_engine::serve",
            "vllm_batch_engine::stats",
            "vllm_batch_server",
            "vllm_batch_text",
        ],
    ),
    // Connections see an engine that is asked, and requests as rows: no tensor, no scheduler.
    (
        "vllm_batch_server",
        &[
            "vllm_batch_api",
            "vllm_batch_base",
            "vllm_batch_dataset",
            "vllm_batch_engine::EngineInfo",
            "vllm_batch_engine::serve",
            "vllm_batch_engine::stats",
            "vllm_batch_text",
        ],
    ),
    // Pure functions of a row of logits.
    ("vllm_batch_engine::sampler", &["vllm_batch_api", "vllm_batch_engine::request::StopIds"]),
    // The scheduler has no tensors; the executor has no requests; `Batch` is between them.
    (
        "vllm_batch_engine::plan::scheduler",
        &[
            "vllm_batch_api",
            "vllm_batch_engine::load::step_sizes::StepSizes",
            // Images for its own.
            "vllm_batch_engine::media_table::tests",
            "vllm_batch_engine::plan",
            "vllm_batch_engine::request",
            "vllm_batch_engine::sampler",
            "vllm_batch_engine::stats",
            "vllm_batch_ops::batch",
            "vllm_batch_text",
        ],
    ),
    // Drafts: sees sequences, and not how they are computed.
    (
        "vllm_batch_engine::plan::speculation",
        &[
            "vllm_batch_api",
            "vllm_batch_base::config",
            "vllm_batch_engine::execute::executor",
            "vllm_batch_engine::plan",
            "vllm_batch_engine::request",
            "vllm_batch_engine::sampler",
            "vllm_batch_ops::batch",
        ],
    ),
    // Which tokens may come next; knows no logits.
    (
        "vllm_batch_engine::plan::structured_output",
        &[
            "vllm_batch_api",
            "vllm_batch_base::deep_stack",
            "vllm_batch_engine::sampler::TokenMask",
            "vllm_batch_text",
        ],
    ),
    (
        "vllm_batch_engine::plan::sequence",
        &[
            "vllm_batch_api",
            "vllm_batch_engine::plan::completion",
            "vllm_batch_engine::plan::prefix_cache",
            "vllm_batch_engine::plan::speculation::Pace",
            "vllm_batch_engine::plan::structured_output",
            "vllm_batch_engine::request",
            "vllm_batch_text",
        ],
    ),
    (
        "vllm_batch_engine::plan::completion",
        &["vllm_batch_api", "vllm_batch_engine::request", "vllm_batch_text"],
    ),
    ("vllm_batch_engine::plan::block_pool", &["vllm_batch_engine::plan::prefix_cache"]),
    ("vllm_batch_engine::plan::prefix_cache", &[]),
    // Logits stay where they were computed.
    (
        "vllm_batch_engine::execute::executor",
        &["vllm_batch_base::config", "vllm_batch_device::Tensor", "vllm_batch_ops::batch"],
    ),
    (
        "vllm_batch_engine::execute::simulated_executor",
        &[
            "vllm_batch_base::config",
            "vllm_batch_device::Tensor",
            "vllm_batch_engine::execute::executor",
            "vllm_batch_ops::batch",
        ],
    ),
];

/// The folders of crates whose folders are layers too, from the bottom up: each may name itself and
/// those before it. With their crate, and where that lies.
pub const FOLDERS: &[(&str, &str, &[&str])] = &[
    (
        "vllm_batch_dataset",
        "src/cli/dataset",
        &["terminal", "network", "object_store", "input", "judge", "output"],
    ),
    (
        "vllm_batch_cli",
        "src/cli/program",
        &["args", "config", "ledger", "model", "run", "commands"],
    ),
];

/// Names of folders that are above the one that names them; of other commands, in a command; and
/// files that are in no folder.
pub fn folders_point_down(source: &Source) -> Vec<String> {
    let module = module_of(&source.path);
    let of_crate = |(name, _, _): &&(&str, &str, &[&str])| *name == module[0];
    let Some((name, _, folders)) = FOLDERS.iter().find(of_crate) else { return Vec::new() };
    let [_, folder, rest @ ..] = module.as_slice() else { return Vec::new() };
    let level = |folder: &str| folders.iter().position(|known| *known == folder);
    let Some(own) = level(folder) else {
        return vec![source.violation(1, format!("{folder} is no folder of the table"))];
    };
    let is_refused = |path: &str| {
        let mut parts = path.split("::").skip(1);
        let (named, command) = (parts.next().unwrap_or("*"), parts.next());
        let is_other = *folder == "commands"
            && named == "commands"
            && command.is_none_or(|command| rest.first().is_some_and(|own| own != command));
        // Items of the crate's first page are below all folders.
        let is_item = named.starts_with(|c: char| c.is_ascii_uppercase());
        is_other || !is_item && level(named).is_none_or(|level| level > own)
    };
    let named = paths(source).into_iter().filter(|named| within(&named.path, name));
    let refused = named.filter(|named| is_refused(&named.path));
    refused
        .map(|named| source.violation(named.line, format!("{folder} may not name {}", named.path)))
        .collect()
}

/// Names of our crates that `LAYERS` does not grant to the module.
pub fn layers(source: &Source) -> Vec<String> {
    let module = module_of(&source.path).join("::");
    let Some((name, granted)) = LAYERS.iter().find(|(name, _)| within(&module, name)) else {
        return Vec::new();
    };
    let is_ours =
        |path: &str| path.split("::").next().is_some_and(|name| name.starts_with("vllm_batch"));
    let is_granted =
        |path: &str| within(path, name) || granted.iter().any(|grant| within(path, grant));
    let named = paths(source).into_iter().filter(|named| is_ours(&named.path));
    let refused = named.filter(|named| !is_granted(&named.path));
    refused
        .map(|named| source.violation(named.line, format!("{module} may not name {}", named.path)))
        .collect()
}

/// Whether a path is a module or something in it.
fn within(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// `model` passes a device on and never looks which it is.
pub fn model_names_no_device_variant(source: &Source) -> Vec<String> {
    if !source.is_in(&["src/engine/core/execute/model/", "src/engine/checkpoint/"]) {
        return Vec::new();
    }
    let named = paths(source).into_iter();
    let variant = |path: &str| {
        let name = path.rsplit_once("Device::").map(|(_, name)| name);
        name.is_some_and(|name| name.starts_with(|c: char| c.is_ascii_uppercase() || c == '*'))
    };
    named
        .filter(|named| variant(&named.path))
        .map(|named| source.violation(named.line, format!("model names {}", named.path)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &str, text: &str) -> usize {
        layers(&Source::new(path, text)).len()
    }

    #[test]
    fn the_schedulers_parts_know_no_tensors() {
        for part in ["scheduler", "scheduler/schedule", "block_pool", "sequence", "completion"] {
            let path = format!("src/engine/core/plan/{part}.rs");
            for foreign in [
                "vllm_batch_device::Tensor",
                "vllm_batch_ops::linear",
                "vllm_batch_checkpoint::spec",
                "crate::execute::model_executor",
            ] {
                let text = format!("fn f() {{ let x = {foreign}::y(); }}");
                assert_eq!(refused(&path, &text), 1, "{path}: {foreign}");
            }
        }
        let scheduler = "src/engine/core/plan/scheduler.rs";
        assert_eq!(refused(scheduler, "use super::block_pool::BlockPool;"), 0);
        assert_eq!(refused(scheduler, "use crate::*;"), 1);
        assert_eq!(refused(scheduler, "use vllm_batch_ops as o;"), 1);
        assert_eq!(refused("src/engine/core/plan/scheduler/tests.rs", "use super::*;"), 0);
        let cache = "src/engine/core/plan/prefix_cache.rs";
        assert_eq!(refused(cache, "use crate::plan::prefix_cache_of;"), 1);
    }

    #[test]
    fn other_layers_keep_apart() {
        let executor = "src/engine/core/execute/executor.rs";
        assert_eq!(refused(executor, "use crate::request::Request;"), 1);
        assert_eq!(refused(executor, "use vllm_batch_device::Tensor;"), 0);
        assert_eq!(refused("src/engine/core/sampler/mod.rs", "use vllm_batch_device::Tensor;"), 1);
        let run = "src/cli/program/run/mod.rs";
        assert_eq!(refused(run, "use vllm_batch_engine::{Engine, sampler::a};"), 1);
        assert_eq!(refused(run, "use vllm_batch_engine::plan::scheduler::Scheduler;"), 1);
        assert_eq!(refused(run, "use vllm_batch_device::Device;"), 1);
        assert_eq!(refused(run, "use crate::args::RunArgs;"), 0);
    }

    #[test]
    fn folders_name_what_is_below_them() {
        let refused = |path: &str, text: &str| folders_point_down(&Source::new(path, text)).len();
        for (path, text, count) in [
            ("dataset/terminal/error.rs", "use crate::input::row_error::RowError;", 1),
            ("dataset/terminal/error.rs", "use super::exit::Exit;", 0),
            ("dataset/input/row/chat.rs", "use super::super::super::output::csv::A;", 1),
            ("dataset/input/row/chat.rs", "use super::super::fields::JsonFields;", 0),
            ("dataset/object_store/object.rs", "use crate::PROGRAM;", 0),
            ("program/ledger/mod.rs", "use crate::{config::RunConfig, run::read};", 1),
            ("program/run/mod.rs", "use crate::commands::plan;", 1),
            ("program/run/mod.rs", "use crate::main;", 1),
            ("program/run/mod.rs", "use vllm_batch_dataset::output::csv;", 0),
            ("program/commands/plan/mod.rs", "use crate::commands::bench;", 1),
            ("program/commands/plan/mod.rs", "use self::estimate; use super::bench;", 1),
            ("program/commands/plan/survey.rs", "use super::lengths::Lengths;", 0),
            ("program/window.rs", "", 1),
            ("program/lib.rs", "use run::run; use commands::plan;", 0),
        ] {
            assert_eq!(refused(&format!("src/cli/{path}"), text), count, "{path}: {text}");
        }
        assert_eq!(refused("src/engine/core/lib.rs", "use stats::StepTime;"), 0);
    }

    #[test]
    fn a_device_variant_in_a_model_is_found() {
        let model = |text: &str| Source::new("src/engine/core/execute/model/decoder.rs", text);
        let bad = "fn f(d: &Device) { let Device::Cpu(c) = d; } use super::x::Device::*;";
        assert_eq!(model_names_no_device_variant(&model(bad)).len(), 2);
        assert!(model_names_no_device_variant(&model("let d = Device::cpu(1);")).is_empty());
    }
}
