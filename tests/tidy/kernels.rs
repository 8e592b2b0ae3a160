//! What a GPU's kernels may do, and that each is launched and tested.

use crate::source::Source;

/// The entries of a source: the names in `EXPORT(name)`.
pub fn entries(kernels: &[&Source]) -> Vec<String> {
    let of = |source: &&Source| -> Vec<String> {
        let found = source.find(&["EXPORT", "("]).into_iter();
        found.map(|at| source.token(at, 2).to_owned()).collect()
    };
    kernels.iter().filter(|source| source.path.ends_with(".cu")).flat_map(of).collect()
}

/// The entries that no string in these sources names.
pub fn entries_without_launch(entries: &[String], sources: &[&Source]) -> Vec<String> {
    let is_named = |entry: &&String| {
        let literal = format!("\"{entry}\"");
        sources.iter().any(|source| source.text.contains(&literal))
    };
    let missing = entries.iter().filter(|entry| !is_named(entry));
    missing.map(|entry| format!("kernels/: nothing launches {entry}")).collect()
}

/// The entries that no test of these sources has in its name, as whole words and not as a part of a
/// longer entry: `add_norm_adds` is a test of `add_norm`, and none of `add`.
pub fn entries_without_test(entries: &[String], tests: &[&Source]) -> Vec<String> {
    let mut longest_first: Vec<&String> = entries.iter().collect();
    longest_first.sort_by_key(|entry| std::cmp::Reverse(entry.len()));
    let mut tested = Vec::new();
    for name in tests.iter().flat_map(|source| tests_of(source)) {
        let mut rest = format!("_{name}_");
        for entry in &longest_first {
            let word = format!("_{entry}_");
            if rest.contains(&word) {
                tested.push(*entry);
                rest = rest.replace(&word, "_/_");
            }
        }
    }
    let missing = entries.iter().filter(|entry| !tested.contains(entry));
    missing.map(|entry| format!("tests/devices/cuda_ops/: no test of {entry}")).collect()
}

fn tests_of(source: &Source) -> impl Iterator<Item = &str> {
    let found = source.find(&["[", "test", "]", "fn"]).into_iter();
    found.map(|at| source.token(at, 4))
}

/// Instructions are wrapped where the shim has their twins: in `ptx.cuh`, `wgmma.cuh`, and the
/// conversions and approximations of `common.cuh`.
pub fn asm_is_wrapped(source: &Source) -> Vec<String> {
    let is_of_wrappers = ["kernels/ptx.cuh", "kernels/wgmma.cuh"].contains(&&source.path[..]);
    if !is_device_code(source) || is_of_wrappers {
        return Vec::new();
    }
    let is_conversion = |line: usize| {
        let mut lines = source.code[..line].iter().rev();
        let opening = lines.find(|code| code.contains("__device__"));
        let names = ["narrow_", "widen_", "fast_"];
        source.path == "kernels/common.cuh"
            && opening.is_some_and(|code| names.iter().any(|name| code.contains(name)))
    };
    let found = ["asm", "__asm__", "__asm"].into_iter().flat_map(|word| source.find(&[word]));
    let bare = found.filter(|at| !is_conversion(source.tokens[*at].line));
    bare.map(|at| source.violation_at(at, "`asm` outside its wrappers")).collect()
}

/// Kernels are compiled without any toolkit's headers.
pub fn no_system_headers(source: &Source) -> Vec<String> {
    if !is_device_code(source) {
        return Vec::new();
    }
    let lines = source.code.iter().enumerate();
    let includes = lines.filter(|(_, code)| {
        let directive: String = code.split_whitespace().collect();
        directive.starts_with("#include<")
    });
    includes.map(|(index, _)| source.violation(index + 1, "a header that NVRTC lacks")).collect()
}

/// Not the shim, which is the host's.
fn is_device_code(source: &Source) -> bool {
    source.is_in(&["kernels/"]) && !source.is_in(&["kernels/host/"])
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = "// Adds.\nKERNEL(256) add(float* x) {}\nEXPORT(add)\n\
                          KERNEL(256) add_norm(float* x) {}\nEXPORT(add_norm)\n";

    fn names() -> Vec<String> {
        let (kernel, header) =
            (Source::new("kernels/norm.cu", KERNEL), Source::new("kernels/a.cuh", KERNEL));
        entries(&[&kernel, &header])
    }

    #[test]
    fn an_entry_that_nothing_launches_is_found() {
        assert_eq!(names(), ["add", "add_norm"]);
        let launched = |text: &str| {
            entries_without_launch(&names(), &[&Source::new("src/engine/ops/a.rs", text)]).len()
        };
        assert_eq!(launched("launch((\"norm\", \"add_norm\"), \"add\")"), 0);
        assert_eq!(launched("launch((\"norm\", \"add_norm\"))"), 1);
        assert_eq!(launched("fn add_norm() { add() }"), 2);
    }

    #[test]
    fn an_entry_without_test_is_found() {
        let untested = |name: &str| {
            let text = format!("#[test]\nfn {name}() {{}}\nfn add_norm_add() {{}}");
            entries_without_test(&names(), &[&Source::new("tests/devices/cuda_ops/a.rs", &text)])
                .len()
        };
        assert_eq!(untested("add_norm_adds"), 1);
        assert_eq!(untested("add_is_exact"), 1);
        assert_eq!(untested("add_and_add_norm"), 0);
        assert_eq!(untested("adds"), 2);
    }

    #[test]
    fn bare_instructions_and_headers_are_found() {
        let bare = |path: &str, text: &str| asm_is_wrapped(&Source::new(path, text)).len();
        let conversion = "__device__ u32 narrow_bf16x2(float x) {\n  asm(\"cvt\");\n}";
        assert_eq!(bare("kernels/common.cuh", conversion), 0);
        assert_eq!(bare("kernels/norm.cu", conversion), 1);
        let other = "__device__ u32 narrow(float x);\n__device__ void f() { asm(\"bar\"); }";
        assert_eq!(bare("kernels/common.cuh", other), 1);
        assert_eq!(bare("kernels/ptx.cuh", other), 0);
        assert_eq!(bare("kernels/host/shim.h", other), 0);
        assert_eq!(bare("kernels/norm.cu", "// asm\nint assembled;"), 0);

        let headers = |path: &str, text: &str| no_system_headers(&Source::new(path, text)).len();
        for bad in ["#include <cuda_bf16.h>", " # include <a>"] {
            assert_eq!(headers("kernels/norm.cu", bad), 1, "{bad}");
            assert_eq!(headers("kernels/host/shim.h", bad), 0, "{bad}");
        }
        assert_eq!(headers("kernels/norm.cu", "#include \"common.cuh\" // #include <a>"), 0);
    }
}
