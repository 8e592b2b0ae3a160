//! Builds a kernel source for the host, loads it, and calls its kernels.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::super::disk_cache::{Hasher, unique_name};
use super::super::driver::DEFAULT_SMEM_BYTES;
use super::super::error::{CudaError, Result};

/// `shim_launch` of kernels/host/shim.cpp: name, grid, block, shared memory, arguments, seed.
// SAFETY: to call it, the arguments point at values of the kernel's types.
type ShimLaunch = unsafe extern "C" fn(
    *const c_char,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u64,
    *mut *mut c_void,
    u64,
) -> c_int;
/// `shim_param_sizes`: sizes in bytes of a kernel's parameters, and their number; -1 without it.
// SAFETY: to call it, the library is loaded.
type ShimParamSizes = unsafe extern "C" fn(*const c_char, *mut *const u8) -> c_int;
/// `shim_error`: what the last launch died of.
// SAFETY: to call it, the library is loaded.
type ShimError = unsafe extern "C" fn() -> *const c_char;

/// A built source. The shim inside it has one state, hence the lock.
pub(in super::super) struct HostModule {
    launch: Mutex<ShimLaunch>,
    param_sizes: ShimParamSizes,
    error: ShimError,
    /// Shared memory that kernels may have beyond the default.
    max_smem: Mutex<HashMap<CString, usize>>,
    /// Last: the functions above are of it.
    _library: Library,
}

/// A kernel of a module, by name: the shim looks it up.
#[derive(Clone)]
pub(in super::super) struct HostFunction {
    module: Arc<HostModule>,
    name: CString,
    /// Sizes of its parameters; None of a name that the module does not have.
    param_sizes: Option<Arc<[u8]>>,
}

impl HostModule {
    pub(super) fn build(
        kernels_dir: &Path,
        module_dir: &Path,
        source: &str,
        defines: &[(&str, &str)],
    ) -> Result<Self> {
        let mut args = compiler_args(kernels_dir, source, defines);
        let hash = hash(kernels_dir, source, &args)?;
        let path = module_dir.join(format!("{source}-{hash:032x}.so"));
        if !path.is_file() {
            args.push(object_of_shim(kernels_dir, module_dir)?.to_string_lossy().into_owned());
            compile(module_dir, source, &args, &path)?;
        }
        Self::open(module_dir, source, &path)
    }

    /// Opens a copy under a name of its own: by name or by file, the loader would give all drivers
    /// of the process one and the same shim.
    fn open(module_dir: &Path, source: &str, path: &Path) -> Result<Self> {
        let copy = module_dir.join(format!("{source}-{}.so", unique_name()));
        std::fs::copy(path, &copy).map_err(|error| io(source, &copy, &error))?;
        // SAFETY: built above from our own sources, whose initialisers fill the table of the
        // kernels and the shim's empty state.
        let library = unsafe { Library::open(Some(&copy), RTLD_NOW | RTLD_LOCAL) };
        let _ = std::fs::remove_file(&copy);
        let failed = |error| CudaError::new("dlopen", source, format!("{error:?}"), "");
        let library = library.map_err(failed)?;
        // SAFETY: the types are those of kernels/host/shim.cpp, and the library stays open.
        let (launch, param_sizes, error) = unsafe {
            (
                *library.get::<ShimLaunch>("shim_launch").map_err(failed)?,
                *library.get::<ShimParamSizes>("shim_param_sizes").map_err(failed)?,
                *library.get::<ShimError>("shim_error").map_err(failed)?,
            )
        };
        let (launch, max_smem) = (Mutex::new(launch), Mutex::default());
        Ok(Self { launch, param_sizes, error, max_smem, _library: library })
    }

    fn param_sizes(&self, name: &CStr) -> Option<Arc<[u8]>> {
        let mut sizes = std::ptr::null();
        // SAFETY: the library is loaded; a name, and a place for an address.
        let num_params = unsafe { (self.param_sizes)(name.as_ptr(), &mut sizes) };
        let num_params = usize::try_from(num_params).ok()?;
        // SAFETY: the shim's table of a kernel has so many sizes, and lives as the library does.
        Some(unsafe { std::slice::from_raw_parts(sizes, num_params) }.into())
    }

    /// A name that the module does not have shows at the launch.
    pub(in super::super) fn function(module: &Arc<Self>, name: &str) -> Result<HostFunction> {
        let name = CString::new(name)
            .map_err(|_| CudaError::new("function", name, "a NUL in the name", ""))?;
        let param_sizes = module.param_sizes(&name);
        Ok(HostFunction { module: Arc::clone(module), name, param_sizes })
    }
}

impl HostFunction {
    /// Sizes of the kernel's parameters in bytes. Fails where the module has no such kernel.
    pub(in super::super) fn param_sizes(&self, name: &str) -> Result<&Arc<[u8]>> {
        let absent = || CudaError::new("shim_launch", name, "no kernel of this name", "");
        self.param_sizes.as_ref().ok_or_else(absent)
    }

    pub(in super::super) fn set_max_smem(&self, bytes: usize) {
        let mut max_smem = self.module.max_smem.lock().unwrap_or_else(PoisonError::into_inner);
        max_smem.insert(self.name.clone(), bytes);
    }

    /// A GPU refuses such a launch; the shim would run it.
    pub(super) fn has_smem(&self, bytes: usize) -> bool {
        let max_smem = self.module.max_smem.lock().unwrap_or_else(PoisonError::into_inner);
        bytes <= max_smem.get(&self.name).copied().unwrap_or(0).max(DEFAULT_SMEM_BYTES)
    }

