//! Shards that are Parquet files: their rows are read as rows of any Parquet input, and become the
//! table that one run makes of them. What a shard's columns are is no matter: a field may have been
//! an integer in all of its rows, and a text in those of another.

use std::fs::File;

use super::merged_file::MergedFile;
use super::shard_reader::unreadable;
use super::shard_set::{ShardFile, ShardSet};
use crate::ledger::storage::hash_of;
use vllm_batch_dataset::input::parquet::{ParquetFile, ParquetRows};
use vllm_batch_dataset::input::reader::Content;
use vllm_batch_dataset::output::parquet::{Evidence, Table, TableSpec};
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;

/// Joins Parquet files.
pub fn join(set: &ShardSet, verify: bool, output: &mut MergedFile) -> Result<(), CliError> {
    let mut evidence = Evidence::default();
    let mut known: Option<TableSpec> = None;
    let mut readers = Vec::new();
    for shard in &set.files {
        let file = open(shard, verify)?;
        let (spec, inferences) = TableSpec::of_file(&file).map_err(|what| shard.changed(&what))?;
        match &known {
            Some(known) if !known.is_like(&spec) => {
                let (one, other) = (set.files[0].name(), shard.name());
                let message = format!("{one} and {other} have columns of different types");
                return Err(CliError::new(Exit::OutputExists, "other_run", message)
                    .help("run all shards over the same files"));
            }
            _ => known = Some(spec),
        }
        evidence.merge(inferences.columns);
        readers.push(ParquetRows::new(file));
    }
    output.begin_table(Table::of_shards(known.unwrap_or_default(), evidence));
    let count = readers.len() as u64;
    for row in 0..set.num_rows {
        let index = (row % count) as usize;
        let line = next_row(&set.files[index], &mut readers[index])?;
        let line =
            line.ok_or_else(|| set.files[index].changed("has fewer rows than its run left"))?;
        output.write_row(line.as_bytes())?;
    }
    for (shard, reader) in set.files.iter().zip(&mut readers) {
        if next_row(shard, reader)?.is_some() {
            return Err(shard.changed("has more rows than its run left"));
        }
    }
    Ok(())
}

fn open(shard: &ShardFile, verify: bool) -> Result<ParquetFile, CliError> {
    let failed = |error| unreadable(shard, &error);
    let file = File::open(&shard.path).map_err(failed)?;
    if verify {
        shard.check_hash(&hash_of(&file).map_err(failed)?)?;
    }
    ParquetFile::open(file).map_err(|error| shard.changed(&format!("cannot be read ({error})")))
}

/// A row as a JSON line.
fn next_row(shard: &ShardFile, rows: &mut ParquetRows) -> Result<Option<String>, CliError> {
    let record = rows.next_row();
    let record = record.map_err(|error| shard.changed(&format!("cannot be read ({error})")))?;
    let Some(record) = record else { return Ok(None) };
    match (record.error, record.content) {
        (None, Content::Line(line)) => Ok(Some(line + "\n")),
        _ => Err(shard.changed("has a row that its run cannot have left")),
    }
}
