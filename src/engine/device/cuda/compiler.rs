//! Compiles the embedded kernels for a device with NVRTC, and keeps the cubins on disk.

use std::ffi::{CStr, CString, c_char};
use std::path::PathBuf;
use std::sync::OnceLock;

use cudarc::nvrtc::result as nvrtc;
use cudarc::nvrtc::sys;

use super::disk_cache::Hasher;
use super::error::{CudaError, Result};

mod cubin_cache;
mod ptxas_report;
mod target;

pub use ptxas_report::ResourceUsage;

/// (file name, text) of the headers (.cuh) and kernels (.cu).
pub type Sources = &'static [(&'static str, &'static str)];

/// Contraction is off, so that the same source rounds alike everywhere (and as the host shim does).
/// Two warnings are off: of constants that a set of defines leaves unused, and of comparisons that
/// it makes trivial.
const OPTIONS: [&str; 5] = [
    "--std=c++17",
    "--fmad=false",
    "-default-device",
    "--diag-suppress=177,186",
    "--ptxas-options=-v",
];

const ARCH_OPTION: &str = "--gpu-architecture=";

/// NVRTC with the kernels' sources.
pub struct Compiler {
    sources: Sources,
    cache_dir: Option<PathBuf>,
    version: OnceLock<std::result::Result<(i32, i32), String>>,
    known_archs: OnceLock<std::result::Result<Vec<u32>, String>>,
}

/// A cubin and what its kernels take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// For `cuModuleLoadData`; for an architecture as `compute_90` PTX, which ends in NUL.
    pub cubin: Vec<u8>,
    /// NVRTC's log: warnings, and the report of ptxas (none of PTX).
    pub log: String,
    /// Whether it came from the disk.
    pub is_cached: bool,
}

impl Compiled {
    /// Resources of each kernel, by name.
    pub fn usage(&self) -> Vec<(String, ResourceUsage)> {
        ptxas_report::parse(&self.log)
    }
}

impl Compiler {
    /// A compiler of these sources; cubins are kept in `cache_dir`, None: nowhere. Loads nothing
    /// yet.
    pub fn new(sources: Sources, cache_dir: Option<PathBuf>) -> Self {
        let (version, known_archs) = (OnceLock::new(), OnceLock::new());
        Self { sources, cache_dir, version, known_archs }
    }

    /// Target for a device of this compute capability: its own architecture, or, if this NVRTC does
    /// not know that, the newest before it as PTX (`compute_90`).
    pub fn arch_for(&self, capability: (u32, u32)) -> Result<String> {
        let version = self.nvrtc_version("")?;
        let known = self.known_archs.get_or_init(target::known);
        let known = known.as_ref().map_err(|reason| error("", reason.clone(), ""))?;
        target::choose(capability, known).ok_or_else(|| {
            let ((major, minor), (own_major, own_minor)) = (capability, version);
            let code =
                format!("NVRTC {own_major}.{own_minor} compiles for no GPU of {major}.{minor}");
            error("", code, "")
        })
    }

    /// Compiles `<source>.cu` with these defines for an architecture as `sm_90a`.
    pub fn compile(&self, source: &str, defines: &[(&str, &str)], arch: &str) -> Result<Compiled> {
        let text = self.text(source)?;
        let version = self.nvrtc_version(source)?;
        let options = options(defines, arch);
        let hash = self.hash(text, &options, version);
        let entry = self
            .cache_dir
            .as_ref()
            .map(|folder| folder.join(format!("{source}-{arch}-{hash:032x}.cubin")));
        if let Some(compiled) = entry.as_deref().and_then(cubin_cache::read) {
            return Ok(compiled);
        }
        let compiled = self.compile_now(source, text, &options)?;
        if let Some(entry) = &entry {
            cubin_cache::write(entry, &compiled);
        }
        Ok(compiled)
    }

