//! What the repository holds: files, top level, data, settings.

/// `docs/ARCHITECTURE.md`, "Code map". What is not named here belongs in one of these folders.
const TOP_LEVEL: &[&str] = &[
    ".ci",
    ".github",
    ".gitignore",
    "AGENTS.md",
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "benches",
    "clippy.toml",
    "docs",
    "examples",
    "fuzz",
    "kernels",
    "oracles",
    "pyproject.toml",
    "python",
    "rustfmt.toml",
    "scripts",
    "src",
    "testdata",
    "tests",
];

const MAX_FILE_BYTES: u64 = 4 << 20;

/// Hosts of package registries: a build asks whatever its user has configured.
const REGISTRY_HOSTS: &[&str] = &[
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("npmjs", ".org"),
    concat!("rubygems", ".org"),
    concat!("anaconda", ".org"),
    concat!("docker", ".io"),
    concat!("static.rust-lang", ".org"),
    concat!("proxy.golang", ".org"),
];

/// Folders of a developer's machine.
const MACHINE_FOLDERS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Files whose first folder or name the layout does not know.
pub fn top_level(paths: &[String]) -> Vec<String> {
    let known = |path: &&String| {
        let first = path.split('/').next().unwrap_or(path);
        TOP_LEVEL.contains(&first)
    };
    paths
        .iter()
        .filter(|path| !known(path))
        .map(|path| format!("{path}: not in the layout"))
        .collect()
}

/// A file that belongs in a download, not in every clone.
pub fn file_size(path: &str, num_bytes: u64) -> Option<String> {
    (num_bytes > MAX_FILE_BYTES).then(|| format!("{path}: {num_bytes} bytes"))
}

/// Lock files of the package, its fuzz targets and its oracles.
pub const LOCK_FILES: [&str; 3] = ["Cargo.lock", "fuzz/Cargo.lock", "oracles/Cargo.lock"];

/// What holds on one machine only. Cargo itself writes the registry into its lock files.
pub fn machine_traces(path: &str, text: &str) -> Vec<String> {
    let mut violations = Vec::new();
    let is_lock = LOCK_FILES.contains(&path);
    for (index, line) in text.lines().enumerate() {
        let hosts = REGISTRY_HOSTS.iter().filter(|host| !is_lock && line.contains(*host));
        let folders = MACHINE_FOLDERS.iter().filter(|folder| names_folder(line, folder));
        let found = hosts.chain(folders);
        violations.extend(found.map(|found| format!("{path}:{}: {found}", index + 1)));
    }
    violations
}

/// Whether a path begins with the folder, rather than going through one of its name.
fn names_folder(line: &str, folder: &str) -> bool {
    let inner = |c: char| c.is_alphanumeric() || "._-}~)".contains(c);
    line.match_indices(folder).any(|(at, _)| !line[..at].ends_with(inner))
}

/// Packages of the fuzz targets' lock file that the package has too, in no such version: another
/// program would be fuzzed than is shipped.
pub fn lock_differences(own: &str, fuzzed: &str) -> Vec<String> {
    let own: Vec<(&str, &str)> = locked(own).collect();
    let differs = |&(name, version): &(&str, &str)| {
        own.iter().any(|(known, _)| *known == name) && !own.contains(&(name, version))
    };
    let found = locked(fuzzed).filter(differs);
    found.map(|(name, version)| to_update("fuzz/Cargo.lock", name, version)).collect()
}

/// Packages of the oracles' lock file that the package has too, all in other versions. The oracles
/// may have more versions of a package, since candle and tokenizers 0.23 bring their own.
pub fn missing_in_oracles(own: &str, oracles: &str) -> Vec<String> {
    let oracles: Vec<(&str, &str)> = locked(oracles).collect();
    let is_missing = |&(name, version): &(&str, &str)| {
        oracles.iter().any(|(known, _)| *known == name) && !oracles.contains(&(name, version))
    };
    let found = locked(own).filter(is_missing);
    found.map(|(name, version)| to_update("oracles/Cargo.lock", name, version)).collect()
}

fn to_update(path: &str, name: &str, version: &str) -> String {
    format!("{path}: {name} {version}; cargo update -p {name} --precise VERSION")
}

/// Names and versions.
fn locked(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("[[package]]").skip(1).map(|package| {
        let value = |key: &str| {
            let mut lines = package.lines();
            lines.find_map(|line| line.strip_prefix(key)).map_or("", |text| text.trim_matches('"'))
        };
        (value("name = "), value("version = "))
    })
}

