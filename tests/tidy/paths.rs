//! The paths that a source names, resolved: `use` trees, and paths in expressions and types.

use crate::source::Source;

/// A path from its crate's name (`vllm_batch_device::Tensor`), or as written where it begins with
/// another name (`std::env::var`). A glob ends with `*`.
pub struct NamedPath {
    /// Parts joined by `::`.
    pub path: String,
    /// Where it stands, from 1.
    pub line: usize,
}

/// All paths of a file.
pub fn paths(source: &Source) -> Vec<NamedPath> {
    let module = module_of(&source.path);
    let mut scan = Scan { source, at: 0, module, inline: Vec::new(), depth: 0, found: Vec::new() };
    while scan.at < source.tokens.len() {
        scan.step();
    }
    scan.found
}

/// Folders of crates, and their names.
const CRATES: &[(&str, &str)] = &[
    ("src/engine/base/", "vllm_batch_base"),
    ("src/engine/text/", "vllm_batch_text"),
    ("src/engine/checkpoint/", "vllm_batch_checkpoint"),
    ("src/engine/device/", "vllm_batch_device"),
    ("src/engine/ops/", "vllm_batch_ops"),
    ("src/engine/api/", "vllm_batch_api"),
    ("src/engine/core/", "vllm_batch_engine"),
    ("src/engine/media/", "vllm_batch_media"),
    ("src/cli/dataset/", "vllm_batch_dataset"),
    ("src/cli/server/", "vllm_batch_server"),
    ("src/cli/program/", "vllm_batch_cli"),
    ("src/", "vllm_batch"),
];

/// `src/engine/core/plan/sequence.rs` is `vllm_batch_engine::plan::sequence`.
pub fn module_of(path: &str) -> Vec<String> {
    let within = |(folder, name): &(&str, &'static str)| Some((path.strip_prefix(folder)?, *name));
    let (path, name) = CRATES.iter().find_map(within).unwrap_or((path, "crate"));
    let parts = path.trim_end_matches(".rs").split('/');
    let parts = parts.filter(|part| !["mod", "lib", "main"].contains(part));
    std::iter::once(name).chain(parts).map(str::to_owned).collect()
}

struct Scan<'a> {
    source: &'a Source,
    at: usize,
    module: Vec<String>,
    /// Brace depths at which inline modules opened.
    inline: Vec<usize>,
    depth: usize,
    found: Vec<NamedPath>,
}

impl Scan<'_> {
    fn here(&self, offset: isize) -> &str {
        self.source.token(self.at, offset)
    }

    fn step(&mut self) {
        match self.here(0) {
            "{" => self.depth += 1,
            "}" => {
                self.depth = self.depth.saturating_sub(1);
                if self.inline.last() == Some(&self.depth) {
                    self.inline.pop();
                    self.module.pop();
                }
            }
            "mod" if self.here(2) == "{" => {
                self.module.push(self.here(1).to_owned());
                self.inline.push(self.depth);
                self.at += 1;
            }
            "use" => {
                self.at += 1;
                self.use_tree(Vec::new());
            }
            _ if self.begins_path() => return self.expression_path(),
            _ => {}
        }
        self.at += 1;
    }

    /// `pub(in super::super)` grants sight and names nothing.
    fn begins_path(&self) -> bool {
        self.here(1) == "::" && is_name(self.here(0)) && !["::", "in"].contains(&self.here(-1))
    }

    fn expression_path(&mut self) {
        let line = self.source.tokens[self.at].line;
        let mut parts = vec![self.here(0).to_owned()];
        self.at += 1;
        while self.here(0) == "::" && is_name(self.here(1)) {
            parts.push(self.here(1).to_owned());
            self.at += 2;
        }
        // `Vec::<T>::new` leaves the reader at its `::`; the T is read on its own.
        self.at += usize::from(self.here(0) == "::");
        self.record(&parts, line);
    }

    /// One branch of a `use` tree; ends at the `,`, `}` or `;` behind it.
    fn use_tree(&mut self, mut parts: Vec<String>) {
        loop {
            let line = self.source.tokens.get(self.at).map_or(0, |token| token.line);
            match self.here(0) {
                "::" => self.at += 1,
                "{" => {
                    self.at += 1;
                    while !["}", ""].contains(&self.here(0)) {
                        self.use_tree(parts.clone());
                        self.at += usize::from(self.here(0) == ",");
                    }
                    self.at += 1;
                    return;
                }
                part if is_name(part) || part == "*" => {
                    // `a::{self}` is `a`.
                    if part != "self" || parts.is_empty() {
                        parts.push(part.to_owned());
                    }
                    self.at += 1;
                    if self.here(0) != "::" {
                        self.at += if self.here(0) == "as" { 2 } else { 0 };
                        return self.record(&parts, line);
                    }
                }
                _ => return,
            }
        }
    }

    fn record(&mut self, parts: &[String], line: usize) {
        let mut path = match parts[0].as_str() {
            "self" | "super" => self.module.clone(),
            "crate" => self.module[..1].to_vec(),
            first => vec![first.to_owned()],
        };
        if parts[0] == "super" {
            path.pop();
        }
        for part in &parts[1..] {
            match part.as_str() {
                "super" => drop(path.pop()),
                part => path.push(part.to_owned()),
            }
        }
        self.found.push(NamedPath { path: path.join("::"), line });
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        paths(&Source::new(path, text)).into_iter().map(|found| found.path).collect()
    }

    #[test]
    fn use_trees_are_taken_apart() {
        let text = "use super::executor::{self as e, simd::{Isa, Kernel as K}, cpu::*};\nuse half;";
        let executor = "vllm_batch_engine::execute::executor";
        let expected = ["", "::simd::Isa", "::simd::Kernel", "::cpu::*"];
        let mut expected: Vec<_> =
            expected.iter().map(|rest| format!("{executor}{rest}")).collect();
        expected.push("half".to_owned());
        assert_eq!(found("src/engine/core/execute/head.rs", text), expected);
        assert_eq!(found("src/engine/ops/lib.rs", "pub use self::a::B;"), ["vllm_batch_ops::a::B"]);
        assert_eq!(found("tests/a.rs", "use vllm_batch::engine::E;"), ["vllm_batch::engine::E"]);
    }

    #[test]
    fn paths_in_code_are_found_and_inline_modules_count() {
        let text = "fn f(x: &vllm_batch_ops::Op) -> Vec<self::A> { std::env::var(b::<u8>()) }\n\
                    mod tests { use super::*; fn g() { super::super::h() } } fn i() { super::j() }\
                    fn k() { crate::l() }";
        let expected = [
            "vllm_batch_ops::Op",
            "vllm_batch_text::chat::stop::A",
            "std::env::var",
            "b",
            "vllm_batch_text::chat::stop::*",
            "vllm_batch_text::chat::h",
            "vllm_batch_text::chat::j",
            "vllm_batch_text::l",
        ];
        assert_eq!(found("src/engine/text/chat/stop.rs", text), expected);
    }

    #[test]
    fn a_visibility_is_no_import() {
        assert!(found("src/a/b.rs", "pub(in super::super) fn f() {}").is_empty());
    }
}