    fn text(&self, source: &str) -> Result<&'static str> {
        let file = format!("{source}.cu");
        let found = self.sources.iter().find(|(name, _)| *name == file);
        found.map(|(_, text)| *text).ok_or_else(|| error(source, "no such source", &file))
    }

    /// NVRTC's version, or an error where there is none: cudarc would panic.
    fn nvrtc_version(&self, source: &str) -> Result<(i32, i32)> {
        let version = self.version.get_or_init(|| {
            // SAFETY: loads the library, as `find` may already have done.
            if !unsafe { sys::is_culib_present() } {
                return Err("libnvrtc.so was not found".to_owned());
            }
            let (mut major, mut minor) = (0, 0);
            // SAFETY: writes two numbers.
            let status = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
            status.result().map_err(|error| error.to_string())?;
            Ok((major, minor))
        });
        version.clone().map_err(|reason| error(source, reason, ""))
    }

    /// NVRTC's version, as `13.0`.
    pub fn version_name(&self) -> String {
        self.nvrtc_version("").map_or("?".to_owned(), |(major, minor)| format!("{major}.{minor}"))
    }

    fn hash(&self, text: &str, options: &[String], version: (i32, i32)) -> u128 {
        let mut hasher = Hasher::default();
        hasher.field(format!("{version:?}").as_bytes()).field(text.as_bytes());
        for (name, text) in headers(self.sources, text) {
            hasher.field(name.as_bytes()).field(text.as_bytes());
        }
        for option in options {
            hasher.field(option.as_bytes());
        }
        hasher.finish()
    }

    fn compile_now(&self, source: &str, text: &str, options: &[String]) -> Result<Compiled> {
        let mut names = Vec::new();
        let mut texts = Vec::new();
        for (name, text) in headers(self.sources, text) {
            names.push(c_string(source, name)?);
            texts.push(c_string(source, text)?);
        }
        let program = Program::new(source, text, &names, &texts)?;
        // SAFETY: the program lives.
        let result = unsafe { nvrtc::compile_program(program.handle, options) };
        let log = program.log();
        result.map_err(|code| error(source, format!("{:?}", code.0), log.trim()))?;
        let is_ptx = options
            .iter()
            .any(|option| option.strip_prefix(ARCH_OPTION).is_some_and(target::is_ptx));
        let cubin = if is_ptx { program.ptx(source)? } else { program.cubin(source)? };
        Ok(Compiled { cubin, log, is_cached: false })
    }
}

/// The headers that a text includes, directly or by way of others, in the order of `sources`.
/// NVRTC is given no others, so that a header which is missed here fails the compilation.
fn headers(sources: Sources, text: &str) -> Vec<&'static (&'static str, &'static str)> {
    let mut is_included = vec![false; sources.len()];
    let mut texts = vec![text];
    while let Some(text) = texts.pop() {
        let names: Vec<_> = included_names(text).collect();
        for (index, (name, header)) in sources.iter().enumerate() {
            if !is_included[index] && names.contains(name) {
                is_included[index] = true;
                texts.push(header);
            }
        }
    }
    let found = sources.iter().zip(is_included).filter(|(_, is_included)| *is_included);
    found.map(|(header, _)| header).collect()
}

/// Whether a source (`name`.cu) or a header that it includes has a word.
pub(crate) fn mentions(sources: Sources, name: &str, word: &str) -> bool {
    let file = format!("{name}.cu");
    let text = sources.iter().find(|(name, _)| *name == file).map_or("", |(_, text)| text);
    let mut headers = headers(sources, text).into_iter();
    text.contains(word) || headers.any(|(_, header)| header.contains(word))
}

/// File names of a text's `#include "NAME"` lines.
fn included_names(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix("#include")?.trim_start();
        rest.strip_prefix('"')?.split_once('"').map(|(name, _)| name)
    })
}

fn options(defines: &[(&str, &str)], arch: &str) -> Vec<String> {
    let mut options: Vec<String> = OPTIONS.map(str::to_owned).into();
    options.push(format!("{ARCH_OPTION}{arch}"));
    options.extend(defines.iter().map(|(name, value)| format!("-D{name}={value}")));
    options
}

fn error(source: &str, code: impl Into<String>, detail: &str) -> CudaError {
    CudaError::new("nvrtcCompileProgram", source, code, detail)
}

fn c_string(source: &str, text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| error(source, "a NUL in the source", ""))
}

/// A program of NVRTC, destroyed when dropped.
struct Program {
    handle: sys::nvrtcProgram,
    /// Text and file name, which NVRTC may refer to.
    _strings: [CString; 2],
}

