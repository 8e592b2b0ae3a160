//! The rows of a complete output.

use std::path::{Path, PathBuf};

use super::{Rows, matrix_line, unreadable};
use crate::ledger::meta::Meta;
use vllm_batch_dataset::output::{FileFormat, FinishedRows};
use vllm_batch_dataset::terminal::error::CliError;

/// Prints them; of the failed ones those that are in a file of their own too.
///
/// # Errors
/// It is no output of a run, cannot be read, or standard output not be written.
pub fn show(output: &Path, rows: &mut Rows) -> Result<(), CliError> {
    let meta = Meta::beside(output).map_err(|_| {
        let message = format!("no run made {}: it has no .meta.json beside it", output.display());
        CliError::refused("no_job", message).help("name an output of `run`, as -o names it")
    })?;
    let has_other_errors = meta.errors.is_some();
    if !rows.failed || !has_other_errors {
        show_file(output, meta.format, rows, false)?;
    }
    match meta.errors.filter(|_| rows.failed) {
        // Rows of a matrix fail in a file of JSON lines.
        Some(errors) => {
            let format = match meta.format {
                FileFormat::Csv | FileFormat::Tsv => meta.format,
                FileFormat::Jsonl | FileFormat::Npy | FileFormat::Parquet => FileFormat::Jsonl,
            };
            show_file(&beside(output, Path::new(&errors.path)), format, rows, true)
        }
        None => Ok(()),
    }
}

/// A file under the name that was typed then; else the one of that name beside the output.
fn beside(output: &Path, typed: &Path) -> PathBuf {
    let here = typed.exists().then(|| typed.to_owned());
    here.unwrap_or_else(|| output.with_file_name(typed.file_name().unwrap_or_default()))
}

fn show_file(
    path: &Path,
    format: FileFormat,
    rows: &mut Rows,
    all_failed: bool,
) -> Result<(), CliError> {
    let name = path.display().to_string();
    let file = FinishedRows::open(path, format);
    let mut file = file.map_err(|error| CliError::from_input(error, &name))?;
    rows.header(file.header())?;
    let mut place = 0;
    while let Some(row) = file.next_row().map_err(|error| unreadable(path, &error))? {
        let is_error = all_failed || row.tokens.is_none();
        let is_hole = format == FileFormat::Npy && is_error;
        match format {
            _ if is_hole || !rows.wants(is_error) => {}
            FileFormat::Npy => rows.row(&matrix_line(place, &row.bytes))?,
            _ => rows.row(&row.bytes)?,
        }
        place += 1;
    }
    Ok(())
}
