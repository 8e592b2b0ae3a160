//! Finds NVRTC and cuBLASLt where Python packages and toolkits put them, and loads them by path:
//! cudarc then gets them by name.

use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// CUDA 13 first: what this crate is built for. 12 has all that is used.
const MAJORS: [u32; 2] = [13, 12];

/// Where to look besides the usual places. The cli fills it from the environment.
#[derive(Clone, Debug, Default)]
pub struct SearchHints {
    /// A toolkit: CUDA_HOME or CUDA_PATH.
    pub cuda_home: Option<PathBuf>,
    /// Folders of Python packages, as `.venv/lib/python3.12/site-packages`.
    pub site_packages: Vec<PathBuf>,
    /// LD_LIBRARY_PATH.
    pub library_path: Vec<PathBuf>,
}

/// A library in memory. It stays: cudarc keeps addresses of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// File, or the name by which the system's loader knows it.
    pub path: PathBuf,
    /// CUDA version.
    pub major: u32,
}

/// Found libraries; else one line with the places that were searched, and a remedy.
#[derive(Clone, Debug)]
pub struct Found {
    /// The compiler of kernels.
    pub nvrtc: Result<Loaded, String>,
    /// Matrix products.
    pub cublas_lt: Result<Loaded, String>,
}

/// Loads the libraries, of the newest version up to `max_major` (the driver's: a newer library's
/// output does not load on it).
pub fn find(hints: &SearchHints, max_major: u32) -> Found {
    let folders = search_folders(hints);
    // NVRTC first: cuBLASLt loads it for some products.
    let nvrtc = load("nvrtc", &folders, max_major, preload_builtins);
    let cublas_lt = load("cublasLt", &folders, max_major, |_, _| ());
    Found { nvrtc, cublas_lt }
}

fn load(
    name: &str,
    folders: &[PathBuf],
    max_major: u32,
    before: impl Fn(&Path, u32),
) -> Result<Loaded, String> {
    let mut failure = None;
    for major in MAJORS.into_iter().filter(|&major| major <= max_major.max(12)) {
        let file = format!("lib{name}.so.{major}");
        for folder in folders.iter().filter(|folder| folder.join(&file).is_file()) {
            before(folder, major);
            let path = folder.join(&file);
            match open_with_dependencies(&path, folders) {
                Ok(()) => return Ok(Loaded { path, major }),
                Err(error) => failure = Some(error),
            }
        }
        if open(Path::new(&file)).is_ok() {
            return Ok(Loaded { path: file.into(), major });
        }
    }
    Err(reason(name, folders, max_major, failure))
}

fn reason(name: &str, folders: &[PathBuf], max_major: u32, failure: Option<String>) -> String {
    let versions = if max_major >= 13 { "13 or 12" } else { "12" };
    let package = if name == "nvrtc" { "nvidia-cuda-nvrtc" } else { "nvidia-cublas" };
    let suffix = if max_major >= 13 { "" } else { "-cu12" };
    let found = failure.unwrap_or_else(|| {
        format!("not in {} folders nor known to the system's loader", folders.len())
    });
    format!(
        "lib{name}.so (CUDA {versions}) was not found: {found}; install a CUDA toolkit, or \
         `pip install {package}{suffix}` in the active environment"
    )
    .replace('\n', " ")
}

/// Without them in memory NVRTC looks for its builtins by name alone, and compiles nothing.
fn preload_builtins(folder: &Path, major: u32) {
    for path in entries(folder, &format!("libnvrtc-builtins.so.{major}")) {
        // NVRTC reports what is missing when it compiles.
        let _ = open(&path);
    }
}

/// Opens a library, and before it those of the same folders that it asks for.
fn open_with_dependencies(path: &Path, folders: &[PathBuf]) -> Result<(), String> {
    const MAX_DEPENDENCIES: usize = 8;
    let mut result = open(path);
    for _ in 0..MAX_DEPENDENCIES {
        let Err(message) = &result else { break };
        // "libx.so.13: cannot open shared object file: No such file or directory"
        let Some((missing, _)) = message.split_once(": cannot open shared object file") else {
            break;
        };
        let missing = Path::new(missing).file_name().unwrap_or_default();
        let dependency = folders.iter().map(|f| f.join(missing)).find(|p| p.is_file());
        if !dependency.is_some_and(|p| p != path && open(&p).is_ok()) {
            break;
        }
        result = open(path);
    }
    result
}

