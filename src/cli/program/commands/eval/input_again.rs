//! The records of an input that was run, read once more: for what its output does not show.

use std::sync::Arc;

use super::Origin;
use vllm_batch_dataset::input::files::{self, Files};
use vllm_batch_dataset::input::shard::Shard;
use vllm_batch_dataset::input::sources::Sources;

/// The records of an input that is files.
pub struct Records {
    /// Where they are.
    pub sources: Arc<Sources>,
    /// The records, of the sample if there is one.
    pub files: Files,
    /// Which of them are in the output.
    pub shard: Shard,
}

/// The records of an input; None where it is no file. No image is fetched for them.
pub fn records_of(origin: &Origin) -> Option<Records> {
    let Origin { args, config } = origin;
    let layout = args.layout;
    // Sources of their own: lines are counted in them.
    let sources =
        Sources::new(&args.input, |path| layout.resolve(path), &args.images.pages.options());
    let sources = sources.ok().filter(Sources::are_files).map(Arc::new)?;
    let mut rows = config.rows.clone();
    rows.media.urls = None;
    let first = files::open(&sources, &rows).ok()?;
    let files = Files::new(Arc::clone(&sources), first, &rows).ok()?;
    let files = files.choosing(config.chosen().ok()?);
    Some(Records { sources, files, shard: config.shard })
}
