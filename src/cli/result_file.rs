//! A JSON document that a flag asks for beside the rows: `--stats`, `--output-json`.

use std::path::Path;

use serde_json::Value;

use super::error::CliError;
use super::exit::Exit;

/// Refuses a path that cannot be written to now, not after hours of work. `code` names the flag,
/// which the error does too.
///
/// # Errors
/// Its folder is not there, or it is one.
pub fn check(flag: &str, code: &'static str, path: &Path) -> Result<(), CliError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) || path.is_dir() {
        let message = format!("{flag} {}: no such folder", path.display());
        return Err(CliError::refused(code, message));
    }
    Ok(())
}

/// Writes the document.
///
/// # Errors
/// It cannot be written.
pub fn write(path: &Path, code: &'static str, document: &Value) -> Result<(), CliError> {
    std::fs::write(path, format!("{document:#}\n")).map_err(|error| {
        let message = format!("cannot write {}: {error}", path.display());
        CliError::new(Exit::Stopped, code, message)
    })
}