/// Opens a library for good, its symbols for all.
fn open(path: &Path) -> Result<(), String> {
    // SAFETY: runs the initialisers of NVIDIA's libraries, which expect to be loaded so.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }
        .map_err(|error| innermost(&error))?;
    std::mem::forget(library);
    Ok(())
}

/// Message of dlopen, without libloading's words around it.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// All folders that may hold the libraries and exist, hints first.
fn search_folders(hints: &SearchHints) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    if let Some(home) = &hints.cuda_home {
        add_toolkit(&mut folders, home);
    }
    for site in &hints.site_packages {
        add_packages(&mut folders, site);
    }
    folders.extend(hints.library_path.iter().cloned());
    for toolkit in entries(Path::new("/usr/local"), "cuda") {
        add_toolkit(&mut folders, &toolkit);
    }
    for folder in ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"] {
        folders.push(folder.into());
    }
    for site in system_site_packages() {
        add_packages(&mut folders, &site);
    }
    let mut seen = std::collections::HashSet::new();
    folders.retain(|folder| folder.is_dir() && seen.insert(folder.clone()));
    folders
}

fn add_toolkit(folders: &mut Vec<PathBuf>, home: &Path) {
    for folder in ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"] {
        folders.push(home.join(folder));
    }
}

/// NVIDIA's wheels: one folder for CUDA 13, one for each library before.
fn add_packages(folders: &mut Vec<PathBuf>, site: &Path) {
    for package in ["cu13", "cuda_nvrtc", "cublas"] {
        folders.push(site.join("nvidia").join(package).join("lib"));
    }
}

fn system_site_packages() -> Vec<PathBuf> {
    let mut sites = Vec::new();
    let mut python_homes = vec![PathBuf::from("/usr/lib"), PathBuf::from("/usr/local/lib")];
    python_homes.extend(entries(Path::new("/opt"), "").iter().map(|home| home.join(".venv/lib")));
    python_homes.extend(entries(Path::new("/opt"), "").iter().map(|home| home.join("lib")));
    for home in python_homes {
        for python in entries(&home, "python3") {
            sites.push(python.join("site-packages"));
            sites.push(python.join("dist-packages"));
        }
    }
    sites
}

/// Entries of a folder with a prefix, the highest name first. Empty if it cannot be read.
fn entries(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(read) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = read
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .map(|entry| entry.path())
        .collect();
    paths.sort_by(|a, b| b.cmp(a));
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_come_before_the_usual_places() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_owned();
        let wheel = root.join("site/nvidia/cu13/lib");
        let toolkit = root.join("cuda/lib64");
        for folder in [&wheel, &toolkit] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let hints = SearchHints {
            cuda_home: Some(root.join("cuda")),
            site_packages: vec![root.join("site")],
            library_path: vec![toolkit.clone(), root.join("absent")],
        };
        assert_eq!(search_folders(&hints)[..2], [toolkit, wheel]);
    }

    #[test]
    fn a_missing_or_broken_library_is_one_line_with_a_remedy() {
        let reason = load("no-such-library", &[], 13, |_, _| ()).unwrap_err();
        assert!(reason.contains("libno-such-library.so (CUDA 13 or 12) was not found"), "{reason}");
        assert!(reason.contains("pip install nvidia-cublas`"), "{reason}");

        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_owned();
        std::fs::write(root.join("libnot-elf.so.12"), "text").unwrap();
        let reason = load("not-elf", std::slice::from_ref(&root), 12, |_, _| ()).unwrap_err();
        assert!(reason.contains("libnot-elf.so.12"), "{reason}");
        assert!(!reason.contains('\n') && reason.contains("-cu12"), "{reason}");
    }
}
