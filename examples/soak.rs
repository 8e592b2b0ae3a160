//! The program with an engine that computes nothing: a hash takes the place of the model
//! (`SimulatedExecutor`). Everything else is as it is: reading, tokenizing, scheduling, journal,
//! order, output. `scripts/soak-rows` feeds it millions of rows and watches its memory.
//!
//!     cargo run --release --example soak -- run --model testdata/demo -i rows.jsonl -o out.jsonl

use std::process::ExitCode;
use std::time::Instant;

use vllm_batch::cli;
use vllm_batch::cli::config::RunConfig;
use vllm_batch::cli::model::{Folders, Loaded};
use vllm_batch::cli::terminal::error::CliError;
use vllm_batch::engine::core::Engine;
use vllm_batch::engine::core::load::model_summary::ModelSummary;

fn main() -> ExitCode {
    cli::main_with(&load).into()
}

fn load(config: &RunConfig, folders: &Folders, _: &ModelSummary) -> Result<Loaded, CliError> {
    let mut engine_config = config.engine.clone();
    engine_config.model.model_dir = folders.model.clone();
    let loading = Instant::now();
    let engine = Engine::simulated(&engine_config)?;
    Ok(Loaded { engine, model_dir: folders.model.clone(), load_time: loading.elapsed() })
}
