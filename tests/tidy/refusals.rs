//! Who refuses settings: a pair of them one table, a value alone the file that uses it.

use crate::source::Source;

/// The table of pairs.
const TABLE: &str = "src/engine/core/load/combinations.rs";

/// Files that refuse values alone, sizes that no kernel takes, and what a machine has not; with how
/// often they name the error.
const OF_VALUES: &[(&str, usize)] = &[
    ("src/engine/checkpoint/hf_config/mod.rs", 1),
    ("src/engine/checkpoint/model_files.rs", 1),
    ("src/engine/checkpoint/weights/dummy.rs", 1),
    ("src/engine/core/execute/cache_size.rs", 8),
    ("src/engine/core/execute/draft_executor.rs", 1),
    ("src/engine/core/execute/model_executor.rs", 1),
    ("src/engine/core/execute/pipeline/loading.rs", 1),
    ("src/engine/core/execute/tensor_parallel/mod.rs", 1),
    ("src/engine/core/load/devices.rs", 4),
    ("src/engine/core/load/held_weights.rs", 1),
    ("src/engine/core/load/model_summary.rs", 1),
    ("src/engine/core/serve/data_parallel/configs.rs", 1),
    ("src/engine/core/serve/data_parallel/mod.rs", 1),
    ("src/engine/core/serve/input_processor.rs", 1),
    ("src/engine/core/serve/pooling/mod.rs", 1),
    ("src/engine/core/serve/pooling/sight.rs", 1),
    ("src/engine/core/serve/pooling/summary.rs", 2),
    ("src/engine/device/gpu.rs", 1),
    ("src/engine/device/gpu/group.rs", 1),
    ("src/engine/device/open.rs", 5),
    ("src/engine/ops/linear/mod.rs", 1),
    ("src/engine/ops/lora/cuda.rs", 1),
    ("src/engine/ops/paged_attention/cuda/wgmma.rs", 1),
];

/// Errors of settings in files that are not known to refuse values alone.
pub fn pairs_are_refused_by_the_table(source: &Source) -> Vec<String> {
    let is_free = source.is_in(&[TABLE, "src/engine/base/error.rs"]);
    if is_free || !source.is_in(&["src/engine/"]) {
        return Vec::new();
    }
    let known = OF_VALUES.iter().find(|(path, _)| *path == source.path);
    let mut found = source.find(&["EngineError", "::", "Config"]);
    found.extend(source.find(&["EngineError", "::", "setting", "("]));
    let known = known.map_or(0, |of| of.1);
    let text = format!(
        "{known} refusals of settings were known: two that do not go together are a row of {TABLE}, \
         and a value that is wrong alone is counted in tests/tidy/refusals.rs"
    );
    let differs = found.len() != known;
    let at = found.last().map_or(1, |at| source.tokens[*at].line);
    differs.then(|| source.violation(at, text)).into_iter().collect()
}

/// Options of another program, NVRTC's; and how settings are marked in texts.
const NO_TEXTS: &[&str] = &["src/engine/device/cuda/compiler.rs", "src/engine/base/setting.rs"];

/// Flags in texts of the engine, which names settings (`Setting`), and names that are none.
pub fn the_engine_names_settings(source: &Source, settings: &[String]) -> Vec<String> {
    if !source.is_in(&["src/engine/"]) || source.is_in(NO_TEXTS) {
        return Vec::new();
    }
    let mut violations = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        // Comments may say how a setting is typed.
        let line = &line[..line.len() - source.comments[index].trim_start().len()];
        let is_flag = |at: usize| {
            line[at + 2..].starts_with(|c: char| c.is_ascii_lowercase())
                && !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '-')
        };
        if line.match_indices("--").any(|(at, _)| is_flag(at)) {
            violations.push(source.violation(index + 1, "a flag: name the setting"));
        }
        for name in line.split("`settings.").skip(1).filter_map(|rest| rest.split('`').next()) {
            if !settings.iter().any(|setting| setting == name) {
                violations.push(source.violation(index + 1, format!("{name} is no setting")));
            }
        }
    }
    violations
}

/// The names of settings, of the source that lists them.
pub fn settings(source: &str) -> Vec<String> {
    let names = source.lines().filter_map(|line| line.split_once("=> \""));
    names.filter_map(|(_, name)| Some(name.split_once('"')?.0.to_owned())).collect()
}

/// The files that must be there for their refusals to be counted.
pub fn files_with_refusals() -> impl Iterator<Item = &'static str> {
    OF_VALUES.iter().map(|(path, _)| *path).chain([TABLE])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_in_texts_of_the_engine_are_found() {
        let named = settings("            Self::Dtype => \"dtype\",\n");
        assert_eq!(named, ["dtype"]);
        let found = |path: &str, text: &str| {
            the_engine_names_settings(&Source::new(path, text), &named).len()
        };
        let path = "src/engine/core/serve/runner.rs";
        assert_eq!(found(path, "let a = \"try --dtype float32\";"), 1);
        assert_eq!(found(path, "let a = \"try `settings.type`\";"), 1);
        for good in ["let a = \"try `settings.dtype`\";", "/// As `--dtype` has it.", "a(); // --b"]
        {
            assert_eq!(found(path, good), 0, "{good}");
        }
        assert_eq!(found("src/cli/program/lib.rs", "let a = \"--dtype\";"), 0);
        assert_eq!(found(NO_TEXTS[0], "let a = \"--fmad=false\";"), 0);
    }

    #[test]
    fn a_pair_that_is_refused_elsewhere_is_found() {
        let refused =
            |path: &str, text: &str| pairs_are_refused_by_the_table(&Source::new(path, text)).len();
        let bad = "return Err(EngineError::Config(\"a: not with b\".to_owned()));";
        assert_eq!(refused("src/engine/core/serve/runner.rs", bad), 1);
        assert_eq!(refused(TABLE, bad), 0);
        assert_eq!(refused("src/cli/program/run/mod.rs", bad), 0);
        let (path, count) = OF_VALUES[0];
        assert_eq!(refused(path, &bad.repeat(count)), 0);
        assert_eq!(refused(path, &bad.repeat(count + 1)), 1);
    }
}
