//! `merge`: the outputs of all shards of a run become the output that one run writes, row by row
//! in the order of the input. Rows are bytes here: nothing looks into them. Shards and output may
//! be compressed, each as it is named: members are cut where one run cuts them.

mod matrix;
mod merged_file;
mod shard_meta;
mod shard_reader;
mod shard_set;
mod table;

use std::path::Path;

use crate::args::{FlagFiles, MergeArgs};
use crate::ledger::meta::{FileFacts, Meta, NamedFile, RowCounts, SCHEMA, TokenCounts};
use merged_file::MergedFile;
use shard_reader::ShardReader;
use shard_set::{ShardFile, ShardSet};
use vllm_batch_dataset::input::compress::Compression;
use vllm_batch_dataset::input::shard::Shard;
use vllm_batch_dataset::output::FileFormat;
use vllm_batch_dataset::terminal::console::Console;
use vllm_batch_dataset::terminal::error::CliError;
use vllm_batch_dataset::terminal::exit::Exit;

/// Joins shards.
///
/// # Errors
/// They are not the whole of one run, or the output cannot be written.
pub fn run(args: &MergeArgs, files: FlagFiles, console: &Console) -> Result<Exit, CliError> {
    if args.out == Path::new("-") {
        let help = "give --out FILE: the rows are proved to be right at their end only";
        return Err(CliError::refused("output", "merge writes a file").help(help));
    }
    let shards: Result<Vec<_>, _> = args.shards.iter().map(|path| ShardFile::read(path)).collect();
    let set = ShardSet::new(shards?)?;
    let format = set.meta().format;
    for (kind, extension, what) in
        [(FileFormat::Npy, "npy", "a matrix"), (FileFormat::Parquet, "parquet", "Parquet")]
    {
        let is_named = args.out.extension().is_some_and(|end| end.eq_ignore_ascii_case(extension));
        if (format == kind) != is_named {
            let message = format!("{what} is merged into FILE.{extension}, and nothing else is");
            return Err(CliError::refused("output", message).help("name the output as the shards"));
        }
    }
    let errors = matrix::errors_path(&set, &args.out);
    let mut output = MergedFile::create(&args.out, errors, files, args.overwrite)?;
    let joined = match format {
        FileFormat::Npy => matrix::join(&set, args.verify, &mut output),
        FileFormat::Parquet => table::join(&set, args.verify, &mut output),
        FileFormat::Jsonl | FileFormat::Csv | FileFormat::Tsv => {
            join(&set, args.verify, &mut output)
        }
    };
    let joined = joined.and_then(|()| output.complete());
    let written = match joined {
        Ok(written) => written,
        Err(error) => {
            output.abandon();
            return Err(error);
        }
    };
    let hash = written.0.blake3.clone();
    let meta = merged_meta(&set, written, output.compression());
    output.finish(&meta)?;
    let (rows, shards, out) = (set.num_rows, set.files.len(), args.out.display());
    let parts = format!("{rows} rows of {shards} shard{}", if shards == 1 { "" } else { "s" });
    console.note(&match args.verify {
        true => format!("Verified: {out} is what one run writes ({parts}, blake3 {hash})"),
        false => format!("Merged: {out} ({parts}, checksums not compared)"),
    });
    Ok(Exit::Success)
}

/// Row 0 is shard 0's first, row 1 shard 1's first: shards take turns.
fn join(set: &ShardSet, verify: bool, output: &mut MergedFile) -> Result<(), CliError> {
    let readers = set.files.iter().map(|file| ShardReader::open(file, verify));
    let mut readers = readers.collect::<Result<Vec<_>, _>>()?;
    if set.meta().format != FileFormat::Jsonl {
        output.write_header(&read_header(&mut readers)?);
    }
    let count = readers.len() as u64;
    for row in 0..set.num_rows {
        let reader = &mut readers[(row % count) as usize];
        reader.copy_record(&mut |bytes| {
            output.write(bytes);
            Ok(())
        })?;
        output.end_row()?;
    }
    readers.into_iter().try_for_each(ShardReader::finish)
}

/// The one header of all shards. A shard without rows may have none.
fn read_header(readers: &mut [ShardReader<'_>]) -> Result<Vec<u8>, CliError> {
    let mut header = Vec::new();
    let mut owner = None;
    for reader in readers {
        let found = reader.read_header()?;
        let file = reader.file();
        match owner {
            _ if found.is_empty() => {}
            None => (header, owner) = (found, Some(file)),
            Some(_) if found == header => {}
            Some(owner) => {
                let (one, other) = (owner.name(), file.name());
                let message = format!("{one} and {other} have different CSV headers");
                return Err(CliError::new(Exit::OutputExists, "other_run", message)
                    .help("run all shards over the same input with the same flags"));
            }
        }
    }
    Ok(header)
}

/// The side file that one run would have left, of what the shards' say.
fn merged_meta(
    set: &ShardSet,
    (output, errors): (FileFacts, Option<NamedFile>),
    compression: Compression,
) -> Meta {
    let metas = || set.files.iter().map(|file| &file.meta);
    let mut rows = RowCounts::default();
    let mut tokens = TokenCounts::default();
    let mut resumes = 0;
    // Saturating: side files may say anything.
    let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
    for meta in metas() {
        add(&mut rows.total, meta.rows.total);
        add(&mut rows.ok, meta.rows.ok);
        add(&mut rows.failed, meta.rows.failed);
        for (code, count) in &meta.rows.by_code {
            add(rows.by_code.entry(code.clone()).or_default(), *count);
        }
        add(&mut tokens.input, meta.tokens.input);
        add(&mut tokens.output, meta.tokens.output);
        add(&mut resumes, meta.resumes);
    }
    let first = set.meta();
    Meta {
        schema: SCHEMA,
        tool: first.tool.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started: metas().map(|meta| &meta.started).min().unwrap_or(&first.started).clone(),
        finished: metas().map(|meta| &meta.finished).max().unwrap_or(&first.finished).clone(),
        resumes,
        rows,
        tokens,
        output,
        errors,
        compression: compression.name().to_owned(),
        shard: Shard::default(),
        ..first.clone()
    }
}
