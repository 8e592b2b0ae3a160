//! Who may name whom (`docs/ARCHITECTURE.md`, "Invariants").

use crate::paths::{module_of, paths};
use crate::source::Source;

/// A module, and what it may name of `crate::engine` besides itself. A module of the engine that is
/// not listed is free within the engine.
pub const LAYERS: &[(&str, &[&str])] = &[
    // The engine's public API: no tensors, no scheduler.
    (
        "crate::cli",
        &[
            "Engine",
            "EngineError",
            "EngineInfo",
            "WhyCpu",
            "config",
            "data_parallel",
            // Whether JSON is as a schema says: structured output and scorers ask the same.
            "deep_stack",
            "json_schema",
            // Every model file is opened in one way.
            "files::read",
            "input_processor",
            "machine",
            // What a model costs, as data: `bench`.
            "model::decoder_spec",
            "model::hf_config::HfConfig",
            "model::spec",
            // What small files of a model say, before its weights are read.
            "model_summary",
            "pooling",
            "request",
            "runner",
            // Random numbers without a state: the bootstrap of `eval`.
            "sampler::philox",
            "stats",
            "text::RunDate",
            "text::contain",
            "text::is_contained",
            // How files of weights are named.
            "weight_files",
        ],
    ),
    // Memory and threads.
    ("crate::engine::device", &["EngineError", "WhyCpu", "config", "machine"]),
    // What a device computes; knows no model and no scheduler.
    ("crate::engine::ops", &["EngineError", "batch", "config", "device"]),
    // What a model is; knows no device: it may hold tensors and pass the device on.
    (
        "crate::engine::model",
        &[
            "EngineError",
            "batch",
            "config",
            "device::CacheLayerMut",
            "device::Device",
            "device::KvCache",
            "device::Precision",
            "device::StateLayerMut",
            "device::Tensor",
            "files",
            "ops",
            "weight_files",
        ],
    ),
    // Names alone: both halves go by them.
    ("crate::engine::weight_files", &[]),
    // Strings and token ids.
    ("crate::engine::text", &["files", "machine"]),
    // Pure functions of a row of logits.
    ("crate::engine::sampler", &["request", "sampling_params"]),
    ("crate::engine::sampling_params", &["request"]),
    // The scheduler has no tensors; the executor has no requests; `Batch` is between them.
    (
        "crate::engine::scheduler",
        &[
            "batch",
            "block_pool",
            "completion",
            "config",
            "request",
            "sampler",
            "sequence",
            "stats",
            "structured_output",
            "text",
        ],
    ),
    // Who guesses what comes next: sees sequences, and not how they are computed.
    (
        "crate::engine::speculation",
        &["batch", "config", "executor", "request", "sampler", "scheduler", "sequence"],
    ),
    // Which tokens may come next; knows no logits.
    (
        "crate::engine::structured_output",
        &["deep_stack", "json_schema", "request", "sampler::TokenMask", "sampling_params", "text"],
    ),
    // Values and schemas; rows, tokens and scorers ask it.
    ("crate::engine::json_schema", &["deep_stack"]),
    ("crate::engine::deep_stack", &["machine", "text"]),
    (
        "crate::engine::sequence",
        &[
            "completion",
            "prefix_cache",
            "request",
            "speculation::Pace",
            "structured_output",
            "text",
        ],
    ),
    ("crate::engine::completion", &["request", "text"]),
    ("crate::engine::block_pool", &["prefix_cache"]),
    ("crate::engine::prefix_cache", &[]),
    // Logits stay where they were computed.
    ("crate::engine::executor", &["batch", "device::Tensor"]),
    ("crate::engine::simulated_executor", &["batch", "config", "device::Tensor", "executor"]),
];

/// The folders of `cli`, from the bottom up: each may name itself and those before it.
pub const CLI: &[&str] = &[
    "terminal",
    "network",
    "object_store",
    "input",
    "judge",
    "args",
    "config",
    "output",
    "ledger",
    "model",
    "run",
    "commands",
];

/// Names of folders of `cli` that are above the one that names them; of other commands, in a
/// command; and files that are in no folder.
pub fn cli_points_down(source: &Source) -> Vec<String> {
    let module = module_of(&source.path);
    let [_, _, folder, rest @ ..] = module.as_slice() else { return Vec::new() };
    if !within(&module.join("::"), "crate::cli") {
        return Vec::new();
    }
    let level = |folder: &str| CLI.iter().position(|known| *known == folder);
    let Some(own) = level(folder) else {
        return vec![source.violation(1, format!("cli/{folder} is no folder of the table"))];
    };
    let is_refused = |path: &str| {
        let mut parts = path.split("::").skip(2);
        let (named, command) = (parts.next().unwrap_or("*"), parts.next());
        let is_other = *folder == "commands"
            && named == "commands"
            && command.is_none_or(|command| rest.first().is_some_and(|own| own != command));
        is_other || level(named).is_none_or(|level| level > own)
    };
    let named = paths(source).into_iter().filter(|named| within(&named.path, "crate::cli"));
    let refused = named.filter(|named| is_refused(&named.path));
    refused
        .map(|named| {
            source.violation(named.line, format!("cli/{folder} may not name {}", named.path))
        })
        .collect()
}

