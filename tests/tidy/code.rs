//! What code may do, and where.

use crate::paths::paths;
use crate::source::Source;

/// Memory and vectors, what computes on them, the mapping of weight files, what the machine
/// refuses; and the allocator of a test, since the trait of allocators is unsafe.
const UNSAFE_PLACES: &[&str] = &[
    "src/engine/base/machine/",
    "src/engine/device/",
    "src/engine/ops/",
    "src/engine/checkpoint/weights/mapped_file.rs",
    "tests/allocations.rs",
];

/// `unsafe` only where memory is, and never without its reason.
pub fn unsafe_is_placed_and_explained(source: &Source) -> Vec<String> {
    let mut violations = Vec::new();
    for at in source.find(&["unsafe"]) {
        let line = source.tokens[at].line;
        if !source.is_in(UNSAFE_PLACES) {
            violations.push(source.violation(line, "`unsafe` outside the places for it"));
        }
        let explained = match source.token(at, 1) {
            "{" | "impl" => explanation(source, line).contains("SAFETY:"),
            // A type of pointers, or what a trait or a macro's user has the contract of.
            _ if is_fn_pointer(source, at) || promises_for_another(source, line) => true,
            _ => explanation(source, line).contains("# Safety"),
        };
        if !explained {
            violations.push(source.violation(line, "`unsafe` without `SAFETY:` or `# Safety`"));
        }
    }
    violations
}

/// Whether `unsafe` begins a type, as in `unsafe extern "C" fn(u32)`.
fn is_fn_pointer(source: &Source, at: usize) -> bool {
    let is_abi = |offset| ["extern", "\""].contains(&source.token(at, offset));
    let keyword = (1..4).find(|offset| !is_abi(*offset)).unwrap_or(4);
    source.token(at, keyword) == "fn" && source.token(at, keyword + 1) == "("
}

/// The comments on a line (from 1) and right above it, over attributes and the statement's start.
fn explanation(source: &Source, line: usize) -> String {
    let comment = |index: usize| source.comments[index].trim().to_owned();
    let mut text = comment(line - 1);
    for index in (0..line - 1).rev() {
        let code = source.code[index].trim();
        let ends_statement = code.ends_with([';', '{', '}', ',']);
        if (code.is_empty() && comment(index).is_empty()) || ends_statement {
            break;
        }
        text += &comment(index);
    }
    text
}

/// Whether the item at a line stands in a trait, in its implementation, or in a macro.
fn promises_for_another(source: &Source, line: usize) -> bool {
    let indent = |code: &str| code.len() - code.trim_start().len();
    let own = indent(&source.code[line - 1]);
    let lines = source.code[..line - 1].iter().rev();
    let mut outer = lines.filter(|code| !code.trim().is_empty() && indent(code) < own);
    outer.next().is_some_and(|code| {
        let words: Vec<&str> = code.split_whitespace().collect();
        words.contains(&"trait")
            || (words.contains(&"for") && code.contains("impl"))
            || code.contains("=> {")
    })
}

/// The environment belongs to the command line; tests and benches may be steered by it.
pub fn environment_is_read_in_cli(source: &Source) -> Vec<String> {
    if !source.is_in(&["src/"]) || source.is_in(&["src/cli/"]) {
        return Vec::new();
    }
    let reads = |path: &str| {
        path == "std::env" || path.starts_with("std::env::") || path.ends_with("::getenv")
    };
    let named = paths(source).into_iter().filter(|named| reads(&named.path));
    named.map(|named| source.violation(named.line, "the environment, outside cli")).collect()
}

/// No state but what is passed: no `static` that changes, no thread locals.
pub fn no_mutable_statics(source: &Source) -> Vec<String> {
    if !source.is_in(&["src/"]) {
        return Vec::new();
    }
    let mut found = source.find(&["thread_local", "!"]);
    found.extend(source.find(&["lazy_static", "!"]));
    for at in source.find(&["static"]) {
        let type_of = source.tokens[at..].iter().take_while(|t| !["=", ";"].contains(&&*t.text));
        let changes = |text: &str| {
            let cells = ["mut", "Mutex", "RwLock", "Condvar", "OnceLock"];
            cells.contains(&text) || text.starts_with("Atomic") || text.ends_with("Cell")
        };
        if type_of.into_iter().any(|token| changes(&token.text)) {
            found.push(at);
        }
    }
    found.iter().map(|at| source.violation_at(*at, "a static that changes")).collect()
}