impl Program {
    fn new(source: &str, text: &str, names: &[CString], texts: &[CString]) -> Result<Self> {
        let pointers = |strings: &[CString]| {
            strings.iter().map(|s| s.as_ptr()).collect::<Vec<*const c_char>>()
        };
        let (names, texts) = (pointers(names), pointers(texts));
        let (text, file) = (c_string(source, text)?, c_string(source, &format!("{source}.cu"))?);
        let mut handle = std::ptr::null_mut();
        let count = names.len() as i32;
        // SAFETY: as many texts as names, all ending in NUL; they outlive the program.
        let status = unsafe {
            sys::nvrtcCreateProgram(
                &mut handle,
                text.as_ptr(),
                file.as_ptr(),
                count,
                texts.as_ptr(),
                names.as_ptr(),
            )
        };
        status
            .result()
            .map_err(|code| error(source, format!("{:?}", code.0), "nvrtcCreateProgram"))?;
        Ok(Self { handle, _strings: [text, file] })
    }

    /// Empty where NVRTC has none to give.
    fn log(&self) -> String {
        // SAFETY: the program lives.
        let log = unsafe { nvrtc::get_program_log(self.handle) }.unwrap_or_default();
        let bytes: Vec<u8> = log.into_iter().flat_map(|byte| byte.to_ne_bytes()).collect();
        let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        text.to_string_lossy().into_owned()
    }

    fn cubin(&self, source: &str) -> Result<Vec<u8>> {
        self.output((source, "nvrtcGetCUBIN"), sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN)
    }

    fn ptx(&self, source: &str) -> Result<Vec<u8>> {
        self.output((source, "nvrtcGetPTX"), sys::nvrtcGetPTXSize, sys::nvrtcGetPTX)
    }

    /// Output of a compiled program by two of NVRTC's functions: number of bytes, then the bytes.
    fn output(
        &self,
        (source, call): (&str, &'static str),
        get_size: unsafe fn(sys::nvrtcProgram, *mut usize) -> sys::nvrtcResult,
        get: unsafe fn(sys::nvrtcProgram, *mut c_char) -> sys::nvrtcResult,
    ) -> Result<Vec<u8>> {
        let failed = |code: nvrtc::NvrtcError| error(source, format!("{:?}", code.0), call);
        let mut bytes = 0;
        // SAFETY: writes one number.
        unsafe { get_size(self.handle, &mut bytes) }.result().map_err(failed)?;
        let mut output = vec![0u8; bytes];
        // SAFETY: writes as many bytes as it said.
        let status = unsafe { get(self.handle, output.as_mut_ptr().cast()) };
        status.result().map_err(failed)?;
        Ok(output)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created once.
        let _ = unsafe { nvrtc::destroy_program(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_sees_included_headers_defines_and_version() {
        let hash = |sources: Sources, define: &str, version| {
            let compiler = Compiler::new(sources, None);
            let text = "#include \"a.cuh\"\nint x;";
            compiler.hash(text, &options(&[("DTYPE", define)], "sm_80"), version)
        };
        let base = hash(&[("a.cuh", "1")], "bf16", (13, 0));
        let others = [("a.cuh", "1"), ("b.cu", "another kernel"), ("b.cuh", "not included")];
        assert_eq!(base, hash(others.to_vec().leak(), "bf16", (13, 0)));
        assert_ne!(base, hash(&[("a.cuh", "2")], "bf16", (13, 0)));
        assert_ne!(base, hash(&[("a.cuh", "1")], "f16", (13, 0)));
        assert_ne!(base, hash(&[("a.cuh", "1")], "bf16", (13, 1)));
        // A header of a header.
        let nested = |inner| {
            hash(vec![("a.cuh", "  #include \"c.cuh\""), ("c.cuh", inner)].leak(), "f16", (13, 0))
        };
        assert_ne!(nested("1"), nested("2"));
    }

    #[test]
    fn headers_that_include_each_other_are_found_once() {
        let compiler = Compiler::new(
            &[("a.cuh", "#include \"b.cuh\""), ("b.cuh", "#include \"a.cuh\""), ("c.cuh", "")],
            None,
        );
        let names: Vec<_> =
            headers(compiler.sources, "#include \"b.cuh\"").iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["a.cuh", "b.cuh"]);
    }
}