/// Names of other layers that `LAYERS` does not grant; and of `cli`, anywhere in the engine.
pub fn layers(source: &Source) -> Vec<String> {
    let module = module_of(&source.path).join("::");
    let layer = LAYERS.iter().find(|(name, _)| within(&module, name));
    let in_engine = within(&module, "crate::engine");
    let is_granted = |path: &str| match layer {
        Some((name, granted)) => {
            let mut granted = granted.iter().map(|grant| format!("crate::engine::{grant}"));
            within(path, name) || granted.any(|grant| within(path, &grant))
        }
        None => !in_engine || within(path, "crate::engine"),
    };
    let named = paths(source).into_iter().filter(|named| within(&named.path, "crate"));
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
    if !source.is_in(&["src/engine/model/"]) {
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
            let path = format!("src/engine/{part}.rs");
            for foreign in ["device::Tensor", "ops", "model::spec", "model_executor", "*"] {
                let text = format!("fn f() {{ let x = crate::engine::{foreign}::y(); }}");
                let text = text.replace("*::y()", "y()");
                assert_eq!(refused(&path, &text), 1, "{path}: {foreign}");
            }
        }
        assert_eq!(refused("src/engine/scheduler.rs", "use super::block_pool::BlockPool;"), 0);
        assert_eq!(refused("src/engine/scheduler.rs", "use super::*;"), 1);
        assert_eq!(refused("src/engine/scheduler.rs", "use crate::engine as e;"), 1);
        assert_eq!(refused("src/engine/scheduler/tests.rs", "use super::*;"), 0);
        assert_eq!(refused("src/engine/prefix_cache.rs", "use crate::engine::ops_of;"), 1);
    }

    #[test]
    fn other_layers_keep_apart() {
        assert_eq!(refused("src/engine/ops/norm.rs", "use crate::engine::model::spec::A;"), 1);
        assert_eq!(refused("src/engine/ops/norm.rs", "use super::super::scheduler::A;"), 1);
        assert_eq!(refused("src/engine/ops/norm.rs", "use crate::engine::device::Tensor;"), 0);
        assert_eq!(
            refused("src/engine/model/a.rs", "use crate::engine::device::{Cpu, Tensor};"),
            1
        );
        assert_eq!(refused("src/engine/text/a.rs", "use crate::engine::device::Tensor;"), 1);
        assert_eq!(refused("src/engine/executor.rs", "use super::request::Request;"), 1);
        assert_eq!(refused("src/cli/run/mod.rs", "use crate::engine::{Engine, sampler::a};"), 1);
        assert_eq!(refused("src/cli/run/mod.rs", "use crate::engine::text::Tokenizer;"), 1);
        assert_eq!(refused("src/cli/run/mod.rs", "use super::args::RunArgs;"), 0);
        for path in ["src/engine/mod.rs", "src/engine/stats.rs", "src/engine/text/mod.rs"] {
            assert_eq!(refused(path, "use crate::cli::exit::Exit;"), 1, "{path}");
        }
    }

    #[test]
    fn folders_of_cli_name_what_is_below_them() {
        let refused = |path: &str, text: &str| cli_points_down(&Source::new(path, text)).len();
        for (path, text, count) in [
            ("src/cli/terminal/error.rs", "use crate::cli::input::row_error::RowError;", 1),
            ("src/cli/terminal/error.rs", "use super::exit::Exit;", 0),
            ("src/cli/input/row/chat.rs", "use super::super::super::args::RunArgs;", 1),
            ("src/cli/input/row/chat.rs", "use super::super::fields::JsonFields;", 0),
            ("src/cli/ledger/mod.rs", "use crate::cli::{output::FileFormat, run::read};", 1),
            ("src/cli/run/mod.rs", "use crate::cli::commands::plan;", 1),
            ("src/cli/run/mod.rs", "use crate::cli::main;", 1),
            ("src/cli/commands/plan/mod.rs", "use crate::cli::commands::bench;", 1),
            ("src/cli/commands/plan/mod.rs", "use self::estimate; use super::bench;", 1),
            ("src/cli/commands/plan/survey.rs", "use super::lengths::Lengths;", 0),
            ("src/cli/window.rs", "", 1),
            ("src/cli/mod.rs", "use run::run; use commands::plan;", 0),
            ("src/engine/mod.rs", "use batch::Batch;", 0),
        ] {
            assert_eq!(refused(path, text), count, "{path}: {text}");
        }
    }

    #[test]
    fn a_device_variant_in_a_model_is_found() {
        let model = |text: &str| Source::new("src/engine/model/decoder.rs", text);
        let bad = "fn f(d: &Device) { let Device::Cpu(c) = d; } use super::x::Device::*;";
        assert_eq!(model_names_no_device_variant(&model(bad)).len(), 2);
        assert!(model_names_no_device_variant(&model("let d = Device::cpu(1);")).is_empty());
    }
}