    /// # Safety
    /// As `Driver::launch`.
    pub(super) unsafe fn launch(
        &self,
        name: &str,
        [x, y, z]: [u32; 3],
        block: u32,
        smem: usize,
        args: &mut [*mut c_void],
        seed: u64,
    ) -> Result<()> {
        let launch = self.module.launch.lock().unwrap_or_else(PoisonError::into_inner);
        let (kernel, smem) = (self.name.as_ptr(), smem as u64);
        // SAFETY: the caller's promise; the lock keeps other threads from the shim.
        let status = unsafe { launch(kernel, x, y, z, block, 1, 1, smem, args.as_mut_ptr(), seed) };
        if status == 0 {
            return Ok(());
        }
        // SAFETY: a string of the shim, valid until its next launch; the lock is held.
        let detail = unsafe { CStr::from_ptr((self.module.error)()) };
        let detail = format!("{} (seed {seed:#x})", detail.to_string_lossy());
        Err(CudaError::new("shim_launch", name, format!("status {status}"), detail))
    }
}

/// Compiler arguments of the shim and of every kernel.
fn shared_args(kernels_dir: &Path) -> Vec<String> {
    let mut args: Vec<String> =
        ["-O1", "-std=c++17", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden"]
            .map(str::to_owned)
            .into();
    // Unique symbols would be shared by all copies of a module.
    args.extend(["-fno-gnu-unique", "-DHOST_SHIM"].map(str::to_owned));
    args.push(format!("-I{}", kernels_dir.to_string_lossy()));
    args.push(format!("-I{}", kernels_dir.join("host").to_string_lossy()));
    args.extend(["-include", "shim.h"].map(str::to_owned));
    args
}

/// All but the shim's object file, which has to follow.
fn compiler_args(kernels_dir: &Path, source: &str, defines: &[(&str, &str)]) -> Vec<String> {
    let mut args = shared_args(kernels_dir);
    args.extend(defines.iter().map(|(name, value)| format!("-D{name}={value}")));
    args.extend(["-shared", "-x", "c++"].map(str::to_owned));
    args.push(kernels_dir.join(format!("{source}.cu")).to_string_lossy().into_owned());
    args.extend(["-x", "none"].map(str::to_owned));
    args
}

/// The shim itself, compiled once for all modules.
fn object_of_shim(kernels_dir: &Path, module_dir: &Path) -> Result<PathBuf> {
    let source = "host/shim.cpp";
    let mut args = shared_args(kernels_dir);
    args.extend(["-O2", "-c"].map(str::to_owned));
    args.push(kernels_dir.join(source).to_string_lossy().into_owned());
    let mut hasher = hasher_of_args(&args);
    add_files(&mut hasher, source, &files_of(&kernels_dir.join("host"), source, None)?)?;
    let path = module_dir.join(format!("shim-{:032x}.o", hasher.finish()));
    if !path.is_file() {
        compile(module_dir, "shim", &args, &path)?;
    }
    Ok(path)
}

/// Hash of everything that may go into the module.
fn hash(kernels_dir: &Path, source: &str, args: &[String]) -> Result<u128> {
    let mut files = vec![kernels_dir.join(format!("{source}.cu"))];
    files.extend(files_of(kernels_dir, source, Some("cuh"))?);
    files.extend(files_of(&kernels_dir.join("host"), source, None)?);
    let mut hasher = hasher_of_args(args);
    add_files(&mut hasher, source, &files)?;
    Ok(hasher.finish())
}

fn hasher_of_args(args: &[String]) -> Hasher {
    let mut hasher = Hasher::default();
    for arg in args {
        hasher.field(arg.as_bytes());
    }
    hasher
}

fn add_files(hasher: &mut Hasher, source: &str, files: &[PathBuf]) -> Result<()> {
    for file in files {
        let bytes = std::fs::read(file).map_err(|error| io(source, file, &error))?;
        hasher.field(file.to_string_lossy().as_bytes()).field(&bytes);
    }
    Ok(())
}

fn files_of(folder: &Path, source: &str, extension: Option<&str>) -> Result<Vec<PathBuf>> {
    let read = std::fs::read_dir(folder).map_err(|error| io(source, folder, &error))?;
    let mut files: Vec<PathBuf> = read
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
        .filter(|path| extension.is_none_or(|wanted| path.extension() == Some(wanted.as_ref())))
        .collect();
    files.sort();
    Ok(files)
}

fn compile(module_dir: &Path, source: &str, args: &[String], path: &Path) -> Result<()> {
    std::fs::create_dir_all(module_dir).map_err(|error| io(source, module_dir, &error))?;
    let temporary = module_dir.join(format!("{source}-{}.tmp", unique_name()));
    let output = Command::new("g++").args(args).arg("-o").arg(&temporary).output();
    let output = output.map_err(|error| io(source, Path::new("g++"), &error))?;
    if !output.status.success() {
        let log = String::from_utf8_lossy(&output.stderr);
        return Err(CudaError::new("g++", source, output.status.to_string(), log.trim()));
    }
    std::fs::rename(&temporary, path).map_err(|error| io(source, path, &error))
}

fn io(source: &str, path: &Path, error: &std::io::Error) -> CudaError {
    CudaError::new("load_module", source, error.to_string(), path.to_string_lossy())
}
