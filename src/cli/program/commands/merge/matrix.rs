//! Shards that are matrices: rows of bytes of one length. The rows of texts without a vector are
//! NaN, and each of them is a line in the shard's file of errors.

use std::path::{Path, PathBuf};

use super::merged_file::MergedFile;
use super::shard_reader::ShardReader;
use super::shard_set::{ShardFile, ShardSet};
use crate::config::errors_beside;
use vllm_batch_dataset::output::FileFormat;
use vllm_batch_dataset::output::npy::is_hole;
use vllm_batch_dataset::terminal::error::CliError;

/// Joins matrices, and the files of errors beside them.
pub fn join(set: &ShardSet, verify: bool, output: &mut MergedFile) -> Result<(), CliError> {
    let errors: Vec<ShardFile> = set.files.iter().map(errors_of).collect::<Result<_, _>>()?;
    let open = |file| ShardReader::open(file, verify);
    let mut readers = set.files.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let mut errors = errors.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let mut width = None;
    for reader in &mut readers {
        let found = reader.read_matrix_header()?;
        if found != *width.get_or_insert(found) {
            return Err(reader.file().changed(&format!("has {found} columns, and others not")));
        }
    }
    output.begin_matrix(width.unwrap_or_default());
    let count = readers.len() as u64;
    let mut bytes = Vec::new();
    for row in 0..set.num_rows {
        let index = (row % count) as usize;
        bytes.clear();
        readers[index].copy_record(&mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        output.write(&bytes);
        output.end_row()?;
        if is_hole(&bytes) {
            errors[index].copy_record(&mut |piece| {
                output.write_error(piece);
                Ok(())
            })?;
            output.end_error()?;
        }
    }
    readers.into_iter().chain(errors).try_for_each(ShardReader::finish)
}

/// The file of errors of a shard: where its run left it, or beside the shard, which may have been
/// moved since.
fn errors_of(shard: &ShardFile) -> Result<ShardFile, CliError> {
    let Some(errors) = &shard.meta.errors else {
        return Err(shard.changed("is a matrix without a file of errors"));
    };
    let typed = PathBuf::from(&errors.path);
    let beside = typed.file_name().map(|name| shard.path.with_file_name(name));
    let candidates = beside.into_iter().chain([typed.clone()]);
    let path = candidates.into_iter().find(|path| path.is_file()).unwrap_or(typed);
    let mut meta = shard.meta.clone();
    meta.output = errors.facts.clone();
    meta.format = FileFormat::Jsonl;
    ShardFile::of_errors(path, meta)
}

/// Where the error rows of a merged matrix go.
pub fn errors_path(set: &ShardSet, out: &Path) -> Option<PathBuf> {
    (set.meta().format == FileFormat::Npy).then(|| errors_beside(out))
}
