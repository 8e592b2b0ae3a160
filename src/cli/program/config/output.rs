//! `OutputConfig`: where rows go, and what an output's name
//! asks for. No file is touched here.

use std::path::{Path, PathBuf};

use crate::args::values::MaxErrors;
use crate::args::{OutputArgs, OutputFormatArg, RunArgs};
use vllm_batch_dataset::input::compress::Compression;
use vllm_batch_dataset::input::reader::{InputFormat, foreign_kind};
use vllm_batch_dataset::input::row::Task;
use vllm_batch_dataset::output::format_settings::Detail;
use vllm_batch_dataset::terminal::error::CliError;

/// Where rows go.
#[derive(Debug)]
pub struct OutputConfig {
    /// None: standard output.
    pub path: Option<PathBuf>,
    /// Vectors are rows of a matrix of NumPy's.
    pub is_matrix: bool,
    /// Of a prompt that was typed: the answer alone is written.
    pub is_answer_alone: bool,
    /// Field of the answer.
    pub field: String,
    /// Whether every output is written.
    pub detail: Detail,
    /// Replace what exists.
    pub overwrite: bool,
    /// When to give up.
    pub max_errors: Option<MaxErrors>,
    /// Where error rows go instead.
    pub errors: Option<PathBuf>,
    /// The journal, where it is not beside the output.
    pub journal: Option<PathBuf>,
    /// Ask error rows again.
    pub retry_failed: bool,
    /// Rows are written as they finish; each must have an id.
    pub unordered: bool,
    /// Descriptor of whoever waits until the model is loaded.
    pub ready_fd: Option<u32>,
}

/// Where the error rows of a matrix go unless a flag says it: `FILE.npy.errors.jsonl`.
pub fn errors_beside(matrix: &Path) -> PathBuf {
    let mut name = matrix.as_os_str().to_owned();
    name.push(".errors.jsonl");
    PathBuf::from(name)
}

/// Whether an output's name asks for a Parquet file.
pub fn is_table(path: &Path) -> bool {
    InputFormat::from_path(path) == InputFormat::Parquet
}

/// Refuses what no Parquet file can be.
fn check_table(path: &Path) -> Result<(), &'static str> {
    if Compression::from_path(path) != Compression::None {
        return Err("Parquet within another compression");
    }
    match std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        true => Err("Parquet, and it is no file"),
        false => Ok(()),
    }
}

/// Refuses files of rows that come in any order: they could not be continued, compared or merged.
fn check_unordered(output: &OutputArgs) -> Result<(), CliError> {
    let file = |path: &Option<PathBuf>| path.as_deref().is_some_and(|path| path != Path::new("-"));
    let refused = [
        ("--out", file(&output.out)),
        ("--journal", output.journal.is_some()),
        ("--errors", output.errors.is_some()),
        ("--retry-failed", output.retry_failed),
    ];
    match refused.into_iter().find(|(_, is_given)| *is_given && output.unordered) {
        None => Ok(()),
        Some((flag, _)) => {
            let message = format!("--unordered writes to standard output, and not with {flag}");
            Err(CliError::refused("unordered", message).help(format!(
                "leave out --unordered: files have the order of the input; or leave out {flag}"
            )))
        }
    }
}

pub(super) fn output_config(args: &RunArgs) -> Result<OutputConfig, CliError> {
    let output = &args.output;
    check_unordered(output)?;
    for (flag, path) in [("--out", &output.out), ("--errors", &output.errors)] {
        let path = path.as_deref();
        let table = path.filter(|path| is_table(path)).and_then(|path| match flag {
            "--out" => check_table(path).err(),
            _ => Some("Parquet, and error rows are JSON lines"),
        });
        if let Some(what) = path.and_then(foreign_kind).or(table) {
            let message = format!("{flag}: by its name the output is {what}, which is not written");
            return Err(CliError::refused("output", message).help(
                "name the output FILE.jsonl or FILE.parquet, or FILE.csv where the input is CSV; \
                 `embed` writes FILE.npy too",
            ));
        }
    }
    Ok(OutputConfig {
        path: output.out.clone().filter(|path| path != Path::new("-")),
        is_matrix: false,
        is_answer_alone: args.input.prompt.is_some() && output.output_format.is_none(),
        field: output.out_field.clone().unwrap_or_else(|| Task::Complete.answer_field().to_owned()),
        detail: match output.output_format {
            None | Some(OutputFormatArg::Auto | OutputFormatArg::OpenAi) => Detail::Auto,
            Some(OutputFormatArg::Simple) => Detail::Simple,
            Some(OutputFormatArg::Full) => Detail::Full,
        },
        overwrite: output.overwrite,
        max_errors: output.max_errors,
        errors: output.errors.clone(),
        journal: output.journal.clone(),
        retry_failed: output.retry_failed,
        unordered: output.unordered,
        ready_fd: output.ready_fd,
    })
}