/// The thresholds that clippy measures, and that nobody may lose: `(file, line)`.
const SETTINGS: &[(&str, &str)] = &[
    ("clippy.toml", "too-many-lines-threshold = 70"),
    ("clippy.toml", "too-many-arguments-threshold = 7"),
    ("rustfmt.toml", "max_width = 100"),
    ("Cargo.toml", "too_many_lines = \"warn\""),
    ("Cargo.toml", "too_many_arguments = \"warn\""),
    ("Cargo.toml", "undocumented_unsafe_blocks = \"warn\""),
    ("Cargo.toml", "disallowed_methods = \"warn\""),
    ("Cargo.toml", "unsafe_op_in_unsafe_fn = \"deny\""),
    (".ci/run", "cargo clippy --locked --all-targets -- -D warnings"),
];

/// The settings that a file lacks; and cargo features, which it may not have.
pub fn settings(path: &str, text: &str) -> Vec<String> {
    let has = |wanted: &str| text.lines().any(|line| line.trim_end().ends_with(wanted));
    let wanted = SETTINGS.iter().filter(|(file, _)| *file == path);
    let missing =
        wanted.filter(|(_, line)| !has(line)).map(|(_, line)| format!("{path}: no {line}"));
    let features = path == "Cargo.toml" && has("[features]");
    missing.chain(features.then(|| format!("{path}: cargo features"))).collect()
}

/// The files that must have settings.
pub fn files_with_settings() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|(file, _)| *file)
}

/// Tests that a document names, as `module::name`, and that are not there.
pub fn named_tests_without_code(document: &str, tests: &[(String, String)]) -> Vec<String> {
    let named: Vec<(&str, &str)> =
        document.split('`').skip(1).step_by(2).filter_map(|text| text.split_once("::")).collect();
    assert!(!named.is_empty(), "the document names no test");
    let is_there = |&&(module, name): &&(&str, &str)| {
        let (file, folder) = (format!("/{module}.rs"), format!("/{module}/"));
        let function = format!("fn {name}(");
        tests.iter().any(|(path, text)| {
            let path = format!("/{path}");
            (path.ends_with(&file) || path.contains(&folder)) && text.contains(&function)
        })
    };
    named
        .iter()
        .filter(|test| !is_there(test))
        .map(|(module, name)| format!("{module}::{name}: no such test"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_layout_does_not_know_is_found() {
        let paths = ["build.rs", "src/lib.rs", "notes/a.md", "README.md"].map(str::to_owned);
        assert_eq!(top_level(&paths).len(), 2);
        assert!(file_size("a", MAX_FILE_BYTES + 1).is_some());
        assert!(file_size("a", MAX_FILE_BYTES).is_none());
    }

    #[test]
    fn traces_of_a_machine_are_found() {
        for host in REGISTRY_HOSTS {
            let line = format!("see https://{host}/x");
            assert_eq!(machine_traces("README.md", &line).len(), 1, "{line}");
            for lock_file in LOCK_FILES {
                assert!(machine_traces(lock_file, &line).is_empty(), "{line}");
            }
        }
        for folder in MACHINE_FOLDERS {
            assert_eq!(machine_traces("a.sh", &format!("cd \"{folder}x\"")).len(), 1, "{folder}");
            assert!(machine_traces("a.sh", &format!("cd docs{folder}")).is_empty(), "{folder}");
        }
        assert!(machine_traces("README.md", "on PyPI, or with cargo install").is_empty());
    }

    #[test]
    fn another_version_of_a_package_is_found() {
        let package = |name: &str, version: &str| {
            format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n")
        };
        let own = package("a", "1.0.0") + &package("a", "2.0.0") + &package("b", "1.0.0");
        let same = package("a", "2.0.0") + &package("c", "9.0.0");
        assert!(lock_differences(&own, &same).is_empty());
        assert_eq!(lock_differences(&own, &package("b", "1.0.1")).len(), 1);
        let both = package("b", "1.0.1") + &own;
        assert!(missing_in_oracles(&own, &both).is_empty());
        assert_eq!(missing_in_oracles(&own, &package("b", "1.0.1")).len(), 1);
    }

    #[test]
    fn a_lost_setting_is_found() {
        let all: Vec<&str> = SETTINGS.iter().map(|(_, line)| *line).collect();
        assert!(settings("Cargo.toml", &all.join("\n")).is_empty());
        assert_eq!(settings("Cargo.toml", &all[1..].join("\n")).len(), 0);
        assert_eq!(settings("clippy.toml", &all[1..].join("\n")).len(), 1);
        assert_eq!(settings("clippy.toml", &all.join("\n").replace("= 70", "= 700")).len(), 1);
        assert_eq!(settings("Cargo.toml", &format!("{}\n[features]", all.join("\n"))).len(), 1);
    }

    #[test]
    fn a_test_that_is_only_named_is_found() {
        let tests = [("tests/a/b.rs".to_owned(), "#[test]\nfn one() {}".to_owned())];
        let missing = named_tests_without_code("see `a::one`, `a::two`, `c::one`", &tests);
        assert_eq!(missing, ["a::two: no such test", "c::one: no such test"]);
    }
}