/// One build: nothing is switched by cargo features.
pub fn no_cargo_features(source: &Source) -> Vec<String> {
    let named = source.find(&["feature", "=", "\""]).into_iter();
    let in_cfg = named.filter(|at| ["(", ","].contains(&source.token(*at, -1)));
    in_cfg.map(|at| source.violation_at(at, "cfg(feature)")).collect()
}

/// Standard output and standard error belong to the command line.
pub fn printing_is_in_cli(source: &Source) -> Vec<String> {
    let mut found = source.find(&["dbg", "!"]);
    if source.is_in(&["src/"]) && !source.is_in(&["src/cli/", "src/main.rs"]) {
        for name in ["print", "println", "eprint", "eprintln"] {
            found.extend(source.find(&[name, "!"]));
        }
        for stream in ["stdout", "stderr"] {
            found.extend(source.find(&["io", "::", stream]));
        }
    }
    found.iter().map(|at| source.violation_at(*at, "printing")).collect()
}

/// Nothing unfinished, and no test that does not run.
pub fn nothing_is_put_off(source: &Source) -> Vec<String> {
    let mut violations = Vec::new();
    for name in ["todo", "unimplemented"] {
        let found = source.find(&[name, "!"]);
        violations.extend(found.iter().map(|at| source.violation_at(*at, format!("{name}!"))));
    }
    let ignored = source.find(&["[", "ignore"]);
    violations.extend(ignored.iter().map(|at| source.violation_at(*at, "an ignored test")));
    for (index, comment) in source.comments.iter().enumerate() {
        let mut words = comment.split(|c: char| !c.is_ascii_alphanumeric());
        if words.any(|word| ["TODO", "FIXME", "XXX", "HACK"].contains(&word)) {
            violations.push(source.violation(index + 1, "something put off"));
        }
        if comment.contains("```ignore") {
            violations.push(source.violation(index + 1, "an ignored doc test"));
        }
    }
    violations
}

/// The thresholds are clippy's to measure: nobody may switch them off.
pub fn no_clippy_threshold_is_lifted(source: &Source) -> Vec<String> {
    let lints = ["too_many_lines", "too_many_arguments", "undocumented_unsafe_blocks"];
    let lifted = lints.iter().flat_map(|lint| source.find(&["clippy", "::", lint]));
    lifted.map(|at| source.violation_at(at, "a clippy threshold is lifted")).collect()
}

/// Code in a comment would be a test that nobody runs: rustdoc would have to read the whole crate.
pub fn no_code_in_docs(source: &Source) -> Vec<String> {
    let (mut violations, mut is_open) = (Vec::new(), false);
    for (index, comment) in source.comments.iter().enumerate() {
        let text = comment.trim();
        let is_doc = source.is_in(&["src/"]) && text.starts_with("//");
        let Some(kind) = text.trim_start_matches(['/', '!', ' ']).strip_prefix("```") else {
            continue;
        };
        is_open = is_doc && !is_open;
        if is_open && kind != "text" {
            violations.push(source.violation(index + 1, "code in a comment: ```text"));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_in_a_comment_is_found() {
        let rule = no_code_in_docs;
        assert_eq!(count(rule, "src/a.rs", "/// ```\n/// a();\n/// ```\nfn b() {}"), 1);
        assert_eq!(count(rule, "src/a.rs", "//! ```no_run\n//! a();\n//! ```"), 1);
        assert_eq!(count(rule, "src/a.rs", "//! ```text\n//! a\n//! ```\n\n//! ```text"), 0);
    }

    type Rule = fn(&Source) -> Vec<String>;

    fn count(rule: Rule, path: &str, text: &str) -> usize {
        rule(&Source::new(path, text)).len()
    }

    #[test]
    fn unsafe_needs_its_place_and_its_reason() {
        let rule = unsafe_is_placed_and_explained;
        let explained = "// SAFETY: in bounds.\n#[x]\nlet a =\n    unsafe { b() };";
        assert_eq!(count(rule, "src/engine/ops/a.rs", explained), 0);
        assert_eq!(count(rule, "src/engine/core/plan/scheduler.rs", explained), 1);
        assert_eq!(count(rule, "tests/a.rs", explained), 1);
        for bare in [
            "unsafe { b() }",
            "// SAFETY: of another.\nlet a = 1;\nunsafe { b() }",
            "// SAFETY: too far.\n\nunsafe { b() }",
            "unsafe impl Send for A {}",
            "/// Adds.\npub unsafe fn f() {}",
            "impl A {\n    unsafe fn f() {}\n}",
        ] {
            assert_eq!(
                count(rule, "src/engine/checkpoint/weights/mapped_file.rs", bare),
                1,
                "{bare}"
            );
        }
        for good in [
            "/// Adds.\n///\n/// # Safety\n/// In bounds.\n#[inline]\npub unsafe fn f() {}",
            "impl A for B {\n    unsafe fn f() {}\n}",
            "pub trait A {\n    unsafe fn f();\n\n    unsafe fn g();\n}",
            "// unsafe\nlet a = \"unsafe\";",
            "type Launch = unsafe extern \"C\" fn(u32) -> i32;",
            "struct A {\n    free: unsafe fn(u32),\n}",
        ] {
            assert_eq!(count(rule, "src/engine/device/a.rs", good), 0, "{good}");
        }
    }

    #[test]
    fn the_environment_is_found_however_it_is_named() {
        let rule = environment_is_read_in_cli;
        for bad in ["use std::env;", "use std::{env::var, fs};", "let x = std::env::args();"] {
            assert_eq!(count(rule, "src/engine/base/config.rs", bad), 1, "{bad}");
            assert_eq!(count(rule, "src/cli/mod.rs", bad), 0, "{bad}");
        }
        assert_eq!(count(rule, "src/engine/base/config.rs", "env!(\"CARGO_PKG_VERSION\")"), 0);
    }

    #[test]
    fn statics_that_change_are_found() {
        let rule = no_mutable_statics;
        for bad in [
            "static mut A: u8 = 0;",
            "pub static A: AtomicU64 = AtomicU64::new(0);",
            "static A: std::sync::OnceLock<u8> = OnceLock::new();",
            "static A: LazyLock<Mutex<u8>> = x;",
            "thread_local! { }",
        ] {
            assert_eq!(count(rule, "src/engine/core/stats.rs", bad), 1, "{bad}");
        }
        let good = "static A: &str = \"Mutex\"; fn f(x: &'static Mutex<u8>) {}";
        assert_eq!(count(rule, "src/engine/core/stats.rs", good), 0);
    }

    #[test]
    fn features_and_printing_are_found() {
        assert_eq!(count(no_cargo_features, "src/lib.rs", "#[cfg(feature = \"cuda\")] mod a;"), 1);
        let nested = "if cfg!(all(unix, feature = \"cuda\")) {}";
        assert_eq!(count(no_cargo_features, "src/lib.rs", nested), 1);
        let others = "#[target_feature(enable = \"avx2\")] fn f() { feature = \"a\"; }";
        assert_eq!(count(no_cargo_features, "src/lib.rs", others), 0);
        for bad in ["println!()", "eprint!(\"\")", "std::io::stderr()", "dbg!(1)"] {
            assert_eq!(count(printing_is_in_cli, "src/engine/core/lib.rs", bad), 1, "{bad}");
            let allowed = usize::from(bad.starts_with("dbg"));
            assert_eq!(count(printing_is_in_cli, "src/cli/mod.rs", bad), allowed, "{bad}");
            assert_eq!(count(printing_is_in_cli, "benches/a.rs", bad), allowed, "{bad}");
        }
    }

    #[test]
    fn what_is_put_off_or_lifted_is_found() {
        for bad in [
            "// TODO: later",
            "/* FIXME */",
            "fn f() { todo!() }",
            "unimplemented!()",
            "#[test]\n#[ignore = \"slow\"]\nfn f() {}",
            "/// ```ignore",
        ] {
            assert_eq!(count(nothing_is_put_off, "tests/a.rs", bad), 1, "{bad}");
        }
        assert_eq!(count(nothing_is_put_off, "tests/a.rs", "let a = \"TODO\"; // TODOS"), 0);
        let lifted = "#[allow(clippy::too_many_lines)]\nfn f() {}";
        assert_eq!(count(no_clippy_threshold_is_lifted, "src/a.rs", lifted), 1);
    }
}
